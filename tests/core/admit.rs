//! The profiles of append, against the vectors, the failure cases and by laws.

use proptest::prelude::*;
use quipu::model::json::{self, Value};
use quipu::model::{Event, Profile, Seq, SurfaceOp};
use quipu::replay::Tail;
use quipu::replay::admit::{Admission, Arrival, Refusal, Report, reads_payload};
use quipu::replay::line::{self, Draft};
use quipu::replay::messages::derive;
use quipu::replay::repair::{closers, closers_of};
use quipu::replay::seed::Seed;
use quipu::replay::surface::{Original, Surface, admitted, in_log};
use quipu::replay::vocabulary::check_readable;

use crate::logs::{
    any_log, assistant_data, call_block, event, events_of, extend, healthy, open, raw_cases, result_data,
};

fn missing(_: Seq) -> Original {
    Original::Missing
}

fn rules(reports: &[Report]) -> Vec<&'static str> {
    reports.iter().map(|report| report.breach.rule()).collect()
}

/// What `dsh` reports, and what `dsh-strict` refuses, when these follow a log.
fn follow(log: &[Event], more: &[(&str, &str)]) -> (Vec<Report>, Option<Refusal>) {
    let mut state = Admission::default();
    assert_eq!(state.admit(Profile::DshStrict, log, &missing), Ok(Vec::new()));
    let mut whole = log.to_vec();
    extend(&mut whole, more);
    let (mut dsh, mut strict) = (state.clone(), state.clone());
    let refusal = strict.admit(Profile::DshStrict, &whole[log.len()..], &in_log(log)).err();
    assert!(refusal.is_none() || strict == state, "a refusal changes nothing");
    (dsh.admit(Profile::Dsh, &whole[log.len()..], &in_log(log)).unwrap(), refusal)
}

fn refused(profile: Profile, log: &[Event], more: &[(&str, &str)]) -> (u64, String, &'static str) {
    let mut state = Admission::default();
    state.admit(profile, log, &missing).unwrap();
    let before = state.clone();
    let mut whole = log.to_vec();
    extend(&mut whole, more);
    let refusal = state.admit(profile, &whole[log.len()..], &in_log(log)).unwrap_err();
    assert_eq!(state, before, "a refusal changes nothing");
    (refusal.seq.get(), refusal.violation.field(), refusal.violation.rule())
}

/// Whether the reference stores all batches and opens the log afterwards; unknown types aside, which are stored.
fn opens(expected: &serde_json::Value) -> bool {
    expected["results"].as_array().unwrap().iter().all(|result| {
        let unknown = result["error"].as_str().is_some_and(|error| error.contains("unknown to this harness"));
        result["ok"] == true || unknown
    })
}

#[test]
fn store_vectors_are_admitted_exactly_when_the_reference_can_open_them() {
    for case in raw_cases("validate.json", Some("store")) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let created = doc.root().get("create").and_then(Value::as_bool) == Some(true);
        let batches: Vec<_> = doc.root().get("batches").unwrap().items().collect();
        if !created || doc.root().get("header").is_some() || batches.iter().all(|batch| batch.items().count() == 0) {
            continue;
        }
        let (mut state, mut log) = (Admission::default(), Vec::new());
        let mut admit = |batch: &Value<'_, '_>| {
            let events = batch.items().map(|object| Draft::read(object).ok()?.into_event()).collect::<Option<Vec<_>>>();
            events.is_some_and(|events| {
                let admitted = state.admit(Profile::Dsh, &events, &in_log(&log)).is_ok();
                log.extend(events);
                admitted
            })
        };
        let all = batches.iter().all(&mut admit);
        assert_eq!(all, opens(&case.expected), "{}", case.name);
    }
}

#[test]
fn surface_vectors_are_admitted_exactly_when_a_restore_accepts_them() {
    for case in raw_cases("surface.json", None) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let objects = doc.root().get("events").unwrap();
        let (mut state, mut log) = (Admission::default(), Vec::new());
        let refused = objects.items().position(|object| {
            let event = Draft::read(object).ok().and_then(Draft::into_event);
            let admitted = event.is_some_and(|event| {
                let admitted = state.admit(Profile::Dsh, std::slice::from_ref(&event), &in_log(&log)).is_ok();
                log.push(event);
                admitted
            });
            !admitted
        });
        assert_eq!(refused.map(|at| at as u64), case.expected["seedAtIndex"].as_u64(), "{}", case.name);
    }
}

#[test]
fn reconstruction_vectors_recorded_from_a_real_host_break_no_nesting_but_one() {
    for case in raw_cases("request_reconstruction.json", None) {
        let doc = json::parse(case.input.as_bytes()).unwrap();
        let events = events_of(doc.root().get("events").unwrap());
        let mut state = Admission::default();
        let reports = state.admit(Profile::Dsh, &events, &missing).unwrap();
        // This recording rewrites a result between turns, which the reference's own companion forbids (1.7).
        let expected: &[&str] = if case.name == "result-rewrite" { &["outside-bracket"] } else { &[] };
        assert_eq!(rules(&reports), expected, "{}", case.name);
        let strict = Admission::default().admit(Profile::DshStrict, &events, &missing);
        assert_eq!(strict.is_ok(), expected.is_empty(), "{}", case.name);
        assert_eq!(Admission::from_events(&events), Ok(state), "{}: profiles decide, they do not fold", case.name);
    }
}

#[test]
fn the_closers_of_a_killed_host_pass_the_strict_door_c01() {
    let log = open();
    let mut state = Admission::default();
    assert_eq!(state.admit(Profile::DshStrict, &log, &missing), Ok(Vec::new()));
    let closers = closers_of(state.tail());
    assert_eq!(state.admit(Profile::DshStrict, &closers, &in_log(&log)), Ok(Vec::new()));
    assert!(state.tail().is_balanced());
}

#[test]
fn a_turn_that_starts_over_open_calls_is_said_c01() {
    let (reports, refusal) = follow(&open(), &[("turn/start", r#"{"turn":3}"#)]);
    assert_eq!(rules(&reports), ["nested-turn", "unanswered-call"]);
    assert_eq!(reports[0].to_string(), "event at seq 14: turn 3 starts while turn 2 is open");
    let refusal = refusal.unwrap();
    assert_eq!((refusal.seq.get(), refusal.violation.rule()), (14, "nested-turn"));
}

#[test]
fn a_reused_id_in_a_later_turn_is_fine_c04() {
    let mut more = Vec::new();
    for turn in 2..4 {
        let place = format!(r#"{{"turn":{turn},"step":1}}"#);
        more.extend([
            ("turn/start", format!(r#"{{"turn":{turn}}}"#)),
            ("step/start", place.clone()),
            ("assistant/message", assistant_data(turn, 1, &call_block("c1"))),
            ("tool/call", format!(r#"{{"turn":{turn},"step":1,"callId":"c1"}}"#)),
            ("tool/result", result_data(turn, 1, "c1", "done")),
            ("step/end", place),
            ("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#)),
        ]);
    }
    let more: Vec<_> = more.iter().map(|(kind, data)| (*kind, data.as_str())).collect();
    assert_eq!(follow(&healthy(), &more), (Vec::new(), None));
}

#[test]
fn orphan_results_and_calls_are_reported_or_refused_by_id_c08() {
    let orphan = result_data(2, 1, "zz", "");
    let (reports, refusal) = follow(&open(), &[("tool/result", &orphan)]);
    assert_eq!(rules(&reports), ["orphan-result"]);
    let refusal = refusal.unwrap();
    assert_eq!(refusal.to_string(), "event at seq 14: no call with id \"zz\" waits for a result");
    assert_eq!(refusal.violation.field(), "data.message.source.callId");

    let result = result_data(2, 1, "ca", "");
    let (reports, refusal) = follow(&open(), &[("tool/result", &result), ("tool/result", &result)]);
    assert_eq!(rules(&reports), ["orphan-result"]);
    assert_eq!(refusal.unwrap().seq.get(), 15);

    let call = r#"{"turn":2,"step":1,"callId":"zz"}"#;
    let (reports, refusal) = follow(&open(), &[("tool/call", call)]);
    assert_eq!(rules(&reports), ["call-not-announced"]);
    assert_eq!(refusal.unwrap().violation.field(), "data.callId");
}

#[test]
fn an_id_announced_twice_is_reported_or_refused_c10() {
    let twice = assistant_data(2, 1, &[call_block("d"), call_block("d")].join(","));
    let (reports, refusal) = follow(&open()[..12], &[("assistant/message", &twice)]);
    assert_eq!(rules(&reports), ["announced-twice"]);
    assert_eq!(refusal.unwrap().violation.field(), "data.message.content");
}

#[test]
fn every_breach_of_nesting_has_its_name() {
    let step = r#"{"turn":2,"step":1}"#;
    let nameless = assistant_data(2, 1, r#"{"type":"tool-call","id":""}"#);
    let unstarted = result_data(2, 1, "cb", "");
    let cases: [(usize, &str, &str, &[&str]); 14] = [
        (8, "turn/end", r#"{"turn":1,"reason":{"kind":"completed"}}"#, &["outside-bracket"]),
        (8, "step/end", step, &["outside-bracket", "outside-bracket"]),
        (8, "turn/start", r#"{"turn":3}"#, &["numbering"]),
        (8, "todo/write", r#"{"todos":[]}"#, &["outside-bracket"]),
        (9, "step/start", r#"{"turn":2,"step":2}"#, &["numbering"]),
        (9, "step/start", r#"{"turn":1,"step":1}"#, &["bracket-mismatch"]),
        (10, "step/start", r#"{"turn":2,"step":2}"#, &["nested-step"]),
        (10, "turn/end", r#"{"turn":2,"reason":{"kind":"blocked"}}"#, &["step-left-open"]),
        (11, "assistant/chunk", r#"{"turn":2,"step":7}"#, &["bracket-mismatch"]),
        (11, "assistant/chunk", "null", &["bracket-mismatch", "bracket-mismatch"]),
        (12, "assistant/message", &nameless, &["call-without-id"]),
        (14, "step/end", step, &["unanswered-call"]),
        (14, "tool/call", r#"{"turn":2,"step":1,"callId":"ca"}"#, &["started-twice"]),
        (14, "tool/result", &unstarted, &["result-without-call"]),
    ];
    for (at, kind, data, expected) in cases {
        let (reports, refusal) = follow(&open()[..at], &[(kind, data)]);
        assert_eq!(rules(&reports), expected, "{kind} {data}");
        assert_eq!(refusal.unwrap().violation.rule(), expected[0], "{kind} {data}");
    }
}

#[test]
fn dsh_refuses_by_seq_field_and_rule_what_a_later_read_would_refuse() {
    for (kind, data, field, rule) in [
        ("request/header-delta", "{}", "type", "retired-vocabulary"),
        ("mode/set", "{}", "type", "retired-vocabulary"),
        ("request/header", r#"{"reason":"fallback"}"#, "type", "retired-vocabulary"),
        ("request/header", r#"{"header":{"config":{"provider":"p"}}}"#, "data.header.config", "header-shape"),
        ("user/message", r#"{"id":"","role":"user"}"#, "data.id", "message-shape"),
        ("user/message", r#"{"id":"u","role":"assistant"}"#, "data.role", "message-shape"),
        ("assistant/message", r#"{"message":{"role":"assistant"}}"#, "data.message.id", "message-shape"),
        ("turn/end", r#"{"turn":0,"reason":{"kind":"completed"}}"#, "data", "turn-bracket"),
        ("turn/end", r#"{"turn":1,"reason":{"kind":"completed"},"x":1}"#, "data", "turn-bracket"),
        ("turn/start", r#"{"turn":0}"#, "data", "turn-bracket"),
        ("x/y", "{", "data", "json"),
    ] {
        assert_eq!(refused(Profile::Dsh, &open(), &[(kind, data)]), (14, field.to_owned(), rule), "{kind} {data}");
    }
    assert_eq!(refused(Profile::Raw, &open(), &[("x/y", "{")]).2, "json");
}

#[test]
fn one_bad_event_refuses_its_whole_batch_and_the_good_ones_before_it() {
    let message = r#"{"id":"u","role":"user","source":{"kind":"user"},"content":[]}"#;
    let bad = [("user/message", message), ("turn/start", r#"{"turn":3}"#), ("user/message", "{}")];
    assert_eq!(refused(Profile::Dsh, &open(), &bad).0, 16);
}

#[test]
fn a_gap_is_refused_under_every_profile() {
    for profile in [Profile::Raw, Profile::Dsh, Profile::DshStrict] {
        let mut state = Admission::default();
        let refusal = state.admit(profile, &healthy()[1..], &missing).unwrap_err();
        assert_eq!((refusal.seq.get(), refusal.violation.rule()), (1, "contiguity"));
    }
}

#[test]
fn a_rewritten_result_asks_the_caller_for_its_original() {
    let mut log = open();
    extend(
        &mut log,
        &[("tool/result", &result_data(2, 1, "ca", "long")), ("tool/result", &result_data(2, 1, "ca", ""))],
    );
    log[15].body.surface_op = Some(SurfaceOp::Replace { start: log[14].seq, end: log[14].seq });
    log[15].body.source_event_seqs = Some(vec![log[14].seq]);
    let mut state = Admission::from_events(&log[..15]).unwrap();
    let before = state.clone();
    for profile in [Profile::Raw, Profile::Dsh] {
        assert_eq!(state.admit(profile, &log[15..], &missing).unwrap_err().violation.rule(), "surface");
        assert_eq!(state, before, "a failed look-up is no fault of the log");
    }
    let (mut trusting, mut batch) = (state.clone(), Admission::default());
    assert_eq!(state.admit(Profile::DshStrict, &log[15..], &in_log(&log[..15])), Ok(Vec::new()));
    assert_eq!(trusting.admit(Profile::Raw, &log[15..], &admitted), Ok(Vec::new()));
    batch.admit(Profile::Dsh, &log, &missing).unwrap();
    assert_eq!((&trusting, &batch), (&state, &state), "originals inside the batch are found there");
}

#[test]
fn a_raw_log_keeps_where_its_surface_broke() {
    let mut log = healthy();
    extend(&mut log, &[("user/message", "{}"), ("tool/result", "{}")]);
    log[8].body.surface_op = None;
    let state = Admission::from_events(&log).unwrap();
    assert_eq!(state.surface_fault().map(|(seq, _)| seq), Some(log[8].seq));
    assert_eq!(state.next_seq().get(), 10);
    assert_eq!(state.surface().nodes().len(), 2);
}

/// What of a random log a profile lets in, event by event, with the seqs made contiguous again.
fn let_in(profile: Profile, log: Vec<Event>) -> (Vec<Event>, Admission, Vec<Report>) {
    let (mut state, mut taken, mut reports) = (Admission::default(), Vec::new(), Vec::new());
    for event in log {
        let event = Event { seq: state.next_seq(), ..event };
        let before = state.clone();
        let admitted = state.admit(profile, std::slice::from_ref(&event), &in_log(&taken));
        match admitted {
            Ok(found) => {
                reports.extend(found);
                taken.push(event);
            }
            Err(refusal) => {
                assert_eq!(refusal.seq, event.seq);
                assert!(!refusal.violation.field().is_empty() && !refusal.violation.rule().is_empty());
                assert_eq!(state, before, "a refusal changes nothing");
            }
        }
    }
    (taken, state, reports)
}

fn profile() -> impl Strategy<Value = Profile> {
    prop::sample::select(vec![Profile::Raw, Profile::Dsh, Profile::DshStrict])
}

proptest! {
    #[test]
    fn a_batch_is_admitted_like_its_events_one_by_one(profile in profile(), log in any_log(60)) {
        let (taken, state, reports) = let_in(profile, log);
        let mut batch = Admission::default();
        prop_assert_eq!(batch.admit(profile, &taken, &missing), Ok(reports));
        prop_assert_eq!(&batch, &state);
        prop_assert_eq!(batch.tail(), &Tail::from_events(&taken));
        prop_assert_eq!(Admission::from_events(&taken), Ok(batch));
    }

    #[test]
    fn a_refused_batch_leaves_no_trace(profile in profile(), log in any_log(60), at in 0..60usize) {
        let at = at.min(log.len());
        let mut state = Admission::default();
        if state.admit(profile, &log[..at], &missing).is_ok() {
            let before = state.clone();
            if state.admit(profile, &log[at..], &in_log(&log[..at])).is_err() {
                prop_assert_eq!(state, before);
            }
        }
    }

    #[test]
    fn a_restore_accepts_what_dsh_admits_and_the_closers_after_it(log in any_log(60)) {
        let (mut taken, mut state, _) = let_in(Profile::Dsh, log);
        let found = closers(&taken);
        prop_assert!(state.admit(Profile::Dsh, &found, &in_log(&taken)).is_ok());
        taken.extend(found);
        let mut seed = Seed::default();
        for event in &taken {
            let text = line::encode(event);
            let doc = json::parse(&text).unwrap();
            prop_assert_eq!(seed.push(doc.root()), Ok(()));
        }
        prop_assert_eq!(&Surface::from_events(&taken).unwrap().0, state.surface());
        prop_assert!(derive(&taken).is_ok());
        prop_assert!(state.tail().is_balanced() && state.surface_fault().is_none());
    }

    #[test]
    fn the_strict_door_leaves_nothing_to_report_and_takes_the_closers(log in any_log(80)) {
        let (taken, mut state, reports) = let_in(Profile::DshStrict, log);
        prop_assert!(reports.is_empty());
        prop_assert_eq!(Admission::default().admit(Profile::Dsh, &taken, &missing), Ok(Vec::new()));
        prop_assert_eq!(state.admit(Profile::DshStrict, &closers(&taken), &in_log(&taken)), Ok(Vec::new()));
    }

    #[test]
    fn raw_takes_every_contiguous_log_of_json(log in any_log(60)) {
        prop_assert_eq!(Admission::default().admit(Profile::Raw, &log, &missing), Ok(Vec::new()));
    }

    #[test]
    fn no_bytes_in_data_make_a_fold_panic(data in prop::collection::vec(any::<u8>(), 0..40), kind in 0..5usize) {
        let kind = ["turn/start", "assistant/message", "tool/result", "request/header", "assistant/chunk"][kind];
        let mut log = vec![event(crate::logs::HEALTHY[0])];
        extend(&mut log, &[(kind, "null")]);
        log[1].body.data = data.into();
        let _ = (Admission::from_events(&log), closers(&log), derive(&log), Surface::from_events(&log));
        let _ = quipu::replay::request::dispatches(&log);
        let _ = quipu::replay::request::reconstruct(&log, Seq::new(2).unwrap());
    }
}

#[test]
fn derived_views_refuse_unknown_types_by_name_unless_they_may_be_skipped() {
    let mut log = Vec::new();
    extend(&mut log, &[("x/y", "{}"), ("turn/start", "{}")]);
    let none = |_: &str| false;
    let error = check_readable(&log[0], &none).unwrap_err();
    assert_eq!(error.to_string(), "event type `x/y` at seq 0 is unknown and not marked ignorable");
    assert_eq!(check_readable(&log[0], &|kind| kind == "x/y"), Ok(()), "registered as log-only");
    assert_eq!(check_readable(&log[1], &none), Ok(()));
    log[0].body.ignorable = true;
    assert_eq!(check_readable(&log[0], &none), Ok(()));
}

proptest! {
    #[test]
    fn a_door_that_is_handed_parsed_payloads_decides_the_same(log in any_log(40), cut in 0..30usize, dsh: bool) {
        let profile = if dsh { Profile::Dsh } else { Profile::DshStrict };
        let (taken, mut whole, _) = let_in(profile, log.clone());
        let mut parsed = whole.clone();
        let batch: Vec<Event> = log.iter().skip(cut).take(5).cloned().zip(taken.len() as u64..).map(|(event, seq)| {
            Event { seq: Seq::new(seq).unwrap(), ..event }
        }).collect();
        let docs: Vec<_> = batch.iter().map(|event| {
            json::parse(&event.body.data).ok().filter(|_| reads_payload(&event.body.kind))
        }).collect();
        prop_assume!(batch.iter().all(|event| json::parse(&event.body.data).is_ok()));
        let arrivals = batch.iter().zip(&docs);
        let arrivals: Vec<_> =
            arrivals.map(|(event, doc)| Arrival { seq: event.seq, body: &event.body, doc: doc.as_ref() }).collect();
        let expected = whole.admit(profile, &batch, &in_log(&taken));
        prop_assert_eq!(parsed.admit_new(profile, &arrivals, &in_log(&taken)), expected);
        prop_assert_eq!(&parsed, &whole);
    }

    #[test]
    fn a_state_that_is_rebuilt_from_the_log_counts_every_breach_that_was_reported(log in any_log(60)) {
        let (taken, state, reports) = let_in(Profile::Dsh, log);
        let mut again = Admission::default();
        for event in &taken {
            again.apply(event, &admitted).unwrap();
        }
        prop_assert_eq!(again.breaches(), reports.len() as u64);
        prop_assert_eq!(again, state);
    }
}
