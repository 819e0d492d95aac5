//! The service: sessions, appends and reads, whatever the wire and whatever the engine.
//!
//! Floor 3. Checks and decides here (limits, order, repetition), acts through the [`Store`] port. An operation on a
//! session locks its slot for as long as it takes to decide and to queue, never over a wait and never over a disk.
//! What is absent: nothing here knows gRPC, files, or sled.

mod append;
mod budget;
mod committer;
mod error;
mod feed;
mod fold;
mod follow;
mod pipeline;
mod read;
mod session;
mod settled;
mod slots;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::budget::{Budget, Permit};
use self::committer::{Committer, Unknown, Waiter};
use self::session::{Live, State};
use self::slots::Slots;
use crate::codec::Chain;
use crate::model::{Header, Incarnation, Limits, Profile, Seq, SessionKey};
use crate::store::{Birth, Change, Health, ListCursor, ListFilter, Store};

pub use self::append::{AckLevel, Append, Appended};
pub use self::error::{Error, Fact, Reason};
pub use self::feed::{Feed, FeedStep};
pub use self::fold::TailState;
pub use self::follow::{Ending, Follow, Step, Wanted};
pub use self::pipeline::{Offer, Outcome, Pipeline, Stored};
pub use self::read::{Batch, Reading};
pub use self::view::{
    Ask, Assembled, Basis, Conversation, Family, History, Hold, PageOf, Reconstructed, RecordQuery, Relative,
    Statistics,
};

/// Where a log stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The seq that the next event gets.
    pub next_seq: Seq,
    /// Everything below is on stable storage.
    pub durable_next_seq: Seq,
    /// Changes with every append, never with a read; equal for equal logs of one store only.
    pub revision: [u8; 16],
    /// The chain through `next_seq - 1`.
    pub chain: Chain,
    /// Which life of the name.
    pub incarnation: Incarnation,
    /// When the log last changed durably, by this node's clock.
    pub updated_ms: u64,
    /// What stands open at the end, if the log was folded.
    pub tail: Option<TailState>,
}

/// A session without its events.
#[derive(Clone, Debug)]
pub struct Session {
    /// Name, incarnation, profile, header.
    pub birth: Arc<Birth>,
    /// Where the log stands.
    pub head: Head,
}

/// How the service behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limits of an append.
    pub limits: Limits,
    /// Bytes of appends that may wait at once.
    pub append_budget_bytes: usize,
    /// Bytes of batches that one stream of appends may have unanswered.
    pub stream_credit_bytes: usize,
    /// Reads that may run at once.
    pub reads_max: usize,
    /// Streams and sessions on streams that may follow at once.
    pub followers_max: usize,
    /// Bytes of recent events kept for all followers together.
    pub follow_budget_bytes: usize,
    /// How long an accepted change may wait for company before it is written.
    pub accept_window: Duration,
    /// How long an append waits for the disk before its outcome is called unknown.
    pub commit_timeout: Duration,
    /// Sessions kept in memory although nobody uses them.
    pub idle_sessions_max: usize,
    /// Unknown event types that contribute nothing to any view.
    pub log_only_types: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            append_budget_bytes: 64 << 20,
            stream_credit_bytes: 4 << 20,
            reads_max: 256,
            followers_max: 20_000,
            follow_budget_bytes: 32 << 20,
            accept_window: Duration::from_millis(200),
            commit_timeout: Duration::from_secs(30),
            idle_sessions_max: 10_000,
            log_only_types: Vec::new(),
        }
    }
}

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
    slots: Slots,
    appends: Budget,
    calls: Budget,
    reads: Budget,
    followers: Budget,
    follow_bytes: Budget,
    draining: AtomicBool,
    /// See [`Options::log_only_types`].
    log_only: Arc<[String]>,
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
        let waits = (options.accept_window, options.commit_timeout);
        let committer = Committer::new(store.clone(), waits, now_ms);
        let inner = Inner {
            store_id: store.id(),
            slots: Slots::new(store.clone(), options.idle_sessions_max),
            appends: Budget::new(options.append_budget_bytes),
            calls: Budget::new(CALLS_MAX),
            reads: Budget::new(options.reads_max),
            followers: Budget::new(options.followers_max),
            follow_bytes: Budget::new(options.follow_budget_bytes),
            draining: AtomicBool::new(false),
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

    /// Creates a session, durably; says whether the very same session was there already. Without a creation time in
    /// the header, the clock decides, and a repetition need not match.
    pub async fn create(
        &self,
        key: SessionKey,
        (header, profile, is_timed): (Header, Profile, bool),
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
                    let session = live.session(self.inner.store_id);
                    let waiter = self.committer.submit(&slot, Some(Change::Create { log, birth }), permit);
                    *state = State::Live(live);
                    (session, false, waiter)
                }
            }
        };
        durable(waiter).await?;
        // The commit decided when the log last changed; what is answered now is what a look at it will show.
        let state = slot.state.lock();
        let settled = live_as(&state, session.birth.incarnation).map(|live| live.session(self.inner.store_id));
        Ok((settled.unwrap_or(session), existed))
    }

    /// Header and head of a session.
    pub async fn get(&self, key: &SessionKey) -> Result<Session, Error> {
        let slot = self.inner.slots.get(key).await?;
        let state = slot.state.lock();
        Ok(live(&state, key)?.session(self.inner.store_id))
    }

    /// A page of sessions, with durable heads, and where the next one starts.
    pub async fn list(
        &self,
        filter: ListFilter,
        after: Option<ListCursor>,
        count: usize,
    ) -> Result<(Vec<Session>, Option<ListCursor>), Error> {
        let store = self.inner.store.clone();
        let page = blocking(move || store.list(&filter, after, count)).await??;
        let session = |session: crate::store::Session| {
            let found = crate::store::Found { session, damage: None };
            Live::from(found).session(self.inner.store_id)
        };
        Ok((page.sessions.into_iter().map(session).collect(), page.next))
    }

    /// Deletes a session, durably, and gives the head it had.
    pub async fn delete(&self, key: &SessionKey, incarnation: Option<Incarnation>) -> Result<Head, Error> {
        self.check_writable()?;
        let permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(key).await?;
        let (head, waiter) = {
            let mut state = slot.state.lock();
            let live = live(&state, key)?;
            live.check_incarnation(incarnation)?;
            let head = live.head(self.inner.store_id);
            let change = Change::Delete { log: live.log, next_seq: live.next_seq, chain: live.chain };
            slot.part(live);
            let waiter = self.committer.submit(&slot, Some(change), permit);
            *state = State::Absent;
            (head, waiter)
        };
        durable(waiter).await?;
        Ok(head)
    }

    /// Waits until everything that was accepted before is durable.
    pub async fn flush(&self, key: &SessionKey) -> Result<Head, Error> {
        let permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(key).await?;
        let (head, waiter) = {
            let state = slot.state.lock();
            (live(&state, key)?.head(self.inner.store_id), self.committer.submit(&slot, None, permit))
        };
        durable(waiter).await?;
        Ok(Head { durable_next_seq: head.next_seq, ..head })
    }

    /// Whether writes are taken.
    pub fn health(&self) -> Health {
        match self.inner.store.health() {
            Health::Writable if self.committer.has_failed() => Health::Poisoned("a commit failed".into()),
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
        let store = self.inner.store.clone();
        if blocking(move || store.close()).await.is_err() {
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
