//! The journal read by position: every change in the order in which it was committed.
//!
//! Groups stand in the order of positions, so that a position is found by the first group of a segment and by hopping
//! from header to header; places that were passed are remembered. Nothing is passed over in silence: what does not
//! verify is a change that is called lost, with its positions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::Shared;
use super::journal::Cursor;
use super::segment::{self, Segment};
use super::table::Base;
use crate::codec::change::Kind;
use crate::codec::frame::{
    GROUP_HEADER_BYTES, GroupHeader, RECORD_HEADER_BYTES, RecordHeader, RecordStart, SECTOR, SEGMENT_HEADER_BYTES,
};
use crate::codec::ownership;
use crate::store::changes::inherited;
use crate::store::{Birth, ChangePage, Committed, Graft, LogId, Position, Run, Session, StoreError, extents};

/// Bytes that are read from a segment at once.
const WINDOW_BYTES: u64 = 256 << 10;
const CHANGES_MAX: usize = 2000;
/// Places and names that are remembered.
const REMEMBERED_MAX: usize = 4096;

/// What reading by position remembers.
#[derive(Default)]
pub(super) struct Passed {
    /// Position of a group to its place.
    groups: Mutex<BTreeMap<u64, (u64, u64)>>,
    names: Mutex<HashMap<LogId, Arc<Birth>>>,
}

/// Where a walk stands.
struct Walk<'a> {
    shared: &'a Shared,
    half: u64,
    end: Cursor,
    segment: Arc<Segment>,
    offset: u64,
    window: (u64, Vec<u8>),
}

impl Shared {
    pub(super) fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError> {
        let end = self.view.read().table.cursor;
        let numbers = segment::numbers(&self.dir.journal())?;
        let numbers: Vec<u64> = numbers.into_iter().filter(|number| *number <= end.segment).collect();
        let Some(first) = numbers.first() else { return Ok(ChangePage::default()) };
        let first_kept = self.first_position(*first, end)?;
        let from = from.0.max(first_kept);
        let mut page = ChangePage { first_kept: Position(first_kept), changes: Vec::new() };
        if from > end.position {
            return Ok(page);
        }
        let (number, offset) = self.place_before(from, &numbers, end)?;
        let mut walk = Walk::new(self, (number, offset), end)?;
        let (mut next, mut bytes) = (from, 0);
        while let Some((header, body)) = walk.next(next, &numbers)? {
            let through = header.first_position + u64::from(header.records);
            if header.first_position > next {
                page.changes.push(Committed::lost(next, header.first_position - 1));
                next = header.first_position;
            }
            self.take(&header, &body, &mut next, &mut page.changes);
            if next < through {
                page.changes.push(Committed::lost(next, through - 1));
                next = through;
            }
            bytes += body.len();
            self.remember(next, (walk.segment.number, walk.offset));
            if bytes >= bytes_max || page.changes.len() >= CHANGES_MAX {
                return Ok(page);
            }
        }
        if next <= end.position {
            page.changes.push(Committed::lost(next, end.position));
        }
        Ok(page)
    }

    fn remember(&self, position: u64, place: (u64, u64)) {
        let mut groups = self.passed.groups.lock();
        if groups.len() >= REMEMBERED_MAX {
            groups.clear();
        }
        groups.insert(position, place);
    }

    /// The position of the first change in a segment.
    fn first_position(&self, number: u64, end: Cursor) -> Result<u64, StoreError> {
        let start = SEGMENT_HEADER_BYTES as u64;
        let found = self.passed.groups.lock().iter().find(|(_, place)| **place == (number, start)).map(|(at, _)| *at);
        if let Some(position) = found {
            return Ok(position);
        }
        let mut walk = Walk::new(self, (number, start), end)?;
        let header = walk.header()?;
        let position = header.map_or(end.position + 1, |header| header.first_position);
        if header.is_some() && walk.offset == start {
            self.remember(position, (number, start));
        }
        Ok(position)
    }

    /// The last known place at or before a position.
    fn place_before(&self, from: u64, numbers: &[u64], end: Cursor) -> Result<(u64, u64), StoreError> {
        let known = self.passed.groups.lock().range(..=from).next_back().map(|(at, place)| (*at, *place));
        let known = known.filter(|(_, place)| numbers.contains(&place.0));
        let start = SEGMENT_HEADER_BYTES as u64;
        // The last segment that begins at or before it.
        let (mut low, mut high) = (0, numbers.len());
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if self.first_position(numbers[middle], end)? <= from { low = middle } else { high = middle }
        }
        let segment = (numbers[low], start);
        Ok(known.map_or(segment, |(_, place)| place.max(segment)))
    }

    /// The records of a group from a position on.
    fn take(&self, group: &GroupHeader, body: &Bytes, next: &mut u64, out: &mut Vec<Committed>) {
        let mut at = 0;
        while let Some(start) = body.get(at..at + RECORD_HEADER_BYTES).map(RecordStart::decode) {
            let Some(payload_bytes) = start.payload_bytes() else { return };
            let from = at + RECORD_HEADER_BYTES;
            let payload = body.slice(from.min(body.len())..(from + payload_bytes).min(body.len()));
            at = from + payload_bytes;
            if let RecordStart::Sound(header) = start
                && header.matches(&payload)
                && header.position >= *next
            {
                if header.position > *next {
                    out.push(Committed::lost(*next, header.position - 1));
                }
                *next = header.position + 1;
                out.push(self.committed(&header, payload, group.time_ms));
            }
        }
    }

    fn committed(&self, header: &RecordHeader, payload: Bytes, time_ms: u64) -> Committed {
        let (first_seq, chain, position) = (header.first_seq, header.chain, Position(header.position));
        let (kind, log) = (Some(header.kind), LogId(header.log));
        let mut change = Committed { time_ms, kind, log, first_seq, chain, ..Committed::at(position) };
        match header.kind {
            Kind::Create => change.birth = Birth::decode_either(&payload).ok().map(Arc::new),
            Kind::Fork => {
                if let Ok(graft) = Graft::decode_either(&payload) {
                    (change.run, change.inherited) = (extents::marker(&graft), inherited(&graft));
                    change.birth = Some(Arc::new(graft.birth));
                }
            }
            Kind::Owner => change.owner = ownership::decode_record(&payload).ok().map(Arc::new),
            Kind::Append | Kind::Repair => {
                let (count, link) = (header.count, header.link);
                change.run = Some(Run { first_seq, count, link, chain, events: payload });
            }
            Kind::Delete | Kind::Detach | Kind::Purge => {}
        }
        change.name(|log| self.birth(log));
        change
    }

    /// The session of a log, also of one that was deleted.
    fn birth(&self, log: LogId) -> Option<Arc<Birth>> {
        if let Some(birth) = self.passed.names.lock().get(&log) {
            return Some(birth.clone());
        }
        let view = self.view.read();
        let base = Base { frozen: view.frozen.as_deref(), index: view.index.as_deref() };
        let entry = match view.table.logs.get(&log) {
            Some(entry) => Some(entry.without_places()),
            None => base.entry(log).ok().flatten(),
        };
        let gone = || view.index.as_ref()?.gone(log).ok().flatten();
        let birth = entry.map(|entry| entry.session.birth).or_else(gone)?;
        let mut names = self.passed.names.lock();
        if names.len() >= REMEMBERED_MAX {
            names.clear();
        }
        names.insert(log, birth.clone());
        Some(birth)
    }

    pub(super) fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Session>, StoreError> {
        let view = self.view.read();
        let mut found: BTreeMap<LogId, Option<Session>> = BTreeMap::new();
        let index = view.index.as_ref().ok_or(StoreError::Rebuilding)?;
        for entry in index.sessions(after, count)? {
            found.insert(entry.session.log, Some(entry.session));
        }
        let is_cut = found.len() >= count;
        let last = found.keys().next_back().copied();
        for table in [view.frozen.as_deref(), Some(&view.table)].into_iter().flatten() {
            let newer = table.logs.iter().filter(|(log, _)| **log > after && !(is_cut && Some(**log) > last));
            found.extend(newer.map(|(log, entry)| (*log, (!entry.deleted).then(|| entry.session.clone()))));
        }
        // Of a page that is all deleted the next one could not be asked for; there is none behind an empty one.
        let live: Vec<Session> = found.into_values().flatten().take(count).collect();
        match last.filter(|_| live.is_empty() && is_cut) {
            Some(last) => {
                drop(view);
                self.sessions(last, count)
            }
            None => Ok(live),
        }
    }
}

impl<'a> Walk<'a> {
    fn new(shared: &'a Shared, (number, offset): (u64, u64), end: Cursor) -> Result<Self, StoreError> {
        let mut half = [0; 8];
        half.copy_from_slice(&shared.id[..8]);
        let segment = shared.segment(number)?;
        Ok(Self { shared, half: u64::from_le_bytes(half), end, segment, offset, window: (0, Vec::new()) })
    }

    /// The next group that holds changes from a position on, and its records.
    fn next(&mut self, from: u64, numbers: &[u64]) -> Result<Option<(GroupHeader, Bytes)>, StoreError> {
        loop {
            let Some(header) = self.header()? else {
                let Some(number) = numbers.iter().find(|number| **number > self.segment.number) else {
                    return Ok(None);
                };
                *self = Self::new(self.shared, (*number, SEGMENT_HEADER_BYTES as u64), self.end)?;
                continue;
            };
            let start = self.offset + GROUP_HEADER_BYTES as u64;
            self.offset += header.span();
            if header.first_position + u64::from(header.records) > from {
                let body = self.bytes(start, u64::from(header.body_bytes))?;
                return Ok(Some((header, Bytes::from(body))));
            }
        }
    }

    /// The header at or behind the offset, which moves there.
    fn header(&mut self) -> Result<Option<GroupHeader>, StoreError> {
        let limit = if self.segment.number == self.end.segment { self.end.offset } else { self.segment.actual_bytes };
        while self.offset + SECTOR as u64 <= limit {
            let sector = self.bytes(self.offset, GROUP_HEADER_BYTES as u64)?;
            let header = GroupHeader::decode(&sector).ok();
            let is_ours = |header: &GroupHeader| {
                header.store == self.half
                    && header.segment == self.segment.number
                    && header.first_position <= self.end.position
            };
            if let Some(header) = header.filter(is_ours) {
                return Ok(Some(header));
            }
            self.offset += SECTOR as u64;
        }
        Ok(None)
    }

    /// Bytes of the segment; reads along, since what follows is wanted next.
    fn bytes(&mut self, at: u64, count: u64) -> Result<Vec<u8>, StoreError> {
        let (start, window) = &self.window;
        let is_there = at >= *start && at + count <= start + window.len() as u64;
        if !is_there {
            let wanted = count.max(WINDOW_BYTES).min(self.segment.actual_bytes.saturating_sub(at));
            self.window = (at, self.segment.read(at, wanted.max(count) as usize)?);
        }
        let (start, window) = &self.window;
        let from = (at - start) as usize;
        Ok(window[from..from + count as usize].to_vec())
    }
}
