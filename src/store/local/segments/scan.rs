//! Reading finished journal segments into runs by log.
//!
//! Judges whether a segment may be sealed: every group sound, every position there, the runs of each log without a
//! gap. One that is not stays what it is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::codec::change::Kind;
use crate::codec::frame::{GroupHeader, RecordHeader, RecordStub, SECTOR, SEGMENT_HEADER_BYTES};
use crate::codec::segment::{Part, State};
use crate::model::Seq;
use crate::store::local::journal::Cursor;
use crate::store::local::place::Place;
use crate::store::local::replay::{Sink, replay_within};
use crate::store::local::segment::Segment;
use crate::store::{Position, StoreError};

/// A run as the journal has it.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) header: RecordHeader,
    pub(super) time_ms: u64,
    pub(super) events: Bytes,
}

/// What some journal segments hold.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The segments, first and last.
    pub(super) journals: (u64, u64),
    /// The changes, first and last.
    pub(super) positions: (u64, u64),
    /// Records without events.
    pub(super) states: Vec<State>,
    /// Runs by log, its copies and its own, in order.
    pub(super) logs: BTreeMap<(u64, Part), Vec<Source>>,
}

/// Which events the payload of a record is, if it is events. All else is kept as it is, whatever it says.
fn part(header: &RecordHeader) -> Option<Part> {
    match header.kind {
        Kind::Append | Kind::Repair => Some(Part::Own),
        Kind::Detach if header.count > 0 => Some(Part::Copy),
        Kind::Create | Kind::Fork | Kind::Delete | Kind::Purge | Kind::Owner | Kind::Detach => None,
    }
}

/// The first change of a segment; 0 if it has none that can be read.
pub(super) fn first_position(segment: &Segment) -> Result<u64, StoreError> {
    let sector = segment.read(SEGMENT_HEADER_BYTES as u64, SECTOR)?;
    Ok(GroupHeader::decode(&sector).map_or(0, |header| header.first_position))
}

impl Batch {
    /// Adds a segment, which follows the one before. `Err` with the reason when it must not be sealed; then the batch
    /// is as before.
    pub(super) fn add(&mut self, segment: &Arc<Segment>, store: [u8; 16]) -> Result<Result<(), String>, StoreError> {
        if segment.is_cut() {
            return Ok(Err("it is cut".to_owned()));
        }
        let first = first_position(segment)?;
        if first == 0 || (self.positions.1 > 0 && first != self.positions.1 + 1) {
            return Ok(Err("its first change is not where it should be".to_owned()));
        }
        let offset = SEGMENT_HEADER_BYTES as u64;
        let from = Cursor { segment: segment.number, offset, position: first - 1 };
        let mut found = Found::default();
        let outcome = replay_within(std::slice::from_ref(segment), store, from, &mut found)?;
        if found.is_damaged || outcome.damaged_places > 0 || !outcome.torn.is_empty() {
            return Ok(Err("it is damaged".to_owned()));
        }
        if let Some(log) = self.misplaced_owner(&found) {
            return Ok(Err(format!("a change of owner does not follow the runs of log {log}")));
        }
        let mut ends = BTreeMap::new();
        for source in found.runs.iter().filter(|source| part(&source.header) == Some(Part::Own)) {
            let header = &source.header;
            let known = self.logs.get(&(header.log, Part::Own)).and_then(|runs| runs.last()).map(|run| &run.header);
            let before = ends.insert(header.log, header).or(known);
            let follows = before.is_none_or(|before| {
                before.first_seq.get() + u64::from(before.count) == header.first_seq.get()
                    && before.chain.link() == header.link
            });
            if !follows {
                return Ok(Err(format!("the runs of log {} do not follow each other", header.log)));
            }
        }
        self.take(segment.number, (first, outcome.cursor.position), found);
        Ok(Ok(()))
    }

    /// A log with a change of owner that stands elsewhere than its runs around it.
    fn misplaced_owner(&self, found: &Found) -> Option<u64> {
        let end = |run: &Source| (run.header.next_seq(), run.header.chain.link());
        let known = |log: u64| self.logs.get(&(log, Part::Own)).and_then(|runs| runs.last()).map(end);
        let stands = |(header, before): &&(RecordHeader, Option<(Seq, u64)>)| {
            before.or_else(|| known(header.log)).is_some_and(|before| before != (header.first_seq, header.link))
        };
        found.owners.iter().find(stands).map(|(header, _)| header.log)
    }

    fn take(&mut self, number: u64, positions: (u64, u64), found: Found) {
        if self.journals.0 == 0 {
            (self.journals.0, self.positions.0) = (number, positions.0);
        }
        (self.journals.1, self.positions.1) = (number, positions.1);
        self.states.extend(found.states);
        for source in found.runs {
            let part = part(&source.header).unwrap_or(Part::Own);
            self.logs.entry((source.header.log, part)).or_default().push(source);
        }
    }

    /// Leaves runs out.
    pub(super) fn retain(&mut self, mut is_wanted: impl FnMut(u64, Part, &RecordHeader) -> bool) {
        for ((log, part), runs) in &mut self.logs {
            runs.retain(|run| is_wanted(*log, *part, &run.header));
        }
        self.logs.retain(|_, runs| !runs.is_empty());
    }

    /// Whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.journals.0 == 0
    }
}

#[derive(Default)]
struct Found {
    states: Vec<State>,
    runs: Vec<Source>,
    /// Changes of owner, each with where the last run of its log ended.
    owners: Vec<(RecordHeader, Option<(Seq, u64)>)>,
    ends: HashMap<u64, (Seq, u64)>,
    is_damaged: bool,
}

impl Sink for Found {
    fn record(&mut self, header: &RecordHeader, payload: Bytes, _: Place, time_ms: u64) -> Result<(), StoreError> {
        if header.kind == Kind::Owner {
            self.owners.push((*header, self.ends.get(&header.log).copied()));
        }
        if let Some(part) = part(header) {
            if part == Part::Own {
                self.ends.insert(header.log, (header.next_seq(), header.chain.link()));
            }
            self.runs.push(Source { header: *header, time_ms, events: payload });
        } else {
            let mut record = Vec::new();
            header.encode(&mut record);
            record.extend_from_slice(&payload);
            self.states.push(State { time_ms, record: record.into() });
        }
        Ok(())
    }

    fn damaged(&mut self, _: &RecordStub, _: &Bytes, _: Place, _: u64) -> Result<(), StoreError> {
        self.is_damaged = true;
        Ok(())
    }

    fn lost(&mut self, _: Position) {
        self.is_damaged = true;
    }
}
