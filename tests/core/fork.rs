//! Fork boundaries, against `fork_core.json`, `fork_host.json`, the public cases on forks, and by laws.

use proptest::prelude::*;
use quipu::model::{Event, Header, Origin, Profile, Seq, json};
use quipu::replay::admit::Admission;
use quipu::replay::attempts::Attempts;
use quipu::replay::fork::{Birth, Cut, ForkAt, ForkError, Stem, cut};
use quipu::replay::messages;
use quipu::replay::projection::Projection;
use quipu::replay::repair::closers;
use quipu::replay::request;
use quipu::replay::surface::in_log;
use quipu::replay::tail::Tail;
use serde_json::{Value, json};

use crate::given::events;
use crate::logs::{any_log, extend, healthy, open};
use crate::vectors::cases;

fn seq(n: u64) -> Seq {
    Seq::new(n).unwrap()
}

fn child(parent: &[Event], cut: Cut) -> Vec<Event> {
    let seed = &parent[..cut.seed_length.get() as usize];
    seed.iter().cloned().chain(cut.marker(1)).collect()
}

fn header(meta: &Value) -> Header {
    let mut meta = meta.as_object().cloned().unwrap_or_default();
    meta.extend([("version".into(), json!(0)), ("id".into(), json!("SOURCE")), ("createdAt".into(), json!(1))]);
    let text = Value::from(meta).to_string();
    Header::from_json("SOURCE", json::parse(text.as_bytes()).unwrap().root()).unwrap()
}

/// The header of a child in the words of the vectors.
fn child_header(cut: Cut, parent: &Header) -> Value {
    let header = cut.header("SOURCE", parent, Birth { created_at_ms: 2, agent_preset: None });
    assert!(header.check().is_ok());
    let mut value = json!({
        "version": 0, "id": "CHILD", "parentSession": header.parent_session, "seedLength": header.seed_length,
    });
    assert!(header.origin.is_none() && header.delegation_depth.is_none() && header.agent_preset.is_none());
    if let Some(cwd) = header.cwd {
        value["cwd"] = json!(cwd);
    }
    value
}

fn check_core(case: &Value) {
    let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
    let events = events(&input["events"]);
    let at = match input.get("boundary") {
        None => ForkAt::Head,
        Some(boundary) => match boundary.as_u64().and_then(Seq::new) {
            Some(boundary) => ForkAt::Inclusive(boundary),
            // A position that is no seq cannot be asked for: the type refuses it.
            None => return assert_eq!(expected["code"], "INVALID_BOUNDARY", "{name}"),
        },
    };
    let message = expected["message"].as_str().unwrap_or_default();
    match cut(&events, at) {
        Ok(cut) => {
            let child = child(&events, cut);
            let found = json!({
                "ok": true, "boundary": cut.boundary().map(Seq::get), "seedLength": cut.seed_length.get(),
                "childLength": child.len(), "endSeedAppended": !cut.is_marked,
                "lastType": *child.last().unwrap().body.kind, "prefixEqual": true,
                "header": child_header(cut, &header(&input["meta"])),
            });
            assert_eq!(&found, expected, "{name}");
        }
        Err(ForkError::Missing { boundary, last }) => {
            assert_eq!(expected["code"], "INVALID_BOUNDARY", "{name}");
            let last = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
            let text = format!(r#"fork boundary {boundary} does not exist in session "SOURCE" (last seq: {last})"#);
            assert_eq!(message, text, "{name}");
        }
        Err(ForkError::OpenTurn { boundary, turn }) => {
            assert_eq!(expected["code"], "OPEN_TURN", "{name}");
            let text = format!(r#"fork boundary {boundary} in session "SOURCE" ends inside open turn {turn}"#);
            assert_eq!(message, text, "{name}");
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn core_forks_end_where_the_vectors_say() {
    let cases = cases("fork_core.json", None);
    // Which names exist is asked before any boundary, and not of a log.
    let is_lookup = |case: &&Value| case["input"].get("source").is_some();
    let lookups = cases.iter().filter(is_lookup);
    for case in lookups.clone() {
        let code = case["expected"]["code"].as_str().unwrap();
        assert!(code.starts_with("SESSION_"), "{}", case["name"]);
    }
    println!("fork_core.json: {} cases, {} of them about names only", cases.len(), lookups.count());
    cases.iter().filter(|case| !is_lookup(case)).for_each(check_core);
}

fn check_host(case: &Value) {
    let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
    let mut events = events(&input["events"]);
    if input["source"] == "cold" {
        let closers = closers(&events);
        events.extend(closers);
    }
    let at = input["atSeq"].as_u64().map_or(ForkAt::LastTurn, |at| ForkAt::Anchor(seq(at)));
    let found = match cut(&events, at) {
        Ok(cut) => {
            let child = child(&events, cut);
            let seed = &child[..cut.seed_length.get() as usize];
            let tail: Vec<&str> = seed.iter().skip(seed.len().saturating_sub(3)).map(|e| &*e.body.kind).collect();
            let mut meta = input.get("meta").cloned().unwrap_or_else(|| json!({}));
            meta["cwd"] = json!("/proj");
            json!({
                "ok": true, "boundary": cut.boundary().map(Seq::get), "seedLength": cut.seed_length.get(),
                "childLength": child.len(), "seedTail": tail, "header": child_header(cut, &header(&meta)),
            })
        }
        Err(error) => {
            let message = match error {
                ForkError::Incomplete { anchor } => {
                    format!(r#"session "SOURCE" has not completed the turn containing event {anchor}"#)
                }
                ForkError::NoCompletedTurn => r#"session "SOURCE" has no completed turn to fork from"#.to_owned(),
                other => panic!("{name}: {other}"),
            };
            json!({
                "ok": false, "code": "fork-unavailable", "message": message, "detailKeys": ["sessionId"],
                "childPublished": false,
            })
        }
    };
    assert_eq!(&found, expected, "{name}");
}

#[test]
fn host_forks_end_where_the_vectors_say() {
    let cases = cases("fork_host.json", None);
    let is_lookup = |case: &&Value| {
        matches!(case["expected"]["code"].as_str(), Some("session-not-found" | "workspace-attach-failed"))
    };
    let lookups = cases.iter().filter(is_lookup).count();
    println!("fork_host.json: {} cases, {lookups} of them about names only", cases.len());
    assert_eq!(lookups, 2);
    cases.iter().filter(|case| !is_lookup(case)).for_each(check_host);
}

#[test]
fn a_late_tool_result_stays_with_the_parent_c37() {
    let mut parent = open();
    let cut = cut(&parent, ForkAt::Inclusive(seq(7))).unwrap();
    let child = child(&parent, cut);
    let result = crate::logs::result_data(2, 1, "ca", "late");
    extend(&mut parent, &[("tool/result", &result)]);
    assert_eq!(child[..8], parent[..8]);
    assert_eq!((child.len(), &*child[8].body.kind), (9, "session/end-seed"));
    // The child has no call that the late result could answer, and its door says so.
    let mut late = child.clone();
    extend(&mut late, &[("tool/result", &result)]);
    let mut door = Admission::from_events(&child).unwrap();
    assert_eq!(door.tail().pending().count(), 0);
    assert!(door.clone().admit(Profile::DshStrict, &late[9..], &in_log(&late)).is_err());
    let reports = door.admit(Profile::Dsh, &late[9..], &in_log(&late)).unwrap();
    assert!(reports.iter().any(|report| report.breach.rule() == "orphan-result"), "{reports:?}");
}

#[test]
fn a_fork_copies_every_event_whatever_it_is_c39() {
    let mut parent = healthy();
    let call = crate::logs::call_block("c");
    extend(
        &mut parent,
        &[
            ("turn/start", r#"{"turn":2}"#),
            ("assistant/message", &crate::logs::assistant_data(2, 1, &call)),
            ("tool/result", &crate::logs::result_data(2, 1, "c", "out")),
            ("llm/retry", "{}"),
            ("turn/end", r#"{"turn":2,"reason":{"kind":"completed"}}"#),
            ("session/title", r#"{"title":"\ud800"}"#),
            ("plugin/marker", "1.0"),
        ],
    );
    let cut = cut(&parent, ForkAt::Head).unwrap();
    assert_eq!(cut.seed_length.get(), parent.len() as u64);
    assert_eq!(child(&parent, cut)[..parent.len()], parent[..]);
}

#[test]
fn a_seed_is_whole_however_long_the_log_is_c43() {
    let mut parent = healthy();
    let large = format!("{{\"title\":\"{}\"}}", "x".repeat(3 << 20));
    extend(&mut parent, &[("session/title", &large)]);
    while parent.len() < 5000 {
        extend(&mut parent, &[("plan/mode", "{}")]);
    }
    for at in [ForkAt::Head, ForkAt::LastTurn, ForkAt::Anchor(seq(3)), ForkAt::Inclusive(seq(4999))] {
        assert_eq!(cut(&parent, at).unwrap().seed_length.get(), 5000, "{at:?}");
    }
}

#[test]
fn the_child_inherits_the_directory_and_goes_on_with_the_preset_it_is_given() {
    let mut parent = healthy();
    extend(&mut parent, &[("agent-preset/selected", r#"{"agentPreset":"coder"}"#), ("session/end-seed", "{}")]);
    let meta = json!({"cwd": "/p", "origin": "subagent", "delegationDepth": 2, "agentPreset": "old",
        "parentSession": "grand", "seedLength": 1});
    let mut parent_header = header(&meta);
    parent_header.labels.insert("team".into(), "a".into());
    assert_eq!(parent_header.origin, Some(Origin::Subagent));
    let mut stem = Stem::default();
    for event in &parent {
        stem.apply(event);
    }
    let cut = stem.head().unwrap();
    assert!(cut.is_marked && cut.marker(1).is_none());
    let birth = Birth { created_at_ms: 9, agent_preset: stem.agent_preset().map(str::to_owned) };
    let expected = Header {
        created_at_ms: 9,
        cwd: Some("/p".into()),
        parent_session: Some("parent".into()),
        seed_length: Some(10),
        agent_preset: Some("coder".into()),
        ..Header::default()
    };
    assert_eq!(cut.header("parent", &parent_header, birth), expected);
}

#[test]
fn an_empty_log_forks_into_an_empty_child() {
    let cut = cut(&[], ForkAt::Head).unwrap();
    assert_eq!((cut.boundary(), child(&[], cut).len()), (None, 1));
}

/// What folds derive from a log.
fn derived(events: &[Event]) -> String {
    let (mut projection, mut attempts) = (Projection::default(), Attempts::default());
    for event in events {
        projection.apply(event);
        attempts.apply(event);
    }
    let messages = messages::derive(events).map_err(|error| error.to_string());
    let header = request::header::fold(events, None).map_err(|error| error.to_string());
    let pending = Tail::from_events(events).pending().count();
    format!("{messages:?} {header:?} {pending} {:?} {:?}", projection.nodes(), attempts.all())
}

proptest! {
    #[test]
    fn a_child_derives_what_its_parent_derives_at_the_boundary(parent in any_log(60), n in 0..70u64, kind in 0..4u8) {
        let at = [ForkAt::Head, ForkAt::LastTurn, ForkAt::Inclusive(seq(n)), ForkAt::Anchor(seq(n))][kind as usize];
        if let Ok(cut) = cut(&parent, at) {
            let child = child(&parent, cut);
            let seed = &parent[..cut.seed_length.get() as usize];
            prop_assert_eq!(&child[..seed.len()], seed);
            prop_assert_eq!(derived(&child), derived(seed));
            prop_assert!(Tail::from_events(&child).is_balanced());
            prop_assert_eq!(&*child.last().unwrap().body.kind, "session/end-seed");
            prop_assert!(child.iter().zip(0..).all(|(event, n)| event.seq.get() == n));
        }
    }
}
