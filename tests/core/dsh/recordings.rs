//! Recorded fixtures: files whose events lost seq and time.

use quipu::model::Event;
use quipu::portable::dsh::{DshError, Note, ReadOptions};

use super::*;

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/samples/dsh-v0-{name}.jsonl", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn recordings_are_numbered_and_timed_and_lose_their_placeholders() {
    let counts = [("parallel-tool-calls", 32), ("compaction-recovery", 31), ("fork-parent", 200), ("fork-child", 99)];
    for (name, count) in counts {
        let (scan, events) = read(&sample(name)).unwrap();
        assert_eq!((scan.events, events.len(), scan.is_recorded, scan.is_torn), (count, count as usize, true, false));
        assert_eq!(scan.header.cwd, None);
        assert_eq!(scan.notes, [Note::CwdDropped { cwd: "{{cwd}}".to_owned() }], "{name}");
        assert!((0..).zip(&events).all(|(seq, event)| event.seq.get() == seq), "{name}");
        assert_eq!(events[0].body.time_ms as u64, scan.header.created_at_ms, "{name}");
        assert!(events.windows(2).all(|pair| pair[0].body.time_ms <= pair[1].body.time_ms), "{name}");
        let options = ReadOptions { cwd: Some("/w".to_owned()), ..ReadOptions::default() };
        let bytes = sample(name);
        let (scan, _) = read_with(|| &bytes[..], &options).unwrap();
        assert_eq!((scan.header.cwd.as_deref(), scan.notes.len()), (Some("/w"), 0), "{name}");
    }
    assert_eq!(read(&sample("parallel-tool-calls")).unwrap().0.id.as_str(), "{{sessionId}}");
}

#[test]
fn a_recorded_fork_begins_with_the_events_of_its_parent() {
    let (_, parent) = read(&sample("fork-parent")).unwrap();
    let (scan, child) = read(&sample("fork-child")).unwrap();
    assert_eq!(scan.header.seed_length, Some(42));
    let content = |events: &[Event]| -> Vec<_> {
        let content = |event: &Event| (event.seq, event.body.kind.clone(), event.body.data.clone());
        events.iter().take(42).map(content).collect()
    };
    assert_eq!(content(&parent), content(&child));
}

#[test]
fn the_lines_of_a_recording_all_lack_their_place() {
    let event = r#"{"type":"a","data":1}"#;
    let row = r#"{"type":"text-chunks","data":{"turn":1,"step":1,"index":0,"dt":[3,4],"texts":["a","b","c"]}}"#;
    let (scan, events) = read(&file(&[event, row, event, row])).unwrap();
    assert!(scan.is_recorded);
    let times: Vec<_> = events.iter().map(|event| event.body.time_ms).collect();
    assert_eq!(times, [5, 5, 8, 12, 12, 12, 15, 19]);
    let error = read(&file(&[event, START])).unwrap_err();
    assert!(matches!(&error, DshError::Envelope { field, .. } if field == "seq"), "{error}");
    assert!(matches!(read(&file(&[event, "7"])), Err(DshError::NotAnEvent { .. })));
    assert_eq!(read(&file(&[event, ROW])).unwrap().0.events, 1);
    assert!(read(&file(&[row, event])).unwrap().0.is_recorded);
}
