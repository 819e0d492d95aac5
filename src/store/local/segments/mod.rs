//! Sealed segments on disk: finished journal segments, rewritten log by log, compressed, and then let go.
//!
//! **One file holds many logs.** With 10,000 equally busy sessions a journal segment has a few kilobytes of each; a
//! file per log would cost 10,000 files, names and syncs per segment. So a sealed file stands for a range of journal
//! segments and holds their runs sorted by log, a block per log; the cost per file is that of two syncs.
//!
//! **A sealed file says all that the journal said.** Its directory keeps every record without events as it was, with
//! its position, so that an index is built from sealed files and the rest of the journal as from the journal alone.
//! There is no snapshot of all sessions that would grow with the store.
//!
//! **Nothing goes before its replacement is proved.** Draft, sync, read back past the page cache, compare with the
//! journal byte for byte and with the chain; then the name, the index, each durable; then the journal segments. What
//! is damaged, or not understood, is not sealed and stays. After a kill at any step the next open finds either drafts,
//! which have a name of their own and are removed, or a sealed file beside the journal segments that it stands for,
//! and completes the work.

mod file;
mod gather;
mod load;
mod progress;
mod relocate;
mod scan;
mod verify;
mod worker;
mod write;

#[cfg(test)]
mod tests;

pub(super) use file::{SealedFile, catalog};
pub(super) use load::Loaded;
pub use progress::Sealing;
pub(super) use worker::Sealer;

/// Marks the number of a sealed file in a place, which journal segments never reach.
const SEALED: u64 = 1 << 63;

/// The segment number by which a place names a sealed file.
fn place_number(file: u64) -> u64 {
    file | SEALED
}

/// The sealed file that a place names.
pub(super) fn sealed_number(segment: u64) -> Option<u64> {
    (segment & SEALED != 0).then_some(segment & !SEALED)
}
