//! Following a log: history, then live, as one stream without a gap, and without a queue.
//!
//! A follower holds the seq that it wants next and nothing else. What it gets comes from the newest runs in memory, which
//! all followers share, or from the store; one that is slow is therefore moved back to the store by itself, and one that
//! takes nothing costs its place. What is told is durable, unless the follower asked for what is accepted.

mod tail;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;

pub(super) use self::tail::{Ended, Tail};
use self::tail::{Look, Stand};
use super::budget::Permit;
use super::session::{Live, Slot, State};
use super::{Error, Head, Reason, Service, Session, blocking, error, live, live_as, live_mut, read};
use crate::codec::{Chain, event};
use crate::model::{Event, Incarnation, Seq, SessionKey};
use crate::store::{Damage, LogId, Run};

/// What a reader wants of a log.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The session.
    pub key: SessionKey,
    /// The first seq.
    pub from: Seq,
    /// Only of this life of the name.
    pub incarnation: Option<Incarnation>,
    /// Also what is accepted and not durable yet.
    pub accepted: bool,
}

/// Why nothing more comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The session was deleted.
    Deleted,
    /// It was deleted and created anew.
    Replaced,
    /// The disk failed: accepted events that were shown may be lost.
    Uncertain,
}

/// What comes next.
#[derive(Debug)]
pub enum Step {
    /// Events, contiguous with those before.
    Events(Vec<Event>),
    /// All that there is was given; what follows is live.
    CaughtUp,
    /// The reader was too slow for memory; what follows is read from the store.
    FellBehind,
    /// Nothing came for as long as the reader wanted to wait.
    Idle,
    /// The end.
    End(Ending),
}

/// A reader of a log that stays.
pub struct Follow {
    /// The session when the reader came.
    pub session: Session,
    /// The chain before the first event.
    pub chain_before: Chain,
    service: Service,
    slot: Arc<Slot>,
    tail: Arc<Mutex<Tail>>,
    member: usize,
    log: LogId,
    damage: Option<Damage>,
    next: Seq,
    is_live: bool,
    ahead: VecDeque<Event>,
    held: Option<Permit>,
    _place: Permit,
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.tail.lock().leave(self.member);
    }
}

impl Service {
    /// Starts to follow a log. A start beyond its end is refused: what the reader has seen is not there any more, or
    /// never was.
    pub async fn follow(&self, wanted: Wanted) -> Result<Follow, Error> {
        let place = self.inner.followers.take(1);
        let place = place.ok_or_else(|| Error::new(Reason::ReaderBudget, "too many streams follow logs"))?;
        let slot = self.inner.slots.get(&wanted.key).await?;
        let (session, log, (damage, durable_chain)) = {
            let state = slot.state.lock();
            let live = live(&state, &wanted.key)?;
            live.check_incarnation(wanted.incarnation)?;
            (live.session(self.inner.store_id), live.log, (live.damage, live.durable_chain))
        };
        let (head, from) = (&session.head, wanted.from);
        if from > head.next_seq {
            let message = format!("the log ends at seq {}; it cannot be followed from seq {from}", head.next_seq);
            let fact = super::Fact::Conflict { head: Box::new(head.clone()), first_differing_seq: None };
            return Err(Error::new(Reason::BeyondHead, message).with(fact));
        }
        let chain_before = match from.cmp(&head.durable_next_seq) {
            Ordering::Equal => durable_chain,
            Ordering::Greater => chain_in_memory(&slot, log, from),
            Ordering::Less => {
                let store = self.inner.store.clone();
                blocking(move || read::chain_before(&*store, log, from)).await??
            }
        };
        // The log may have ended meanwhile; then the reader hears it at once.
        let tail = {
            let mut state = slot.state.lock();
            let live = live_mut(&mut state, &wanted.key)?;
            live.check_incarnation(Some(session.head.incarnation))?;
            self.tail_of(live)
        };
        let member = tail.lock().join(wanted.accepted);
        Ok(Follow {
            session,
            chain_before,
            service: self.clone(),
            slot,
            tail,
            member,
            log,
            damage,
            next: from,
            is_live: false,
            ahead: VecDeque::new(),
            held: None,
            _place: place,
        })
    }

    fn tail_of(&self, live: &mut Live) -> Arc<Mutex<Tail>> {
        live.tail.upgrade().unwrap_or_else(|| {
            let budget = self.inner.follow_bytes.clone();
            let tail = Tail::new(live.durable_next_seq, live.pending.iter().cloned(), budget);
            let tail = Arc::new(Mutex::new(tail));
            live.tail = Arc::downgrade(&tail);
            tail
        })
    }
}

impl Follow {
    /// Where the next event is read.
    pub fn next_seq(&self) -> Seq {
        self.ahead.front().map_or(self.next, |event| event.seq)
    }

    /// Where the log stands now; of one that is gone, where it stood at the start.
    pub fn head(&self) -> Head {
        let state = self.slot.state.lock();
        let live = live_as(&state, self.session.head.incarnation);
        live.map_or_else(|| self.session.head.clone(), |live| live.head(self.service.inner.store_id))
    }

    /// What comes next: at most `bytes_max` of data, or one event that is larger. Waits up to `patience` when there is
    /// nothing. Can be dropped at any moment without a loss.
    pub async fn next(&mut self, bytes_max: usize, patience: Duration) -> Result<Step, Error> {
        loop {
            if !self.ahead.is_empty() {
                return Ok(Step::Events(self.frame(bytes_max)));
            }
            if let Some(damage) = self.damage.filter(|damage| self.next >= damage.good_next_seq) {
                return Err(error::corrupt(damage.good_next_seq));
            }
            let stand = Stand { member: self.member, next: self.next, bytes_max };
            let (tail, is_live) = (&self.tail, self.is_live);
            let look = poll_fn(|context| match tail.lock().look(stand, context.waker()) {
                Look::Wait if is_live => Poll::Pending,
                look => Poll::Ready(look),
            });
            let Ok(look) = tokio::time::timeout(patience, look).await else { return Ok(Step::Idle) };
            match look {
                Look::Runs(runs) => self.take(&runs)?,
                Look::Stored(_) if self.is_live => {
                    self.is_live = false;
                    return Ok(Step::FellBehind);
                }
                Look::Stored(end) => self.load(end, bytes_max).await?,
                Look::Wait => {
                    self.is_live = true;
                    return Ok(Step::CaughtUp);
                }
                Look::Ended(ended) => return Ok(Step::End(self.ending(ended))),
            }
        }
    }

    fn ending(&self, ended: Ended) -> Ending {
        match ended {
            Ended::Uncertain => Ending::Uncertain,
            Ended::Deleted if matches!(*self.slot.state.lock(), State::Live(_)) => Ending::Replaced,
            Ended::Deleted => Ending::Deleted,
        }
    }

    fn take(&mut self, runs: &[Run]) -> Result<(), Error> {
        let (mut events, mut decoder) = (Vec::new(), event::Decoder::default());
        for run in runs {
            run.decode_into(&mut decoder, &mut events)?;
        }
        events.drain(..events.partition_point(|event| event.seq < self.next));
        self.keep(events)
    }

    async fn load(&mut self, end: Seq, bytes_max: usize) -> Result<(), Error> {
        let (store, log, from) = (self.service.inner.store.clone(), self.log, self.next);
        let events = blocking(move || read::load(&*store, log, (from, end), bytes_max)).await?;
        self.keep(events.map_err(|error| read::corrupt_at_least(error, from))?)
    }

    fn keep(&mut self, events: Vec<Event>) -> Result<(), Error> {
        // The store says there is less than was acknowledged.
        let last = events.last().ok_or_else(|| error::corrupt(self.next))?;
        self.next = Seq::saturating(last.seq.get() + 1);
        self.ahead = events.into();
        Ok(())
    }

    /// The next frame. What is left waits in memory if the node has room for it, else it is read again.
    fn frame(&mut self, bytes_max: usize) -> Vec<Event> {
        let mut bytes = 0;
        let fits = |event: &&Event| {
            bytes += event.body.weight();
            bytes <= bytes_max
        };
        let count = self.ahead.iter().take_while(fits).count().max(1);
        let frame: Vec<Event> = self.ahead.drain(..count).collect();
        self.held = None;
        if !self.ahead.is_empty() {
            let left = self.ahead.iter().map(|event| event.body.weight()).sum();
            self.held = self.service.inner.follow_bytes.take(left);
            if self.held.is_none() {
                self.next = self.next_seq();
                self.ahead.clear();
            }
        }
        if self.ahead.is_empty() {
            self.ahead = VecDeque::new();
        }
        frame
    }
}

/// The chain before an event that is not durable yet, or was not a moment ago; the start of the chain if it cannot
/// be had, which no chain matches.
fn chain_in_memory(slot: &Slot, log: LogId, from: Seq) -> Chain {
    let state = slot.state.lock();
    let State::Live(live) = &*state else { return Chain::START };
    let mut chain = live.durable_chain;
    for run in live.pending.iter().filter(|_| live.log == log).take_while(|run| run.first_seq < from) {
        if run.next_seq() <= from {
            chain = run.chain;
            continue;
        }
        let mut encoded = Vec::new();
        for stored in run.decode().into_iter().flatten().take_while(|event| event.seq < from) {
            encoded.clear();
            event::encode(stored.seq, &stored.body, &mut encoded);
            chain = chain.next(&encoded);
        }
    }
    chain
}
