//! The live end of one log: how far it may be told, the newest runs, and who waits for more.
//!
//! The handover between history and live is decided here and by seq alone: a follower says where it stands, and gets
//! runs that start there, or hears to read the store, or is registered to be woken; look and registration are one step
//! under one lock, so that no wake-up is lost. Invariants: `recent` is contiguous and ends with what is accepted; nothing
//! at or above the durable mark is given to who did not ask for it. Not known here: locks, tasks, stores, clocks.

use std::collections::VecDeque;
use std::task::Waker;

use super::super::budget::{Budget, Permit};
use crate::model::Seq;
use crate::store::Run;

/// Bytes of durable runs that one log keeps for its followers.
const RECENT_BYTES_MAX: usize = 1 << 20;

/// How a log ended for its followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::service) enum Ended {
    /// It was deleted.
    Deleted,
    /// The disk failed: what was accepted and not durable has an unknown outcome.
    Uncertain,
}

/// What a follower does next.
#[derive(Debug)]
pub(in crate::service) enum Look {
    /// These runs: the first one holds the seq that was asked for.
    Runs(Vec<Run>),
    /// Read the store: there is more, up to here.
    Stored(Seq),
    /// Nothing yet; the waker is called when there is.
    Wait,
    /// Nothing will come any more.
    Ended(Ended),
}

/// Where a follower stands.
#[derive(Clone, Copy, Debug)]
pub(in crate::service) struct Stand {
    /// From [`Tail::join`].
    pub(in crate::service) member: usize,
    /// The seq that it wants next.
    pub(in crate::service) next: Seq,
    /// About how many bytes it takes at once.
    pub(in crate::service) bytes_max: usize,
}

#[derive(Debug)]
struct Member {
    wants_accepted: bool,
    waiting: Option<Waker>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::service) struct Tail {
    durable: Seq,
    accepted: Seq,
    recent: VecDeque<(Run, Option<Permit>)>,
    bytes: usize,
    ended: Option<Ended>,
    members: Vec<Option<Member>>,
    budget: Budget,
}

impl Tail {
    /// The end of a log that has `pending` runs behind its durable mark.
    pub(in crate::service) fn new(durable: Seq, pending: impl Iterator<Item = Run>, budget: Budget) -> Self {
        let recent: VecDeque<_> = pending.map(|run| (run, None)).collect();
        let accepted = recent.back().map_or(durable, |(run, _)| run.next_seq());
        Self { durable, accepted, recent, bytes: 0, ended: None, members: Vec::new(), budget }
    }

    /// Adds a follower.
    pub(in crate::service) fn join(&mut self, wants_accepted: bool) -> usize {
        let member = Some(Member { wants_accepted, waiting: None });
        if let Some(free) = self.members.iter().position(Option::is_none) {
            self.members[free] = member;
            return free;
        }
        self.members.push(member);
        self.members.len() - 1
    }

    /// Removes one.
    pub(in crate::service) fn leave(&mut self, member: usize) {
        if let Some(member) = self.members.get_mut(member) {
            *member = None;
        }
        self.forget();
    }

    /// What a follower does next. One that has to wait is woken later by `waker`, once.
    pub(in crate::service) fn look(&mut self, stand: Stand, waker: &Waker) -> Look {
        let Some(Some(member)) = self.members.get_mut(stand.member) else { return Look::Wait };
        let end = if member.wants_accepted { self.accepted } else { self.durable };
        if stand.next >= end {
            match self.ended {
                Some(Ended::Uncertain) if !member.wants_accepted => {}
                Some(ended) => return Look::Ended(ended),
                None => {}
            }
            member.waiting = Some(waker.clone());
            self.forget();
            return Look::Wait;
        }
        let first = self.recent.partition_point(|(run, _)| run.next_seq() <= stand.next);
        let starts = self.recent.get(first).is_some_and(|(run, _)| run.first_seq <= stand.next);
        if !starts {
            return Look::Stored(self.durable.min(end));
        }
        let mut bytes = 0;
        let visible = self.recent.range(first..).map(|(run, _)| run).take_while(|run| run.next_seq() <= end);
        let fitting = visible.take_while(|run| {
            let fits = bytes == 0 || bytes + run.events.len() <= stand.bytes_max;
            bytes += run.events.len();
            fits
        });
        Look::Runs(fitting.cloned().collect())
    }

    /// A run was accepted.
    pub(in crate::service) fn accept(&mut self, run: &Run) {
        self.accepted = run.next_seq();
        self.recent.push_back((run.clone(), None));
        self.wake(|member| member.wants_accepted);
    }

    /// Everything below is durable.
    pub(in crate::service) fn settle(&mut self, durable: Seq) {
        let from = self.recent.partition_point(|(run, _)| run.next_seq() <= self.durable);
        self.durable = durable;
        let to = self.recent.partition_point(|(run, _)| run.next_seq() <= durable);
        let mut dropped = 0;
        for at in from..to {
            let bytes = self.recent[at].0.events.len();
            match self.budget.take(bytes) {
                Some(permit) => {
                    self.recent[at].1 = Some(permit);
                    self.bytes += bytes;
                }
                // It and what is before it is read from the store.
                None => dropped = at + 1,
            }
        }
        (0..dropped).for_each(|_| self.drop_oldest());
        while self.bytes > RECENT_BYTES_MAX {
            self.drop_oldest();
        }
        self.wake(|_| true);
    }

    /// Nothing will come any more.
    pub(in crate::service) fn end(&mut self, ended: Ended) {
        self.ended.get_or_insert(ended);
        self.wake(|_| true);
    }

    /// Drops the durable runs when everybody has them.
    fn forget(&mut self) {
        if self.members.iter().flatten().all(|member| member.waiting.is_some()) {
            while self.recent.front().is_some_and(|(run, _)| run.next_seq() <= self.durable) {
                self.drop_oldest();
            }
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((run, permit)) = self.recent.pop_front()
            && permit.is_some()
        {
            self.bytes -= run.events.len();
        }
    }

    fn wake(&mut self, whom: impl Fn(&Member) -> bool) {
        let members = self.members.iter_mut().flatten().filter(|member| whom(member));
        members.filter_map(|member| member.waiting.take()).for_each(Waker::wake);
    }
}
