//! Letting the index point at sealed blocks instead of the journal.
//!
//! Idempotent: what points at sealed blocks already is written once more. A log's places change in one batch, so that
//! a reader finds the old ones or the new ones.

use std::collections::BTreeMap;

use super::load::place_of;
use crate::codec::segment::Entry;
use crate::model::Seq;
use crate::store::local::index::{Broken, Index, Moved};
use crate::store::local::place::{self, Place};
use crate::store::{LogId, StoreError};

/// Logs whose places are moved in one batch of the index.
const LOGS_PER_BATCH: usize = 100;
/// Blocks of places that are mostly empty are joined with the one before.
const JOIN_PLACES_MAX: usize = 150;

/// Points the index at the blocks of a sealed file. Not yet durable.
pub(super) fn relocate(index: &Index, file: u64, entries: &[Entry]) -> Result<(), StoreError> {
    let mut logs: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
    for entry in entries {
        logs.entry(entry.log).or_default().push(place_of(file, entry));
    }
    let mut moved = Vec::new();
    for (log, sealed) in logs {
        moved.extend(one(index, LogId(log), &sealed)?);
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
        // A log that the index does not know: its creation is lost, or it was reclaimed.
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
    if places.windows(2).any(|pair| pair[0].next_seq() != pair[1].first_seq) {
        return Err(Broken::new("places of a log do not follow each other"));
    }
    Ok(Some(Moved { log, removed, inserted: place::pack(&places) }))
}
