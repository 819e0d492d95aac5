//! Shared prefixes: which log really holds an event of a fork, and what a fork of a fork shares.
//!
//! An extent list is ordered and flat: each extent begins where the one before ends, and names the log in which its
//! events were appended, so that reading costs one look at the list whatever the number of generations. A run that
//! reaches beyond its extent is clipped: no later event of a parent ever shows in a child.

use bytes::Bytes;

use super::{LogId, Run, Session, StoreError};
use crate::codec::Chain;
use crate::codec::event::Skimmed;
use crate::codec::graft::{Extent, Graft};
use crate::model::Seq;

/// The log that holds an inherited event.
pub(super) fn holder(extents: &[Extent], seq: Seq) -> Option<Extent> {
    extents.get(extents.partition_point(|extent| extent.until <= seq)).copied()
}

/// What a fork of `log` before `boundary` shares; `extents` are what the log itself shares, `chain` stands at the boundary.
///
/// The boundary must not lie beyond the log's end.
pub fn inherit(log: LogId, extents: &[Extent], (boundary, chain): (Seq, Chain)) -> Vec<Extent> {
    let whole = extents.partition_point(|extent| extent.until <= boundary);
    let mut inherited: Vec<Extent> = extents.iter().take(whole).copied().collect();
    if inherited.last().map_or(Seq::ZERO, |extent| extent.until) < boundary {
        let log = extents.get(whole).map_or(log.0, |extent| extent.log);
        inherited.push(Extent { log, until: boundary, chain });
    }
    inherited
}

/// The runs of an extent's log as far as they belong to the extent.
pub(super) fn clip(runs: Vec<Run>, extent: &Extent) -> Result<Vec<Run>, StoreError> {
    let mut clipped = Vec::with_capacity(runs.len());
    for run in runs.into_iter().take_while(|run| run.first_seq < extent.until) {
        clipped.push(if run.next_seq() > extent.until { cut(&run, extent)? } else { run });
    }
    Ok(clipped)
}

/// The run up to the end of the extent, whose chain is known.
fn cut(run: &Run, extent: &Extent) -> Result<Run, StoreError> {
    let count = (extent.until.get() - run.first_seq.get()) as u32;
    let skimmed: Vec<usize> = Skimmed::all(&run.events).take(count as usize).map(|event| event.bytes).collect();
    if skimmed.len() < count as usize {
        return Err(StoreError::Defect(format!("a run from seq {} with fewer events than it says", run.first_seq)));
    }
    let events: Bytes = run.events.slice(..skimmed.iter().sum::<usize>());
    Ok(Run { first_seq: run.first_seq, count, link: run.link, chain: extent.chain, events })
}

/// The run of the one event that comes with a fork.
pub(super) fn marker(graft: &Graft) -> Option<Run> {
    let (first_seq, link, chain) = (graft.seed_length(), graft.link(), graft.end().1);
    let events = graft.marker.clone();
    (!events.is_empty()).then_some(Run { first_seq, count: 1, link, chain, events })
}

/// What a deleted log still holds, and what of it nobody uses.
#[derive(Clone, Debug)]
pub struct Remains {
    /// The log as far as it is there. `updated_ms` is when it was deleted.
    pub session: Session,
    /// Live sessions need the events below.
    pub needed_until: Seq,
    /// From here on nobody needs anything. The session's end if all of it is needed.
    pub cut: Seq,
    /// The chain at the cut.
    pub chain: Chain,
    /// Events from the cut on.
    pub events: u64,
    /// Stored bytes of those events; of a run that they are a part of, as much as of its events.
    pub bytes: u64,
    /// Stored bytes of all that it holds.
    pub held_bytes: u64,
}

impl Remains {
    /// Whether nothing of the log would be left.
    pub fn is_all(&self) -> bool {
        self.cut <= self.session.shared_until
    }

    /// The log.
    pub fn log(&self) -> LogId {
        self.session.log
    }
}
