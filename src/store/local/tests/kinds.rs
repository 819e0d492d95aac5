//! What every kind of record says is there after the journal that said it is gone.
//!
//! | record | where its state lives after retirement |
//! |---|---|
//! | create, fork, delete, owner, purge, end of a detaching | as it was, in the directory of the sealed file; in the index |
//! | append, repair | in a block of the sealed file; its summary in the directory |
//! | copy of a detaching | in a block of its own, so that a copy that is not next stays one that changes nothing |

use std::collections::BTreeSet;

use super::*;
use crate::codec::Summary;
use crate::codec::change::Kind;
use crate::model::{Owner, TakeOver, Tenure};
use crate::store::contract::{Writer, everything, key, list_all, read_all};
use crate::store::memory::MemoryStore;
use crate::store::{Remains, Session};

fn owner(epoch: u64) -> Owner {
    let tenure = [Tenure::Reserved, Tenure::Live, Tenure::Released][epoch as usize % 3];
    let mut owner = Owner { epoch, holder: "host".into(), tenure, since_ms: 2, ttl_ms: 30, take_overs: Vec::new() };
    let (holder, from, reason) = ("host".into(), "other".into(), "it is gone".into());
    owner.remember(TakeOver { epoch, at_ms: 1, holder, from, reason });
    owner
}

fn repair(change: Change) -> Change {
    let Change::Append { log, run } = change else { unreachable!() };
    Change::Repair { log, run }
}

/// Groups of changes with every kind of record, and the logs that they touch.
fn script() -> (Vec<Vec<Change>>, Vec<Writer>) {
    let model = MemoryStore::new();
    let [mut a, mut b, mut gone, mut parent] = ["a", "b", "gone", "parent"].map(|name| Writer::new(&model, key(name)));
    let mut groups: Vec<Vec<Change>> = Vec::new();
    let mut commit = |changes: Vec<Change>| {
        model.commit(&changes, 1).unwrap();
        groups.push(changes);
    };
    commit(vec![a.create(), a.append(3, 30), a.pass_to(&owner(1)), a.append(2, 30)]);
    commit(vec![a.append_event("session/title", r#"{"title":"first"}"#.into()), b.create(), parent.create()]);
    commit(vec![a.pass_to(&owner(2)), a.append(1, 10), a.pass_to(&owner(3)), parent.append(7, 40)]);
    commit(vec![a.append_event("turn/start", "{}".into()), b.append(1, 3000), gone.create(), gone.append(4, 50)]);
    commit(vec![repair(a.append_event("turn/end", "{}".into())), parent.append(6, 40), b.pass_to(&owner(1))]);
    // With a marker, and without one; and one of a fork.
    let (mut child, fork) = parent.fork(&model, "child", 9);
    commit(vec![fork, child.append(2, 20)]);
    let (mut plain, fork) = parent.fork(&model, "plain", 12);
    commit(vec![fork, plain.append(1, 20), child.append(1, 20), a.append(2, 25)]);
    let (mut grandchild, fork) = child.fork(&model, "grandchild", 11);
    commit(vec![fork, gone.pass_to(&owner(4)), gone.append(1, 10), gone.delete()]);
    commit(vec![grandchild.append(2, 20), parent.append(1, 10), parent.delete()]);
    let steps = child.detach(9);
    commit(vec![steps[0].clone(), child.append(1, 20)]);
    commit(vec![steps[0].clone(), steps[3].clone(), steps[1].clone()]);
    commit(purges(&model));
    commit(vec![steps[2].clone(), child.append(1, 20), b.append(2, 20), b.pass_to(&owner(2))]);
    commit(vec![steps[3].clone(), grandchild.append(1, 20)]);
    // One that is never finished.
    commit(plain.detach(12)[..2].to_vec());
    commit(vec![child.append(1, 20), plain.append(1, 20), grandchild.delete()]);
    commit(purges(&model));
    let again = Writer::new(&model, key("gone"));
    commit(vec![again.create()]);
    commit(vec![b.pass_to(&owner(3)), repair(b.append(1, 10))]);
    (groups, vec![a, b, gone, parent, child, plain, grandchild, again])
}

fn purges(store: &dyn Store) -> Vec<Change> {
    let remains = store.remains(None, 100).unwrap().into_iter();
    let wanted = remains.filter(|one| one.is_all() || one.cut < one.session.next_seq);
    let changes: Vec<_> =
        wanted.map(|one| Change::Purge { log: one.log(), next_seq: one.cut, chain: one.chain }).collect();
    assert!(!changes.is_empty());
    changes
}

/// Everything that a store says of some logs.
fn all_of(store: &dyn Store, writers: &[Writer]) -> Vec<String> {
    let mut said = vec![format!("position {:?}", store.position())];
    let session = |session: &Session| format!("{session:?}");
    said.extend(list_all(store, &everything(), 3).iter().map(session));
    for writer in writers {
        let found = store.find(&writer.birth.key).unwrap();
        said.push(format!("{:?}", found.map(|found| (session(&found.session), found.damage))));
        let log = writer.log;
        said.push(match read_all(store, log) {
            Ok(events) => format!("{log:?} {events:?}"),
            Err(StoreError::Damaged { .. }) => format!("{log:?} lacks what was purged"),
            Err(other) => panic!("{other}"),
        });
        let is_live = store.find(&writer.birth.key).unwrap().is_some_and(|found| found.session.log == log);
        said.push(format!("{:?} {:?}", is_live.then(|| store.extents(log).unwrap()), store.forks(log).unwrap()));
        let needs = |at: u64| store.needs(log, Seq::saturating(at), Seq::saturating(at + 1)).unwrap();
        said.push(format!("{:?}", (0..20).map(needs).collect::<Vec<_>>()));
    }
    // Who owned a deleted log, and what a list would have shown of it, is nobody's business any more.
    let (summary, owner) = (Summary::default(), None);
    let rest = |session: &Session| Session { summary: summary.clone(), owner: owner.clone(), ..session.clone() };
    let shown = |one: &Remains| session(&rest(&one.session));
    let told = |one: &Remains| (shown(one), one.needed_until, one.cut, one.chain, one.events);
    said.extend(store.remains(None, 100).unwrap().iter().map(|one| format!("{:?}", told(one))));
    said
}

#[track_caller]
fn compare(ours: &dyn Store, model: &dyn Store, writers: &[Writer]) {
    let (ours, theirs) = (all_of(ours, writers), all_of(model, writers));
    assert_eq!(ours.len(), theirs.len());
    for (line, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "line {line}");
    }
}

#[test]
fn the_script_has_every_kind_of_record() {
    let kind = |change: &Change| match change {
        Change::Create { .. } => Kind::Create,
        Change::Append { .. } => Kind::Append,
        Change::Delete { .. } => Kind::Delete,
        Change::Owner { .. } => Kind::Owner,
        Change::Repair { .. } => Kind::Repair,
        Change::Fork { .. } => Kind::Fork,
        Change::Detach { .. } => Kind::Detach,
        Change::Purge { .. } => Kind::Purge,
    };
    let there: BTreeSet<u8> = script().0.iter().flatten().map(|change| kind(change).code()).collect();
    let all: BTreeSet<u8> = (0..=u8::MAX).filter(|code| Kind::from_code(*code).is_some()).collect();
    assert_eq!(there, all);
}

/// Sealed after any group, and once more at the end, with whatever lies between.
#[test]
fn every_kind_of_record_is_answered_for_when_its_journal_is_gone() {
    let (groups, writers) = script();
    for sealed_after in 1..=groups.len() {
        for between in [Between::Seal, Between::SealKill, Between::SealLoseIndex] {
            let (model, mut local) = (MemoryStore::new(), Local::new(between));
            for (number, changes) in (1..).zip(&groups) {
                model.commit(changes, number).unwrap();
                local.store().commit(changes, number).unwrap();
                if number as usize == sealed_after {
                    local.between();
                    assert_eq!(local.local().sealing().debt_files, 0);
                    assert!(!segment_path(local.dir.path(), 1).exists());
                    compare(local.store(), &model, &writers);
                }
            }
            compare(local.store(), &model, &writers);
            local.between();
            compare(local.store(), &model, &writers);
            local.between = Between::SealLoseIndex;
            local.between();
            compare(local.store(), &model, &writers);
            assert_eq!(local.local().rebuilds(), 1, "only what the test asked for");
        }
    }
}
