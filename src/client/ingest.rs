//! One stream of appends for all the writers of a connection.
//!
//! Opened by the first batch that needs it, and again by the first one after it broke. Each writer has a lane; frames go
//! out in the order in which their calls were polled, answers come back to the oldest call of their lane. The invariant:
//! every call that was put on the stream gets exactly one answer, its own or the end of the stream. No more bytes are
//! unanswered than the server gave credit for. What is absent: repetition. A batch whose stream broke has failed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use super::connection::names;
use super::outbox::Ack;
use super::transport::{Address, Batch};
use super::{Error, convert};
use crate::model::{NewEvent, Seq};
use crate::rpc::client as wire;
use crate::rpc::pb;

/// What the server counts for a batch besides its events.
const BATCH_WEIGHT: usize = 256;
/// Lanes of one stream: fewer than a server takes. After that a new stream begins.
const LANES_MAX: usize = 8_000;
/// How long unary calls are used after a stream could not be opened: at first, and at most.
const DETOUR: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];

/// The way to a stream.
#[derive(Debug, Default)]
pub(super) struct Ingest {
    /// Held while a stream is opened, so that one is.
    opening: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Arc<Open>>,
    /// No stream is asked for before.
    closed_until: Option<Instant>,
    /// Streams in a row that could not be had.
    vain: u32,
    /// The tasks that take the answers in; they end with the connection.
    readers: JoinSet<()>,
}

/// What is known of a stream.
enum Way {
    Open(Arc<Open>),
    /// There is none, for a while.
    Detour,
    /// Nobody asked.
    Unknown,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Open {
    frames: mpsc::UnboundedSender<pb::AppendStreamRequest>,
    credit: Arc<Semaphore>,
    credit_bytes: usize,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    waiting: HashMap<u32, VecDeque<Waiting>>,
    /// Why it is over.
    end: Option<Error>,
}

/// A batch that is on the stream.
#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<Ack, Error>>,
    _credit: OwnedSemaphorePermit,
}

impl Ingest {
    /// Whether a stream is there: only then may several batches of a lane be on their way.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().open.is_some()
    }

    /// The stream, opened if there is none; `None`: there is no way to one now.
    pub(super) async fn stream(self: &Arc<Self>, stubs: &wire::Client, limit: Duration) -> Option<Arc<Open>> {
        match self.way() {
            Way::Open(open) => return Some(open),
            Way::Detour => return None,
            Way::Unknown => {}
        }
        let _one = self.opening.lock().await;
        match self.way() {
            Way::Open(open) => return Some(open),
            Way::Detour => return None,
            Way::Unknown => {}
        }
        let opened = tokio::time::timeout(limit, open(stubs)).await;
        let opened = opened.unwrap_or_else(|_| Err(Status::deadline_exceeded("the stream did not open")));
        let mut state = self.state.lock();
        match opened {
            Ok((open, answers)) => {
                let open = Arc::new(open);
                state.open = Some(open.clone());
                state.vain = 0;
                while state.readers.try_join_next().is_some() {}
                let ingest = Arc::downgrade(self);
                let read = open.clone();
                state.readers.spawn(async move {
                    let end = read.read(answers).await;
                    if let Some(ingest) = ingest.upgrade() {
                        ingest.forget(&read);
                    }
                    read.end(&end);
                });
                Some(open)
            }
            Err(status) => {
                let [first, longest] = DETOUR;
                let detour = match status.code() {
                    // It will not be there soon.
                    Code::Unimplemented => longest,
                    _ => first.saturating_mul(1 << state.vain.min(10)).min(longest),
                };
                state.vain = state.vain.saturating_add(1);
                state.closed_until = Some(Instant::now() + detour);
                None
            }
        }
    }

    fn way(&self) -> Way {
        let mut state = self.state.lock();
        if let Some(open) = state.open.take_if(|open| open.is_full()) {
            open.end(&Error::from(Status::unavailable("the stream has too many sessions; a new one begins")));
        }
        match (&state.open, state.closed_until) {
            (Some(open), _) => Way::Open(open.clone()),
            (None, Some(until)) if Instant::now() < until => Way::Detour,
            (None, _) => Way::Unknown,
        }
    }

    /// The next batch opens another one.
    fn forget(&self, open: &Arc<Open>) {
        let mut state = self.state.lock();
        state.open.take_if(|current| Arc::ptr_eq(current, open));
    }

    /// Puts a batch on the stream and waits for its answer.
    pub(super) async fn append(&self, open: Arc<Open>, address: Address, batch: Batch) -> Result<Ack, Error> {
        let answer = open.put(&address, batch).await?;
        match tokio::time::timeout(address.timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(open.ended()),
            Err(_) => {
                // Whoever waits behind it would wait in vain, too.
                self.forget(&open);
                let error = Error::timeout(address.timeout);
                open.end(&error);
                Err(error)
            }
        }
    }
}

/// Opens a stream: its first message comes at once, and says how much it takes.
async fn open(stubs: &wire::Client) -> Result<(Open, Streaming<pb::AppendStreamResponse>), Status> {
    let (frames, receiver) = mpsc::unbounded_channel();
    let mut log = stubs.log.clone();
    let mut answers = log.append_stream(UnboundedReceiverStream::new(receiver)).await?.into_inner();
    let first = answers.message().await?.ok_or_else(|| Status::unavailable("the stream ended at once"))?;
    let credit_bytes = (first.credit_bytes as usize).clamp(1, u32::MAX as usize >> 1);
    let credit = Arc::new(Semaphore::new(credit_bytes));
    Ok((Open { frames, credit, credit_bytes, lanes: Mutex::default() }, answers))
}

impl Open {
    fn is_full(&self) -> bool {
        self.lanes.lock().waiting.len() > LANES_MAX
    }

    /// Sends a batch once there is credit, in the order of those who asked.
    async fn put(&self, address: &Address, batch: Batch) -> Result<oneshot::Receiver<Result<Ack, Error>>, Error> {
        let weight = batch.events.iter().map(NewEvent::weight).sum::<usize>() + BATCH_WEIGHT;
        let permits = weight.min(self.credit_bytes) as u32;
        let credit = self.credit.clone().acquire_many_owned(permits).await.map_err(|_| self.ended())?;
        let (answer, receiver) = oneshot::channel();
        let mut lanes = self.lanes.lock();
        if let Some(end) = &lanes.end {
            return Err(end.clone());
        }
        let is_new = !lanes.waiting.contains_key(&address.lane);
        lanes.waiting.entry(address.lane).or_default().push_back(Waiting { answer, _credit: credit });
        // Under the lock: the order of the frames is that of those who wait.
        let sent = self.frames.send(frame(address, batch, is_new));
        drop(lanes);
        sent.map(|()| receiver).map_err(|_| self.ended())
    }

    /// Gives answers to those who wait, until there are no more.
    async fn read(&self, mut answers: Streaming<pb::AppendStreamResponse>) -> Error {
        loop {
            match answers.message().await {
                Ok(Some(message)) => {
                    let mut lanes = self.lanes.lock();
                    if lanes.end.is_some() || !message.results.into_iter().all(|result| lanes.answer(result)) {
                        return Error::contract("more answers than batches");
                    }
                }
                Ok(None) => return Error::from(Status::unavailable("the server closed the stream")),
                Err(status) => return Error::from(status),
            }
        }
    }

    /// Tells everybody that it is over.
    fn end(&self, error: &Error) {
        let mut lanes = self.lanes.lock();
        lanes.end.get_or_insert_with(|| error.clone());
        let waiting = std::mem::take(&mut lanes.waiting);
        drop(lanes);
        self.credit.close();
        for waiting in waiting.into_values().flatten() {
            // Whoever called the batch back does not listen any more.
            let _ = waiting.answer.send(Err(error.clone()));
        }
    }

    fn ended(&self) -> Error {
        let end = self.lanes.lock().end.clone();
        end.unwrap_or_else(|| Error::from(Status::unavailable("the stream is over")))
    }
}

impl Lanes {
    /// False: nobody waits for that.
    fn answer(&mut self, result: pb::AppendResult) -> bool {
        let Some(waiting) = self.waiting.get_mut(&result.lane) else { return false };
        (0..result.batches).all(|_| {
            waiting.pop_front().is_some_and(|waiting| {
                let _ = waiting.answer.send(outcome(&result));
                true
            })
        })
    }
}

/// What an answer says of one batch.
fn outcome(result: &pb::AppendResult) -> Result<Ack, Error> {
    if let Some(refusal) = &result.refusal {
        let code = Code::from(refusal.code);
        return Err(Status::with_details(code, refusal.message.clone(), refusal.details.clone()).into());
    }
    Ok(Ack {
        durable_next_seq: Seq::saturating(result.durable_next_seq),
        head: None,
        level: convert::level(result.ack_level())?,
        deduplicated: result.deduplicated,
    })
}

/// A batch as the stream takes it; the first of a lane says whose it is.
fn frame(address: &Address, batch: Batch, is_first: bool) -> pb::AppendStreamRequest {
    let (namespace, session_id) = if is_first { names(&address.key) } else { Default::default() };
    pb::AppendStreamRequest {
        namespace,
        session_id,
        first_seq: Some(batch.first),
        events: batch.events.into_iter().map(wire::new_event).collect(),
        ack_level: Some(pb::AckLevel::from(batch.level).into()),
        strict: false,
        incarnation: is_first.then(|| address.incarnation.0.to_vec().into()),
        epoch: address.epoch,
        lane: address.lane,
        resume: batch.resumes,
    }
}
