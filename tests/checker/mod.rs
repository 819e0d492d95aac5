//! Holds a recorded history of calls on one session, and the log that was found in the end, to the rules of a session.
//!
//! A log whose appends name their seq is the order of its own appends, so that nothing has to be searched: what is
//! left are conditions on single calls and on pairs of neighbours. The cost is linear but for one sort of the moments
//! by time. Two calls are ordered only if one returned before the other was invoked; a call whose outcome is unknown
//! never returned. Each violation carries the number of its rule:
//!
//! 1 no loss, 2 no phantom, 3 no duplicate and no half batch, 4 dense, chained, 5 real time, 6 reads are fresh,
//! 7 reads are slices of the log, 9 fencing, 10 revisions, 11 repairs, 12 forks, 13 the flush barrier.
//!
//! It knows neither the wire nor the server: who records and who draws histories are its users.

#![allow(unreachable_pub, dead_code, reason = "test code, shared by two test programs that use different parts")]

mod calls;
pub mod draft;
mod moments;
mod walk;

use std::collections::HashMap;

use quipu::codec::{Chain, event};
use quipu::model::{Event, NewEvent, Seq};

pub use calls::{Ask, Call, Fork, Mark, Outcome, Owned, Refusal, Shown, Time};

/// What an event is, apart from its place.
pub type Digest = u128;

/// The digest of an event.
pub fn digest(body: &NewEvent) -> Digest {
    let mut bytes = Vec::new();
    event::encode(Seq::ZERO, body, &mut bytes);
    u128::from_le_bytes(blake3::hash(&bytes).as_bytes()[..16].try_into().unwrap())
}

/// A log as it was found after everything.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub events: Vec<Event>,
    /// As the head had it.
    pub chain: [u8; 32],
}

/// A fork as it was found: `None` if there is none.
#[derive(Clone, Debug)]
pub struct Child {
    pub id: u64,
    pub found: Option<Log>,
}

/// All that is known of one session.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub calls: Vec<Call>,
    pub log: Log,
    pub children: Vec<Child>,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: u8,
    pub text: String,
}

/// What went through the checker without a violation: a checker that saw nothing says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub appends: usize,
    pub unknown: usize,
    pub unknown_stored: usize,
    pub fenced: usize,
    pub fenced_stored: usize,
    pub epochs: usize,
    pub repairs: usize,
    pub reads: usize,
    pub forks: usize,
    pub accepted: usize,
    pub accepted_lost: usize,
}

/// The violations, in the order that they were found; at most a hundred.
pub fn check(history: &History) -> Result<Seen, Vec<Violation>> {
    let mut check = Check::of(history);
    check.log();
    check.moments();
    check.ops();
    check.owners();
    check.revisions();
    check.forks();
    if check.violations.is_empty() { Ok(check.seen) } else { Err(check.violations) }
}

/// One logical append: a batch, and all the attempts to get it stored.
#[derive(Debug)]
struct Op<'h> {
    attempts: usize,
    /// The call that was invoked first.
    first: usize,
    events: &'h [Digest],
    epoch: Option<u64>,
    first_seq: u64,
    /// First attempt.
    invoked: Time,
    /// First time that it was known to be stored.
    returned: Time,
    /// It must be there.
    is_stored: bool,
    /// In which life of the server it was accepted, and when that was known.
    accepted: Vec<(u32, Time)>,
    /// An attempt of which nothing is known.
    is_unknown: bool,
    /// It cannot be there, whatever became of an attempt.
    is_refuted: bool,
    placed: Option<u64>,
}

/// Who wrote a piece of the log.
#[derive(Clone, Copy, Debug)]
enum Piece {
    Op(usize),
    /// A repair by that call, if it is known by which.
    Repair(Option<usize>),
}

struct Check<'h> {
    history: &'h History,
    violations: Vec<Violation>,
    seen: Seen,
    ops: Vec<Op<'h>>,
    by_digest: HashMap<Digest, (usize, usize)>,
    /// The log in pieces, with where they start.
    pieces: Vec<(u64, Piece)>,
    /// `chains[n]` is the chain before event `n`.
    chains: Vec<[u8; 32]>,
    /// No turn is open before event `n`.
    balanced: Vec<bool>,
}

impl<'h> Check<'h> {
    fn of(history: &'h History) -> Self {
        let mut check = Self {
            history,
            violations: Vec::new(),
            seen: Seen::default(),
            ops: Vec::new(),
            by_digest: HashMap::new(),
            pieces: Vec::new(),
            chains: Vec::new(),
            balanced: Vec::new(),
        };
        check.gather();
        check
    }

    fn broken(&mut self, rule: u8, text: String) {
        if self.violations.len() < 100 {
            self.violations.push(Violation { rule, text });
        }
    }

    /// Puts the attempts of each append together.
    fn gather(&mut self) {
        let history = self.history;
        let mut by_id: HashMap<u64, usize> = HashMap::new();
        for (number, call) in history.calls.iter().enumerate() {
            let Ask::Append { op: id, epoch, first_seq, events, is_durable } = &call.ask else { continue };
            let next = self.ops.len();
            let at = *by_id.entry(*id).or_insert(next);
            if at == next {
                let (epoch, first_seq) = (*epoch, *first_seq);
                self.ops.push(Op {
                    attempts: 0,
                    first: number,
                    events,
                    epoch,
                    first_seq,
                    invoked: call.invoked,
                    returned: Time::MAX,
                    is_stored: false,
                    accepted: Vec::new(),
                    is_unknown: false,
                    is_refuted: false,
                    placed: None,
                });
            }
            let op = &mut self.ops[at];
            if call.invoked < op.invoked {
                (op.invoked, op.first) = (call.invoked, number);
            }
            op.attempts += 1;
            match &call.outcome {
                Outcome::Unknown => op.is_unknown = true,
                Outcome::Ok(_) if *is_durable => op.is_stored = true,
                Outcome::Ok(_) => op.accepted.push((call.life, call.returned)),
                Outcome::Refused(Refusal::Fenced { committed: Some(true) }, _) => op.is_stored = true,
                Outcome::Refused(Refusal::Fenced { committed: Some(false) } | Refusal::Conflict, _) => {
                    op.is_refuted = true;
                }
                Outcome::Refused(..) => {}
            }
            let is_committed = matches!(call.outcome, Outcome::Refused(Refusal::Fenced { committed: Some(true) }, _));
            if is_committed || (*is_durable && call.is_ok()) {
                op.returned = op.returned.min(call.returned);
            }
        }
        // What was only accepted may have been lost and sent again.
        for op in self.ops.iter_mut().filter(|op| op.attempts == 1) {
            op.returned = op.accepted.first().map_or(op.returned, |(_, returned)| *returned);
        }
        for (at, op) in self.ops.iter().enumerate() {
            for (index, digest) in op.events.iter().enumerate() {
                let before = self.by_digest.insert(*digest, (at, index));
                assert!(before.is_none(), "a history must not use an event twice");
            }
        }
    }

    /// Rules 1, 2 and 13, op by op.
    fn ops(&mut self) {
        let history = self.history;
        let mut flushed: HashMap<u32, Time> = HashMap::new();
        let mut durable: HashMap<u32, u64> = HashMap::new();
        for call in &history.calls {
            let Some(shown) = call.shown() else { continue };
            if matches!((&call.ask, &call.outcome), (Ask::Flush { .. }, Outcome::Ok(_))) {
                let last = flushed.entry(call.life).or_default();
                *last = (*last).max(call.invoked);
            }
            if let Some(mark) = &shown.mark {
                let most = durable.entry(call.life).or_default();
                *most = (*most).max(mark.durable_next_seq);
            }
        }
        let mut broken = Vec::new();
        for (at, op) in self.ops.iter().enumerate() {
            let end = op.first_seq + op.events.len() as u64;
            let is_flushed = op.accepted.iter().any(|(life, returned)| {
                flushed.get(life).is_some_and(|last| last > returned)
                    || durable.get(life).is_some_and(|most| *most >= end)
            });
            let is_there = op.placed == Some(op.first_seq);
            let what = format!("append {at} of {} events at seq {}", op.events.len(), op.first_seq);
            if op.is_stored && !is_there {
                broken.push((1, format!("{what} was acknowledged and is not there: {:?}", op.placed)));
            }
            if is_flushed && !is_there {
                broken.push((13, format!("{what} was flushed and is not there: {:?}", op.placed)));
            }
            let may_be = op.is_stored || !op.accepted.is_empty() || (op.is_unknown && !op.is_refuted);
            if op.placed.is_some() && !may_be {
                broken.push((2, format!("{what} was refused and is there")));
            }
            self.seen.appends += usize::from(op.is_stored);
            self.seen.accepted += usize::from(!op.accepted.is_empty());
            self.seen.accepted_lost += usize::from(!op.accepted.is_empty() && !is_there);
            self.seen.unknown += usize::from(op.is_unknown);
            self.seen.unknown_stored += usize::from(op.is_unknown && is_there);
        }
        broken.into_iter().for_each(|(rule, text)| self.broken(rule, text));
    }

    /// Rule 10: a revision stands for one log, and a log has one; a repair is made of the one that was seen.
    fn revisions(&mut self) {
        let history = self.history;
        let mut logs: HashMap<[u8; 16], (u64, [u8; 32])> = HashMap::new();
        let mut revisions: HashMap<(u64, [u8; 32]), [u8; 16]> = HashMap::new();
        for (at, call) in history.calls.iter().enumerate() {
            let Some(mark) = call.shown().and_then(|shown| shown.mark.as_ref()) else { continue };
            let log = (mark.next_seq, mark.chain);
            let (before, found) =
                (*logs.entry(mark.revision).or_insert(log), *revisions.entry(log).or_insert(mark.revision));
            if before != log {
                self.broken(10, format!("call {at}: one revision for the logs of {} and {} events", before.0, log.0));
            }
            if found != mark.revision {
                self.broken(10, format!("call {at}, {:?}: another revision for the same {} events", call.ask, log.0));
            }
        }
        for (at, call) in history.calls.iter().enumerate() {
            let (Ask::Repair { expected, .. }, Outcome::Ok(shown)) = (&call.ask, &call.outcome) else { continue };
            let Some(mark) = shown.mark.as_ref().filter(|_| shown.repaired > 0) else { continue };
            let start = mark.next_seq.saturating_sub(shown.repaired);
            let Some(chain) = self.chains.get(start as usize) else { continue };
            let is_stale = revisions.get(&(start, *chain)).is_some_and(|revision| revision != expected)
                || logs.get(expected).is_some_and(|log| *log != (start, *chain));
            if is_stale {
                self.broken(
                    10,
                    format!("call {at}: a repair was committed for another revision than that of seq {start}"),
                );
            }
        }
    }

    /// Rule 12: a child is its parent up to the boundary, which is in no open turn, and nothing else of the parent.
    fn forks(&mut self) {
        let history = self.history;
        let found: HashMap<u64, Option<&Log>> =
            history.children.iter().map(|child| (child.id, child.found.as_ref())).collect();
        let mut lengths: HashMap<u64, u64> = HashMap::new();
        for (at, call) in history.calls.iter().enumerate() {
            let (Ask::Fork { child, .. }, Outcome::Ok(shown)) = (&call.ask, &call.outcome) else { continue };
            let Some(fork) = &shown.fork else { continue };
            self.seen.forks += 1;
            let Some(Some(log)) = found.get(child) else {
                self.broken(12, format!("call {at}: child {child} was acknowledged and is not there"));
                continue;
            };
            let length = fork.seed_length as usize;
            lengths.insert(*child, fork.seed_length);
            if self.chains.get(length) != Some(&fork.chain) {
                self.broken(12, format!("call {at}: the chain at the boundary {length} is not the parent's"));
            }
            let child_log: &Log = log;
            self.child((at, length), child_log);
        }
        // What became of a fork whose answer was lost.
        for child in &history.children {
            let Some(log) = child.found.as_ref().filter(|_| !lengths.contains_key(&child.id)) else { continue };
            let shared = history.log.events.iter().zip(&log.events).take_while(|(a, b)| a == b).count();
            self.child((usize::MAX, shared), log);
        }
    }

    fn child(&mut self, (at, length): (usize, usize), child: &Log) {
        let parent = &self.history.log.events;
        let shared = parent.iter().zip(&child.events).take_while(|(a, b)| a == b).count();
        if shared < length {
            return self
                .broken(12, format!("call {at}: the child differs from its parent at seq {shared} of {length}"));
        }
        if !self.balanced.get(length).copied().unwrap_or(false) {
            self.broken(12, format!("call {at}: the boundary {length} is in an open turn"));
        }
        let rest = &child.events[length..];
        if rest.len() > 1 || rest.iter().any(|event| &*event.body.kind != "session/end-seed") {
            self.broken(12, format!("call {at}: the child has {} events behind its boundary", rest.len()));
        }
        if chains(&child.events).last() != Some(&child.chain) {
            self.broken(12, format!("call {at}: the chain of the child is not that of its events"));
        }
    }
}

/// The chains before each event, and the one after the last.
pub fn chains(events: &[Event]) -> Vec<[u8; 32]> {
    let (mut chain, mut bytes) = (Chain::START, Vec::new());
    let mut chains = vec![chain.0];
    for stored in events {
        bytes.clear();
        event::encode(stored.seq, &stored.body, &mut bytes);
        chain = chain.next(&bytes);
        chains.push(chain.0);
    }
    chains
}
