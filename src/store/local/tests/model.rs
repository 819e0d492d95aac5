//! Random scripts against the memory engine: equal answers after every step, whatever happened in between.

use proptest::prelude::*;

use super::*;
use crate::store::contract::{Writer, everything, key, list_all, read_all};
use crate::store::memory::MemoryStore;

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Append(u8, u32, usize),
    Delete(u8),
    Group(Vec<(u8, u32)>),
    Between(Between),
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = 0..5u8;
    prop_oneof![
        2 => name.clone().prop_map(Step::Create),
        6 => (name.clone(), 1..6u32, 0..3000usize).prop_map(|(n, count, bytes)| Step::Append(n, count, bytes)),
        1 => name.clone().prop_map(Step::Delete),
        2 => prop::collection::vec((name, 1..4u32), 1..8).prop_map(Step::Group),
        6 => prop::sample::select(vec![
            Between::Checkpoint, Between::Reopen, Between::Kill, Between::LoseIndex,
            Between::Seal, Between::SealKill, Between::SealLoseIndex,
        ])
        .prop_map(Step::Between),
    ]
}

struct Run {
    local: Local,
    model: MemoryStore,
    live: std::collections::BTreeMap<u8, Writer>,
    dead: Vec<Writer>,
    clock: u64,
}

impl Run {
    fn changes(&mut self, step: &Step) -> Vec<Change> {
        match step {
            Step::Create(n) if !self.live.contains_key(n) => {
                let writer = Writer::new(self.local.local(), key(&format!("s{n}")));
                let change = writer.create();
                self.live.insert(*n, writer);
                vec![change]
            }
            Step::Append(n, count, bytes) => {
                self.live.get_mut(n).map(|writer| writer.append(*count, *bytes)).into_iter().collect()
            }
            Step::Delete(n) => {
                let Some(writer) = self.live.remove(n) else { return Vec::new() };
                let change = writer.delete();
                self.dead.push(writer);
                vec![change]
            }
            Step::Group(parts) => {
                let live = &mut self.live;
                parts.iter().filter_map(|(n, count)| Some(live.get_mut(n)?.append(*count, 20))).collect()
            }
            Step::Create(_) | Step::Between(_) => Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        if let Step::Between(between) = step {
            self.local.between = *between;
            self.local.between();
        }
        let changes = self.changes(step);
        if !changes.is_empty() {
            self.clock += 1;
            // A clock that now and then goes back.
            let time_ms = if self.clock.is_multiple_of(7) { self.clock / 2 } else { self.clock };
            self.local.local().commit(&changes, time_ms).unwrap();
            self.model.commit(&changes, time_ms).unwrap();
        }
        self.compare();
    }

    fn compare(&self) {
        let local = self.local.local();
        assert_eq!(local.position(), self.model.position());
        let expected = list_all(&self.model, &everything(), 3);
        assert_eq!(list_all(local, &everything(), 2), expected);
        for n in 0..5u8 {
            let key = key(&format!("s{n}"));
            let (ours, theirs) = (local.find(&key).unwrap(), self.model.find(&key).unwrap());
            assert_eq!(ours.as_ref().map(|found| found.damage), theirs.as_ref().map(|_| None));
            assert_eq!(ours.map(|found| found.session), theirs.map(|found| found.session));
        }
        for writer in self.live.values().chain(&self.dead) {
            assert_eq!(read_all(local, writer.log).unwrap(), writer.events);
        }
        assert_eq!(local.recovery().torn_bytes, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_store_answers_like_the_model_at_every_step(steps in prop::collection::vec(any_step(), 1..30)) {
        let local = Local::new(Between::Nothing);
        let (model, live, dead) = (MemoryStore::new(), std::collections::BTreeMap::new(), Vec::new());
        let mut run = Run { local, model, live, dead, clock: 0 };
        steps.iter().for_each(|step| run.step(step));
    }
}
