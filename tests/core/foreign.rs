//! Transcripts of claude-code and codex: the messages are those that a careful reader gets, nothing is lost unsaid.

use proptest::prelude::*;
use quipu::model::{Event, Limits, Profile, Seq};
use quipu::portable::foreign::{Harness, Mapped, records};
use quipu::replay::admit::Admission;
use quipu::replay::messages::derive;
use quipu::replay::surface::{Original, in_log};
use serde_json::{Value, json};

fn read(text: &[u8], harness: Harness) -> (Vec<Event>, Mapped) {
    let mut records = records(text, harness);
    let events: Vec<Event> = records.by_ref().map(Result::unwrap).collect();
    let mapped = records.mapped();
    assert_eq!(mapped.events, events.len() as u64);
    // Whatever the file: the strictest door takes the log, batch by batch, and every event by itself.
    let mut door = Admission::default();
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event.seq, Seq::saturating(index as u64));
        event.body.check(&Limits::default()).unwrap();
        let batch = std::slice::from_ref(event);
        let admitted = door.admit(Profile::DshStrict, batch, &in_log(&events[..index]));
        assert_eq!(admitted, Ok(Vec::new()), "{event:?}");
    }
    (events, mapped)
}

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/samples").join(name)).unwrap()
}

fn messages(events: &[Event]) -> Vec<Value> {
    derive(events).unwrap().iter().map(|message| serde_json::from_slice(message).unwrap()).collect()
}

/// One line for a message: who, and what in which blocks.
fn gist(message: &Value) -> String {
    let blocks = message["content"].as_array().unwrap().iter().map(|block| {
        let text = |key: &str| block[key].as_str().unwrap_or("-").to_owned();
        match block["type"].as_str().unwrap() {
            "text" => text("text"),
            "reasoning" => format!("<{}>", text("text")),
            "tool-call" => format!("{}={}({})", text("id"), text("name"), text("arguments")),
            "tool-result" => {
                let parts = block["content"].as_array().unwrap().iter();
                let parts: Vec<_> = parts.map(|part| part["text"].as_str().unwrap_or("?").to_owned()).collect();
                format!("{}{}{}", text("toolCallId"), if block["isError"] == true { "!" } else { ">" }, parts.join("+"))
            }
            other => format!("[{other}]"),
        }
    });
    format!("{}: {}", &message["role"].as_str().unwrap()[..1], blocks.collect::<Vec<_>>().join(" | "))
}

fn gists(events: &[Event]) -> Vec<String> {
    messages(events).iter().map(gist).collect()
}

/// The report, a line for each entry: line, fate.
fn fates(mapped: &Mapped) -> Vec<(u64, &'static str)> {
    mapped.report.entries.iter().map(|entry| (entry.line, entry.fate.name())).collect()
}

fn data(events: &[Event], kind: &str) -> Vec<Value> {
    let found = events.iter().filter(|event| &*event.body.kind == kind);
    found.map(|event| serde_json::from_slice(&event.body.data).unwrap()).collect()
}

fn usages(events: &[Event]) -> Vec<Value> {
    data(events, "assistant/message").into_iter().map(|data| data["usage"].clone()).collect()
}

#[test]
fn the_claude_code_sample_gives_the_messages_that_a_careful_reader_gets() {
    let (events, mapped) = read(&sample("claude-code-representative.jsonl"), Harness::ClaudeCode);
    assert_eq!(mapped.id.as_ref().unwrap().as_str(), "test_session");
    assert_eq!(mapped.header.cwd.as_deref(), Some("/tmp"));
    assert_eq!(mapped.header.created_at_ms, 1_749_895_200_000);
    assert_eq!((mapped.report.records, fates(&mapped)), (12, vec![]), "every record has its place");
    let found = messages(&events);
    let shape: Vec<_> = found
        .iter()
        .map(|m| (m["id"].as_str().unwrap(), m["role"].as_str().unwrap(), m["source"]["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(
        shape,
        [
            ("msg_001", "user", "user"),
            ("msg_002", "assistant", "model"),
            ("msg_003", "user", "user"),
            ("msg_004", "assistant", "model"),
            ("msg_005", "user", "tool"),
            ("msg_006", "assistant", "model"),
            ("msg_007", "user", "user"),
            ("msg_008", "assistant", "model"),
            ("msg_009", "user", "tool"),
            ("msg_010", "assistant", "model"),
            ("msg_011", "user", "user"),
        ]
    );
    // By hand, from the file.
    assert_eq!(
        found[0]["content"],
        json!([{"type": "text", "text": "Hello Claude! Can you help me understand how Python decorators work?"}])
    );
    assert_eq!(
        found[1]["source"],
        json!({"kind": "model", "provider": "anthropic", "model": "claude-3-sonnet-20240229"})
    );
    assert!(
        found[1]["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("I'd be happy to help you understand Python decorators! A")
    );
    assert!(found[1]["content"][0]["text"].as_str().unwrap().ends_with("Something after the function\n```"));
    assert_eq!(found[3]["content"].as_array().unwrap().len(), 1);
    let call = &found[3]["content"][0];
    assert_eq!((&call["type"], &call["id"], &call["name"]), (&json!("tool-call"), &json!("tool_001"), &json!("Edit")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["file_path"], "/tmp/decorator_example.py");
    assert_eq!(arguments["old_string"], "");
    assert!(arguments["new_string"].as_str().unwrap().starts_with("def repeat(times):\n    def decorator(func):\n"));
    assert_eq!(
        found[4]["content"],
        json!([{"type": "tool-result", "toolCallId": "tool_001", "isError": false,
        "content": [{"type": "text", "text": "File created successfully at: /tmp/decorator_example.py"}]}])
    );
    assert_eq!(gist(&found[6]), "u: Can you run that example to show the output?");
    assert_eq!(
        gist(&found[7]),
        "a: tool_002=Bash({\"command\": \"python /tmp/decorator_example.py\", \"description\": \"Run the decorator example to show output\"})"
    );
    assert_eq!(gist(&found[8]), "u: tool_002>Hello, Alice!\nHello, Alice!\nHello, Alice!");
    assert!(gist(&found[9]).starts_with("a: Perfect! As you can see, the `@repeat(3)` decorator"));
    assert_eq!(
        gist(&found[10]),
        "u: This is really helpful! Let me try to implement a timing decorator myself. Can you help me if I get stuck?"
    );
    let tokens = |input: u64, output: u64| json!({"inputTokens": input, "outputTokens": output, "cacheReadTokens": 0, "cacheWriteTokens": 0});
    assert_eq!(usages(&events), [tokens(25, 120), tokens(45, 85), tokens(78, 95), tokens(25, 35), tokens(45, 110)]);
    // Four prompts, the last one not answered: its turn is open, for the rules of crash repair.
    assert_eq!(
        data(&events, "turn/end").iter().map(|end| end["reason"]["kind"].clone()).collect::<Vec<_>>(),
        ["completed"; 3]
    );
    assert_eq!(data(&events, "turn/start").len(), 4);
    let title = &data(&events, "session/title")[0];
    assert!(title["title"].as_str().unwrap().starts_with("User learned about Python decorators, including"));
    let about = title["messageSeqs"][0].as_u64().unwrap() as usize;
    assert_eq!(serde_json::from_slice::<Value>(&events[about].body.data).unwrap()["id"], "msg_011");
}

#[test]
fn the_codex_sample_gives_the_messages_that_a_careful_reader_gets() {
    let (events, mapped) = read(&sample("codex-rollout-shape.jsonl"), Harness::Codex);
    assert_eq!(mapped.id.as_ref().unwrap().as_str(), "11111111-1111-4111-8111-111111111111");
    assert_eq!(mapped.header.cwd.as_deref(), Some("/workspace/synthetic-project"));
    assert_eq!(mapped.header.created_at_ms, 1_767_323_045_000);
    assert_eq!(
        gists(&events),
        [
            "u: List the synthetic files.",
            "a: <I will inspect the synthetic directory.> | call-structured-001=exec_command({\"cmd\":\"find . -maxdepth 1 -type f\"})",
            "u: call-structured-001>./alpha.txt\n./beta.txt",
            "a: call-custom-001=apply_patch(*** Begin Patch\n*** Add File: gamma.txt\n+synthetic\n*** End Patch)",
            "u: call-custom-001>Done!",
            "a: call-mcp-001=mcp__synthetic__lookup({\"query\":\"fixture\"})",
            "u: call-mcp-001>{\"status\":\"ok\"}",
            "a: The synthetic files are alpha.txt and beta.txt.",
        ]
    );
    let found = messages(&events);
    assert_eq!(found[1]["source"], json!({"kind": "model", "provider": "synthetic", "model": "synthetic-model"}));
    assert_eq!(found[1]["content"][0]["encryptedContent"], "SYNTHETIC_ENCRYPTED_CONTENT_MUST_NOT_RENDER");
    // The two that say again what a response_item says, and the one of an unknown type.
    assert_eq!(
        (mapped.report.records, fates(&mapped)),
        (14, vec![(3, "repeated"), (12, "repeated"), (14, "no-place")])
    );
    assert_eq!(
        mapped.report.entries[2].to_string(),
        "line 14 (future_synthetic_record) has no place: the type is not known"
    );
    let kinds: Vec<_> = events.iter().map(|event| &*event.body.kind).collect();
    assert_eq!(kinds[..5], ["turn/start", "step/start", "user/message", "request/context", "assistant/message"]);
    assert_eq!(data(&events, "turn/end"), [json!({"turn": 1, "reason": {"kind": "completed"}})]);
}

/// A line of claude-code with what every record has.
fn claude(uuid: &str, parent: &str, body: &str) -> String {
    format!(
        "{{\"uuid\":\"{uuid}\",\"parentUuid\":\"{parent}\",\"sessionId\":\"s\",\"timestamp\":\"2026-01-01T00:00:00Z\",{body}}}\n"
    )
}

fn said(uuid: &str, parent: &str, text: &str) -> String {
    claude(uuid, parent, &format!("\"type\":\"user\",\"message\":{{\"role\":\"user\",\"content\":\"{text}\"}}"))
}

fn answered(uuid: &str, parent: &str, id: &str, content: &str, output: u64) -> String {
    claude(
        uuid,
        parent,
        &format!(
            "\"type\":\"assistant\",\"message\":{{\"id\":\"{id}\",\"model\":\"m\",\"role\":\"assistant\",\"content\":[{content}],\
         \"usage\":{{\"input_tokens\":10,\"output_tokens\":{output},\"cache_read_input_tokens\":3}}}}"
        ),
    )
}

fn resulted(uuid: &str, parent: &str, call: &str, text: &str) -> String {
    claude(
        uuid,
        parent,
        &format!(
            "\"type\":\"user\",\"message\":{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"{call}\",\"is_error\":true,\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}}]}}"
        ),
    )
}

#[test]
fn a_response_on_several_lines_is_one_message_and_counts_once() {
    let text = [
        said("u1", "", "go"),
        answered("a1", "u1", "r1", r#"{"type":"thinking","thinking":"hm \/ ","signature":"AB+/="}"#, 1),
        answered("a2", "a1", "r1", r#"{"type":"tool_use","id":"t1","name":"Read","input":{"n":1.0, "z":-0}}"#, 1),
        resulted("b1", "a2", "t1", "one"),
        answered("a3", "a2", "r1", r#"{"type":"tool_use","id":"t2","name":"Read","input":{}}"#, 7),
        resulted("b2", "a3", "t2", "two"),
        answered("a4", "b2", "r2", r#"{"type":"text","text":"done"}"#, 2),
    ]
    .concat();
    let (events, mapped) = read(text.as_bytes(), Harness::ClaudeCode);
    assert_eq!(
        gists(&events),
        ["u: go", "a: <hm / > | t1=Read({\"n\":1.0, \"z\":-0}) | t2=Read({})", "u: t1!one", "u: t2!two", "a: done",]
    );
    assert_eq!(fates(&mapped), vec![]);
    let tokens = |output: u64| json!({"inputTokens": 10, "outputTokens": output, "cacheReadTokens": 3});
    assert_eq!(usages(&events), [tokens(7), tokens(2)]);
    // The signed block keeps its spelling.
    let first = events.iter().find(|event| &*event.body.kind == "assistant/message").unwrap();
    let raw = std::str::from_utf8(&first.body.data).unwrap();
    assert!(raw.contains(r#"{"type":"reasoning","text":"hm \/ ","signature":"AB+/="}"#), "{raw}");
}

#[test]
fn compaction_takes_away_what_was_not_kept_and_kept_messages_do_not_come_twice() {
    let boundary = claude(
        "c1",
        "",
        r#""type":"system","subtype":"compact_boundary","compactMetadata":{"trigger":"auto","preTokens":900,"preservedMessages":{"anchorUuid":"s1","uuids":["u2","a2"]}}"#,
    );
    let summary =
        claude("s1", "c1", r#""type":"user","isCompactSummary":true,"message":{"role":"user","content":"in short"}"#);
    let text = [
        said("u1", "", "one"),
        answered("a1", "u1", "r1", r#"{"type":"text","text":"first"}"#, 1),
        said("u2", "a1", "two"),
        answered("a2", "u2", "r2", r#"{"type":"text","text":"second"}"#, 1),
        boundary,
        summary,
        said("u2", "s1", "two"),
        said("u3", "a2", "three"),
    ]
    .concat();
    let (events, mapped) = read(text.as_bytes(), Harness::ClaudeCode);
    assert_eq!(gists(&events), ["u: in short", "u: two", "a: second", "u: three"]);
    assert_eq!(fates(&mapped), [(7, "repeated")]);
    let summary = &data(&events, "compaction/summary")[0];
    assert_eq!((&summary["compactionId"], &summary["shadowedTokenCount"]), (&json!("c1"), &json!(900)));
    assert_eq!(summary["shadowedSeqs"].as_array().unwrap().len(), 2);
    assert_eq!(data(&events, "compaction/start").len() + data(&events, "compaction/end").len(), 2);
}

#[test]
fn what_has_no_place_and_what_is_damaged_is_named_by_its_line() {
    let text = [
        said("u1", "", "go"),
        "{\"type\":\"user\",\"mess\n".to_owned(),
        claude("x1", "u1", r#""type":"file-history-snapshot","snapshot":{}"#),
        claude("x2", "u1", r#""type":"user","isSidechain":true,"message":{"role":"user","content":"sub"}"#),
        claude("x3", "u1", r#""type":"system","subtype":"local_command","content":"x""#),
        "[1]\n".to_owned(),
        "\n".to_owned(),
        resulted("x4", "u1", "nobody", "?"),
        claude("x5", "u1", r#""type":"user""#),
        claude("x6", "u1", r#""type":"summary","summary":"s","leafUuid":"elsewhere""#),
        claude("x7", "u1", r#""type":"assistant","isApiErrorMessage":true,"message":{"model":"<synthetic>","content":[{"type":"text","text":"API Error: 529"}]}"#),
        "{\"type\":\"user\",".to_owned(),
    ].concat();
    let (events, mapped) = read(text.as_bytes(), Harness::ClaudeCode);
    assert_eq!(
        fates(&mapped),
        [
            (2, "damaged"),
            (3, "no-place"),
            (4, "no-place"),
            (5, "no-place"),
            (6, "damaged"),
            (8, "no-place"),
            (9, "no-place"),
            (10, "no-place"),
            (11, "no-place"),
            (12, "torn"),
        ]
    );
    assert_eq!(mapped.report.damaged().count(), 2);
    assert_eq!(gists(&events), ["u: go"]);
    assert_eq!(
        data(&events, "turn/end"),
        [json!({"turn": 1, "reason": {"kind": "error", "error": {"message": "API Error: 529", "code": "UNKNOWN"}}})]
    );
}

#[test]
fn a_prompt_that_was_taken_back_leaves_the_surface_and_stays_in_the_log() {
    let text = [
        said("u1", "", "one"),
        answered("a1", "u1", "r1", r#"{"type":"text","text":"first"}"#, 1),
        said("u2", "a1", "wrong"),
        answered("a2", "u2", "r2", r#"{"type":"tool_use","id":"t","name":"Rm","input":"x"}"#, 1),
        claude("m", "a1", r#""type":"attachment""#),
        said("u3", "m", "right"),
        answered("a3", "u3", "r3", r#"{"type":"text","text":"yes"}"#, 1),
    ]
    .concat();
    let (events, _) = read(text.as_bytes(), Harness::ClaudeCode);
    assert_eq!(gists(&events), ["u: one", "a: first", "u: right", "a: yes"]);
    let all = events.iter().map(|event| String::from_utf8_lossy(&event.body.data).into_owned()).collect::<String>();
    assert!(all.contains("wrong") && all.contains("TOOL_OUTCOME_UNKNOWN"));
}

#[test]
fn a_lone_surrogate_survives_as_it_is_spelled() {
    let text = said("u1", "", "\\ud83d!");
    let (events, _) = read(text.as_bytes(), Harness::ClaudeCode);
    let message = events.iter().find(|event| &*event.body.kind == "user/message").unwrap();
    assert!(std::str::from_utf8(&message.body.data).unwrap().contains("\"text\":\"\\ud83d!\""));
}

fn codex(kind: &str, payload: &str) -> String {
    format!("{{\"timestamp\":\"2026-01-01T00:00:00Z\",\"type\":\"{kind}\",\"payload\":{payload}}}\n")
}

#[test]
fn codex_counts_tokens_once_and_compacts_and_says_who_stopped() {
    let count = |total: u64, input: u64| {
        codex(
            "event_msg",
            &format!(
                r#"{{"type":"token_count","info":{{"total_token_usage":{{"input_tokens":{total}}},"last_token_usage":{{"input_tokens":{input},"cached_input_tokens":4,"output_tokens":5,"reasoning_output_tokens":2}}}}}}"#
            ),
        )
    };
    let message = |role: &str, text: &str| {
        let part = if role == "assistant" { "output_text" } else { "input_text" };
        let payload = json!({"type": "message", "role": role, "content": [{"type": part, "text": text}]});
        codex("response_item", &payload.to_string())
    };
    let text = [
        codex("session_meta", r#"{"id":"c","forked_from_id":"p"}"#),
        codex("session_meta", r#"{"id":"p"}"#),
        message("developer", "be good"),
        message("user", "<environment_context>"),
        message("user", "go"),
        codex("event_msg", r#"{"type":"user_message","message":"go"}"#),
        codex(
            "response_item",
            r#"{"type":"local_shell_call","call_id":"k","status":"completed","action":{"type":"exec"}}"#,
        ),
        count(20, 14),
        count(20, 14),
        codex(
            "response_item",
            r#"{"type":"function_call_output","call_id":"k","output":{"content":"no","success":false}}"#,
        ),
        message("assistant", "failed"),
        count(50, 30),
        codex("event_msg", r#"{"type":"token_count","info":null}"#),
        codex("compacted", r#"{"message":"in short"}"#),
        message("user", "again"),
        codex("response_item", r#"{"type":"function_call","name":"f","arguments":"{}","call_id":"l"}"#),
        codex("event_msg", r#"{"type":"turn_aborted","reason":"interrupted"}"#),
    ]
    .concat();
    let (events, mapped) = read(text.as_bytes(), Harness::Codex);
    assert_eq!(mapped.header.parent_session.as_deref(), Some("p"));
    assert_eq!(fates(&mapped), [(2, "no-place"), (6, "repeated"), (9, "repeated"), (13, "no-place")]);
    let found = gists(&events);
    assert_eq!(found[..3], ["u: in short", "u: again", "a: l=f({})"]);
    assert!(found[3].starts_with("u: l!The tool call was interrupted after it was recorded"), "{found:?}");
    let tokens =
        |input: u64| json!({"inputTokens": input, "outputTokens": 5, "cacheReadTokens": 4, "reasoningTokens": 2});
    assert_eq!(usages(&events), [tokens(10), tokens(26), Value::Null]);
    let ends: Vec<_> = data(&events, "turn/end").into_iter().map(|end| end["reason"].clone()).collect();
    assert_eq!(ends, [json!({"kind": "completed"}), json!({"kind": "aborted", "reason": {"kind": "user"}})]);
    let results = data(&events, "tool/result");
    assert_eq!(gist(&results[0]["message"]), "u: k!no");
}

fn lines_of(name: &str) -> Vec<String> {
    String::from_utf8(sample(name)).unwrap().lines().map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Lines in any order, any number of times, some damaged: the log is always one that the strictest door takes, and
    /// every record is in it or in the report.
    #[test]
    fn any_order_of_records_gives_a_sound_log(
        picks in prop::collection::vec((0..64usize, 0..8usize, any::<prop::sample::Index>(), any::<u8>()), 0..40),
        is_codex in any::<bool>(),
    ) {
        let (harness, lines) = match is_codex {
            true => (Harness::Codex, lines_of("codex-rollout-shape.jsonl")),
            false => (Harness::ClaudeCode, lines_of("claude-code-representative.jsonl")),
        };
        let mut text = Vec::new();
        let mut damaged = 0;
        for (n, (pick, how, at, byte)) in picks.into_iter().enumerate() {
            let mut line = lines[pick % lines.len()].replace("\"uuid\": \"msg", &format!("\"uuid\": \"{n}msg")).into_bytes();
            if how == 0 {
                let at = at.index(line.len());
                line[at] = if byte == b'\n' { b' ' } else { byte };
            }
            let is_record = serde_json::from_slice::<Value>(&line).is_ok_and(|value| value.is_object());
            damaged += u64::from(!is_record && !line.iter().all(u8::is_ascii_whitespace));
            text.extend(line);
            text.push(b'\n');
        }
        let (events, mapped) = read(&text, harness);
        prop_assert!(derive(&events).is_ok());
        prop_assert_eq!(mapped.report.damaged().count() as u64, damaged);
        // The same file gives the same log.
        prop_assert_eq!(read(&text, harness).0, events);
    }

    #[test]
    fn no_bytes_are_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&text, Harness::Codex);
        read(&text, Harness::ClaudeCode);
    }
}

#[test]
fn a_missing_original_is_not_needed() {
    // No event of an import rewrites a result, so that a server can judge it without reading back.
    let (events, _) = read(&sample("codex-rollout-shape.jsonl"), Harness::Codex);
    let mut door = Admission::default();
    assert_eq!(door.admit(Profile::DshStrict, &events, &|_| Original::Missing), Ok(Vec::new()));
}
