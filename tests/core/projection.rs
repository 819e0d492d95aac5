//! The display projection, against `ui_projection.json` and by laws.

use proptest::prelude::*;
use quipu::model::{Event, json};
use quipu::replay::projection::{
    DisplayBlock, Node, NodeBody, Projection, RetryState, Speaker, StepNode, StepStatus, ToolNode,
};
use serde_json::{Value, json};

use crate::given::{any_log, events, value};
use crate::vectors::cases;

fn text(escaped: &str) -> Value {
    value(&format!("\"{escaped}\""))
}

fn block(block: &DisplayBlock) -> Value {
    match block {
        DisplayBlock::Text(passage) => json!({"kind": "text", "text": text(&passage.escaped)}),
        DisplayBlock::Reasoning(passage) => json!({"kind": "reasoning", "text": text(&passage.escaped)}),
        DisplayBlock::Call { call_id, name, arguments } => {
            json!({"kind": "tool-call", "callId": text(call_id), "name": text(name), "argsRaw": text(arguments)})
        }
        DisplayBlock::Other(other) => value(other),
    }
}

fn optional(text: Option<&String>) -> Value {
    text.map_or(Value::Null, |text| value(text))
}

/// Places in the vectors are decimal: 3.1 is 31 tenths.
fn place(tenths: i64) -> Value {
    if tenths % 10 == 0 { json!(tenths / 10) } else { json!(tenths as f64 / 10.0) }
}

fn step(step: &StepNode) -> Value {
    let status = match step.status {
        StepStatus::Running => "running",
        StepStatus::Settled => "settled",
        StepStatus::Interrupted => "interrupted",
    };
    json!({
        "kind": "assistant-step", "turn": step.turn, "step": step.step, "status": status,
        "blocks": step.blocks.iter().map(block).collect::<Vec<_>>(), "time": step.time_ms,
        "usage": optional(step.usage.as_ref()), "messageId": optional(step.message_id.as_ref()),
        "timing": step.timing.map(|timing| json!({
            "stepStartTime": timing.start_ms, "firstTokenTime": timing.first_token_ms, "completedTime": timing.completed_ms,
        })),
    })
}

fn tool(tool: &ToolNode) -> Value {
    let outcome = tool.outcome.as_ref();
    json!({
        "kind": "tool-call", "callId": value(&tool.call_id), "settled": outcome.is_some(),
        "isError": outcome.map(|outcome| outcome.is_error), "error": optional(outcome.and_then(|o| o.error.as_ref())),
        "seq": outcome.map(|outcome| place(outcome.at.tenths())), "callTime": tool.call_time_ms,
        "name": optional(tool.name.as_ref()),
    })
}

/// A node in the words of the vectors.
fn node(node: &Node) -> Value {
    let anchor = place(node.anchor.tenths());
    let mut value = match &node.body {
        NodeBody::Message { speaker, time_ms } => {
            let kind = match speaker {
                Speaker::User => "user",
                Speaker::Steering => "steering",
                Speaker::Context => "context",
            };
            json!({"kind": kind, "seq": anchor, "time": time_ms})
        }
        NodeBody::Step(body) => step(body),
        NodeBody::Tool(body) => tool(body),
        NodeBody::Retry(attempts) => {
            let state = |state| match state {
                RetryState::Scheduled => "scheduled",
                RetryState::Started => "started",
                RetryState::Cancelled => "cancelled",
            };
            let attempts =
                attempts.iter().map(|a| json!({"seq": a.seq.get(), "retry": a.retry, "retryState": state(a.state)}));
            json!({"kind": "model-retry", "attempts": attempts.collect::<Vec<_>>()})
        }
    };
    value["anchorSeq"] = anchor;
    value["visibility"] = json!(if node.is_visible { "visible" } else { "hidden" });
    value
}

fn project(events: &[Event]) -> Projection {
    let mut projection = Projection::default();
    for event in events {
        projection.apply(event);
    }
    projection
}

#[test]
fn logs_show_the_nodes_of_the_vectors() {
    let cases = cases("ui_projection.json", None);
    println!("ui_projection.json: {} cases", cases.len());
    for case in cases {
        let from = case["input"]["from"].as_u64().unwrap_or(0) as usize;
        let nodes: Vec<_> = project(&events(&case["input"]["events"])[from..]).nodes().iter().map(node).collect();
        let expected = case["expected"]["nodes"].as_array().unwrap();
        for (node, expected) in nodes.iter().zip(expected) {
            assert_eq!(node, expected, "{}", case["name"]);
        }
        assert_eq!(nodes.len(), expected.len(), "{}", case["name"]);
    }
}

/// The reference raises an error when events arrive one by one and a `block-start` empties a slot that already shows
/// text; ours hides the node until there is text again, because a stream that a host wrote badly must not cost the
/// reader the whole display.
#[test]
fn a_block_start_over_shown_text_hides_the_node_where_the_vectors_record_a_defect() {
    let cases = cases("ui_projection.json", None);
    let case = cases.iter().find(|case| case.get("upstreamDefect").is_some()).unwrap();
    let events = events(&case["input"]["events"]);
    let mut projection = Projection::default();
    let steps: Vec<usize> = events
        .iter()
        .map(|event| {
            projection.apply(event);
            projection.nodes().iter().filter(|node| matches!(node.body, NodeBody::Step(_))).count()
        })
        .collect();
    assert_eq!(steps, [0, 0, 0, 1, 0, 1]);
    let nodes: Vec<_> = projection.nodes().iter().map(node).collect();
    assert_eq!(Value::from(nodes), case["expected"]["nodes"]);
}

proptest! {
    #[test]
    fn any_log_can_be_shown_from_any_point(log in any_log(), from in 0usize..40) {
        let mut projection = Projection::default();
        for event in log.iter().skip(from) {
            projection.apply(event);
            for node in projection.nodes() {
                let NodeBody::Step(step) = node.body else { continue };
                for block in step.blocks {
                    let DisplayBlock::Text(passage) = block else { continue };
                    let quoted = format!("\"{}\"", passage.escaped);
                    prop_assert!(json::is_json(quoted.as_bytes()), "{}", quoted);
                }
            }
        }
    }
}
