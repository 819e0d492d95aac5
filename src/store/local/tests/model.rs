//! Random scripts against the memory engine: equal answers after every step, whatever happened in between.

use proptest::prelude::*;

use super::*;
use crate::store::Remains;
use crate::store::contract::{Writer, everything, key, list_all, read_all};
use crate::store::memory::MemoryStore;

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Append(u8, u32, usize),
    Delete(u8),
    Group(Vec<(u8, u32)>),
    /// A fork of one name under another, after so many of a hundred parts of it.
    Fork(u8, u8, usize),
    /// So many steps of a detaching.
    Detach(u8, usize),
    Purge,
    Between(Between),
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = 0..5u8;
    prop_oneof![
        2 => name.clone().prop_map(Step::Create),
        6 => (name.clone(), 1..6u32, 0..3000usize).prop_map(|(n, count, bytes)| Step::Append(n, count, bytes)),
        2 => name.clone().prop_map(Step::Delete),
        8 => (name.clone(), name.clone(), 0..101usize).prop_map(|(from, to, at)| Step::Fork(from, to, at)),
        1 => (name.clone(), 1..20usize).prop_map(|(n, steps)| Step::Detach(n, steps)),
        1 => Just(Step::Purge),
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
            Step::Fork(from, to, at) if !self.live.contains_key(to) => {
                let Some(parent) = self.live.get(from).filter(|parent| !parent.events.is_empty()) else {
                    return Vec::new();
                };
                let boundary = parent.events.len() * at / 100;
                let (child, change) = parent.fork(self.local.local(), &format!("s{to}"), boundary);
                self.live.insert(*to, child);
                vec![change]
            }
            Step::Detach(n, steps) => {
                let Some(writer) = self.live.get(n) else { return Vec::new() };
                let shared = writer.extents(&self.model).last().map_or(0, |extent| extent.until.get());
                let changes = writer.detach(shared as usize);
                changes.into_iter().take(*steps).filter(|_| shared > 0).collect()
            }
            Step::Purge => remains(&self.model).iter().filter_map(purge_of).collect(),
            Step::Create(_) | Step::Fork(..) | Step::Between(_) => Vec::new(),
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
        for writer in self.live.values() {
            assert_eq!(read_all(local, writer.log).unwrap(), writer.events);
            assert_eq!(writer.extents(local), writer.extents(&self.model));
            assert_eq!(local.forks(writer.log).unwrap(), self.model.forks(writer.log).unwrap());
        }
        for writer in &self.dead {
            // Purged to the end that forks need; one whose own prefix went with others is not whole.
            match (read_all(local, writer.log), read_all(&self.model, writer.log)) {
                (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
                (Err(StoreError::Damaged { .. }), Err(StoreError::Damaged { .. })) => {}
                (ours, theirs) => panic!("{ours:?} {theirs:?}"),
            }
            for from in (0..writer.events.len() as u64).step_by(3).map(Seq::saturating) {
                let until = Seq::saturating(from.get() + 1);
                assert_eq!(
                    local.needs(writer.log, from, until).unwrap(),
                    self.model.needs(writer.log, from, until).unwrap()
                );
            }
        }
        let told = |store: &dyn Store| -> Vec<_> {
            let told = |one: &Remains| (one.session.clone(), one.needed_until, one.cut, one.chain, one.events);
            remains(store).iter().map(told).collect()
        };
        assert_eq!(told(local), told(&self.model));
        assert_eq!(local.recovery().torn_bytes, 0);
    }
}

fn remains(store: &dyn Store) -> Vec<Remains> {
    store.remains(None, 1000).unwrap()
}

fn purge_of(one: &Remains) -> Option<Change> {
    let is_wanted = one.is_all() || one.cut < one.session.next_seq;
    is_wanted.then(|| Change::Purge { log: one.log(), next_seq: one.cut, chain: one.chain })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_store_answers_like_the_model_at_every_step(steps in prop::collection::vec(any_step(), 1..60)) {
        let local = Local::new(Between::Nothing);
        let (model, live, dead) = (MemoryStore::new(), std::collections::BTreeMap::new(), Vec::new());
        let mut run = Run { local, model, live, dead, clock: 0 };
        // Something to fork from the start on.
        [Step::Create(0), Step::Append(0, 4, 100), Step::Append(0, 3, 10)].iter().chain(&steps).for_each(|step| run.step(step));
    }
}
