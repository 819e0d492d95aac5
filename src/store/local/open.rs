//! Opening: the index, the replay of the journal behind it, and what of the journal is left to write to.
//!
//! An index that fails at any point of this is put aside and built anew; nothing here trusts it for more than speed.

use std::io;
use std::sync::Arc;

use super::dir::DataDir;
use super::index::{Index, Mark};
use super::journal::Cursor;
use super::replay::replay;
use super::segment::{self, Segment};
use super::segments::{Loaded, SealedFile};
use super::table::{Loader, Table};
use super::{OpenError, Recovery};
use crate::codec::frame::SEGMENT_HEADER_BYTES;
use crate::store::{Position, StoreError};

/// Where the journal of a new store starts.
const START: Cursor = Cursor { segment: 1, offset: SEGMENT_HEADER_BYTES as u64, position: 0 };

/// What opening makes of the directory.
pub(super) struct Opened {
    pub(super) index: Index,
    pub(super) table: Table,
    pub(super) rest: Rest,
    pub(super) recovery: Recovery,
}

/// What of the journal is left to write to.
pub(super) struct Rest {
    pub(super) current: Option<Arc<Segment>>,
    pub(super) cursor: Cursor,
    pub(super) spares: Vec<Arc<Segment>>,
    pub(super) next_number: u64,
}

/// Opens the index and replays the journal behind it.
pub(super) fn open(
    dir: &DataDir,
    (id, cache_bytes): ([u8; 16], u64),
    files: &[SealedFile],
) -> Result<Opened, OpenError> {
    match load_checked(dir, (id, cache_bytes), files) {
        Err(OpenError::Index(reason)) => {
            tracing::warn!(%reason, "the index is unusable; it is put aside and built anew from the journal");
            let mut recovery = Recovery { rebuilt: Some(reason), ..Recovery::default() };
            let (index, table, rest) = rebuild(dir, (id, cache_bytes), (files, None), &mut recovery)?;
            Ok(Opened { index, table, rest, recovery })
        }
        other => other,
    }
}

/// As [`open`], with an index that must be there if there is a journal.
fn load_checked(dir: &DataDir, (id, cache_bytes): ([u8; 16], u64), files: &[SealedFile]) -> Result<Opened, OpenError> {
    let is_new = segment::numbers(&dir.journal())?.is_empty() && files.is_empty();
    if !is_new && !dir.index().exists() {
        return Err(OpenError::Index("it is missing".to_owned()));
    }
    let (index, mark) = open_index(dir, id, cache_bytes)?;
    if mark.cursor.segment == 0 && is_new {
        // From now on an index without a checkpoint is one that lost it.
        index.write(&Table { cursor: START, ..Table::default() }).map_err(|e| OpenError::Index(e.to_string()))?;
    } else if mark.cursor.segment == 0 {
        return Err(OpenError::Index("it has no checkpoint".to_owned()));
    }
    let mut recovery = Recovery::default();
    let (table, rest) = load(dir, id, (&index, mark, None, files), &mut recovery)?;
    Ok(Opened { index, table, rest, recovery })
}

fn open_index(dir: &DataDir, id: [u8; 16], cache_bytes: u64) -> Result<(Index, Mark), OpenError> {
    let opened = match Index::open(&dir.index(), id, cache_bytes) {
        // sled cannot be opened without some space; that is what the reserve is for.
        Err(broken) if broken.is_disk_full() && dir.give_up_reserve() => Index::open(&dir.index(), id, cache_bytes),
        other => other,
    };
    opened.map_err(|broken| OpenError::Index(broken.to_string()))
}

/// Puts the index aside and builds a new one from the journal: all of it, or what lies before `until`.
pub(super) fn rebuild(
    dir: &DataDir,
    (id, cache_bytes): ([u8; 16], u64),
    (files, until): (&[SealedFile], Option<Cursor>),
    recovery: &mut Recovery,
) -> Result<(Index, Table, Rest), OpenError> {
    dir.quarantine_index()?;
    let (index, mark) = open_index(dir, id, cache_bytes)?;
    let (table, rest) = load(dir, id, (&index, mark, until, files), recovery)?;
    Ok((index, table, rest))
}

/// Replays the journal behind `mark` into a table, moving what is much into the index. At open (no `until`), cuts torn
/// ends and makes what it took durable.
fn load(
    dir: &DataDir,
    id: [u8; 16],
    (index, mark, until, files): (&Index, Mark, Option<Cursor>, &[SealedFile]),
    recovery: &mut Recovery,
) -> Result<(Table, Rest), OpenError> {
    let journal = dir.journal();
    let numbers = segment::numbers(&journal)?;
    let table = Table { horizon: mark.horizon, log_max: mark.log_max, ..Table::default() };
    let mut loader = Loader { table, index };
    let from = if mark.cursor.segment == 0 {
        let before = Loaded::from(START, (&journal, id), (files, &numbers), &mut loader).map_err(index_error)?;
        recovery.replayed += before.records;
        recovery.damaged_places += before.damaged_places;
        before.cursor
    } else {
        // What was sealed behind the checkpoint is there only as the journal that it came from.
        let is_gone = |file: &SealedFile| {
            let (first, last) = file.journals();
            (first.max(mark.cursor.segment)..=last).any(|number| numbers.binary_search(&number).is_err())
        };
        if files.iter().any(is_gone) {
            return Err(OpenError::Index("it is from before some of the journal was sealed".to_owned()));
        }
        mark.cursor
    };
    loader.table.cursor = from;
    let wanted = numbers.iter().filter(|&&number| number >= from.segment);
    let segments = wanted.map(|&number| Segment::open(&journal, number, id).map(Arc::new));
    let segments = segments.collect::<io::Result<Vec<_>>>()?;
    let outcome = replay(&segments, id, (from, until), &mut loader).map_err(index_error)?;
    let mut table = loader.table;
    table.cursor = outcome.cursor;
    if outcome.roll_past.is_some() {
        // An unfinished checkpoint may hold changes that the journal has lost. Their positions must not be used again.
        let position_max = index.position_max().map_err(|broken| OpenError::Index(broken.to_string()))?;
        table.cursor.position = table.cursor.position.max(position_max);
        table.horizon = table.horizon.max(Position(table.cursor.position));
    }
    recovery.replayed += outcome.records;
    recovery.damaged_places += outcome.damaged_places;
    let segment = |number| segments.iter().find(|segment| segment.number == number);
    if until.is_none() {
        for torn in outcome.torn {
            let (start, end) = (torn.start, torn.end);
            recovery.torn_bytes += end - start;
            tracing::warn!(segment = torn.segment, start, end, "cutting a torn end of the journal");
            segment(torn.segment).map_or(Ok(()), |segment| dir.cut(segment, torn))?;
        }
        if let Some(group) = outcome.last_group {
            segment(group.segment).map_or(Ok(()), |segment| DataDir::settle(segment, group))?;
        }
    }
    let cursor = table.cursor;
    let is_usable =
        |segment: &&Arc<Segment>| !segment.is_cut() && outcome.roll_past.is_none_or(|past| segment.number > past);
    let current = segment(cursor.segment).filter(is_usable).cloned();
    let after = segments.iter().filter(|segment| segment.number > cursor.segment).filter(is_usable).cloned();
    let mut spares: std::collections::VecDeque<_> = after.collect();
    let current = current.or_else(|| spares.pop_front());
    let sealed = files.iter().map(|file| file.journals().1).max().unwrap_or(0);
    let last_number = numbers.last().copied().unwrap_or(0).max(outcome.roll_past.unwrap_or(0)).max(sealed);
    Ok((table, Rest { current, cursor, spares: spares.into(), next_number: last_number + 1 }))
}

/// While the journal is replayed only the index can ask for being built anew.
fn index_error(error: StoreError) -> OpenError {
    match error {
        StoreError::Rebuilding => OpenError::Index("it does not agree with itself".to_owned()),
        other => other.into(),
    }
}
