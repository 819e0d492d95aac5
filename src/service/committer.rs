//! The one place where changes are committed: a queue, groups, one sync each, answers to everybody.
//!
//! Group commit without a timer: while one group is being synced the next one gathers, so that the sync is the
//! window. The committer is a task of a serving loop, started by whoever finds it idle, and it writes and syncs on
//! the thread of that loop. That is a blocking call on the runtime, on purpose: handing each group to a thread of its
//! own and back costs a third of the unary rate (measured; README, "Performance"). What it costs is that the loop
//! serves nobody during a sync; a watchdog tells when that takes long, and answers those who wait too long. Large
//! groups go to another thread after all: there the hand-over is nothing beside the work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::budget::Permit;
use super::session::{Slot, State};
use super::settled::Settled;
use super::watchdog::Watchdog;
use crate::metrics::{GroupSpan, Metrics, SpanRef};
use crate::model::limit::HEADER_BYTES_MAX;
use crate::store::{Change, Extent, Store};

/// Bytes and changes of one group.
const GROUP_BYTES_MAX: usize = 4 << 20;
const GROUP_CHANGES_MAX: usize = 4096;
/// A group of so many bytes is written by another thread: its copies and checksums cost more than the hand-over.
const HAND_OVER_BYTES: usize = 128 << 10;
/// A commit that takes longer is a stall.
const STALL: Duration = Duration::from_millis(20);

/// Why a waiter hears that the outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The group failed, and no more will be written.
    Failed,
    /// The disk has not answered for too long; the group may still become durable.
    Stalled,
}

/// Where an answer goes.
enum Answer {
    /// To whoever waits for this one entry.
    One(oneshot::Sender<Result<(), Unknown>>),
    /// To somebody with many entries, which are answered in the order of the queue.
    Counted(Arc<Settled>),
}

impl Answer {
    fn send(self, committed: Result<(), Unknown>) {
        match self {
            // A client that went away does not hear the answer.
            Self::One(waiter) => drop(waiter.send(committed)),
            Self::Counted(settled) => settled.note(committed),
        }
    }
}

/// Told once everything queued before it is durable. Dropped unanswered only if the runtime goes away.
pub(super) type Waiter = oneshot::Receiver<Result<(), Unknown>>;

struct Entry {
    slot: Arc<Slot>,
    /// It only waits for what is before it.
    is_barrier: bool,
    change: Option<Change>,
    answer: Option<Answer>,
    /// The call that it belongs to, if that is traced.
    span: Option<SpanRef>,
    _permit: Option<Permit>,
}

/// What is committed at once.
struct Group {
    entries: Vec<Entry>,
    bytes: usize,
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
    /// Runs the commits that calls of this handle start.
    leader: Handle,
}

struct Shared {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    queue: Arc<Mutex<Queue>>,
    /// Who waits for the group that is being committed.
    waiting: Arc<Mutex<Vec<Answer>>>,
    window: Duration,
    tasks: TaskTracker,
    /// Closes open windows when the service goes.
    closing: CancellationToken,
    watchdog: Watchdog,
    /// A commit failed: nothing more is stored, and nothing that was not durable will be.
    failed: AtomicBool,
    /// The position of the last commit, for who wants to be woken.
    position: tokio::sync::watch::Sender<u64>,
    now_ms: fn() -> u64,
}

impl Committer {
    /// A committer on the current runtime. `window` is how long an accepted change may wait for company, `timeout`
    /// how long a waiter waits for a commit that has begun.
    pub(super) fn new(
        (store, metrics): (Arc<dyn Store>, Arc<Metrics>),
        (window, timeout): (Duration, Duration),
        now_ms: fn() -> u64,
    ) -> Self {
        let (queue, waiting, tasks) = (Arc::default(), Arc::default(), TaskTracker::new());
        let stalled = {
            let (queue, waiting) = (Arc::clone(&queue), Arc::clone(&waiting));
            move || give_up(&queue, &waiting)
        };
        let watchdog = Watchdog::start(timeout, stalled);
        let (closing, failed) = (CancellationToken::new(), AtomicBool::new(false));
        let shared = Shared {
            store,
            metrics,
            queue,
            waiting,
            window,
            tasks,
            closing,
            watchdog,
            failed,
            position: tokio::sync::watch::Sender::default(),
            now_ms,
        };
        Self { shared: Arc::new(shared), leader: Handle::current() }
    }

    /// The same committer, its commits started on another runtime.
    pub(super) fn led_by(&self, leader: Handle) -> Self {
        Self { shared: self.shared.clone(), leader }
    }

    /// Moves with every commit.
    pub(super) fn mark(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.position.subscribe()
    }

    /// Whether a commit has been waiting for the disk for long.
    pub(super) fn is_stalled(&self) -> bool {
        self.age().is_some_and(|took| took > STALL)
    }

    /// How long the running commit has been going on.
    pub(super) fn age(&self) -> Option<Duration> {
        self.shared.watchdog.took()
    }

    /// Changes that wait for a group.
    pub(super) fn queued(&self) -> usize {
        self.shared.queue.lock().entries.len()
    }

    /// Queues a change that nobody waits for; it is written when the window closes, or with the next group.
    ///
    /// Called with the slot locked, so that the order of the queue is the order of the log.
    pub(super) fn accept(&self, slot: &Arc<Slot>, change: Change, permit: Permit) {
        let slot = slot.clone();
        let span = SpanRef::current();
        let entry = Entry { slot, is_barrier: false, change: Some(change), answer: None, span, _permit: Some(permit) };
        let mut queue = self.shared.queue.lock();
        queue.entries.push_back(entry);
        if !queue.running && !queue.armed {
            queue.armed = true;
            let (shared, leader) = (self.shared.clone(), self.leader.clone());
            self.shared.tasks.spawn_on(
                async move {
                    // An end by either side is the end of the window.
                    let _ = tokio::time::timeout(shared.window, shared.closing.cancelled()).await;
                    shared.start(&mut shared.queue.lock(), &leader);
                },
                &self.leader,
            );
        }
    }

    /// Queues a change, or a barrier, and tells when it and everything before it is durable.
    ///
    /// Called with the slot locked, so that the order of the queue is the order of the log.
    pub(super) fn submit(&self, slot: &Arc<Slot>, change: Option<Change>, permit: Option<Permit>) -> Waiter {
        let (answer, waiter) = oneshot::channel();
        self.queue(slot, change, (permit, Answer::One(answer)));
        waiter
    }

    /// The same for somebody with many entries on their way, who counts.
    pub(super) fn submit_counted(&self, slot: &Arc<Slot>, change: Change, to: (Permit, &Arc<Settled>)) {
        let (permit, settled) = to;
        self.queue(slot, Some(change), (Some(permit), Answer::Counted(settled.clone())));
    }

    fn queue(&self, slot: &Arc<Slot>, change: Option<Change>, (permit, answer): (Option<Permit>, Answer)) {
        let is_barrier = change.is_none();
        let (slot, answer, span) = (slot.clone(), Some(answer), SpanRef::current());
        let entry = Entry { slot, is_barrier, change, answer, span, _permit: permit };
        let mut queue = self.shared.queue.lock();
        queue.entries.push_back(entry);
        self.shared.start(&mut queue, &self.leader);
    }

    /// Queues changes of one session in one piece, and tells when they and everything before them is durable.
    ///
    /// Called with the slot locked, so that the order of the queue is the order of the log.
    pub(super) fn submit_all(&self, slot: &Arc<Slot>, changes: Vec<Change>, permit: Option<Permit>) -> Waiter {
        let (answer, waiter) = oneshot::channel();
        let (slot, span) = (slot.clone(), SpanRef::current());
        let changes = changes.into_iter().map(|change| {
            let slot = slot.clone();
            Entry { slot, is_barrier: false, change: Some(change), answer: None, span: None, _permit: None }
        });
        let changes: Vec<_> = changes.collect();
        let barrier =
            Entry { slot, is_barrier: true, change: None, answer: Some(Answer::One(answer)), span, _permit: permit };
        let mut queue = self.shared.queue.lock();
        queue.entries.extend(changes);
        queue.entries.push_back(barrier);
        self.shared.start(&mut queue, &self.leader);
        waiter
    }

    /// Whether a commit failed, so that none will succeed.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Writes what is queued and waits for the end of all tasks.
    pub(super) async fn drain(&self) {
        self.shared.closing.cancel();
        self.shared.start(&mut self.shared.queue.lock(), &self.leader);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    fn start(self: &Arc<Self>, queue: &mut Queue, leader: &Handle) {
        if !queue.running && !queue.entries.is_empty() {
            queue.running = true;
            self.tasks.spawn_on(self.clone().run(), leader);
        }
    }

    async fn run(self: Arc<Self>) {
        while let Some(group) = self.next_group() {
            let (group, changes) = self.gather(group);
            let time_ms = (self.now_ms)();
            let began = Instant::now();
            let (committed, changes) = if group.bytes < HAND_OVER_BYTES {
                (self.store(&changes, time_ms), changes)
            } else {
                let shared = self.clone();
                let stored = tokio::task::spawn_blocking(move || (shared.store(&changes, time_ms), changes)).await;
                // The runtime went away before the group was written, or it never will be answered.
                stored.unwrap_or((Err(Unknown::Failed), Vec::new()))
            };
            self.measure(&group, (changes.len(), committed.is_ok()), (time_ms, began.elapsed()));
            self.finish(group, (committed, &changes), time_ms);
            // Lets the answers out, and everybody in who became ready meanwhile.
            tokio::task::yield_now().await;
        }
    }

    fn next_group(&self) -> Option<Group> {
        let mut queue = self.queue.lock();
        queue.armed = false;
        let (mut bytes, mut count) = (0, 0);
        for entry in queue.entries.iter().take(GROUP_CHANGES_MAX) {
            let more = match &entry.change {
                Some(
                    Change::Append { run, .. } | Change::Repair { run, .. } | Change::Detach { copy: Some(run), .. },
                ) => run.events.len(),
                Some(Change::Create { .. } | Change::Owner { .. }) => HEADER_BYTES_MAX,
                Some(Change::Fork { graft, .. }) => 2 * (HEADER_BYTES_MAX + graft.extents.len() * Extent::BYTES),
                Some(Change::Delete { .. } | Change::Detach { copy: None, .. } | Change::Purge { .. }) | None => 0,
            };
            if count > 0 && bytes + more > GROUP_BYTES_MAX {
                break;
            }
            bytes += more;
            count += 1;
        }
        queue.running = count > 0;
        (count > 0).then(|| Group { entries: queue.entries.drain(..count).collect(), bytes })
    }

    /// Takes the changes out of a group, and notes who waits for it.
    fn gather(&self, mut group: Group) -> (Group, Vec<Change>) {
        self.waiting.lock().extend(group.entries.iter_mut().filter_map(|entry| entry.answer.take()));
        let changes = group.entries.iter_mut().filter_map(|entry| entry.change.take());
        let changes: Vec<Change> = changes.collect();
        (group, changes)
    }

    /// Counts a group, and tells who asked for it which calls it carried.
    fn measure(&self, group: &Group, (changes, is_stored): (usize, bool), (time_ms, took): (u64, Duration)) {
        if changes > 0 {
            self.metrics.commit_duration.record(took);
            self.metrics.commit_changes.count(changes as u64);
        }
        if !is_stored {
            self.metrics.commit_failures.inc();
        }
        let links = group.entries.iter().filter_map(|entry| entry.span);
        if let Some(spans) = self.metrics.spans.get().filter(|_| links.clone().next().is_some()) {
            let (links, began) = (links.collect(), UNIX_EPOCH + Duration::from_millis(time_ms));
            spans.committed(GroupSpan { links, began, took, changes, bytes: group.bytes, is_stored });
        }
    }

    /// Moves the durable marks, and answers everybody.
    fn finish(&self, group: Group, (committed, changes): (Result<(), Unknown>, &[Change]), time_ms: u64) {
        if committed.is_ok() {
            let changing = group.entries.iter().filter(|entry| !entry.is_barrier);
            changing.zip(changes).for_each(|(entry, change)| settle(&*self.store, (&entry.slot, change), time_ms));
        } else {
            for entry in &group.entries {
                if let State::Live(live) = &*entry.slot.state.lock() {
                    live.give_up();
                }
            }
        }
        // Before the answers: whoever hears that the queue is empty must find room in it.
        drop(group);
        answer_all(std::mem::take(&mut *self.waiting.lock()), committed);
        if self.position.receiver_count() > 0 {
            self.position.send_replace(self.store.position().0);
        }
    }
}

fn answer_all(answers: impl IntoIterator<Item = Answer>, committed: Result<(), Unknown>) {
    answers.into_iter().for_each(|answer| answer.send(committed));
}

/// Tells everybody who waits, for the running group or behind it, that the outcome is unknown.
fn give_up(queue: &Mutex<Queue>, waiting: &Mutex<Vec<Answer>>) {
    let behind: Vec<Answer> = queue.lock().entries.iter_mut().filter_map(|entry| entry.answer.take()).collect();
    answer_all(std::mem::take(&mut *waiting.lock()).into_iter().chain(behind), Err(Unknown::Stalled));
}

impl Shared {
    /// Stores a group. A group of barriers alone is durable only if everything before it was.
    fn store(&self, changes: &[Change], time_ms: u64) -> Result<(), Unknown> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(Unknown::Failed);
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
        Err(Unknown::Failed)
    }
}

/// Moves the durable mark of a session, and its time to the one that is stored.
fn settle(store: &dyn Store, (slot, change): (&Slot, &Change), time_ms: u64) {
    let log = match change {
        Change::Append { log, .. }
        | Change::Repair { log, .. }
        | Change::Create { log, .. }
        | Change::Fork { log, .. }
        | Change::Owner { log, .. } => log,
        Change::Delete { log, .. } => return slot.parted(*log),
        Change::Detach { .. } | Change::Purge { .. } => return,
    };
    if let State::Live(live) = &mut *slot.state.lock()
        && live.log == *log
    {
        match change {
            Change::Append { run, .. } | Change::Repair { run, .. } => live.settle(run, time_ms),
            Change::Fork { graft, .. } => live.settle_birth(graft, time_ms),
            Change::Create { .. } => live.updated_ms = time_ms,
            Change::Owner { owner, .. } => live.ownership.settle(owner),
            Change::Delete { .. } | Change::Detach { .. } | Change::Purge { .. } => {}
        }
        if let Some(note) = live.durable_note() {
            store.note(*log, note);
        }
    }
}
