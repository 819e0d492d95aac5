//! The surface: the ordered list of events that produce the model's messages.
//!
//! An event is appended as the last node, or takes the place of a range of nodes (reference 2.4, 3.1). Order is
//! position, never seq: after a replacement a node with a high seq stands where the range stood. What was shadowed once
//! never comes back. Payloads matter to one rule only, the rewrite of a tool result; message shapes are not checked.

mod error;
mod provenance;
mod rewrite;

use std::sync::Arc;

use super::checkpoint::{In, Out};
use super::line::{Draft, Marker, Sources};
use super::vocabulary::is_surface;
use crate::model::{Event, NewEvent, Seq, SurfaceOp};

pub use error::SurfaceError;
pub use provenance::SourcesError;
pub use rewrite::{Original, Originals, admitted, in_log, original_needed};

/// One replacement, as the fold of a complete log reports it (reference 3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The event that replaces.
    pub seq: Seq,
    /// The first node replaced.
    pub start: Seq,
    /// The last node replaced.
    pub end: Seq,
    /// All nodes replaced, in surface order.
    pub shadowed: Vec<Seq>,
    /// The position of `start`, now of `seq`.
    pub position: usize,
}

/// What one event did to the surface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    LogOnly,
    /// It became the last node.
    Appended,
    /// It took the place of others.
    Replaced(Replacement),
}

/// The current surface of a log.
///
/// Laws: the batch fold equals the stepwise fold; a refused event changes nothing; the generation moves with
/// replacements only. Growth: eight bytes per current node. An append costs the same at any length; a replacement
/// looks through the nodes once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surface {
    next: Seq,
    nodes: Vec<Seq>,
    generation: u64,
}

/// Where the fold of a whole log stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct SurfaceFault {
    /// Index of the offending event in the input.
    pub index: usize,
    /// The rule that it breaks.
    pub error: SurfaceError,
}

impl Surface {
    /// The surface of a whole log and every replacement in it; one broken rule refuses the log (reference 18.20).
    pub fn from_events(events: &[Event]) -> Result<(Self, Vec<Replacement>), SurfaceFault> {
        let (mut surface, mut replacements) = (Self::default(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            match surface.apply(event, &in_log(events)) {
                Ok(Change::Replaced(replacement)) => replacements.push(replacement),
                Ok(Change::LogOnly | Change::Appended) => {}
                Err(error) => return Err(SurfaceFault { index, error }),
            }
        }
        Ok((surface, replacements))
    }

    /// A surface that was folded before: the next seq, the nodes in order, the generation.
    pub fn resume(next: Seq, nodes: Vec<Seq>, generation: u64) -> Self {
        Self { next, nodes, generation }
    }

    /// Takes the next event, or refuses it and stays as it is.
    pub fn apply(&mut self, event: &Event, originals: &Originals<'_>) -> Result<Change, SurfaceError> {
        self.apply_new(event.seq, &event.body, originals)
    }

    /// The same for an event that is not in the log yet.
    pub fn apply_new(&mut self, seq: Seq, body: &NewEvent, originals: &Originals<'_>) -> Result<Change, SurfaceError> {
        let (marker, sources) = (body.surface_op.map_or(Marker::Absent, Marker::Op), &body.source_event_seqs);
        let sources = sources.as_deref().map_or(Cited::Absent, Cited::List);
        self.take(&Entry { seq, kind: &body.kind, data: &body.data, marker, sources }, originals)
    }

    /// The same for an event whose markers are not trusted.
    pub fn apply_draft(&mut self, draft: &Draft, originals: &Originals<'_>) -> Result<Change, SurfaceError> {
        let sources = match &draft.sources {
            Sources::Absent => Cited::Absent,
            Sources::List(seqs) => Cited::List(seqs),
            Sources::NotArray => Cited::NotArray,
            Sources::NotSeqs => Cited::NotSeqs,
        };
        let (seq, marker) = (draft.seq, draft.marker);
        self.take(&Entry { seq, kind: &draft.kind, data: &draft.data, marker, sources }, originals)
    }

    /// The current nodes, in the order in which the model sees them.
    pub fn nodes(&self) -> &[Seq] {
        &self.nodes
    }

    /// How many replacements there were.
    pub fn replace_generation(&self) -> u64 {
        self.generation
    }

    /// The seq of the event that comes next.
    pub fn next_seq(&self) -> Seq {
        self.next
    }

    /// The position of a current node.
    pub fn position(&self, seq: Seq) -> Option<usize> {
        self.nodes.iter().position(|&node| node == seq)
    }

    /// Nodes follow each other closely, so that their distances are small.
    pub(super) fn save(&self, out: &mut Out) {
        out.number(self.next.get());
        out.number(self.generation);
        out.number(self.nodes.len() as u64);
        self.nodes.iter().fold(0, |before, node| {
            let node = node.get() as i64;
            out.signed(node - before);
            node
        });
    }

    pub(super) fn load(from: &mut In<'_>) -> Option<Self> {
        let (next, generation, count) = (from.seq()?, from.number()?, from.number()?);
        let count = usize::try_from(count).ok().filter(|count| *count <= from.left())?;
        let (mut nodes, mut before) = (Vec::with_capacity(count), 0_i64);
        for _ in 0..count {
            before = before.checked_add(from.signed()?)?;
            nodes.push(Seq::new(u64::try_from(before).ok()?).filter(|node| *node < next)?);
        }
        Some(Self { next, nodes, generation })
    }

    fn take(&mut self, entry: &Entry<'_>, originals: &Originals<'_>) -> Result<Change, SurfaceError> {
        let change = self.plan(entry, originals)?;
        match &change {
            Change::LogOnly => {}
            Change::Appended => self.nodes.push(entry.seq),
            Change::Replaced(replacement) => {
                let range = replacement.position..replacement.position + replacement.shadowed.len();
                self.nodes.splice(range, [entry.seq]);
                self.generation += 1;
            }
        }
        self.next = Seq::saturating(entry.seq.get() + 1);
        Ok(change)
    }

    /// Takes back the last change that [`Self::apply`] made, of an event that is not in the log after all.
    pub(super) fn undo(&mut self, change: Change) {
        match change {
            Change::LogOnly => {}
            Change::Appended => drop(self.nodes.pop()),
            Change::Replaced(replacement) => {
                self.nodes.splice(replacement.position..=replacement.position, replacement.shadowed);
                self.generation -= 1;
            }
        }
        self.next = Seq::saturating(self.next.get().saturating_sub(1));
    }

    fn plan(&self, entry: &Entry<'_>, originals: &Originals<'_>) -> Result<Change, SurfaceError> {
        if entry.seq != self.next {
            return Err(SurfaceError::NotContiguous { seq: entry.seq, expected: self.next });
        }
        if !is_surface(entry.kind) {
            return entry.log_only();
        }
        let kind = || Arc::clone(entry.kind);
        match entry.marker {
            Marker::Absent => Err(SurfaceError::OpMissing { kind: kind() }),
            Marker::Invalid => Err(SurfaceError::OpInvalid { kind: kind() }),
            Marker::InvalidReplace => Err(SurfaceError::ReplaceInvalid { kind: kind() }),
            Marker::Op(SurfaceOp::Append) => {
                provenance::check(entry, &[])?;
                Ok(Change::Appended)
            }
            Marker::Op(SurfaceOp::Replace { start, end }) => {
                let replacement = self.range(entry.seq, start, end)?;
                provenance::check(entry, &replacement.shadowed)?;
                rewrite::check(entry, &replacement, originals)?;
                Ok(Change::Replaced(replacement))
            }
        }
    }

    fn range(&self, seq: Seq, start: Seq, end: Seq) -> Result<Replacement, SurfaceError> {
        let find = |name, seq| self.position(seq).ok_or(SurfaceError::NotANode { end: name, seq });
        let (from, to) = (find("start", start)?, find("end", end)?);
        let Some(shadowed) = self.nodes.get(from..=to).filter(|slice| !slice.is_empty()) else {
            return Err(SurfaceError::Reversed { start, start_index: from, end, end_index: to });
        };
        Ok(Replacement { seq, start, end, shadowed: shadowed.to_vec(), position: from })
    }
}

/// What the plan looks at, whether the event is trusted or not.
pub(super) struct Entry<'e> {
    pub(super) seq: Seq,
    pub(super) kind: &'e Arc<str>,
    data: &'e [u8],
    marker: Marker,
    pub(super) sources: Cited<'e>,
}

/// Borrowed form of [`Sources`].
pub(super) enum Cited<'e> {
    Absent,
    List(&'e [Seq]),
    NotArray,
    NotSeqs,
}

impl Entry<'_> {
    fn log_only(&self) -> Result<Change, SurfaceError> {
        if self.marker != Marker::Absent {
            return Err(SurfaceError::OpOnLogOnly { kind: Arc::clone(self.kind) });
        }
        if !matches!(self.sources, Cited::Absent) {
            return Err(SurfaceError::SourcesOnLogOnly { kind: Arc::clone(self.kind) });
        }
        Ok(Change::LogOnly)
    }
}
