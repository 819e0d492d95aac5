//! `LogService.AppendStream`: frames in, answers out, in one task.
//!
//! The stream of answers reads the frames itself whenever it is polled, so that a batch costs no task, no channel and no
//! wake-up of its own, and everything that became ready meanwhile goes out in one message. Reading stops while too much
//! is unanswered; the connection then holds the client back.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, Streaming};

use super::convert;
use super::log::REPORTS_MAX;
use super::pb;
use super::sessions::missing;
use crate::service::{Error, Offer, Outcome, Pipeline, Reason};

/// Frames taken at once, before other calls have their turn.
const FRAMES_MAX: usize = 1024;
/// Wait for room on a node that has none, when nothing of this stream is on its way.
const ROOM: Duration = Duration::from_millis(5);

/// The answers of one call.
pub(super) struct AppendStream {
    pipeline: Pipeline,
    frames: Streaming<pb::AppendStreamRequest>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    outcomes: Vec<Outcome>,
    /// A batch that the node had no room for.
    held: Option<Box<Offer>>,
    room: Option<Pin<Box<Sleep>>>,
    input: Input,
    credit: u64,
}

/// Whether there is more to read.
enum Input {
    Open,
    /// The client is done.
    Closed,
    /// Nothing more is read, and this is how the call ends.
    Refused(Status),
    Over,
}

impl AppendStream {
    pub(super) fn new(pipeline: Pipeline, frames: Streaming<pb::AppendStreamRequest>, stop: CancellationToken) -> Self {
        let (stop, credit) = (Box::pin(stop.cancelled_owned()), pipeline.credit_bytes() as u64);
        let outcomes = Vec::new();
        Self { pipeline, frames, stop, outcomes, held: None, room: None, input: Input::Open, credit }
    }

    /// Takes frames while there are some and there is room. True: there are more.
    fn read(&mut self, context: &mut Context<'_>) -> bool {
        for _ in 0..FRAMES_MAX {
            if let Some(offer) = self.held.take() {
                if !self.offer(*offer, context) {
                    return false;
                }
                continue;
            }
            if !matches!(self.input, Input::Open) || self.pipeline.is_full() {
                return false;
            }
            match Pin::new(&mut self.frames).poll_next(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    let lane = frame.lane;
                    match offer(frame) {
                        Ok(offer) => drop(self.offer(offer, context)),
                        Err(refusal) => self.pipeline.refuse(lane, refusal),
                    }
                }
                // A client that went away does not hear the answers of what it sent.
                Poll::Ready(Some(Err(status))) => self.input = Input::Refused(status),
                Poll::Ready(None) => self.input = Input::Closed,
                Poll::Pending => return false,
            }
        }
        true
    }

    /// Whether the batch was taken. If not it is kept, and the task woken when there may be room.
    fn offer(&mut self, offer: Offer, context: &mut Context<'_>) -> bool {
        let Err(offer) = self.pipeline.offer(offer) else { return true };
        self.held = Some(offer);
        if self.pipeline.is_idle() {
            let room = self.room.insert(Box::pin(tokio::time::sleep(ROOM)));
            if room.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        false
    }

    fn watch_stop(&mut self, context: &mut Context<'_>) {
        if matches!(self.input, Input::Open) && self.stop.as_mut().poll(context).is_ready() {
            self.held = None;
            let draining = "the server is shutting down; what was not answered was not stored";
            self.input = Input::Refused(Error::new(Reason::Draining, draining).into());
        }
    }

    fn end(&mut self) -> Option<Result<pb::AppendStreamResponse, Status>> {
        match std::mem::replace(&mut self.input, Input::Over) {
            Input::Refused(status) => Some(Err(status)),
            Input::Open | Input::Closed | Input::Over => None,
        }
    }
}

impl Stream for AppendStream {
    type Item = Result<pb::AppendStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.watch_stop(context);
        let has_more = this.read(context);
        let polled = this.pipeline.poll(context, &mut this.outcomes);
        let credit_bytes = std::mem::take(&mut this.credit);
        if !this.outcomes.is_empty() || credit_bytes > 0 {
            // Polled again at once: what the answers made room for is read then.
            return Poll::Ready(Some(Ok(pb::AppendStreamResponse {
                results: results(this.outcomes.drain(..)),
                credit_bytes,
            })));
        }
        if let Poll::Ready(Err(error)) = polled {
            this.input = Input::Refused(error.into());
            return Poll::Ready(this.end());
        }
        if !matches!(this.input, Input::Open) && this.held.is_none() && this.pipeline.is_idle() {
            return Poll::Ready(this.end());
        }
        if has_more {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// A frame as the service takes it.
fn offer(frame: pb::AppendStreamRequest) -> Result<Offer, Error> {
    let first_seq = frame.first_seq.ok_or_else(|| missing("first_seq"))?;
    let key = if frame.session_id.is_empty() && frame.namespace.is_empty() {
        None
    } else {
        Some(convert::key(&frame.namespace, &frame.session_id)?)
    };
    let events = frame.events.into_iter().enumerate();
    Ok(Offer {
        lane: frame.lane,
        key,
        first_seq: convert::seq("first_seq", first_seq)?,
        events: events.map(|(index, event)| convert::new_event(index, event)).collect::<Result<_, _>>()?,
        level: convert::ack_level(frame.ack_level)?,
        strict: frame.strict,
        incarnation: convert::incarnation(frame.incarnation.as_deref())?,
        epoch: frame.epoch,
        resume: frame.resume,
    })
}

/// Answers of one lane that say the same go together.
fn results(outcomes: impl Iterator<Item = Outcome>) -> Vec<pb::AppendResult> {
    let mut results: Vec<pb::AppendResult> = Vec::new();
    let mut last_of: HashMap<u32, usize> = HashMap::new();
    for outcome in outcomes {
        let (lane, result) = (outcome.lane, result(outcome));
        match last_of.get(&lane).and_then(|at| results.get_mut(*at)) {
            Some(last) if is_plain(last) && is_plain(&result) && last.ack_level == result.ack_level => {
                last.batches += 1;
                (last.next_seq, last.durable_next_seq) = (result.next_seq, result.durable_next_seq);
            }
            _ => {
                last_of.insert(lane, results.len());
                results.push(result);
            }
        }
    }
    results
}

fn is_plain(result: &pb::AppendResult) -> bool {
    !result.deduplicated && result.reports.is_empty() && result.refusal.is_none()
}

fn result(outcome: Outcome) -> pb::AppendResult {
    let Outcome { lane, result, is_consequence } = outcome;
    match result {
        Ok(stored) => pb::AppendResult {
            lane,
            batches: 1,
            next_seq: stored.next_seq.get(),
            durable_next_seq: stored.durable_next_seq.get(),
            ack_level: pb::AckLevel::from(stored.level).into(),
            deduplicated: stored.deduplicated,
            reports: stored.reports.into_iter().take(REPORTS_MAX).map(Into::into).collect(),
            refusal: None,
        },
        Err(error) => {
            let (next_seq, durable_next_seq) = error.ends();
            let refusal = pb::StreamRefusal { is_consequence, ..error.into() };
            pb::AppendResult {
                lane,
                batches: 1,
                next_seq,
                durable_next_seq,
                refusal: Some(refusal),
                ..Default::default()
            }
        }
    }
}
