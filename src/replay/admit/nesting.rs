//! How turns, steps and tool calls nest, and every way in which an event can break that.
//!
//! The rules of the reference's invariant companion (1.7), which its core does not enforce, and the pairing of calls
//! with results inside a step. A breach is a finding, never a verdict: the profile decides whether it is reported or
//! refused. Beside the tail, the state is the two numbers that say which turn and step come next.

use crate::model::json::Value;
use crate::model::{NewEvent, SurfaceOp};
use crate::replay::Ordinal;
use crate::replay::checkpoint::{In, Out};
use crate::replay::tail::{CallId, Tail, answered, tool_calls};
use crate::replay::vocabulary::{
    ASSISTANT_CHUNK, ASSISTANT_MESSAGE, REQUEST_CONTEXT, REQUEST_HEADER, STEP_END, STEP_START, TODO_WRITE, TOOL_CALL,
    TOOL_RESULT, TURN_END, TURN_START,
};

/// One way in which an event breaks the nesting.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Breach {
    /// A turn starts inside another.
    #[error("turn {found} starts while turn {open} is open")]
    NestedTurn {
        /// The turn that starts.
        found: Ordinal,
        /// The turn that is open.
        open: Ordinal,
    },
    /// A turn or step out of its numbering: turns count from 1, steps from 1 in each turn.
    #[error("`{what}` is {found} where {expected} comes next")]
    Number {
        /// `turn` or `step`.
        what: &'static str,
        /// The number that comes next.
        expected: Ordinal,
        /// The number found.
        found: Ordinal,
    },
    /// A step starts inside another.
    #[error("step {found} starts while step {open} is open")]
    NestedStep {
        /// The step that starts.
        found: Ordinal,
        /// The step that is open.
        open: Ordinal,
    },
    /// A turn ends while a step is open.
    #[error("the turn ends while step {open} is open")]
    StepLeftOpen {
        /// The step.
        open: Ordinal,
    },
    /// Something that belongs into a turn or step stands outside any.
    #[error("stands outside any {0}")]
    Outside(&'static str),
    /// An event names another turn or step than the one that is open.
    #[error("`{what}` is {found} while {open} is open")]
    Mismatch {
        /// `turn` or `step`.
        what: &'static str,
        /// The number named.
        found: Ordinal,
        /// The number that is open.
        open: Ordinal,
    },
    /// A bracket closes over calls that have no result: a provider refuses such a history.
    #[error("{count} tool calls have no result, the first is \"{first}\"")]
    Unanswered {
        /// How many.
        count: usize,
        /// The first of them.
        first: CallId,
    },
    /// A call is announced again before its result.
    #[error("call id \"{0}\" is announced while it waits for its result")]
    AnnouncedTwice(CallId),
    /// A tool-call block whose id is not a string, or empty.
    #[error("a tool-call block has no id")]
    CallWithoutId,
    /// A call starts that no message announced, or whose result is already there.
    #[error("call id \"{0}\" is not one that waits for its result")]
    CallNotAnnounced(CallId),
    /// A call starts twice.
    #[error("call id \"{0}\" was started before")]
    StartedTwice(CallId),
    /// A result for a call that no message announced, or that has one.
    #[error("no call with id \"{0}\" waits for a result")]
    OrphanResult(CallId),
    /// A result for a call that never started, and that does not say so.
    #[error("call id \"{0}\" was never started, and the result does not say `TOOL_NOT_STARTED`")]
    ResultWithoutCall(CallId),
}

impl Breach {
    /// A name for the rule, for replies and metrics; these names stay.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::NestedTurn { .. } => "nested-turn",
            Self::Number { .. } => "numbering",
            Self::NestedStep { .. } => "nested-step",
            Self::StepLeftOpen { .. } => "step-left-open",
            Self::Outside(_) => "outside-bracket",
            Self::Mismatch { .. } => "bracket-mismatch",
            Self::Unanswered { .. } => "unanswered-call",
            Self::AnnouncedTwice(_) => "announced-twice",
            Self::CallWithoutId => "call-without-id",
            Self::CallNotAnnounced(_) => "call-not-announced",
            Self::StartedTwice(_) => "started-twice",
            Self::OrphanResult(_) => "orphan-result",
            Self::ResultWithoutCall(_) => "result-without-call",
        }
    }

    /// The member of `data` that it is about.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NestedTurn { .. } | Self::Number { what: "turn", .. } | Self::Mismatch { what: "turn", .. } => {
                "data.turn"
            }
            Self::NestedStep { .. } | Self::StepLeftOpen { .. } | Self::Number { .. } | Self::Mismatch { .. } => {
                "data.step"
            }
            Self::Outside(_) | Self::Unanswered { .. } => "type",
            Self::AnnouncedTwice(_) | Self::CallWithoutId => "data.message.content",
            Self::CallNotAnnounced(_) | Self::StartedTwice(_) => "data.callId",
            Self::OrphanResult(_) | Self::ResultWithoutCall(_) => "data.message.source.callId",
        }
    }
}

/// Which turn and which step come next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Nesting {
    last_turn: Ordinal,
    last_step: Ordinal,
}

impl Nesting {
    pub(super) fn save(self, out: &mut Out) {
        self.last_turn.save(out);
        self.last_step.save(out);
    }

    pub(super) fn load(from: &mut In<'_>) -> Option<Self> {
        Some(Self { last_turn: Ordinal::load(from)?, last_step: Ordinal::load(from)? })
    }

    pub(super) fn apply(&mut self, kind: &str, data: Option<Value<'_, '_>>) {
        match kind {
            TURN_START => *self = Self { last_turn: Ordinal::read(data, "turn"), last_step: Ordinal::ABSENT },
            STEP_START => self.last_step = Ordinal::read(data, "step"),
            _ => {}
        }
    }

    /// What an event would break if it came after `tail`.
    pub(super) fn check(&self, tail: &Tail, body: &NewEvent, data: Option<Value<'_, '_>>) -> Vec<Breach> {
        let mut check = Check { tail, data, breaches: Vec::new() };
        match &*body.kind {
            TURN_START => check.turn_start(self.last_turn.following()),
            TURN_END => check.turn_end(),
            STEP_START => check.step_start(self.last_step.following()),
            STEP_END => {
                check.in_step();
                check.unanswered();
            }
            ASSISTANT_CHUNK => check.in_step(),
            ASSISTANT_MESSAGE => {
                check.in_step();
                check.announces();
            }
            TOOL_CALL => {
                check.in_step();
                check.starts();
            }
            TOOL_RESULT if body.surface_op == Some(SurfaceOp::Append) => {
                check.in_step();
                check.answers();
            }
            TOOL_RESULT | TODO_WRITE | REQUEST_HEADER | REQUEST_CONTEXT => check.in_any_turn(),
            _ => {}
        }
        check.breaches
    }
}

struct Check<'c, 'd, 't> {
    tail: &'c Tail,
    data: Option<Value<'d, 't>>,
    breaches: Vec<Breach>,
}

impl<'d, 't> Check<'_, 'd, 't> {
    fn get(&self, name: &str) -> Option<Value<'d, 't>> {
        self.data.and_then(|data| data.get(name))
    }

    fn number(&self, name: &str) -> Ordinal {
        Ordinal::read(self.data, name)
    }

    fn breach(&mut self, found: bool, breach: Breach) {
        if found {
            self.breaches.push(breach);
        }
    }

    fn turn_start(&mut self, expected: Ordinal) {
        let found = self.number("turn");
        if let Some(open) = self.tail.open_turn() {
            self.breaches.push(Breach::NestedTurn { found, open: open.number });
            self.unanswered();
        }
        self.breach(found != expected, Breach::Number { what: "turn", expected, found });
    }

    fn turn_end(&mut self) {
        self.in_turn();
        if let Some(step) = self.tail.open_step() {
            self.breaches.push(Breach::StepLeftOpen { open: step.number });
        }
        self.unanswered();
    }

    fn step_start(&mut self, expected: Ordinal) {
        self.in_turn();
        let found = self.number("step");
        if let Some(open) = self.tail.open_step() {
            self.breaches.push(Breach::NestedStep { found, open: open.number });
        }
        self.breach(found != expected, Breach::Number { what: "step", expected, found });
    }

    fn in_any_turn(&mut self) {
        self.breach(self.tail.open_turn().is_none(), Breach::Outside("turn"));
    }

    fn in_turn(&mut self) {
        self.in_any_turn();
        if let Some(open) = self.tail.open_turn() {
            self.names("turn", open.number);
        }
    }

    fn in_step(&mut self) {
        self.in_turn();
        match self.tail.open_step() {
            Some(open) => self.names("step", open.number),
            None => self.breaches.push(Breach::Outside("step")),
        }
    }

    fn names(&mut self, what: &'static str, open: Ordinal) {
        let found = self.number(what);
        self.breach(found != open, Breach::Mismatch { what, found, open });
    }

    fn unanswered(&mut self) {
        let mut pending = self.tail.pending();
        if let Some(first) = pending.next() {
            self.breaches.push(Breach::Unanswered { count: 1 + pending.count(), first: first.id.clone() });
        }
    }

    fn announces(&mut self) {
        let mut seen = std::collections::BTreeSet::new();
        for block in tool_calls(self.data) {
            match block.get("id").and_then(CallId::read) {
                None => self.breaches.push(Breach::CallWithoutId),
                Some(id) if self.tail.pending_call(&id).is_some() || seen.contains(&id) => {
                    self.breaches.push(Breach::AnnouncedTwice(id));
                }
                Some(id) => drop(seen.insert(id)),
            }
        }
    }

    fn starts(&mut self) {
        let Some(id) = self.get("callId").and_then(CallId::read) else {
            return self.breaches.push(Breach::CallWithoutId);
        };
        match self.tail.pending_call(&id) {
            None => self.breaches.push(Breach::CallNotAnnounced(id)),
            Some(call) if call.call_seq.is_some() => self.breaches.push(Breach::StartedTwice(id)),
            Some(_) => {}
        }
    }

    fn answers(&mut self) {
        let Some(id) = answered(self.data) else {
            return self.breaches.push(Breach::CallWithoutId);
        };
        let code = self.get("error").and_then(|error| error.get("code")).and_then(Value::as_text);
        let says_so = code.is_some_and(|code| code.is("TOOL_NOT_STARTED"));
        match self.tail.pending_call(&id) {
            None => self.breaches.push(Breach::OrphanResult(id)),
            Some(call) if call.call_seq.is_none() && !says_so => self.breaches.push(Breach::ResultWithoutCall(id)),
            Some(_) => {}
        }
    }
}
