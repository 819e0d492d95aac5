//! `ForkService`.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::convert;
use super::feed::{Answers, Frames, feed};
use super::pb;
use super::pb::fork_service_server::ForkService;
use super::sessions::missing;
use crate::model::{Seq, SessionId};
use crate::replay::fork::ForkAt;
use crate::service::{Detaching, Error, Fork, Preset, Reason, Service};

/// The adapter.
pub(super) struct Forks {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
    /// The tasks that feed streams.
    pub(super) tasks: TaskTracker,
}

#[tonic::async_trait]
impl ForkService for Forks {
    async fn fork(&self, request: Request<pb::ForkRequest>) -> Result<Response<pb::ForkResponse>, Status> {
        let fork = fork(request.into_inner())?;
        let forked = Box::pin(self.service.fork(fork)).await?;
        Ok(Response::new(pb::ForkResponse {
            session: Some(forked.session.into()),
            boundary_seq: forked.seed_length.get().checked_sub(1),
            seed_length: forked.seed_length.get(),
            chain_at_boundary: forked.chain.0.to_vec().into(),
            already_existed: forked.already_existed,
        }))
    }

    type DetachStream = Answers<pb::DetachResponse>;

    async fn detach(&self, request: Request<pb::DetachRequest>) -> Result<Response<Self::DetachStream>, Status> {
        let request = request.into_inner();
        let key = convert::key(&request.namespace, &request.session_id)?;
        let incarnation = convert::incarnation(request.incarnation.as_deref())?;
        let detaching = self.service.detach(key, incarnation).await?;
        let stop = self.stop.clone();
        Ok(feed(&self.tasks, move |frames| run(detaching, frames, stop)))
    }
}

async fn run(
    mut detaching: Detaching,
    frames: Frames<pb::DetachResponse>,
    stop: CancellationToken,
) -> Result<(), Error> {
    while let Some(copied) = detaching.step().await? {
        let (events, events_total) = (copied.events, copied.events_total);
        frames.send(pb::DetachResponse { events, events_total, ..Default::default() }, &stop).await?;
    }
    let copied = detaching.copied();
    let head = Some(detaching.head()?.into());
    let (events, events_total) = (copied.events, copied.events_total);
    frames.send(pb::DetachResponse { events, events_total, done: true, head }, &stop).await
}

fn fork(request: pb::ForkRequest) -> Result<Fork, Error> {
    let at = boundary(request.boundary, request.boundary_seq)?;
    let preset = match (request.agent_preset, request.keep_agent_preset) {
        (None, false) => Preset::Dropped,
        (None, true) => Preset::Kept,
        (Some(name), false) => Preset::Named(name),
        (Some(_), true) => {
            let problem = "and `agent_preset` exclude each other";
            return Err(Error::field(Reason::InvalidRequest, "keep_agent_preset", problem));
        }
    };
    Ok(Fork {
        key: convert::key(&request.namespace, &request.session_id)?,
        incarnation: convert::incarnation(request.incarnation.as_deref())?,
        epoch: request.epoch,
        expected_revision: request.expected_parent_revision.map(|revision| revision.to_vec()),
        at,
        child: request.child_id.as_deref().map(SessionId::new).transpose()?,
        cwd: request.cwd,
        labels: request.labels.into_iter().collect(),
        preset,
    })
}

fn boundary(kind: Option<i32>, seq: Option<u64>) -> Result<ForkAt, Error> {
    let wanted = || -> Result<Seq, Error> { convert::seq("boundary_seq", seq.ok_or_else(|| missing("boundary_seq"))?) };
    let at = match kind.map(pb::Boundary::try_from) {
        None | Some(Ok(pb::Boundary::Head)) => ForkAt::Head,
        Some(Ok(pb::Boundary::LastTurn)) => ForkAt::LastTurn,
        Some(Ok(pb::Boundary::Inclusive)) => ForkAt::Inclusive(wanted()?),
        Some(Ok(pb::Boundary::Anchor)) => ForkAt::Anchor(wanted()?),
        Some(Ok(pb::Boundary::Unspecified) | Err(_)) => {
            let problem = "is not a boundary; leave it out for HEAD";
            return Err(Error::field(Reason::InvalidRequest, "boundary", problem));
        }
    };
    if seq.is_some() && matches!(at, ForkAt::Head | ForkAt::LastTurn) {
        let problem = "goes with INCLUSIVE and ANCHOR only";
        return Err(Error::field(Reason::InvalidRequest, "boundary_seq", problem));
    }
    Ok(at)
}
