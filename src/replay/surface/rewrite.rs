//! The rule on rewritten tool results: a later `tool/result` may replace an earlier one and change its content only.
//!
//! The one surface rule that needs a payload, and an earlier event (reference 2.4, 18.6). Where that event comes from is
//! the caller's business: it hands in a look-up, and says so when it cannot read or need not.

use std::sync::Arc;

use bytes::Bytes;

use super::{Entry, Replacement, SurfaceError};
use crate::model::json::{self, Value};
use crate::model::{Event, NewEvent, Seq, SurfaceOp};
use crate::replay::vocabulary::TOOL_RESULT;

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
        Self::of_new(&event.body)
    }

    /// The same for an event without its place.
    pub fn of_new(body: &NewEvent) -> Self {
        Self::Found { kind: Arc::clone(&body.kind), data: body.data.clone() }
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
pub fn original_needed(body: &NewEvent) -> Option<Seq> {
    match body.surface_op {
        Some(SurfaceOp::Replace { start, .. }) if *body.kind == *TOOL_RESULT => Some(start),
        _ => None,
    }
}

/// A tool result may replace one tool result, and change nothing but its content (reference 2.4, 18.6).
pub(super) fn check(entry: &Entry<'_>, replaced: &Replacement, originals: &Originals<'_>) -> Result<(), SurfaceError> {
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
