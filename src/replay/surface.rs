//! The surface: the ordered list of events that produce the model's messages.
//!
//! An event is appended as the last node, or takes the place of a range of nodes (reference 2.4, 3.1). Order is
//! position, never seq: after a replacement a node with a high seq stands where the range stood. What was shadowed once
//! never comes back. Payloads matter to one rule only, the rewrite of a tool result; message shapes are not checked.

use std::sync::Arc;

use bytes::Bytes;

use super::line::{Draft, Marker, Sources};
use super::provenance;
use super::vocabulary::{TOOL_RESULT, is_surface};
use crate::model::json::{self, Value};
use crate::model::{Event, Seq, SurfaceOp};

/// Why an event breaks the surface; the texts are the reference's (2.4).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SurfaceError {
    /// The seq is not the next one.
    #[error("session event seq {seq} is not contiguous; expected {expected}")]
    NotContiguous {
        /// The seq found.
        seq: Seq,
        /// The next one.
        expected: Seq,
    },
    /// A log-only type with a surface operation.
    #[error("session event \"{kind}\" is not surface-eligible and cannot carry surfaceOp")]
    OpOnLogOnly {
        /// The type.
        kind: Arc<str>,
    },
    /// A log-only type with sources.
    #[error("session event \"{kind}\" is not surface-eligible and cannot carry sourceEventSeqs")]
    SourcesOnLogOnly {
        /// The type.
        kind: Arc<str>,
    },
    /// A surface type without an operation.
    #[error("session event \"{kind}\" is surface-eligible and requires a surfaceOp marker")]
    OpMissing {
        /// The type.
        kind: Arc<str>,
    },
    /// An operation that is neither `"append"` nor an object.
    #[error("session event \"{kind}\" carries an invalid surfaceOp")]
    OpInvalid {
        /// The type.
        kind: Arc<str>,
    },
    /// An object that is no replacement.
    #[error("session event \"{kind}\" carries an invalid replace surfaceOp")]
    ReplaceInvalid {
        /// The type.
        kind: Arc<str>,
    },
    /// The range names an event that is not a current node.
    #[error("surface replace: {end} seq {seq} not found in surface")]
    NotANode {
        /// `start` or `end`.
        end: &'static str,
        /// The seq named.
        seq: Seq,
    },
    /// The range ends before it starts.
    #[error("surface replace: start seq {start} (index {start_index}) is after end seq {end} (index {end_index})")]
    Reversed {
        /// Where the range starts.
        start: Seq,
        /// Its position.
        start_index: usize,
        /// Where it ends.
        end: Seq,
        /// Its position.
        end_index: usize,
    },
    /// The sources break a rule.
    #[error(transparent)]
    Sources(#[from] provenance::SourcesError),
    /// A tool result that would replace several nodes.
    #[error("tool/result surface replacement must rewrite exactly one current node")]
    RewritesSeveral,
    /// A tool result that would replace something else.
    #[error("tool/result surface replacement must target a current tool/result")]
    RewritesOther,
    /// A tool result that differs in more than its content.
    #[error("tool/result surface replacement may change only content")]
    RewritesMore,
    /// The caller could not show the event that is rewritten; nothing was decided.
    #[error("tool/result surface replacement: the event at seq {seq} could not be read")]
    OriginalMissing {
        /// The event to rewrite.
        seq: Seq,
    },
}

impl SurfaceError {
    /// The envelope field that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NotContiguous { .. } => "seq",
            Self::SourcesOnLogOnly { .. } | Self::Sources(_) => "source_event_seqs",
            Self::RewritesMore => "data",
            _ => "surface_op",
        }
    }
}

/// What a caller knows of an earlier event, for the rule on rewritten tool results.
#[derive(Clone, Debug)]
pub enum Original {
    /// The event's type and data.
    Found {
        /// The type.
        kind: Arc<str>,
        /// The data.
        data: Bytes,
    },
    /// It could not be read: the rewrite is refused with [`SurfaceError::OriginalMissing`].
    Missing,
    /// The caller vouches that this rewrite passed the rule before, so that it need not read the event.
    Admitted,
}

impl Original {
    /// An event that the caller holds.
    pub fn of(event: &Event) -> Self {
        Self::Found { kind: Arc::clone(&event.body.kind), data: event.body.data.clone() }
    }
}

/// How the fold looks up an earlier event.
pub type Originals<'a> = dyn Fn(Seq) -> Original + 'a;

/// Looks events up in a contiguous part of a log.
pub fn in_log(events: &[Event]) -> impl Fn(Seq) -> Original + '_ {
    move |seq| {
        let index = events.first().and_then(|first| seq.get().checked_sub(first.seq.get()));
        let event = index.and_then(|index| events.get(usize::try_from(index).ok()?));
        event.filter(|event| event.seq == seq).map_or(Original::Missing, Original::of)
    }
}

/// Trusts every rewrite: for a log that passed this fold before.
pub fn admitted(_: Seq) -> Original {
    Original::Admitted
}

/// The event whose data the fold will ask for when it meets this one: the target of a rewritten tool result.
pub fn original_needed(event: &Event) -> Option<Seq> {
    match event.body.surface_op {
        Some(SurfaceOp::Replace { start, .. }) if *event.body.kind == *TOOL_RESULT => Some(start),
        _ => None,
    }
}

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
        let body = &event.body;
        let (marker, sources) = (body.surface_op.map_or(Marker::Absent, Marker::Op), &body.source_event_seqs);
        let sources = sources.as_deref().map_or(Cited::Absent, Cited::List);
        self.take(&Entry { seq: event.seq, kind: &body.kind, data: &body.data, marker, sources }, originals)
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
    #[allow(dead_code, reason = "the admission of batches uses it")]
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
                check_rewrite(entry, &replacement, originals)?;
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

/// A tool result may replace one tool result, and change nothing but its content (reference 2.4, 18.6).
fn check_rewrite(entry: &Entry<'_>, replaced: &Replacement, originals: &Originals<'_>) -> Result<(), SurfaceError> {
    if **entry.kind != *TOOL_RESULT {
        return Ok(());
    }
    if replaced.shadowed.len() != 1 {
        return Err(SurfaceError::RewritesSeveral);
    }
    match originals(replaced.start) {
        Original::Admitted => Ok(()),
        Original::Missing => Err(SurfaceError::OriginalMissing { seq: replaced.start }),
        Original::Found { kind, .. } if *kind != *TOOL_RESULT => Err(SurfaceError::RewritesOther),
        Original::Found { data, .. } if is_rewrite(&data, entry.data) => Ok(()),
        Original::Found { .. } => Err(SurfaceError::RewritesMore),
    }
}

fn is_rewrite(original: &[u8], rewritten: &[u8]) -> bool {
    match (json::parse(original), json::parse(rewritten)) {
        (Ok(a), Ok(b)) => same_but(a.root(), b.root(), &["message", "content", "0", "content"]),
        _ => false,
    }
}

/// Whether both are the same value but for what stands at `path`, which both must have.
fn same_but(a: Value<'_, '_>, b: Value<'_, '_>, path: &[&str]) -> bool {
    let Some((name, rest)) = path.split_first() else { return true };
    if a.is_array() && b.is_array() {
        let mut pairs = a.items().zip(b.items());
        let first = pairs.next().is_none_or(|(a, b)| same_but(a, b, rest));
        return first && a.items().count() == b.items().count() && pairs.all(|(a, b)| a.same(b));
    }
    let (a_members, b_members) = (a.members(), b.members());
    if !a.is_object() || !b.is_object() || a_members.len() != b_members.len() {
        return a.same(b);
    }
    let mut pairs = a_members.iter().zip(&b_members);
    pairs.all(|(a, b)| a.0 == b.0 && if *a.0 == *name.as_bytes() { same_but(a.1, b.1, rest) } else { a.1.same(b.1) })
}
