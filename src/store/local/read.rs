//! The reading side: finding, reading and listing through the table, the frozen table and the index.
//!
//! Every record is verified when it is read; what does not verify is damage of one log and never a shorter answer.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Shared;
use super::place::Place;
use super::segment::Segment;
use super::table::{Base, Entry};
use crate::codec::frame::{RECORD_HEADER_BYTES, RecordStart};
use crate::model::{Namespace, Seq, SessionKey};
use crate::store::{
    Damage, Found, ListCursor, ListFilter, ListPage, LogId, Note, Position, Run, Session, StoreError, memory,
};

/// Open segment files kept for reading.
const SEGMENTS_OPEN_MAX: usize = 64;
/// Gap between two records that is read along rather than sought over.
const READ_GAP_MAX: u64 = 8 << 10;
/// List rows looked at for one page.
const LIST_ROWS_MAX: usize = 10_000;

impl Shared {
    pub(super) fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        let view = self.view.read();
        let frozen = view.frozen.as_deref();
        let named = view.table.names.get(key).or_else(|| frozen.and_then(|frozen| frozen.names.get(key)));
        let log = match named {
            Some(log) => *log,
            None => view.index.as_ref().ok_or(StoreError::Rebuilding)?.find(key)?,
        };
        let horizon = view.table.horizon;
        let Some(log) = log else {
            // Among the changes that were lost beyond naming there may be the creation of this session.
            let certain = named.is_some() || horizon == Position(0);
            return if certain { Ok(None) } else { Err(name_unproved(horizon)) };
        };
        match view.entry(log)? {
            Some(entry) if entry.session.birth.key == *key => view.with_shared_damage(found(entry, horizon)).map(Some),
            _ => Err(StoreError::Rebuilding),
        }
    }

    /// A note, unless its log was deleted. An index that cannot be read has none.
    pub(super) fn noted(&self, log: LogId) -> Option<Note> {
        let view = self.view.read();
        let tables = [Some(&view.table), view.frozen.as_deref()].into_iter().flatten();
        for table in tables {
            if table.logs.get(&log).is_some_and(|entry| entry.deleted) {
                return None;
            }
            if let Some(note) = table.notes.get(log) {
                return Some(note.clone());
            }
        }
        view.index.as_ref()?.note(log).ok()?
    }

    /// The places of a log from `from` on, and up to where they can be trusted.
    fn places(&self, log: LogId, from: Seq) -> Result<(Vec<Place>, Option<Entry>), StoreError> {
        const RUNS_MAX: usize = 4096;
        let view = self.view.read();
        let base = Base { frozen: view.frozen.as_deref(), index: view.index.as_deref() };
        let tables = [view.frozen.as_deref(), Some(&view.table)];
        let mut in_tables = tables.into_iter().flatten().filter_map(|table| table.logs.get(&log));
        let all = in_tables.clone();
        let entry = match in_tables.next_back() {
            Some(entry) => Some(entry.without_places()),
            None => base.entry(log)?,
        };
        let is_alone = entry.as_ref().is_some_and(|entry| entry.session.shared_until == Seq::ZERO);
        // Copies of shared events count once there are all of them.
        let copies = all.clone().filter(|_| is_alone).map(|entry| &entry.copies);
        let mut recent: Vec<Place> = Vec::new();
        for places in copies.chain(all.map(|entry| &entry.places)) {
            let start = places.partition_point(|place| place.next_seq() <= from);
            recent.extend(places[start..].iter().take(RUNS_MAX));
        }
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

    pub(super) fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let (places, entry) = self.places(log, from)?;
        if entry.as_ref().is_some_and(|entry| from < entry.session.shared_until && !entry.is_gone) {
            return self.read_shared(log, from, bytes_max);
        }
        self.read_places((log, from), (&places, entry), bytes_max)
    }

    /// As [`Shared::read`], of the events that stand in the log itself.
    pub(super) fn read_own(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let (places, entry) = self.places(log, from)?;
        self.read_places((log, from), (&places, entry), bytes_max)
    }

    fn read_places(
        &self,
        (log, from): (LogId, Seq),
        (places, entry): (&[Place], Option<Entry>),
        bytes_max: usize,
    ) -> Result<Vec<Run>, StoreError> {
        if entry.as_ref().is_some_and(|entry| entry.is_gone || from >= entry.session.next_seq) {
            return Ok(Vec::new());
        }
        if entry.as_ref().is_some_and(|entry| entry.session.marker == Some(from)) {
            return Ok(vec![self.marker(log)?]);
        }
        // The index may still have what was purged.
        let end = entry
            .as_ref()
            .map_or(places.len(), |entry| places.partition_point(|place| place.first_seq < entry.session.next_seq));
        let places = places.get(..end).unwrap_or_default();
        let count = covering(places, from, bytes_max);
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
            match block {
                Err(error) if is_passing(&error) => return if runs.is_empty() { Err(error) } else { Ok(runs) },
                _ => {}
            }
            for place in &rest[..count] {
                let run = block.as_ref().map_err(ToString::to_string).and_then(|block| {
                    let start = (place.offset - first.offset) as usize;
                    verify(log, place, &block.slice(start..start + place.bytes as usize))
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

    pub(super) fn segment(&self, number: u64) -> Result<Arc<Segment>, StoreError> {
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

    pub(super) fn list(
        &self,
        filter: &ListFilter,
        after: Option<ListCursor>,
        count: usize,
    ) -> Result<ListPage, StoreError> {
        // A checkpoint moves rows, and a walk that it overtakes may miss one.
        for _ in 0..3 {
            let before = self.freezes.load(Ordering::Relaxed);
            let page = self.list_once(filter, after, count)?;
            if self.freezes.load(Ordering::Relaxed) == before {
                return Ok(page);
            }
        }
        let _guard = self.checkpointing.lock();
        self.list_once(filter, after, count)
    }

    fn list_once(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
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
        let mut sessions = memory::page(recent, after, count + 1).sessions;
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
        if rows >= LIST_ROWS_MAX
            && let Some(last) = last_row
        {
            // What comes later in the list belongs to the page that goes on behind the last row.
            let rank = |updated_ms: u64, log: LogId| (Reverse(updated_ms), Reverse(log));
            sessions.retain(|session| rank(session.updated_ms, session.log) <= rank(last.updated_ms, last.log));
        }
        let mut page = memory::page(sessions, after, count);
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
pub(super) fn verify(log: LogId, place: &Place, record: &Bytes) -> Result<Run, String> {
    let RecordStart::Sound(header) = RecordStart::decode(record) else {
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

fn name_unproved(horizon: Position) -> StoreError {
    let reason = format!("changes up to position {} are lost; one of them may have created this session", horizon.0);
    StoreError::Damaged { damage: Damage { good_next_seq: Seq::ZERO }, reason }
}

/// A refusal that says nothing about the bytes: they may be good, and readable later.
fn is_passing(error: &StoreError) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(error, StoreError::Io(error) if !matches!(error.kind(), InvalidData | NotFound | UnexpectedEof))
}

pub(super) fn found(entry: Entry, horizon: Position) -> Found {
    let unproved = entry.session.position <= horizon && horizon.0 > 0;
    let unproved = unproved.then_some(Damage { good_next_seq: entry.session.next_seq });
    Found { damage: entry.damage.or(unproved), session: entry.session }
}
