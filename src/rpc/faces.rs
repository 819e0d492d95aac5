//! `FaceService`.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::convert;
use super::feed::Answers;
use super::pb;
use super::pb::face_service_server::FaceService;
use super::pb::{inspect_response, load_response};
use super::whole::{self, Whole};
use crate::service::{Error, Reason, Repair, Service};

/// The adapter.
pub(super) struct Faces {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
    /// The tasks that feed streams.
    pub(super) tasks: TaskTracker,
}

impl whole::Frame for pb::LoadResponse {
    fn events(events: pb::EventFrame) -> Self {
        Self { frame: Some(load_response::Frame::Events(events)) }
    }

    fn end(end: pb::ReadEnd) -> Self {
        Self { frame: Some(load_response::Frame::End(end)) }
    }
}

impl whole::Frame for pb::InspectResponse {
    fn events(events: pb::EventFrame) -> Self {
        Self { frame: Some(inspect_response::Frame::Events(events)) }
    }

    fn end(end: pb::ReadEnd) -> Self {
        Self { frame: Some(inspect_response::Frame::End(end)) }
    }
}

#[tonic::async_trait]
impl FaceService for Faces {
    type LoadStream = Answers<pb::LoadResponse>;
    type InspectStream = Answers<pb::InspectResponse>;

    async fn load(&self, request: Request<pb::LoadRequest>) -> Result<Response<Self::LoadStream>, Status> {
        let request = request.into_inner();
        let key = convert::key(&request.namespace, &request.session_id)?;
        let from = convert::seq("from_seq", request.from_seq)?;
        let loaded = self.service.load(&key, convert::incarnation(request.incarnation.as_deref())?).await?;
        let whole = Whole::open(&self.service, &loaded.session, (request.with_events, from), Vec::new()).await?;
        let chain_before = whole.chain_before();
        let start = pb::LoadStart { session: Some(loaded.session.into()), repaired: loaded.repaired, chain_before };
        let start = pb::LoadResponse { frame: Some(load_response::Frame::Start(start)) };
        Ok(whole.answer(start, (&self.tasks, &self.stop)))
    }

    async fn inspect(&self, request: Request<pb::InspectRequest>) -> Result<Response<Self::InspectStream>, Status> {
        let request = request.into_inner();
        let key = convert::key(&request.namespace, &request.session_id)?;
        let from = convert::seq("from_seq", request.from_seq)?;
        let seen = self.service.inspect(&key, convert::incarnation(request.incarnation.as_deref())?).await?;
        let what = (request.with_events, from);
        let whole = Whole::open(&self.service, &seen.session, what, seen.closers.clone()).await?;
        let start = pb::InspectStart {
            session: Some(seen.session.into()),
            closers: seen.closers.into_iter().map(Into::into).collect(),
            live: seen.is_live,
            chain_before: whole.chain_before(),
        };
        let start = pb::InspectResponse { frame: Some(inspect_response::Frame::Start(start)) };
        Ok(whole.answer(start, (&self.tasks, &self.stop)))
    }

    async fn commit_repair(
        &self,
        request: Request<pb::CommitRepairRequest>,
    ) -> Result<Response<pb::CommitRepairResponse>, Status> {
        let request = request.into_inner();
        let revision = request.expected_revision.as_ref().try_into().map_err(|_| {
            let problem = format!("has {} bytes; 16 are needed", request.expected_revision.len());
            Error::field(Reason::InvalidRequest, "expected_revision", problem)
        })?;
        let closers = request.closers.into_iter().enumerate();
        let repair = Repair {
            key: convert::key(&request.namespace, &request.session_id)?,
            expected_revision: revision,
            validate_only: request.validate_only,
            epoch: request.epoch,
            closers: closers.map(|(index, event)| convert::event(index, event)).collect::<Result<_, _>>()?,
        };
        let repaired = self.service.commit_repair(&repair).await?;
        Ok(Response::new(pb::CommitRepairResponse {
            head: Some(repaired.head.into()),
            closers: repaired.closers.into_iter().map(Into::into).collect(),
            committed: repaired.committed,
        }))
    }
}
