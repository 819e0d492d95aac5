//! Streams that follow a log: the frames of `ReadFrom` with `follow`.
//!
//! The stream is a loop that the connection polls when it has room, without a task or a queue beside it: a reader that
//! takes nothing costs one frame. It watches the end of the server itself, and every end has a reason.

use std::time::Duration;

use futures_util::stream::unfold;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

use super::convert;
use super::log::nonzero;
use super::pb;
use super::pb::read_from_response::Frame;
use crate::model::Event;
use crate::service::{Ending, Error, Follow, Reason, Step, Wanted};

/// Data bytes in one frame of a follower: there may be many of them.
const FRAME_BYTES: usize = 64 << 10;
const HEARTBEAT_MS: u32 = 10_000;

/// How a stream runs.
pub(super) struct Pace {
    heartbeat: Duration,
    events: usize,
    bytes: usize,
    is_first: bool,
}

/// Time between heartbeats.
pub(super) fn heartbeat(heartbeat_ms: u32) -> Result<Duration, Error> {
    let heartbeat_ms = if heartbeat_ms == 0 { HEARTBEAT_MS } else { heartbeat_ms };
    if !(100..=3_600_000).contains(&heartbeat_ms) {
        return Err(Error::field(Reason::InvalidRequest, "heartbeat_ms", "must be between 100 and 3,600,000"));
    }
    Ok(Duration::from_millis(heartbeat_ms.into()))
}

impl Pace {
    pub(super) fn new(heartbeat_ms: u32, limits: (u64, u64)) -> Result<Self, Error> {
        let heartbeat = heartbeat(heartbeat_ms)?;
        Ok(Self { heartbeat, events: nonzero(limits.0), bytes: nonzero(limits.1), is_first: true })
    }
}

impl Pace {
    /// Holds events to what the reader wants at most; nothing when not even one fits.
    fn cut(&mut self, mut events: Vec<Event>) -> Option<Vec<Event>> {
        events.truncate(self.events);
        let mut count = 0;
        for event in &events {
            let bytes = event.body.data.len();
            // The first one of all comes, whatever its size.
            if bytes > self.bytes && !(self.is_first && count == 0) {
                self.bytes = 0;
                break;
            }
            self.bytes = self.bytes.saturating_sub(bytes);
            count += 1;
        }
        events.truncate(count);
        self.events -= count;
        self.is_first = false;
        (count > 0).then_some(events)
    }
}

enum Phase {
    Start,
    Running,
    Over,
}

struct Feed {
    follow: Follow,
    pace: Pace,
    stop: CancellationToken,
    /// Ends this one alone.
    removed: CancellationToken,
    phase: Phase,
    /// The seq after the last event sent.
    next_seq: u64,
}

/// What a request asks for.
pub(super) fn wanted(request: &pb::ReadFromRequest) -> Result<(Wanted, Pace), Error> {
    let wanted = Wanted {
        key: convert::key(&request.namespace, &request.session_id)?,
        from: convert::seq("from_seq", request.from_seq)?,
        incarnation: convert::incarnation(request.incarnation.as_deref())?,
        accepted: request.accepted,
    };
    Ok((wanted, Pace::new(request.heartbeat_ms, (request.limit_events, request.limit_bytes))?))
}

/// The frames, to their end.
pub(super) fn frames(
    follow: Follow,
    pace: Pace,
    (stop, removed): (CancellationToken, CancellationToken),
) -> impl Stream<Item = Result<pb::ReadFromResponse, Error>> + Send {
    let next_seq = follow.next_seq().get();
    unfold(Feed { follow, pace, stop, removed, phase: Phase::Start, next_seq }, |mut feed| async {
        let frame = match feed.phase {
            Phase::Start => {
                feed.phase = Phase::Running;
                Ok(Frame::Start(start(&feed.follow)))
            }
            Phase::Running => feed.next().await,
            Phase::Over => return None,
        };
        if matches!(frame, Ok(Frame::End(_)) | Err(_)) {
            feed.phase = Phase::Over;
        }
        Some((frame.map(|frame| pb::ReadFromResponse { frame: Some(frame) }), feed))
    })
}

/// The first frame.
pub(super) fn start(follow: &Follow) -> pb::ReadStart {
    let chain_before = follow.chain_before.0.to_vec().into();
    pb::ReadStart { session: Some(follow.session.clone().into()), chain_before }
}

impl Feed {
    async fn next(&mut self) -> Result<Frame, Error> {
        if self.pace.events == 0 || self.pace.bytes == 0 {
            return Ok(self.end(pb::ReadEndReason::Limit));
        }
        let step = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(self.end(pb::ReadEndReason::Draining)),
            () = self.removed.cancelled() => return Ok(self.end(pb::ReadEndReason::Removed)),
            step = self.follow.next(FRAME_BYTES, self.pace.heartbeat) => step?,
        };
        Ok(match step {
            Step::Events(events) => match self.pace.cut(events) {
                Some(events) => {
                    self.next_seq = events.last().map_or(self.next_seq, |event| event.seq.get() + 1);
                    Frame::Events(pb::EventFrame { events: events.into_iter().map(Into::into).collect() })
                }
                None => self.end(pb::ReadEndReason::Limit),
            },
            Step::CaughtUp => Frame::CaughtUp(pb::CaughtUp { head: Some(self.follow.head().into()) }),
            Step::FellBehind => Frame::FellBehind(pb::FellBehind { from_seq: self.next_seq }),
            Step::Idle => Frame::Heartbeat(pb::Heartbeat { head: Some(self.follow.head().into()) }),
            Step::End(ending) => self.end(reason(ending)),
        })
    }

    fn end(&self, reason: pb::ReadEndReason) -> Frame {
        Frame::End(pb::ReadEnd { reason: reason.into(), next_seq: self.next_seq })
    }
}

/// How an end is called on the wire.
pub(super) fn reason(ending: Ending) -> pb::ReadEndReason {
    match ending {
        Ending::Deleted => pb::ReadEndReason::Deleted,
        Ending::Replaced => pb::ReadEndReason::Replaced,
        Ending::Uncertain => pb::ReadEndReason::Uncertain,
    }
}
