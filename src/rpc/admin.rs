//! `AdminService`.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::feed::{Answers, feed};
use super::pb;
use super::pb::admin_service_server::AdminService;
use crate::model::Namespace;
use crate::service::{Aged, Error, Kept, Purged, Service};

/// The adapter.
pub(super) struct Admin {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
    /// The tasks that feed streams.
    pub(super) tasks: TaskTracker,
}

#[tonic::async_trait]
impl AdminService for Admin {
    type PurgeStream = Answers<pb::PurgeResponse>;

    async fn purge(&self, request: Request<pb::PurgeRequest>) -> Result<Response<Self::PurgeStream>, Status> {
        let request = request.into_inner();
        let namespace = Namespace::new(&request.namespace).map_err(Error::from)?;
        let mut purging = self.service.purge(namespace, request.dry_run).await?;
        let stop = self.stop.clone();
        Ok(feed(&self.tasks, move |frames| async move {
            while let Some(purged) = purging.step().await? {
                let receipts = purged.into_iter().map(Into::into).collect();
                frames.send(pb::PurgeResponse { receipts, done: false }, &stop).await?;
            }
            frames.send(pb::PurgeResponse { receipts: Vec::new(), done: true }, &stop).await
        }))
    }

    type RetainStream = Answers<pb::RetainResponse>;

    async fn retain(&self, request: Request<pb::RetainRequest>) -> Result<Response<Self::RetainStream>, Status> {
        let request = request.into_inner();
        let namespace = Namespace::new(&request.namespace).map_err(Error::from)?;
        let keep = request.keep_ms.map(Duration::from_millis);
        let mut retaining = self.service.retain(namespace, keep, !request.apply)?;
        let stop = self.stop.clone();
        Ok(feed(&self.tasks, move |frames| async move {
            while let Some(aged) = retaining.step().await? {
                let sessions = aged.into_iter().map(Into::into).collect();
                frames.send(pb::RetainResponse { sessions, done: false }, &stop).await?;
            }
            frames.send(pb::RetainResponse { sessions: Vec::new(), done: true }, &stop).await
        }))
    }

    async fn get_usage(&self, request: Request<pb::GetUsageRequest>) -> Result<Response<pb::GetUsageResponse>, Status> {
        let namespace = Namespace::new(&request.into_inner().namespace).map_err(Error::from)?;
        let usage = self.service.usage(namespace).await?;
        Ok(Response::new(pb::GetUsageResponse {
            sessions: usage.sessions,
            events: usage.events,
            shared_events: usage.shared_events,
            bytes: usage.bytes,
            deleted_sessions: usage.deleted_logs,
            deleted_bytes: usage.deleted_bytes,
            purgeable_bytes: usage.purgeable_bytes,
        }))
    }
}

impl From<Purged> for pb::PurgeReceipt {
    fn from(purged: Purged) -> Self {
        Self {
            session_id: purged.key.id.as_str().to_owned(),
            incarnation: purged.incarnation.0.to_vec().into(),
            from_seq: purged.from.get(),
            events: purged.events,
            bytes: purged.bytes,
            chain: purged.chain.0.to_vec().into(),
            shared: purged.is_shared,
        }
    }
}

impl From<Aged> for pb::AgedSession {
    fn from(aged: Aged) -> Self {
        let kept = aged.kept.map(|kept| match kept {
            Kept::OpenTurn => pb::KeptReason::OpenTurn,
            Kept::Owned => pb::KeptReason::Owned,
            Kept::Changed => pb::KeptReason::Changed,
        });
        Self { session: Some(aged.session.into()), kept: kept.map(Into::into) }
    }
}
