//! Building an index from sealed files and what is left of the journal, in the order in which things happened.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::file::SealedFile;
use super::place_number;
use crate::codec::change::Kind;
use crate::codec::frame::{RECORD_HEADER_BYTES, RecordHeader, RecordStart, SEGMENT_HEADER_BYTES};
use crate::codec::segment::{Directory, Entry, Part, State};
use crate::store::local::journal::Cursor;
use crate::store::local::place::Place;
use crate::store::local::replay::{Sink, replay_within};
use crate::store::local::segment::Segment;
use crate::store::local::table::Loader;
use crate::store::{Position, StoreError};

/// How far loading came, and what it met.
#[derive(Debug)]
pub(in crate::store::local) struct Loaded {
    /// Where the rest of the journal is replayed from.
    pub(in crate::store::local) cursor: Cursor,
    /// Records taken.
    pub(in crate::store::local) records: u64,
    /// Damaged places met.
    pub(in crate::store::local) damaged_places: u64,
}

impl Loaded {
    /// Loads everything before the last sealed file's end: sealed files, and journal segments between them that could
    /// not be sealed. `numbers` are the journal segments there are.
    pub(in crate::store::local) fn from(
        start: Cursor,
        (journal, store): (&Path, [u8; 16]),
        (files, numbers): (&[SealedFile], &[u64]),
        sink: &mut Loader<'_>,
    ) -> Result<Self, StoreError> {
        let mut loaded = Self { cursor: start, records: 0, damaged_places: 0 };
        for file in files {
            let (first, last) = file.journals();
            if first < loaded.cursor.segment {
                continue;
            }
            let directory = file.directory();
            let has_originals = (first..=last).all(|number| numbers.binary_search(&number).is_ok());
            if directory.is_err() && has_originals {
                // The journal is still there, and says more than a damaged file.
                continue;
            }
            let between = numbers.iter().filter(|&&number| number >= loaded.cursor.segment && number < first);
            let between = between.map(|&number| Segment::open(journal, number, store).map(Arc::new));
            let between = between.collect::<io::Result<Vec<_>>>()?;
            let outcome = replay_within(&between, store, loaded.cursor, sink)?;
            loaded.cursor.position = outcome.cursor.position;
            loaded.records += outcome.records;
            loaded.damaged_places += outcome.damaged_places;
            loaded.take(file, directory, sink)?;
        }
        Ok(loaded)
    }

    fn take(
        &mut self,
        file: &SealedFile,
        directory: io::Result<Directory>,
        sink: &mut Loader<'_>,
    ) -> Result<(), StoreError> {
        let (first, last) = file.header.positions;
        if first > self.cursor.position + 1 {
            sink.lost(Position(first - 1));
        }
        match directory {
            Ok(directory) => self.records += apply(file.number(), directory, sink)?,
            Err(error) => {
                tracing::error!(file = file.number(), %error, "what a sealed file holds is lost");
                self.damaged_places += 1;
                sink.lost(Position(last));
            }
        }
        let (segment, offset) = (file.journals().1 + 1, SEGMENT_HEADER_BYTES as u64);
        self.cursor = Cursor { segment, offset, position: self.cursor.position.max(last) };
        Ok(())
    }
}

enum Item {
    State(RecordHeader, State),
    Block(Entry),
}

/// Hands what a directory says to a loader, as if the journal said it.
fn apply(file: u64, directory: Directory, sink: &mut Loader<'_>) -> Result<u64, StoreError> {
    let mut items: Vec<(u64, Item)> = Vec::with_capacity(directory.states.len() + directory.entries.len());
    for state in directory.states {
        // Under the directory's checksum: what is not sound here was not when it was sealed.
        if let RecordStart::Sound(header) = RecordStart::decode(&state.record) {
            let header = within_a_block(header, &directory.entries);
            items.push((header.position, Item::State(header, state)));
        }
    }
    items.extend(directory.entries.into_iter().map(|entry| (entry.position, Item::Block(entry))));
    items.sort_by_key(|(position, _)| *position);
    let count = items.len() as u64;
    for (_, item) in items {
        match item {
            Item::State(header, state) => {
                let payload = state.record.slice(RECORD_HEADER_BYTES.min(state.record.len())..);
                let (first_seq, count) = (header.first_seq, header.count);
                let place = Place { first_seq, count, segment: place_number(file), offset: 0, bytes: 0 };
                sink.record(&header, payload, place, state.time_ms)?;
            }
            Item::Block(entry) => {
                sink.block(&run_of(&entry), place_of(file, &entry), (entry.summary, entry.time_ms))?;
            }
        }
    }
    Ok(count)
}

/// A change of owner between the runs of a block comes before all of them now: where it stood in the log was compared
/// when the file was written, and is the block's start from now on.
fn within_a_block(header: RecordHeader, entries: &[Entry]) -> RecordHeader {
    if header.kind != Kind::Owner {
        return header;
    }
    let after = entries.partition_point(|entry| {
        let start = (entry.log, entry.part, entry.first_seq);
        start < (header.log, Part::Own, header.first_seq)
    });
    let block = after.checked_sub(1).and_then(|index| entries.get(index));
    let is_inside = |block: &&Entry| {
        let end = block.first_seq.get() + u64::from(block.count);
        (block.log, block.part) == (header.log, Part::Own) && header.first_seq.get() < end
    };
    match block.filter(is_inside) {
        Some(block) => RecordHeader { first_seq: block.first_seq, link: block.link, ..header },
        None => header,
    }
}

/// The place of a block.
pub(super) fn place_of(file: u64, entry: &Entry) -> Place {
    let Entry { first_seq, count, offset, bytes, .. } = *entry;
    Place { first_seq, count, segment: place_number(file), offset, bytes }
}

/// The record that would have had the effect of all those of a block.
fn run_of(entry: &Entry) -> RecordHeader {
    let Entry { log, first_seq, count, link, chain, position, .. } = *entry;
    let kind = match entry.part {
        Part::Own => Kind::Append,
        Part::Copy => Kind::Detach,
    };
    RecordHeader { kind, position, log, first_seq, count, link, chain, payload_bytes: 0, payload_checksum: 0 }
}
