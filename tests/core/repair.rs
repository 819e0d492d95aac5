//! The tail automaton and crash repair, against `repair.json`, the failure cases and by laws.

use proptest::prelude::*;
use quipu::model::json;
use quipu::model::{Event, Seq};
use quipu::replay::repair::{closers, closers_of};
use quipu::replay::{Tail, line};

use crate::logs::{any_log, assistant_data, call_block, event, events_of, extend, open, raw_cases, result_data, same};

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| &*event.body.kind).collect()
}

fn text(event: &Event) -> String {
    String::from_utf8(line::encode(event)).unwrap()
}

#[test]
fn closers_are_the_references_byte_for_byte_in_all_vectors() {
    for case in raw_cases("repair.json", None) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let mut events = events_of(doc.root().get("events").unwrap());
        let found = closers(&events);
        let expected = case.expected["closers"].as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{}: {:?}", case.name, kinds(&found));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let line = line::encode(found);
            assert!(same(&line, expected.to_string().as_bytes()), "{}: {} != {expected}", case.name, text(found));
            if let Some(exact) = case.expected["text"][index].as_str() {
                assert_eq!(text(found), exact, "{}", case.name);
            }
        }
        assert_eq!(closers_of(&Tail::from_events(&events)), found, "{}", case.name);
        events.extend(found);
        assert!(closers(&events).is_empty(), "{}: repair is not idempotent", case.name);
    }
}

#[test]
fn a_killed_tool_call_gets_exactly_its_closers_c01() {
    let found = closers(&open());
    assert_eq!(kinds(&found), ["tool/result", "tool/result", "step/end", "turn/end"]);
    assert_eq!(
        found.iter().map(|e| (e.seq.get(), e.body.time_ms)).collect::<Vec<_>>(),
        [(14, 2005), (15, 2005), (16, 2005), (17, 2005)]
    );
    assert_eq!(found[0].body.source_event_seqs, Some(vec![Seq::new(13).unwrap()]));
    assert!(text(&found[0]).contains("TOOL_OUTCOME_UNKNOWN"));
    assert_eq!(found[1].body.source_event_seqs, None);
    assert!(text(&found[1]).contains("TOOL_NOT_STARTED"));
}

#[test]
fn a_reused_call_id_is_paired_inside_its_turn_only_c04() {
    let mut log = Vec::new();
    for turn in 1..3 {
        let numbers = format!(r#"{{"turn":{turn},"step":1}}"#);
        let message = assistant_data(turn, 1, &call_block("c1"));
        let call = format!(r#"{{"turn":{turn},"step":1,"callId":"c1"}}"#);
        let result = result_data(turn, 1, "c1", "done");
        let end = format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#);
        extend(
            &mut log,
            &[
                ("turn/start", &format!(r#"{{"turn":{turn}}}"#)),
                ("step/start", &numbers),
                ("assistant/message", &message),
                ("tool/call", &call),
                ("tool/result", &result),
                ("step/end", &numbers),
                ("turn/end", &end),
            ],
        );
    }
    assert!(closers(&log).is_empty());
    let second_call = log[10].seq;
    let found = closers(&log[..11]);
    assert_eq!(kinds(&found), ["tool/result", "step/end", "turn/end"]);
    assert_eq!(found[0].body.source_event_seqs, Some(vec![second_call]));
}

#[test]
fn a_finished_sibling_keeps_its_result_c06() {
    let mut log = open();
    extend(
        &mut log,
        &[("tool/call", r#"{"turn":2,"step":1,"callId":"cb"}"#), ("tool/result", &result_data(2, 1, "cb", "done"))],
    );
    let found = closers(&log);
    assert_eq!(kinds(&found), ["tool/result", "step/end", "turn/end"]);
    assert!(text(&found[0]).contains("\"callId\":\"ca\""));
    assert_eq!(found[0].body.source_event_seqs, Some(vec![Seq::new(13).unwrap()]));
}

#[test]
fn an_id_announced_twice_in_one_message_has_one_closer_c10() {
    let mut log = open()[..10].to_vec();
    let message = assistant_data(2, 1, &[call_block("d"), call_block("d")].join(","));
    extend(&mut log, &[("assistant/message", &message), ("tool/call", r#"{"turn":2,"step":1,"callId":"d"}"#)]);
    assert_eq!(kinds(&closers(&log)), ["tool/result", "step/end", "turn/end"]);
    extend(&mut log, &[("tool/result", &result_data(2, 1, "d", "done"))]);
    assert_eq!(kinds(&closers(&log)), ["step/end", "turn/end"]);
}

#[test]
fn orphan_chunks_get_no_message_c11() {
    for kind in ["text-delta", "reasoning-delta"] {
        let mut log = open()[..11].to_vec();
        let chunk = format!(r#"{{"turn":2,"step":1,"chunk":{{"type":"{kind}","index":0,"text":"par"}}}}"#);
        extend(&mut log, &[("assistant/chunk", &chunk), ("assistant/chunk", &chunk)]);
        assert_eq!(kinds(&closers(&log)), ["step/end", "turn/end"], "{kind}");
    }
}

#[test]
fn lone_surrogates_in_call_ids_survive_into_closers_c23() {
    let mut log = open()[..10].to_vec();
    let ids = ["\\ud83c", "\\udff7", "\\udff7\\ud83c", "\\ud83c\\udff7"];
    let blocks: Vec<_> = ids.iter().map(|id| call_block(id)).collect();
    extend(
        &mut log,
        &[
            ("assistant/message", &assistant_data(2, 1, &blocks.join(","))),
            ("tool/call", r#"{"turn":2,"step":1,"callId":"\uD83C"}"#),
        ],
    );
    let found = closers(&log);
    assert_eq!(found.len(), 6);
    assert_eq!(found[0].body.source_event_seqs, Some(vec![log[11].seq]), "escapes compare by value");
    for (closer, id) in found.iter().zip(["\\ud83c", "\\udff7", "\\udff7\\ud83c", "\u{1f3f7}"]) {
        assert!(text(closer).contains(&format!("\"toolCallId\":\"{id}\"")), "{}", text(closer));
        assert_eq!(json::check(&closer.body.data), Ok(()));
    }
}

#[test]
fn an_empty_call_id_gets_no_closer_that_readers_would_refuse() {
    let mut log = open()[..10].to_vec();
    extend(&mut log, &[("assistant/message", &assistant_data(2, 1, &call_block("")))]);
    assert_eq!(kinds(&closers(&log)), ["step/end", "turn/end"]);
}

#[test]
fn numbers_that_a_log_lacks_are_left_out() {
    let log = [event(r#"{"type":"turn/start","seq":0,"time":1,"data":null}"#)];
    assert_eq!(
        text(&closers(&log)[0]),
        r#"{"type":"turn/end","seq":1,"time":1,"data":{"reason":{"kind":"interrupted"}}}"#
    );
}

#[test]
fn a_full_log_gets_no_closers() {
    let log = [event(r#"{"type":"turn/start","seq":9007199254740991,"time":1,"data":{"turn":1}}"#)];
    assert!(closers(&log).is_empty());
}

#[test]
fn a_message_with_many_calls_costs_what_it_weighs() {
    let blocks: Vec<_> = (0..20_000).map(|n| call_block(&format!("c{n}"))).collect();
    let mut log = open()[..10].to_vec();
    extend(&mut log, &[("assistant/message", &assistant_data(2, 1, &blocks.join(",")))]);
    assert_eq!(closers(&log).len(), 20_002);
}

proptest! {
    #[test]
    fn the_tail_of_a_log_is_the_same_in_any_split(log in any_log(40), at in 0..40usize) {
        let at = at.min(log.len());
        let mut tail = Tail::from_events(&log[..at]);
        log[at..].iter().for_each(|event| tail.apply(event));
        prop_assert_eq!(tail, Tail::from_events(&log));
    }

    #[test]
    fn repair_is_deterministic_append_only_idempotent_and_balanced(log in any_log(40)) {
        let found = closers(&log);
        prop_assert_eq!(&found, &closers(&log));
        let mut whole = log.clone();
        whole.extend(found.iter().cloned());
        for (index, event) in whole.iter().enumerate() {
            prop_assert_eq!(event.seq.get(), index as u64);
            prop_assert_eq!(json::check(&event.body.data), Ok(()));
        }
        let tail = Tail::from_events(&whole);
        prop_assert!(tail.is_balanced());
        prop_assert!(found.is_empty() || tail.pending().next().is_none());
        prop_assert!(closers(&whole).is_empty());
        prop_assert!(found.iter().all(|closer| Some(closer.body.time_ms) == log.last().map(|e| e.body.time_ms)));
    }

    #[test]
    fn a_line_reads_back_as_its_event(log in any_log(20)) {
        for found in &log {
            prop_assert_eq!(&event(&text(found)), found);
        }
    }
}
