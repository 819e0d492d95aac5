//! What a log leaves at its end, kept beside the session so that nobody reads the log again to know it.
//!
//! The checkpoint of every fold that a writer or a reader of the tail needs. After a session was loaded, the first append
//! or view that needs it resumes from the session's note ([`super::note`]) and reads what came after it, in pieces. Then
//! it moves with the appends (profiles dsh) or is brought up to date by the next view (raw, whose appends pay for no
//! fold). Growth: eight bytes per surface node, one entry per unanswered call; everything else is constant.

use std::sync::Arc;

use super::append::Docs;
use super::session::Slot;
use super::view::Log;
use super::{Append, Error, Reason, Service, blocking, durable, live, live_mut, note};
use crate::model::{Event, NewEvent, Profile, Seq, SessionKey};
use crate::replay::Admission;
use crate::replay::admit::{Arrival, Report};
use crate::replay::checkpoint::{self, Checkpoint};
use crate::replay::fork::Stem;
use crate::replay::surface::{Original, Originals, original_needed};
use crate::replay::vocabulary::{UnknownType, check_new};
use crate::store::{LogId, Run};

/// A batch on its way into a log.
pub(super) struct Arriving<'a, 't> {
    pub(super) events: &'a [NewEvent],
    pub(super) docs: Docs<'t>,
    pub(super) bytes: usize,
    pub(super) originals: Rewritten,
}

/// The stored events that a batch rewrites.
#[derive(Default)]
pub(super) struct Rewritten {
    log: Option<LogId>,
    events: Vec<Event>,
}

/// What stands open at the end of a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailState {
    /// The open turn: its number, if it has a proper one, and the event that started it.
    pub open_turn: Option<(Option<i64>, Seq)>,
    /// How many breaches of nesting there were.
    pub breaches: u64,
}

/// The checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Fold {
    pub(super) admission: Admission,
    pub(super) stem: Stem,
    /// The first event that no view may pass over.
    pub(super) unknown: Option<UnknownType>,
    log_only: Arc<[String]>,
}

impl Fold {
    /// The seq after the last event folded.
    pub(super) fn next_seq(&self) -> Seq {
        self.admission.next_seq()
    }

    /// The checkpoint as bytes, if it can be kept; see [`checkpoint::to_bytes`].
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        checkpoint::to_bytes(&self.admission, &self.stem, self.unknown.as_ref(), &self.log_only)
    }

    /// The checkpoint that bytes hold, unless another set of log-only types would have made another one.
    pub(super) fn from_bytes(bytes: &[u8], log_only: &Arc<[String]>) -> Option<Self> {
        let found = checkpoint::from_bytes(bytes).filter(|found| found.suits(log_only))?;
        let Checkpoint { admission, stem, unknown, .. } = found;
        Some(Self { admission, stem, unknown, log_only: log_only.clone() })
    }

    pub(super) fn tail_state(&self) -> TailState {
        let open_turn = self.admission.tail().open_turn();
        TailState {
            open_turn: open_turn.map(|turn| (turn.number.as_int53(), turn.since)),
            breaches: self.admission.breaches(),
        }
    }

    pub(super) fn admit(
        &mut self,
        profile: Profile,
        first_seq: Seq,
        batch: &Arriving<'_, '_>,
    ) -> Result<Vec<Report>, Error> {
        let seqs = (first_seq.get()..).map(Seq::saturating);
        let arrivals = seqs.zip(batch.events).zip(&batch.docs);
        let arrivals = arrivals.map(|((seq, body), doc)| Arrival { seq, body, doc: doc.as_ref() });
        let arrivals: Vec<_> = arrivals.collect();
        let originals = |seq| batch.originals.get(seq);
        let reports = self.admission.admit_new(profile, &arrivals, &originals);
        let reports = reports.map_err(|refusal| Error::rule(&refusal, first_seq))?;
        for arrival in &arrivals {
            self.follow(arrival.seq, arrival.body);
        }
        Ok(reports)
    }

    fn apply(&mut self, event: &Event, originals: &Originals<'_>) -> Result<(), Error> {
        self.admission.apply(event, originals).map_err(|refusal| Error::unreadable(refusal.seq, refusal.violation))?;
        self.follow(event.seq, &event.body);
        Ok(())
    }

    fn follow(&mut self, seq: Seq, body: &NewEvent) {
        self.stem.apply_new(seq, body);
        if self.unknown.is_none() {
            self.unknown = check_new(seq, body, &|kind| self.log_only.iter().any(|name| name == kind)).err();
        }
    }
}

impl Rewritten {
    /// Refuses originals of another life of the name: it was deleted and created while they were read.
    pub(super) fn check(&self, log: LogId) -> Result<(), Error> {
        match self.log {
            Some(read) if read != log => {
                Err(Error::new(Reason::IncarnationMismatch, "the session was created anew during the call"))
            }
            _ => Ok(()),
        }
    }

    fn get(&self, seq: Seq) -> Original {
        self.events.iter().find(|event| event.seq == seq).map_or(Original::Missing, Original::of)
    }
}

impl Service {
    pub(super) fn new_fold(&self) -> Fold {
        let log_only = self.inner.log_only.clone();
        Fold { admission: Admission::default(), stem: Stem::default(), unknown: None, log_only }
    }

    /// Folds what is durable of a log. One folds, the others wait for it; of the profiles dsh nothing is appended
    /// meanwhile. A fold that was begun is finished and kept, also when its caller has lost patience: a deadline that is
    /// shorter than the fold of a long log must not make it begin for ever.
    pub(super) async fn fold(&self, key: &SessionKey, slot: &Arc<Slot>) -> Result<(), Error> {
        while !self.fold_once(key, slot).await? {}
        Ok(())
    }

    /// `false`: closers were appended meanwhile, which need no fold, so that the fold must be made again.
    async fn fold_once(&self, key: &SessionKey, slot: &Arc<Slot>) -> Result<bool, Error> {
        let waiter = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            let waits = live.needs_fold() && live.next_seq > live.durable_next_seq;
            waits.then(|| self.committer.submit(slot, None, None))
        };
        if let Some(waiter) = waiter {
            // What failed is not durable, and not folded.
            drop(durable(waiter).await);
        }
        let one = slot.folding.clone().lock_owned().await;
        self.born(key, slot).await?;
        let (log, fold, (end, chain)) = {
            let mut state = slot.state.lock();
            let live = live_mut(&mut state, key)?;
            let is_current = live
                .fold
                .as_ref()
                .is_some_and(|fold| live.birth.profile != Profile::Raw || fold.next_seq() >= live.durable_next_seq);
            if is_current {
                return Ok(true);
            }
            let is_trusted = live.birth.profile != Profile::Raw;
            let log = Log::new(&self.inner.store, (live.log, live.durable_next_seq), is_trusted);
            (log, live.fold.take(), (live.durable_next_seq, live.durable_chain))
        };
        let fresh = self.new_fold();
        let (key, slot, store) = (key.clone(), slot.clone(), self.inner.store.clone());
        let committer = self.committer.clone();
        let folded = blocking(move || {
            let noted = || note::resume(&store, log.id(), (end, chain), &fresh.log_only);
            let mut fold = fold.or_else(noted).unwrap_or_else(|| Box::new(fresh));
            let began = fold.next_seq();
            log.forward(fold.next_seq(), |event| fold.apply(&event, &|seq| log.original(seq)).map(|()| true))?;
            if let Ok(live) = live_mut(&mut slot.state.lock(), &key)
                && live.log == log.id()
            {
                let is_behind = live.birth.profile != Profile::Raw && fold.next_seq() < live.next_seq;
                if is_behind && !committer.has_failed() {
                    return Ok(false);
                }
                note::settle_fold(&*store, live, fold, (began, end, chain));
            }
            drop(one);
            Ok(true)
        });
        folded.await?
    }

    /// The stored events that a batch rewrites; they never change, so that they are read before the batch is decided on.
    pub(super) async fn originals(&self, append: &Append, slot: &Arc<Slot>) -> Result<Rewritten, Error> {
        let needed = append.events.iter().filter_map(original_needed).filter(|seq| *seq < append.first_seq);
        let mut needed: Vec<_> = needed.collect();
        needed.sort_unstable();
        needed.dedup();
        self.born(&append.key, slot).await?;
        let (log, next_seq, pending): (_, _, Vec<Run>) = {
            let state = slot.state.lock();
            let live = live(&state, &append.key)?;
            if live.birth.profile == Profile::Raw {
                return Ok(Rewritten::default());
            }
            (live.log, live.next_seq, live.pending.iter().cloned().collect())
        };
        let mut events: Vec<Event> = Vec::with_capacity(needed.len());
        let mut run: Option<Vec<Event>> = None;
        for seq in needed.into_iter().filter(|seq| *seq < next_seq) {
            if run.as_ref().and_then(|run| run.last()).is_none_or(|last| last.seq < seq) {
                let in_memory = pending.iter().find(|run| run.first_seq <= seq && seq < run.next_seq());
                let found = match in_memory {
                    Some(run) => run.clone(),
                    None => Box::pin(self.stored_run(log, seq)).await?,
                };
                run = Some(found.decode()?);
            }
            events.extend(run.iter().flatten().find(|event| event.seq == seq).cloned());
        }
        Ok(Rewritten { log: Some(log), events })
    }
}
