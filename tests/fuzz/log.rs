//! Logs from the bytes of a fuzzer: mostly events that a host would write, now and then payloads that nobody expects.

#[path = "../../src/model/mod.rs"]
pub mod model;
#[path = "../../src/replay/mod.rs"]
pub mod replay;

use arbitrary::{Arbitrary, Result, Unstructured};

use model::{Event, NewEvent, Seq, SurfaceOp};

/// A log with contiguous seqs from 0.
#[derive(Clone, Debug)]
pub struct Log(pub Vec<Event>);

/// Most events of a log.
const EVENTS_MAX: usize = 200;

const KINDS: [&str; 19] = [
    "turn/start",
    "turn/end",
    "step/start",
    "step/end",
    "user/message",
    "assistant/chunk",
    "assistant/message",
    "tool/call",
    "tool/result",
    "llm/retry",
    "llm/retry-started",
    "request/header",
    "request/context",
    "session/end-seed",
    "session/title",
    "agent-preset/selected",
    "todo/write",
    "plugin/unknown",
    "",
];

/// Pieces of JSON that are strange in one way each.
const STRANGE: [&str; 14] = [
    "null",
    "[]",
    "{}",
    "7",
    "-0.0",
    "1e308",
    "9007199254740993",
    "\"\\ud800\"",
    "\"\"",
    "\"\\u0000\"",
    "{\"type\":\"tool-call\"}",
    "[{\"type\":1}]",
    "{\"kind\":[]}",
    "[[[[[[[[[[]]]]]]]]]]",
];

impl<'a> Arbitrary<'a> for Log {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut events = Vec::new();
        while !u.is_empty() && events.len() < EVENTS_MAX {
            let seq = Seq::saturating(events.len() as u64);
            events.push(Event { seq, body: event(u, seq.get())? });
        }
        Ok(Self(events))
    }
}

fn event(u: &mut Unstructured<'_>, seq: u64) -> Result<NewEvent> {
    let kind = *u.choose(&KINDS)?;
    let is_node = matches!(kind, "user/message" | "assistant/message" | "tool/result");
    let near = |u: &mut Unstructured<'_>| Ok(Seq::saturating(seq.saturating_sub(u.int_in_range(0..=15)?)));
    let surface_op = match u.int_in_range(0..=9)? {
        0 => None,
        1 => Some(SurfaceOp::Replace { start: near(u)?, end: near(u)? }),
        _ => is_node.then_some(SurfaceOp::Append),
    };
    let source_event_seqs = match u.int_in_range(0..=3)? {
        0 => Some((0..u.int_in_range(0..=6)?).map(|_| near(u)).collect::<Result<Vec<_>>>()?),
        _ => None,
    };
    let data = if u.ratio(1, 12)? { strange(u)? } else { payload(u, kind)? };
    let (time_ms, ignorable) = (i64::from(i16::arbitrary(u)?), u.ratio(1, 8)?);
    Ok(NewEvent { time_ms, kind: kind.into(), data: data.into(), ignorable, surface_op, source_event_seqs })
}

/// Bytes as they come, or a piece of strange JSON under a name that readers look for.
fn strange(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if u.ratio(1, 3)? {
        let count = u.arbitrary_len::<u8>()?.min(60);
        return Ok(u.bytes(count)?.to_vec());
    }
    let names = ["turn", "step", "message", "chunk", "callId", "content", "source", "usage", "header", "id"];
    let (name, value) = (*u.choose(&names)?, *u.choose(&STRANGE)?);
    Ok(format!("{{\"turn\":1,\"step\":1,\"{name}\":{value}}}").into_bytes())
}

fn payload(u: &mut Unstructured<'_>, kind: &str) -> Result<Vec<u8>> {
    let at = format!("\"turn\":{},\"step\":{}", u.int_in_range(1..=3)?, u.int_in_range(1..=3)?);
    let id = *u.choose(&["a", "b", "c", "\\ud83d", "\u{1f600}", ""])?;
    let text = match kind {
        "assistant/chunk" => format!("{{{at},\"chunk\":{}}}", chunk(u)?),
        "user/message" => format!(
            r#"{{"id":"u","role":"user","source":{{"kind":"user"}},"content":[{{"type":"text","text":"{id}"}}]}}"#
        ),
        "assistant/message" => {
            let calls: Vec<_> = (0..u.int_in_range(0..=3)?).map(|_| block(u)).collect::<Result<_>>()?;
            let source = r#""source":{"kind":"model","provider":"p","model":"m"}"#;
            let content = calls.join(",");
            format!(r#"{{{at},"message":{{"id":"m","role":"assistant",{source},"content":[{content}]}}}}"#)
        }
        "tool/call" => format!(r#"{{{at},"callId":"{id}","name":"n","arguments":"{{}}"}}"#),
        "tool/result" => {
            let content = format!(r#"[{{"type":"tool-result","toolCallId":"{id}","content":[]}}]"#);
            let source = format!(r#"{{"kind":"tool","callId":"{id}"}}"#);
            format!(r#"{{{at},"message":{{"id":"r","role":"user","source":{source},"content":{content}}}}}"#)
        }
        "turn/end" => format!(r#"{{{at},"reason":{{"kind":"completed"}}}}"#),
        "request/header" => {
            let config = r#""config":{"provider":"p","model":"m"}"#;
            format!(r#"{{"reason":"initial","header":{{{config},"system":"{id}","tools":[]}}}}"#)
        }
        "agent-preset/selected" => format!(r#"{{"agentPreset":"{id}"}}"#),
        _ => format!("{{{at}}}"),
    };
    Ok(text.into_bytes())
}

fn block(u: &mut Unstructured<'_>) -> Result<String> {
    let id = *u.choose(&["a", "b", "c", "\\ud83d", ""])?;
    Ok(match u.int_in_range(0..=3)? {
        0 => format!(r#"{{"type":"text","text":"{id}"}}"#),
        1 => format!(r#"{{"type":"reasoning","text":"{id}","signature":"+/="}}"#),
        _ => format!(r#"{{"type":"tool-call","id":"{id}","name":"n","arguments":"{{}}"}}"#),
    })
}

/// One chunk of a stream, as JSON.
pub fn chunk(u: &mut Unstructured<'_>) -> Result<String> {
    let (index, id) = (u.int_in_range(0..=4)?, *u.choose(&["a", "b", "\\ud83d", "\\u0000x", ""])?);
    Ok(match u.int_in_range(0..=8)? {
        0 => format!(r#"{{"type":"text-delta","index":{index},"text":"{id}"}}"#),
        1 => format!(r#"{{"type":"reasoning-delta","index":{index},"text":"{id}"}}"#),
        2 => format!(r#"{{"type":"tool-call-delta","index":{index},"id":"{id}","name":"n","argumentsDelta":"{{"}}"#),
        3 => format!(
            r#"{{"type":"block-start","index":{index},"blockType":"{}"}}"#,
            u.choose(&["text", "reasoning", "tool-call", "x"])?
        ),
        4 => format!(r#"{{"type":"usage","usage":{{"inputTokens":{index},"outputTokens":{index}}}}}"#),
        5 => {
            let kind = *u.choose(&["stop", "tool-calls", "max-tokens", "error", "aborted", "x"])?;
            format!(r#"{{"type":"finish","reason":{{"kind":"{kind}"}}}}"#)
        }
        6 => format!(r#"{{"type":"block-end","index":{index},"block":{}}}"#, block(u)?),
        7 => format!(r#"{{"type":"finish","reason":{{"kind":"stop"}},"replayState":{{"v":"{id}"}}}}"#),
        _ => (*u.choose(&STRANGE)?).to_owned(),
    })
}
