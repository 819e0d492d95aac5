//! The one place where changes are committed: a queue, groups, one sync each, answers to everybody.
//!
//! Group commit without a timer: while one group is being synced the next one gathers, so that the sync is the
//! window. The committer is a task of the serving runtime, started by whoever finds it idle, and it writes and syncs
//! on the worker thread that runs it. That is a blocking call on the runtime, on purpose: handing each group to a
//! thread of its own and back costs a third of the unary rate (measured; see README, "Performance"). The price is one
//! busy worker during a sync, so there are always at least two, and a watchdog wakes another one when a sync stalls.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::budget::Permit;
use super::session::{Slot, State};
use crate::model::limit::HEADER_BYTES_MAX;
use crate::store::{Change, Store};

/// Bytes and changes of one group.
const GROUP_BYTES_MAX: usize = 4 << 20;
const GROUP_CHANGES_MAX: usize = 4096;
/// A sync that takes longer makes the watchdog wake another worker.
const STALL: Duration = Duration::from_millis(20);

/// The group failed: the outcome of its changes is unknown, and no more will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// Told once everything queued before it is durable. Dropped unanswered only if the runtime goes away.
pub(super) type Waiter = oneshot::Receiver<Result<(), Failed>>;

struct Entry {
    slot: Arc<Slot>,
    /// `None` is a barrier.
    change: Option<Change>,
    answer: Option<oneshot::Sender<Result<(), Failed>>>,
    _permit: Option<Permit>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    running: bool,
    /// A window is open for entries that nobody waits for.
    armed: bool,
}

/// Handle of the committer.
#[derive(Clone)]
pub(super) struct Committer {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    queue: Mutex<Queue>,
    window: Duration,
    tasks: TaskTracker,
    /// Closes open windows when the service goes.
    closing: CancellationToken,
    handle: Handle,
    watchdog: Watchdog,
    /// A commit failed: nothing more is stored, and nothing that was not durable will be.
    failed: AtomicBool,
    now_ms: fn() -> u64,
}

impl Committer {
    /// A committer on the current runtime. `window` is how long an accepted change may wait for company.
    pub(super) fn new(store: Arc<dyn Store>, window: Duration, now_ms: fn() -> u64) -> Self {
        let handle = Handle::current();
        let watchdog = Watchdog::start(handle.clone());
        let (queue, tasks) = (Mutex::default(), TaskTracker::new());
        let (closing, failed) = (CancellationToken::new(), AtomicBool::new(false));
        let shared = Shared { store, queue, window, tasks, closing, handle, watchdog, failed, now_ms };
        Self { shared: Arc::new(shared) }
    }

    /// Queues a change that nobody waits for; it is written when the window closes, or with the next group.
    ///
    /// Called with the slot locked, so that the order of the queue is the order of the log.
    pub(super) fn accept(&self, slot: &Arc<Slot>, change: Change, permit: Permit) {
        let entry = Entry { slot: slot.clone(), change: Some(change), answer: None, _permit: Some(permit) };
        let mut queue = self.shared.queue.lock();
        queue.entries.push_back(entry);
        if !queue.running && !queue.armed {
            queue.armed = true;
            let shared = self.shared.clone();
            self.shared.tasks.spawn_on(
                async move {
                    // An end by either side is the end of the window.
                    let _ = tokio::time::timeout(shared.window, shared.closing.cancelled()).await;
                    shared.start(&mut shared.queue.lock());
                },
                &self.shared.handle,
            );
        }
    }

    /// Queues a change, or a barrier, and tells when it and everything before it is durable.
    ///
    /// Called with the slot locked, so that the order of the queue is the order of the log.
    pub(super) fn submit(&self, slot: &Arc<Slot>, change: Option<Change>, permit: Option<Permit>) -> Waiter {
        let (answer, waiter) = oneshot::channel();
        let entry = Entry { slot: slot.clone(), change, answer: Some(answer), _permit: permit };
        let mut queue = self.shared.queue.lock();
        queue.entries.push_back(entry);
        self.shared.start(&mut queue);
        waiter
    }

    /// Whether a commit failed, so that none will succeed.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Writes what is queued and waits for the end of all tasks.
    pub(super) async fn drain(&self) {
        self.shared.closing.cancel();
        self.shared.start(&mut self.shared.queue.lock());
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    fn start(self: &Arc<Self>, queue: &mut Queue) {
        if !queue.running && !queue.entries.is_empty() {
            queue.running = true;
            self.tasks.spawn_on(self.clone().run(), &self.handle);
        }
    }

    async fn run(self: Arc<Self>) {
        while let Some(group) = self.next_group() {
            self.commit(group);
            // Lets the answers out, and everybody in who became ready meanwhile.
            tokio::task::yield_now().await;
        }
    }

    fn next_group(&self) -> Option<Vec<Entry>> {
        let mut queue = self.queue.lock();
        queue.armed = false;
        let (mut bytes, mut count) = (0, 0);
        for entry in queue.entries.iter().take(GROUP_CHANGES_MAX) {
            bytes += match &entry.change {
                Some(Change::Append { run, .. }) => run.events.len(),
                Some(Change::Create { .. }) => HEADER_BYTES_MAX,
                Some(Change::Delete { .. }) | None => 0,
            };
            if count > 0 && bytes > GROUP_BYTES_MAX {
                break;
            }
            count += 1;
        }
        queue.running = count > 0;
        (count > 0).then(|| queue.entries.drain(..count).collect())
    }

    fn commit(&self, mut group: Vec<Entry>) {
        let (mut slots, mut changes) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        for entry in &mut group {
            if let Some(change) = entry.change.take() {
                slots.push(entry.slot.clone());
                changes.push(change);
            }
        }
        let time_ms = (self.now_ms)();
        let committed = self.store(&changes, time_ms);
        if committed.is_ok() {
            slots.iter().zip(&changes).for_each(|(slot, change)| settle(slot, change, time_ms));
        }
        for answer in group.into_iter().filter_map(|entry| entry.answer) {
            // A client that went away does not hear the answer.
            let _ = answer.send(committed);
        }
    }
}

impl Shared {
    /// Stores a group. A group of barriers alone is durable only if everything before it was.
    fn store(&self, changes: &[Change], time_ms: u64) -> Result<(), Failed> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(Failed);
        }
        if changes.is_empty() {
            return Ok(());
        }
        // A panic must not leave the queue without its task: everybody behind would wait for ever.
        let commit = AssertUnwindSafe(|| self.store.commit(changes, time_ms));
        match self.watchdog.during(|| catch_unwind(commit)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => tracing::error!(%error, changes = changes.len(), "a commit failed"),
            Err(_) => tracing::error!(changes = changes.len(), "the engine panicked in a commit"),
        }
        self.failed.store(true, Ordering::Relaxed);
        Err(Failed)
    }
}

/// Moves the durable mark of a session, and its time to the one that is stored.
fn settle(slot: &Slot, change: &Change, time_ms: u64) {
    let (log, run) = match change {
        Change::Append { log, run } => (log, Some(run)),
        Change::Create { log, .. } => (log, None),
        Change::Delete { .. } => return,
    };
    if let State::Live(live) = &mut *slot.state.lock()
        && live.log == *log
    {
        match run {
            Some(run) => live.settle(run, time_ms),
            None => live.updated_ms = time_ms,
        }
    }
}

/// Sees to it that somebody serves while a sync blocks one worker.
///
/// A worker that blocks may be the one that was about to wait for the sockets; the others sleep until there is work,
/// so that none might listen. A task from outside wakes one of them.
struct Watchdog {
    epoch: Instant,
    /// Milliseconds since the epoch at which the running commit began, plus one; 0 when none runs.
    since: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Watchdog {
    fn start(handle: Handle) -> Self {
        let (epoch, since, stop) = (Instant::now(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (watched, stopped) = (since.clone(), stop.clone());
        let watch = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(STALL);
                let since = watched.load(Ordering::Relaxed);
                let now = epoch.elapsed().as_millis() as u64 + 1;
                if since != 0 && now > since + STALL.as_millis() as u64 {
                    handle.spawn(async {});
                }
            }
        };
        let started = std::thread::Builder::new().name("quipu-watchdog".to_owned()).spawn(watch);
        if let Err(error) = started {
            tracing::warn!(%error, "no watchdog: a stalled disk may also stall reads");
        }
        Self { epoch, since, stop }
    }

    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.since.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
        let done = work();
        self.since.store(0, Ordering::Relaxed);
        done
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
