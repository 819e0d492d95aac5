//! The model calls of a log: which chunks each has, how it ended, what it used (reference 5.2, 5.3, 5.4).
//!
//! An attempt is one model call inside a step. A failed one leaves its chunks in the log and nothing on the surface,
//! so this is the only fold that sees it; a call that sent nothing and was not retried leaves no mark at all. Invariant: every `assistant/chunk` belongs to exactly one attempt, and
//! usage is counted once per attempt however often the stream and the message repeat it.

use super::chunk::Chunk;
use super::request::Dispatches;
use super::vocabulary::{ASSISTANT_CHUNK, ASSISTANT_MESSAGE, LLM_RETRY, STEP_END, STEP_START, TURN_END, TURN_START};
use crate::model::json::{self, Value};
use crate::model::{Event, Seq, SurfaceOp};

/// One model call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The turn, as far as the log says.
    pub turn: Option<i64>,
    /// The step.
    pub step: Option<i64>,
    /// Its number inside the step, from 1.
    pub number: u32,
    /// Its first event: a chunk, or what ended a call that sent none.
    pub first_seq: Seq,
    /// Its last event.
    pub last_seq: Seq,
    /// Its first chunk; the request is what the log says before it (reference 4.2).
    pub first_chunk_seq: Option<Seq>,
    /// How many chunks it sent.
    pub chunk_count: u64,
    /// The `kind` of its last finish chunk.
    pub finish: Option<String>,
    /// Tokens, from its message if that says so, else from its last usage chunk.
    pub usage: Option<AttemptUsage>,
    /// How it ended.
    pub outcome: Outcome,
}

/// Tokens of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptUsage {
    /// The counts.
    pub tokens: TokenUsage,
    /// The event that states them.
    pub source_seq: Seq,
}

/// Token counts; they are disjoint, so input excludes what a cache served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input read from a cache.
    pub cache_read: u64,
    /// Input written to a cache.
    pub cache_write: u64,
    /// Reasoning tokens.
    pub reasoning: u64,
}

impl TokenUsage {
    /// Reads a `usage` object; what is absent or no count is 0.
    pub fn read(usage: Value<'_, '_>) -> Self {
        let count = |name| usage.get(name).and_then(Value::as_int53).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        Self {
            input: count("inputTokens"),
            output: count("outputTokens"),
            cache_read: count("cacheReadTokens"),
            cache_write: count("cacheWriteTokens"),
            reasoning: count("reasoningTokens"),
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing has ended it.
    Open,
    /// Its message is in the log.
    Committed {
        /// The message.
        message_seq: Seq,
    },
    /// It was cut. The message holds what was kept, if anything was.
    Interrupted {
        /// The message.
        message_seq: Option<Seq>,
    },
    /// It failed and another attempt was scheduled.
    Retried,
    /// It failed for good.
    Failed,
}

impl Outcome {
    /// Whether it left a message for the model to see.
    pub fn is_committed(self) -> bool {
        matches!(self, Self::Committed { .. } | Self::Interrupted { message_seq: Some(_) })
    }
}

/// Token usage of a log or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Of attempts that left a message.
    pub committed: TokenUsage,
    /// Of those that failed, were retried, were cut without a message, or are open.
    pub uncommitted: TokenUsage,
}

impl UsageTotals {
    /// Sums the attempts that begin at or after `from`.
    ///
    /// With a child's seed length as `from` this is the child's own usage, and the sum over a family counts no
    /// attempt twice.
    pub fn since(from: Seq, attempts: &[Attempt]) -> Self {
        let mut totals = Self::default();
        for attempt in attempts.iter().filter(|attempt| attempt.first_seq >= from) {
            let Some(usage) = attempt.usage else { continue };
            let sum = if attempt.outcome.is_committed() { &mut totals.committed } else { &mut totals.uncommitted };
            sum.add(usage.tokens);
        }
        totals
    }
}

/// The state of the fold. Grows by one entry per attempt. May begin at any turn or step bracket of a log.
///
/// Laws: feeding events one by one equals feeding them at once; no event is an error; the attempts with chunks begin
/// exactly at the dispatch boundaries of [`Dispatches`].
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    all: Vec<Attempt>,
    dispatches: Dispatches,
    is_open: bool,
    number: u32,
    place: (Option<i64>, Option<i64>),
}

impl Attempts {
    /// Folds one event.
    pub fn apply(&mut self, event: &Event) {
        let is_dispatched = self.dispatches.apply(event).is_some();
        let kind = &*event.body.kind;
        let is_chunk = kind == ASSISTANT_CHUNK;
        let is_message = kind == ASSISTANT_MESSAGE && event.body.surface_op == Some(SurfaceOp::Append);
        let is_bracket = is_bracket(kind);
        if !(is_chunk || is_message || is_bracket || kind == LLM_RETRY) {
            return;
        }
        // A payload that cannot be read still is a chunk of some attempt.
        let doc = json::parse(&event.body.data).ok();
        let data = doc.as_ref().map(json::Doc::root);
        if is_bracket {
            self.close();
            self.number = 0;
            self.place = place(data, if kind == STEP_START { self.place } else { (None, None) });
            return;
        }
        if is_dispatched {
            self.close();
        }
        let attempt = self.current(event.seq, place(data, self.place));
        attempt.last_seq = event.seq;
        if is_chunk {
            attempt.chunk(event.seq, data);
        } else {
            if is_message {
                attempt.commit(event.seq, data);
            } else {
                attempt.outcome = Outcome::Retried;
            }
            self.is_open = false;
        }
    }

    /// The attempts so far, in log order.
    pub fn all(&self) -> &[Attempt] {
        &self.all
    }

    fn current(&mut self, seq: Seq, place: (Option<i64>, Option<i64>)) -> &mut Attempt {
        if !self.is_open {
            self.is_open = true;
            self.number += 1;
            self.all.push(Attempt::new(seq, place, self.number));
        }
        let last = self.all.len() - 1;
        &mut self.all[last]
    }

    /// Ends an attempt that something else has followed without a message.
    fn close(&mut self) {
        if std::mem::take(&mut self.is_open)
            && let Some(attempt) = self.all.last_mut()
        {
            let has_failed = matches!(attempt.finish.as_deref(), Some("error" | "aborted"));
            attempt.outcome = if has_failed { Outcome::Failed } else { Outcome::Interrupted { message_seq: None } };
        }
    }
}

/// Whether attempts can be folded from an event of this type on, without what came before it.
pub fn is_bracket(kind: &str) -> bool {
    matches!(kind, TURN_START | TURN_END | STEP_START | STEP_END)
}

/// The search for the attempt that an event belongs to. It is fed from the last bracket ([`is_bracket`]) at or before
/// the event on, and costs what that step costs.
#[derive(Clone, Debug)]
pub struct AttemptSearch {
    seq: Seq,
    attempts: Attempts,
}

impl AttemptSearch {
    /// A search for the attempt of this event.
    pub fn new(seq: Seq) -> Self {
        Self { seq, attempts: Attempts::default() }
    }

    /// Takes the next event; says whether it wants another.
    pub fn apply(&mut self, event: &Event) -> bool {
        self.attempts.apply(event);
        event.seq <= self.seq || !is_bracket(&event.body.kind)
    }

    /// The attempt, once no more events are wanted or none are left; `None` if the event is part of none.
    pub fn attempt(&self) -> Option<&Attempt> {
        let candidate = self.attempts.all.iter().rev().find(|attempt| attempt.first_seq <= self.seq)?;
        (self.seq <= candidate.last_seq).then_some(candidate)
    }
}

fn place(data: Option<Value<'_, '_>>, open: (Option<i64>, Option<i64>)) -> (Option<i64>, Option<i64>) {
    let read = |name, open| data.and_then(|data| data.get(name)).map_or(open, Value::as_int53);
    (read("turn", open.0), read("step", open.1))
}

impl Attempt {
    fn new(seq: Seq, (turn, step): (Option<i64>, Option<i64>), number: u32) -> Self {
        Self {
            turn,
            step,
            number,
            first_seq: seq,
            last_seq: seq,
            first_chunk_seq: None,
            chunk_count: 0,
            finish: None,
            usage: None,
            outcome: Outcome::Open,
        }
    }

    fn chunk(&mut self, seq: Seq, data: Option<Value<'_, '_>>) {
        self.first_chunk_seq.get_or_insert(seq);
        self.chunk_count += 1;
        match data.and_then(|data| data.get("chunk")).map(Chunk::read) {
            Some(Ok(Chunk::Usage(usage))) => self.count(seq, usage),
            Some(Ok(Chunk::Finish { reason, .. })) => {
                self.finish = reason.get("kind").and_then(Value::to_text);
            }
            _ => {}
        }
    }

    fn commit(&mut self, seq: Seq, data: Option<Value<'_, '_>>) {
        let get = |name| data.and_then(|data| data.get(name));
        if let Some(usage) = get("usage").filter(|usage| usage.is_object()) {
            self.count(seq, usage);
        }
        let is_cut = get("interrupted").and_then(Value::as_bool) == Some(true);
        let cut = Outcome::Interrupted { message_seq: Some(seq) };
        self.outcome = if is_cut { cut } else { Outcome::Committed { message_seq: seq } };
    }

    fn count(&mut self, source_seq: Seq, usage: Value<'_, '_>) {
        self.usage = Some(AttemptUsage { tokens: TokenUsage::read(usage), source_seq });
    }
}
