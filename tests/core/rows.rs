//! Packed chunk rows, against `chunk_rows.json` and by laws.

use proptest::prelude::*;
use quipu::codec::rows::{self, Expanded, Member, Packed, Place};
use quipu::model::json::{self, Value};
use quipu::model::{Event, NewEvent, Seq, SurfaceOp};

use crate::vectors;

/// Runs `check` on every case of one kind; the file is read as text, because spellings matter.
fn for_each_case(kind: &str, expected_count: usize, mut check: impl FnMut(&str, Value<'_, '_>, Value<'_, '_>)) {
    let text = vectors::text("chunk_rows.json");
    let doc = json::parse(text.as_bytes()).unwrap();
    let mut count = 0;
    for case in doc.root().get("cases").unwrap().items() {
        let input = case.get("input").unwrap();
        if input.get("kind").unwrap().to_text().as_deref() == Some(kind) {
            check(&case.get("name").unwrap().to_text().unwrap(), input, case.get("expected").unwrap());
            count += 1;
        }
    }
    println!("chunk_rows.json: {count} cases of kind {kind}");
    assert_eq!(count, expected_count);
}

fn event_of(value: Value<'_, '_>) -> Event {
    let seq = |value: Value<'_, '_>| Seq::new(value.as_int53().unwrap().try_into().unwrap()).unwrap();
    let surface_op = value.get("surfaceOp").map(|op| match (op.get("start"), op.get("end")) {
        (Some(start), Some(end)) => SurfaceOp::Replace { start: seq(start), end: seq(end) },
        _ => SurfaceOp::Append,
    });
    let body = NewEvent {
        time_ms: value.get("time").unwrap().as_int53().unwrap(),
        kind: value.get("type").unwrap().to_text().unwrap().into(),
        data: value.get("data").unwrap().raw().to_owned().into(),
        ignorable: value.get("ignorable").is_some(),
        surface_op,
        source_event_seqs: value.get("sourceEventSeqs").map(|sources| sources.items().map(seq).collect()),
    };
    Event { seq: seq(value.get("seq").unwrap()), body }
}

fn chunk(seq: u64, time_ms: i64, data: &str) -> Event {
    let body = NewEvent {
        time_ms,
        kind: rows::CHUNK_TYPE.into(),
        data: data.to_owned().into(),
        ignorable: false,
        surface_op: None,
        source_event_seqs: None,
    };
    Event { seq: Seq::new(seq).unwrap(), body }
}

fn members_of(row: &str) -> Vec<Member> {
    let doc = json::parse(row.as_bytes()).unwrap();
    match rows::decode(doc.root()).unwrap() {
        Expanded::Row(members) => members.collect(),
        Expanded::Other(_) => panic!("not a row: {row}"),
    }
}

/// All events that packed records stand for.
fn unpack<'e>(records: impl Iterator<Item = Packed<'e>>) -> Vec<Event> {
    records
        .flat_map(|record| match record {
            Packed::Event(event) => vec![event.clone()],
            Packed::Row(row) => members_of(&row)
                .into_iter()
                .map(|member| chunk(member.seq, member.time_ms, std::str::from_utf8(&member.data).unwrap()))
                .collect(),
        })
        .collect()
}

#[test]
fn rows_decode_as_in_the_vectors() {
    for_each_case("decode", 12, |name, input, expected| {
        let record = input.get("record").unwrap();
        let found = rows::decode(record);
        if let Some(error) = expected.get("error") {
            assert_eq!(found.unwrap_err().to_string(), error.to_text().unwrap(), "{name}");
            return;
        }
        let events = expected.get("events").unwrap();
        match found.unwrap_or_else(|error| panic!("{name}: {error}")) {
            Expanded::Other(value) => {
                assert_eq!(value.raw(), events.items().next().unwrap().raw(), "{name}");
            }
            Expanded::Row(members) => {
                assert_eq!(members.len(), events.items().count(), "{name}");
                for (member, event) in members.zip(events.items()) {
                    // One member of a case has a seq of 2^53, which is no int53 any more.
                    assert_eq!(member.seq.to_string(), event.get("seq").unwrap().raw(), "{name}");
                    assert_eq!(Some(member.time_ms), event.get("time").unwrap().as_int53(), "{name}");
                    assert_eq!(member.data, event.get("data").unwrap().raw(), "{name}");
                }
            }
        }
    });
}

#[test]
fn events_pack_as_in_the_vectors_and_come_back_byte_for_byte() {
    for_each_case("pack", 29, |name, input, expected| {
        let events: Vec<_> = input.get("events").unwrap().items().map(event_of).collect();
        let records: Vec<_> = rows::pack(&events).collect();
        let expected: Vec<_> = expected.get("records").unwrap().items().collect();
        assert_eq!(records.len(), expected.len(), "{name}");
        for (record, expected) in records.iter().zip(expected) {
            match record {
                Packed::Row(row) => assert_eq!(row, expected.raw(), "{name}"),
                Packed::Event(event) => assert_eq!(**event, event_of(expected), "{name}"),
            }
        }
        assert_eq!(unpack(records.into_iter()), events, "{name}");
    });
}

#[test]
fn number_spellings_and_lone_surrogates_survive_both_ways() {
    let texts = [r#""\ud83d""#, r#""a\\\"]},{""#, r#""\uD83D\uDE00 , ]""#, "\"\u{2028}\u{1F642}\""];
    let data = |text| {
        format!(
            r#"{{"turn":1.0,"step":1e0,"chunk":{{"type":"tool-call-delta","index":18446744073709551617,"id":"\ud800","name":"\u0041","argumentsDelta":{text}}}}}"#
        )
    };
    let events: Vec<_> = (0..).zip(texts).map(|(seq, text)| chunk(seq, 5 - seq as i64, &data(text))).collect();
    let records: Vec<_> = rows::pack(&events).collect();
    assert!(matches!(&records[..], [Packed::Row(_)]), "{records:?}");
    assert_eq!(unpack(records.into_iter()), events);
}

#[test]
fn rows_with_spaces_and_odd_spellings_decode() {
    let row = "{ \"type\" : \"text\\u002dchunks\", \"seq0\":1e0, \"time0\":-1.0,\r\"data\":{\"index\": 0.50 ,\"texts\":[ \"a]\" ,\
               \"\\\"\",\t\"\" ] , \"dt\": [ 1E1\t, -0.0e1 ], \"turn\":1 ,\"step\":2}}";
    let doc = json::parse_any(row.as_bytes()).unwrap();
    let Expanded::Row(members) = rows::decode(doc.root()).unwrap() else { panic!("not a row") };
    assert_eq!(members.last_time_ms(), 9);
    assert_eq!(members.place(), Place { seq: 1, time_ms: -1 });
    let data = |text| format!(r#"{{"turn":1,"step":2,"chunk":{{"type":"text-delta","index":0.50,"text":{text}}}}}"#);
    let expected: Vec<_> = [(1, -1, r#""a]""#), (2, 9, r#""\"""#), (3, 9, r#""""#)]
        .map(|(seq, time_ms, text)| Member { seq, time_ms, data: data(text).into() })
        .into();
    assert_eq!(members.collect::<Vec<_>>(), expected);
}

#[test]
fn what_a_row_may_not_be_is_named() {
    let row = |data: &str| format!(r#"{{"type":"tool-call-chunks","seq0":0,"time0":0,"data":{data}}}"#);
    for (data, problem) in [
        (r#"{"turn":1,"step":1,"index":0,"dt":[],"args":["a"]}"#, "data must be exactly"),
        (r#"{"turn":1,"step":1,"index":0,"dt":[],"id":1,"args":["a"]}"#, "id must be a string"),
        (r#"{"turn":1,"step":1,"index":0,"dt":[],"id":"c","name":null,"args":["a"]}"#, "name must be a string"),
        (r#"{"turn":1,"step":1,"index":0,"dt":[],"id":"c","args":["a",1]}"#, "args must be"),
        (r#"{"turn":1,"step":1,"index":0,"dt":{},"id":"c","args":["a"]}"#, "dt must be an array"),
        (r#"{"turn":1,"step":1,"index":0,"dt":[1],"id":"c","args":["a"]}"#, "dt must have one entry less"),
        (r#"{"turn":1,"step":1,"index":0,"dt":[9007199254740991,1],"id":"c","args":["a","b","c"]}"#, "member times"),
        ("[]", "data must be an object"),
    ] {
        let text = row(data);
        let doc = json::parse(text.as_bytes()).unwrap();
        let error = rows::decode(doc.root()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("malformed tool-call-chunks storage row: {problem}")), "{data}: {error}");
    }
}

#[test]
fn events_that_a_row_cannot_give_back_stay_alone() {
    let plain = |seq| chunk(seq, 0, r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}"#);
    let with = |change: fn(&mut NewEvent)| {
        let mut events: Vec<_> = (0..3).map(plain).collect();
        change(&mut events[1].body);
        rows::pack(&events).count()
    };
    assert_eq!(with(|_| ()), 1);
    assert_eq!(with(|event| event.ignorable = true), 3);
    assert_eq!(with(|event| event.surface_op = Some(SurfaceOp::Append)), 3);
    assert_eq!(with(|event| event.source_event_seqs = Some(vec![])), 3);
    assert_eq!(with(|event| event.kind = "assistant/chunks".into()), 3);
    assert_eq!(with(|event| event.time_ms = i64::MAX), 3);
    for data in [
        r#"{"turn":1, "step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}"#,
        r#"{"turn":1.0,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x" }}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x","y":"x"}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":null}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"\x"}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}},"#,
    ] {
        let events = [plain(0), chunk(1, 0, data), plain(2)];
        assert_eq!(rows::pack(&events).count(), 3, "{data}");
    }
}

/// A log of deltas that often continue each other.
fn any_chunks() -> impl Strategy<Value = Vec<Event>> {
    let text = prop::sample::select(vec![r#""""#, r#""a""#, r#""\\""#, r#""\"}}""#, r#""\udc00""#, "null", "1"]);
    let index = prop::sample::select(vec!["0", "0", "0", "0", "1.0"]);
    let call = prop::sample::select(vec!["", r#""id":"c","#, r#""id":"c","name":"n","#]);
    let kind = prop::sample::select(vec![("text-delta", "text"), ("tool-call-delta", "argumentsDelta")]);
    let time = prop::sample::select(vec![0, 7, -7, (1 << 53) - 1, 1 - (1 << 53)]);
    let item = (text, index, call, kind, time).prop_map(|(text, index, call, (kind, key), time)| {
        let data = format!(r#"{{"turn":1,"step":1,"chunk":{{"type":"{kind}","index":{index},{call}"{key}":{text}}}}}"#);
        (time, data)
    });
    prop::collection::vec((item, 1..6u64), 0..12).prop_map(|runs| {
        let items = runs.into_iter().flat_map(|(item, times)| (0..times).map(move |_| item.clone()));
        (0..).zip(items).map(|(seq, (time, data))| chunk(seq, time, &data)).collect()
    })
}

proptest! {
    #[test]
    fn packing_loses_no_byte(events in any_chunks()) {
        let records: Vec<_> = rows::pack(&events).collect();
        prop_assert!(records.len() <= events.len());
        prop_assert_eq!(unpack(records.into_iter()), events);
    }
}
