//! The service: sessions, appends and reads, whatever the wire and whatever the engine.
//!
//! Floor 3. Checks and decides here (limits, order, repetition), acts through the [`Store`] port. An operation on a
//! session locks its slot for as long as it takes to decide and to queue, never over a wait and never over a disk.
//! What is absent: nothing here knows gRPC, files, or sled.

mod append;
mod boundary;
mod budget;
mod committer;
mod detach;
mod error;
mod face;
mod feed;
mod fold;
mod follow;
mod fork;
mod head;
mod note;
mod options;
mod owner;
mod ownership;
mod pipeline;
mod purge;
mod read;
mod retention;
mod session;
mod settled;
mod slots;
mod view;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::budget::{Budget, Permit};
use self::committer::{Committer, Unknown, Waiter};
use self::ownership::Act;
use self::session::{Live, Slot, State};
use self::slots::Slots;
use crate::metrics::Metrics;
use crate::model::{Header, Incarnation, Profile, SessionKey};
use crate::store::{Birth, Change, Health, ListCursor, ListFilter, Store, StoreError};

pub use self::append::{AckLevel, Append, Appended};
pub use self::detach::{Copied, Detaching};
pub use self::error::{Error, Fact, Reason};
pub use self::face::{Inspected, Loaded, Repair, Repaired};
pub use self::feed::{Feed, FeedStep};
pub use self::fold::TailState;
pub use self::follow::{Ending, Follow, Step, Wanted};
pub use self::fork::{Fork, Forked, Preset};
pub use self::head::{Head, Session};
pub use self::options::Options;
pub use self::owner::{Prepare, Prepared, check_ttl};
pub use self::ownership::{Claim, Holding};
pub use self::pipeline::{Offer, Outcome, Pipeline, Stored};
pub use self::purge::{Purged, Purging, Usage};
pub use self::read::{Batch, Reading};
pub use self::retention::{Aged, Kept, Retaining, Retention};
pub use self::view::{
    Ask, Assembled, Basis, Conversation, Family, History, Hold, PageOf, Reconstructed, RecordQuery, Relative,
    Statistics,
};

/// The service; cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
    committer: Committer,
}

struct Inner {
    store: Arc<dyn Store>,
    store_id: [u8; 16],
    options: Options,
    metrics: Arc<Metrics>,
    slots: Slots,
    appends: Budget,
    calls: Budget,
    reads: Budget,
    followers: Budget,
    follow_bytes: Budget,
    draining: AtomicBool,
    /// Held by whoever purges.
    purging: Arc<tokio::sync::Mutex<()>>,
    /// The volume is nearly full: nothing is taken that needs more of it.
    crammed: AtomicBool,
    /// See [`Options::log_only_types`].
    log_only: Arc<[String]>,
}

/// To whom a new session belongs.
#[derive(Clone, Debug)]
pub struct FirstClaim {
    /// Who claims it.
    pub claim: Claim,
    /// Live at once.
    pub publish: bool,
}

/// Calls without events (create, delete, flush) that may wait for the disk at once.
const CALLS_MAX: usize = 10_000;

/// Milliseconds since 1970 by this node's clock.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Service {
    /// A service over an engine, on the current runtime.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        Self::metered(store, options, Arc::default())
    }

    /// The same, counting into the metrics of the node.
    pub fn metered(store: Arc<dyn Store>, options: Options, metrics: Arc<Metrics>) -> Self {
        let waits = (options.accept_window, options.commit_timeout);
        let committer = Committer::new((store.clone(), metrics.clone()), waits, now_ms);
        let inner = Inner {
            store_id: store.id(),
            slots: Slots::new(store.clone(), options.idle_sessions_max),
            appends: Budget::new(options.append_budget_bytes),
            calls: Budget::new(CALLS_MAX),
            reads: Budget::new(options.reads_max),
            followers: Budget::new(options.followers_max),
            follow_bytes: Budget::new(options.follow_budget_bytes),
            draining: AtomicBool::new(false),
            purging: Arc::default(),
            crammed: AtomicBool::new(false),
            metrics,
            log_only: options.log_only_types.clone().into(),
            store,
            options,
        };
        Self { inner: Arc::new(inner), committer }
    }

    /// The same service, its commits led by another runtime: the thread that runs them waits for the disk.
    #[must_use]
    pub fn led_by(&self, leader: tokio::runtime::Handle) -> Self {
        Self { inner: self.inner.clone(), committer: self.committer.led_by(leader) }
    }

    /// Whether the disk takes long for the running commit.
    pub fn is_stalled(&self) -> bool {
        self.committer.is_stalled()
    }

    /// How long the running commit has been waiting for the disk, if one runs.
    pub fn commit_age(&self) -> Option<Duration> {
        self.committer.age()
    }

    /// What this service counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Brings the gauges up to date that nobody moves in passing.
    pub fn measure(&self) {
        let (inner, metrics) = (&self.inner, &self.inner.metrics);
        let budgets = [("append_bytes", &inner.appends), ("calls", &inner.calls), ("reads", &inner.reads)];
        for (name, budget) in budgets {
            metrics.budget_used.with(&[name]).set(budget.used() as f64);
            metrics.budget_limit.with(&[name]).set(budget.limit() as f64);
        }
        metrics.sessions_in_memory.set(inner.slots.len() as f64);
        metrics.commit_queue.set(self.committer.queued() as f64);
        metrics.commit_age.set(self.committer.age().unwrap_or_default().as_secs_f64());
    }

    /// Says whether the volume is so full that nothing more may be taken. It is asked for by whoever watches the disk.
    pub fn set_crammed(&self, is_crammed: bool) {
        self.inner.crammed.store(is_crammed, Ordering::Relaxed);
    }

    /// Creates a session, durably; says whether the very same session was there already. Without a creation time in
    /// the header, the clock decides, and a repetition need not match. A new one may belong to somebody at once.
    pub async fn create(
        &self,
        key: SessionKey,
        (header, profile, is_timed): (Header, Profile, bool),
        first: Option<FirstClaim>,
    ) -> Result<(Session, bool), Error> {
        header.check()?;
        self.check_writable()?;
        let permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(&key).await?;
        let (session, existed, waiter) = {
            let mut state = slot.state.lock();
            match &*state {
                State::Live(live) => {
                    let timed = Header { created_at_ms: live.birth.header.created_at_ms, ..header.clone() };
                    let wanted = if is_timed { header } else { timed };
                    if live.birth.header != wanted || live.birth.profile != profile {
                        let message = format!("`{key}` exists with another header or profile");
                        return Err(Error::new(Reason::SessionExists, message));
                    }
                    (live.session(self.inner.store_id), true, self.committer.submit(&slot, None, permit))
                }
                State::Absent | State::Unknown => {
                    let now_ms = now_ms();
                    let created_at_ms = if is_timed { header.created_at_ms } else { now_ms };
                    let header = Header { created_at_ms, ..header };
                    let incarnation = crate::store::new_incarnation();
                    let birth = Arc::new(Birth { key, incarnation, profile, header });
                    let log = self.inner.store.allot();
                    let mut live = Live::new(log, birth.clone(), now_ms);
                    live.fold = (profile != Profile::Raw).then(|| Box::new(self.new_fold()));
                    let mut changes = vec![Change::Create { log, birth }];
                    if let Some(first) = first {
                        changes.push(live.belong_to(&first)?);
                    }
                    let session = live.session_when_durable(self.inner.store_id);
                    let waiter = self.committer.submit_all(&slot, changes, permit);
                    *state = State::Live(Box::new(live));
                    (session, false, waiter)
                }
            }
        };
        durable(waiter).await?;
        if !existed {
            self.inner.metrics.sessions_created.inc();
        }
        // The commit decided when the log last changed; what is answered now is what a look at it will show.
        let state = slot.state.lock();
        let settled = live_as(&state, session.birth.incarnation).map(|live| live.session(self.inner.store_id));
        Ok((settled.unwrap_or(session), existed))
    }

    /// Header and head of a session.
    pub async fn get(&self, key: &SessionKey) -> Result<Session, Error> {
        let slot = self.inner.slots.get(key).await?;
        let (session, log) = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            (live.session(self.inner.store_id), live.log)
        };
        let store = self.inner.store.clone();
        let forks = blocking(move || store.forks(log)).await??;
        Ok(Session { forks: Some(forks), ..session })
    }

    /// A page of sessions, with durable heads, and where the next one starts.
    pub async fn list(
        &self,
        filter: ListFilter,
        after: Option<ListCursor>,
        count: usize,
    ) -> Result<(Vec<Session>, Option<ListCursor>), Error> {
        let store = self.inner.store.clone();
        let store_id = self.inner.store_id;
        let page = blocking(move || {
            let page = store.list(&filter, after, count)?;
            let session = |session: crate::store::Session| {
                let forks = Some(store.forks(session.log)?);
                let found = crate::store::Found { session, damage: None };
                Ok(Session { forks, ..Live::from(found).session(store_id) })
            };
            let sessions = page.sessions.into_iter().map(session).collect::<Result<_, StoreError>>()?;
            Ok::<_, StoreError>((sessions, page.next))
        });
        Ok(page.await??)
    }

    /// Deletes a session, durably, and gives the head it had. An owned one needs the epoch.
    pub async fn delete(
        &self,
        key: &SessionKey,
        incarnation: Option<Incarnation>,
        epoch: Option<u64>,
    ) -> Result<Head, Error> {
        self.check_writable()?;
        let permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(key).await?;
        let queued = {
            let mut state = slot.state.lock();
            let live = live_mut(&mut state, key)?;
            live.check_incarnation(incarnation)?;
            let change = Change::Delete { log: live.log, next_seq: live.next_seq, chain: live.chain };
            let allowed = live.check_epoch(epoch, Act::Keep).map(|()| live.head(self.inner.store_id));
            if allowed.is_ok() {
                slot.part(live);
            }
            allowed.map(|head| {
                let waiter = self.committer.submit(&slot, Some(change), permit);
                *state = State::Absent;
                (head, waiter)
            })
        };
        let head = self.settled(&slot, queued).await?;
        self.inner.metrics.sessions_deleted.inc();
        Ok(head)
    }

    /// Waits until everything that was accepted before is durable. Refused with an epoch that is not the current one.
    pub async fn flush(&self, key: &SessionKey, epoch: Option<u64>) -> Result<Head, Error> {
        let permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(key).await?;
        let queued = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            live.check_epoch(epoch, Act::Flush)
                .map(|()| (live.head(self.inner.store_id), self.committer.submit(&slot, None, permit)))
        };
        let head = self.settled(&slot, queued).await?;
        Ok(Head { durable_next_seq: head.next_seq, ..head })
    }

    /// Waits for what was queued, or until its refusal may be told.
    async fn settled(&self, slot: &Arc<Slot>, queued: Result<(Head, Waiter), Error>) -> Result<Head, Error> {
        match queued {
            Err(error) => Err(self.told(slot, error).await),
            Ok((head, waiter)) => durable(waiter).await.map(|()| head),
        }
    }

    /// Whether writes are taken.
    pub fn health(&self) -> Health {
        match self.inner.store.health() {
            Health::Writable if self.committer.has_failed() => Health::Poisoned("a commit failed".into()),
            Health::Writable if self.inner.crammed.load(Ordering::Relaxed) => {
                Health::Full("less than disk_free_min is free".into())
            }
            health => health,
        }
    }

    /// Refuses what would write from now on.
    pub fn refuse_writes(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
    }

    /// Refuses writes, commits what was accepted, and closes the engine.
    pub async fn close(&self) {
        self.refuse_writes();
        self.committer.drain().await;
        let inner = self.inner.clone();
        let close = move || {
            inner.slots.note_all();
            inner.store.close();
        };
        if blocking(close).await.is_err() {
            tracing::error!("closing the store panicked");
        }
    }

    /// Whether the service is being closed.
    pub fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::SeqCst)
    }

    /// Drops what is in memory of sessions that nobody used for a while. Called now and then by the owner of the
    /// service.
    pub fn sweep(&self) {
        self.inner.slots.sweep();
    }

    /// Leave to put so many bytes into the queue.
    fn permit(&self, bytes: usize) -> Result<Permit, Error> {
        self.inner.appends.take(bytes).ok_or_else(crowded)
    }

    /// Leave to put a call without events into the queue. Counted apart, so that appends never crowd a flush out.
    fn place_for_a_call(&self) -> Result<Permit, Error> {
        self.inner.calls.take(1).ok_or_else(crowded)
    }

    fn check_writable(&self) -> Result<(), Error> {
        if self.is_draining() {
            return Err(Error::new(Reason::Draining, "the server is shutting down; nothing was stored"));
        }
        match self.health() {
            Health::Writable => Ok(()),
            Health::Full(_) => {
                Err(Error::new(Reason::StorageReadOnly, "no room for more, see the server's log; reads go on"))
            }
            Health::Poisoned(_) => {
                Err(Error::new(Reason::StorageReadOnly, "the store is read-only; see the server's log"))
            }
        }
    }
}

fn crowded() -> Error {
    Error::new(Reason::Rate, "too many calls are waiting for the disk; nothing was stored")
}

async fn durable(waiter: Waiter) -> Result<(), Error> {
    waiter.await.unwrap_or(Err(Unknown::Failed)).map_err(Into::into)
}

impl From<Unknown> for Error {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Stalled => {
                Self::new(Reason::SyncTimeout, "the disk did not answer in time; the outcome is unknown")
            }
            Unknown::Failed => {
                Self::new(Reason::SyncFailed, "the disk failed while the request waited; the outcome is unknown")
            }
        }
    }
}

fn absent(key: &SessionKey) -> Error {
    Error::new(Reason::SessionNotFound, format!("there is no session `{key}`"))
}

fn live<'a>(state: &'a State, key: &SessionKey) -> Result<&'a Live, Error> {
    match state {
        State::Live(live) => Ok(live),
        State::Absent | State::Unknown => Err(absent(key)),
    }
}

/// The log, if the name still has that life.
fn live_as(state: &State, incarnation: Incarnation) -> Option<&Live> {
    match state {
        State::Live(live) if live.birth.incarnation == incarnation => Some(live),
        _ => None,
    }
}

fn live_mut<'a>(state: &'a mut State, key: &SessionKey) -> Result<&'a mut Live, Error> {
    match state {
        State::Live(live) => Ok(live),
        State::Absent | State::Unknown => Err(absent(key)),
    }
}

/// Runs what may wait for a disk off the serving threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| {
        tracing::error!(%error, "a blocking task panicked");
        Error::new(Reason::Internal, "a defect of the server; see its log")
    })
}
