//! Detaching: a fork gets events of its own in place of those that it shares.
//!
//! The shared prefix is copied in pieces, each durable before the next, and a record at the end says that the log stands
//! alone. Until then reads go to what is shared. A detaching that stops anywhere is taken up where it stopped: the store
//! counts only copies that follow each other.

use std::sync::Arc;

use bytes::Bytes;

use super::read::chain_before;
use super::session::Slot;
use super::{Error, Head, Reason, Service, blocking, durable, error, live, live_mut};
use crate::codec::Chain;
use crate::codec::event::Skimmed;
use crate::model::{Incarnation, Seq, SessionKey};
use crate::store::{Change, LogId, Run, Store};

/// Bytes copied at once; a run that is larger comes alone.
const PIECE_BYTES: usize = 1 << 20;

/// How far a detaching came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Shared events that were copied.
    pub events: u64,
    /// All of them.
    pub events_total: u64,
}

/// A detaching on its way. One that is dropped can be begun again and goes on.
pub struct Detaching {
    service: Service,
    key: SessionKey,
    slot: Arc<Slot>,
    log: LogId,
    /// Up to where events are copied, and the chain there.
    copied: (Seq, Chain),
    total: Seq,
    is_done: bool,
    _one: tokio::sync::OwnedMutexGuard<()>,
}

impl Service {
    /// Begins to copy what a session shares, or goes on with it. Nothing is left to do for one that stands alone.
    pub async fn detach(&self, key: SessionKey, incarnation: Option<Incarnation>) -> Result<Detaching, Error> {
        self.check_writable()?;
        let slot = self.inner.slots.get(&key).await?;
        let one = slot.detaching.clone().lock_owned().await;
        self.born(&key, &slot).await?;
        let (log, is_alone) = {
            let state = slot.state.lock();
            let live = live(&state, &key)?;
            live.check_incarnation(incarnation)?;
            (live.log, live.shared_until == Seq::ZERO)
        };
        let (store, name) = (self.inner.store.clone(), key.clone());
        let (copied, total) = blocking(move || {
            let found =
                store.find(&name)?.filter(|found| found.session.log == log).ok_or_else(|| super::absent(&name))?;
            let (copied, total) = (found.session.copied_until, found.session.shared_until);
            let chain = if copied == total { Chain::START } else { chain_before(&*store, log, copied)? };
            Ok::<_, Error>(((copied, chain), total))
        })
        .await??;
        Ok(Detaching { service: self.clone(), key, slot, log, copied, total, is_done: is_alone, _one: one })
    }
}

impl Detaching {
    /// How far it is.
    pub fn copied(&self) -> Copied {
        Copied { events: self.copied.0.get(), events_total: self.total.get() }
    }

    /// Copies the next piece, or ends the copying. `None` once the log stands alone.
    pub async fn step(&mut self) -> Result<Option<Copied>, Error> {
        if self.is_done {
            return Ok(None);
        }
        self.service.check_writable()?;
        if self.copied.0 >= self.total {
            self.finish().await?;
            return Ok(None);
        }
        let (store, log, copied, total) = (self.service.inner.store.clone(), self.log, self.copied, self.total);
        let runs = blocking(move || piece(&*store, log, copied, total)).await??;
        let bytes = runs.iter().map(|run| run.events.len()).sum::<usize>();
        let mut permit = Some(self.service.permit(bytes.min(self.service.inner.options.append_budget_bytes))?);
        let mut last = None;
        for run in runs {
            self.copied = (run.next_seq(), run.chain);
            let change = Change::Detach { log, copy: Some(run) };
            let state = self.slot.state.lock();
            self.check_same(live(&state, &self.key)?.log)?;
            last = Some(self.service.committer.submit(&self.slot, Some(change), permit.take()));
        }
        match last {
            Some(waiter) => durable(waiter).await?,
            None => return Err(error::corrupt(self.copied.0)),
        }
        Ok(Some(self.copied()))
    }

    /// The head of the session, which copying does not change.
    pub fn head(&self) -> Result<Head, Error> {
        let state = self.slot.state.lock();
        Ok(live(&state, &self.key)?.head(self.service.inner.store_id))
    }

    async fn finish(&mut self) -> Result<(), Error> {
        let permit = Some(self.service.place_for_a_call()?);
        let waiter = {
            let mut state = self.slot.state.lock();
            let live = live_mut(&mut state, &self.key)?;
            self.check_same(live.log)?;
            // From here on forks of this session name its own log: they are queued behind this.
            live.shared_until = Seq::ZERO;
            let change = Change::Detach { log: self.log, copy: None };
            self.service.committer.submit(&self.slot, Some(change), permit)
        };
        durable(waiter).await?;
        self.is_done = true;
        Ok(())
    }

    fn check_same(&self, log: LogId) -> Result<(), Error> {
        if log == self.log {
            return Ok(());
        }
        Err(Error::new(Reason::IncarnationMismatch, "the session was created anew during the call"))
    }
}

/// The next shared runs, from `copied` to `total`.
fn piece(store: &dyn Store, log: LogId, copied: (Seq, Chain), total: Seq) -> Result<Vec<Run>, Error> {
    let (mut next, mut chain) = copied;
    let mut runs = Vec::new();
    for run in store.read(log, next, PIECE_BYTES)? {
        if next >= total || run.next_seq() > total {
            break;
        }
        let run = from(&run, (next, chain))?;
        (next, chain) = (run.next_seq(), run.chain);
        runs.push(run);
    }
    Ok(runs)
}

/// The run from `next` on, where `chain` stands.
fn from(run: &Run, (next, chain): (Seq, Chain)) -> Result<Run, Error> {
    let Some(before) = next.get().checked_sub(run.first_seq.get()) else { return Err(error::corrupt(next)) };
    let bytes: usize = Skimmed::all(&run.events).take(before as usize).map(|event| event.bytes).sum();
    let events = if bytes <= run.events.len() { run.events.slice(bytes..) } else { Bytes::new() };
    let count = run.count.saturating_sub(before as u32);
    Ok(Run { first_seq: next, count, link: chain.link(), chain: run.chain, events })
}
