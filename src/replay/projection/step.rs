//! One assistant step on the screen: what streams, what settles it, what a retry takes back (reference 5.5).
//!
//! Slots are keyed by block index and shown in numeric order, unlike the assembler's first-seen order: a display
//! follows the stream, the assembler follows the model. Nothing that a chunk says is an error here.

use std::collections::BTreeMap;

use super::block::DisplayBlock;
use super::{Anchor, Boundary, Node, NodeBody};
use crate::model::json::Value;
use crate::model::{Event, Seq};
use crate::replay::chunk::{BlockKind, Chunk, Index};
use crate::replay::text::is_blank;

/// An assistant step as a display shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNode {
    /// The turn.
    pub turn: i64,
    /// The step.
    pub step: i64,
    /// Where it stands.
    pub status: StepStatus,
    /// What it shows, in order.
    pub blocks: Vec<DisplayBlock>,
    /// When it became visible, settled or was interrupted.
    pub time_ms: i64,
    /// Token usage as JSON text.
    pub usage: Option<String>,
    /// Id of the final message as JSON text.
    pub message_id: Option<String>,
    /// Set once a final message exists.
    pub timing: Option<StepTiming>,
}

/// Where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStatus {
    /// Its stream goes on.
    Running,
    /// Its message is in the log.
    Settled,
    /// It ended without a message, or with one that says it was cut.
    Interrupted,
}

/// The times of a settled step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTiming {
    /// Its start, unless the window begins later.
    pub start_ms: Option<i64>,
    /// The first token of its first attempt; a retry does not take it back.
    pub first_token_ms: Option<i64>,
    /// Its final message.
    pub completed_ms: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    start_ms: Option<i64>,
    first_token_ms: Option<i64>,
    attempt: Attempt,
}

/// What a retry takes back.
#[derive(Clone, Debug, Default)]
struct Attempt {
    slots: BTreeMap<Index, DisplayBlock>,
    usage: Option<String>,
    shown: Option<(Seq, i64)>,
    settled: Option<Settled>,
}

#[derive(Clone, Debug)]
struct Settled {
    seq: Seq,
    interrupted: bool,
    blocks: Vec<DisplayBlock>,
    message_id: Option<String>,
    timing: StepTiming,
}

impl Step {
    pub(super) fn start(&mut self, time_ms: i64) {
        self.start_ms = Some(time_ms);
    }

    pub(super) fn retry(&mut self) {
        self.attempt = Attempt::default();
    }

    pub(super) fn chunk(&mut self, event: &Event, chunk: &Chunk<'_, '_>) {
        if chunk.is_token() {
            self.first_token_ms.get_or_insert(event.body.time_ms);
        }
        self.attempt.chunk(chunk);
        // Only the slot that the chunk names can have become visible.
        let slot = chunk.index().and_then(|index| self.attempt.slots.get(&index));
        if slot.is_some_and(DisplayBlock::is_visible) {
            self.attempt.shown.get_or_insert((event.seq, event.body.time_ms));
        }
    }

    pub(super) fn settle(&mut self, event: &Event, data: Value<'_, '_>) {
        let message = data.get("message");
        let content = message.and_then(|message| message.get("content"));
        self.attempt.usage = data.get("usage").map(|usage| usage.raw().to_owned());
        self.attempt.settled = Some(Settled {
            seq: event.seq,
            interrupted: data.get("interrupted").and_then(Value::as_bool) == Some(true),
            blocks: content.into_iter().flat_map(Value::items).map(DisplayBlock::complete).collect(),
            message_id: message.and_then(|message| message.get("id")).map(|id| id.raw().to_owned()),
            timing: StepTiming {
                start_ms: self.start_ms,
                first_token_ms: self.first_token_ms,
                completed_ms: event.body.time_ms,
            },
        });
    }

    /// The node, if there is anything to show; `end` is the end of the step, or else of its turn.
    pub(super) fn node(&self, (turn, step): (i64, i64), end: Option<Boundary>) -> Option<Node> {
        let attempt = &self.attempt;
        if let Some(settled) = &attempt.settled {
            let status = if settled.interrupted { StepStatus::Interrupted } else { StepStatus::Settled };
            let body = StepNode {
                turn,
                step,
                status,
                blocks: settled.blocks.clone(),
                time_ms: settled.timing.completed_ms,
                usage: attempt.usage.clone(),
                message_id: settled.message_id.clone(),
                timing: Some(settled.timing),
            };
            // A cut step shows its calls, since no tool node may ever follow.
            let shows = |block: &DisplayBlock| block.is_visible() || (settled.interrupted && block.is_call());
            let is_visible = settled.blocks.iter().any(shows);
            return Some(Node { anchor: Anchor::at(settled.seq), is_visible, body: NodeBody::Step(body) });
        }
        let (anchor, time_ms, status) = match end {
            Some(end) if attempt.has_evidence() => (Anchor::before(end.seq, 9), end.time_ms, StepStatus::Interrupted),
            Some(_) => return None,
            None => {
                let is_visible = attempt.slots.values().any(DisplayBlock::is_visible);
                let (seq, time_ms) = attempt.shown.filter(|_| is_visible)?;
                (Anchor::at(seq), time_ms, StepStatus::Running)
            }
        };
        let body = StepNode {
            turn,
            step,
            status,
            blocks: attempt.slots.values().cloned().collect(),
            time_ms,
            usage: attempt.usage.clone(),
            message_id: None,
            timing: None,
        };
        Some(Node { anchor, is_visible: true, body: NodeBody::Step(body) })
    }
}

impl Attempt {
    fn has_evidence(&self) -> bool {
        self.slots.values().any(|block| block.is_visible() || block.is_call())
    }

    /// The slot of that index, emptied first if it shows another kind.
    fn slot(&mut self, index: Index, kind: &BlockKind) -> &mut DisplayBlock {
        let slot = self.slots.entry(index).or_insert_with(|| DisplayBlock::empty(kind));
        if !slot.is_of(kind) {
            *slot = DisplayBlock::empty(kind);
        }
        slot
    }

    fn chunk(&mut self, chunk: &Chunk<'_, '_>) {
        match chunk {
            Chunk::BlockStart { index, kind } => {
                self.slots.insert(*index, DisplayBlock::empty(kind));
            }
            Chunk::TextDelta { index, kind, text } => {
                if let DisplayBlock::Text(passage) | DisplayBlock::Reasoning(passage) = self.slot(*index, kind) {
                    passage.escaped.push_str(text.raw());
                    passage.has_ink |= !is_blank(*text);
                }
            }
            Chunk::CallDelta { index, id, name, arguments } => {
                let slot = self.slot(*index, &BlockKind::ToolCall);
                if let DisplayBlock::Call { call_id, name: shown, arguments: all } = slot {
                    if call_id.is_empty() {
                        id.raw().clone_into(call_id);
                    }
                    if let Some(name) = name {
                        name.raw().clone_into(shown);
                    }
                    all.push_str(arguments.raw());
                }
            }
            Chunk::BlockEnd { index, block } => {
                self.slots.insert(*index, DisplayBlock::complete(*block));
            }
            Chunk::Usage(usage) => self.usage = Some(usage.raw().to_owned()),
            Chunk::Finish { .. } => {}
        }
    }
}
