//! Whole logs, balanced: load, inspect, repair.
//!
//! What closes a turn is computed from the end of the log, backwards to the last turn bracket, so that it costs what the
//! last turn costs. It is decided on under the slot's lock for exactly the end that it was computed from; whoever was
//! faster makes it be computed anew. Closers go into the log as one commit and never alone: a crash leaves none or all,
//! or, of more than fit into a record, a beginning that the next repair completes to the same bytes.

use std::sync::Arc;

use super::committer::Waiter;
use super::error::Fact;
use super::fold::{Arriving, Rewritten};
use super::ownership::Act;
use super::session::{Live, Slot};
use super::view::Log;
use super::{Error, Head, Reason, Service, Session, blocking, durable, live, live_mut};
use crate::model::json;
use crate::model::{Event, Incarnation, NewEvent, Seq, SessionKey};
use crate::replay::Tail;
use crate::replay::repair::{check_closers, closers_of};
use crate::store::{Change, LogId};

/// Attempts to close a log that others append to.
const ATTEMPTS: usize = 16;
/// Bytes and events of one run of closers.
const RUN_BYTES_MAX: usize = 2 << 20;
const RUN_EVENTS_MAX: usize = 50_000;

/// A log that was loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The session, balanced and durable.
    pub session: Session,
    /// How many closers were appended.
    pub repaired: u64,
}

/// A log that was looked at.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// The session as it stands.
    pub session: Session,
    /// What would close it.
    pub closers: Vec<Event>,
    /// Its owner's lease runs, so that it is shown as it stands.
    pub is_live: bool,
}

/// A repair that is asked for.
#[derive(Clone, Debug)]
pub struct Repair {
    /// The session.
    pub key: SessionKey,
    /// The log must have it.
    pub expected_revision: [u8; 16],
    /// Change nothing.
    pub validate_only: bool,
    /// Of the owner who asks.
    pub epoch: Option<u64>,
    /// The caller's own, instead of the computed ones.
    pub closers: Vec<Event>,
}

/// What became of a repair.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The head after it.
    pub head: Head,
    /// What was appended, or would be.
    pub closers: Vec<Event>,
    /// Something was appended.
    pub committed: bool,
}

/// The tail of a log that had this end.
struct Ending {
    log: LogId,
    next_seq: Seq,
    tail: Tail,
}

impl Service {
    /// The log, balanced and durable (design, section 3).
    pub async fn load(&self, key: &SessionKey, incarnation: Option<Incarnation>) -> Result<Loaded, Error> {
        let mut permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(key).await?;
        let decided = self.closing(key, &slot, |live, tail| {
            live.check_incarnation(incarnation)?;
            let Some(tail) = tail else { return Ok(None) };
            let closers = closers_of(tail);
            if !closers.is_empty() {
                live.ownership.may_close()?;
                self.check_writable()?;
            }
            let changes = changes(live, &closers)?;
            let session = live.session_when_durable(self.inner.store_id);
            // What is told of an owner must be durable as well.
            let waits = live.next_seq > live.durable_next_seq || !live.ownership.is_settled();
            let waiter = waits.then(|| self.committer.submit_all(&slot, changes, permit.take()));
            Ok(Some((Loaded { session, repaired: closers.len() as u64 }, waiter)))
        });
        let (loaded, waiter) = match decided.await {
            Ok(decided) => decided,
            Err(error) => {
                // A live log is flushed, also when its turn is open.
                let flushed = {
                    let _state = slot.state.lock();
                    (error.reason == Reason::TurnOpen).then(|| self.committer.submit(&slot, None, None))
                };
                wait(flushed).await?;
                return Err(self.told(&slot, error).await);
            }
        };
        wait(waiter).await?;
        Ok(loaded)
    }

    /// The log as it stands and what would close it; changes nothing.
    pub async fn inspect(&self, key: &SessionKey, incarnation: Option<Incarnation>) -> Result<Inspected, Error> {
        let slot = self.inner.slots.get(key).await?;
        if self.committer.has_failed() {
            return self.inspect_durable(key, incarnation, &slot).await;
        }
        let decided = self.closing(key, &slot, |live, tail| {
            live.check_incarnation(incarnation)?;
            let is_live = live.is_owned_live();
            let closers = match tail {
                _ if is_live => Vec::new(),
                Some(tail) => closers_of(tail),
                None => return Ok(None),
            };
            let waits = live.next_seq > live.durable_next_seq;
            let waiter = waits.then(|| self.committer.submit(&slot, None, None));
            Ok(Some((Inspected { session: live.session(self.inner.store_id), closers, is_live }, waiter)))
        });
        let (inspected, waiter) = decided.await?;
        wait(waiter).await?;
        Ok(inspected)
    }

    /// The same on a node that writes no more: what was accepted and never became durable is gone.
    async fn inspect_durable(
        &self,
        key: &SessionKey,
        incarnation: Option<Incarnation>,
        slot: &Arc<Slot>,
    ) -> Result<Inspected, Error> {
        let (session, is_live, log) = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            live.check_incarnation(incarnation)?;
            live.check_whole()?;
            let log = Log::new(&self.inner.store, (live.log, live.durable_next_seq), true);
            (live.durable_session(self.inner.store_id), live.is_owned_live(), log)
        };
        let closers = if is_live { Vec::new() } else { closers_of(&blocking(move || log.tail()).await??) };
        Ok(Inspected { session, closers, is_live })
    }

    /// Closes an open turn if the log is still the one that the caller saw.
    pub async fn commit_repair(&self, repair: &Repair) -> Result<Repaired, Error> {
        let mut permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(&repair.key).await?;
        if !repair.closers.is_empty() && matches!(&*slot.state.lock(), super::State::Live(live) if live.needs_fold()) {
            // Theirs are held to the profile, like an append.
            Box::pin(self.fold(&repair.key, &slot)).await?;
        }
        let store_id = self.inner.store_id;
        let decided = self.closing(&repair.key, &slot, |live, tail| {
            live.check_epoch(repair.epoch, Act::Repair)?;
            if live.head(store_id).revision != repair.expected_revision {
                let message = "the log is not the one that was to be repaired; read it again".to_owned();
                return Err(live.conflict(store_id, Reason::RevisionConflict, message, None));
            }
            let Some(tail) = tail else { return Ok(None) };
            let closers = plan(tail, &repair.closers)?;
            if repair.validate_only || closers.is_empty() {
                live.try_closers(&closers)?;
                return Ok(Some((live.head(store_id), closers, None)));
            }
            self.check_writable()?;
            let changes = changes(live, &closers)?;
            let head = live.session_when_durable(store_id).head;
            Ok(Some((head, closers, Some(self.committer.submit_all(&slot, changes, permit.take())))))
        });
        let (head, closers, waiter) = match decided.await {
            Ok(decided) => decided,
            Err(error) => return Err(self.told(&slot, error).await),
        };
        let committed = waiter.is_some();
        wait(waiter).await?;
        Ok(Repaired { head, closers, committed })
    }

    /// Decides on a session under its lock, with the tail of its log. Asked without one first: what is refused
    /// anyway reads nothing, and what needs it says so by `None`.
    pub(super) async fn closing<T>(
        &self,
        key: &SessionKey,
        slot: &Arc<Slot>,
        mut decide: impl FnMut(&mut Live, Option<&Tail>) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut known: Option<Ending> = None;
        for _ in 0..ATTEMPTS {
            {
                let mut state = slot.state.lock();
                let live = live_mut(&mut state, key)?;
                live.check_whole()?;
                let known = known.take().filter(|known| known.log == live.log && known.next_seq == live.next_seq);
                let tail = known.map(|known| known.tail).or_else(|| live.tail());
                if let Some(decided) = decide(live, tail.as_ref())? {
                    return Ok(decided);
                }
            }
            known = Some(self.ending(key, slot).await?);
        }
        let state = slot.state.lock();
        let message = "others append to the log faster than it can be closed; try again".to_owned();
        Err(live(&state, key)?.conflict(self.inner.store_id, Reason::RevisionConflict, message, None))
    }

    /// Reads the tail of a log from its end.
    async fn ending(&self, key: &SessionKey, slot: &Arc<Slot>) -> Result<Ending, Error> {
        let (id, next_seq, waiter) = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            let waits = live.next_seq > live.durable_next_seq;
            (live.log, live.next_seq, waits.then(|| self.committer.submit(slot, None, None)))
        };
        wait(waiter).await?;
        let log = Log::new(&self.inner.store, (id, next_seq), true);
        Ok(Ending { log: id, next_seq, tail: blocking(move || log.tail()).await?? })
    }
}

/// Waits for what was queued, if something was.
pub(super) async fn wait(waiter: Option<Waiter>) -> Result<(), Error> {
    match waiter {
        Some(waiter) => durable(waiter).await,
        None => Ok(()),
    }
}

/// What is to be appended: the computed closers, or those of the caller if they do the same.
fn plan(tail: &Tail, own: &[Event]) -> Result<Vec<Event>, Error> {
    let computed = closers_of(tail);
    if own.is_empty() || computed.is_empty() {
        return Ok(computed);
    }
    check_closers(tail, own).map_err(|refusal| {
        let field = format!("closers[{}]", refusal.index);
        let message = format!("`{field}` {refusal}");
        let facts = vec![("field", field), ("rule", "closer".to_owned())];
        Error::new(Reason::InvalidEvent, message).with(Fact::Named(facts))
    })?;
    Ok(own.to_vec())
}

/// Appends closers to a session in memory, and gives what is to be committed.
pub(super) fn changes(live: &mut Live, closers: &[Event]) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    let mut rest = closers;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |event: &&Event| {
            bytes += event.body.weight();
            bytes <= RUN_BYTES_MAX
        };
        let count = rest.iter().take(RUN_EVENTS_MAX).take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        rest = later;
        let events: Vec<NewEvent> = now.iter().map(|event| event.body.clone()).collect();
        held(&events, |batch| live.hold(batch).map(drop))?;
        let run = live.admit(&events, events.iter().map(NewEvent::weight).sum())?;
        changes.push(Change::Repair { log: live.log, run });
    }
    Ok(changes)
}

/// Parses a batch of closers for the profile.
fn held(events: &[NewEvent], hold: impl FnOnce(&Arriving<'_, '_>) -> Result<(), Error>) -> Result<(), Error> {
    let docs = events.iter().map(|event| json::parse(&event.data).ok()).collect();
    let bytes = events.iter().map(NewEvent::weight).sum();
    hold(&Arriving { events, docs, bytes, originals: Rewritten::default() })
}

impl Live {
    /// What is open at the end, if the log was folded up to there.
    fn tail(&self) -> Option<Tail> {
        self.fold.as_ref().filter(|fold| fold.next_seq() == self.next_seq).map(|fold| fold.admission.tail().clone())
    }

    /// Whether an owner may append: it is live, and its lease runs.
    fn is_owned_live(&self) -> bool {
        self.ownership.live().is_some() && self.ownership.is_running(std::time::Instant::now())
    }

    /// The session as it will be when what is queued is durable.
    pub(super) fn session_when_durable(&self, store: [u8; 16]) -> Session {
        let session = self.session(store);
        let owner = self.ownership.shown(std::time::Instant::now());
        let record = owner.as_ref().map(|holding| holding.owner.clone());
        let owner = owner.filter(|holding| holding.owner.is_held());
        let head = Head { durable_next_seq: self.next_seq, owner, ..session.head };
        Session { head, owner: record, ..session }
    }

    /// The session as it is on stable storage; without a fold, which is of what was accepted.
    fn durable_session(&self, store: [u8; 16]) -> Session {
        let durable = Self {
            next_seq: self.durable_next_seq,
            chain: self.durable_chain,
            durable_next_seq: self.durable_next_seq,
            durable_chain: self.durable_chain,
            summary: self.summary.clone(),
            shared_until: self.shared_until,
            request: self.request,
            ownership: self.ownership.clone(),
            ..Self::new(self.log, self.birth.clone(), self.updated_ms)
        };
        durable.session(store)
    }

    /// Holds closers to the profile without taking them.
    fn try_closers(&mut self, closers: &[Event]) -> Result<(), Error> {
        let events: Vec<NewEvent> = closers.iter().map(|event| event.body.clone()).collect();
        if events.is_empty() || self.fold.is_none() {
            return Ok(());
        }
        let before = self.fold.clone();
        let tried = held(&events, |batch| self.hold(batch).map(drop));
        self.fold = before;
        tried
    }
}
