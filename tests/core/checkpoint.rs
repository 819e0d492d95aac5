//! Laws of checkpoints: they read back, they replace the log before them, and no bytes break them.

use proptest::prelude::*;
use quipu::model::Event;
use quipu::replay::Admission;
use quipu::replay::checkpoint::{Checkpoint, from_bytes, to_bytes};
use quipu::replay::fork::Stem;
use quipu::replay::surface::in_log;
use quipu::replay::vocabulary::{UnknownType, check_readable};

use crate::given::any_log;
use crate::logs::open;

fn fold(mut from: Checkpoint, events: &[Event], log: &[Event]) -> Checkpoint {
    for event in events {
        from.admission.apply(event, &in_log(log)).unwrap();
        from.stem.apply(event);
        let unknown = check_readable(event, &|kind| from.log_only.iter().any(|name| name == kind)).err();
        from.unknown = from.unknown.or(unknown);
    }
    from
}

fn start(log_only: &[&str]) -> Checkpoint {
    let log_only = log_only.iter().map(|&kind| kind.to_owned()).collect();
    Checkpoint { admission: Admission::default(), stem: Stem::default(), unknown: None, log_only }
}

fn bytes_of(state: &Checkpoint) -> Option<Vec<u8>> {
    to_bytes(&state.admission, &state.stem, state.unknown.as_ref(), &state.log_only)
}

/// Any log, its numbers made contiguous; the surface of most breaks somewhere.
fn log() -> impl Strategy<Value = Vec<Event>> {
    any_log()
}

proptest! {
    #[test]
    fn what_was_written_reads_back_and_goes_on_like_the_whole(log in log(), at in 0..70usize) {
        let at = at.min(log.len());
        let first = fold(start(&["plugin/one"]), &log[..at], &log);
        match bytes_of(&first) {
            None => prop_assert!(first.admission.surface_fault().is_some()),
            Some(bytes) => {
                let read = from_bytes(&bytes).unwrap();
                prop_assert_eq!(&read, &first);
                let whole = fold(start(&["plugin/one"]), &log, &log);
                prop_assert_eq!(fold(read, &log[at..], &log), whole);
            }
        }
    }

    #[test]
    fn no_bytes_break_it_and_a_changed_byte_is_noticed(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let _ = from_bytes(&bytes);
        // The same behind a checksum that is right, so that the reading itself is reached.
        let mut sealed = [&[1], &bytes[..]].concat();
        sealed.extend_from_slice(&crc32c::crc32c(&sealed).to_le_bytes());
        let _ = from_bytes(&sealed);
        let mut good = bytes_of(&fold(start(&["a"]), &open(), &open())).unwrap();
        let cut = at.index(good.len());
        prop_assert_eq!(from_bytes(&good[..cut]), None);
        good[cut] ^= 1_u8 << bit;
        prop_assert_eq!(from_bytes(&good), None);
    }
}

#[test]
fn a_state_outlives_types_that_became_log_only_but_no_other_change_of_them() {
    let list = |kinds: &[&str]| kinds.iter().map(|&kind| kind.to_owned()).collect::<Vec<_>>();
    let mut state = start(&["a"]);
    for (log_only, suits) in [(&["a"][..], true), (&["b", "a"], true), (&[], false), (&["b"], false)] {
        assert_eq!(state.suits(&list(log_only)), suits, "{log_only:?}");
    }
    state.unknown = Some(UnknownType { seq: quipu::model::Seq::ZERO, kind: "b".to_owned() });
    assert!(state.suits(&list(&["a", "c"])));
    assert!(!state.suits(&list(&["a", "b"])), "the log may have further unknown types behind the first");
}

#[test]
fn a_checkpoint_of_many_nodes_is_small() {
    let mut log = Vec::new();
    let message = r#"{"id":"m","role":"user","source":{"kind":"user"},"content":[{"type":"text","text":"x"}]}"#;
    for _ in 0..10_000 {
        crate::logs::extend(&mut log, &[("user/message", message), ("note", "{}")]);
    }
    let bytes = bytes_of(&fold(start(&[]), &log, &log)).unwrap();
    assert!(bytes.len() < 11_000, "{} bytes", bytes.len());
}
