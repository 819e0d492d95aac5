//! What a vector case gives: events from its JSON, and comparison of JSON by value.

use quipu::model::{Event, NewEvent, Seq, SurfaceOp, json};
use serde_json::Value;

fn seq(value: &Value) -> Seq {
    Seq::new(value.as_u64().unwrap()).unwrap()
}

fn surface_op(value: &Value) -> SurfaceOp {
    if value == "append" {
        return SurfaceOp::Append;
    }
    SurfaceOp::Replace { start: seq(&value["start"]), end: seq(&value["end"]) }
}

/// One event from its envelope.
pub(crate) fn event(value: &Value) -> Event {
    Event {
        seq: seq(&value["seq"]),
        body: NewEvent {
            time_ms: value["time"].as_i64().unwrap(),
            kind: value["type"].as_str().unwrap().into(),
            data: value["data"].to_string().into(),
            ignorable: value.get("ignorable").is_some(),
            surface_op: value.get("surfaceOp").map(surface_op),
            source_event_seqs: value
                .get("sourceEventSeqs")
                .map(|seqs| seqs.as_array().unwrap().iter().map(seq).collect()),
        },
    }
}

/// The events of a case's input.
pub(crate) fn events(value: &Value) -> Vec<Event> {
    value.as_array().unwrap().iter().map(event).collect()
}

/// Whether a JSON text of ours means what the case expects.
pub(crate) fn same(text: &str, expected: &Value) -> bool {
    let expected = expected.to_string();
    let (ours, theirs) = (json::parse(text.as_bytes()).unwrap(), json::parse(expected.as_bytes()).unwrap());
    ours.root().same(theirs.root())
}
