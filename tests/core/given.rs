//! What a vector case gives: events from its JSON, and comparison of JSON by value.

use proptest::prelude::{Strategy, prop};
use quipu::model::{Event, NewEvent, Seq, SurfaceOp, json};
use serde_json::Value;

use crate::assemble::any_chunk;
use crate::logs::{self, events_of};

/// The events of a case's input.
pub(crate) fn events(value: &Value) -> Vec<Event> {
    events_of(json::parse(value.to_string().as_bytes()).unwrap().root())
}

/// Whether a JSON text of ours means what the case expects.
pub(crate) fn same(text: &str, expected: &Value) -> bool {
    let expected = expected.to_string();
    let (ours, theirs) = (json::parse(text.as_bytes()).unwrap(), json::parse(expected.as_bytes()).unwrap());
    ours.root().same(theirs.root())
}

/// A JSON text as serde's value; lone surrogates must not occur.
pub(crate) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Payloads that no reader expects.
const BROKEN: [&str; 9] = [
    "",
    "[null]",
    "\u{0}",
    r#"{"turn":null,"step":[],"chunk":null,"callId":7,"retryId":{},"inserted":3}"#,
    r#"{"turn":1e300,"step":-0.5,"chunk":{"type":["text-delta"]},"retry":1e308}"#,
    r#"{"message":7,"content":"x","source":[],"reason":[],"usage":5}"#,
    r#"{"message":{"content":[7,null,[],{"type":"tool-call"},{"type":1}],"source":[],"id":{}},"usage":{"outputTokens":-1}}"#,
    r#"{"target":"next-step","start":1e15,"removedCount":-1,"inserted":[null,{"id":null}],"outcome":{}}"#,
    r#"{"message":{"content":{"0":1},"source":{"callId":null,"kind":null}},"error":[],"todos":{},"agentPreset":1}"#,
];

/// An event of any of the types that folds read, plausible or not; the seq is set later.
fn any_event() -> impl Strategy<Value = NewEvent> {
    let kind = prop::sample::select(vec![
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
        "session/title",
        "session/end-seed",
        "agent-preset/selected",
        "agent/inbox/spliced",
        "todo/write",
        "plugin/unknown",
    ]);
    let (turn, step, id) = (1..3u8, 1..3u8, prop::sample::select(vec!["a", "b", "\\ud800", ""]));
    let surface = prop::option::weighted(0.2, (0..30u64, 0..30u64));
    let sources = prop::option::of(prop::collection::vec(0..40u64, 0..5));
    let broken = prop::sample::select(BROKEN.to_vec());
    let (time_ms, broken) = (-5000..5000i64, prop::option::weighted(0.1, broken));
    (kind, (turn, step, id), any_chunk(), surface, sources, (time_ms, broken)).prop_map(
        |(kind, (turn, step, id), chunk, surface, sources, (time_ms, broken))| {
            let data = broken.map_or_else(|| payload(kind, (turn, step, id), &chunk), str::to_owned);
            let is_node = matches!(kind, "user/message" | "assistant/message" | "tool/result");
            let seq = |n| Seq::new(n).unwrap();
            let op = surface.map_or(SurfaceOp::Append, |(a, b)| SurfaceOp::Replace { start: seq(a), end: seq(b) });
            NewEvent {
                time_ms,
                kind: kind.into(),
                data: data.into(),
                ignorable: kind == "plugin/unknown",
                surface_op: is_node.then_some(op),
                source_event_seqs: sources.filter(|_| is_node).map(|seqs| seqs.into_iter().map(seq).collect()),
            }
        },
    )
}

fn payload(kind: &str, (turn, step, id): (u8, u8, &str), chunk: &str) -> String {
    let at = format!(r#""turn":{turn},"step":{step}"#);
    let call = format!(r#"{{"type":"tool-call","id":"{id}","name":"n","arguments":"{{}}"}}"#);
    match kind {
        "assistant/chunk" => format!(r#"{{{at},"chunk":{chunk}}}"#),
        "user/message" => {
            format!(
                r#"{{"id":"u{id}","role":"user","source":{{"kind":"user"}},"content":[{{"type":"text","text":"{id}"}}]}}"#
            )
        }
        "assistant/message" => format!(
            r#"{{{at},"message":{{"id":"m","role":"assistant","source":{{"kind":"model","provider":"p","model":"m"}},
            "content":[{{"type":"text","text":"{id}"}},{call}]}},"usage":{{"inputTokens":{step},"outputTokens":{turn}}}}}"#
        ),
        "tool/call" => format!(r#"{{{at},"callId":"{id}","name":"n","arguments":"{{}}"}}"#),
        "tool/result" => format!(
            r#"{{{at},"message":{{"id":"r","role":"user","source":{{"kind":"tool","callId":"{id}"}},
            "content":[{{"type":"tool-result","toolCallId":"{id}","content":[]}}]}}}}"#
        ),
        "turn/end" => format!(r#"{{{at},"reason":{{"kind":"completed"}}}}"#),
        "agent/inbox/spliced" => {
            format!(r#"{{"target":"next-step","start":{step},"removedCount":{turn},"inserted":[{{"id":"u{id}"}}]}}"#)
        }
        "agent-preset/selected" => format!(r#"{{"agentPreset":"{turn}"}}"#),
        _ => format!(r#"{{{at},"retryId":"{id}","retry":{step}}}"#),
    }
}

/// A log with contiguous seqs from 0, whose order of events promises nothing.
pub(crate) fn any_log() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(any_event(), 0..60).prop_map(|bodies| {
        let seqs = (0..).filter_map(Seq::new);
        seqs.zip(bodies).map(|(seq, body)| Event { seq, body }).collect()
    })
}

/// A log of plain events: types and payloads; messages are appended to the surface.
pub(crate) fn log(given: &[(&str, Value)]) -> Vec<Event> {
    let bodies = given.iter().map(|(kind, data)| logs::body(kind, &data.to_string()));
    (0..).filter_map(Seq::new).zip(bodies).map(|(seq, body)| Event { seq, body }).collect()
}
