//! What a display shows of a log or of any window of it (reference 5.4, 5.5).
//!
//! [`Projection`] is fed events in log order, from any point of a log, and can be asked for its nodes at any time;
//! what it answers depends on the events alone, not on when it was asked. Invariant: no payload breaks it; what it
//! cannot read it does not show. It knows append-origin messages only, because a replacement would erase what the
//! reader saw, and it is no input to any model request.

mod block;
mod step;
mod tool;

use std::collections::{BTreeMap, BTreeSet};

pub use self::block::{DisplayBlock, Passage};
use self::step::Step;
pub use self::step::{StepNode, StepStatus, StepTiming};
use self::tool::{Retry, Tool};
pub use self::tool::{RetryAttempt, RetryState, ToolNode, ToolOutcome};
use super::chunk::Chunk;
use super::vocabulary::{
    ASSISTANT_CHUNK, ASSISTANT_MESSAGE, LLM_RETRY, LLM_RETRY_STARTED, STEP_END, STEP_START, TOOL_CALL, TOOL_RESULT,
    TURN_END, TURN_START, USER_MESSAGE,
};
use crate::model::json::{self, Value};
use crate::model::{Event, Seq, SurfaceOp};

/// The place of a node among the others: a seq, or a tenth of one for what has no event of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anchor(i64);

impl Anchor {
    pub(super) fn at(seq: Seq) -> Self {
        Self(seq.get() as i64 * 10)
    }

    fn before(seq: Seq, tenths: i64) -> Self {
        Self(seq.get() as i64 * 10 - tenths)
    }

    /// The place in tenths of a seq.
    pub fn tenths(self) -> i64 {
        self.0
    }
}

/// One thing on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its place.
    pub anchor: Anchor,
    /// Whether there is something to see; a hidden node still settles its step.
    pub is_visible: bool,
    /// What it is.
    pub body: NodeBody,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBody {
    /// A message that is not the model's.
    Message {
        /// Who it comes from.
        speaker: Speaker,
        /// Its time.
        time_ms: i64,
    },
    /// The model's part of a step.
    Step(StepNode),
    /// A chain of retries.
    Retry(Vec<RetryAttempt>),
    /// A tool call with its result.
    Tool(ToolNode),
}

/// Who a user-role message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The user, at the start of a turn.
    User,
    /// The user, into a running turn.
    Steering,
    /// A plugin, a goal, another agent.
    Context,
}

/// The end of a step or turn.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    seq: Seq,
    time_ms: i64,
}

/// A turn and, inside it, a step.
type Place = (Option<i64>, Option<i64>);

/// The state of a display.
///
/// Laws: feeding events one by one equals feeding them at once; no event is an error. Growth: what is shown, that is
/// the text of the log's steps but not of its failed attempts.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    open: Place,
    ends: BTreeMap<(i64, Option<i64>), Boundary>,
    messages: Vec<Node>,
    steps: BTreeMap<(i64, i64), Step>,
    retries: BTreeMap<Vec<u8>, Retry>,
    tools: BTreeMap<Vec<u8>, Tool>,
    next_step_inbox: Vec<Vec<u8>>,
    steering: BTreeSet<Vec<u8>>,
}

impl Projection {
    /// Folds one event.
    pub fn apply(&mut self, event: &Event) {
        let Ok(doc) = json::parse(&event.body.data) else { return };
        let data = doc.root();
        let place = self.place(data);
        let appends = event.body.surface_op == Some(SurfaceOp::Append);
        match &*event.body.kind {
            TURN_START => self.open = (place.0, None),
            TURN_END => self.end((place.0, None), event),
            STEP_START => self.start_step(place, event),
            STEP_END => self.end(place, event),
            USER_MESSAGE if appends => self.message(event, data),
            ASSISTANT_CHUNK => self.chunk(place, event, data),
            ASSISTANT_MESSAGE if appends => {
                if let Some(step) = self.step(place) {
                    step.settle(event, data);
                }
            }
            LLM_RETRY => {
                if let Some(step) = self.step(place) {
                    step.retry();
                }
                self.retry(data, |retry| retry.schedule(event.seq, place, data));
            }
            LLM_RETRY_STARTED => self.retry(data, |retry| retry.start(data)),
            TOOL_CALL => self.tool(data.get("callId"), |tool| tool.call(event, place, data)),
            TOOL_RESULT if appends => self.tool(tool::result_call_id(data), |tool| tool.result(event, place, data)),
            "agent/inbox/spliced" => self.splice(data),
            _ => {}
        }
    }

    /// The nodes, by anchor.
    pub fn nodes(&self) -> Vec<Node> {
        let mut nodes = self.messages.clone();
        nodes.extend(self.steps.iter().filter_map(|(&key, step)| {
            let end = self.end_of((Some(key.0), Some(key.1)));
            step.node(key, end)
        }));
        nodes.extend(self.retries.values().filter_map(|retry| retry.node(|place| self.end_of(place).is_some())));
        nodes.extend(self.tools.values().filter_map(|tool| tool.node(|place| self.end_of(place))));
        nodes.sort_by_key(|node| node.anchor);
        nodes
    }

    /// Where an event belongs: what its payload says, or else what is open; `null` means nowhere.
    fn place(&self, data: Value<'_, '_>) -> Place {
        let read = |name, open| data.get(name).map_or(open, Value::as_int53);
        (read("turn", self.open.0), read("step", self.open.1))
    }

    fn end_of(&self, (turn, step): Place) -> Option<Boundary> {
        let turn = turn?;
        let step_end = step.and_then(|step| self.ends.get(&(turn, Some(step))));
        step_end.or_else(|| self.ends.get(&(turn, None))).copied()
    }

    fn start_step(&mut self, place: Place, event: &Event) {
        self.open = place;
        if let Some(step) = self.step(place) {
            step.start(event.body.time_ms);
        }
    }

    fn end(&mut self, (turn, step): Place, event: &Event) {
        if let Some(turn) = turn {
            self.ends.insert((turn, step), Boundary { seq: event.seq, time_ms: event.body.time_ms });
        }
        self.open = (self.open.0.filter(|_| step.is_some()), None);
    }

    fn step(&mut self, place: Place) -> Option<&mut Step> {
        let (Some(turn), Some(step)) = place else { return None };
        Some(self.steps.entry((turn, step)).or_default())
    }

    fn chunk(&mut self, place: Place, event: &Event, data: Value<'_, '_>) {
        let chunk = data.get("chunk").and_then(|chunk| Chunk::read(chunk).ok());
        if let (Some(chunk), Some(step)) = (chunk, self.step(place)) {
            step.chunk(event, &chunk);
        }
    }

    fn message(&mut self, event: &Event, data: Value<'_, '_>) {
        let source = data.get("source").and_then(|source| source.get("kind")).and_then(Value::as_text);
        let id = data.get("id").and_then(key);
        let speaker = match source {
            Some(kind) if !kind.is("user") => Speaker::Context,
            _ if id.is_some_and(|id| self.steering.contains(&id)) => Speaker::Steering,
            _ => Speaker::User,
        };
        let body = NodeBody::Message { speaker, time_ms: event.body.time_ms };
        self.messages.push(Node { anchor: Anchor::at(event.seq), is_visible: true, body });
    }

    fn retry(&mut self, data: Value<'_, '_>, change: impl FnOnce(&mut Retry)) {
        if let Some(id) = data.get("retryId").and_then(key) {
            change(self.retries.entry(id).or_default());
        }
    }

    fn tool(&mut self, call_id: Option<Value<'_, '_>>, change: impl FnOnce(&mut Tool)) {
        let Some(call_id) = call_id else { return };
        if let Some(id) = key(call_id) {
            change(self.tools.entry(id).or_insert_with(|| Tool::new(call_id.raw())));
        }
    }

    /// Follows the queue of messages that wait for the next step: what is taken from it steers the turn.
    fn splice(&mut self, data: Value<'_, '_>) {
        let text = |name| data.get(name).and_then(Value::as_text);
        if !text("target").is_some_and(|target| target.is("next-step")) {
            return;
        }
        let count = |name| data.get(name).and_then(Value::as_int53).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let inbox = &mut self.next_step_inbox;
        let start = count("start").min(inbox.len());
        let end = start.saturating_add(count("removedCount")).min(inbox.len());
        let inserted = data.get("inserted").into_iter().flat_map(Value::items);
        let inserted = inserted.map(|message| message.get("id").and_then(key).unwrap_or_default());
        let removed = inbox.splice(start..end, inserted);
        if text("outcome").is_some_and(|outcome| outcome.is("canceled")) {
            drop(removed);
        } else {
            self.steering.extend(removed);
        }
    }
}

/// The content of a string as a key: two spellings of one string are one key.
fn key(value: Value<'_, '_>) -> Option<Vec<u8>> {
    value.as_text().map(|text| text.decode().into_owned())
}
