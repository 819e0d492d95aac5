//! Records, traces, windows and filters, against `trace.json` and by laws.

use proptest::prelude::*;
use quipu::model::{Event, Seq};
use quipu::replay::Surface;
use quipu::replay::filter::{Clause, FilterError, Needle, Range, document, matches};
use quipu::replay::text::semantic_text;
use quipu::replay::trace::{Status, Statuses, TraceError, records, trace, window};
use serde_json::{Value, json};

use crate::given::events;
use crate::logs::{any_log, extend, healthy};
use crate::vectors::cases;

fn status(status: Status) -> &'static str {
    match status {
        Status::Current => "current",
        Status::Shadowed => "shadowed",
        Status::LogOnly => "log-only",
    }
}

fn seqs(seqs: &[Seq]) -> Vec<u64> {
    seqs.iter().map(|seq| seq.get()).collect()
}

/// The cases of one kind; says how many there are.
fn of_kind(kind: &str) -> Vec<Value> {
    let cases = cases("trace.json", Some(kind));
    println!("trace.json: {} cases of kind {kind}", cases.len());
    cases
}

fn failure(error: &TraceError) -> Value {
    let (code, message) = match error {
        TraceError::NotFound { seq } => {
            ("SESSION_QUERY_EVENT_NOT_FOUND", format!(r#"session "SOURCE" has no event at seq {seq}"#))
        }
        TraceError::Window { .. } => ("SESSION_QUERY_INVALID_WINDOW", error.to_string()),
        TraceError::Surface(_) => ("SESSION_QUERY_INVALID_SURFACE", error.to_string()),
    };
    json!({"ok": false, "name": "SessionQueryError", "code": code, "message": message})
}

#[test]
fn events_have_the_statuses_of_the_vectors() {
    for case in of_kind("records") {
        let records = records(&events(&case["input"]["events"])).unwrap();
        let statuses: Vec<_> = records.iter().map(|record| status(record.status)).collect();
        assert_eq!(json!({"ok": true, "statuses": statuses}), case["expected"], "{}", case["name"]);
    }
}

fn event_trace(events: &[Event], seq: Seq) -> Value {
    let trace = match trace(events, seq) {
        Ok(trace) => trace,
        Err(error) => return failure(&error),
    };
    let target = &trace.target;
    let mut found = json!({
        "target": {
            "seq": target.seq.get(), "type": *target.kind, "time": target.time_ms, "surface": status(target.status),
        },
        "replacementChain": seqs(&trace.replacement_chain), "replacedEventSeqs": seqs(&trace.replaced),
        "sourceEventSeqs": seqs(&trace.sources), "derivedEventSeqs": seqs(&trace.derived),
    });
    if let Some(replacer) = trace.replacement_chain.first() {
        found["replacedBy"] = json!(replacer.get());
    }
    json!({"ok": true, "trace": found})
}

#[test]
fn events_have_the_traces_of_the_vectors() {
    for case in of_kind("event") {
        let (name, input) = (&case["name"], &case["input"]);
        match input["seq"].as_u64().and_then(Seq::new) {
            Some(seq) => assert_eq!(event_trace(&events(&input["events"]), seq), case["expected"], "{name}"),
            // A position that is no seq cannot be asked for: the type refuses it.
            None => assert_eq!(case["expected"]["code"], "SESSION_QUERY_EVENT_NOT_FOUND", "{name}"),
        }
    }
}

#[test]
fn windows_are_clipped_and_refused_as_in_the_vectors() {
    for case in of_kind("window") {
        let (name, input) = (&case["name"], &case["input"]);
        let events = events(&input["events"]);
        let count = |side: &str| input.get(side).map_or(Some(0), Value::as_u64);
        let (Some(before), Some(after)) = (count("before"), count("after")) else {
            // A negative count cannot be asked for: the type refuses it.
            assert_eq!(case["expected"]["code"], "SESSION_QUERY_INVALID_WINDOW", "{name}");
            continue;
        };
        let found = match window(&events, Seq::new(input["seq"].as_u64().unwrap()).unwrap(), (before, after)) {
            Ok(events) => {
                let seqs: Vec<_> = events.iter().map(|event| event.seq.get()).collect();
                json!({"ok": true, "startSeq": seqs.first(), "endSeq": seqs.last(), "seqs": seqs})
            }
            Err(error) => failure(&error),
        };
        assert_eq!(found, case["expected"], "{name}");
    }
}

#[test]
fn surfaces_are_captured_as_in_the_vectors() {
    for case in of_kind("surface") {
        let (surface, _) = Surface::from_events(&events(&case["input"]["events"])).unwrap();
        let through = surface.next_seq().get().checked_sub(1);
        let found = json!({"ok": true, "capturedThroughSeq": through, "seqs": seqs(surface.nodes())});
        assert_eq!(found, case["expected"], "{}", case["name"]);
    }
}

/// A clause of a vector; an unknown kind cannot be written down, which the outer `None` says.
fn clause(filter: &Value) -> Option<Result<Clause, FilterError>> {
    let range = |name| Range::new(name, filter["from"].as_i64(), filter["to"].as_i64());
    let values = || filter["values"].as_array().unwrap().iter().map(|value| value.as_str().unwrap());
    Some(match filter["kind"].as_str().unwrap() {
        "seq" => range("seq").map(Clause::Seq),
        "time" => range("time").map(Clause::Time),
        "type" => Ok(Clause::Types(values().map(str::to_owned).collect())),
        "surface" => {
            let all = [Status::Current, Status::Shadowed, Status::LogOnly];
            let named = |name| all.into_iter().find(|&one| status(one) == name).unwrap();
            Ok(Clause::Statuses(values().map(named).collect()))
        }
        "text" => Needle::new(filter["text"].as_str().unwrap()).map(Clause::Text),
        _ => return None,
    })
}

#[test]
fn filters_find_the_documents_of_the_vectors() {
    for case in of_kind("filterEvents") {
        let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
        let clauses: Option<Result<Vec<_>, _>> = input["filters"].as_array().unwrap().iter().map(clause).collect();
        let clauses = match clauses {
            Some(Ok(clauses)) => clauses,
            refused => {
                assert_eq!(expected["code"], "SESSION_QUERY_INVALID_FILTER", "{name}");
                if let Some(Err(error)) = refused {
                    assert_eq!(error.to_string(), expected["message"].as_str().unwrap(), "{name}");
                }
                continue;
            }
        };
        let events = events(&input["events"]);
        let statuses = Statuses::from_events(&events).unwrap();
        let documents = events.iter().filter_map(|event| document(event, statuses.record(event), &clauses));
        let documents = documents.map(|found| {
            let record = found.record;
            json!({"seq": record.seq.get(), "type": *record.kind, "surface": status(record.status), "text": found.text})
        });
        let documents: Vec<_> = documents.collect();
        assert_eq!(&json!({"ok": true, "documents": documents}), expected, "{name}");
    }
}

#[test]
fn text_is_found_whatever_its_case_and_spacing_and_nothing_else_is() {
    for (needle, text, found) in [
        ("strasse", "Stra\u{df}e", false),
        ("STRA\u{1E9E}E", "stra\u{df}e", true),
        ("k", "\u{212A}", true),
        ("i", "\u{131}", false),
        ("a b", "A\u{a0}\n\tB", true),
        ("a b", "ab", false),
        (".*", "x", false),
    ] {
        assert_eq!(Needle::new(needle).unwrap().is_in(text), found, "{needle} in {text}");
    }
    for blank in ["", " \u{feff}\n"] {
        assert_eq!(Needle::new(blank), Err(FilterError::Blank));
    }
}

#[test]
fn ended_turns_and_todo_lists_have_text_and_deep_results_cost_no_stack() {
    let mut log = healthy();
    let deep = r#"{"type":"tool-result","content":["#.repeat(100_000);
    let deep = format!(r#"{deep}{{"type":"text","text":" deep "}}{}"#, "]}".repeat(100_000));
    extend(
        &mut log,
        &[
            ("turn/end", r#"{"turn":2,"reason":{"kind":"error","error":{"message":"m","code":"c"}}}"#),
            ("turn/end", r#"{"turn":2,"reason":{"kind":"aborted","reason":{"kind":"user"}}}"#),
            ("todo/write", r#"{"todos":[{"content":"a","status":"pending"},{"content":" ","status":"completed"}]}"#),
            ("tool/result", &format!(r#"{{"message":{{"content":[{deep}]}},"error":{{"name":"E","code":"C"}}}}"#)),
        ],
    );
    let texts: Vec<_> = log.iter().filter_map(semantic_text).collect();
    assert_eq!(texts, ["hi", "hello", "error\nm", "aborted", "pending\na\ncompleted", "deep\nE\nC"]);
}

proptest! {
    #[test]
    fn every_event_has_one_status_and_chains_end_on_the_surface(log in any_log(60)) {
        for event in &log {
            semantic_text(event);
        }
        let Ok(statuses) = Statuses::from_events(&log) else {
            prop_assert!(Surface::from_events(&log).is_err());
            return Ok(());
        };
        let nodes = statuses.surface().nodes();
        for event in &log {
            let record = statuses.record(event);
            prop_assert_eq!(record.status == Status::Current, nodes.contains(&event.seq));
            prop_assert!(matches(event, &record, &[Clause::Statuses(vec![record.status])]));
            let trace = trace(&log, event.seq).unwrap();
            let last = trace.replacement_chain.last();
            prop_assert_eq!(record.status == Status::Shadowed, last.is_some());
            prop_assert!(last.is_none_or(|last| nodes.contains(last)));
            prop_assert!(trace.derived.iter().all(|derived| *derived > event.seq));
        }
    }
}
