//! The local engine: a journal that is the truth, and an index that finds things in it.
//!
//! A commit is one write and one `fdatasync` into a journal segment that was filled with zeros before, then a change
//! of the in-memory [`table`]. Now and then the table is frozen and written to the [`index`], whose checkpoint says
//! from where the journal must be replayed at the next open. An index that fails in any way is put aside and built
//! anew from the journal; a torn end of the journal is cut; damage anywhere else is remembered for the logs it
//! touches, which then say so, and everybody else is served.

mod dir;
mod index;
mod journal;
mod place;
mod replay;
mod segment;
mod table;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use self::dir::DataDir;
use self::index::{Index, Mark};
use self::journal::{Cursor, Journal, Spares};
use self::place::Place;
use self::replay::replay;
use self::segment::Segment;
use self::table::{Base, Entry, Loader, Table};
use super::{
    Change, Damage, Found, Health, ListCursor, ListFilter, ListPage, LogId, Position, Run, Session, Store, StoreError,
};
use crate::codec::frame::{RECORD_HEADER_BYTES, RecordStart, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::model::{Namespace, Seq, SessionKey};

/// How a local store behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a journal segment, at least 1 MiB; must hold the largest group.
    pub segment_bytes: u64,
    /// Empty segments kept ready.
    pub spare_segments: usize,
    /// Memory for the pages of the index.
    pub index_cache_bytes: u64,
    /// Time between checkpoints of the index.
    pub checkpoint_interval: Duration,
    /// Space kept back so that a full disk does not keep the store from opening; 0 for none.
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            spare_segments: 2,
            index_cache_bytes: 16 << 20,
            checkpoint_interval: Duration::from_secs(2),
            reserve_bytes: 16 << 20,
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("`{}` is in use by {holder}; stop it, or choose another data directory", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// What the lock says.
        holder: String,
    },
    /// Another layout.
    #[error("the store has format {found}, this quipu reads {supported}: {}", if found > supported { "use a newer quipu" } else { "use an older quipu" })]
    OtherFormat {
        /// What the store says.
        found: u32,
        /// What this version reads.
        supported: u32,
    },
    /// The FORMAT file is damaged.
    #[error("`{}` is damaged; restore it from a backup, it never changes after creation", path.display())]
    DamagedFormat {
        /// The file.
        path: PathBuf,
    },
    /// A journal without a FORMAT file.
    #[error("`{}` is missing although there is a journal; restore it from a backup", path.display())]
    NoFormat {
        /// The file.
        path: PathBuf,
    },
    /// The index could be neither opened nor made.
    #[error("the index can be neither opened nor made: {0}")]
    Index(String),
    /// The engine.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Changes replayed from the journal.
    pub replayed: u64,
    /// Bytes of a torn end that were cut.
    pub torn_bytes: u64,
    /// Damaged places met in the journal.
    pub damaged_places: u64,
    /// Why the index was built anew, if it was.
    pub rebuilt: Option<String>,
}

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
    journal: Mutex<Journal>,
    view: RwLock<View>,
    segments: Mutex<HashMap<u64, Arc<Segment>>>,
    spares: Arc<Spares>,
    poisoned: RwLock<Option<Arc<str>>>,
    next_log: AtomicU64,
    rebuilds: AtomicU64,
    wake: Mutex<Wake>,
    woken: Condvar,
    checkpointing: Mutex<()>,
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
    rebuild: bool,
}

/// Open segment files kept for reading.
const SEGMENTS_OPEN_MAX: usize = 64;
/// Gap between two records that is read along rather than sought over.
const READ_GAP_MAX: u64 = 8 << 10;
/// List rows looked at for one page.
const LIST_ROWS_MAX: usize = 10_000;

impl LocalStore {
    /// Opens the store in `root`, making it if there is none.
    pub fn open(root: &Path, options: Options) -> Result<Self, OpenError> {
        let dir = DataDir::take(root)?;
        let numbers = segment::numbers(&dir.journal())?;
        let id = dir.identity(!numbers.is_empty())?;
        let (index, mark, rebuilt) = open_index(&dir, id, options.index_cache_bytes)?;
        let mut recovery = Recovery { rebuilt, ..Recovery::default() };
        let (table, rest) = load(&dir, id, (&index, mark), &mut recovery)?;
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
        let next_log = table.log_max.max(mark.log_max) + 1;
        let shared = Arc::new(Shared {
            journal: Mutex::new(Journal::new(id, current, cursor, spares.clone())),
            view: RwLock::new(View { table: Table { cursor, ..table }, frozen: None, index: Some(Arc::new(index)) }),
            segments: Mutex::default(),
            spares,
            poisoned: RwLock::default(),
            next_log: next_log.into(),
            rebuilds: u64::from(recovery.rebuilt.is_some()).into(),
            wake: Mutex::default(),
            woken: Condvar::new(),
            checkpointing: Mutex::default(),
            dir,
            id,
            options,
        });
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

/// Opens the index; one that fails is put aside for a new one, with the reason.
fn open_index(dir: &DataDir, id: [u8; 16], cache: u64) -> Result<(Index, Mark, Option<String>), OpenError> {
    let first = Index::open(&dir.index(), id, cache);
    // sled cannot be opened without some space; that is what the reserve is for.
    let second = match first {
        Err(ref broken) if broken.is_disk_full() && dir.give_up_reserve() => Index::open(&dir.index(), id, cache),
        other => other,
    };
    match second {
        Ok((index, mark)) => Ok((index, mark, None)),
        Err(broken) => {
            tracing::warn!(%broken, "the index is unusable; it is put aside and built anew from the journal");
            dir.quarantine_index()?;
            let (index, mark) = Index::open(&dir.index(), id, cache).map_err(|e| OpenError::Index(e.to_string()))?;
            Ok((index, mark, Some(broken.to_string())))
        }
    }
}

/// What of the journal is left to write to.
struct Rest {
    current: Option<Arc<Segment>>,
    cursor: Cursor,
    spares: Vec<Arc<Segment>>,
    next_number: u64,
}

/// Replays the journal behind `mark` into a table, moving what is much into the index, and cuts a torn end.
fn load(
    dir: &DataDir,
    id: [u8; 16],
    (index, mark): (&Index, Mark),
    recovery: &mut Recovery,
) -> Result<(Table, Rest), OpenError> {
    let journal = dir.journal();
    let numbers = segment::numbers(&journal)?;
    let wanted = numbers.iter().filter(|&&number| number >= mark.cursor.segment);
    let segments = wanted.map(|&number| Segment::open(&journal, number, id).map(Arc::new));
    let segments = segments.collect::<io::Result<Vec<_>>>()?;
    let first = segments.first().map_or(0, |segment| segment.number);
    let start = Cursor { segment: first, offset: SEGMENT_HEADER_BYTES as u64, position: mark.cursor.position };
    let from = if mark.cursor.segment == first { mark.cursor } else { start };
    let table = Table { cursor: mark.cursor, horizon: mark.horizon, log_max: mark.log_max, ..Table::default() };
    let mut loader = Loader { table, index };
    let outcome = replay(&segments, id, from, &mut loader)?;
    let mut table = loader.table;
    recovery.replayed += outcome.records;
    recovery.damaged_places += outcome.damaged_places;
    if let Some(torn) = outcome.torn
        && let Some(segment) = segments.iter().find(|segment| segment.number == torn.segment)
    {
        recovery.torn_bytes += torn.end - torn.start;
        tracing::warn!(
            segment = torn.segment,
            start = torn.start,
            end = torn.end,
            "cutting the torn end of the journal"
        );
        dir.cut(segment, torn)?;
    }
    let mut cursor = outcome.cursor;
    if segments.is_empty() && mark.cursor.position > 0 {
        table.horizon = Position(mark.cursor.position + 1);
        cursor.position = mark.cursor.position + 1;
    }
    table.cursor = cursor;
    let last_number = numbers.last().copied().unwrap_or(0).max(mark.cursor.segment);
    let usable = |segment: &&Arc<Segment>| !segment.is_cut();
    let after: Vec<_> =
        segments.iter().filter(|segment| segment.number > cursor.segment).filter(usable).cloned().collect();
    let current = segments.iter().find(|segment| segment.number == cursor.segment && !outcome.roll).cloned();
    let mut spares = std::collections::VecDeque::from(after);
    let current = current.or_else(|| spares.pop_front());
    let rest = Rest { current, cursor, spares: spares.into(), next_number: last_number + 1 };
    Ok((table, rest))
}

impl Shared {
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
        let mut view = self.view.write();
        let View { table, frozen, index } = &mut *view;
        let base = Base { frozen: frozen.as_deref(), index: index.as_deref() };
        let mut applied = Ok(());
        for (change, (header, place)) in changes.iter().zip(&written) {
            let birth = match change {
                Change::Create { birth, .. } => Some(birth.clone()),
                Change::Append { .. } | Change::Delete { .. } => None,
            };
            applied = applied.and_then(|()| table.apply(base, (header, *place), birth, time_ms));
        }
        table.cursor = journal.cursor();
        drop(view);
        if applied.is_err() {
            // The changes are safe in the journal; only the way to find them is not.
            self.rebuild(&mut journal)?;
        }
        Ok(())
    }

    /// Puts the index aside and builds a new one, while nothing is committed.
    fn rebuild(&self, journal: &mut Journal) -> Result<(), StoreError> {
        let _guard = self.checkpointing.lock();
        self.view.write().index = None;
        let built = (|| {
            self.dir.quarantine_index()?;
            let opened = Index::open(&self.dir.index(), self.id, self.options.index_cache_bytes);
            let (index, mark) = opened.map_err(|e| OpenError::Index(e.to_string()))?;
            let (table, _) = load(&self.dir, self.id, (&index, mark), &mut Recovery::default())?;
            Ok::<_, OpenError>((index, table))
        })();
        match built {
            Ok((index, table)) => {
                let table = Table { cursor: journal.cursor(), ..table };
                *self.view.write() = View { table, frozen: None, index: Some(Arc::new(index)) };
                self.rebuilds.fetch_add(1, Ordering::Relaxed);
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
            let rebuild = {
                let mut wake = self.wake.lock();
                if !wake.closed && !wake.rebuild {
                    self.woken.wait_for(&mut wake, self.options.checkpoint_interval);
                }
                if wake.closed {
                    return;
                }
                std::mem::take(&mut wake.rebuild)
            };
            if rebuild {
                // A failure is kept as the reason of the poisoning.
                drop(self.rebuild(&mut self.journal.lock()));
            } else {
                self.checkpoint();
            }
        }
    }

    fn checkpoint(&self) {
        let _guard = self.checkpointing.lock();
        let (frozen, index) = {
            let mut view = self.view.write();
            let Some(index) = view.index.clone() else { return };
            if view.table.logs.is_empty() {
                return;
            }
            let next = view.table.successor();
            let frozen = Arc::new(std::mem::replace(&mut view.table, next));
            view.frozen = Some(frozen.clone());
            (frozen, index)
        };
        match index.write(&frozen) {
            Ok(()) => self.view.write().frozen = None,
            Err(broken) => {
                tracing::error!(%broken, "the index takes no checkpoint");
                self.ask_for_rebuild();
            }
        }
    }

    fn ask_for_rebuild(&self) {
        self.wake.lock().rebuild = true;
        self.woken.notify_all();
    }

    /// Passes an answer of the index on; one that shows it broken starts a rebuild.
    fn watched<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        answer.inspect_err(|error| {
            if matches!(error, StoreError::Rebuilding) && self.view.read().index.is_some() {
                self.ask_for_rebuild();
            }
        })
    }

    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        let view = self.view.read();
        let frozen = view.frozen.as_deref();
        let named = view.table.names.get(key).or_else(|| frozen.and_then(|frozen| frozen.names.get(key)));
        let log = match named {
            Some(log) => *log,
            None => view.index.as_ref().ok_or(StoreError::Rebuilding)?.find(key)?,
        };
        let Some(log) = log else { return Ok(None) };
        let base = Base { frozen, index: view.index.as_deref() };
        let entry = match view.table.logs.get(&log) {
            Some(entry) => Some(Entry { places: Vec::new(), ..entry.clone() }),
            None => base.entry(log)?,
        };
        let horizon = view.table.horizon;
        match entry {
            Some(entry) if entry.session.birth.key == *key => Ok(Some(found(entry, horizon))),
            _ => Err(StoreError::Rebuilding),
        }
    }

    /// The places of a log from `from` on, and up to where they can be trusted.
    fn places(&self, log: LogId, from: Seq) -> Result<(Vec<Place>, Option<Entry>), StoreError> {
        const RUNS_MAX: usize = 4096;
        let view = self.view.read();
        let base = Base { frozen: view.frozen.as_deref(), index: view.index.as_deref() };
        let tables = [view.frozen.as_deref(), Some(&view.table)];
        let mut in_tables = tables.into_iter().flatten().filter_map(|table| table.logs.get(&log));
        let mut recent: Vec<Place> = Vec::new();
        for entry in in_tables.clone() {
            let start = entry.places.partition_point(|place| place.next_seq() <= from);
            recent.extend(entry.places[start..].iter().take(RUNS_MAX));
        }
        let entry = match in_tables.next_back() {
            Some(entry) => Some(Entry { places: Vec::new(), ..entry.clone() }),
            None => base.entry(log)?,
        };
        let mut places = match recent.first() {
            Some(first) if first.first_seq <= from => Vec::new(),
            _ => base.index.ok_or(StoreError::Rebuilding)?.places(log, from, RUNS_MAX)?,
        };
        if places.len() < RUNS_MAX {
            // The index may already have what is still in the frozen table.
            let end = places.last().map_or(Seq::ZERO, Place::next_seq);
            places.extend(recent.into_iter().filter(|place| place.first_seq >= end));
        }
        Ok((places, entry))
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let (places, entry) = self.places(log, from)?;
        if entry.as_ref().is_some_and(|entry| from >= entry.session.next_seq) {
            return Ok(Vec::new());
        }
        let count = covering(&places, from, bytes_max);
        if count == 0 {
            return if entry.is_some() { Err(StoreError::Rebuilding) } else { Ok(Vec::new()) };
        }
        self.fetch(log, &places[..count])
    }

    /// Reads and verifies records; those before the first bad one, if there are any.
    fn fetch(&self, log: LogId, places: &[Place]) -> Result<Vec<Run>, StoreError> {
        let mut runs = Vec::with_capacity(places.len());
        let mut rest = places;
        while let Some(first) = rest.first() {
            let count = extent(rest);
            let last = rest[count - 1];
            let bytes = (last.offset + u64::from(last.bytes) - first.offset) as usize;
            let block = self.segment(first.segment).and_then(|segment| Ok(segment.read(first.offset, bytes)?));
            let block = block.map(Bytes::from);
            for place in &rest[..count] {
                let run = block.as_ref().map_err(ToString::to_string).and_then(|block| {
                    let start = (place.offset - first.offset) as usize;
                    verify(log, place, block.slice(start..start + place.bytes as usize))
                });
                match run {
                    Ok(run) => runs.push(run),
                    Err(_) if !runs.is_empty() => return Ok(runs),
                    Err(reason) => {
                        let reason = format!("{reason}, segment {} offset {}", place.segment, place.offset);
                        tracing::error!(log = log.0, seq = %place.first_seq, %reason, "stored events are damaged");
                        let damage = Damage { good_next_seq: place.first_seq };
                        return Err(StoreError::Damaged { damage, reason });
                    }
                }
            }
            rest = &rest[count..];
        }
        Ok(runs)
    }

    fn segment(&self, number: u64) -> Result<Arc<Segment>, StoreError> {
        let mut segments = self.segments.lock();
        if let Some(segment) = segments.get(&number) {
            return Ok(segment.clone());
        }
        let segment = Arc::new(Segment::open(&self.dir.journal(), number, self.id)?);
        if segments.len() >= SEGMENTS_OPEN_MAX {
            segments.clear();
        }
        segments.insert(number, segment.clone());
        Ok(segment)
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        let namespace = Namespace::new(&filter.namespace).map_err(|e| StoreError::Defect(e.to_string()))?;
        let (recent, changed, index) = {
            let view = self.view.read();
            let mut entries: HashMap<LogId, &Entry> = HashMap::new();
            for table in [view.frozen.as_deref(), Some(&view.table)].into_iter().flatten() {
                entries.extend(table.logs.iter().map(|(log, entry)| (*log, entry)));
            }
            let live = entries.values().filter(|entry| !entry.deleted && filter.admits(&entry.session));
            let live: Vec<Session> = live.map(|entry| entry.session.clone()).collect();
            let changed: HashSet<LogId> = entries.into_keys().collect();
            (live, changed, view.index.clone().ok_or(StoreError::Rebuilding)?)
        };
        let mut sessions = super::memory::page(recent, after, count + 1).sessions;
        let (mut found, mut rows, mut last_row) = (0, 0, None);
        index.walk(&namespace, after, &mut |entry| {
            rows += 1;
            let session = entry.session;
            last_row = Some(ListCursor { updated_ms: session.updated_ms, log: session.log });
            if !changed.contains(&session.log) && filter.admits(&session) {
                found += 1;
                sessions.push(session);
            }
            found <= count && rows < LIST_ROWS_MAX
        })?;
        let mut page = super::memory::page(sessions, after, count);
        if rows >= LIST_ROWS_MAX && page.next.is_none() {
            page.next = last_row;
        }
        Ok(page)
    }
}

/// How many of the first places follow each other from `from` on, within about `bytes_max` bytes.
fn covering(places: &[Place], from: Seq, bytes_max: usize) -> usize {
    let (mut next, mut bytes) = (from, 0);
    for (index, place) in places.iter().enumerate() {
        let follows = place.first_seq <= next && place.next_seq() > next;
        bytes += place.bytes as usize;
        if !follows || (index > 0 && bytes > bytes_max) {
            return index;
        }
        next = place.next_seq();
    }
    places.len()
}

/// How many of the first places one read can cover.
fn extent(places: &[Place]) -> usize {
    const READ_BYTES_MAX: u64 = 4 << 20;
    let first = places[0];
    let mut end = first.offset + u64::from(first.bytes);
    let mut count = 1;
    for place in &places[1..] {
        let near = place.segment == first.segment && place.offset >= end && place.offset - end <= READ_GAP_MAX;
        if !near || place.offset + u64::from(place.bytes) - first.offset > READ_BYTES_MAX {
            break;
        }
        end = place.offset + u64::from(place.bytes);
        count += 1;
    }
    count
}

/// Checks that a record is the one that the place speaks of, and sound.
fn verify(log: LogId, place: &Place, record: Bytes) -> Result<Run, String> {
    let RecordStart::Sound(header) = RecordStart::decode(&record) else {
        return Err("the record header is damaged".to_owned());
    };
    let events = record.slice(RECORD_HEADER_BYTES..);
    if header.log != log.0 || header.first_seq != place.first_seq || header.count != place.count {
        return Err("another record stands in the place".to_owned());
    }
    if !header.matches(&events) {
        return Err("the checksum does not match".to_owned());
    }
    Ok(Run { first_seq: header.first_seq, count: header.count, link: header.link, chain: header.chain, events })
}

fn found(entry: Entry, horizon: Position) -> Found {
    let unproved = entry.session.position <= horizon && horizon.0 > 0;
    let unproved = unproved.then_some(Damage { good_next_seq: entry.session.next_seq });
    Found { damage: entry.damage.or(unproved), session: entry.session }
}

impl Store for LocalStore {
    fn allot(&self) -> LogId {
        LogId(self.shared.next_log.fetch_add(1, Ordering::Relaxed))
    }

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        self.shared.commit(changes, time_ms)
    }

    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        self.shared.watched(self.shared.find(key))
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.shared.watched(self.shared.read(log, from, bytes_max))
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        self.shared.watched(self.shared.list(filter, after, count))
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
        self.shared.wake.lock().closed = true;
        self.shared.woken.notify_all();
        self.shared.spares.close();
        for thread in threads {
            // A thread that panicked has nothing left to say.
            drop(thread.join());
        }
        let _journal = self.shared.journal.lock();
        self.shared.poisoned.write().get_or_insert_with(|| "the store is closed".into());
        self.shared.checkpoint();
    }
}
