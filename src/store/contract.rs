//! The contract of the port, as tests that every engine passes.
//!
//! A [`Harness`] holds one store and decides what happens between two steps of a test: nothing, a checkpoint, a
//! reopening. What a test says must hold for each of them. [`Writer`] makes well-formed changes of one log.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::needless_for_each, reason = "test code")]

use std::sync::Arc;

use super::feed_contract::changes_are_read_by_position;
use super::{
    Birth, Change, Health, ListCursor, ListFilter, LogId, Position, Run, Session, Store, StoreError, contract_notes,
    new_incarnation,
};
use crate::codec::{Chain, event};
use crate::model::{Event, Header, NewEvent, Profile, Seq, SessionKey};

/// One store under test.
pub(super) trait Harness {
    /// The store.
    fn store(&self) -> &dyn Store;
    /// What this harness does between two steps.
    fn between(&mut self) {}
}

type Test = fn(&mut dyn Harness);

/// Runs the whole contract, each test on a store of its own.
pub(super) fn hold(make: &dyn Fn() -> Box<dyn Harness>) {
    let tests: [(&str, Test); 14] = [
        ("positions follow the order of the changes", positions_follow_the_order_of_the_changes),
        ("what commit returned is there", what_commit_returned_is_there),
        ("a log is read from any seq", a_log_is_read_from_any_seq),
        ("a read is bounded and goes on", a_read_is_bounded_and_goes_on),
        ("the list is newest first in pages", the_list_is_newest_first_in_pages),
        ("the list has filters", the_list_has_filters),
        ("a name is free after its log is deleted", a_name_is_free_after_its_log_is_deleted),
        ("log ids are never used twice", log_ids_are_never_used_twice),
        ("many sessions share a group", many_sessions_share_a_group),
        ("large events come back", sharing::large_events_come_back),
        (
            "an owner is there with its epoch and moves no event",
            super::handover::an_owner_is_there_with_its_epoch_and_moves_no_event,
        ),
        ("a note is its own log's last or none", contract_notes::a_note_is_the_last_of_its_log_or_none),
        ("changes are read by position", changes_are_read_by_position),
        ("a closed engine refuses and is read", a_closed_engine_refuses_and_is_read),
    ];
    for (name, test) in tests.into_iter().chain(sharing::TESTS) {
        println!("{name}");
        test(&mut *make());
    }
}

/// A name in the namespace `default`.
pub(super) fn key(id: &str) -> SessionKey {
    SessionKey::new("default", id).unwrap()
}

/// Writes one log: knows its end, and all its events.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) log: LogId,
    pub(super) birth: Arc<Birth>,
    pub(super) next_seq: Seq,
    pub(super) chain: Chain,
    pub(super) events: Vec<Event>,
}

impl Writer {
    /// A log that is not there yet.
    pub(super) fn new(store: &dyn Store, key: SessionKey) -> Self {
        Self::with_header(store, key, Header { cwd: Some("/work".to_owned()), ..Header::default() })
    }

    /// As [`Writer::new`], with that header.
    pub(super) fn with_header(store: &dyn Store, key: SessionKey, header: Header) -> Self {
        let birth = Birth { key, incarnation: new_incarnation(), profile: Profile::Raw, header };
        let (next_seq, chain) = (Seq::ZERO, Chain::START);
        Self { log: store.allot(), birth: Arc::new(birth), next_seq, chain, events: Vec::new() }
    }

    /// Its creation.
    pub(super) fn create(&self) -> Change {
        Change::Create { log: self.log, birth: self.birth.clone() }
    }

    /// The next events, each with about that many bytes of data.
    pub(super) fn append(&mut self, count: u32, data_bytes: usize) -> Change {
        let (first_seq, link) = (self.next_seq, self.chain.link());
        let mut events = Vec::new();
        for _ in 0..count {
            let seq = self.next_seq;
            let data = format!("\"{}-{seq}-{}\"", self.log.0, "x".repeat(data_bytes));
            let kind = Arc::from("test/event");
            let (time_ms, ignorable) = (seq.get() as i64 * 7 + 1, seq.get().is_multiple_of(2));
            let (surface_op, source_event_seqs) = (None, None);
            let body = NewEvent { time_ms, kind, data: data.into(), ignorable, surface_op, source_event_seqs };
            let start = events.len();
            event::encode(seq, &body, &mut events);
            self.chain = self.chain.next(&events[start..]);
            self.next_seq = seq.advance(1).unwrap();
            self.events.push(Event { seq, body });
        }
        let run = Run { first_seq, count, link, chain: self.chain, events: events.into() };
        Change::Append { log: self.log, run }
    }

    /// Its deletion.
    pub(super) fn delete(&self) -> Change {
        Change::Delete { log: self.log, next_seq: self.next_seq, chain: self.chain }
    }

    /// Fails unless the store has the session, sound, with exactly these events.
    pub(super) fn check(&self, store: &dyn Store) {
        let found = store.find(&self.birth.key).unwrap().expect("the session is there");
        assert_eq!(found.damage, None);
        self.check_head(&found.session);
        assert_eq!(read_all(store, self.log).unwrap(), self.events);
    }

    fn check_head(&self, session: &Session) {
        assert_eq!((session.log, &session.birth), (self.log, &self.birth));
        assert_eq!((session.next_seq, session.chain), (self.next_seq, self.chain));
    }
}

/// All events of a log, read in small steps; an error ends it.
pub(super) fn read_all(store: &dyn Store, log: LogId) -> Result<Vec<Event>, StoreError> {
    let (mut events, mut next) = (Vec::new(), Seq::ZERO);
    loop {
        let runs = store.read(log, next, 2000)?;
        let Some(last) = runs.last() else { return Ok(events) };
        assert!(last.next_seq() > next, "a read that does not go on");
        next = last.next_seq();
        for run in &runs {
            assert_eq!(run.first_seq.get(), events.len() as u64, "runs follow without a gap");
            events.extend(run.decode()?);
        }
    }
}

/// All pages of a list.
pub(super) fn list_all(store: &dyn Store, filter: &ListFilter, count: usize) -> Vec<Session> {
    let (mut sessions, mut after) = (Vec::new(), None::<ListCursor>);
    loop {
        let page = store.list(filter, after, count).unwrap();
        assert!(page.sessions.len() <= count);
        sessions.extend(page.sessions);
        if page.next.is_none() {
            return sessions;
        }
        after = page.next;
    }
}

/// Everything of the namespace `default`.
pub(super) fn everything() -> ListFilter {
    ListFilter { namespace: "default".to_owned(), ..ListFilter::default() }
}

fn positions_follow_the_order_of_the_changes(h: &mut dyn Harness) {
    assert_eq!(h.store().position(), Position(0));
    let (mut a, mut b) = (Writer::new(h.store(), key("a")), Writer::new(h.store(), key("b")));
    h.store().commit(&[a.create(), b.create(), a.append(3, 10)], 5).unwrap();
    h.between();
    assert_eq!(h.store().position(), Position(3));
    h.store().commit(&[b.append(1, 10)], 6).unwrap();
    h.between();
    let position = |name: &str| h.store().find(&key(name)).unwrap().unwrap().session.position;
    assert_eq!((position("a"), position("b"), h.store().position()), (Position(3), Position(4), Position(4)));
}

fn what_commit_returned_is_there(h: &mut dyn Harness) {
    let id = h.store().id();
    let mut a = Writer::new(h.store(), key("a"));
    assert!(h.store().find(&key("a")).unwrap().is_none());
    h.store().commit(&[a.create()], 5).unwrap();
    h.between();
    a.check(h.store());
    for round in 0..5 {
        h.store().commit(&[a.append(round + 1, 100)], 6 + u64::from(round)).unwrap();
        a.check(h.store());
        h.between();
        a.check(h.store());
        assert_eq!(h.store().find(&key("a")).unwrap().unwrap().session.updated_ms, 6 + u64::from(round));
    }
    assert!(h.store().find(&SessionKey::new("other", "a").unwrap()).unwrap().is_none());
    assert_eq!(h.store().id(), id);
    assert_eq!(h.store().health(), Health::Writable);
}

fn a_log_is_read_from_any_seq(h: &mut dyn Harness) {
    let mut a = Writer::new(h.store(), key("a"));
    h.store().commit(&[a.create()], 1).unwrap();
    for count in [1, 5, 2, 9] {
        h.store().commit(&[a.append(count, 30)], 2).unwrap();
        h.between();
    }
    for from in 0..17 {
        let runs = h.store().read(a.log, Seq::saturating(from), usize::MAX).unwrap();
        let events: Vec<_> = runs.iter().flat_map(|run| run.decode().unwrap()).collect();
        let first = events.first().unwrap().seq.get();
        assert!(first <= from && runs[0].next_seq().get() > from, "the first run holds {from}");
        assert_eq!(events, a.events[first as usize..]);
        assert_eq!(runs.last().unwrap().chain, a.chain);
    }
    for past in [17, 18, 1 << 40] {
        assert!(h.store().read(a.log, Seq::saturating(past), 1000).unwrap().is_empty());
    }
}

fn a_read_is_bounded_and_goes_on(h: &mut dyn Harness) {
    let mut a = Writer::new(h.store(), key("a"));
    h.store().commit(&[a.create()], 1).unwrap();
    for _ in 0..20 {
        h.store().commit(&[a.append(2, 400)], 2).unwrap();
    }
    h.between();
    assert_eq!(h.store().read(a.log, Seq::ZERO, 0).unwrap().len(), 1, "at least one run");
    let bounded: usize = h.store().read(a.log, Seq::ZERO, 5000).unwrap().iter().map(|run| run.events.len()).sum();
    assert!((1000..6000).contains(&bounded), "{bounded}");
    a.check(h.store());
}

fn the_list_is_newest_first_in_pages(h: &mut dyn Harness) {
    let mut writers: Vec<_> = (0..7).map(|n| Writer::new(h.store(), key(&format!("s{n}")))).collect();
    for (n, writer) in writers.iter_mut().enumerate() {
        h.store().commit(&[writer.create()], 10 + n as u64 / 2).unwrap();
        h.between();
    }
    h.store().commit(&[writers[2].append(1, 1)], 100).unwrap();
    h.between();
    let expected = ["s2", "s6", "s5", "s4", "s3", "s1", "s0"];
    for count in [1, 2, 3, 6, 7, 100] {
        let sessions = list_all(h.store(), &everything(), count);
        let names: Vec<_> = sessions.iter().map(|session| session.birth.key.id.as_str()).collect();
        assert_eq!(names, expected, "pages of {count}");
    }
    for session in list_all(h.store(), &everything(), 3) {
        let writer = writers.iter().find(|writer| writer.log == session.log).unwrap();
        writer.check_head(&session);
    }
    // The clock going back moves nothing back.
    h.store().commit(&[writers[2].append(1, 1)], 50).unwrap();
    h.between();
    let first = h.store().list(&everything(), None, 1).unwrap().sessions.remove(0);
    assert_eq!((first.log, first.updated_ms), (writers[2].log, 100));
}

fn the_list_has_filters(h: &mut dyn Harness) {
    let header = |n: u64| Header {
        created_at_ms: 1000 + n,
        cwd: Some(format!("/dir{}", n % 2)),
        parent_session: n.is_multiple_of(3).then(|| "parent".to_owned()),
        ..Header::default()
    };
    for n in 0..9 {
        let namespace = if n == 8 { "default-2" } else { "default" };
        let key = SessionKey::new(namespace, &format!("{}{n}", if n < 4 { "a" } else { "b" })).unwrap();
        let writer = Writer::with_header(h.store(), key, header(n));
        h.store().commit(&[writer.create()], 2000 + n).unwrap();
        h.between();
    }
    let names = |filter: &ListFilter| {
        let sessions = list_all(h.store(), filter, 2);
        let names: Vec<_> = sessions.iter().map(|session| session.birth.key.id.as_str().to_owned()).collect();
        names.join(" ")
    };
    assert_eq!(names(&everything()), "b7 b6 b5 b4 a3 a2 a1 a0");
    assert_eq!(names(&ListFilter { namespace: "default-2".to_owned(), ..everything() }), "b8");
    assert_eq!(names(&ListFilter { namespace: "none".to_owned(), ..everything() }), "");
    assert_eq!(names(&ListFilter { id_prefix: "a".to_owned(), ..everything() }), "a3 a2 a1 a0");
    assert_eq!(names(&ListFilter { cwd: Some("/dir1".to_owned()), ..everything() }), "b7 b5 a3 a1");
    assert_eq!(names(&ListFilter { parent_session: Some("parent".to_owned()), ..everything() }), "b6 a3 a0");
    assert_eq!(names(&ListFilter { created_ms: (Some(1002), Some(1005)), ..everything() }), "b4 a3 a2");
    assert_eq!(names(&ListFilter { updated_ms: (Some(2006), None), ..everything() }), "b7 b6");
}

fn a_name_is_free_after_its_log_is_deleted(h: &mut dyn Harness) {
    let mut first = Writer::new(h.store(), key("a"));
    h.store().commit(&[first.create(), first.append(3, 20)], 1).unwrap();
    h.between();
    h.store().commit(&[first.append(2, 20), first.delete()], 2).unwrap();
    h.between();
    assert!(h.store().find(&key("a")).unwrap().is_none());
    assert!(list_all(h.store(), &everything(), 10).is_empty());
    assert_eq!(read_all(h.store(), first.log).unwrap(), first.events, "a reader finishes");
    let mut second = Writer::new(h.store(), key("a"));
    h.store().commit(&[second.create(), second.append(1, 20)], 3).unwrap();
    h.between();
    second.check(h.store());
    assert_eq!(list_all(h.store(), &everything(), 10).len(), 1);
    assert_eq!(read_all(h.store(), first.log).unwrap(), first.events);
    // Both in one group.
    let third = Writer::new(h.store(), key("a"));
    h.store().commit(&[second.delete(), third.create()], 4).unwrap();
    h.between();
    third.check(h.store());
}

fn log_ids_are_never_used_twice(h: &mut dyn Harness) {
    let mut used = std::collections::HashSet::new();
    for round in 0..5 {
        for n in 0..3 {
            let writer = Writer::new(h.store(), key(&format!("{round}-{n}")));
            assert!(used.insert(writer.log), "{:?} was used", writer.log);
            h.store().commit(&[writer.create()], 1).unwrap();
            if n == 1 {
                h.store().commit(&[writer.delete()], 1).unwrap();
            }
        }
        h.between();
    }
}

fn many_sessions_share_a_group(h: &mut dyn Harness) {
    let mut writers: Vec<_> = (0..300).map(|n| Writer::new(h.store(), key(&format!("s{n}")))).collect();
    let mut changes: Vec<_> = writers.iter().map(Writer::create).collect();
    changes.extend(writers.iter_mut().map(|writer| writer.append(2, 50)));
    h.store().commit(&changes, 1).unwrap();
    h.between();
    let changes: Vec<_> = writers.iter_mut().map(|writer| writer.append(1, 500)).collect();
    h.store().commit(&changes, 2).unwrap();
    h.between();
    writers.iter().for_each(|writer| writer.check(h.store()));
    assert_eq!(list_all(h.store(), &everything(), 77).len(), 300);
}

fn a_closed_engine_refuses_and_is_read(h: &mut dyn Harness) {
    let mut a = Writer::new(h.store(), key("a"));
    h.store().commit(&[a.create(), a.append(3, 20)], 1).unwrap();
    h.between();
    h.store().close();
    let refused = a.clone().append(1, 1);
    assert!(matches!(h.store().commit(&[refused], 2), Err(StoreError::Poisoned(_))));
    assert!(matches!(h.store().health(), Health::Poisoned(_)));
    a.check(h.store());
    h.store().close();
}

#[path = "contract_sharing.rs"]
mod sharing;

mod engines {
    use super::*;
    use crate::store::fault::{FaultStore, Plan};
    use crate::store::memory::MemoryStore;

    struct Plain<S>(S);

    impl<S: Store> Harness for Plain<S> {
        fn store(&self) -> &dyn Store {
            &self.0
        }
    }

    #[test]
    fn the_memory_engine_holds_the_contract() {
        hold(&|| Box::new(Plain(MemoryStore::new())));
    }

    #[test]
    fn the_fault_engine_without_faults_holds_the_contract() {
        hold(&|| Box::new(Plain(FaultStore::new(Plan::default()))));
    }

    /// Nine commits of two sessions. Gives what was acknowledged, by the number of the commit.
    fn script(store: &dyn Store) -> Vec<Result<(Writer, Writer), StoreError>> {
        let (mut a, mut b) = (Writer::new(store, key("a")), Writer::new(store, key("b")));
        let mut outcomes = Vec::new();
        for n in 0..9 {
            let before = (a.clone(), b.clone());
            let changes = match n {
                0 => vec![a.create(), a.append(2, 10), b.create()],
                n if n % 2 == 0 => vec![a.append(1, 10), b.append(3, 10)],
                _ => vec![b.append(1, 10)],
            };
            match store.commit(&changes, n) {
                Ok(()) => outcomes.push(Ok((a.clone(), b.clone()))),
                Err(error) => {
                    outcomes.push(Err(error));
                    (a, b) = before;
                }
            }
        }
        outcomes
    }

    #[test]
    fn a_failure_at_any_commit_poisons_and_its_group_is_there_or_not() {
        for (fail_at, failed_survives) in (1..=9).flat_map(|n| [(n, false), (n, true)]) {
            let plan = Plan { fail_at: Some(fail_at), failed_survives, ..Plan::default() };
            let store = FaultStore::new(plan);
            let outcomes = script(&store);
            let good = fail_at as usize - 1;
            assert!(outcomes[..good].iter().all(Result::is_ok));
            assert!(outcomes[good..].iter().all(|outcome| matches!(outcome, Err(StoreError::Poisoned(_)))));
            assert!(matches!(store.health(), Health::Poisoned(_)));
            assert_eq!(store.commits(), fail_at, "nothing is tried after the failure");
            let after = store.after_power_cut().unwrap();
            // Reads go on, with what was acknowledged.
            if let Some(Ok((a, b))) = good.checked_sub(1).map(|last| &outcomes[last]) {
                a.check(&store);
                b.check(&store);
            }
            let whole = script(&MemoryStore::new());
            let survived = good + usize::from(failed_survives);
            let lengths = survived.checked_sub(1).map_or((0, 0), |last| {
                let (a, b) = whole[last].as_ref().unwrap();
                (a.events.len(), b.events.len())
            });
            let length =
                |name| after.find(&key(name)).unwrap().map_or(0, |found| found.session.next_seq.get() as usize);
            assert_eq!((length("a"), length("b")), lengths, "fails at {fail_at}, survives: {failed_survives}");
        }
    }

    #[test]
    fn after_a_freeze_commits_are_acknowledged_and_gone_with_the_power() {
        for freeze_at in 1..=9 {
            let store = FaultStore::new(Plan { freeze_at: Some(freeze_at), ..Plan::default() });
            let outcomes = script(&store);
            let (a, b) = outcomes.last().unwrap().as_ref().unwrap();
            a.check(&store);
            b.check(&store);
            let after = store.after_power_cut().unwrap();
            match freeze_at.checked_sub(2).map(|last| outcomes[last as usize].as_ref().unwrap()) {
                Some((a, b)) => {
                    a.check(&after);
                    b.check(&after);
                }
                None => assert!(after.find(&key("a")).unwrap().is_none()),
            }
            assert!(after.allot() > b.log || freeze_at == 1, "ids that were used stay used");
        }
    }

    #[test]
    fn what_a_closed_fault_engine_refuses_does_not_become_durable() {
        let store = FaultStore::new(Plan::default());
        let a = Writer::new(&store, key("a"));
        store.close();
        assert!(store.commit(&[a.create()], 1).is_err());
        assert!(store.after_power_cut().unwrap().find(&key("a")).unwrap().is_none());
    }
}
