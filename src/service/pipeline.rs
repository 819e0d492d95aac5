//! Batches of many sessions from one caller, pipelined: decided as they come, answered as they become durable.
//!
//! A batch that needs nothing but the end of its log is decided and queued at once, without a task or a channel of its
//! own; the queue of the committer is the order, and a count of settled entries says what to answer. What takes longer
//! (a session that is not in memory, a log to be folded, a repetition) goes the way of a single append, while its lane
//! waits and the others go on. Invariant: the answers of a lane come in the order of its batches.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;

use super::append::{Decided, check_batch};
use super::budget::Permit;
use super::fold::{Arriving, Rewritten};
use super::session::{Slot, State};
use super::settled::Settled;
use super::{AckLevel, Append, Appended, Error, Reason, Service};
use crate::model::{Incarnation, NewEvent, Seq, SessionKey};
use crate::replay::admit::Report;
use crate::replay::surface::original_needed;
use crate::store::Change;

/// Lanes of one pipeline.
const LANES_MAX: usize = 10_000;
/// What a batch weighs besides its events.
const BATCH_WEIGHT: usize = 256;

/// What became of a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The lane.
    pub lane: u32,
    /// What is stored, or why not.
    pub result: Result<Stored, Error>,
    /// The refusal is that of an earlier batch of the lane.
    pub is_consequence: bool,
}

/// A batch that is in its log.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The seq after its last event.
    pub next_seq: Seq,
    /// Everything below is on stable storage.
    pub durable_next_seq: Seq,
    /// The level that was reached.
    pub level: AckLevel,
    /// It was stored before.
    pub deduplicated: bool,
    /// What it breaks, although it was stored.
    pub reports: Vec<Report>,
}

/// The batches of one caller. Dropped, it leaves what was queued to the committer.
pub struct Pipeline {
    service: Service,
    lanes: HashMap<u32, Lane>,
    settled: Arc<Settled>,
    /// Entries that were queued.
    issued: u64,
    waiting: VecDeque<Waiting>,
    /// Outcomes that wait for nothing.
    ready: Vec<Waiting>,
    slow: FuturesUnordered<Slow>,
    /// Bytes that are unanswered.
    bytes: usize,
}

type Slow = Pin<Box<dyn Future<Output = (u32, usize, Result<Appended, Error>)> + Send>>;

struct Lane {
    key: SessionKey,
    incarnation: Option<Incarnation>,
    slot: Arc<Slot>,
    /// A batch goes the slow way; those behind it wait here.
    is_busy: bool,
    behind: VecDeque<Batch>,
    refused: Option<Error>,
    /// Outcomes that wait for the disk.
    waiting: usize,
}

/// An outcome that may be told once so many entries are settled.
struct Waiting {
    ticket: u64,
    weight: usize,
    outcome: Outcome,
}

struct Batch {
    /// What to append, or what is wrong with it already.
    append: Result<Append, Error>,
    weight: usize,
    resume: bool,
}

/// A batch as it comes in.
pub struct Offer {
    /// The lane.
    pub lane: u32,
    /// The session; the first offer of a lane must say.
    pub key: Option<SessionKey>,
    /// See [`Append`]; the session of its key is that of the lane.
    pub first_seq: Seq,
    /// See [`Append`].
    pub events: Vec<NewEvent>,
    /// See [`Append`].
    pub level: AckLevel,
    /// See [`Append`].
    pub strict: bool,
    /// See [`Append`]; without one, that of the first offer of the lane.
    pub incarnation: Option<Incarnation>,
    /// See [`Append`].
    pub epoch: Option<u64>,
    /// Takes the lane up after a refusal.
    pub resume: bool,
}

impl Service {
    /// A way in for many batches.
    pub fn pipeline(&self) -> Pipeline {
        Pipeline {
            service: self.clone(),
            lanes: HashMap::new(),
            settled: Arc::default(),
            issued: 0,
            waiting: VecDeque::new(),
            ready: Vec::new(),
            slow: FuturesUnordered::new(),
            bytes: 0,
        }
    }
}

impl Pipeline {
    /// Bytes that may be unanswered.
    pub fn credit_bytes(&self) -> usize {
        self.service.inner.options.stream_credit_bytes
    }

    /// Whether another batch should wait until something is answered.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.credit_bytes()
    }

    /// Whether everything is answered.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.ready.is_empty() && self.slow.is_empty()
    }

    /// Takes a batch. Gives it back when the node has no room for it now; then nothing has happened.
    pub fn offer(&mut self, offer: Offer) -> Result<(), Box<Offer>> {
        let weight = offer.events.iter().map(NewEvent::weight).sum::<usize>() + BATCH_WEIGHT;
        let number = offer.lane;
        if let Err(refusal) = self.bind(&offer) {
            self.refuse(number, refusal);
            return Ok(());
        }
        let Some(lane) = self.lanes.get_mut(&number) else { return Ok(()) };
        let Some(permit) = self.service.inner.appends.take(weight) else { return Err(Box::new(offer)) };
        let Offer { first_seq, events, level, strict, incarnation, epoch, resume, .. } = offer;
        let incarnation = incarnation.or(lane.incarnation);
        let append = Append { key: lane.key.clone(), first_seq, events, level, strict, incarnation, epoch };
        self.line_up(number, Batch { append: Ok(append), weight, resume }, Some(permit));
        Ok(())
    }

    /// Takes a batch that is no batch: it is refused when its turn comes.
    pub fn refuse(&mut self, lane: u32, refusal: Error) {
        self.line_up(lane, Batch { append: Err(refusal), weight: BATCH_WEIGHT, resume: false }, None);
    }

    fn line_up(&mut self, number: u32, batch: Batch, permit: Option<Permit>) {
        self.bytes += batch.weight;
        match self.lanes.get_mut(&number) {
            // Its permit comes back when it is taken up; until then it counts against the credit of the stream.
            Some(lane) if lane.is_busy => lane.behind.push_back(batch),
            Some(_) | None => self.take(number, batch, permit),
        }
    }

    /// Gives what can be told, in order; `Ready(Err)` when the disk failed, so that nobody knows what became of the
    /// rest. Wakes the task when there is more.
    pub fn poll(&mut self, context: &mut Context<'_>, out: &mut Vec<Outcome>) -> Poll<Result<(), Error>> {
        self.poll_settled(context, out)?;
        while let Poll::Ready(Some((number, weight, result))) = Pin::new(&mut self.slow).poll_next(context) {
            // What was queued before it on its lane was settled before it was.
            self.poll_settled(context, out)?;
            self.finish(number, weight, result);
            self.poll_settled(context, out)?;
        }
        if out.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn poll_settled(&mut self, context: &mut Context<'_>, out: &mut Vec<Outcome>) -> Result<(), Error> {
        let settled = self.settled.count(context)?;
        let is_settled = |waiting: &Waiting| waiting.ticket <= settled;
        while self.waiting.front().is_some_and(is_settled)
            && let Some(waiting) = self.waiting.pop_front()
        {
            if let Some(lane) = self.lanes.get_mut(&waiting.outcome.lane) {
                lane.waiting -= 1;
            }
            self.ready.push(waiting);
        }
        for Waiting { weight, outcome, .. } in self.ready.drain(..) {
            self.bytes -= weight;
            out.push(outcome);
        }
        Ok(())
    }

    /// Makes sure that there is the lane, and that it is for this session.
    fn bind(&mut self, offer: &Offer) -> Result<(), Error> {
        let count = self.lanes.len();
        match (self.lanes.get(&offer.lane), &offer.key) {
            (Some(lane), Some(key)) if lane.key != *key => {
                let problem = format!("names another session than the lane, which has `{}`", lane.key);
                Err(Error::field(Reason::InvalidRequest, "session_id", problem))
            }
            (Some(_), _) => Ok(()),
            (None, None) => Err(Error::field(Reason::InvalidRequest, "session_id", "is missing on a new lane")),
            (None, Some(_)) if count >= LANES_MAX => {
                Err(Error::limit(Reason::InvalidRequest, "lanes_max", count + 1, LANES_MAX))
            }
            (None, Some(key)) => {
                let slot = self.service.inner.slots.slot(key);
                let (key, incarnation) = (key.clone(), offer.incarnation);
                let behind = VecDeque::new();
                let lane = Lane { key, incarnation, slot, is_busy: false, behind, refused: None, waiting: 0 };
                self.lanes.insert(offer.lane, lane);
                Ok(())
            }
        }
    }

    /// Decides on a batch whose turn it is.
    fn take(&mut self, number: u32, batch: Batch, permit: Option<Permit>) {
        let Batch { append, weight, resume } = batch;
        let slot = self.lanes.get_mut(&number).map(|lane| {
            lane.refused.take_if(|_| resume);
            (lane.slot.clone(), lane.refused.clone())
        });
        if let Some((_, Some(refusal))) = slot {
            return self.answer(number, (Err(refusal), true), weight);
        }
        let placed = match (append, slot) {
            (Ok(append), Some((slot, _))) => self.place(&slot, &append, permit).map(|stored| stored.ok_or(append)),
            (Err(refusal), _) => Err(refusal),
            (Ok(_), None) => return,
        };
        match placed {
            Ok(Ok(stored)) => self.answer(number, (Ok(stored), false), weight),
            Ok(Err(append)) => {
                let service = self.service.clone();
                if let Some(lane) = self.lanes.get_mut(&number) {
                    lane.is_busy = true;
                }
                self.slow.push(Box::pin(async move { (number, weight, service.append(append).await) }));
            }
            Err(refusal) => self.finish(number, weight, Err(refusal)),
        }
    }

    /// Puts a batch at the end of its log, if that needs nothing else. `None`: it needs more.
    fn place(&mut self, slot: &Arc<Slot>, append: &Append, permit: Option<Permit>) -> Result<Option<Stored>, Error> {
        let service = &self.service;
        let (bytes, docs) = check_batch(&append.events, &service.inner.options.limits)?;
        service.check_writable()?;
        let needs_more = append.events.iter().any(|event| original_needed(event).is_some());
        let Some(permit) = permit.filter(|_| !needs_more) else { return Ok(None) };
        let arriving = Arriving { events: &append.events, docs, bytes, originals: Rewritten::default() };
        let mut state = slot.state.lock();
        let State::Live(live) = &mut *state else { return Ok(None) };
        let Decided::Next(run, reports) = service.decide(live, append, &arriving)? else { return Ok(None) };
        let (next_seq, change) = (run.next_seq(), Change::Append { log: live.log, run });
        let durable_next_seq = match append.level {
            AckLevel::Accepted => live.durable_next_seq,
            AckLevel::Durable => next_seq,
        };
        match append.level {
            AckLevel::Accepted => service.committer.accept(slot, change, permit),
            AckLevel::Durable => {
                service.committer.submit_counted(slot, change, (permit, &self.settled));
                self.issued += 1;
            }
        }
        Ok(Some(Stored { next_seq, durable_next_seq, level: append.level, deduplicated: false, reports }))
    }

    /// A batch that went the slow way, or was refused, is done; its lane goes on.
    fn finish(&mut self, number: u32, weight: usize, result: Result<Appended, Error>) {
        let result = result.map(Stored::from);
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.is_busy = false;
            lane.refused = result.as_ref().err().cloned();
        }
        self.answer(number, (result, false), weight);
        while let Some(lane) = self.lanes.get_mut(&number).filter(|lane| !lane.is_busy) {
            let Some(batch) = lane.behind.pop_front() else { return };
            // Without a permit it goes the slow way, which asks again.
            let permit = self.service.inner.appends.take(batch.weight);
            self.take(number, batch, permit);
        }
    }

    fn answer(&mut self, lane: u32, (result, is_consequence): (Result<Stored, Error>, bool), weight: usize) {
        let is_queued = matches!(&result, Ok(stored) if stored.level == AckLevel::Durable && !stored.deduplicated);
        let outcome = Outcome { lane, result, is_consequence };
        let waiting = Waiting { ticket: self.issued, weight, outcome };
        match self.lanes.get_mut(&lane) {
            Some(lane) if lane.waiting > 0 || is_queued => {
                lane.waiting += 1;
                self.waiting.push_back(waiting);
            }
            // Nothing of its lane is before it.
            Some(_) | None => self.ready.push(waiting),
        }
    }
}

impl From<Appended> for Stored {
    fn from(appended: Appended) -> Self {
        let Appended { head, level, deduplicated, reports } = appended;
        Self { next_seq: head.next_seq, durable_next_seq: head.durable_next_seq, level, deduplicated, reports }
    }
}
