//! Notes of logs: those that wait for a checkpoint, and how the index keeps one.
//!
//! A note lies in pieces under keys of its own, because values of the index are small. Nothing depends on it: pieces that
//! do not add up to what was written, which is all that a crash can leave, are no note.

use std::collections::HashMap;

use bytes::{Buf, Bytes};

use crate::codec::Chain;
use crate::model::Seq;
use crate::store::{LogId, NOTE_BYTES_MAX, Note};

/// Bytes of one piece; with its key it stays below what the index takes for one entry.
const PIECE_BYTES: usize = 4000;
/// Bytes of notes that may wait for a checkpoint; further ones are lost.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The notes since the last checkpoint.
#[derive(Debug, Default)]
pub(super) struct Notes {
    by_log: HashMap<LogId, Note>,
    bytes: usize,
}

impl Notes {
    pub(super) fn insert(&mut self, log: LogId, note: Note) {
        if note.bytes.len() <= NOTE_BYTES_MAX && self.bytes + note.bytes.len() <= WAITING_BYTES_MAX {
            self.bytes += note.bytes.len();
            let before = self.by_log.insert(log, note);
            self.bytes -= before.map_or(0, |note| note.bytes.len());
        }
    }

    pub(super) fn remove(&mut self, log: LogId) {
        let before = self.by_log.remove(&log);
        self.bytes -= before.map_or(0, |note| note.bytes.len());
    }

    pub(super) fn get(&self, log: LogId) -> Option<&Note> {
        self.by_log.get(&log)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LogId, &Note)> {
        self.by_log.iter().map(|(log, note)| (*log, note))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_log.is_empty()
    }
}

/// The pieces of a note, in order.
pub(super) fn split(note: &Note) -> Vec<Vec<u8>> {
    let mut whole = Vec::with_capacity(note.bytes.len() + 48);
    whole.extend_from_slice(&note.next_seq.get().to_le_bytes());
    whole.extend_from_slice(&note.chain.0);
    whole.extend_from_slice(&note.bytes);
    let checksum = crc32c::crc32c(&whole);
    whole.extend_from_slice(&checksum.to_le_bytes());
    whole.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect()
}

/// The note that pieces add up to, if they do.
pub(super) fn join(pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Option<Note> {
    let mut whole = Vec::new();
    pieces.into_iter().for_each(|piece| whole.extend_from_slice(piece.as_ref()));
    let (content, checksum) = whole.split_last_chunk::<4>()?;
    if crc32c::crc32c(content).to_le_bytes() != *checksum || content.len() < 40 {
        return None;
    }
    let mut content = Bytes::copy_from_slice(content);
    let next_seq = Seq::saturating(content.get_u64_le());
    let mut chain = [0; 32];
    content.copy_to_slice(&mut chain);
    Some(Note { next_seq, chain: Chain(chain), bytes: content })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(bytes: usize) -> Note {
        let content: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        Note { next_seq: Seq::saturating(7), chain: Chain([3; 32]), bytes: content.into() }
    }

    #[test]
    fn pieces_add_up_to_their_note_and_to_no_other() {
        for bytes in [0, 1, 3955, 3956, 3957, 4000, 9000, NOTE_BYTES_MAX] {
            let pieces = split(&note(bytes));
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert_eq!(join(&pieces), Some(note(bytes)));
            assert_eq!(join(&pieces[1..]), None);
            let mut mixed = pieces.clone();
            mixed[0][0] ^= 1;
            assert_eq!(join(&mixed), None);
        }
        assert_eq!(join(Vec::<Vec<u8>>::new()), None);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut notes = Notes::default();
        (0..100).for_each(|log| notes.insert(LogId(log), note(NOTE_BYTES_MAX)));
        assert_eq!(notes.iter().count(), WAITING_BYTES_MAX / NOTE_BYTES_MAX);
        (0..50).for_each(|log| notes.insert(LogId(log), note(1)));
        (0..100).for_each(|log| notes.remove(LogId(log)));
        assert_eq!((notes.bytes, notes.is_empty()), (0, true));
        notes.insert(LogId(1), note(NOTE_BYTES_MAX + 1));
        assert!(notes.get(LogId(1)).is_none());
    }
}
