//! Streams of whole logs: a first frame, events, what follows them, a last frame.
//!
//! What Prepare, Load and Inspect have in common. Each has frames of its own type, and says how a frame is made.

use std::pin::Pin;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Response, Status};

use super::pb;
use crate::model::{Event, Seq};
use crate::service::{Error, Reading, Reason, Service, Session};

/// Data bytes in one frame.
const FRAME_BYTES: usize = 256 << 10;
/// How long a reader may take nothing.
const STALL: std::time::Duration = std::time::Duration::from_secs(60);
/// Frames between the reader of the store and the connection.
const FRAMES_AHEAD: usize = 3;

/// A stream of frames.
pub(super) type Frames<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How the frames of a call are made.
pub(super) trait Frame: Sized + Send + 'static {
    fn events(events: pb::EventFrame) -> Self;
    fn end(end: pb::ReadEnd) -> Self;
}

/// A log that is streamed.
pub(super) struct Whole {
    /// Read up to here.
    end: Seq,
    from: Seq,
    reading: Option<Reading>,
    closers: Vec<Event>,
}

impl Whole {
    /// A log as it was decided on; without events it is only its ends.
    pub(super) async fn open(
        service: &Service,
        session: &Session,
        (with_events, from): (bool, Seq),
        closers: Vec<Event>,
    ) -> Result<Self, Error> {
        let end = session.head.next_seq;
        let birth = &session.birth;
        let reading = if with_events {
            Some(service.read(&birth.key, from, Some(birth.incarnation)).await?.up_to(end))
        } else {
            None
        };
        Ok(Self { end, from, reading, closers })
    }

    /// The chain before the first event.
    pub(super) fn chain_before(&self) -> bytes::Bytes {
        self.reading.as_ref().map(|reading| reading.chain_before.0.to_vec().into()).unwrap_or_default()
    }

    /// The answer: what is given first, and the log behind it.
    pub(super) fn answer<T: Frame>(
        self,
        start: T,
        (tasks, stop): (&TaskTracker, &CancellationToken),
    ) -> Response<Frames<T>> {
        let (frames, stream) = mpsc::channel(FRAMES_AHEAD);
        // The last frame has a place of its own, so that a reader who stalls hears how the stream ended, too.
        let (last, end) = mpsc::channel(1);
        let stop = stop.clone();
        tasks.spawn(async move {
            let end = self.feed(start, &frames, &stop).await;
            // A reader that goes away ends the feed; there is nobody to tell.
            let _ = last.try_send(end.map(T::end).map_err(Status::from));
        });
        Response::new(Box::pin(ReceiverStream::new(stream).chain(ReceiverStream::new(end))))
    }

    async fn feed<T: Frame>(
        self,
        start: T,
        frames: &mpsc::Sender<Result<T, Status>>,
        stop: &CancellationToken,
    ) -> Result<pb::ReadEnd, Error> {
        let Self { end, from, reading, closers } = self;
        let ended =
            |reason: pb::ReadEndReason, next_seq: Seq| pb::ReadEnd { reason: reason.into(), next_seq: next_seq.get() };
        let mut next_seq = from;
        if !send(frames, start, stop).await? {
            return Ok(ended(pb::ReadEndReason::Draining, next_seq));
        }
        let Some(mut reading) = reading else { return Ok(ended(pb::ReadEndReason::EndOfLog, end)) };
        while let Some(batch) = reading.next(FRAME_BYTES, usize::MAX, usize::MAX).await? {
            let frame = pb::EventFrame { events: batch.into_iter().map(Into::into).collect() };
            if !send(frames, T::events(frame), stop).await? {
                return Ok(ended(pb::ReadEndReason::Draining, next_seq));
            }
            next_seq = reading.next_seq();
        }
        let mut closers = closers.into_iter().filter(|closer| closer.seq >= from).peekable();
        next_seq = end.max(from);
        while closers.peek().is_some() {
            let events: Vec<pb::Event> = closers.by_ref().take(1000).map(Into::into).collect();
            next_seq = events.last().map_or(next_seq, |event| Seq::saturating(event.seq + 1));
            if !send(frames, T::events(pb::EventFrame { events }), stop).await? {
                return Ok(ended(pb::ReadEndReason::Draining, next_seq));
            }
        }
        Ok(ended(pb::ReadEndReason::EndOfLog, next_seq))
    }
}

/// Hands a frame over to a reader that may be slow; `false` when it is gone, or when the server goes. One that takes
/// nothing for long is refused: it would keep its place among the reads for ever.
async fn send<T>(frames: &mpsc::Sender<Result<T, Status>>, frame: T, stop: &CancellationToken) -> Result<bool, Error> {
    if stop.is_cancelled() {
        return Ok(false);
    }
    tokio::select! {
        sent = frames.send(Ok(frame)) => Ok(sent.is_ok()),
        () = stop.cancelled() => Ok(false),
        () = tokio::time::sleep(STALL) => {
            Err(Error::new(Reason::ReaderBudget, "the reader took nothing for a minute; go on from where it stands"))
        }
    }
}
