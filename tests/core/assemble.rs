//! The block assembler, against `assemble.json` and by laws.

use proptest::prelude::*;
use quipu::model::json as text;
use quipu::replay::assemble::{Assembler, BrokenStream};
use quipu::replay::chunk::StreamError;
use serde_json::{Value, json};

use crate::given::{log, same};
use crate::vectors::cases;

fn apply(assembler: &mut Assembler, chunk: &str) -> Result<(), StreamError> {
    assembler.apply(text::parse(chunk.as_bytes()).unwrap().root())
}

fn assemble<'a>(chunks: impl IntoIterator<Item = &'a Value>) -> Assembler {
    let mut assembler = Assembler::default();
    for chunk in chunks {
        apply(&mut assembler, &chunk.to_string()).unwrap();
    }
    assembler
}

fn check(case: &Value) {
    let (name, expected) = (&case["name"], &case["expected"]);
    let attempt = assemble(case["input"]["chunks"].as_array().unwrap());
    let array = |blocks: Vec<String>| format!("[{}]", blocks.join(","));
    match attempt.blocks() {
        Ok(blocks) => assert!(same(&array(blocks), &expected["blocks"]), "{name}"),
        Err(error) => assert_eq!(Some(error.to_string().as_str()), expected["blocksError"].as_str(), "{name}"),
    }
    match attempt.replay_state() {
        Ok(state) => assert!(same(state.as_deref().unwrap_or("null"), &expected["replayState"]), "{name}"),
        Err(error) => assert_eq!(Some(error.to_string().as_str()), expected["replayError"].as_str(), "{name}"),
    }
    assert!(same(&array(attempt.interrupted_blocks()), &expected["interruptedBlocks"]), "{name}");
    assert!(same(attempt.usage().unwrap_or("null"), &expected["usage"]), "{name}");
    assert!(same(attempt.finish(), &expected["finish"]), "{name}");
}

#[test]
fn chunks_become_the_blocks_of_the_vectors() {
    let cases = cases("assemble.json", None);
    println!("assemble.json: {} cases", cases.len());
    cases.iter().for_each(check);
}

#[test]
fn a_refused_chunk_names_its_field_and_changes_nothing() {
    let mut attempt = Assembler::default();
    apply(&mut attempt, r#"{"type":"text-delta","index":0,"text":"a"}"#).unwrap();
    for (chunk, field) in [
        ("7", "type"),
        ("{}", "type"),
        (r#"{"type":"text-delta","text":"b"}"#, "index"),
        (r#"{"type":"text-delta","index":"0","text":"b"}"#, "index"),
        (r#"{"type":"text-delta","index":0}"#, "text"),
        (r#"{"type":"tool-call-delta","index":0,"id":"c"}"#, "argumentsDelta"),
        (r#"{"type":"block-start","index":0}"#, "blockType"),
        (r#"{"type":"block-end","index":0,"block":null}"#, "block"),
        (r#"{"type":"usage"}"#, "usage"),
        (r#"{"type":"finish","reason":"stop"}"#, "reason"),
    ] {
        assert_eq!(apply(&mut attempt, chunk), Err(StreamError::Malformed { field }), "{chunk}");
    }
    let unknown = apply(&mut attempt, r#"{"type":"video-delta","index":0}"#);
    assert_eq!(unknown, Err(StreamError::UnknownChunk("video-delta".into())));
    assert_eq!(attempt.blocks().unwrap(), [r#"{"type":"text","text":"a"}"#]);
}

#[test]
fn a_broken_stream_names_the_event() {
    let mut attempt = Assembler::default();
    let events = log(&[
        ("assistant/chunk", json!({"chunk": {"type": "text-delta", "index": 0, "text": "a"}})),
        ("tool/call", json!(null)),
        ("assistant/chunk", json!({"turn": 1})),
    ]);
    assert_eq!(attempt.apply_event(&events[0]), Ok(()));
    assert_eq!(attempt.apply_event(&events[1]), Ok(()));
    let error = StreamError::Malformed { field: "chunk" };
    assert_eq!(attempt.apply_event(&events[2]), Err(BrokenStream { seq: events[2].seq, error }));
    assert_eq!(attempt.blocks().unwrap().len(), 1);
}

#[test]
fn half_a_surrogate_pair_waits_for_the_other_half() {
    let mut attempt = Assembler::default();
    for half in ["\\ud83d", "\\ude00", "\\udfff"] {
        apply(&mut attempt, &format!(r#"{{"type":"text-delta","index":0,"text":"{half}"}}"#)).unwrap();
    }
    assert_eq!(attempt.blocks().unwrap(), [r#"{"type":"text","text":"\ud83d\ude00\udfff"}"#]);
    assert_eq!(attempt.interrupted_blocks().len(), 1);
}

/// Chunks of every type, well-formed and not.
pub(crate) fn any_chunk() -> impl Strategy<Value = String> {
    let index = prop::sample::select(vec!["0", "1", "2", "9007199254740991", "\"x\"", "0.5"]);
    let text = prop::sample::select(vec!["\"a\"", "\"\"", "\" \\u00a0\"", "\"\\ud83d\"", "\"\\ude00\"", "7"]);
    let kind = prop::sample::select(vec![
        "block-start",
        "block-end",
        "text-delta",
        "reasoning-delta",
        "tool-call-delta",
        "usage",
        "finish",
        "other",
    ]);
    let block = prop::sample::select(vec!["text", "reasoning", "tool-call", "image"]);
    let finish = prop::sample::select(vec!["stop", "max-tokens", "error"]);
    (index, text, kind, block, finish).prop_map(|(index, text, kind, block, finish)| {
        format!(
            r#"{{"type":"{kind}","index":{index},"text":{text},"id":{text},"name":{text},"argumentsDelta":{text},
            "blockType":"{block}","block":{{"type":"{block}","text":{text}}},"usage":{{"inputTokens":1,"outputTokens":2}},
            "reason":{{"kind":"{finish}"}},"replayState":{{"response":1,"blocks":[1,2]}}}}"#
        )
    })
}

proptest! {
    #[test]
    fn no_stream_breaks_the_assembler(chunks in prop::collection::vec(any_chunk(), 0..24)) {
        let mut attempt = Assembler::default();
        for chunk in &chunks {
            let before = format!("{attempt:?}");
            if apply(&mut attempt, chunk).is_err() {
                prop_assert_eq!(before, format!("{attempt:?}"));
            }
            for block in attempt.interrupted_blocks().iter().chain(&attempt.blocks().unwrap_or_default()) {
                prop_assert_eq!(text::check(block.as_bytes()), Ok(()));
            }
            if let Ok(Some(state)) = attempt.replay_state() {
                prop_assert_eq!(text::check(state.as_bytes()), Ok(()));
            }
        }
    }
}
