//! Failure cases that others have lived through, by the ids of the collection they come from: what is right, and the test
//! that holds it. The cases about tool pairing, streaming, encoding, numbers, fork, compaction, history, usage and headers
//! are all here; those that nothing else tests are tested below.

use std::path::Path;

use quipu::model::json::{self, JsonErrorKind};
use quipu::model::{Event, Limits, NewEvent, Profile, Seq, SurfaceOp};
use quipu::replay::admit::Admission;
use quipu::replay::history::{PageRequest, page};
use quipu::replay::line;
use quipu::replay::messages::derive;
use quipu::replay::repair::closers;
use quipu::replay::stats::Stats;
use quipu::replay::surface::in_log;
use quipu::replay::trace::trace;

use crate::logs::{body, event_of, extend, healthy, open, result_data};

/// Id, what is right, and where it is tested (`file::test`).
pub(crate) type Case = (&'static str, &'static str, &'static [&'static str]);

const CASES: [Case; 32] = [
    (
        "C01",
        "closing a killed turn gives every call its result; results are never invented inside a log, and a turn that starts over open calls is said",
        &[
            "core/repair::a_killed_tool_call_gets_exactly_its_closers_c01",
            "core/admit::the_closers_of_a_killed_host_pass_the_strict_door_c01",
            "core/admit::a_turn_that_starts_over_open_calls_is_said_c01",
            "it/views::balanced_views_close_an_open_turn_and_write_nothing",
        ],
    ),
    (
        "C04",
        "calls are paired inside their turn: a reused id has its own result, or one closer that cites its own call",
        &[
            "core/repair::a_reused_call_id_is_paired_inside_its_turn_only_c04",
            "core/admit::a_reused_id_in_a_later_turn_is_fine_c04",
        ],
    ),
    (
        "C06",
        "a finished sibling keeps its result, in log order; only the other call is closed",
        &["core/repair::a_finished_sibling_keeps_its_result_c06"],
    ),
    (
        "C08",
        "an orphan result or call is reported by id, or refused by the strict profile; a view says that the pairing is broken",
        &[
            "core/admit::orphan_results_and_calls_are_reported_or_refused_by_id_c08",
            "it/cases::what_is_balanced_has_a_result_for_each_call_or_is_said_to_be_broken_c08_c10",
            "core/surface::an_orphan_result_is_reported_by_the_balance_c08",
            "it/views::broken_nesting_is_reported_and_counted_or_refused_by_the_strict_profile",
        ],
    ),
    (
        "C10",
        "an id announced twice in one message is reported or refused, and has one closer",
        &[
            "core/repair::an_id_announced_twice_in_one_message_has_one_closer_c10",
            "core/admit::an_id_announced_twice_is_reported_or_refused_c10",
            "it/cases::what_is_balanced_has_a_result_for_each_call_or_is_said_to_be_broken_c08_c10",
        ],
    ),
    (
        "C11",
        "chunks of a cut stream stay in log and history; no message is invented",
        &["core/repair::orphan_chunks_get_no_message_c11"],
    ),
    (
        "C13",
        "an empty assistant message is a node and no message; its usage counts; blocks of empty text are content",
        &[
            "core/surface::empty_content_is_a_node_without_a_message_and_empty_blocks_are_content_c13",
            "core/cases::an_empty_message_counts_for_usage_c13",
        ],
    ),
    (
        "C15",
        "a repeated append is confirmed, other bytes conflict with the first seq that differs, never two copies",
        &[
            "it/append::a_repetition_with_the_same_bytes_is_confirmed_wherever_it_stands",
            "it/append::other_bytes_are_a_conflict_with_the_head_and_the_first_seq_that_differs",
        ],
    ),
    (
        "C16",
        "after an answer that was lost the same batch is success, whoever stored it",
        &[
            "it/durability::an_append_whose_client_went_away_is_wholly_there_and_leaves_no_hole",
            "it/append::the_same_batch_from_many_hands_is_stored_once",
        ],
    ),
    (
        "C21",
        "an event is one line whatever its text says",
        &["core/cases::an_event_is_one_line_whatever_its_text_c21_c25"],
    ),
    (
        "C23",
        "lone surrogates are stored and come back as they were sent, also in keys, ids and headers",
        &[
            "core/json::lone_surrogates_and_odd_numbers_pass_the_door",
            "core/repair::lone_surrogates_in_call_ids_survive_into_closers_c23",
            "core/request::lone_surrogates_in_a_header_survive_its_canonical_form_c23",
            "core/surface::signed_reasoning_and_odd_text_return_untouched_c110_c23",
        ],
    ),
    (
        "C25",
        "raw line separators are text; of two faults the first is named by its place, then the second",
        &[
            "core/cases::an_event_is_one_line_whatever_its_text_c21_c25",
            "core/cases::of_two_faults_each_is_named_in_its_turn_c25",
        ],
    ),
    (
        "C27",
        "large integers keep their digits, and values that a double cannot tell apart stay apart",
        &["core/cases::numbers_keep_their_spelling_or_are_refused_c27_c29"],
    ),
    (
        "C29",
        "a number comes back as it was spelled, or is refused: negative zero, and what no double holds",
        &[
            "core/cases::numbers_keep_their_spelling_or_are_refused_c27_c29",
            "core/json::the_door_names_the_reason_of_each_refusal",
        ],
    ),
    (
        "C36",
        "length and depth cost no stack",
        &[
            "core/json::depth_costs_no_stack",
            "core/surface::depth_in_a_message_costs_no_stack",
            "core/lineage::a_line_of_a_hundred_thousand_forks_costs_no_stack",
            "core/cases::a_chain_of_ten_thousand_replacements_is_traced_c36",
        ],
    ),
    (
        "C37",
        "a result that comes after a fork goes to the parent only",
        &["core/fork::a_late_tool_result_stays_with_the_parent_c37"],
    ),
    (
        "C39",
        "a child has every event of the prefix, whatever its type",
        &["core/fork::a_fork_copies_every_event_whatever_it_is_c39"],
    ),
    ("C43", "a child is exactly as long as it says", &["core/fork::a_seed_is_whole_however_long_the_log_is_c43"]),
    (
        "C45",
        "ranges of replacements are positions, not seqs",
        &["core/surface::a_second_compaction_keeps_the_kept_tail_of_the_first_c45"],
    ),
    (
        "C47",
        "what was hidden stays hidden; a replacement cites all that it hides",
        &["core/surface::what_was_hidden_never_returns_c47"],
    ),
    (
        "C49",
        "a replacement stands where its range stood",
        &["core/surface::a_replacement_stands_where_its_range_stood_c49"],
    ),
    (
        "C51",
        "pages tile the log for every size and bound; results whose call is on an older page are named",
        &[
            "core/history::a_page_that_starts_among_tool_results_says_so_c51",
            "it/views::history_pages_tile_the_log_and_say_what_they_were_cut_from",
        ],
    ),
    (
        "C53",
        "a session without events is an empty success everywhere; one that was never created is not found",
        &[
            "core/history::an_empty_session_has_an_empty_page_c53",
            "it/sessions::what_is_not_there_is_not_found_and_changes_nothing",
        ],
    ),
    (
        "C56",
        "a turn that starts inside another is said or refused; a stale writer gets a conflict, never a rebase",
        &[
            "core/cases::a_stale_writer_that_numbers_anew_starts_a_turn_in_a_turn_c56",
            "it/append::of_concurrent_appenders_exactly_one_wins_each_seq",
        ],
    ),
    (
        "C65",
        "each broken order of brackets is reported or refused by its rule; a turn without steps is legal",
        &[
            "core/cases::every_wrong_order_of_brackets_has_its_rule_c65",
            "core/admit::every_breach_of_nesting_has_its_name",
        ],
    ),
    (
        "C68",
        "order is by seq whatever the clock did; closers take the last event's time; no duration wraps",
        &["core/cases::a_clock_that_jumps_back_moves_nothing_c68"],
    ),
    (
        "C70",
        "times are data: kept as sent within 53 bits, refused beyond",
        &["core/cases::absurd_times_are_kept_or_refused_c70"],
    ),
    (
        "C103",
        "usage is counted once per attempt, failed attempts apart, each figure with its event",
        &["core/stats::usage_is_counted_once_per_attempt_and_failed_attempts_apart_c103"],
    ),
    ("C105", "a child counts what it added", &["core/stats::a_fork_counts_only_what_it_added_c105"]),
    (
        "C108",
        "the last header counts, whole; every past request can be rebuilt",
        &["core/request::a_corrected_tool_list_replaces_the_bad_one_whole_c108"],
    ),
    (
        "C110",
        "signed reasoning comes back untouched",
        &["core/surface::signed_reasoning_and_odd_text_return_untouched_c110_c23"],
    ),
    (
        "C112",
        "calls to tools that are gone are data",
        &["core/request::calls_to_tools_that_the_header_no_longer_has_are_data_c112"],
    ),
];

/// All ids of the collection that are about what this crate's folds and views mean.
const IDS: [u32; 32] = [
    1, 4, 6, 8, 10, 11, 13, 15, 16, 21, 23, 25, 27, 29, 36, 37, 39, 43, 45, 47, 49, 51, 53, 56, 65, 68, 70, 103, 105,
    108, 110, 112,
];

#[test]
fn every_failure_case_has_a_rule_and_a_test() {
    check(&CASES, &IDS);
}

/// Each of these ids has its row, and each row names tests that are there.
pub(crate) fn check(cases: &[Case], ids: &[u32]) {
    let found: Vec<_> = cases.iter().map(|(id, ..)| (*id).to_owned()).collect();
    assert_eq!(found, ids.iter().map(|id| format!("C{id:02}")).collect::<Vec<_>>());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (id, right, tests) in cases {
        assert!(!right.is_empty() && !tests.is_empty(), "{id} says nothing");
        for test in *tests {
            let (file, name) = test.split_once("::").unwrap();
            let text = std::fs::read_to_string(root.join(file).with_extension("rs")).unwrap();
            assert!(text.contains(&format!("fn {name}(")), "{id}: there is no test {test}");
        }
        println!("{id}: {right}");
    }
}

fn user(text: &str) -> String {
    format!(r#"{{"id":"u","role":"user","source":{{"kind":"user"}},"content":[{{"type":"text","text":"{text}"}}]}}"#)
}

fn with_meta(number: &str) -> NewEvent {
    let data = user("x").replacen('{', &format!(r#"{{"meta":{number},"#), 1);
    body("user/message", &data)
}

#[test]
fn an_empty_message_counts_for_usage_c13() {
    let mut log = healthy();
    let blocks =
        ["", r#"{"type":"reasoning","text":""}"#, r#"{"type":"text","text":""}"#, r#"{"type":"text","text":"  \n"}"#];
    for (turn, content) in (2..).zip(blocks) {
        let place = format!(r#""turn":{turn},"step":1"#);
        let source = r#""source":{"kind":"model","provider":"p","model":"m"}"#;
        let message = format!(r#"{{"id":"a","role":"assistant",{source},"content":[{content}]}}"#);
        extend(
            &mut log,
            &[
                ("turn/start", &format!(r#"{{"turn":{turn}}}"#)),
                ("step/start", &format!("{{{place}}}")),
                (
                    "assistant/message",
                    &format!(r#"{{{place},"message":{message},"usage":{{"inputTokens":1,"outputTokens":2}}}}"#),
                ),
                ("step/end", &format!("{{{place}}}")),
                ("turn/end", &format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#)),
            ],
        );
    }
    let mut attempts = quipu::replay::attempts::Attempts::default();
    log.iter().for_each(|event| attempts.apply(event));
    let totals = quipu::replay::attempts::UsageTotals::since(Seq::new(8).unwrap(), attempts.all());
    assert_eq!((totals.committed.input, totals.committed.output), (4, 8));
    // All but the one without blocks are messages.
    assert_eq!(derive(&log).unwrap().len(), 2 + 3);
}

#[test]
fn an_event_is_one_line_whatever_its_text_c21_c25() {
    for text in
        ["a\\nb\\r\\n\\r", "\u{85}\u{2028}\u{2029}\u{feff}", "\\\"}\\n{\\\"seq\\\":999}", "\u{feff}x", "\\u2028\\u0085"]
    {
        let event = Event { seq: Seq::ZERO, body: body("user/message", &user(text)) };
        let line = line::encode(&event);
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r'), "{text}");
        let doc = json::parse(&line).unwrap();
        assert_eq!(event_of(doc.root()), Some(event.clone()), "{text}");
        assert_eq!(derive(&[event]).unwrap()[0], user(text).as_bytes());
    }
}

#[test]
fn of_two_faults_each_is_named_in_its_turn_c25() {
    let bad = |kind| body(kind, r#"{"id":"","role":7}"#);
    let mut bodies =
        vec![body("note", "1"), bad("user/message"), body("note", "\"\u{2028}\""), bad("assistant/message")];
    for at in [1, 3] {
        let batch: Vec<_> =
            (0..).filter_map(Seq::new).zip(bodies.clone()).map(|(seq, body)| Event { seq, body }).collect();
        let refusal = Admission::default().admit(Profile::Dsh, &batch, &in_log(&batch)).unwrap_err();
        assert_eq!(refusal.seq, batch[at].seq);
        bodies[at] = body("note", "2");
    }
}

#[test]
fn numbers_keep_their_spelling_or_are_refused_c27_c29() {
    let kept = [
        "9007199254740993",
        "9223372036854775807",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551617",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "0e0",
        "1E5",
        "1.0",
        "100000000000000000000.0",
        "4.435375000000022",
        "5e-324",
        "0.1",
    ];
    for number in kept {
        let event = Event { seq: Seq::ZERO, body: with_meta(number) };
        event.body.check(&Limits::default()).unwrap_or_else(|error| panic!("{number}: {error}"));
        let message = derive(&[event]).unwrap().remove(0);
        assert!(std::str::from_utf8(&message).unwrap().contains(&format!("\"meta\":{number},")), "{number}");
    }
    // What decides whether an append is a repetition are bytes, so that equal doubles are not equal events.
    assert_ne!(with_meta("18446744073709551616"), with_meta("18446744073709551617"));
    assert_ne!(with_meta("1.0"), with_meta("1"));
    for (number, kind) in [
        ("-0", JsonErrorKind::NegativeZero),
        ("-0.0", JsonErrorKind::NegativeZero),
        ("1e400", JsonErrorKind::NotFinite),
        ("-1e400", JsonErrorKind::NotFinite),
    ] {
        assert_eq!(json::check(&with_meta(number).data).unwrap_err().kind, kind, "{number}");
    }
}

#[test]
fn a_chain_of_ten_thousand_replacements_is_traced_c36() {
    let mut log: Vec<Event> = Vec::new();
    extend(&mut log, &[("user/message", &user("first"))]);
    for seq in (1..10_000).filter_map(Seq::new) {
        let before = Seq::new(seq.get() - 1).unwrap();
        let op = Some(SurfaceOp::Replace { start: before, end: before });
        let body =
            NewEvent { surface_op: op, source_event_seqs: Some(vec![before]), ..body("user/message", &user("x")) };
        log.push(Event { seq, body });
    }
    let found = trace(&log, Seq::ZERO).unwrap();
    assert_eq!(found.replacement_chain.len(), 9_999);
    assert_eq!(derive(&log).unwrap().len(), 1);
}

#[test]
fn a_stale_writer_that_numbers_anew_starts_a_turn_in_a_turn_c56() {
    let log = open();
    let mut again = log.clone();
    extend(&mut again, &[("turn/start", r#"{"turn":2}"#)]);
    for (profile, is_taken) in [(Profile::Dsh, true), (Profile::DshStrict, false)] {
        let mut state = Admission::from_events(&log).unwrap();
        match state.admit(profile, &again[log.len()..], &in_log(&again)) {
            Ok(reports) => assert!(is_taken && reports.iter().any(|report| report.breach.rule() == "nested-turn")),
            Err(refusal) => assert!(!is_taken && refusal.violation.rule() == "nested-turn"),
        }
    }
}

#[test]
fn every_wrong_order_of_brackets_has_its_rule_c65() {
    let (turn, step, user) = (("turn/start", r#"{"turn":1}"#), ("step/start", r#"{"turn":1,"step":1}"#), user("x"));
    let end = ("turn/end", r#"{"turn":1,"reason":{"kind":"blocked"}}"#);
    let orders: [(&[(&str, &str)], &str); 6] = [
        (&[step], "outside-bracket"),
        (&[turn, step, ("step/end", r#"{"turn":1,"step":1}"#), step], "numbering"),
        (&[turn, end, ("turn/start", r#"{"turn":3}"#)], "numbering"),
        (&[turn, step, ("step/end", r#"{"turn":1,"step":2}"#)], "bracket-mismatch"),
        (&[turn, step, end], "step-left-open"),
        (&[turn, step, turn], "nested-turn"),
    ];
    for (given, rule) in orders {
        let mut log = Vec::new();
        extend(&mut log, given);
        let reports = Admission::default().admit(Profile::Dsh, &log, &in_log(&log)).unwrap();
        assert!(reports.iter().any(|report| report.breach.rule() == rule), "{rule}: {reports:?}");
        let refusal = Admission::default().admit(Profile::DshStrict, &log, &in_log(&log)).unwrap_err();
        assert_eq!(refusal.seq, reports[0].seq, "{rule}");
    }
    // A message before the first step, and a turn without any, are legal.
    let mut log = Vec::new();
    extend(&mut log, &[turn, ("user/message", &user), end]);
    assert_eq!(Admission::default().admit(Profile::DshStrict, &log, &in_log(&log)), Ok(Vec::new()));
}

#[test]
fn a_clock_that_jumps_back_moves_nothing_c68() {
    let straight = open();
    let mut log = open();
    for (event, time_ms) in
        log.iter_mut().zip([1000, 1000, 5000, 5001, 400, 401, 402, 402, 9000, 9000, 9000, 8000, 7000, 6])
    {
        event.body.time_ms = time_ms;
    }
    let closed = closers(&log);
    assert!(closed.iter().all(|event| event.body.time_ms == 6));
    assert_eq!(closed.len(), closers(&straight).len());
    assert_eq!(derive(&log), derive(&straight));
    assert_eq!(page(&log, PageRequest::default()), page(&straight, PageRequest::default()));
    let mut stats = Stats::default();
    log.iter().chain(&closed).for_each(|event| stats.apply(event));
    let figures = stats.figures();
    for figure in [figures.llm_ms, figures.tool_ms, figures.ttft_ms, figures.decode_ms] {
        assert!(figure < 20_000, "a duration wrapped: {figures:?}");
    }
}

#[test]
fn absurd_times_are_kept_or_refused_c70() {
    let at = |time_ms| NewEvent { time_ms, ..body("note", "1") };
    for time_ms in [0, -1, 253_402_300_800_000, 9_007_199_254_740_991, -9_007_199_254_740_991] {
        at(time_ms).check(&Limits::default()).unwrap();
        let event = Event { seq: Seq::ZERO, body: at(time_ms) };
        let line = line::encode(&event);
        assert_eq!(event_of(json::parse(&line).unwrap().root()), Some(event));
    }
    for time_ms in [9_007_199_254_740_992, i64::MAX, i64::MIN] {
        at(time_ms).check(&Limits::default()).unwrap_err();
    }
    let mut log = open();
    log.iter_mut().for_each(|event| event.body.time_ms = -event.body.time_ms);
    extend(&mut log, &[("tool/result", &result_data(2, 1, "ca", "late"))]);
    assert_eq!(derive(&log).unwrap().len(), 5);
}
