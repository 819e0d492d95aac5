//! Surface, messages, pairing and restore, against `surface.json`, `validate.json`, the failure cases and by laws.

use proptest::prelude::*;
use quipu::model::json::{self, Value};
use quipu::model::{Event, Seq, SurfaceOp};
use quipu::replay::line::{self, Draft};
use quipu::replay::messages::{self, derive, message, nodes};
use quipu::replay::pairing::{Pairing, PairingError};
use quipu::replay::seed::Seed;
use quipu::replay::surface::{Change, Original, Replacement, Surface, admitted, in_log};

use crate::logs::{any_log, assistant_data, body, call_block, extend, healthy, open, raw_cases, result_data, same};

fn seqs(nodes: &[Seq]) -> Vec<u64> {
    nodes.iter().map(|seq| seq.get()).collect()
}

type Folded = Result<(Surface, Vec<Replacement>), (usize, String)>;

/// The surface fold over objects whose markers are not trusted.
fn fold(objects: Value<'_, '_>) -> (Vec<Event>, Folded) {
    let (mut events, mut surface, mut replacements) = (Vec::new(), Surface::default(), Vec::new());
    for (index, object) in objects.items().enumerate() {
        let draft = Draft::read(object).unwrap();
        let change = surface.apply_draft(&draft, &in_log(&events));
        match change {
            Ok(Change::Replaced(replacement)) => replacements.push(replacement),
            Ok(_) => {}
            Err(error) => return (events, Err((index, error.to_string()))),
        }
        events.push(draft.into_event().unwrap());
    }
    (events, Ok((surface, replacements)))
}

fn restore(objects: Value<'_, '_>) -> Result<Seed, (usize, String)> {
    let mut seed = Seed::default();
    for object in objects.items() {
        seed.push(object).map_err(|error| (error.index, error.to_string()))?;
    }
    Ok(seed)
}

#[test]
fn surface_vectors_fold_derive_and_pair_as_the_reference_does() {
    for case in raw_cases("surface.json", None) {
        let (name, expected) = (&case.name, &case.expected);
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let objects = doc.root().get("events").unwrap();
        let (events, folded) = fold(objects);
        if expected["ok"] == true {
            let (surface, replacements) = folded.unwrap_or_else(|e| panic!("{name}: {e:?}"));
            check_surface(name, expected, &surface, &replacements);
            check_messages(name, expected, &events, &surface);
            assert_eq!(Surface::from_events(&events), Ok((surface, replacements)), "{name}");
        } else {
            let error = folded.err();
            assert_eq!(error.as_ref().map(|e| e.1.as_str()), expected["error"].as_str(), "{name}");
            if let Some((index, _)) = error {
                assert_eq!(Some(index as u64), expected["atSeq"].as_u64(), "{name}");
            }
        }
        let error = restore(objects).err();
        assert_eq!(error.as_ref().map(|e| e.1.as_str()), expected["seedError"].as_str(), "{name}");
        assert_eq!(error.map(|e| e.0 as u64), expected["seedAtIndex"].as_u64(), "{name}");
    }
}

fn check_surface(name: &str, expected: &serde_json::Value, surface: &Surface, replacements: &[Replacement]) {
    assert_eq!(serde_json::json!(seqs(surface.nodes())), expected["nodes"], "{name}");
    assert_eq!(Some(surface.replace_generation()), expected["replaceGeneration"].as_u64(), "{name}");
    let replacements: Vec<_> = replacements
        .iter()
        .map(|r| {
            let (seq, start, end) = (r.seq.get(), r.start.get(), r.end.get());
            serde_json::json!({"seq": seq, "start": start, "end": end, "shadowedSeqs": seqs(&r.shadowed)})
        })
        .collect();
    assert_eq!(serde_json::Value::from(replacements), expected["replacements"], "{name}");
}

fn check_messages(name: &str, expected: &serde_json::Value, events: &[Event], surface: &Surface) {
    let found = derive(events).unwrap();
    let messages = expected["messages"].as_array().unwrap();
    assert_eq!(found.len(), messages.len(), "{name}");
    for (found, expected) in found.iter().zip(messages) {
        assert!(same(found, expected.to_string().as_bytes()), "{name}: {found:?} != {expected}");
    }
    match Pairing::from_nodes(nodes(events, surface)) {
        Ok(pairing) => assert_eq!(serde_json::json!(pairing.cuts()), expected["toolPairing"], "{name}"),
        Err(error) => assert_eq!(expected["toolPairing"]["error"], error.to_string(), "{name}"),
    }
}

#[test]
fn seed_vectors_are_restored_or_refused_with_the_words_of_the_reference() {
    for case in raw_cases("validate.json", Some("seed")) {
        let (name, expected) = (&case.name, &case.expected);
        let doc = json::parse(case.input.as_bytes()).unwrap();
        match restore(doc.root().get("events").unwrap()) {
            Ok(seed) => {
                let length = seed.events().len() + usize::from(!seed.is_marked());
                assert_eq!(Some(length as u64), expected["length"].as_u64(), "{name}");
                assert_eq!(Some(!seed.is_marked()), expected["endSeedAppended"].as_bool(), "{name}");
            }
            Err((_, error)) => assert_eq!(Some(error.as_str()), expected["error"].as_str(), "{name}"),
        }
    }
}

/// A log with user messages at these seqs and titles between them.
fn spread(at: &[u64]) -> Vec<Event> {
    let mut log = Vec::new();
    for seq in 0..=*at.last().unwrap() {
        let data = format!(r#"{{"id":"u{seq}","role":"user","source":{{"kind":"user"}},"content":[]}}"#);
        extend(&mut log, &[if at.contains(&seq) { ("user/message", &data) } else { ("session/title", "{}") }]);
    }
    log
}

fn replace(log: &mut Vec<Event>, (start, end): (u64, u64), sources: &[u64]) -> Result<(), String> {
    let at = |n: &u64| Seq::new(*n).unwrap();
    let seq = at(&(log.len() as u64));
    let data = format!(r#"{{"id":"u{seq}","role":"user","source":{{"kind":"plugin"}},"content":[]}}"#);
    let mut body = body("user/message", &data);
    body.surface_op = Some(SurfaceOp::Replace { start: at(&start), end: at(&end) });
    body.source_event_seqs = Some(sources.iter().map(at).collect());
    log.push(Event { seq, body });
    let result = Surface::from_events(log).map(drop).map_err(|fault| fault.to_string());
    if result.is_err() {
        log.pop();
    }
    result
}

fn surface(log: &[Event]) -> Vec<u64> {
    seqs(Surface::from_events(log).unwrap().0.nodes())
}

#[test]
fn a_second_compaction_keeps_the_kept_tail_of_the_first_c45() {
    let mut log = spread(&[2, 5, 10, 13, 18, 21]);
    extend(&mut log, &[("session/title", "{}"), ("session/title", "{}")]);
    replace(&mut log, (2, 5), &[2, 5]).unwrap();
    assert_eq!(surface(&log), [24, 10, 13, 18, 21]);
    replace(&mut log, (24, 10), &[24, 10]).unwrap();
    assert_eq!(surface(&log), [25, 13, 18, 21]);
    log.pop();
    replace(&mut log, (24, 13), &[13, 24, 10]).unwrap();
    assert_eq!(surface(&log), [25, 18, 21]);
    log.pop();
    assert!(replace(&mut log, (13, 24), &[24, 10, 13]).unwrap_err().contains("is after end seq 24"));
}

#[test]
fn what_was_hidden_never_returns_c47() {
    let mut log = spread(&[2, 5, 10]);
    while log.len() < 20 {
        extend(&mut log, &[("session/title", "{}")]);
    }
    replace(&mut log, (2, 5), &[2, 5]).unwrap();
    extend(&mut log, &[("session/title", "{}")]);
    assert_eq!(
        replace(&mut log, (20, 10), &[2, 20]).unwrap_err(),
        "surface replace: sourceEventSeqs must include every shadowed surface node; missing 10"
    );
    replace(&mut log, (20, 10), &[20, 10]).unwrap();
    replace(&mut log, (22, 22), &[22]).unwrap();
    assert_eq!(surface(&log), [23]);
    assert!(replace(&mut log, (2, 2), &[2]).unwrap_err().contains("start seq 2 not found"));
}

#[test]
fn a_replacement_stands_where_its_range_stood_c49() {
    let mut log = spread(&[2, 5, 10, 13]);
    extend(&mut log, &[("session/title", "{}"), ("session/title", "{}")]);
    replace(&mut log, (2, 5), &[2, 5]).unwrap();
    assert_eq!(surface(&log), [16, 10, 13]);
}

#[test]
fn empty_content_is_a_node_without_a_message_and_empty_blocks_are_content_c13() {
    for (content, count) in [
        ("", 2),
        (r#"{"type":"reasoning","text":""}"#, 3),
        (r#"{"type":"text","text":""}"#, 3),
        (r#"{"type":"text","text":"  \n"}"#, 3),
    ] {
        let mut log = healthy();
        extend(&mut log, &[("assistant/message", &assistant_data(1, 1, content))]);
        assert_eq!(surface(&log), [2, 5, 8]);
        assert_eq!(derive(&log).unwrap().len(), count, "{content}");
    }
}

#[test]
fn an_orphan_result_is_reported_by_the_balance_c08() {
    let mut log = open();
    let orphan = result_data(2, 1, "zz", "");
    extend(&mut log, &[("tool/result", &orphan), ("tool/result", &orphan)]);
    let (folded, _) = Surface::from_events(&log).unwrap();
    assert!(Pairing::from_nodes(nodes(&log, &folded)).unwrap().is_balanced(), "ids are counted, not matched");
    extend(&mut log, &[("tool/result", &orphan)]);
    let (folded, _) = Surface::from_events(&log).unwrap();
    let balance = Pairing::from_nodes(nodes(&log, &folded));
    assert_eq!(balance, Err(PairingError::OrphanResult(log[16].seq)));
}

#[test]
fn the_balance_answers_for_current_nodes_only() {
    let log = open();
    let (folded, _) = Surface::from_events(&log).unwrap();
    let balance = Pairing::from_nodes(nodes(&log, &folded)).unwrap();
    assert_eq!(balance.around(log[10].seq), Ok((true, true)));
    assert_eq!(balance.around(log[12].seq), Ok((true, false)));
    let error = balance.around(log[11].seq).unwrap_err();
    assert_eq!(error.to_string(), "tool-pairing balance: surface seq 11 not found");
}

#[test]
fn signed_reasoning_and_odd_text_return_untouched_c110_c23() {
    let signature = "ab+/".repeat(1024) + "==";
    let content = format!(
        r#"{{"type":"reasoning","text":"a \r\n","signature":"{signature}"}}, {},
        {{"type":"reasoning","text":"\ud83c","signature":"B"}},{},{{"type":"text","text":"\udff7\ud83c \ud83c\udff7 "}}"#,
        call_block("x"),
        call_block("y"),
    );
    let data = format!(
        r#"{{"turn":1,"step":1,"message": {{"id":"a","role":"assistant","source":{{"kind":"model","provider":"p","model":"m","replayState":{{"\udc00":1.0}}}},"content":[{content}]}} }}"#
    );
    let mut log = Vec::new();
    extend(&mut log, &[("assistant/message", &data)]);
    let from = data.find(r#"{"id""#).unwrap();
    let found = derive(&log).unwrap();
    assert_eq!(std::str::from_utf8(&found[0]).unwrap(), &data[from..data.len() - 2]);
}

#[test]
fn depth_in_a_message_costs_no_stack() {
    const DEPTH: usize = 200_000;
    let deep = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    std::thread::Builder::new()
        .stack_size(96 << 10)
        .spawn(move || {
            let mut log = Vec::new();
            extend(&mut log, &[("tool/result", &result_data(1, 1, "c", "x").replace("\"x\"", &deep))]);
            let mut rewritten = log[0].clone();
            rewritten.seq = Seq::new(1).unwrap();
            rewritten.body.surface_op = Some(SurfaceOp::Replace { start: Seq::ZERO, end: Seq::ZERO });
            rewritten.body.source_event_seqs = Some(vec![Seq::ZERO]);
            log.push(rewritten);
            assert_eq!(surface(&log), [1]);
            assert_eq!(derive(&log).unwrap().len(), 1);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_rewrite_whose_original_cannot_be_read_is_refused_unless_it_was_admitted_before() {
    let mut log = Vec::new();
    extend(&mut log, &[("tool/result", &result_data(1, 1, "c", "x")), ("tool/result", &result_data(1, 1, "c", "y"))]);
    log[1].body.surface_op = Some(SurfaceOp::Replace { start: Seq::ZERO, end: Seq::ZERO });
    log[1].body.source_event_seqs = Some(vec![Seq::ZERO]);
    let mut surface = Surface::from_events(&log[..1]).unwrap().0;
    let before = surface.clone();
    let error = surface.apply(&log[1], &|_| Original::Missing).unwrap_err();
    assert!(error.to_string().contains("could not be read"), "{error}");
    assert_eq!(surface, before);
    surface.apply(&log[1], &admitted).unwrap();
    assert_eq!(seqs(surface.nodes()), [1]);
}

proptest! {
    #[test]
    fn the_batch_surface_is_the_stepwise_surface_and_a_refusal_changes_nothing(log in any_log(40)) {
        let mut surface = Surface::default();
        let mut generation = 0;
        for (index, event) in log.iter().enumerate() {
            let before = surface.clone();
            match surface.apply(event, &in_log(&log)) {
                Ok(change) => generation += u64::from(matches!(change, Change::Replaced(_))),
                Err(error) => {
                    prop_assert_eq!(&surface, &before);
                    let fault = Surface::from_events(&log).unwrap_err();
                    prop_assert_eq!((fault.index, fault.error), (index, error));
                    return Ok(());
                }
            }
            prop_assert_eq!(surface.replace_generation(), generation);
            prop_assert_eq!(surface.next_seq().get(), index as u64 + 1);
        }
        prop_assert_eq!(Surface::from_events(&log).map(|folded| folded.0), Ok(surface));
    }

    #[test]
    fn messages_depend_on_the_nodes_only(log in any_log(40)) {
        let derived = derive(&log);
        if let Ok((surface, _)) = Surface::from_events(&log) {
            let one_by_one: Result<Vec<_>, _> = nodes(&log, &surface).map(message).collect();
            match one_by_one {
                Ok(found) => prop_assert_eq!(derived, Ok(found.into_iter().flatten().collect())),
                Err(error) => prop_assert_eq!(derived, Err(messages::MessagesError::NoMessage(error))),
            }
            let _ = Pairing::from_nodes(nodes(&log, &surface));
        } else {
            prop_assert!(derived.is_err());
        }
    }

    #[test]
    fn a_restore_takes_what_the_surface_takes_and_keeps_the_events(log in any_log(30)) {
        let mut seed = Seed::default();
        for event in &log {
            let text = line::encode(event);
            if seed.push(json::parse(&text).unwrap().root()).is_err() {
                break;
            }
        }
        let taken = seed.events().len();
        prop_assert_eq!(seed.events(), &log[..taken]);
        let (events, surface) = seed.into_parts();
        prop_assert_eq!(Surface::from_events(&events).map(|folded| folded.0), Ok(surface));
    }
}
