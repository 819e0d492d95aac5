//! The part of the contract that is about notes: they may be lost, and never lie.
#![allow(clippy::unwrap_used, reason = "test code")]

use super::contract::{Harness, Writer, key, read_all};
use super::{NOTE_BYTES_MAX, Note};

fn note(of: &Writer, bytes: usize) -> Note {
    let content: Vec<u8> = (0..bytes).map(|n| (n * 7) as u8).collect();
    Note { next_seq: of.next_seq, chain: of.chain, bytes: content.into() }
}

/// Notes `bytes` of a log, and fails unless that note is there now and, after the step, that one or none is.
fn keep(h: &mut dyn Harness, of: &Writer, bytes: usize) {
    let note = note(of, bytes);
    h.store().note(of.log, note.clone());
    assert_eq!(h.store().noted(of.log).as_ref(), Some(&note), "{bytes} bytes");
    h.between();
    assert!(h.store().noted(of.log).is_none_or(|found| found == note), "{bytes} bytes");
}

pub(super) fn a_note_is_the_last_of_its_log_or_none(h: &mut dyn Harness) {
    let (mut a, b) = (Writer::new(h.store(), key("a")), Writer::new(h.store(), key("b")));
    h.store().commit(&[a.create(), b.create(), a.append(3, 10)], 5).unwrap();
    h.between();
    assert_eq!((h.store().noted(a.log), h.store().noted(b.log)), (None, None));
    for bytes in [10, 20_000, 0, NOTE_BYTES_MAX, 5000, 1] {
        keep(h, &a, bytes);
        assert_eq!(h.store().noted(b.log), None);
    }
    h.store().commit(&[a.append(1, 10)], 6).unwrap();
    keep(h, &a, 300);
    keep(h, &b, 100);
    // One that is too large leaves the one before, or nothing.
    h.store().note(b.log, note(&b, NOTE_BYTES_MAX + 1));
    assert!(h.store().noted(b.log).is_none_or(|found| found == note(&b, 100)));
    // It goes with its log, and a late one does not stay.
    h.store().commit(&[a.delete()], 7).unwrap();
    assert_eq!(h.store().noted(a.log), None);
    h.between();
    h.store().note(a.log, note(&a, 10));
    h.between();
    assert_eq!(h.store().noted(a.log), None);
    assert_eq!(read_all(h.store(), a.log).unwrap(), a.events);
    b.check(h.store());
}
