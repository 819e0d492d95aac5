//! The part of the contract that is about forks, deleted logs, large events and what lists show.

use super::*;
use crate::codec::Summary;
use crate::codec::summary::Turns;
use crate::store::extents::inherit;
use crate::store::{Extent, Graft, Remains};

/// The tests of this part.
pub(super) const TESTS: [(&str, Test); 5] = [
    ("a fork has its parent's prefix and nothing later", a_fork_has_its_parents_prefix_and_nothing_later),
    ("forks of forks stay flat", forks_of_forks_stay_flat),
    ("a deleted parent keeps what children use", a_deleted_parent_keeps_what_children_use),
    ("a detached fork stands alone", a_detached_fork_stands_alone),
    ("a list shows what was folded", a_list_shows_what_was_folded),
];

impl Writer {
    /// A fork of this log before `boundary`, with or without a marker of its own; it commits everything of the parent that
    /// was not yet, in the same group.
    pub(in crate::store) fn fork(&self, store: &dyn Store, id: &str, boundary: usize) -> (Self, Change) {
        let chain = chain_of(&self.events[..boundary]);
        let extents = inherit(self.log, &self.extents(store), (Seq::saturating(boundary as u64), chain));
        let header = Header {
            parent_session: Some(self.birth.key.id.as_str().to_owned()),
            seed_length: Some(boundary as u64),
            ..Header::default()
        };
        let mut child = Self::with_header(store, key(id), header);
        child.events = self.events[..boundary].to_vec();
        (child.next_seq, child.chain) = (Seq::saturating(boundary as u64), chain);
        let (mut marker, mut summary) = (Vec::new(), Summary::default());
        if boundary % 2 == 1 {
            let body = NewEvent { kind: "session/end-seed".into(), data: "{}".into(), ..self.events[0].body.clone() };
            event::encode(child.next_seq, &body, &mut marker);
            child.events.push(Event { seq: child.next_seq, body });
            child.chain = child.chain.next(&marker);
            child.next_seq = child.next_seq.advance(1).unwrap();
            summary.add(&Summary::of(&marker));
        }
        let birth = (*child.birth).clone();
        let graft = Graft { birth, request: [7; 16], extents, summary, marker: marker.into() };
        assert_eq!(graft.end(), (child.next_seq, child.chain));
        let change = Change::Fork { log: child.log, graft: Arc::new(graft) };
        (child, change)
    }

    /// One event of that type.
    pub(in crate::store) fn append_event(&mut self, kind: &str, data: String) -> Change {
        let before = self.clone();
        let _ = self.append(1, 0);
        let event = self.events.last_mut().unwrap();
        (event.body.kind, event.body.data) = (kind.into(), data.into());
        let mut encoded = Vec::new();
        event::encode(event.seq, &event.body, &mut encoded);
        self.chain = before.chain.next(&encoded);
        let (link, chain) = (before.chain.link(), self.chain);
        let run = Run { first_seq: before.next_seq, count: 1, link, chain, events: encoded.into() };
        Change::Append { log: self.log, run }
    }

    /// What it shares, as the store knows it.
    pub(in crate::store) fn extents(&self, store: &dyn Store) -> Arc<[Extent]> {
        store.extents(self.log).unwrap()
    }

    /// All steps of a detaching, a few events each.
    pub(in crate::store) fn detach(&self, shared: usize) -> Vec<Change> {
        let (mut changes, mut chain) = (Vec::new(), Chain::START);
        for events in self.events[..shared].chunks(3) {
            let (first_seq, count, link) = (events[0].seq, events.len() as u32, chain.link());
            let mut encoded = Vec::new();
            for event in events {
                let start = encoded.len();
                event::encode(event.seq, &event.body, &mut encoded);
                chain = chain.next(&encoded[start..]);
            }
            let run = Run { first_seq, count, link, chain, events: encoded.into() };
            changes.push(Change::Detach { log: self.log, copy: Some(run) });
        }
        changes.push(Change::Detach { log: self.log, copy: None });
        changes
    }
}

pub(in crate::store) fn chain_of(events: &[Event]) -> Chain {
    let mut encoded = Vec::new();
    events.iter().fold(Chain::START, |chain, event| {
        encoded.clear();
        event::encode(event.seq, &event.body, &mut encoded);
        chain.next(&encoded)
    })
}

fn remains(store: &dyn Store) -> Vec<Remains> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.remains(after, 2).unwrap();
        let Some(last) = page.last() else { return all };
        after = Some(last.log());
        all.extend(page);
    }
}

/// Purges everything that may go; gives events and bytes.
fn purge(store: &dyn Store) -> (u64, u64) {
    let remains = remains(store);
    let wanted = remains.iter().filter(|remains| remains.is_all() || remains.cut < remains.session.next_seq);
    let change = |remains: &Remains| Change::Purge { log: remains.log(), next_seq: remains.cut, chain: remains.chain };
    let changes: Vec<_> = wanted.clone().map(change).collect();
    store.commit(&changes, 900).unwrap();
    (wanted.clone().map(|remains| remains.events).sum(), wanted.map(|remains| remains.bytes).sum())
}

fn a_fork_has_its_parents_prefix_and_nothing_later(h: &mut dyn Harness) {
    let mut parent = Writer::new(h.store(), key("parent"));
    h.store().commit(&[parent.create(), parent.append(5, 30), parent.append(4, 30)], 1).unwrap();
    h.between();
    // Boundaries at the start, inside of runs, between them and at the end; events accepted before come along.
    let last = parent.append(2, 30);
    let mut children = Vec::new();
    for boundary in [0, 1, 2, 4, 5, 7, 9, 11] {
        children.push(parent.fork(h.store(), &format!("child-{boundary}"), boundary));
    }
    let changes: Vec<_> = [last].into_iter().chain(children.iter().map(|(_, change)| change.clone())).collect();
    h.store().commit(&changes, 2).unwrap();
    h.between();
    h.store().commit(&[parent.append(3, 30)], 3).unwrap();
    h.between();
    for (child, _) in &mut children {
        child.check(h.store());
        for (from, _) in (0..).zip(&child.events) {
            let runs = h.store().read(child.log, Seq::saturating(from), usize::MAX).unwrap();
            assert!(runs[0].first_seq.get() <= from && from < runs[0].next_seq().get());
            for run in &runs {
                let until = run.next_seq().get() as usize;
                assert_eq!(run.chain, chain_of(&child.events[..until]), "the chain is the parent's");
            }
        }
        h.store().commit(&[child.append(2, 10)], 4).unwrap();
        h.between();
        child.check(h.store());
    }
    parent.check(h.store());
    // Of an empty prefix there is nothing to share.
    assert_eq!(h.store().forks(parent.log).unwrap(), 7);
    let found = h.store().find(&key("child-9")).unwrap().unwrap().session;
    assert_eq!((found.shared_until.get(), found.request), (9, [7; 16]));
}

fn forks_of_forks_stay_flat(h: &mut dyn Harness) {
    let mut family = vec![Writer::new(h.store(), key("g0"))];
    h.store().commit(&[family[0].create(), family[0].append(3, 20)], 1).unwrap();
    for generation in 1..=100_usize {
        let parent = family.last_mut().unwrap();
        h.store().commit(&[parent.append(2, 20)], 2).unwrap();
        let boundary = parent.events.len() - generation % 2;
        let (child, change) = parent.fork(h.store(), &format!("g{generation}"), boundary);
        h.store().commit(&[change], 3).unwrap();
        if generation % 10 == 0 {
            h.between();
        }
        family.push(child);
    }
    let last = family.last().unwrap();
    last.check(h.store());
    let extents = last.extents(h.store());
    assert!(extents.len() <= 100, "{} extents", extents.len());
    assert!(extents.iter().all(|extent| family.iter().any(|one| one.log.0 == extent.log)));
    assert!(extents.windows(2).all(|pair| pair[0].until < pair[1].until));
    // The middle of the family goes; nobody notices.
    let deletions: Vec<_> = family[..100].iter().map(Writer::delete).collect();
    h.store().commit(&deletions, 4).unwrap();
    h.between();
    purge(h.store());
    h.between();
    last.check(h.store());
    let older = last.fork(h.store(), "older", 50);
    h.store().commit(&[older.1], 5).unwrap();
    h.between();
    older.0.check(h.store());
}

fn a_deleted_parent_keeps_what_children_use(h: &mut dyn Harness) {
    let mut parent = Writer::new(h.store(), key("parent"));
    let mut other = Writer::new(h.store(), key("other"));
    h.store().commit(&[parent.create(), other.create(), other.append(4, 100)], 1).unwrap();
    for _ in 0..6 {
        h.store().commit(&[parent.append(5, 100)], 2).unwrap();
    }
    h.between();
    let (child, fork) = parent.fork(h.store(), "child", 12);
    h.store().commit(&[fork], 3).unwrap();
    h.between();
    assert_eq!(remains(h.store()).len(), 0);
    h.store().commit(&[parent.delete(), other.delete()], 4).unwrap();
    h.between();
    assert!(h.store().find(&key("parent")).unwrap().is_none());
    child.check(h.store());
    let whole = Seq::saturating(30);
    assert!(h.store().needs(parent.log, Seq::ZERO, whole).unwrap(), "deleted is not purged");
    let found = remains(h.store());
    let looked: Vec<_> =
        found.iter().map(|one| (one.log(), one.needed_until.get(), one.cut.get(), one.events)).collect();
    assert_eq!(looked, [(parent.log, 12, 12, 18), (other.log, 0, 0, 4)]);
    assert_eq!(found[0].chain, chain_of(&parent.events[..12]));
    let (events, bytes) = purge(h.store());
    assert_eq!(events, 22);
    assert!(bytes >= 100, "{bytes}");
    h.between();
    child.check(h.store());
    assert!(!h.store().needs(parent.log, Seq::saturating(12), whole).unwrap());
    assert!(h.store().needs(parent.log, Seq::ZERO, Seq::saturating(12)).unwrap());
    assert!(!h.store().needs(other.log, Seq::ZERO, whole).unwrap());
    assert_eq!(read_all(h.store(), parent.log).unwrap(), parent.events[..12]);
    assert_eq!(purge(h.store()), (0, 0), "once is enough");
    // The name is free, and its new life has nothing to do with the old one.
    let again = Writer::new(h.store(), key("parent"));
    h.store().commit(&[again.create()], 5).unwrap();
    h.between();
    assert_eq!(h.store().forks(again.log).unwrap(), 0);
    h.store().commit(&[child.delete()], 6).unwrap();
    h.between();
    let (events, _) = purge(h.store());
    assert_eq!(events, 12, "the last who used it is gone");
    h.between();
    assert_eq!(remains(h.store()).len(), 0);
    assert!(h.store().read(parent.log, Seq::ZERO, 1000).unwrap().is_empty());
    assert!(!h.store().needs(parent.log, Seq::ZERO, whole).unwrap());
    again.check(h.store());
}

fn a_detached_fork_stands_alone(h: &mut dyn Harness) {
    let mut parent = Writer::new(h.store(), key("parent"));
    h.store().commit(&[parent.create()], 1).unwrap();
    for _ in 0..7 {
        h.store().commit(&[parent.append(3, 100)], 2).unwrap();
    }
    let (mut child, fork) = parent.fork(h.store(), "child", 17);
    h.store().commit(&[fork, child.append(2, 50)], 3).unwrap();
    h.between();
    let (grandchild, fork) = child.fork(h.store(), "grandchild", 19);
    h.store().commit(&[fork], 4).unwrap();
    h.between();
    let steps = child.detach(17);
    assert!(steps.len() > 4);
    let early = steps.last().unwrap().clone();
    for (step, change) in (0..).zip(&steps) {
        // Neither an end that comes early nor a repetition does harm.
        let more = if step == 2 { vec![steps[0].clone(), early.clone(), steps[1].clone()] } else { Vec::new() };
        let changes: Vec<_> = more.into_iter().chain([change.clone()]).collect();
        h.store().commit(&changes, 5).unwrap();
        h.between();
        child.check(h.store());
    }
    let found = h.store().find(&key("child")).unwrap().unwrap().session;
    assert_eq!((found.shared_until, found.copied_until), (Seq::ZERO, Seq::ZERO));
    assert!(child.extents(h.store()).is_empty());
    assert_eq!(h.store().forks(parent.log).unwrap(), 1, "the grandchild shares still");
    h.store().commit(&[child.append(1, 50), parent.delete(), grandchild.delete()], 6).unwrap();
    h.between();
    assert_eq!(purge(h.store()).0, 21 + 1, "all of the parent, and the marker of the grandchild");
    h.between();
    child.check(h.store());
    let (late, fork) = child.fork(h.store(), "late", 18);
    h.store().commit(&[fork], 7).unwrap();
    h.between();
    late.check(h.store());
    assert_eq!(late.extents(h.store()).len(), 1, "shared with the one that stands alone");
}

fn a_list_shows_what_was_folded(h: &mut dyn Harness) {
    let mut a = Writer::new(h.store(), key("a"));
    h.store().commit(&[a.create()], 1).unwrap();
    let mut bytes = 0;
    let shown = |h: &dyn Harness| h.store().list(&everything(), None, 1).unwrap().sessions.remove(0).summary;
    let title = |text: &str| format!("{{\"title\":\"{text}\"}}");
    let script = [
        ("session/title", title("first"), Turns::None, "first"),
        ("turn/start", "{\"turn\":1}".to_owned(), Turns::Open, "first"),
        ("session/title", title("\\ud800x"), Turns::Open, "\u{fffd}\u{fffd}\u{fffd}x"),
        ("turn/end", "{}".to_owned(), Turns::Closed, "\u{fffd}\u{fffd}\u{fffd}x"),
        ("session/title", title(&"\u{e9}".repeat(5000)), Turns::Closed, &"\u{e9}".repeat(80)),
        ("session/title", "7".to_owned(), Turns::Closed, &"\u{e9}".repeat(80)),
    ];
    for (kind, data, turns, title) in script {
        let change = a.append_event(kind, data);
        let Change::Append { run, .. } = &change else { panic!("an append") };
        bytes += run.events.len() as u64;
        h.store().commit(&[change], 2).unwrap();
        h.between();
        let summary = shown(h);
        assert_eq!((summary.turns, summary.bytes), (turns, bytes));
        assert_eq!(summary.title.unwrap().text, title);
        a.check(h.store());
    }
}

pub(super) fn large_events_come_back(h: &mut dyn Harness) {
    let mut a = Writer::new(h.store(), key("a"));
    h.store().commit(&[a.create()], 1).unwrap();
    for bytes in [0, 1, 511, 512, 513, 70_000, 700_000] {
        h.store().commit(&[a.append(1, bytes)], 2).unwrap();
        h.between();
    }
    a.check(h.store());
}
