//! Reading the journal at open: what was committed, what a crash tore, what was damaged.
//!
//! The rules. Groups follow each other from the start of a segment to the first all-zero sector. A bad group with
//! nothing valid after it and a sector that was never written is the torn end of a crash: it was never acknowledged
//! and is cut. Any other bad group is damage: its sound records are taken, the logs of its damaged records are
//! marked, and if a record is lost beyond naming, every log that has no later change is marked, because nothing
//! proves it complete. Nothing is guessed and nothing but a torn end is ever removed.

use std::sync::Arc;

use bytes::Bytes;

use super::journal::Cursor;
use super::place::Place;
use super::segment::Segment;
use crate::codec::frame::{
    GROUP_HEADER_BYTES, GroupHeader, RECORD_HEADER_BYTES, RecordHeader, RecordStart, RecordStub, SECTOR,
    SEGMENT_HEADER_BYTES, has_unwritten_sector,
};
use crate::store::{Position, StoreError};

/// Takes what a replay finds, in the order of positions.
pub(super) trait Sink {
    /// A sound record.
    fn record(&mut self, header: &RecordHeader, payload: Bytes, place: Place, time_ms: u64) -> Result<(), StoreError>;
    /// A record whose content is lost; its log is known.
    fn damaged(&mut self, stub: &RecordStub);
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

/// What a replay found besides records.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Where the next group may go. When `roll` is set, only into a new segment.
    pub(super) cursor: Cursor,
    /// The last segment with groups cannot be continued.
    pub(super) roll: bool,
    /// The torn end, to be cut.
    pub(super) torn: Option<TornTail>,
    /// Damaged places met; for the log and metrics.
    pub(super) damaged_places: u64,
    /// Records taken.
    pub(super) records: u64,
}

/// Replays `segments` (in order, without holes in their numbers as far as they exist) from `from` on.
pub(super) fn replay(
    segments: &[Arc<Segment>],
    store: [u8; 16],
    from: Cursor,
    sink: &mut dyn Sink,
) -> Result<Outcome, StoreError> {
    let mut half = [0; 8];
    half.copy_from_slice(&store[..8]);
    let outcome = Outcome { cursor: from, roll: false, torn: None, damaged_places: 0, records: 0 };
    let mut replay = Replay { store: u64::from_le_bytes(half), sink, outcome };
    let wanted: Vec<_> = segments.iter().filter(|segment| segment.number >= from.segment).collect();
    // Only segments after the last one with a group may be empty; its end is the end of the journal.
    let last = wanted.iter().rposition(|segment| starts_with_group(segment));
    for (index, segment) in wanted.iter().enumerate() {
        let start = if segment.number == from.segment { from.offset } else { SEGMENT_HEADER_BYTES as u64 };
        if last.is_none_or(|last| index > last) && segment.number != from.segment {
            replay.check_empty(segment)?;
            continue;
        }
        let is_last = last.is_none_or(|last| index >= last);
        replay.segment(segment, start, is_last)?;
    }
    Ok(replay.outcome)
}

fn starts_with_group(segment: &Segment) -> bool {
    let sector = segment.read(SEGMENT_HEADER_BYTES as u64, SECTOR);
    sector.is_ok_and(|sector| sector.iter().any(|&byte| byte != 0))
}

struct Replay<'a> {
    store: u64,
    sink: &'a mut dyn Sink,
    outcome: Outcome,
}

impl Replay<'_> {
    /// A spare: nothing was committed in it. Bytes that are there anyway are what a crash left of its first group.
    fn check_empty(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let start = SEGMENT_HEADER_BYTES as u64;
        let bytes = segment.read(start, segment.actual_bytes.saturating_sub(start) as usize)?;
        if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
            let end = (start + last as u64 + 1).next_multiple_of(SECTOR as u64);
            self.outcome.torn = Some(TornTail { segment: segment.number, start, end });
        }
        Ok(())
    }

    fn expected(&self) -> u64 {
        self.outcome.cursor.position + 1
    }

    fn segment(&mut self, segment: &Arc<Segment>, start: u64, is_last: bool) -> Result<(), StoreError> {
        let bytes = segment.read(start, segment.actual_bytes.saturating_sub(start) as usize)?;
        let mut scan = Scan { bytes: Bytes::from(bytes), base: start, at: 0, segment: segment.number };
        self.outcome.cursor = Cursor { segment: segment.number, offset: start, ..self.outcome.cursor };
        while self.step(&mut scan, is_last)? {}
        self.outcome.cursor.offset = scan.base + scan.at as u64;
        if segment.is_cut() {
            self.outcome.damaged_places += 1;
            self.outcome.roll = is_last;
            if is_last {
                self.lost(self.expected());
            }
        }
        Ok(())
    }

    /// Takes one group, or passes one bad place; `false` at the end of the segment.
    fn step(&mut self, scan: &mut Scan, is_last: bool) -> Result<bool, StoreError> {
        let Some(sector) = scan.sector() else { return Ok(false) };
        let header = self.header(sector, scan.segment);
        let whole = header.is_some_and(|header| scan.is_sound(&header));
        if let (Some(header), true) = (header, whole) {
            self.take(scan, scan.body(&header), Some(&header))?;
            scan.at += header.span() as usize;
            return Ok(true);
        }
        let next = scan.find(|sector| self.header(sector, scan.segment).is_some());
        if sector.iter().all(|&byte| byte == 0) && next.is_none() {
            if is_last {
                self.tail(scan);
            }
            return Ok(false);
        }
        let is_torn = header.is_some_and(|header| has_unwritten_sector(scan.extent(&header)));
        if is_last && next.is_none() && is_torn {
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

    /// Marks everything from here on as the torn end, if there is anything.
    fn tail(&mut self, scan: &Scan) {
        let rest = &scan.bytes[scan.at..];
        if let Some(last) = rest.iter().rposition(|&byte| byte != 0) {
            let start = scan.base + scan.at as u64;
            let end = (start + last as u64 + 1).next_multiple_of(SECTOR as u64);
            self.outcome.torn = Some(TornTail { segment: scan.segment, start, end });
        }
    }

    /// Takes what is sound of a damaged place and goes on at the next group, or after the last written byte.
    fn damage(&mut self, scan: &mut Scan, header: Option<GroupHeader>, next: Option<usize>) -> Result<(), StoreError> {
        let rest = &scan.bytes[scan.at..];
        let written = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        if header.is_none() && next.is_none() && rest.iter().map(|byte| byte.count_ones()).sum::<u32>() <= 1 {
            // One flipped bit in space that was never used. It holds nothing; the next group overwrites it.
            self.outcome.damaged_places += 1;
            scan.at = scan.bytes.len().min(scan.at + written.next_multiple_of(SECTOR));
            return Ok(());
        }
        self.outcome.damaged_places += 1;
        let end = next.unwrap_or_else(|| scan.bytes.len().min(scan.at + written.next_multiple_of(SECTOR)));
        let body = scan.bytes.slice((scan.at + GROUP_HEADER_BYTES).min(end)..end);
        let expected = header.map(|header| header.first_position + u64::from(header.records));
        self.take(scan, body, header.as_ref())?;
        let next_position = next.and_then(|at| GroupHeader::decode(scan.bytes.get(at..at + SECTOR)?).ok());
        let through = next_position.map(|header| header.first_position).or(expected);
        match through {
            Some(through) if through > self.expected() => self.lost(through - 1),
            None if self.sound_end(scan, end) => {}
            None => self.lost(self.expected()),
            Some(_) => {}
        }
        scan.at = end;
        Ok(())
    }

    /// Whether the records that were taken from a place without a header reach to its end, so that none can be
    /// missing.
    fn sound_end(&self, scan: &Scan, end: usize) -> bool {
        self.outcome.cursor.offset.next_multiple_of(SECTOR as u64) == scan.base + end as u64
    }

    fn lost(&mut self, through: u64) {
        self.sink.lost(Position(through));
        self.outcome.cursor.position = self.outcome.cursor.position.max(through);
    }

    /// Hands over the records of a body as far as their headers can be followed.
    fn take(&mut self, scan: &Scan, body: Bytes, header: Option<&GroupHeader>) -> Result<(), StoreError> {
        let time_ms = header.map_or(0, |header| header.time_ms);
        if let Some(header) = header
            && header.first_position > self.expected()
        {
            self.lost(header.first_position - 1);
        }
        let base = scan.base + (scan.at + GROUP_HEADER_BYTES) as u64;
        let mut at = 0;
        while let Some(start) = body.get(at..at + RECORD_HEADER_BYTES).map(RecordStart::decode) {
            let Some(payload_bytes) = start.payload_bytes() else { break };
            let from = at + RECORD_HEADER_BYTES;
            let payload = body.slice(from.min(body.len())..(from + payload_bytes).min(body.len()));
            let offset = base + at as u64;
            at = from + payload_bytes;
            self.record(start, payload, Spot { segment: scan.segment, offset, time_ms })?;
            self.outcome.cursor.offset = base + at as u64;
        }
        Ok(())
    }

    fn record(&mut self, start: RecordStart, payload: Bytes, spot: Spot) -> Result<(), StoreError> {
        let stub = match start {
            RecordStart::Sound(header) if header.matches(&payload) => {
                if header.position < self.expected() {
                    return Ok(());
                }
                let (first_seq, count) = (header.first_seq, header.count);
                let bytes = RECORD_HEADER_BYTES as u32 + header.payload_bytes;
                let place = Place { first_seq, count, segment: spot.segment, offset: spot.offset, bytes };
                self.outcome.cursor.position = header.position;
                self.outcome.records += 1;
                return self.sink.record(&header, payload, place, spot.time_ms);
            }
            RecordStart::Sound(header) => header.stub(),
            RecordStart::Damaged(stub) => stub,
            RecordStart::Lost => return Ok(()),
        };
        if stub.position >= self.expected() {
            self.outcome.cursor.position = stub.position;
            self.sink.damaged(&stub);
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Spot {
    segment: u64,
    offset: u64,
    time_ms: u64,
}

/// The rest of a segment, read from `base`.
struct Scan {
    bytes: Bytes,
    base: u64,
    at: usize,
    segment: u64,
}

impl Scan {
    fn sector(&self) -> Option<&[u8]> {
        self.bytes.get(self.at..self.at + SECTOR)
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
