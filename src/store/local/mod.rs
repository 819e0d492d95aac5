//! The local engine: a journal that is the truth, and an index that finds things in it.
//!
//! A commit is one write and one `fdatasync` into a journal segment that was filled with zeros before, then a change
//! of the in-memory [`table`]. Now and then the table is frozen and written to the [`index`], whose checkpoint says
//! from where the journal must be replayed at the next open. An index that fails in any way is put aside and built
//! anew from the journal; a torn end of the journal is cut; damage anywhere else is remembered for the logs it
//! touches, which then say so, and everybody else is served.

mod dir;
mod feed;
mod forks;
mod index;
mod journal;
mod notes;
mod open;
mod options;
mod place;
mod read;
mod replay;
mod roll;
mod rows;
mod segment;
mod shares;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};

use self::dir::DataDir;
use self::index::Index;
use self::journal::{Cursor, Journal, Spares};
use self::open::{Opened, Rest};
pub use self::options::{OpenError, Options, Recovery};
use self::segment::Segment;
use self::table::{Base, Content, Table};
use super::{
    Change, ChangePage, Extent, Found, Health, ListCursor, ListFilter, ListPage, LogId, Note, Position, Remains, Run,
    Session, Store, StoreError,
};
use crate::codec::frame::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::metrics::Metrics;
use crate::model::{Seq, SessionKey};

/// A store on a local disk.
pub struct LocalStore {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    recovery: Recovery,
}

struct Shared {
    dir: DataDir,
    id: [u8; 16],
    options: Options,
    metrics: Arc<Metrics>,
    journal: Mutex<Journal>,
    view: RwLock<View>,
    segments: Mutex<HashMap<u64, Arc<Segment>>>,
    spares: Arc<Spares>,
    poisoned: RwLock<Option<Arc<str>>>,
    next_log: AtomicU64,
    rebuilds: AtomicU64,
    freezes: AtomicU64,
    wake: Mutex<Wake>,
    woken: Condvar,
    checkpointing: Mutex<()>,
    passed: feed::Passed,
}

/// Table over frozen table over index.
struct View {
    table: Table,
    frozen: Option<Arc<Table>>,
    index: Option<Arc<Index>>,
}

#[derive(Default)]
struct Wake {
    closed: bool,
    /// The index that came after so many rebuilds is unusable.
    unusable: Option<u64>,
}

impl LocalStore {
    /// Opens the store in `root`, making it if there is none.
    pub fn open(root: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_metered(root, options, Arc::default())
    }

    /// The same, counting into the metrics of the node.
    pub fn open_metered(root: &Path, options: Options, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let dir = DataDir::take(root)?;
        let numbers = segment::numbers(&dir.journal())?;
        let id = dir.identity(!numbers.is_empty())?;
        let Opened { index, table, rest, recovery } = open::open(&dir, id, options.index_cache_bytes)?;
        let Rest { current, cursor, spares, next_number } = rest;
        let header = SegmentHeader { store: id, segment: next_number, file_bytes: options.segment_bytes };
        let current = current.map_or_else(|| Segment::create(&dir.journal(), header).map(Arc::new), Ok)?;
        let header = SegmentHeader { segment: next_number.max(current.number + 1), ..header };
        let spares = Arc::new(Spares::new(&dir.journal(), header, spares, options.spare_segments));
        let cursor = if cursor.segment == current.number {
            cursor
        } else {
            Cursor { segment: current.number, offset: SEGMENT_HEADER_BYTES as u64, position: cursor.position }
        };
        dir.keep_reserve(options.reserve_bytes);
        let next_log = table.log_max + 1;
        let shared = Arc::new(Shared {
            journal: Mutex::new(Journal::new(id, (current, cursor), spares.clone(), metrics.clone())),
            view: RwLock::new(View { table: Table { cursor, ..table }, frozen: None, index: Some(Arc::new(index)) }),
            segments: Mutex::default(),
            spares,
            poisoned: RwLock::default(),
            next_log: next_log.into(),
            rebuilds: u64::from(recovery.rebuilt.is_some()).into(),
            freezes: AtomicU64::new(0),
            wake: Mutex::default(),
            woken: Condvar::new(),
            checkpointing: Mutex::default(),
            passed: feed::Passed::default(),
            dir,
            id,
            options,
            metrics,
        });
        shared.count(&recovery);
        let threads = start_threads(&shared)?;
        Ok(Self { shared, threads: Mutex::new(threads), recovery })
    }

    /// What opening found.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// How often the index was built anew since the store was opened.
    pub fn rebuilds(&self) -> u64 {
        self.shared.rebuilds.load(Ordering::Relaxed)
    }

    /// Writes all changes to the index now.
    pub fn checkpoint(&self) {
        self.shared.checkpoint();
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        self.close();
    }
}

fn start_threads(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let spares = shared.spares.clone();
    let maker = move || spares.make_until_closed();
    let checkpointer = {
        let shared = shared.clone();
        move || shared.checkpoint_until_closed()
    };
    let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
    Ok(vec![named("quipu-segments").spawn(maker)?, named("quipu-checkpoint").spawn(checkpointer)?])
}

impl Shared {
    fn count(&self, recovery: &Recovery) {
        self.metrics.replayed.add(recovery.replayed);
        self.metrics.torn_bytes.add(recovery.torn_bytes);
        self.metrics.damaged_places.add(recovery.damaged_places);
        self.metrics.index_rebuilds.add(u64::from(recovery.rebuilt.is_some()));
    }

    fn poison(&self, reason: &Arc<str>) {
        let mut poisoned = self.poisoned.write();
        if poisoned.is_none() {
            tracing::error!(%reason, "the store takes no more writes until it is opened anew; reads go on");
            *poisoned = Some(reason.clone());
        }
    }

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        let mut journal = self.journal.lock();
        if let Some(reason) = self.poisoned.read().clone() {
            return Err(StoreError::Poisoned(reason));
        }
        let written = journal.append(changes, time_ms).inspect_err(|error| self.poison(&error.to_string().into()))?;
        let contents: Vec<Content> = changes.iter().map(Content::from).collect();
        let mut view = self.view.write();
        let View { table, frozen, index } = &mut *view;
        let base = Base { frozen: frozen.as_deref(), index: index.as_deref() };
        let mut applied = Ok(());
        for (content, (header, place)) in contents.into_iter().zip(&written) {
            applied = applied.and_then(|()| table.apply(base, (header, *place), content, time_ms));
        }
        table.cursor = journal.cursor();
        drop(view);
        if applied.is_err() {
            // The changes are safe in the journal; only the way to find them is not.
            self.rebuild(&mut journal)?;
        }
        Ok(())
    }

    /// Puts the index aside and builds a new one, while nothing is committed. Takes nothing from the journal that was
    /// not committed: after a failed write there may be more.
    fn rebuild(&self, journal: &mut Journal) -> Result<(), StoreError> {
        let _guard = self.checkpointing.lock();
        self.view.write().index = None;
        let cache_bytes = self.options.index_cache_bytes;
        match open::rebuild(&self.dir, (self.id, cache_bytes), Some(journal.cursor()), &mut Recovery::default()) {
            Ok((index, table, _)) => {
                let table = Table { cursor: journal.cursor(), ..table };
                let mut view = self.view.write();
                *view = View { table, frozen: None, index: Some(Arc::new(index)) };
                self.rebuilds.fetch_add(1, Ordering::Relaxed);
                self.metrics.index_rebuilds.inc();
                tracing::warn!("the index was built anew from the journal");
                Ok(())
            }
            Err(error) => {
                self.poison(&format!("the index cannot be built anew: {error}").into());
                Err(StoreError::Rebuilding)
            }
        }
    }

    fn checkpoint_until_closed(&self) {
        loop {
            let unusable = {
                let mut wake = self.wake.lock();
                if !wake.closed && wake.unusable.is_none() {
                    self.woken.wait_for(&mut wake, self.options.checkpoint_interval);
                }
                if wake.closed {
                    return;
                }
                wake.unusable.take()
            };
            match unusable {
                None => self.checkpoint(),
                // Many may have asked for the same; a failure is kept as the reason of the poisoning.
                Some(seen) if seen == self.rebuilds.load(Ordering::Relaxed) => {
                    drop(self.rebuild(&mut self.journal.lock()));
                }
                Some(_) => {}
            }
        }
    }

    fn checkpoint(&self) {
        let _guard = self.checkpointing.lock();
        let (frozen, index) = {
            let mut view = self.view.write();
            let Some(index) = view.index.clone() else { return };
            // A frozen table that is still there was not written; a rebuild is on its way and replays it.
            if (view.table.logs.is_empty() && view.table.notes.is_empty()) || view.frozen.is_some() {
                return;
            }
            let next = view.table.successor();
            let frozen = Arc::new(std::mem::replace(&mut view.table, next));
            view.frozen = Some(frozen.clone());
            self.freezes.fetch_add(1, Ordering::Relaxed);
            (frozen, index)
        };
        let began = Instant::now();
        match index.write(&frozen) {
            Ok(()) => {
                self.metrics.checkpoint_duration.record(began.elapsed());
                self.view.write().frozen = None;
            }
            Err(broken) => {
                tracing::error!(%broken, "the index takes no checkpoint");
                self.ask_for_rebuild(self.rebuilds.load(Ordering::Relaxed));
            }
        }
    }

    /// Asks for another index than the one that came after so many rebuilds.
    fn ask_for_rebuild(&self, seen: u64) {
        self.wake.lock().unusable = Some(seen);
        self.woken.notify_all();
    }

    /// Passes an answer on; one that shows the index broken starts a rebuild.
    fn watched<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let before = self.rebuilds.load(Ordering::Relaxed);
        work().inspect_err(|error| {
            if matches!(error, StoreError::Rebuilding) {
                let view = self.view.read();
                // An answer from before the last rebuild says nothing about the index of now.
                if view.index.is_some() && self.rebuilds.load(Ordering::Relaxed) == before {
                    self.ask_for_rebuild(before);
                }
            }
        })
    }
}

impl Store for LocalStore {
    fn allot(&self) -> LogId {
        LogId(self.shared.next_log.fetch_add(1, Ordering::Relaxed))
    }

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        self.shared.commit(changes, time_ms)
    }

    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        self.shared.watched(|| self.shared.find(key))
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.shared.watched(|| self.shared.read(log, from, bytes_max))
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        self.shared.watched(|| self.shared.list(filter, after, count))
    }

    fn note(&self, log: LogId, note: Note) {
        self.shared.view.write().table.notes.insert(log, note);
    }

    fn noted(&self, log: LogId) -> Option<Note> {
        self.shared.noted(log)
    }

    fn extents(&self, log: LogId) -> Result<Arc<[Extent]>, StoreError> {
        self.shared.watched(|| self.shared.extents(log))
    }

    fn forks(&self, log: LogId) -> Result<u64, StoreError> {
        self.shared.watched(|| self.shared.forks(log))
    }

    fn needs(&self, log: LogId, from: Seq, until: Seq) -> Result<bool, StoreError> {
        self.shared.watched(|| self.shared.needs(log, from, until))
    }

    fn remains(&self, after: Option<LogId>, count: usize) -> Result<Vec<Remains>, StoreError> {
        self.shared.watched(|| self.shared.remains(after, count))
    }

    fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError> {
        self.shared.changes(from, bytes_max)
    }

    fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Session>, StoreError> {
        self.shared.watched(|| self.shared.sessions(after, count))
    }

    fn health(&self) -> Health {
        if let Some(reason) = self.shared.poisoned.read().clone() {
            return Health::Poisoned(reason);
        }
        let problem = self.shared.spares.problem();
        problem.map_or(Health::Writable, Health::Full)
    }

    fn position(&self) -> Position {
        Position(self.shared.view.read().table.cursor.position)
    }

    fn id(&self) -> [u8; 16] {
        self.shared.id
    }

    fn close(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return;
        }
        let unusable = {
            let mut wake = self.shared.wake.lock();
            wake.closed = true;
            wake.unusable.is_some()
        };
        self.shared.woken.notify_all();
        self.shared.spares.close();
        for thread in threads {
            // A thread that panicked has nothing left to say.
            drop(thread.join());
        }
        let _journal = self.shared.journal.lock();
        self.shared.poisoned.write().get_or_insert_with(|| "the store is closed".into());
        // A checkpoint would bless an index that is known to be broken.
        if !unusable {
            self.shared.checkpoint();
        }
    }
}
