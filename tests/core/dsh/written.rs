//! Written files: what is written is read back, and nothing else.

use proptest::prelude::*;
use quipu::model::{Header, NewEvent, Origin, Seq, SessionId};
use quipu::portable::dsh::{Omission, WriteOptions, Writer};

use super::*;
use crate::logs;

const FORMS: [WriteOptions; 4] = [
    WriteOptions { is_compressed: false, is_packed: false },
    WriteOptions { is_compressed: false, is_packed: true },
    WriteOptions { is_compressed: true, is_packed: false },
    WriteOptions { is_compressed: true, is_packed: true },
];

fn id() -> SessionId {
    SessionId::new("s/1 \u{1f600}").unwrap()
}

fn header() -> Header {
    Header {
        created_at_ms: 5,
        cwd: Some("/a \"b\"".to_owned()),
        parent_session: Some(String::new()),
        seed_length: Some(2),
        origin: Some(Origin::Subagent),
        delegation_depth: Some(1),
        agent_preset: Some("p".to_owned()),
        labels: [("team".to_owned(), "a".to_owned())].into(),
    }
}

fn write(header: &Header, events: &[Event], options: WriteOptions) -> (Vec<u8>, Vec<Omission>) {
    let mut writer = Writer::begin(Vec::new(), &id(), header, options).unwrap();
    events.iter().for_each(|event| writer.push(event.clone()).unwrap());
    writer.finish().unwrap()
}

/// A stream of deltas, long enough for several batches, between other events.
fn stream(count: u64) -> Vec<Event> {
    let body = |seq: u64| match seq % 700 {
        0 => logs::body("turn/start", r#"{"turn": 1.0}"#),
        1 => logs::body("note", "[\"\\ud800\",1e2 ,\"\u{2028}\"]"),
        _ => {
            let data =
                format!(r#"{{"turn":1,"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{seq}\ud800"}}}}"#);
            logs::body("assistant/chunk", &data)
        }
    };
    (0..count).map(|seq| Event { seq: Seq::new(seq).unwrap(), body: body(seq) }).collect()
}

#[test]
fn every_form_gives_header_and_events_back_and_the_same_file_again() {
    let events = stream(5_000);
    for options in FORMS {
        let (bytes, omissions) = write(&header(), &events, options);
        assert_eq!(omissions, [Omission::Labels(1)], "{options:?}");
        let (scan, found) = read(&bytes).unwrap();
        assert_eq!((scan.id, scan.is_torn, &scan.notes[..]), (id(), false, &[][..]));
        assert_eq!(scan.header, Header { labels: [].into(), ..header() });
        assert_eq!(found, events, "{options:?}");
        assert_eq!(write(&scan.header, &found, options), (bytes, Vec::new()), "{options:?}");
    }
    let sizes = FORMS.map(|options| write(&header(), &events, options).0.len());
    assert!(sizes[1] * 3 < sizes[0] && sizes[2] < sizes[0] && sizes[3] < sizes[2], "{sizes:?}");
}

#[test]
fn an_empty_log_is_a_header() {
    let bare = Header { created_at_ms: 5, ..Header::default() };
    let (bytes, _) = write(&bare, &[], FORMS[0]);
    let line = "{\"type\":\"session\",\"version\":0,\"id\":\"s/1 \u{1f600}\",\"createdAt\":5,\"delegationDepth\":0}\n";
    assert_eq!(String::from_utf8(bytes.clone()).unwrap(), line);
    assert_eq!(read(&bytes).unwrap().1, []);
}

#[test]
fn line_breaks_between_tokens_become_spaces_and_are_told() {
    let data = "{\"a\":\r\n[1,\n\"\\n\"]}";
    let event = Event { seq: Seq::ZERO, body: logs::body("note", data) };
    let (bytes, omissions) = write(&Header { created_at_ms: 5, ..Header::default() }, &[event], FORMS[0]);
    assert_eq!(omissions, [Omission::LineBreaks(1)]);
    let (_, found) = read(&bytes).unwrap();
    assert_eq!(found[0].body.data, "{\"a\":  [1, \"\\n\"]}");
    assert!(logs::same(&found[0].body.data, data.as_bytes()));
}

#[test]
fn a_file_that_was_packed_is_written_as_it_was() {
    for file in ["dsh-v0-parallel-tool-calls.jsonl", "dsh-v0-compaction-recovery.jsonl"] {
        let options = ReadOptions { cwd: Some("/w".to_owned()), ..ReadOptions::default() };
        let path = format!("{}/tests/data/samples/{file}", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let (scan, events) = read_with(|| &bytes[..], &options).unwrap();
        for form in FORMS {
            let (written, _) = write(&scan.header, &events, form);
            let (again, found) = read(&written).unwrap();
            assert_eq!((&again.header, &found), (&scan.header, &events), "{file} {form:?}");
            assert_eq!(write(&again.header, &found, form).0, written);
        }
    }
}

proptest! {
    #[test]
    fn any_log_comes_back(log in logs::any_log(40), form in 0..4usize, ignorable: bool) {
        let mark = |event: Event| Event { body: NewEvent { ignorable, ..event.body }, ..event };
        let events: Vec<_> = log.into_iter().map(mark).collect();
        let (bytes, omissions) = write(&header(), &events, FORMS[form]);
        prop_assert_eq!(omissions, vec![Omission::Labels(1)]);
        prop_assert_eq!(read(&bytes).unwrap().1, events);
    }
}
