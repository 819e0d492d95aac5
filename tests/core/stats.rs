//! Figures and token usage, against `stats.json`, the public cases on usage, and by laws.

use proptest::prelude::*;
use quipu::model::{Event, Seq};
use quipu::replay::attempts::{Attempt, AttemptSearch, Attempts, Outcome, TokenUsage, UsageTotals, is_bracket};
use quipu::replay::request::dispatches;
use quipu::replay::stats::{Figures, Stats};
use serde_json::{Value, json};

use crate::given::{any_log, events, log};
use crate::vectors::cases;

fn figures(events: &[Event]) -> Figures {
    let mut stats = Stats::default();
    for event in events {
        stats.apply(event);
    }
    stats.figures()
}

fn attempts(events: &[Event]) -> Attempts {
    let mut attempts = Attempts::default();
    for event in events {
        attempts.apply(event);
    }
    attempts
}

#[test]
fn logs_have_the_figures_of_the_vectors() {
    let cases = cases("stats.json", None);
    println!("stats.json: {} cases", cases.len());
    for case in cases {
        let found = figures(&events(&case["input"]["events"]));
        let found = json!({
            "turns": found.turns, "steps": found.steps, "llmMs": found.llm_ms, "toolMs": found.tool_ms,
            "ttftMs": found.ttft_ms, "ttftSteps": found.ttft_steps, "decodeMs": found.decode_ms,
            "decodeTokens": found.decode_tokens as u64,
        });
        assert_eq!(found, case["expected"], "{}", case["name"]);
    }
}

fn chunk(chunk: &Value) -> (&'static str, Value) {
    ("assistant/chunk", json!({"turn": 1, "step": 1, "chunk": chunk}))
}

fn usage(input: u64, output: u64) -> Value {
    json!({"inputTokens": input, "outputTokens": output})
}

fn message(usage: &Value) -> (&'static str, Value) {
    let source = json!({"kind": "model", "provider": "p", "model": "m"});
    let message = json!({"id": "a", "role": "assistant", "source": source, "content": []});
    ("assistant/message", json!({"turn": 1, "step": 1, "message": message, "usage": usage}))
}

fn tokens(input: u64, output: u64) -> TokenUsage {
    TokenUsage { input, output, ..TokenUsage::default() }
}

/// A stream that repeats its usage, then a step whose first attempt failed (public case C103).
fn repeating_log() -> Vec<Event> {
    log(&[
        ("turn/start", json!({"turn": 1})),
        ("step/start", json!({"turn": 1, "step": 1})),
        chunk(&json!({"type": "usage", "usage": usage(10, 5)})),
        chunk(&json!({"type": "usage", "usage": usage(10, 7)})),
        message(&usage(10, 7)),
        ("step/end", json!({"turn": 1, "step": 1})),
        ("step/start", json!({"turn": 1, "step": 1})),
        chunk(&json!({"type": "usage", "usage": usage(10, 3)})),
        chunk(&json!({"type": "finish", "reason": {"kind": "error"}})),
        ("llm/retry", json!({"retryId": "r", "turn": 1, "step": 1, "retry": 1})),
        ("llm/retry-started", json!({"retryId": "r", "turn": 1, "step": 1, "retry": 1})),
        chunk(&json!({"type": "usage", "usage": usage(10, 9)})),
        message(&usage(10, 9)),
        ("step/end", json!({"turn": 1, "step": 1})),
        ("turn/end", json!({"turn": 1})),
    ])
}

#[test]
fn usage_is_counted_once_per_attempt_and_failed_attempts_apart_c103() {
    let attempts = attempts(&repeating_log());
    let totals = UsageTotals::since(Seq::ZERO, attempts.all());
    assert_eq!(totals, UsageTotals { committed: tokens(20, 16), uncommitted: tokens(10, 3) });
    let sources: Vec<_> = attempts.all().iter().map(|a| (a.number, a.usage.unwrap().source_seq.get())).collect();
    assert_eq!(sources, [(1, 4), (1, 7), (2, 12)]);
    assert_eq!(attempts.all()[1].outcome, Outcome::Retried);
    assert_eq!(attempts.all()[1].finish.as_deref(), Some("error"));
}

#[test]
fn a_fork_counts_only_what_it_added_c105() {
    let parent = repeating_log();
    let inherited = Seq::new(parent.len() as u64).unwrap();
    let family: u64 = (0..3)
        .map(|_| {
            let mut child = parent.clone();
            let own = log(&[("step/start", json!({"turn": 2, "step": 1})), message(&usage(10, 0))]);
            child.extend(
                own.into_iter().map(|event| Event { seq: inherited.advance(event.seq.get()).unwrap(), ..event }),
            );
            UsageTotals::since(inherited, attempts(&child).all()).committed.input
        })
        .sum();
    let parent = UsageTotals::since(Seq::ZERO, attempts(&parent).all()).committed.input;
    assert_eq!((parent, family), (20, 30));
}

#[test]
fn attempts_end_as_their_step_says() {
    let step = |end: &[(&'static str, Value)]| {
        let mut given = vec![("step/start", json!({"turn": 1, "step": 1}))];
        given.extend_from_slice(end);
        attempts(&log(&given)).all().last().map(|attempt| attempt.outcome)
    };
    let end = ("step/end", json!({"turn": 1, "step": 1}));
    let text = chunk(&json!({"type": "text-delta", "index": 0, "text": "a"}));
    let error = chunk(&json!({"type": "finish", "reason": {"kind": "error"}}));
    assert_eq!(step(std::slice::from_ref(&end)), None);
    assert_eq!(step(std::slice::from_ref(&text)), Some(Outcome::Open));
    assert_eq!(step(&[text.clone(), end.clone()]), Some(Outcome::Interrupted { message_seq: None }));
    assert_eq!(step(&[text, error, end]), Some(Outcome::Failed));
    let mut cut = message(&usage(1, 1));
    cut.1["interrupted"] = json!(true);
    assert_eq!(step(&[cut]), Some(Outcome::Interrupted { message_seq: Seq::new(1) }));
}

proptest! {
    #[test]
    fn any_log_has_figures_and_every_chunk_one_attempt(log in any_log()) {
        figures(&log);
        let attempts = attempts(&log);
        let chunks = log.iter().filter(|event| &*event.body.kind == "assistant/chunk").count() as u64;
        prop_assert_eq!(attempts.all().iter().map(|attempt| attempt.chunk_count).sum::<u64>(), chunks);
        let starts: Vec<_> = attempts.all().iter().filter_map(|attempt| attempt.first_chunk_seq).collect();
        prop_assert_eq!(starts, dispatches(&log));
        prop_assert!(attempts.all().windows(2).all(|pair| pair[0].last_seq < pair[1].first_seq));
    }

    #[test]
    fn the_attempt_of_an_event_is_found_from_its_last_bracket_on(log in any_log()) {
        let attempts = attempts(&log);
        for (at, event) in log.iter().enumerate() {
            let start = log[..=at].iter().rposition(|event| is_bracket(&event.body.kind)).unwrap_or(0);
            let mut search = AttemptSearch::new(event.seq);
            for event in &log[start..] {
                if !search.apply(event) {
                    break;
                }
            }
            // A bracket that does not say where it is leaves that to what came before it.
            let placeless = |attempt: &Attempt| Attempt { turn: None, step: None, ..attempt.clone() };
            let holds = |attempt: &&Attempt| (attempt.first_seq..=attempt.last_seq).contains(&event.seq);
            let expected = attempts.all().iter().find(holds).map(placeless);
            prop_assert_eq!(search.attempt().map(placeless), expected);
        }
    }
}
