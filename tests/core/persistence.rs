//! What `persistence.json` states about folds: balanced views, what a committed repair adds, the end of a seed.
//!
//! The scripts are played up to the first step of a live session or of the cache, which are no matter of folds.

use std::collections::BTreeMap;

use quipu::model::Event;
use quipu::replay::fork::Stem;
use quipu::replay::repair::closers;
use serde_json::{Value, json};

use crate::given::events;
use crate::vectors::cases;

type Logs = BTreeMap<String, Vec<Event>>;

fn types(events: &[Event]) -> Value {
    events.iter().map(|event| json!(*event.body.kind)).collect()
}

/// A stored log as readers see it: an open turn is closed.
fn balanced(stored: &[Event]) -> Vec<Event> {
    stored.iter().cloned().chain(closers(stored)).collect()
}

/// A log that is about to go live: it ends with the marker of its seed.
fn prepared(stored: &[Event]) -> Vec<Event> {
    let mut log = balanced(stored);
    let mut stem = Stem::default();
    for event in &log {
        stem.apply(event);
    }
    log.extend(stem.head().unwrap().marker(0));
    log
}

/// Plays one step; `None` when the rest of the script is not about folds.
fn play(logs: &mut Logs, step: &Value, expected: &Value) -> Option<Value> {
    let id = step["id"].as_str().or_else(|| step["as"].as_str()).unwrap_or_default().to_owned();
    let is_ok = expected["ok"] == true;
    Some(match step["op"].as_str().unwrap() {
        "append" if is_ok => {
            logs.entry(id).or_default().extend(events(&step["events"]));
            json!({})
        }
        "inspect" if is_ok => {
            let view = balanced(logs.get(&id)?);
            json!({"count": view.len(), "types": types(&view)})
        }
        "load" if is_ok => {
            let log = logs.get_mut(&id)?;
            *log = balanced(log);
            json!({"count": log.len(), "types": types(log)})
        }
        "prepare" if is_ok => {
            let log = logs.get_mut(&id)?;
            *log = balanced(log);
            let live = prepared(log);
            json!({"count": live.len(), "firstLiveSeq": log.len(), "lastType": *live.last()?.body.kind})
        }
        "readFrom" if is_ok => {
            let log = logs.get(&id)?;
            let suffix = log.get(step["from"].as_u64()? as usize..).unwrap_or_default();
            json!({"seqs": suffix.iter().map(|event| event.seq.get()).collect::<Vec<_>>(), "types": types(suffix)})
        }
        op if op.starts_with("live") || op == "publish" => return None,
        _ => json!({}),
    })
}

/// Steps on live objects end a case here. So does `p-live-append-by-id-shadows`, marked as a defect: in the reference two
/// writers of one session diverge and both flushes succeed; ours has one log, and the second writer's other bytes at a
/// seq are a conflict (`it/append::other_bytes_are_a_conflict_with_the_head_and_the_first_seq_that_differs`), because a
/// success that stored nothing loses events.
#[test]
fn stored_logs_are_read_balanced_as_the_vectors_say() {
    let cases = cases("persistence.json", None);
    let mut stated = 0;
    for case in &cases {
        let mut logs = Logs::new();
        let steps = case["input"]["steps"].as_array().unwrap();
        for (step, expected) in steps.iter().zip(case["expected"]["results"].as_array().unwrap()) {
            let Some(found) = play(&mut logs, step, expected) else { break };
            for (field, value) in found.as_object().unwrap() {
                assert_eq!(value, &expected[field], "{}: {field} of {step}", case["name"]);
                stated += 1;
            }
        }
    }
    println!("persistence.json: {} cases, {stated} statements about folds", cases.len());
    assert!(stated > 60);
}
