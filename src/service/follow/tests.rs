//! The handover between history and live under every interleaving that 10,000 random schedules find.
//!
//! One writer accepts, syncs and settles; followers join whenever the scheduler likes. What is checked is the type that
//! serves followers, with a scheduler's lock around it instead of the real one. Three bugs of the past of other projects
//! are planted to see that the check would find them.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::HashSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::super::budget::Budget;
use super::tail::{Ended, Look, Stand, Tail};
use crate::codec::Chain;
use crate::model::Seq;
use crate::store::Run;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The seq after what the store gave is one too high.
    OffByOne,
    /// The durable mark moves before the sync.
    PublishBeforeSync,
    /// Looking and registering are two steps.
    LostWakeUp,
}

fn run(first: u64, count: u32) -> Run {
    let events = Bytes::from(vec![0; count as usize * 10]);
    Run { first_seq: Seq::saturating(first), count, link: 0, chain: Chain::START, events }
}

/// What the writer and its followers share.
struct World {
    tail: Mutex<Tail>,
    /// The runs that a power cut would leave.
    synced: Mutex<Vec<Run>>,
    bug: Bug,
}

const RUNS: [u32; 5] = [1, 2, 1, 3, 1];
const TOTAL: u64 = 8;

impl World {
    fn write(&self) {
        let mut next = 0;
        for count in RUNS {
            let run = run(next, count);
            next += u64::from(count);
            self.tail.lock().unwrap().accept(&run);
            if self.bug == Bug::PublishBeforeSync {
                self.tail.lock().unwrap().settle(run.next_seq());
                self.synced.lock().unwrap().push(run);
            } else {
                let end = run.next_seq();
                self.synced.lock().unwrap().push(run);
                self.tail.lock().unwrap().settle(end);
            }
        }
        self.tail.lock().unwrap().end(Ended::Deleted);
    }

    fn synced_end(&self) -> u64 {
        self.synced.lock().unwrap().last().map_or(0, |run| run.next_seq().get())
    }

    fn look(&self, stand: Stand, waker: &Waker) -> Look {
        self.tail.lock().unwrap().look(stand, waker)
    }

    async fn wait(&self, stand: Stand) -> Look {
        poll_fn(|context| {
            let look = if self.bug == Bug::LostWakeUp {
                match self.look(stand, Waker::noop()) {
                    Look::Wait => {
                        // What comes now wakes nobody; what is there now is not looked at.
                        drop(self.look(stand, context.waker()));
                        Look::Wait
                    }
                    look => look,
                }
            } else {
                self.look(stand, context.waker())
            };
            match look {
                Look::Wait => Poll::Pending,
                look => Poll::Ready(look),
            }
        })
        .await
    }

    /// Follows from a seq to the end of the log, and gives how it got its events.
    async fn follow(&self, from: u64, wants_accepted: bool) -> Vec<&'static str> {
        let member = self.tail.lock().unwrap().join(wants_accepted);
        let (mut next, mut ways) = (from, Vec::new());
        loop {
            let stand = Stand { member, next: Seq::saturating(next), bytes_max: 15 };
            match self.wait(stand).await {
                Look::Runs(runs) => {
                    ways.push("memory");
                    for run in runs {
                        assert!(run.first_seq.get() <= next && run.next_seq().get() > next, "a gap or a repetition");
                        next = run.next_seq().get();
                        assert!(wants_accepted || self.synced_end() >= next, "told before it was durable");
                    }
                }
                Look::Stored(end) => {
                    ways.push("store");
                    assert!(self.synced_end() >= end.get(), "the store has less than was said");
                    next = end.get() + u64::from(self.bug == Bug::OffByOne);
                }
                Look::Ended(_) => break,
                Look::Wait => {}
            }
        }
        assert_eq!(next, TOTAL, "an event is missing at the end");
        self.tail.lock().unwrap().leave(member);
        ways
    }
}

fn world(bug: Bug, budget: usize) -> Arc<World> {
    let tail = Tail::new(Seq::ZERO, std::iter::empty(), Budget::new(budget));
    Arc::new(World { tail: Mutex::new(tail), synced: Mutex::new(Vec::new()), bug })
}

fn schedules(bug: Bug, count: usize) -> HashSet<&'static str> {
    let ways = Arc::new(std::sync::Mutex::new(HashSet::new()));
    let seen = ways.clone();
    let body = move || {
        for budget in [0, 25, 1000] {
            let world = world(bug, budget);
            let writer = {
                let world = world.clone();
                thread::spawn(move || world.write())
            };
            let followers: Vec<_> = [(0, false), (0, true), (3, false)]
                .into_iter()
                .map(|(from, accepted)| {
                    let world = world.clone();
                    thread::spawn(move || {
                        // It may only start where the log has been.
                        while world.synced_end() < from {
                            thread::yield_now();
                        }
                        block_on(world.follow(from, accepted))
                    })
                })
                .collect();
            for follower in followers {
                seen.lock().unwrap().extend(follower.join().unwrap());
            }
            writer.join().unwrap();
        }
    };
    shuttle::check_random(body, count);
    ways.lock().unwrap().clone()
}

#[test]
fn the_handover_from_history_to_live_holds_under_ten_thousand_schedules() {
    let ways = schedules(Bug::None, 10_000);
    assert_eq!(ways.len(), 2, "both ways were taken: {ways:?}");
}

#[test]
fn planted_bugs_of_the_handover_are_caught() {
    for bug in [Bug::OffByOne, Bug::PublishBeforeSync, Bug::LostWakeUp] {
        let caught = catch_unwind(AssertUnwindSafe(|| schedules(bug, 2000)));
        assert!(caught.is_err(), "bug {} was not caught", bug as u8);
    }
}
