//! The writing end of the journal: one group, one write, one sync.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::place::Place;
use super::segment::Segment;
use crate::codec::Chain;
use crate::codec::change::Kind;
use crate::codec::frame::{
    GROUP_BYTES_MAX, GROUP_HEADER_BYTES, GroupHeader, PADDING, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, RecordHeader,
    SECTOR, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use crate::codec::ownership;
use crate::metrics::Metrics;
use crate::model::Seq;
use crate::store::{Change, StoreError};

/// What the page cache reads and writes at once.
const PAGE: u64 = 4096;

/// Where the next group goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The segment.
    pub(super) segment: u64,
    /// The offset in it.
    pub(super) offset: u64,
    /// Position of the last change before the cursor.
    pub(super) position: u64,
}

/// One committed record and where it stands.
pub(super) type Written = (RecordHeader, Place);

/// The journal of one store, open for appending. Used by one thread at a time.
pub(super) struct Journal {
    store: [u8; 16],
    current: Arc<Segment>,
    cursor: Cursor,
    buffer: Vec<u8>,
    spares: Arc<Spares>,
    metrics: Arc<Metrics>,
}

impl Journal {
    /// Goes on at `cursor` in `current`.
    pub(super) fn new(
        store: [u8; 16],
        (current, cursor): (Arc<Segment>, Cursor),
        spares: Arc<Spares>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { store, current, cursor, buffer: Vec::new(), spares, metrics }
    }

    /// Where the next group goes.
    pub(super) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Writes the changes as one group and returns when it is on stable storage. After an error the tail is unknown
    /// and the journal must not be used again.
    pub(super) fn append(&mut self, changes: &[Change], time_ms: u64) -> Result<Vec<Written>, StoreError> {
        let mut written = self.encode(changes);
        let body_bytes = self.buffer.len() - GROUP_HEADER_BYTES;
        self.buffer.resize(self.buffer.len().next_multiple_of(SECTOR), PADDING);
        let bytes = self.buffer.len() as u64;
        // Larger ones would be refused when they are read.
        if body_bytes > GROUP_BYTES_MAX
            || written.iter().any(|(header, _)| header.payload_bytes > PAYLOAD_BYTES_MAX as u32)
        {
            return Err(StoreError::Defect(format!("a group or record of {bytes} bytes is too large")));
        }
        if self.cursor.offset + bytes > self.current.declared_bytes {
            if SEGMENT_HEADER_BYTES as u64 + bytes > self.current.declared_bytes {
                return Err(StoreError::Defect(format!("a group of {bytes} bytes does not fit into a segment")));
            }
            self.current = self.spares.take()?;
            self.cursor = Cursor { segment: self.current.number, offset: SEGMENT_HEADER_BYTES as u64, ..self.cursor };
        }
        self.seal(body_bytes as u32, changes.len() as u32, time_ms);
        // Written to the end of the page, so that the kernel never has to read one to complete it. What lies beyond
        // the group is zero already.
        let end = (self.cursor.offset + bytes).next_multiple_of(PAGE).min(self.current.declared_bytes);
        self.buffer.resize((end - self.cursor.offset) as usize, 0);
        let began = Instant::now();
        self.current
            .write_durably(self.cursor.offset, &self.buffer)
            .map_err(|e| StoreError::Poisoned(format!("journal segment {}: {e}", self.cursor.segment).into()))?;
        self.metrics.sync_duration.record(began.elapsed());
        self.metrics.journal_bytes.add(bytes);
        for (_, place) in &mut written {
            place.segment = self.cursor.segment;
            place.offset += self.cursor.offset;
        }
        self.cursor.offset += bytes;
        self.cursor.position += changes.len() as u64;
        Ok(written)
    }

    /// Goes on in the next segment, unless nothing was written to this one.
    pub(super) fn roll(&mut self) -> Result<(), StoreError> {
        if self.cursor.offset > SEGMENT_HEADER_BYTES as u64 {
            self.current = self.spares.take()?;
            self.cursor = Cursor { segment: self.current.number, offset: SEGMENT_HEADER_BYTES as u64, ..self.cursor };
        }
        Ok(())
    }

    /// Puts the records into the buffer, with offsets relative to the group.
    fn encode(&mut self, changes: &[Change]) -> Vec<Written> {
        self.buffer.clear();
        self.buffer.resize(GROUP_HEADER_BYTES, 0);
        let mut written = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            let offset = self.buffer.len() as u64;
            let header = encode_record(change, self.cursor.position + 1 + index as u64, &mut self.buffer);
            let bytes = RECORD_HEADER_BYTES as u32 + header.payload_bytes;
            let (first_seq, count) = (header.first_seq, header.count);
            written.push((header, Place { first_seq, count, segment: 0, offset, bytes }));
        }
        written
    }

    fn seal(&mut self, body_bytes: u32, records: u32, time_ms: u64) {
        let mut store = [0; 8];
        store.copy_from_slice(&self.store[..8]);
        let header = GroupHeader {
            body_bytes,
            records,
            first_position: self.cursor.position + 1,
            time_ms,
            segment: self.cursor.segment,
            store: u64::from_le_bytes(store),
        };
        self.buffer[..GROUP_HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

fn encode_record(change: &Change, position: u64, out: &mut Vec<u8>) -> RecordHeader {
    let (start, mut content) = (Chain::START, Vec::new());
    let (kind, log, (first_seq, count), (link, chain), payload) = match change {
        Change::Create { log, birth } => {
            birth.encode_twice(&mut content);
            (Kind::Create, log, (Seq::ZERO, 0), (start.link(), start), &content[..])
        }
        Change::Append { log, run } => {
            (Kind::Append, log, (run.first_seq, run.count), (run.link, run.chain), &run.events[..])
        }
        Change::Delete { log, next_seq, chain } => (Kind::Delete, log, (*next_seq, 0), (chain.link(), *chain), &[][..]),
        Change::Fork { log, graft } => {
            graft.encode_twice(&mut content);
            let place = (graft.seed_length(), u32::from(!graft.marker.is_empty()));
            (Kind::Fork, log, place, (graft.chain().link(), graft.end().1), &content[..])
        }
        Change::Detach { log, copy: Some(run) } => {
            (Kind::Detach, log, (run.first_seq, run.count), (run.link, run.chain), &run.events[..])
        }
        Change::Detach { log, copy: None } => (Kind::Detach, log, (Seq::ZERO, 0), (start.link(), start), &[][..]),
        Change::Purge { log, next_seq, chain } => (Kind::Purge, log, (*next_seq, 0), (chain.link(), *chain), &[][..]),
        Change::Owner { log, next_seq, chain, owner } => {
            ownership::encode_record(owner, &mut content);
            let epoch = u32::try_from(owner.epoch).unwrap_or(u32::MAX);
            (Kind::Owner, log, (*next_seq, epoch), (chain.link(), *chain), &content[..])
        }
        Change::Repair { log, run } => {
            (Kind::Repair, log, (run.first_seq, run.count), (run.link, run.chain), &run.events[..])
        }
    };
    let header = RecordHeader {
        kind,
        position,
        log: log.0,
        first_seq,
        count,
        link,
        chain,
        payload_bytes: payload.len() as u32,
        payload_checksum: crc32c::crc32c(payload),
    };
    header.encode(out);
    out.extend_from_slice(payload);
    header
}

/// Keeps empty segments ready, so that a full one costs no wait.
pub(super) struct Spares {
    dir: PathBuf,
    store: [u8; 16],
    segment_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ready: std::collections::VecDeque<Arc<Segment>>,
    next_number: u64,
    wanted: usize,
    problem: Option<Arc<str>>,
    closed: bool,
}

impl Spares {
    /// Starts with the empty segments that were found; the next one made gets `next_number`.
    pub(super) fn new(dir: &Path, header: SegmentHeader, found: Vec<Arc<Segment>>, wanted: usize) -> Self {
        // With none, a full segment would wait for ever.
        let wanted = wanted.max(1);
        let state = State { ready: found.into(), next_number: header.segment, wanted, problem: None, closed: false };
        let (store, segment_bytes) = (header.store, header.file_bytes);
        Self { dir: dir.to_owned(), store, segment_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Why no segment can be made, if so.
    pub(super) fn problem(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        state.problem.clone().filter(|_| state.ready.is_empty())
    }

    /// The next empty segment; waits for one that is being made.
    fn take(&self) -> Result<Arc<Segment>, StoreError> {
        let mut state = self.state.lock();
        loop {
            if let Some(segment) = state.ready.pop_front() {
                self.changed.notify_all();
                return Ok(segment);
            }
            if let Some(problem) = state.problem.clone().or_else(|| state.closed.then(|| "closed".into())) {
                return Err(StoreError::Poisoned(problem));
            }
            self.changed.wait(&mut state);
        }
    }

    /// Makes segments until closed. A failure is kept as the problem and tried again every second.
    pub(super) fn make_until_closed(&self) {
        loop {
            let number = {
                let mut state = self.state.lock();
                while !state.closed && state.ready.len() >= state.wanted {
                    self.changed.wait(&mut state);
                }
                if state.closed {
                    return;
                }
                state.next_number
            };
            self.make(number);
        }
    }

    fn make(&self, number: u64) {
        let header = SegmentHeader { store: self.store, segment: number, file_bytes: self.segment_bytes };
        let made = Segment::create(&self.dir, header);
        let mut state = self.state.lock();
        match made {
            Ok(segment) => {
                state.ready.push_back(Arc::new(segment));
                state.next_number += 1;
                state.problem = None;
            }
            Err(error) => {
                // A half-made draft would keep the space that is missing.
                drop(std::fs::remove_file(super::segment::path(&self.dir, number).with_extension("draft")));
                tracing::warn!(segment = number, %error, "no new journal segment; the store takes no more than fits");
                state.problem = Some(format!("no new journal segment: {error}").into());
                self.changed.notify_all();
                self.changed.wait_for(&mut state, std::time::Duration::from_secs(1));
            }
        }
        self.changed.notify_all();
    }

    /// Ends the making.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}
