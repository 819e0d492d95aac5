//! Plain files: what counts, what is torn, what is refused.

use quipu::model::json::{self, Value};
use quipu::model::{Event, SessionId, SurfaceOp};
use quipu::portable::dsh::{self, DshError, Issue, Line, Note, ReadOptions};

use super::*;
use crate::vectors;

fn assert_same(name: &str, event: &Event, expected: Value<'_, '_>) {
    let int = |key| expected.get(key).and_then(Value::as_int53);
    assert_eq!(Some(event.seq.get() as i64), int("seq"), "{name}");
    assert_eq!(Some(event.body.time_ms), int("time"), "{name}");
    assert_eq!(Some(event.body.kind.to_string()), expected.get("type").unwrap().to_text(), "{name}");
    assert_eq!(event.body.data, expected.get("data").unwrap().raw(), "{name}");
    let surface_op = expected.get("surfaceOp").map(|_| SurfaceOp::Append);
    assert_eq!(event.body.surface_op, surface_op, "{name}");
    assert!(!event.body.ignorable && event.body.source_event_seqs.is_none(), "{name}");
}

#[test]
fn files_scan_as_in_the_vectors() {
    let text = vectors::text("jsonl_scan.json");
    let doc = json::parse(text.as_bytes()).unwrap();
    let mut count = 0;
    for case in doc.root().get("cases").unwrap().items() {
        count += 1;
        let name = case.get("name").unwrap().to_text().unwrap();
        let file = case.get("input").unwrap().get("text").unwrap().to_text().unwrap();
        let expected = case.get("expected").unwrap();
        let found = read(file.as_bytes());
        if name == "scan-null-line" {
            // The reference trips over the null with an error of the language; ours names the line.
            assert_eq!(error_of(found), "line 3 is `null`, which is no event");
            continue;
        }
        if let Some(error) = expected.get("error") {
            assert_eq!(error_of(found), error.to_text().unwrap(), "{name}");
            continue;
        }
        let (scan, events) = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let int = |key| expected.get(key).and_then(Value::as_int53).unwrap() as u64;
        assert_eq!((scan.committed_bytes, scan.total_bytes), (int("committedBytes"), int("totalBytes")), "{name}");
        assert_eq!(scan.is_torn, scan.total_bytes > scan.committed_bytes, "{name}");
        let header = expected.get("header").unwrap();
        assert_eq!(Some(scan.id.as_str()), header.get("id").unwrap().to_text().as_deref(), "{name}");
        assert_eq!(scan.header.cwd, header.get("cwd").and_then(Value::to_text), "{name}");
        let depth = header.get("delegationDepth").and_then(Value::as_int53);
        assert_eq!(scan.header.delegation_depth.map(|depth| depth as i64), depth, "{name}");
        assert_eq!(scan.header.created_at_ms, 5, "{name}");
        let expected: Vec<_> = expected.get("events").unwrap().items().collect();
        assert_eq!(events.len(), expected.len(), "{name}");
        events.iter().zip(expected).for_each(|(event, expected)| assert_same(&name, event, expected));
    }
    println!("jsonl_scan.json: {count} cases");
    assert_eq!(count, 18);
}

#[test]
fn events_carry_every_envelope_field_and_the_bytes_of_their_data() {
    let (scan, events) = read(&file(&[START, ROW, MESSAGE, END])).unwrap();
    assert!(!scan.is_torn && !scan.is_recorded && scan.notes.is_empty());
    assert_eq!(events.len(), 6);
    assert_eq!(events[2].body.data, r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"\ud800"}}"#);
    assert_eq!(events.iter().map(|event| event.body.time_ms).collect::<Vec<_>>(), [1, 9, 10, 8, -3, 1]);
    let message = &events[4].body;
    assert_eq!(message.data, r#"{"n": 1.0,"t":"\uD83D"}"#);
    let SurfaceOp::Replace { start, end } = message.surface_op.unwrap() else { panic!("{message:?}") };
    assert_eq!((start.get(), end.get(), message.ignorable), (0, 3, true));
    assert_eq!(message.source_event_seqs.as_ref().unwrap().len(), 2);
}

#[test]
fn an_envelope_that_no_event_has_is_named_by_line_and_field() {
    for (line, field) in [
        (r#"{"type":"a","seq":1,"time":1,"data":1,"extra":0}"#, "extra"),
        (r#"{"seq":1,"time":1,"data":1}"#, "type"),
        (r#"{"type":3,"seq":1,"time":1,"data":1}"#, "type"),
        (r#"{"type":"\ud800","seq":1,"time":1,"data":1}"#, "type"),
        (r#"{"type":"a","seq":1,"data":1}"#, "time"),
        (r#"{"type":"a","seq":1,"time":1.5,"data":1}"#, "time"),
        (r#"{"type":"a","seq":1,"time":9007199254740992,"data":1}"#, "time"),
        (r#"{"type":"a","seq":1,"time":1}"#, "data"),
        (r#"{"type":"a","seq":1,"time":1,"data":1,"ignorable":false}"#, "ignorable"),
        (r#"{"type":"a","seq":1,"time":1,"data":1,"surfaceOp":"replace"}"#, "surfaceOp"),
        (r#"{"type":"a","seq":1,"time":1,"data":1,"surfaceOp":{"op":"replace","start":0,"end":-1}}"#, "surfaceOp"),
        (r#"{"type":"a","seq":1,"time":1,"data":1,"surfaceOp":{"op":"replace","start":0,"end":1,"x":1}}"#, "surfaceOp"),
        (r#"{"type":"a","seq":1,"time":1,"data":1,"sourceEventSeqs":{}}"#, "sourceEventSeqs"),
        (r#"{"type":"a","seq":1,"time":1,"data":1,"sourceEventSeqs":[0,"1"]}"#, "sourceEventSeqs"),
    ] {
        match read(&file(&[START, line])).unwrap_err() {
            DshError::Envelope { line: at, field: found, .. } => {
                assert_eq!((at, found.as_str()), (Line { event: 2, file: 3 }, field), "{line}");
            }
            other => panic!("{line}: {other}"),
        }
    }
    let long = format!(r#"{{"type":"{}","seq":1,"time":1,"data":1}}"#, "x".repeat(257));
    assert!(matches!(read(&file(&[START, &long])), Err(DshError::Envelope { .. })));
    let key = format!(r#"{{"type":"a","seq":1,"time":1,"data":1,"{}":1}}"#, "\u{e9}".repeat(100_000));
    assert!(error_of(read(&file(&[START, &key]))).len() < 300);
}

#[test]
fn data_that_loses_something_is_refused_where_it_would_count_and_ignored_in_a_torn_tail() {
    for data in ["-0", "1e999", r#"{"a":1,"a":2}"#] {
        let line = format!(r#"{{"type":"a","seq":1,"time":1,"data":{data}}}"#);
        let error = read(&file(&[START, &line])).unwrap_err();
        assert!(matches!(error, DshError::Lossy { line: Line { event: 2, file: 3 }, .. }), "{error}");
        let (scan, _) = read(&file(&[START, "?", &line])).unwrap();
        assert_eq!(scan.events, 1);
    }
}

#[test]
fn a_torn_tail_says_where_it_begins_and_why() {
    let issue = |lines: &[&str]| match &read(&file(lines)).unwrap().0.notes[..] {
        [Note::TornTail { line, issue }] => (line.file, issue.clone()),
        notes => panic!("{notes:?}"),
    };
    let gap = |got: &str| (3, Issue::Gap { expected: 1, got: got.to_owned() });
    assert_eq!(issue(&[START, "5"]), gap("undefined"));
    assert_eq!(issue(&[START, r#"{"seq":"x"}"#]), gap("x"));
    assert_eq!(issue(&[START, r#"{"seq":2.50}"#]), gap("2.5"));
    assert_eq!(issue(&[START, START]), gap("0"));
    assert!(matches!(issue(&[START, ""]), (3, Issue::Unparsable(_))));
    assert!(matches!(issue(&[START, r#"{"type":"text-chunks"}"#]), (3, Issue::Unparsable(_))));
    let mut bytes = file(&[START]);
    bytes.extend(b"{");
    let (scan, _) = read(&bytes).unwrap();
    assert_eq!(scan.notes, [Note::TornTail { line: Line { event: 2, file: 3 }, issue: Issue::Unterminated }]);
}

#[test]
fn a_turn_end_out_of_its_place_makes_its_own_line_damage() {
    let error = error_of(read(&file(&[START, END])));
    assert_eq!(error, "corrupt session log: seq gap in committed region at line 2 (expected 1, got 5)");
    let error = error_of(read(&file(&[START, "null\u{0}", r#"["turn/end"]"#, END])));
    assert_eq!(error, "corrupt session log: unparsable committed event at line 2");
    let not_utf8 = [file(&[START]), b"\"\xff\"\n".to_vec(), END.as_bytes().to_vec(), b"\n".to_vec()].concat();
    assert_eq!(error_of(read(&not_utf8)), "corrupt session log: unparsable committed event at line 2");
    // A turn/end in an unfinished line does not count.
    assert_eq!(read(&not_utf8[..not_utf8.len() - 1]).unwrap().0.events, 1);
}

fn header_error(header: &str) -> String {
    error_of(read(format!("{header}\n").as_bytes()))
}

#[test]
fn a_foreign_version_is_refused_before_the_shape_and_says_its_direction() {
    assert_eq!(
        header_error(r#"{"version":1,"id":"x"}"#),
        "session \"x\" uses log format v1, but this harness reads only v0: the log was written by a newer harness \u{2014} \
         upgrade the harness to open it"
    );
    assert_eq!(
        header_error(r#"{"version":-1.0,"id":"x","sandboxMode":1}"#),
        "session \"x\" uses log format v-1, older than the supported v0, and this build ships no upgrade path for it"
    );
    assert!(matches!(read(b"{\"version\":1e999}\n"), Err(DshError::FormatNewer { .. })));
}

#[test]
fn a_header_is_refused_with_its_own_reason() {
    assert!(matches!(read(b"\n"), Err(DshError::HeaderNotJson)));
    for not_header in
        ["null", "[]", "{}", r#"{"type":"session","version":"0","id":"s","createdAt":5,"delegationDepth":0}"#]
    {
        assert!(matches!(read(format!("{not_header}\n").as_bytes()), Err(DshError::NotHeader)), "{not_header}");
    }
    let with = |field: &str| HEADER.replace('}', &format!(",{field}}}"));
    assert!(matches!(read(with(r#""approvalPolicy":1"#).as_bytes()), Err(DshError::Empty)));
    assert!(header_error(&with(r#""approvalPolicy":1"#)).contains("retired"));
    assert_eq!(header_error(&with(r#""cwd":"a""#)), "session header cwd must be an absolute path, got \"a\"");
    assert_eq!(header_error(&with(r#""origin":"a""#)), "session header origin must be \"subagent\"");
    assert_eq!(
        header_error(&with(r#""parentSession":"\udfff""#)),
        "session header parentSession holds a lone surrogate"
    );
    let preset = format!(r#""agentPreset":"{}""#, "x".repeat(4000));
    assert_eq!(header_error(&with(&preset)), "session header has 4064 bytes; 3000 are allowed");
    let id = HEADER.replace(r#""s""#, &format!("\"{}\"", "x".repeat(129)));
    assert!(header_error(&id).starts_with("session_id has 129 bytes"));
    let options = ReadOptions { id: Some(SessionId::new("t").unwrap()), ..ReadOptions::default() };
    assert_eq!(read_with(|| &b"\n"[..], &options).unwrap_err().to_string(), error_of(read(b"\n")));
    let file = format!("{id}\n");
    assert_eq!(read_with(|| file.as_bytes(), &options).unwrap().0.id.as_str(), "t");
}

#[test]
fn a_header_that_loses_fields_says_so_and_the_caller_may_give_the_working_directory() {
    let header = HEADER.replace('}', r#","cwd":"C:\\x","extra":1}"#);
    let file = format!("{header}\n");
    assert!(matches!(read(file.as_bytes()), Err(DshError::Header(_))));
    let options = ReadOptions { cwd: Some("/w".to_owned()), ..ReadOptions::default() };
    let (scan, _) = read_with(|| file.as_bytes(), &options).unwrap();
    assert_eq!(scan.header.cwd.as_deref(), Some("/w"));
    assert_eq!(scan.notes, [Note::FieldsDropped { keys: vec!["extra".to_owned()] }]);
    let options = ReadOptions { cwd: Some("w".to_owned()), ..ReadOptions::default() };
    assert!(matches!(read_with(|| file.as_bytes(), &options), Err(DshError::Header(_))));
}

#[test]
fn a_long_line_is_refused_by_its_length_and_a_long_fragment_is_just_torn() {
    let options = ReadOptions { line_bytes_max: 200, ..ReadOptions::default() };
    let long = "x".repeat(200);
    let bytes = file(&[START, &long]);
    let error = read_with(|| &bytes[..], &options).unwrap_err();
    assert!(matches!(error, DshError::LineTooLong { file_line: 3, bytes: 201, max: 200 }), "{error}");
    let (scan, _) = read_with(|| &bytes[..bytes.len() - 1], &options).unwrap();
    assert_eq!((scan.events, scan.total_bytes - scan.committed_bytes), (1, 200));
}

#[test]
fn a_file_that_changed_between_the_passes_is_an_error() {
    let before = file(&[START, ROW]);
    let (scan, _) = read(&before).unwrap();
    let changed = [file(&[START]), file(&[ROW, START]), file(&[START, &format!(" {ROW}")]), b"\n".to_vec(), vec![]];
    for after in changed {
        let input = dsh::open(&after[..], &ReadOptions::default()).unwrap();
        let events: Vec<_> = dsh::events(input, &scan).collect();
        assert!(matches!(events.last(), Some(Err(DshError::Changed { .. }))), "{events:?}");
    }
}

#[test]
fn a_file_cut_at_any_byte_keeps_its_whole_lines() {
    let (bytes, marks) = small_file();
    for length in 0..=bytes.len() {
        let found = read_slowly(&bytes[..length], 1 + length % 7);
        match marks.iter().rev().find(|(end, _)| *end <= length) {
            None => assert!(matches!(found, Err(DshError::Empty)), "{length}"),
            Some(&(end, events)) => {
                let (scan, _) = found.unwrap();
                assert_eq!((scan.committed_bytes, scan.total_bytes), (end as u64, length as u64));
                assert_eq!((scan.events, scan.is_torn), (events, end < length));
            }
        }
    }
}
