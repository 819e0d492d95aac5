//! Checkpoints of the fold that survive a session's leaving memory, and the process.
//!
//! They are kept as notes of the store: now and then while a log grows, when its session leaves memory, and when the
//! service closes. A session that comes back resumes from its note and folds what came after it, so that the first
//! append or view costs what the tail costs, however long the log is. A note is about durable events only, and believed
//! only if its chain is the log's: without one the log is folded from its start, which gives the same state.

use std::sync::Arc;

use super::fold::Fold;
use super::read::chain_before;
use super::session::{Live, Slot, State};
use crate::codec::Chain;
use crate::model::{Profile, Seq};
use crate::store::{LogId, Note, Store};

/// Events and bytes of a log after which a new note is taken while it grows. What a kill leaves to be folded.
const EVENTS: u64 = 8192;
const BYTES: usize = 8 << 20;
/// Events that are worth a note when the session leaves memory; fewer are folded as fast.
const EVENTS_WORTH: u64 = 64;

/// What was noted of a log.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The end of the last note.
    next_seq: Seq,
    /// Bytes of the log since then.
    bytes: usize,
    /// A note of events that are not durable yet.
    waiting: Option<Box<Note>>,
}

impl Live {
    /// Takes a note of what was just accepted if one is due; it waits until the events are durable.
    pub(super) fn note_growth(&mut self, bytes: usize) {
        self.noted.bytes += bytes;
        let Some(fold) = &self.fold else { return };
        // A note costs what the surface has in nodes.
        let events = EVENTS.max(fold.admission.surface().nodes().len() as u64);
        let grown = self.next_seq.get() - self.noted.next_seq.get().min(self.next_seq.get());
        if grown >= events || self.noted.bytes >= BYTES {
            let waiting = note(fold, self.next_seq, self.chain).map(Box::new);
            self.noted = Noted { next_seq: self.next_seq, bytes: 0, waiting };
        }
    }

    /// The note that waited for what is durable now.
    pub(super) fn durable_note(&mut self) -> Option<Note> {
        let durable = self.durable_next_seq;
        self.noted.waiting.take_if(|note| note.next_seq <= durable).map(|note| *note)
    }

    /// The note to leave behind when the session goes; `None` if the store has one that is as good.
    fn last_note(&self) -> Option<Note> {
        let fold = self.fold.as_ref()?;
        let is_worth_it = self.durable_next_seq.get() >= self.noted.next_seq.get() + EVENTS_WORTH;
        (self.damage.is_none() && is_worth_it).then(|| note(fold, self.durable_next_seq, self.durable_chain))?
    }
}

/// A note of a fold that covers exactly the events before `next_seq`.
fn note(fold: &Fold, next_seq: Seq, chain: Chain) -> Option<Note> {
    let bytes = (fold.next_seq() == next_seq).then(|| fold.to_bytes())??;
    Some(Note { next_seq, chain, bytes: bytes.into() })
}

/// Leaves a note of a session that leaves memory.
pub(super) fn leave(store: &dyn Store, slot: &Slot) {
    if let State::Live(live) = &*slot.state.lock()
        && let Some(note) = live.last_note()
    {
        store.note(live.log, note);
    }
}

/// The fold that the last note of a log holds, if it is about this log and within its durable `end`, and was made under
/// types that still say the same. Blocking.
pub(super) fn resume(
    store: &Arc<dyn Store>,
    log: LogId,
    (end, chain): (Seq, Chain),
    log_only: &Arc<[String]>,
) -> Option<Box<Fold>> {
    let note = store.noted(log).filter(|note| note.next_seq <= end)?;
    let found = if note.next_seq == end { chain } else { chain_before(&**store, log, note.next_seq).ok()? };
    let fold = Fold::from_bytes(&note.bytes, log_only)?;
    (found == note.chain && fold.next_seq() == note.next_seq).then(|| Box::new(fold))
}

/// Takes over what was folded of a log up to `end` from wherever it began, and notes it if that was much.
pub(super) fn settle_fold(store: &dyn Store, live: &mut Live, fold: Box<Fold>, (began, end, chain): (Seq, Seq, Chain)) {
    live.noted.next_seq = live.noted.next_seq.max(began);
    if end.get() - began.get().min(end.get()) >= EVENTS
        && let Some(note) = note(&fold, end, chain)
    {
        store.note(live.log, note);
        live.noted = Noted { next_seq: end, ..Noted::default() };
    }
    // What is appended to a raw log is folded by its next view only.
    debug_assert!(live.birth.profile == Profile::Raw || fold.next_seq() <= live.next_seq, "a fold ahead of its log");
    live.fold = Some(fold);
}
