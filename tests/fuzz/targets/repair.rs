//! Repair of any log: deterministic, append-only, idempotent, balanced, and valid JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quipu_fuzz::Log;
use quipu_fuzz::model::json;
use quipu_fuzz::replay::Tail;
use quipu_fuzz::replay::repair::closers;

fuzz_target!(|log: Log| {
    let mut events = log.0;
    let added = closers(&events);
    assert_eq!(added, closers(&events));
    for (seq, event) in (events.len() as u64..).zip(&added) {
        assert_eq!(event.seq.get(), seq);
        assert_eq!(json::check(&event.body.data), Ok(()));
    }
    events.extend(added);
    assert!(closers(&events).is_empty());
    assert!(Tail::from_events(&events).is_balanced());
});
