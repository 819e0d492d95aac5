//! One host's way to write a session.
//!
//! [`SessionWriter`] takes events at the speed of memory and answers for them: each is in the log exactly once, in the
//! order in which it was taken. The work is done by the task in [`super::drive`], which belongs to the writer and ends
//! with it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::drive::{Driver, Shared, State};
use super::outbox::{Bounds, Outbox};
use super::transport::{Address, Transport};
use super::{AckLevel, Checkpoints, Error, Head, Pauses};
use crate::model::{Event, Limits, NewEvent, Seq};

/// How a writer goes about it.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// The epoch of the owner who writes; none writes as nobody.
    pub epoch: Option<u64>,
    /// How long the lease of that epoch runs: a writer without anything to write renews it after a third. None: the
    /// host renews it itself.
    pub lease: Option<Duration>,
    /// What an append is answered for. With `ACCEPTED` events are kept until a later answer says that they are durable.
    pub level: AckLevel,
    /// Where [`SessionWriter::record`] waits.
    pub checkpoints: Checkpoints,
    /// Events that are kept at most; [`SessionWriter::append`] then waits.
    pub events_max: usize,
    /// Bytes that are kept at most (one event is always taken).
    pub bytes_max: usize,
    /// Events of a batch. A server that takes fewer is obeyed.
    pub batch_events_max: usize,
    /// Bytes of a batch. A server that takes fewer is obeyed.
    pub batch_bytes_max: usize,
    /// Batches on their way, where the connection keeps their order.
    pub batches_in_flight: usize,
    /// Longest data of an event; larger ones are refused here, as the server would.
    pub event_bytes_max: usize,
    /// Longest wait for one answer.
    pub timeout: Duration,
    /// Pauses between attempts; a longer delay that the server names is kept.
    pub pauses: Pauses,
    /// How long failures that a repetition may help against are borne without a success in between.
    pub patience: Duration,
    /// How long something accepted waits for a reason to become durable, before it is flushed without one.
    pub settle_after: Duration,
}

impl Default for WriterOptions {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            epoch: None,
            lease: None,
            level: AckLevel::Durable,
            checkpoints: Checkpoints::default(),
            events_max: 100_000,
            bytes_max: 32 << 20,
            batch_events_max: limits.batch_events_max,
            batch_bytes_max: 1 << 20,
            batches_in_flight: 16,
            event_bytes_max: limits.event_bytes_max,
            timeout: Duration::from_secs(30),
            pauses: Pauses::default(),
            patience: Duration::from_secs(600),
            settle_after: Duration::from_millis(500),
        }
    }
}

/// How far a writer is. `durable <= confirmed <= next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Everything below is on stable storage.
    pub durable: Seq,
    /// Everything below is in the log, as far as the server's memory goes.
    pub confirmed: Seq,
    /// The seq that the next event gets.
    pub next: Seq,
}

/// What a writer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Batches that were sent, again or not.
    pub batches_sent: u64,
    /// Batches that were answered well.
    pub batches_confirmed: u64,
    /// Those of them that were stored before: their first answer was lost.
    pub deduplicated: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Times at which the server had less than it had accepted, and got it again.
    pub rewinds: u64,
}

/// Writes one session.
///
/// Contract. An event that [`append`](Self::append) took gets the seq that it returned, and is stored there exactly
/// once, over lost answers, broken connections and restarts of the server. It is kept until the server says that it is
/// durable. When the writer cannot go on (another owner, a refused event, a log that is not what was confirmed) it ends:
/// every call gives the same error from then on, [`unconfirmed`](Self::unconfirmed) has the events that are not known
/// to be stored, and [`Error::detail`] of a fence says whether the last batch is. Dropped, it stops at once; what it had
/// not confirmed may or may not be stored.
///
/// One writer per session and process. It may be shared; appends of several tasks get their places in some order.
pub struct SessionWriter {
    shared: Arc<Shared>,
    checkpoints: Checkpoints,
    limits: Limits,
    /// Ends with the writer.
    _driver: JoinSet<()>,
}

impl SessionWriter {
    pub(super) fn start(
        transport: Arc<dyn Transport>,
        (address, head): (Address, &Head),
        options: WriterOptions,
    ) -> Self {
        let bounds = Bounds {
            events: options.events_max,
            bytes: options.bytes_max,
            batch_events: options.batch_events_max.max(1),
            batch_bytes: options.batch_bytes_max,
        };
        let state = State { outbox: Outbox::new(head, bounds), barrier: 0, end: None, stats: WriterStats::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Notify::new(), moved: Notify::new() });
        let checkpoints = options.checkpoints.clone();
        let limits = Limits { event_bytes_max: options.event_bytes_max, ..Limits::default() };
        let mut driver = JoinSet::new();
        driver.spawn(Driver::new(shared.clone(), transport, (address, options)).run());
        Self { shared, checkpoints, limits, _driver: driver }
    }

    /// Takes an event and gives its place. Waits while too much is unanswered, and for nothing else. An event that no
    /// server would take is refused here and changes nothing. Dropped while it waits, it took nothing.
    pub async fn append(&self, event: NewEvent) -> Result<Seq, Error> {
        event.check(&self.limits)?;
        let weight = event.weight();
        let mut event = Some(event);
        self.until(|state| {
            if state.end.is_some() {
                return None;
            }
            if !state.outbox.has_room(weight) {
                // What is only accepted must become durable, or there will never be room.
                state.barrier = state.outbox.next();
                return None;
            }
            let event = event.take()?;
            Some(state.outbox.push(event).ok_or_else(|| Error::diverged("the log is full")))
        })
        .await?
    }

    /// [`append`](Self::append), and [`checkpoint`](Self::checkpoint) where the policy asks for it: when this returns,
    /// the host may do what the event announces.
    pub async fn record(&self, event: NewEvent) -> Result<Seq, Error> {
        let is_due = self.checkpoints.is_due_after(&event.kind);
        let seq = self.append(event).await?;
        if is_due {
            self.checkpoint().await?;
        }
        Ok(seq)
    }

    /// Returns when everything that was taken before the call is on stable storage; gives the durable mark. Costs no
    /// call when it is already.
    pub async fn checkpoint(&self) -> Result<Seq, Error> {
        let mut barrier = None;
        self.until(|state| {
            let upto = *barrier.get_or_insert_with(|| state.outbox.next());
            state.barrier = state.barrier.max(upto);
            let durable = state.outbox.durable();
            (durable >= upto).then(|| Seq::saturating(durable))
        })
        .await
    }

    /// How far it is.
    pub fn marks(&self) -> Marks {
        let state = self.shared.state.lock();
        let [durable, confirmed, next] =
            [state.outbox.durable(), state.outbox.confirmed(), state.outbox.next()].map(Seq::saturating);
        Marks { durable, confirmed, next }
    }

    /// What it did.
    pub fn stats(&self) -> WriterStats {
        self.shared.state.lock().stats
    }

    /// The events that are not known to be in the log, in order, with the places that they were meant for. After a
    /// fence these are the ones that did not land.
    pub fn unconfirmed(&self) -> Vec<Event> {
        self.shared.state.lock().outbox.unconfirmed()
    }

    /// Why it ended, if it did.
    pub fn ended(&self) -> Option<Error> {
        self.shared.state.lock().end.as_deref().cloned()
    }

    /// A last checkpoint, and the end.
    pub async fn close(self) -> Result<Seq, Error> {
        self.checkpoint().await
    }

    /// Waits until `ready` gives something. It is asked again whenever a mark moved.
    async fn until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        loop {
            let mut moved = std::pin::pin!(self.shared.moved.notified());
            // From here on nothing is missed.
            moved.as_mut().enable();
            {
                let mut state = self.shared.state.lock();
                if let Some(given) = ready(&mut state) {
                    drop(state);
                    self.shared.work.notify_one();
                    return Ok(given);
                }
                if let Some(end) = &state.end {
                    return Err(Error::clone(end));
                }
                drop(state);
                self.shared.work.notify_one();
            }
            moved.await;
        }
    }
}

impl std::fmt::Debug for SessionWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionWriter").field("marks", &self.marks()).finish_non_exhaustive()
    }
}
