//! What is open at the end of a log: turn, step, tool calls without a result.
//!
//! The automaton of the reference's crash repair (section 6), fed one event at a time. It never refuses an event: a
//! log that breaks the nesting of turns, steps and calls still has one well-defined tail. It does not judge the
//! nesting, and it knows nothing of the surface.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Ordinal;
use super::checkpoint::{In, Out};
use super::vocabulary::{ASSISTANT_MESSAGE, STEP_END, STEP_START, TOOL_CALL, TOOL_RESULT, TURN_END, TURN_START};
use crate::model::json::{self, Value};
use crate::model::{Event, NewEvent, Seq};

/// The id of a tool call, as the content of its JSON string in ECMAScript's form; lone surrogates stay escapes.
///
/// Two ids are equal exactly when their strings are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(Arc<str>);

impl CallId {
    /// The id that a value is: a string that is not empty.
    ///
    /// The reference takes any string. An empty one makes its repair write a result that its own readers refuse (2.3),
    /// so that here it names no call.
    pub fn read(value: Value<'_, '_>) -> Option<Self> {
        value.as_text().filter(|text| !text.is_empty())?;
        let quoted = json::canonical(value);
        quoted.get(1..quoted.len().checked_sub(1)?).map(|content| Self(content.into()))
    }

    /// What stands between the quotes of the JSON string.
    pub fn escaped(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for CallId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A turn or a step that was opened and not closed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Open {
    /// Its number.
    pub number: Ordinal,
    /// The event that opened it.
    pub since: Seq,
}

/// A tool call that an assistant message announced and no result answered.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingCall {
    /// The call.
    pub id: CallId,
    /// The step that the announcing message names.
    pub step: Ordinal,
    /// The last `tool/call` of that id since it was announced: the tool had started.
    pub call_seq: Option<Seq>,
}

/// The tail automaton (reference 6).
///
/// Law: [`Tail::from_events`] equals applying the events one by one, in any split. Growth: constant, plus one entry per
/// unanswered call of the open turn; `turn/start`, `turn/end` and `step/end` clear those.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tail {
    turn: Option<Open>,
    step: Option<Open>,
    pending: Pending,
    last: Option<(Seq, i64)>,
}

impl Tail {
    /// The tail of a log, or of a part of it.
    pub fn from_events<'e>(events: impl IntoIterator<Item = &'e Event>) -> Self {
        let mut tail = Self::default();
        events.into_iter().for_each(|event| tail.apply(event));
        tail
    }

    /// Takes the next event.
    pub fn apply(&mut self, event: &Event) {
        let doc = if is_relevant(&event.body.kind) { json::parse(&event.body.data).ok() } else { None };
        self.apply_parsed(event.seq, &event.body, doc.as_ref().map(json::Doc::root));
    }

    /// The same, for a caller that has parsed the payload.
    pub(super) fn apply_parsed(&mut self, seq: Seq, body: &NewEvent, data: Option<Value<'_, '_>>) {
        self.last = Some((seq, body.time_ms));
        let open = |name| Some(Open { number: Ordinal::read(data, name), since: seq });
        match &*body.kind {
            TURN_START => *self = Self { turn: open("turn"), last: self.last, ..Self::default() },
            TURN_END => *self = Self { last: self.last, ..Self::default() },
            STEP_START => self.step = open("step"),
            STEP_END => {
                self.step = None;
                self.pending = Pending::default();
            }
            ASSISTANT_MESSAGE => {
                let step = Ordinal::read(data, "step");
                announced(data).filter_map(CallId::read).for_each(|id| self.pending.announce(id, step));
            }
            TOOL_CALL => {
                let id = data.and_then(|data| data.get("callId")).and_then(CallId::read);
                if let Some(id) = id {
                    self.pending.start(&id, seq);
                }
            }
            TOOL_RESULT => {
                if let Some(id) = answered(data) {
                    self.pending.answer(&id);
                }
            }
            _ => {}
        }
    }

    /// The turn that is open.
    pub fn open_turn(&self) -> Option<Open> {
        self.turn
    }

    /// The step that is open. A step may be open outside any turn.
    pub fn open_step(&self) -> Option<Open> {
        self.step
    }

    /// The calls without a result, in the order in which they were first announced.
    pub fn pending(&self) -> impl Iterator<Item = &PendingCall> {
        self.pending.by_age.values()
    }

    /// The pending call of that id.
    pub fn pending_call(&self, id: &CallId) -> Option<&PendingCall> {
        self.pending.by_age.get(self.pending.ages.get(id)?)
    }

    /// Whether no turn is open: nothing to repair, and a legal end for a fork.
    pub fn is_balanced(&self) -> bool {
        self.turn.is_none()
    }

    /// Seq and time of the last event.
    pub fn last(&self) -> Option<(Seq, i64)> {
        self.last
    }

    pub(super) fn save(&self, out: &mut Out) {
        out.option(self.turn, Open::save);
        out.option(self.step, Open::save);
        out.number(self.pending.by_age.len() as u64);
        for call in self.pending() {
            out.text(call.id.escaped());
            call.step.save(out);
            out.option(call.call_seq, |out, seq| out.number(seq.get()));
        }
        out.option(self.last, |out, (seq, time_ms)| {
            out.number(seq.get());
            out.signed(time_ms);
        });
    }

    pub(super) fn load(from: &mut In<'_>) -> Option<Self> {
        let (turn, step) = (from.option(Open::load)?, from.option(Open::load)?);
        let mut pending = Pending::default();
        for _ in 0..from.number()? {
            let id = CallId(from.text()?.into());
            pending.announce(id.clone(), Ordinal::load(from)?);
            if let Some(seq) = from.option(In::seq)? {
                pending.start(&id, seq);
            }
        }
        let last = from.option(|from| Some((from.seq()?, from.signed()?)))?;
        Some(Self { turn, step, pending, last })
    }
}

impl Open {
    fn save(out: &mut Out, open: Self) {
        open.number.save(out);
        out.number(open.since.get());
    }

    fn load(from: &mut In<'_>) -> Option<Self> {
        Some(Self { number: Ordinal::load(from)?, since: from.seq()? })
    }
}

fn is_relevant(kind: &str) -> bool {
    matches!(kind, TURN_START | TURN_END | STEP_START | STEP_END | ASSISTANT_MESSAGE | TOOL_CALL | TOOL_RESULT)
}

/// The `id` members of the top-level tool-call blocks of an `assistant/message`; a block without one gives nothing.
pub(super) fn announced<'d, 't>(data: Option<Value<'d, 't>>) -> impl Iterator<Item = Value<'d, 't>> {
    tool_calls(data).filter_map(|block| block.get("id"))
}

/// The top-level tool-call blocks of an `assistant/message`.
pub(super) fn tool_calls<'d, 't>(data: Option<Value<'d, 't>>) -> impl Iterator<Item = Value<'d, 't>> {
    let content = data.and_then(|data| data.get("message")).and_then(|message| message.get("content"));
    let is_call = |block: &Value<'d, 't>| block.get("type").and_then(Value::as_text).is_some_and(|t| t.is("tool-call"));
    content.into_iter().flat_map(Value::items).filter(is_call)
}

/// The call that a `tool/result` answers, by its message's source.
pub(super) fn answered(data: Option<Value<'_, '_>>) -> Option<CallId> {
    CallId::read(data?.get("message")?.get("source")?.get("callId")?)
}

/// An insertion-ordered map: announcing an id again keeps its place and forgets that it had started.
#[derive(Clone, Debug, Default)]
struct Pending {
    ages: BTreeMap<CallId, u64>,
    by_age: BTreeMap<u64, PendingCall>,
}

impl PartialEq for Pending {
    /// Ages only order; two maps with the same calls in the same order are the same.
    fn eq(&self, other: &Self) -> bool {
        self.by_age.values().eq(other.by_age.values())
    }
}

impl Pending {
    fn announce(&mut self, id: CallId, step: Ordinal) {
        let next = self.by_age.last_key_value().map_or(0, |(age, _)| age + 1);
        let age = *self.ages.entry(id.clone()).or_insert(next);
        self.by_age.insert(age, PendingCall { id, step, call_seq: None });
    }

    fn start(&mut self, id: &CallId, seq: Seq) {
        if let Some(call) = self.ages.get(id).and_then(|age| self.by_age.get_mut(age)) {
            call.call_seq = Some(seq);
        }
    }

    fn answer(&mut self, id: &CallId) {
        if let Some(age) = self.ages.remove(id) {
            self.by_age.remove(&age);
        }
    }
}
