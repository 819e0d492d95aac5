//! `OwnerService`.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::convert;
use super::feed::Answers;
use super::pb;
use super::pb::owner_service_server::OwnerService;
use super::pb::prepare_response::Frame;
use super::whole::{self, Whole};
use crate::service::{Claim, Prepare, Service, check_ttl};

/// The adapter.
pub(super) struct Owners {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
    /// The tasks that feed streams.
    pub(super) tasks: TaskTracker,
}

impl whole::Frame for pb::PrepareResponse {
    fn events(events: pb::EventFrame) -> Self {
        Self { frame: Some(Frame::Events(events)) }
    }

    fn end(end: pb::ReadEnd) -> Self {
        Self { frame: Some(Frame::End(end)) }
    }
}

#[tonic::async_trait]
impl OwnerService for Owners {
    type PrepareStream = Answers<pb::PrepareResponse>;

    async fn prepare(&self, request: Request<pb::PrepareRequest>) -> Result<Response<Self::PrepareStream>, Status> {
        let request = request.into_inner();
        let take_over = request.take_over.as_ref().map(|take_over| take_over.reason.as_str());
        let prepare = Prepare {
            key: convert::key(&request.namespace, &request.session_id)?,
            incarnation: convert::incarnation(request.incarnation.as_deref())?,
            claim: Claim::new(&request.holder, request.ttl_ms, take_over)?,
        };
        let from = convert::seq("from_seq", request.from_seq)?;
        let prepared = self.service.prepare(&prepare).await?;
        let whole = Whole::open(&self.service, &prepared.session, (request.with_events, from), Vec::new()).await?;
        let start = pb::PrepareStart {
            session: Some(prepared.session.into()),
            epoch: prepared.epoch,
            repaired: prepared.repaired,
            chain_before: whole.chain_before(),
        };
        Ok(whole.answer(pb::PrepareResponse { frame: Some(Frame::Start(start)) }, (&self.tasks, &self.stop)))
    }

    async fn publish(&self, request: Request<pb::PublishRequest>) -> Result<Response<pb::PublishResponse>, Status> {
        let request = request.into_inner();
        let head = self.service.publish(&convert::key(&request.namespace, &request.session_id)?, request.epoch).await?;
        Ok(Response::new(pb::PublishResponse { head: Some(head.into()) }))
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Result<Response<pb::ReleaseResponse>, Status> {
        let request = request.into_inner();
        let head = self.service.release(&convert::key(&request.namespace, &request.session_id)?, request.epoch).await?;
        Ok(Response::new(pb::ReleaseResponse { head: Some(head.into()) }))
    }

    async fn renew(&self, request: Request<pb::RenewRequest>) -> Result<Response<pb::RenewResponse>, Status> {
        let request = request.into_inner();
        let ttl_ms = check_ttl(request.ttl_ms)?;
        let head =
            self.service.renew(&convert::key(&request.namespace, &request.session_id)?, request.epoch, ttl_ms).await?;
        Ok(Response::new(pb::RenewResponse { head: Some(head.into()) }))
    }
}
