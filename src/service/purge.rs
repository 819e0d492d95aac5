//! Purging: deleted logs give up what no session uses, with a receipt for each.
//!
//! What may go is what the store says of a deleted log: everything, or the end behind the last event that a fork shares.
//! That stays true while it waits for its commit, because nothing begins to share what nobody shares.

use std::sync::Arc;

use super::session::Slot;
use super::{Error, Service, blocking, durable};
use crate::codec::Chain;
use crate::model::{Incarnation, Namespace, Seq, SessionKey};
use crate::store::{Change, ListCursor, ListFilter, LogId, Remains, Store, StoreError};

/// Deleted logs looked at together.
const LOGS_AT_ONCE: usize = 64;

/// The receipt of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purged {
    /// The name that the log had.
    pub key: SessionKey,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Events from here on are gone.
    pub from: Seq,
    /// How many.
    pub events: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// The chain before them.
    pub chain: Chain,
    /// Whether forks keep the rest.
    pub is_shared: bool,
}

/// A purge on its way.
pub struct Purging {
    service: Service,
    namespace: Namespace,
    is_dry: bool,
    after: Option<LogId>,
    is_done: bool,
    _one: tokio::sync::OwnedMutexGuard<()>,
}

/// What a namespace takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live sessions.
    pub sessions: u64,
    /// Their events, shared ones counted for each that shares them.
    pub events: u64,
    /// Events that are shared by reference.
    pub shared_events: u64,
    /// Bytes of the sessions' own events.
    pub bytes: u64,
    /// Deleted logs that are not purged.
    pub deleted_logs: u64,
    /// Stored bytes of those.
    pub deleted_bytes: u64,
    /// Of them what a purge would free.
    pub purgeable_bytes: u64,
}

impl Service {
    /// Begins to purge a namespace, or to look what a purge would remove.
    pub async fn purge(&self, namespace: Namespace, is_dry: bool) -> Result<Purging, Error> {
        if !is_dry {
            self.check_writable()?;
        }
        let one = self.inner.purging.clone().lock_owned().await;
        Ok(Purging { service: self.clone(), namespace, is_dry, after: None, is_done: false, _one: one })
    }

    /// What a namespace takes, without reading logs.
    pub async fn usage(&self, namespace: Namespace) -> Result<Usage, Error> {
        let store = self.inner.store.clone();
        Ok(blocking(move || usage(&*store, &namespace)).await??)
    }
}

impl Purging {
    /// Purges the next logs and gives their receipts once that is durable; they may be none although more follow. `None`
    /// at the end.
    pub async fn step(&mut self) -> Result<Option<Vec<Purged>>, Error> {
        if self.is_done {
            return Ok(None);
        }
        let (store, after) = (self.service.inner.store.clone(), self.after);
        let remains = blocking(move || store.remains(after, LOGS_AT_ONCE)).await??;
        self.is_done = remains.len() < LOGS_AT_ONCE;
        self.after = remains.last().map(Remains::log).or(self.after);
        let wanted =
            |remains: &&Remains| remains.session.birth.key.namespace == self.namespace && is_purgeable(remains);
        let wanted: Vec<&Remains> = remains.iter().filter(wanted).collect();
        if !self.is_dry {
            self.commit(&wanted).await?;
        }
        Ok(Some(wanted.into_iter().map(receipt).collect()))
    }

    async fn commit(&self, wanted: &[&Remains]) -> Result<(), Error> {
        self.service.check_writable()?;
        let mut last = None;
        // Of no name: the logs are deleted, and their names may be others'.
        let slot = Arc::new(Slot::default());
        for remains in wanted {
            let (log, next_seq, chain) = (remains.log(), remains.cut, remains.chain);
            let permit = Some(self.service.place_for_a_call()?);
            last = Some(self.service.committer.submit(&slot, Some(Change::Purge { log, next_seq, chain }), permit));
        }
        match last {
            Some(waiter) => durable(waiter).await,
            None => Ok(()),
        }
    }
}

fn is_purgeable(remains: &Remains) -> bool {
    remains.is_all() || remains.cut < remains.session.next_seq
}

fn receipt(remains: &Remains) -> Purged {
    let birth = &remains.session.birth;
    Purged {
        key: birth.key.clone(),
        incarnation: birth.incarnation,
        from: remains.cut,
        events: remains.events,
        bytes: remains.bytes,
        chain: remains.chain,
        is_shared: !remains.is_all(),
    }
}

fn usage(store: &dyn Store, namespace: &Namespace) -> Result<Usage, StoreError> {
    let filter = ListFilter { namespace: namespace.as_str().to_owned(), ..ListFilter::default() };
    let (mut usage, mut after) = (Usage::default(), None::<ListCursor>);
    loop {
        let page = store.list(&filter, after, 1000)?;
        for session in &page.sessions {
            usage.sessions += 1;
            usage.events += session.next_seq.get();
            usage.shared_events += session.shared_until.get();
            usage.bytes += session.summary.bytes;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut after = None;
    loop {
        let remains = store.remains(after, LOGS_AT_ONCE)?;
        for remains in remains.iter().filter(|remains| remains.session.birth.key.namespace == *namespace) {
            usage.deleted_logs += 1;
            usage.deleted_bytes += remains.held_bytes;
            usage.purgeable_bytes += if is_purgeable(remains) { remains.bytes } else { 0 };
        }
        after = remains.last().map(Remains::log).or(after);
        if remains.len() < LOGS_AT_ONCE {
            return Ok(usage);
        }
    }
}
