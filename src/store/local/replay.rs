//! Reading the journal at open: what was committed, what a crash tore, what was damaged.
//!
//! The rules. Groups follow each other from the start of a segment to the first all-zero sector. A bad group with
//! nothing valid after it and a sector that was never written is the torn end of a crash: it was never acknowledged
//! and is cut. Any other bad group is damage: its sound records are taken, the logs of its damaged records are
//! marked, and if a record is lost beyond naming, every log that has no later change is marked, because nothing
//! proves it complete. The same holds when the end of the journal cannot be trusted: the last segment with groups, or
//! one behind it, is cut or missing. Nothing is guessed and nothing but a torn end is ever removed.

use std::sync::Arc;

use bytes::Bytes;

use super::journal::Cursor;
use super::place::Place;
use super::segment::Segment;
use crate::codec::frame::{
    GROUP_HEADER_BYTES, GroupHeader, PADDING, RECORD_HEADER_BYTES, RecordHeader, RecordStart, RecordStub, SECTOR,
    SEGMENT_HEADER_BYTES, has_unwritten_sector,
};
use crate::store::{Position, StoreError};

/// Takes what a replay finds, in the order of positions.
pub(super) trait Sink {
    /// A sound record.
    fn record(&mut self, header: &RecordHeader, payload: Bytes, place: Place, time_ms: u64) -> Result<(), StoreError>;
    /// A record that does not match its checksums. What it touches is known; its payload is what is left of it.
    fn damaged(&mut self, stub: &RecordStub, payload: &Bytes, place: Place, time_ms: u64) -> Result<(), StoreError>;
    /// Records up to this position are lost, and nobody knows whose they were.
    fn lost(&mut self, through: Position);
}

/// The torn end of the journal: bytes that were never acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TornTail {
    /// The segment.
    pub(super) segment: u64,
    /// First byte.
    pub(super) start: u64,
    /// The byte after the last one that is not zero, rounded up to a sector.
    pub(super) end: u64,
}

/// A group and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The segment.
    pub(super) segment: u64,
    /// Where it starts.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) bytes: u64,
}

/// What a replay found besides records.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Where the next group may go, unless `roll_past` says otherwise.
    pub(super) cursor: Cursor,
    /// The end of the journal is lost; how many changes went with it is unknown. The next group must go into a segment
    /// with a higher number than this, so that the next replay sees by the positions what is missing here.
    pub(super) roll_past: Option<u64>,
    /// Torn ends, to be cut.
    pub(super) torn: Vec<TornTail>,
    /// The last sound group.
    pub(super) last_group: Option<Spot>,
    /// Damaged places met; for the log and metrics.
    pub(super) damaged_places: u64,
    /// Records taken.
    pub(super) records: u64,
}

/// Replays `segments` (in the order of their numbers) from `from` on, to their end or only to `until`.
pub(super) fn replay(
    segments: &[Arc<Segment>],
    store: [u8; 16],
    (from, until): (Cursor, Option<Cursor>),
    sink: &mut dyn Sink,
) -> Result<Outcome, StoreError> {
    let mut replay = Replay::new(store, (from, until), sink);
    let within = |segment: &&Arc<Segment>| {
        segment.number >= from.segment && until.is_none_or(|until| segment.number <= until.segment)
    };
    let wanted: Vec<_> = segments.iter().filter(within).collect();
    // How many segments there are up to the last one with a group; the end of that one is the end of the journal.
    let mut used = wanted.len();
    while used > 0 && wanted[used - 1].number > from.segment && !replay.holds_groups(wanted[used - 1])? {
        used -= 1;
    }
    for (index, segment) in wanted[..used].iter().enumerate() {
        let start = if segment.number == from.segment { from.offset } else { SEGMENT_HEADER_BYTES as u64 };
        replay.segment(segment, start, index + 1 == used)?;
    }
    replay.check_end(&wanted, used);
    Ok(replay.outcome)
}

/// Replays segments behind which the journal, or what it became, is known to go on.
pub(super) fn replay_within(
    segments: &[Arc<Segment>],
    store: [u8; 16],
    from: Cursor,
    sink: &mut dyn Sink,
) -> Result<Outcome, StoreError> {
    let mut replay = Replay::new(store, (from, None), sink);
    segments.iter().try_for_each(|segment| replay.segment(segment, SEGMENT_HEADER_BYTES as u64, false))?;
    Ok(replay.outcome)
}

/// The content of a segment from `start` on, without the zeros at its end: they are most of the current segment and all
/// of a spare, and need no memory.
fn rest(segment: &Segment, start: u64) -> Result<Vec<u8>, StoreError> {
    const CHUNK: u64 = 256 << 10;
    let (mut content, mut at) = (Vec::new(), start);
    while at < segment.actual_bytes {
        let chunk = segment.read(at, CHUNK.min(segment.actual_bytes - at) as usize)?;
        if chunk.iter().any(|&byte| byte != 0) {
            content.resize((at - start) as usize, 0);
            content.extend_from_slice(&chunk);
        }
        at += CHUNK;
    }
    Ok(content)
}

struct Replay<'a> {
    store: u64,
    until: Option<Cursor>,
    time_ms: u64,
    sink: &'a mut dyn Sink,
    outcome: Outcome,
}

impl<'a> Replay<'a> {
    fn new(store: [u8; 16], (from, until): (Cursor, Option<Cursor>), sink: &'a mut dyn Sink) -> Self {
        let mut half = [0; 8];
        half.copy_from_slice(&store[..8]);
        let (torn, last_group) = (Vec::new(), None);
        let outcome = Outcome { cursor: from, roll_past: None, torn, last_group, damaged_places: 0, records: 0 };
        Self { store: u64::from_le_bytes(half), until, time_ms: 0, sink, outcome }
    }
}

impl Replay<'_> {
    /// Whether anything was committed in a segment. If not, bytes that are there anyway are what a crash left of its
    /// first group.
    fn holds_groups(&mut self, segment: &Segment) -> Result<bool, StoreError> {
        let start = SEGMENT_HEADER_BYTES as u64;
        let bytes = rest(segment, start)?;
        let Some(last) = bytes.iter().rposition(|&byte| byte != 0) else { return Ok(false) };
        let is_group = |sector: &[u8]| sector[0] != 0 && self.header(sector, segment.number).is_some();
        if bytes.iter().take(SECTOR).any(|&byte| byte != 0) || bytes.chunks(SECTOR).any(is_group) {
            return Ok(true);
        }
        let end = (start + last as u64 + 1).next_multiple_of(SECTOR as u64);
        self.outcome.torn.push(TornTail { segment: segment.number, start, end });
        Ok(false)
    }

    /// Whether the journal can have gone on behind its last group: in a segment that is cut, or in one that is missing.
    fn check_end(&mut self, wanted: &[&Arc<Segment>], used: usize) {
        let from = self.outcome.cursor.segment;
        let is_cut = |segment: &&&Arc<Segment>| segment.is_cut();
        let cut = wanted[used.saturating_sub(1)..].iter().rfind(is_cut).map(|segment| segment.number);
        let numbers: Vec<_> = wanted[used..].iter().map(|segment| segment.number).collect();
        let mut expected = if used > 0 { from + 1 } else { from };
        let mut missing = None;
        for number in numbers {
            if number > expected {
                missing = Some(number - 1);
            }
            expected = number + 1;
        }
        if let Some(until) = self.until.filter(|until| until.segment >= expected) {
            missing = Some(until.segment);
        }
        if wanted.is_empty() && self.outcome.cursor.position > 0 {
            missing = Some(from);
        }
        if let Some(past) = cut.max(missing) {
            self.outcome.damaged_places += 1;
            self.outcome.roll_past = Some(past);
            self.lost(self.expected());
        }
    }

    fn expected(&self) -> u64 {
        self.outcome.cursor.position + 1
    }

    fn segment(&mut self, segment: &Arc<Segment>, start: u64, is_last: bool) -> Result<(), StoreError> {
        let mut bytes = rest(segment, start)?;
        let ends_in_zeros = start + (bytes.len() as u64) < segment.actual_bytes;
        if let Some(until) = self.until.filter(|until| until.segment == segment.number) {
            bytes.truncate(until.offset.saturating_sub(start) as usize);
        }
        let (bytes, segment_number) = (Bytes::from(bytes), segment.number);
        let mut scan = Scan { bytes, ends_in_zeros, base: start, at: 0, segment: segment_number, is_last };
        self.outcome.cursor = Cursor { segment: segment.number, offset: start, ..self.outcome.cursor };
        while self.step(&mut scan)? {}
        self.outcome.cursor.offset = scan.base + scan.at as u64;
        self.outcome.damaged_places += u64::from(segment.is_cut() && !is_last);
        Ok(())
    }

    /// Takes one group, or passes one bad place; `false` at the end of the segment.
    fn step(&mut self, scan: &mut Scan) -> Result<bool, StoreError> {
        let Some(sector) = scan.sector() else { return Ok(false) };
        let header = self.header(sector, scan.segment);
        let whole = header.is_some_and(|header| scan.is_sound(&header));
        if let (Some(header), true) = (header, whole) {
            self.take(scan, &scan.body(&header), Some(&header))?;
            let (segment, offset) = (scan.segment, scan.base + scan.at as u64);
            let bytes = scan.extent(&header).len() as u64;
            self.outcome.last_group = Some(Spot { segment, offset, bytes });
            scan.at += header.span() as usize;
            return Ok(true);
        }
        let next = scan.find(|sector| self.header(sector, scan.segment).is_some());
        if sector.iter().all(|&byte| byte == 0) && next.is_none() {
            self.tail(scan);
            return Ok(false);
        }
        let is_torn = header.is_some_and(|header| scan.has_unwritten_sector(&header));
        if scan.is_last && next.is_none() && is_torn {
            self.tail(scan);
            return Ok(false);
        }
        if header.is_none() && next.is_none() && scan.is_one_flipped_bit() {
            // In space that was never used. It holds nothing.
            self.outcome.damaged_places += 1;
            self.tail(scan);
            return Ok(false);
        }
        self.damage(scan, header, next)?;
        Ok(true)
    }

    fn header(&self, sector: &[u8], segment: u64) -> Option<GroupHeader> {
        let header = GroupHeader::decode(sector).ok()?;
        let ours = header.store == self.store && header.segment == segment;
        (ours && header.first_position >= self.expected()).then_some(header)
    }

    /// Marks everything from here on as the torn end, if there is anything and this is where the journal ends.
    fn tail(&mut self, scan: &Scan) {
        let rest = &scan.bytes[scan.at..];
        if let Some(last) = rest.iter().rposition(|&byte| byte != 0).filter(|_| scan.is_last) {
            let start = scan.base + scan.at as u64;
            let end = (start + last as u64 + 1).next_multiple_of(SECTOR as u64);
            self.outcome.torn.push(TornTail { segment: scan.segment, start, end });
        }
    }

    /// Takes what is sound of a damaged place and goes on behind it: at the next group that is one, at the end
    /// that its header gives, or after the last written byte.
    fn damage(&mut self, scan: &mut Scan, header: Option<GroupHeader>, next: Option<usize>) -> Result<(), StoreError> {
        self.outcome.damaged_places += 1;
        let end = next
            .unwrap_or_else(|| scan.at + header.map_or_else(|| scan.written(), |header| scan.extent(&header).len()));
        let body = scan.bytes.slice((scan.at + GROUP_HEADER_BYTES).min(end)..end);
        let expected = header.map(|header| header.first_position + u64::from(header.records));
        let first = scan.at + GROUP_HEADER_BYTES;
        let taken = self.take(scan, &body, header.as_ref())?;
        let next_position = next.and_then(|at| GroupHeader::decode(scan.bytes.get(at..at + SECTOR)?).ok());
        let through = next_position.map(|header| header.first_position).or(expected);
        match through {
            Some(through) => self.expect(through),
            // The first group of the next segment tells by its position whether anything is missing.
            None if !scan.is_last || (taken > first && scan.is_padding(taken, end)) => {}
            None => self.lost(self.expected()),
        }
        scan.at = end;
        Ok(())
    }

    fn lost(&mut self, through: u64) {
        self.sink.lost(Position(through));
        self.outcome.cursor.position = self.outcome.cursor.position.max(through);
    }

    /// Hands over the records of a body as far as their headers can be followed; gives the place behind the last one.
    fn take(&mut self, scan: &Scan, body: &Bytes, header: Option<&GroupHeader>) -> Result<usize, StoreError> {
        // The clock of the group before is the best there is for a group without a header.
        self.time_ms = header.map_or(self.time_ms, |header| header.time_ms);
        if let Some(header) = header {
            self.expect(header.first_position);
        }
        let start = scan.at + GROUP_HEADER_BYTES;
        let mut at = 0;
        while let Some(record) = body.get(at..at + RECORD_HEADER_BYTES).map(RecordStart::decode) {
            let Some(payload_bytes) = record.payload_bytes() else { break };
            let from = at + RECORD_HEADER_BYTES;
            let payload = body.slice(from.min(body.len())..(from + payload_bytes).min(body.len()));
            let offset = scan.base + (start + at) as u64;
            at = from + payload_bytes;
            self.record(record, payload, (scan.segment, offset))?;
        }
        Ok(start + at)
    }

    /// Everything between the last change and this one is lost.
    fn expect(&mut self, position: u64) {
        if position > self.expected() {
            self.lost(position - 1);
        }
    }

    fn record(&mut self, start: RecordStart, payload: Bytes, (segment, offset): (u64, u64)) -> Result<(), StoreError> {
        let stub = match start {
            RecordStart::Sound(header) if header.matches(&payload) => {
                if header.position < self.expected() {
                    return Ok(());
                }
                let (first_seq, count) = (header.first_seq, header.count);
                let bytes = RECORD_HEADER_BYTES as u32 + header.payload_bytes;
                let place = Place { first_seq, count, segment, offset, bytes };
                self.expect(header.position);
                self.outcome.cursor.position = header.position;
                self.outcome.records += 1;
                return self.sink.record(&header, payload, place, self.time_ms);
            }
            RecordStart::Sound(header) => header.stub(),
            RecordStart::Damaged(stub) => stub,
            RecordStart::Lost => return Ok(()),
        };
        if stub.position >= self.expected() {
            self.expect(stub.position);
            self.outcome.cursor.position = stub.position;
            let (first_seq, count) = (stub.first_seq, stub.count);
            let bytes = RECORD_HEADER_BYTES as u32 + stub.payload_bytes;
            let place = Place { first_seq, count, segment, offset, bytes };
            self.sink.damaged(&stub, &payload, place, self.time_ms)?;
        }
        Ok(())
    }
}

/// The rest of a segment, read from `base`.
struct Scan {
    bytes: Bytes,
    /// The segment goes on behind `bytes`, with nothing but zeros.
    ends_in_zeros: bool,
    base: u64,
    at: usize,
    segment: u64,
    /// No later segment has groups.
    is_last: bool,
}

impl Scan {
    fn sector(&self) -> Option<&[u8]> {
        self.bytes.get(self.at..self.at + SECTOR)
    }

    /// Bytes to the end of the last sector that was written.
    fn written(&self) -> usize {
        let rest = &self.bytes[self.at..];
        let written = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        written.next_multiple_of(SECTOR).min(rest.len())
    }

    fn is_one_flipped_bit(&self) -> bool {
        self.bytes[self.at..].iter().map(|byte| byte.count_ones()).sum::<u32>() == 1
    }

    /// Whether all of that is what fills a group up to its sector, so that no record can be missing there.
    fn is_padding(&self, start: usize, end: usize) -> bool {
        end - start.min(end) < SECTOR && self.bytes[start.min(end)..end].iter().all(|&byte| byte == PADDING)
    }

    /// Offset of the next sector after this one that `is_group` accepts.
    fn find(&self, is_group: impl Fn(&[u8]) -> bool) -> Option<usize> {
        let mut at = self.at + SECTOR;
        while let Some(sector) = self.bytes.get(at..at + SECTOR) {
            if sector[0] != 0 && is_group(sector) {
                return Some(at);
            }
            at += SECTOR;
        }
        None
    }

    fn body(&self, header: &GroupHeader) -> Bytes {
        let start = self.at + GROUP_HEADER_BYTES;
        self.bytes.slice(start..(start + header.body_bytes as usize).min(self.bytes.len()))
    }

    fn has_unwritten_sector(&self, header: &GroupHeader) -> bool {
        let reaches_zeros = self.at + header.span() as usize > self.bytes.len() && self.ends_in_zeros;
        reaches_zeros || has_unwritten_sector(self.extent(header))
    }

    fn extent(&self, header: &GroupHeader) -> &[u8] {
        let end = (self.at + header.span() as usize).min(self.bytes.len());
        &self.bytes[self.at..end]
    }

    /// Whether the group is all there and every record of it is sound.
    fn is_sound(&self, header: &GroupHeader) -> bool {
        let body = self.body(header);
        if body.len() < header.body_bytes as usize {
            return false;
        }
        let (mut at, mut records) = (0, 0);
        while at < body.len() {
            let Some(RecordStart::Sound(record)) = body.get(at..at + RECORD_HEADER_BYTES).map(RecordStart::decode)
            else {
                return false;
            };
            let from = at + RECORD_HEADER_BYTES;
            let Some(payload) = body.get(from..from + record.payload_bytes as usize) else { return false };
            if !record.matches(payload) || record.position != header.first_position + u64::from(records) {
                return false;
            }
            (at, records) = (from + payload.len(), records + 1);
        }
        records == header.records
    }
}
