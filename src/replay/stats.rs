//! The figures of a log: turns, steps and where the time went (reference 5.6).
//!
//! Counts what ended: a step counts when it ends, a call when its result is there. Times are differences of the
//! hosts' clocks, clamped at zero because clocks go backwards. Tokens per attempt, failed ones included, are
//! [`super::attempts`]' business.

use std::collections::BTreeMap;

use super::chunk::Chunk;
use super::vocabulary::{ASSISTANT_CHUNK, ASSISTANT_MESSAGE, STEP_END, STEP_START, TOOL_CALL, TOOL_RESULT, TURN_END};
use crate::model::Event;
use crate::model::json::{self, Value};

/// Figures of a log, in milliseconds where they are times (reference 5.6).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Turns with an ended step.
    pub turns: u64,
    /// Ended steps, cut ones included.
    pub steps: u64,
    /// From a step's start to its first message, summed.
    pub llm_ms: u64,
    /// From a call to its result, summed.
    pub tool_ms: u64,
    /// From a step's start to its first token, summed over `ttft_steps`.
    pub ttft_ms: u64,
    /// Steps with a first token and a message.
    pub ttft_steps: u64,
    /// From first token to message, summed over the steps that state their output tokens.
    pub decode_ms: u64,
    /// Output tokens of those steps; a double, since a host may write any number.
    pub decode_tokens: f64,
}

/// The state of the fold. Grows with the calls of one turn.
///
/// Laws: feeding events one by one equals feeding them at once; no event is an error.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    figures: Figures,
    counted_turn: Option<i64>,
    step: Option<OpenStep>,
    calls: BTreeMap<Vec<u8>, i64>,
}

#[derive(Clone, Copy, Debug)]
struct OpenStep {
    place: (Option<i64>, Option<i64>),
    start_ms: i64,
    first_token_ms: Option<i64>,
}

impl Stats {
    /// Folds one event.
    pub fn apply(&mut self, event: &Event) {
        let Ok(doc) = json::parse(&event.body.data) else { return };
        let (data, time_ms) = (doc.root(), event.body.time_ms);
        match &*event.body.kind {
            TURN_END => self.calls.clear(),
            STEP_START => self.step = Some(OpenStep { place: place(data), start_ms: time_ms, first_token_ms: None }),
            STEP_END => self.end_step(data),
            ASSISTANT_CHUNK => self.chunk(data, time_ms),
            ASSISTANT_MESSAGE => self.message(data, time_ms),
            TOOL_CALL => {
                if let Some(id) = text(data.get("callId")) {
                    self.calls.insert(id, time_ms);
                }
            }
            TOOL_RESULT => self.result(data, time_ms),
            _ => {}
        }
    }

    /// The figures so far.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    fn end_step(&mut self, data: Value<'_, '_>) {
        let turn = place(data).0;
        self.figures.steps += 1;
        if turn != self.counted_turn {
            self.figures.turns += 1;
            self.counted_turn = turn;
        }
        self.step = None;
    }

    fn chunk(&mut self, data: Value<'_, '_>, time_ms: i64) {
        let Some(step) = self.step.as_mut().filter(|step| step.place == place(data)) else { return };
        let chunk = data.get("chunk").map(Chunk::read);
        if chunk.is_some_and(|chunk| chunk.is_ok_and(|chunk| chunk.is_token())) {
            step.first_token_ms.get_or_insert(time_ms);
        }
    }

    fn message(&mut self, data: Value<'_, '_>, time_ms: i64) {
        let Some(step) = self.step.take_if(|step| step.place == place(data)) else { return };
        let figures = &mut self.figures;
        add(&mut figures.llm_ms, step.start_ms, time_ms);
        let Some(first_token_ms) = step.first_token_ms else { return };
        add(&mut figures.ttft_ms, step.start_ms, first_token_ms);
        figures.ttft_steps += 1;
        let tokens = data.get("usage").and_then(|usage| usage.get("outputTokens")).and_then(Value::as_f64);
        if let Some(tokens) = tokens.filter(|&tokens| tokens >= 0.0) {
            add(&mut figures.decode_ms, first_token_ms, time_ms);
            figures.decode_tokens += tokens;
        }
    }

    fn result(&mut self, data: Value<'_, '_>, time_ms: i64) {
        let call_id = data.get("message").and_then(|message| message.get("source")?.get("callId"));
        let start_ms = text(call_id).and_then(|id| self.calls.remove(&id));
        if let Some(start_ms) = start_ms {
            add(&mut self.figures.tool_ms, start_ms, time_ms);
        }
    }
}

fn place(data: Value<'_, '_>) -> (Option<i64>, Option<i64>) {
    let read = |name| data.get(name).and_then(Value::as_int53);
    (read("turn"), read("step"))
}

fn text(value: Option<Value<'_, '_>>) -> Option<Vec<u8>> {
    value.and_then(Value::as_text).map(|text| text.decode().into_owned())
}

fn add(sum: &mut u64, from_ms: i64, to_ms: i64) {
    let span = u64::try_from(to_ms.saturating_sub(from_ms)).unwrap_or(0);
    *sum = sum.saturating_add(span);
}
