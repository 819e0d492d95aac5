//! The part of the port's contract that is about owners, as a test that every engine passes.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use super::Change;
use super::contract::{Harness, Writer, everything, key, list_all};
use crate::model::{Owner, TakeOver, Tenure};

impl Writer {
    /// Its next owner.
    pub(super) fn pass_to(&self, owner: &Owner) -> Change {
        let owner = Arc::new(owner.clone());
        Change::Owner { log: self.log, next_seq: self.next_seq, chain: self.chain, owner }
    }
}

pub(super) fn an_owner_is_there_with_its_epoch_and_moves_no_event(h: &mut dyn Harness) {
    let mut a = Writer::new(h.store(), key("a"));
    let mut b = Writer::new(h.store(), key("b"));
    h.store().commit(&[a.create(), a.append(2, 20), b.create()], 1).unwrap();
    h.between();
    let found = |h: &dyn Harness, name: &str| h.store().find(&key(name)).unwrap().unwrap().session;
    assert_eq!(found(h, "a").owner, None);
    let mut owner = Owner {
        epoch: 0,
        holder: "h".repeat(128).into(),
        tenure: Tenure::Reserved,
        since_ms: 2,
        ttl_ms: 3,
        take_overs: Vec::new(),
    };
    for epoch in 1..=20 {
        owner.epoch = epoch;
        owner.tenure = [Tenure::Reserved, Tenure::Live, Tenure::Released][epoch as usize % 3];
        let (holder, from, reason): (Arc<str>, _, _) = ("h".into(), "f".repeat(128).into(), "r".repeat(256).into());
        owner.remember(TakeOver { epoch, at_ms: 1, holder, from, reason });
        let mut changes = vec![a.pass_to(&owner)];
        if epoch % 4 == 0 {
            let Change::Append { log, run } = a.append(1, 10) else { unreachable!() };
            changes.insert(0, Change::Repair { log, run });
            changes[1] = a.pass_to(&owner);
        }
        h.store().commit(&changes, 50).unwrap();
        h.between();
        let session = found(h, "a");
        assert_eq!(session.owner.as_deref(), Some(&owner), "epoch {epoch}");
        assert_eq!(session.position, h.store().position());
        assert_eq!(session.updated_ms, if epoch < 4 { 1 } else { 50 }, "an owner is no change of the log");
        a.check(h.store());
    }
    h.store().commit(&[b.append(1, 10)], 60).unwrap();
    h.between();
    assert_eq!(found(h, "b").owner, None);
    let listed = list_all(h.store(), &everything(), 1);
    assert_eq!(listed.iter().find(|session| session.log == a.log).unwrap().owner.as_deref(), Some(&owner));
    h.store().commit(&[a.delete()], 70).unwrap();
    h.between();
    let again = Writer::new(h.store(), key("a"));
    h.store().commit(&[again.create()], 80).unwrap();
    h.between();
    assert_eq!(found(h, "a").owner, None, "another life has no owner yet");
}
