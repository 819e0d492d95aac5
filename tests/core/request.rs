//! Request headers and reconstruction, against their vectors, the failure cases and by laws.

use proptest::prelude::*;
use quipu::model::json::{self, Value};
use quipu::model::{Event, Seq};
use quipu::replay::request::header::{fold, is_same, reason};
use quipu::replay::request::{Dispatches, LatestHeader, RequestHeader, dispatches, reconstruct};
use quipu::replay::seed::Seed;

use crate::logs::{RawCase, any_log, events_of, extend, healthy, raw_cases, same};

fn is(header: Option<&RequestHeader>, expected: &serde_json::Value) -> bool {
    header
        .map_or_else(|| expected.is_null(), |header| same(header.as_json().as_bytes(), expected.to_string().as_bytes()))
}

fn reasons(events: &[Event]) -> serde_json::Value {
    let found = events.iter().filter_map(|event| Some((event.seq.get(), reason(event)?)));
    found.map(|(seq, reason)| serde_json::json!({"seq": seq, "reason": reason})).collect()
}

#[test]
fn header_vectors_fold_as_in_the_reference() {
    for case in raw_cases("request_header.json", Some("fold")) {
        let (name, expected) = (&case.name, &case.expected);
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let objects = doc.root().get("events").unwrap();
        let events = events_of(objects);
        let from = doc.root().get("from").map(RequestHeader::canonical);
        assert!(is(fold(&events, from).unwrap().as_ref(), &expected["header"]), "{name}");
        assert_eq!(reasons(&events), expected["reasons"], "{name}");
        let mut seed = Seed::default();
        let error = objects.items().find_map(|object| seed.push(object).err());
        assert_eq!(error.map(|e| e.to_string()).as_deref(), expected["restore"]["error"].as_str(), "{name}");
    }
}

#[test]
fn header_vectors_have_the_canonical_text_of_the_reference() {
    for case in raw_cases("request_header.json", Some("canonical")) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let header = RequestHeader::canonical(doc.root().get("header").unwrap());
        assert_eq!(Some(header.as_json()), case.expected["text"].as_str(), "{}", case.name);
        assert!(is(Some(&header), &case.expected["header"]), "{}", case.name);
    }
}

#[test]
fn header_vectors_are_equal_when_the_reference_says_so() {
    for case in raw_cases("request_header.json", Some("equal")) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let (a, b) = (doc.root().get("a").unwrap(), doc.root().get("b").unwrap());
        assert_eq!(Some(is_same(a, b)), case.expected["equal"].as_bool(), "{}", case.name);
        assert_eq!(is_same(a, b), is_same(b, a), "{}", case.name);
    }
}

fn check_dispatch(case: &RawCase, events: &[Event], expected: &serde_json::Value) {
    let boundary = Seq::new(expected["boundary"].as_u64().unwrap()).unwrap();
    let request = reconstruct(events, boundary).unwrap();
    assert!(is(request.header.as_ref(), &expected["header"]), "{} at {boundary}", case.name);
    let messages = expected["messages"].as_array().unwrap();
    assert_eq!(request.messages.len(), messages.len(), "{} at {boundary}", case.name);
    for (found, expected) in request.messages.iter().zip(messages) {
        assert!(same(found, expected.to_string().as_bytes()), "{} at {boundary}: {found:?}", case.name);
    }
}

#[test]
fn reconstruction_vectors_yield_every_request_that_was_dispatched() {
    for case in raw_cases("request_reconstruction.json", None) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let events = events_of(doc.root().get("events").unwrap());
        let expected = case.expected["dispatches"].as_array().unwrap();
        let boundaries: Vec<_> = expected.iter().map(|dispatch| dispatch["boundary"].as_u64().unwrap()).collect();
        let found: Vec<_> = dispatches(&events).iter().map(|seq| seq.get()).collect();
        assert_eq!(found, boundaries, "{}", case.name);
        for dispatch in expected {
            check_dispatch(&case, &events, dispatch);
        }
        let end = serde_json::json!({
            "boundary": events.len(), "messages": case.expected["finalMessages"],
            "header": expected.last().unwrap()["header"],
        });
        check_dispatch(&case, &events, &end);
        assert_eq!(reasons(&events), case.expected["headerReasons"], "{}", case.name);
    }
}

#[test]
fn a_corrected_tool_list_replaces_the_bad_one_whole_c108() {
    let mut log = healthy();
    let chunk =
        |kind: &str| format!(r#"{{"turn":2,"step":1,"chunk":{{"type":"{kind}","reason":{{"kind":"error"}}}}}}"#);
    let v1 = r#"{"reason":"resume","header":{"config":{"provider":"p","model":"m"},"system":"S","tools":[{"name":"x","parameters":{"type":"bad"}}]}}"#;
    let v2 = r#"{"reason":"change","header":{"config":{"provider":"p","model":"m"},"tools":[{"name":"x","parameters":{"type":"object"}}]}}"#;
    extend(
        &mut log,
        &[
            ("turn/start", r#"{"turn":2}"#),
            ("step/start", r#"{"turn":2,"step":1}"#),
            ("request/header", v1),
            ("assistant/chunk", &chunk("finish")),
            ("request/header", v2),
            ("assistant/chunk", &chunk("usage")),
        ],
    );
    let boundaries = dispatches(&log);
    assert_eq!(boundaries, [log[4].seq, log[11].seq, log[13].seq]);
    let header = |at: usize| reconstruct(&log, boundaries[at]).unwrap().header.unwrap();
    assert_eq!(header(0).as_json(), r#"{"config":{"provider":"p","model":"m"},"system":"S1"}"#);
    assert!(header(1).as_json().contains("\"bad\"") && header(1).as_json().contains("\"system\":\"S\""));
    let second = r#"{"config":{"provider":"p","model":"m"},"tools":[{"name":"x","parameters":{"type":"object"}}]}"#;
    assert_eq!(header(2).as_json(), second);
    assert!(!header(1).is_same(&header(2)));
    assert_eq!(reconstruct(&log, boundaries[1]).unwrap().messages, reconstruct(&log, boundaries[2]).unwrap().messages);
}

#[test]
fn calls_to_tools_that_the_header_no_longer_has_are_data_c112() {
    let mut log = crate::logs::open();
    let before = reconstruct(&log, Seq::new(14).unwrap()).unwrap();
    extend(&mut log, &[("request/header", r#"{"reason":"change","header":{"config":{"provider":"p","model":"m"}}}"#)]);
    let after = reconstruct(&log, Seq::new(15).unwrap()).unwrap();
    assert_eq!(before.messages, after.messages);
}

#[test]
fn lone_surrogates_in_a_header_survive_its_canonical_form_c23() {
    let text = br#"{"system":"\uD83C","config":{"provider":"\udff7","model":"m"}}"#;
    let doc = json::parse(text).unwrap();
    let header = RequestHeader::canonical(doc.root());
    assert_eq!(header.as_json(), r#"{"config":{"provider":"\udff7","model":"m"},"system":"\ud83c"}"#);
}

#[test]
fn a_boundary_beyond_the_log_is_refused() {
    let error = reconstruct(&healthy(), Seq::new(9).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "boundary 9 is beyond the log's 8 events");
    assert!(reconstruct(&healthy(), Seq::new(8).unwrap()).is_ok());
}

proptest! {
    #[test]
    fn the_latest_header_and_the_boundaries_are_the_same_in_any_split(log in any_log(40), at in 0..40usize) {
        let at = at.min(log.len());
        let (mut latest, mut fold_of_dispatches) = (LatestHeader::default(), Dispatches::default());
        let mut found = Vec::new();
        for event in log[..at].iter().chain(&log[at..]) {
            latest.apply(event);
            found.extend(fold_of_dispatches.apply(event));
        }
        prop_assert_eq!(&found, &dispatches(&log));
        let of_latest = latest.seq().map(|seq| RequestHeader::of_event(&log[seq.get() as usize]));
        prop_assert_eq!(of_latest.transpose().map(Option::flatten), fold(&log, None));
        for boundary in found {
            let prefix = reconstruct(&log[..boundary.get() as usize], boundary);
            prop_assert_eq!(reconstruct(&log, boundary), prefix, "later events do not matter");
        }
    }

    #[test]
    fn the_canonical_form_is_a_fixed_point_and_the_same_request(log in any_log(20)) {
        for header in log.iter().filter_map(|event| RequestHeader::of_event(event).ok().flatten()) {
            let doc = json::parse(header.as_json().as_bytes()).unwrap();
            prop_assert_eq!(&RequestHeader::canonical(doc.root()), &header);
            prop_assert!(header.is_same(&header));
            prop_assert!(doc.root().get("config").is_some_and(Value::is_object));
        }
    }
}
