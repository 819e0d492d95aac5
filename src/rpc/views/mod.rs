//! `ViewService`.
//!
//! Answers that may be larger than a message are streams: a first frame with everything that clients page or filter
//! on, then frames of bounded size. A stream is fed by a task that ends with its reader or with the server.

mod convert;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use self::convert::{ask, message_frames, page_size};
use super::convert::{key, seq};
use super::feed::{Answers, Frames, feed};
use super::pb;
use super::pb::view_service_server::ViewService;
use crate::model::Seq;
use crate::replay::history::{PAGE_MESSAGES, PageRequest};
use crate::service::{Error, History, Hold, Service};

/// The adapter.
pub(super) struct Views {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
    /// The tasks that feed streams.
    pub(super) tasks: TaskTracker,
    /// Largest answer that is one message.
    pub(super) answer_bytes_max: usize,
}

/// Data bytes in one frame.
const FRAME_BYTES: usize = 256 << 10;
impl Views {
    /// A stream of frames that are all there, and hold the right to be.
    fn answer<T: Send + 'static>(&self, frames: Vec<T>, hold: Hold) -> Response<Answers<T>> {
        let (sender, stop) = (frames.into_iter(), self.stop.clone());
        feed(&self.tasks, move |out| async move {
            for frame in sender {
                out.send(frame, &stop).await?;
            }
            drop(hold);
            Ok(())
        })
    }
}

#[tonic::async_trait]
impl ViewService for Views {
    type DeriveMessagesStream = Answers<pb::DeriveMessagesResponse>;

    async fn derive_messages(
        &self,
        request: Request<pb::DeriveMessagesRequest>,
    ) -> Result<Response<Self::DeriveMessagesStream>, Status> {
        use pb::derive_messages_response::Frame;
        let conversation = self.service.messages(&ask(request.into_inner().log)?).await?;
        let start = pb::DeriveMessagesStart {
            basis: Some(conversation.basis.into()),
            message_count: conversation.messages.len() as u64,
            pairing: Some(convert::pairing(conversation.pairing)),
        };
        let messages = message_frames(conversation.messages, FRAME_BYTES).into_iter().map(Frame::Messages);
        let frames = std::iter::once(Frame::Start(start)).chain(messages);
        let frames = frames.map(|frame| pb::DeriveMessagesResponse { frame: Some(frame) });
        Ok(self.answer(frames.collect(), conversation.hold))
    }

    type ReconstructRequestStream = Answers<pb::ReconstructRequestResponse>;

    async fn reconstruct_request(
        &self,
        request: Request<pb::ReconstructRequestRequest>,
    ) -> Result<Response<Self::ReconstructRequestStream>, Status> {
        use pb::reconstruct_request_response::Frame;
        let request = request.into_inner();
        let asked = self.service.request(ask(request.log)?, request.dispatch).await?;
        let conversation = asked.conversation;
        let start = pb::ReconstructRequestStart {
            basis: Some(conversation.basis.into()),
            message_count: conversation.messages.len() as u64,
            pairing: Some(convert::pairing(conversation.pairing)),
            header_seq: asked.header.as_ref().map(|(seq, _)| seq.get()),
            header: asked.header.map(|(_, header)| header.as_json().to_owned().into()),
            attempt: asked.attempt.map(Into::into),
        };
        let messages = message_frames(conversation.messages, FRAME_BYTES).into_iter().map(Frame::Messages);
        let frames = std::iter::once(Frame::Start(start)).chain(messages);
        let frames = frames.map(|frame| pb::ReconstructRequestResponse { frame: Some(frame) });
        Ok(self.answer(frames.collect(), conversation.hold))
    }

    async fn list_attempts(
        &self,
        request: Request<pb::ListAttemptsRequest>,
    ) -> Result<Response<pb::ListAttemptsResponse>, Status> {
        let request = request.into_inner();
        let page = (seq("from_seq", request.from_seq)?, page_size(request.page_size, (100, 1000))?);
        let page = self.service.attempts(&ask(request.log)?, page).await?;
        Ok(Response::new(pb::ListAttemptsResponse {
            basis: Some(page.basis.into()),
            attempts: page.items.into_iter().map(Into::into).collect(),
            next_from_seq: page.next.map(Seq::get),
        }))
    }

    async fn assemble_attempt(
        &self,
        request: Request<pb::AssembleAttemptRequest>,
    ) -> Result<Response<pb::AssembleAttemptResponse>, Status> {
        let request = request.into_inner();
        let assembled = self.service.assemble(&ask(request.log)?, seq("seq", request.seq)?).await?;
        Ok(Response::new(convert::assembled(assembled, self.answer_bytes_max)?))
    }

    type ReadHistoryStream = Answers<pb::ReadHistoryResponse>;

    async fn read_history(
        &self,
        request: Request<pb::ReadHistoryRequest>,
    ) -> Result<Response<Self::ReadHistoryStream>, Status> {
        let request = request.into_inner();
        let wanted = PageRequest {
            messages_max: if request.max_messages == 0 { PAGE_MESSAGES } else { request.max_messages },
            before_seq: request.before_seq.map(|before| seq("before_seq", before)).transpose()?,
            bytes_max: Some(request.max_bytes).filter(|max| *max > 0),
            whole_messages: request.whole_messages,
        };
        let history = self.service.history(&ask(request.log)?, wanted).await?;
        let stop = self.stop.clone();
        Ok(feed(&self.tasks, move |frames| read_page(history, frames, stop)))
    }

    async fn list_event_records(
        &self,
        request: Request<pb::ListEventRecordsRequest>,
    ) -> Result<Response<pb::ListEventRecordsResponse>, Status> {
        let mut request = request.into_inner();
        let asked = ask(request.log.take())?;
        let page = self.service.records(&asked, convert::record_query(request)?).await?;
        Ok(Response::new(pb::ListEventRecordsResponse {
            basis: Some(page.basis.into()),
            records: page.items.into_iter().map(|(record, bytes)| convert::record(&record, bytes)).collect(),
            next_from_seq: page.next.map(Seq::get),
        }))
    }

    async fn trace_event(
        &self,
        request: Request<pb::TraceEventRequest>,
    ) -> Result<Response<pb::TraceEventResponse>, Status> {
        let request = request.into_inner();
        let (basis, trace, bytes) = self.service.trace(&ask(request.log)?, seq("seq", request.seq)?).await?;
        let seqs = |seqs: Vec<Seq>| seqs.into_iter().map(Seq::get).collect();
        Ok(Response::new(pb::TraceEventResponse {
            basis: Some(basis.into()),
            target: Some(convert::record(&trace.target, bytes)),
            replacement_chain: seqs(trace.replacement_chain),
            replaced: seqs(trace.replaced),
            sources: seqs(trace.sources),
            derived: seqs(trace.derived),
        }))
    }

    async fn trace_session(
        &self,
        request: Request<pb::TraceSessionRequest>,
    ) -> Result<Response<pb::TraceSessionResponse>, Status> {
        let request = request.into_inner();
        let family = self.service.family(&key(&request.namespace, &request.session_id)?).await?;
        Ok(Response::new(family.into()))
    }

    async fn get_session_stats(
        &self,
        request: Request<pb::GetSessionStatsRequest>,
    ) -> Result<Response<pb::GetSessionStatsResponse>, Status> {
        let statistics = self.service.statistics(&ask(request.into_inner().log)?).await?;
        Ok(Response::new(statistics.into()))
    }

    async fn get_surface(
        &self,
        request: Request<pb::GetSurfaceRequest>,
    ) -> Result<Response<pb::GetSurfaceResponse>, Status> {
        let request = request.into_inner();
        let from = usize::try_from(request.from_position).unwrap_or(usize::MAX);
        let page = (from, page_size(request.page_size, (100_000, 100_000))?);
        let (basis, nodes, [replace_generation, node_count]) = self.service.surface(&ask(request.log)?, page).await?;
        let nodes = nodes.into_iter().map(Seq::get).collect();
        Ok(Response::new(pb::GetSurfaceResponse { basis: Some(basis.into()), replace_generation, node_count, nodes }))
    }
}

/// Sends a page of history.
async fn read_page(
    mut history: History,
    frames: Frames<pb::ReadHistoryResponse>,
    stop: CancellationToken,
) -> Result<(), Error> {
    use pb::read_history_response::Frame;
    let mut frame = Frame::Start(convert::history_start(&history));
    loop {
        frames.send(pb::ReadHistoryResponse { frame: Some(frame) }, &stop).await?;
        let events = history.next(FRAME_BYTES).await?;
        if events.is_empty() {
            return Ok(());
        }
        frame = Frame::Events(pb::HistoryFrame { events: events.into_iter().map(Into::into).collect() });
    }
}
