//! `LogService`.

use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::append_stream::AppendStream;
use super::convert;
use super::feed::{Answers, Frames, feed_to_end};
use super::follow;
use super::pb;
use super::pb::log_service_server::LogService;
use super::pb::read_from_response::Frame;
use super::read_many::ReadMany;
use super::sessions::missing;
use super::watch;
use crate::service::{Append, Error, Reading, Service};

/// The adapter.
pub(super) struct Log {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
    /// The tasks that feed streams.
    pub(super) tasks: TaskTracker,
}

/// Data bytes in one frame.
const FRAME_BYTES: usize = 256 << 10;
/// Reports in one answer; the head counts all.
pub(super) const REPORTS_MAX: usize = 1000;

#[tonic::async_trait]
impl LogService for Log {
    async fn append(&self, request: Request<pb::AppendRequest>) -> Result<Response<pb::AppendResponse>, Status> {
        let request = request.into_inner();
        let first_seq = request.first_seq.ok_or_else(|| missing("first_seq"))?;
        let events = request.events.into_iter().enumerate();
        let append = Append {
            key: convert::key(&request.namespace, &request.session_id)?,
            first_seq: convert::seq("first_seq", first_seq)?,
            events: events.map(|(index, event)| convert::new_event(index, event)).collect::<Result<_, _>>()?,
            level: convert::ack_level(request.ack_level)?,
            strict: request.strict,
            incarnation: convert::incarnation(request.incarnation.as_deref())?,
            epoch: request.epoch,
        };
        let appended = self.service.append(append).await?;
        let ack_level = pb::AckLevel::from(appended.level);
        Ok(Response::new(pb::AppendResponse {
            head: Some(appended.head.into()),
            ack_level: ack_level.into(),
            deduplicated: appended.deduplicated,
            reports: appended.reports.into_iter().take(REPORTS_MAX).map(Into::into).collect(),
        }))
    }

    type AppendStreamStream = AppendStream;

    async fn append_stream(
        &self,
        request: Request<tonic::Streaming<pb::AppendStreamRequest>>,
    ) -> Result<Response<AppendStream>, Status> {
        Ok(Response::new(AppendStream::new(self.service.pipeline(), request.into_inner(), self.stop.clone())))
    }

    async fn flush(&self, request: Request<pb::FlushRequest>) -> Result<Response<pb::FlushResponse>, Status> {
        let request = request.into_inner();
        let head = self.service.flush(&convert::key(&request.namespace, &request.session_id)?, request.epoch).await?;
        Ok(Response::new(pb::FlushResponse { head: Some(head.into()) }))
    }

    type WatchStream = Answers<pb::WatchResponse>;

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(watch::frames(&self.service, request.into_inner(), self.stop.clone()).await?))
    }

    type ReadManyStream = ReadMany;

    async fn read_many(
        &self,
        request: Request<tonic::Streaming<pb::ReadManyRequest>>,
    ) -> Result<Response<ReadMany>, Status> {
        Ok(Response::new(ReadMany::new(self.service.clone(), request.into_inner(), self.stop.clone())))
    }

    type ReadFromStream = Answers<pb::ReadFromResponse>;

    async fn read_from(&self, request: Request<pb::ReadFromRequest>) -> Result<Response<Self::ReadFromStream>, Status> {
        let request = request.into_inner();
        if request.follow {
            let (wanted, pace) = follow::wanted(&request)?;
            let follow = self.service.follow(wanted).await?;
            let ends = (self.stop.clone(), CancellationToken::new());
            let frames = follow::frames(follow, pace, ends).map(|frame| frame.map_err(Status::from));
            return Ok(Response::new(Box::pin(frames)));
        }
        let key = convert::key(&request.namespace, &request.session_id)?;
        let from = convert::seq("from_seq", request.from_seq)?;
        let incarnation = convert::incarnation(request.incarnation.as_deref())?;
        let reading = self.service.read(&key, from, incarnation).await?;
        let left = Left { events: nonzero(request.limit_events), bytes: nonzero(request.limit_bytes), is_first: true };
        let stop = self.stop.clone();
        Ok(feed_to_end(&self.tasks, move |frames| async move {
            let end = read_out(reading, left, &frames, &stop).await?;
            Ok(Some(Frame::End(end).into()))
        }))
    }
}

pub(super) fn nonzero(limit: u64) -> usize {
    if limit == 0 { usize::MAX } else { usize::try_from(limit).unwrap_or(usize::MAX) }
}

/// What a reader may still get.
struct Left {
    events: usize,
    bytes: usize,
    is_first: bool,
}

impl From<Frame> for pb::ReadFromResponse {
    fn from(frame: Frame) -> Self {
        Self { frame: Some(frame) }
    }
}

/// Sends what there is, and gives the frame that ends the stream.
async fn read_out(
    mut reading: Reading,
    mut left: Left,
    frames: &Frames<pb::ReadFromResponse>,
    stop: &CancellationToken,
) -> Result<pb::ReadEnd, Error> {
    let start = pb::ReadStart {
        session: Some(reading.session.clone().into()),
        chain_before: reading.chain_before.0.to_vec().into(),
    };
    let mut frame = Frame::Start(start);
    let mut next_seq = reading.next_seq();
    loop {
        if !frames.offer(frame.into(), stop).await? {
            return Ok(pb::ReadEnd { reason: pb::ReadEndReason::Draining.into(), next_seq: next_seq.get() });
        }
        next_seq = reading.next_seq();
        let reason = if stop.is_cancelled() {
            pb::ReadEndReason::Draining
        } else if left.events == 0 || left.bytes == 0 {
            pb::ReadEndReason::Limit
        } else if let Some(events) = next(&mut reading, &mut left).await? {
            frame = Frame::Events(events);
            continue;
        } else if left.bytes == 0 {
            pb::ReadEndReason::Limit
        } else {
            pb::ReadEndReason::EndOfLog
        };
        return Ok(pb::ReadEnd { reason: reason.into(), next_seq: reading.next_seq().get() });
    }
}

/// The next frame of events within what is left.
async fn next(reading: &mut Reading, left: &mut Left) -> Result<Option<pb::EventFrame>, Error> {
    // An event may be larger than a frame; larger than all that is left only the first one may be.
    let alone_max = if left.is_first { usize::MAX } else { left.bytes };
    let batch = reading.next(FRAME_BYTES.min(left.bytes), alone_max, left.events).await?;
    let Some(batch) = batch else { return Ok(None) };
    let bytes: usize = batch.iter().map(|event| event.body.data.len()).sum();
    if batch.is_empty() {
        left.bytes = 0;
        return Ok(None);
    }
    left.is_first = false;
    left.bytes = left.bytes.saturating_sub(bytes);
    left.events -= batch.len();
    Ok(Some(pb::EventFrame { events: batch.into_iter().map(Into::into).collect() }))
}
