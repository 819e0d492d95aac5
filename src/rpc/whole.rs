//! Streams of whole logs: a first frame, events, what follows them, a last frame.
//!
//! What Prepare, Load and Inspect have in common. Each has frames of its own type, and says how a frame is made.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Response;

use super::feed::{Answers, Frames, feed_to_end};
use super::pb;
use crate::model::{Event, Seq};
use crate::service::{Error, Reading, Service, Session};

/// Data bytes in one frame.
const FRAME_BYTES: usize = 256 << 10;

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
    ) -> Response<Answers<T>> {
        let stop = stop.clone();
        feed_to_end(tasks, move |frames| async move {
            let end = self.read_out(start, &frames, &stop).await?;
            Ok(Some(T::end(end)))
        })
    }

    async fn read_out<T: Frame>(
        self,
        start: T,
        frames: &Frames<T>,
        stop: &CancellationToken,
    ) -> Result<pb::ReadEnd, Error> {
        let Self { end, from, reading, closers } = self;
        let ended =
            |reason: pb::ReadEndReason, next_seq: Seq| pb::ReadEnd { reason: reason.into(), next_seq: next_seq.get() };
        let mut next_seq = from;
        if stop.is_cancelled() || !frames.offer(start, stop).await? {
            return Ok(ended(pb::ReadEndReason::Draining, next_seq));
        }
        let Some(mut reading) = reading else { return Ok(ended(pb::ReadEndReason::EndOfLog, end)) };
        while let Some(batch) = reading.next(FRAME_BYTES, usize::MAX, usize::MAX).await? {
            let frame = pb::EventFrame { events: batch.into_iter().map(Into::into).collect() };
            if stop.is_cancelled() || !frames.offer(T::events(frame), stop).await? {
                return Ok(ended(pb::ReadEndReason::Draining, next_seq));
            }
            next_seq = reading.next_seq();
        }
        let mut closers = closers.into_iter().filter(|closer| closer.seq >= from).peekable();
        next_seq = end.max(from);
        while closers.peek().is_some() {
            let events: Vec<pb::Event> = closers.by_ref().take(1000).map(Into::into).collect();
            next_seq = events.last().map_or(next_seq, |event| Seq::saturating(event.seq + 1));
            if stop.is_cancelled() || !frames.offer(T::events(pb::EventFrame { events }), stop).await? {
                return Ok(ended(pb::ReadEndReason::Draining, next_seq));
            }
        }
        Ok(ended(pb::ReadEndReason::EndOfLog, next_seq))
    }
}
