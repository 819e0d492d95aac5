//! The door: a refused batch changes nothing, a batch is its events, a checkpoint is the state.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quipu_fuzz::Log;
use quipu_fuzz::model::{Event, Profile, json};
use quipu_fuzz::replay::Admission;
use quipu_fuzz::replay::checkpoint::{from_bytes, to_bytes};
use quipu_fuzz::replay::fork::Stem;
use quipu_fuzz::replay::line;
use quipu_fuzz::replay::seed::Seed;
use quipu_fuzz::replay::surface::in_log;

fn check(profile: Profile, log: &[Event], batch: usize) {
    let (mut whole, mut single) = (Admission::default(), Admission::default());
    for events in log.chunks(batch) {
        let before = whole.clone();
        let taken = whole.admit(profile, events, &in_log(log));
        for event in events {
            if single.admit(profile, std::slice::from_ref(event), &in_log(log)).is_err() {
                break;
            }
        }
        match taken {
            Ok(_) => assert_eq!(whole, single),
            Err(_) => return assert_eq!(whole, before, "a refusal changed something"),
        }
        let stem = Stem::default();
        if let Some(bytes) = to_bytes(&whole, &stem, None, &[]) {
            assert_eq!(from_bytes(&bytes).expect("what was written reads back").admission, whole);
        }
    }
    if profile == Profile::Dsh {
        let mut seed = Seed::default();
        for event in log {
            let line = line::encode(event);
            let doc = json::parse(&line).expect("a line is JSON");
            assert_eq!(seed.push(doc.root()), Ok(()), "what the door admits, a reader opens");
        }
    }
}

fuzz_target!(|input: (Log, u8)| {
    let (Log(log), batch) = input;
    for profile in [Profile::Dsh, Profile::DshStrict, Profile::Raw] {
        check(profile, &log, usize::from(batch % 9) + 1);
    }
});
