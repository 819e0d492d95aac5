//! Letting the index point at sealed blocks instead of the journal.
//!
//! Idempotent: what points at sealed blocks already is written once more. A log's places change in one batch, so that
//! a reader finds the old ones or the new ones. What the index does not have (it was purged, or changed nothing) stays
//! out of it.

use std::collections::BTreeMap;

use super::load::place_of;
use crate::codec::segment::{Entry, Part};
use crate::model::Seq;
use crate::store::local::index::{Broken, Index, Rows, decode_run_key, run_key};
use crate::store::local::place::{self, Place};
use crate::store::{LogId, StoreError};

/// Blocks of places of a log that take the place of others.
struct Moved {
    log: LogId,
    removed: Vec<Seq>,
    inserted: Vec<(Seq, Vec<u8>)>,
}

/// Logs whose places are moved in one batch of the index.
const LOGS_PER_BATCH: usize = 100;
/// Blocks of places that are mostly empty are joined with the one before.
const JOIN_PLACES_MAX: usize = 150;

/// Points the index at the blocks of a sealed file. Not yet durable.
pub(super) fn relocate(index: &Index, file: u64, entries: &[Entry]) -> Result<(), StoreError> {
    let mut logs: BTreeMap<(u64, Part), Vec<Place>> = BTreeMap::new();
    for entry in entries {
        logs.entry((entry.log, entry.part)).or_default().push(place_of(file, entry));
    }
    let mut moved = Vec::new();
    for ((log, part), sealed) in logs {
        let log = LogId(log);
        // A log that the index does not know: its creation is lost, or it was purged.
        let Some(entry) = index.entry(log)? else { continue };
        match part {
            Part::Own => {
                let is_left = |place: &Place| !entry.deleted || place.first_seq < entry.session.next_seq;
                let sealed: Vec<Place> = sealed.into_iter().filter(is_left).collect();
                moved.extend(one(index, log, &sealed)?);
            }
            // Each on its own: one that was not next when it came is not in the index.
            Part::Copy => {
                for copy in sealed {
                    index.relocate(one_copy(index, log, copy)?.into_iter().collect())?;
                }
            }
        }
        if moved.len() >= LOGS_PER_BATCH {
            index.relocate(std::mem::take(&mut moved))?;
        }
    }
    Ok(index.relocate(moved)?)
}

fn one(index: &Index, log: LogId, sealed: &[Place]) -> Result<Option<Moved>, Broken> {
    let (Some(first), Some(last)) = (sealed.first(), sealed.last()) else { return Ok(None) };
    let (start, end) = (first.first_seq, last.next_seq());
    let mut blocks = index.blocks(log, start, end)?;
    let is_there =
        |seq: Seq| blocks.iter().flat_map(|(_, places)| places).any(|p| p.first_seq <= seq && seq < p.next_seq());
    if !is_there(start) {
        return Ok(None);
    }
    let is_outside = |place: &Place| place.next_seq() <= start || place.first_seq >= end;
    // The block before, which is not touched, unless it can take more.
    let untouched =
        blocks.first().is_some_and(|(_, places)| places.iter().all(is_outside) && places.len() > JOIN_PLACES_MAX);
    if untouched {
        blocks.remove(0);
    }
    let removed: Vec<Seq> = blocks.iter().map(|(key, _)| *key).collect();
    let old = blocks.into_iter().flat_map(|(_, places)| places);
    let mut places: Vec<Place> = old.filter(is_outside).chain(sealed.iter().copied()).collect();
    places.sort_by_key(|place| place.first_seq);
    if places.windows(2).any(|pair| pair[0].next_seq() > pair[1].first_seq) {
        return Err(Broken::of(&"places of a log overlap"));
    }
    // Between copies and own events there may be a gap; a block of places has none.
    let groups = places.chunk_by(|one, next| one.next_seq() == next.first_seq);
    Ok(Some(Moved { log, removed, inserted: groups.flat_map(place::pack).collect() }))
}

/// Replaces the place of a copy, if it is there just as it is.
fn one_copy(index: &Index, log: LogId, copy: Place) -> Result<Option<Moved>, Broken> {
    let blocks = index.blocks(log, copy.first_seq, copy.next_seq())?;
    let mut places = blocks.iter().flat_map(|(_, places)| places);
    let is_there = places.any(|place| (place.first_seq, place.count) == (copy.first_seq, copy.count));
    if is_there { one(index, log, &[copy]) } else { Ok(None) }
}

impl Index {
    /// Replaces blocks of places; readers see all of it or nothing.
    fn relocate(&self, logs: Vec<Moved>) -> Result<(), Broken> {
        self.guarded(|db| {
            let mut rows = Rows::default();
            for Moved { log, removed, inserted } in logs {
                removed.into_iter().for_each(|seq| rows.remove(run_key(log, seq)));
                inserted.into_iter().for_each(|(seq, block)| rows.insert(run_key(log, seq), block));
            }
            Ok(db.apply_batch(rows)?)
        })
    }

    /// The blocks of places from the one that may reach `start` to the last before `end`, with their keys; and the one
    /// before.
    fn blocks(&self, log: LogId, start: Seq, end: Seq) -> Result<Vec<(Seq, Vec<Place>)>, Broken> {
        self.guarded(|db| {
            let before = db.range(run_key(log, Seq::ZERO)..run_key(log, start)).next_back().transpose()?;
            let from = before.map_or_else(|| run_key(log, start), |(key, _)| key.to_vec());
            let items = db.range(from..run_key(log, end)).map(|item| {
                let (key, block) = item?;
                let key = decode_run_key(&key)?;
                Ok((key, place::unpack(key, &block).map_err(|e| Broken::of(&e))?))
            });
            items.collect()
        })
    }
}
