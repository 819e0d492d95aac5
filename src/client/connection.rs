//! The connection of a host: its calls in domain types, and the transport of its writers.
//!
//! Nothing here is tried again. Connecting is lazy, so that a host starts before its server; whoever calls meets the
//! failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tonic::transport::Endpoint;

use super::ingest::Ingest;
use super::outbox::Ack;
use super::transport::{Address, Batch, Reply, Transport};
use super::{Claim, Error, Head, Reservation, Session, SessionWriter, WriterOptions, convert};
use crate::model::{Header, Profile, SessionKey};
use crate::rpc::client as wire;
use crate::rpc::pb;
use crate::rpc::pb::prepare_response::Frame;

/// A connection to a server, shared by all its clones and by the writers and readers that it makes.
#[derive(Clone, Debug)]
pub struct Client {
    wire: Arc<Wire>,
    timeout: Duration,
}

/// What clones share.
#[derive(Debug)]
struct Wire {
    stubs: wire::Client,
    lanes: AtomicU32,
    /// Absent: appends are unary.
    ingest: Option<Arc<Ingest>>,
}

impl Client {
    /// To `http://host:port`. Connects when something is called, and again after the connection broke.
    pub fn new(address: &str) -> Result<Self, Error> {
        let wrong = |error: tonic::transport::Error| Error::contract(&format!("the address `{address}`: {error}"));
        let endpoint = Endpoint::new(address.to_owned()).map_err(wrong)?;
        let channel = endpoint
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .tcp_nodelay(true)
            .connect_lazy();
        Ok(Self::over(wire::Client::over(channel), Some(Arc::default())))
    }

    fn over(stubs: wire::Client, ingest: Option<Arc<Ingest>>) -> Self {
        let wire = Arc::new(Wire { stubs, lanes: AtomicU32::new(0), ingest });
        Self { wire, timeout: Duration::from_secs(30) }
    }

    /// The same connection, with appends as unary calls: one batch of a writer at a time. Without this the writers of a
    /// connection share one stream of appends, and use unary calls while it cannot be had.
    #[must_use]
    pub fn without_streams(self) -> Self {
        Self { timeout: self.timeout, ..Self::over(self.stubs(), None) }
    }

    /// The same connection with another longest wait for the answer of a call; writers have their own.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The calls as the wire has them, over the same connection.
    pub fn stubs(&self) -> wire::Client {
        self.wire.stubs.clone()
    }

    /// Creates a session with an empty log, or confirms that it is there with the same header and profile. A header
    /// that says when it was created can be repeated; otherwise the server's clock decides.
    pub async fn create(&self, key: &SessionKey, header: Header, profile: Profile) -> Result<Session, Error> {
        let is_dated = header.created_at_ms != 0;
        let header = wire::header(key.id.as_str(), header);
        let created_at_ms = header.created_at_ms.filter(|_| is_dated);
        let request = pb::CreateSessionRequest {
            namespace: key.namespace.as_str().to_owned(),
            header: Some(pb::Header { created_at_ms, ..header }),
            profile: Some(pb::Profile::from(profile).into()),
            claim: None,
        };
        let mut sessions = self.stubs().sessions;
        let answer = within(self.timeout, sessions.create_session(request)).await?;
        convert::some_session(answer.session)
    }

    /// A session as it is now.
    pub async fn get(&self, key: &SessionKey) -> Result<Session, Error> {
        let (namespace, session_id) = names(key);
        let request = pb::GetSessionRequest { namespace, session_id };
        let mut sessions = self.stubs().sessions;
        convert::some_session(within(self.timeout, sessions.get_session(request)).await?.session)
    }

    /// Closes what was left open and reserves the session under a new epoch (design, section 5). Repeated after a
    /// failure with the same holder it gives a newer epoch.
    pub async fn prepare(&self, key: &SessionKey, claim: Claim) -> Result<Reservation, Error> {
        let (namespace, session_id) = names(key);
        let request = pb::PrepareRequest {
            namespace,
            session_id,
            holder: claim.holder,
            ttl_ms: claim.ttl.map(|ttl| ttl.as_millis() as u64),
            take_over: claim.take_over.map(|reason| pb::TakeOverClaim { reason }),
            ..Default::default()
        };
        let mut owners = self.stubs().owners;
        let start = within(self.timeout, async {
            let mut frames = owners.prepare(request).await?;
            Ok(tonic::Response::new(frames.get_mut().message().await?))
        });
        match start.await?.and_then(|response| response.frame) {
            Some(Frame::Start(start)) => Ok(Reservation {
                session: convert::some_session(start.session)?,
                epoch: start.epoch,
                repaired: start.repaired,
            }),
            _ => Err(Error::contract("a reservation without its start")),
        }
    }

    /// Makes the holder of a reservation the owner, durably. Again is OK.
    pub async fn publish(&self, key: &SessionKey, epoch: u64) -> Result<Head, Error> {
        let (namespace, session_id) = names(key);
        let request = pb::PublishRequest { namespace, session_id, epoch };
        let mut owners = self.stubs().owners;
        convert::some_head(within(self.timeout, owners.publish(request)).await?.head)
    }

    /// Gives the session back, durably. Again is OK.
    pub async fn release(&self, key: &SessionKey, epoch: u64) -> Result<Head, Error> {
        let (namespace, session_id) = names(key);
        let request = pb::ReleaseRequest { namespace, session_id, epoch };
        let mut owners = self.stubs().owners;
        convert::some_head(within(self.timeout, owners.release(request)).await?.head)
    }

    /// Writes a session on from where it stands: after [`prepare`](Self::prepare) and [`publish`](Self::publish), with
    /// the epoch in the options, or as nobody.
    pub fn writer(&self, session: &Session, options: WriterOptions) -> SessionWriter {
        let address = Address {
            key: session.key.clone(),
            incarnation: session.head.incarnation,
            epoch: options.epoch,
            timeout: options.timeout,
            lane: self.wire.lanes.fetch_add(1, Ordering::Relaxed),
        };
        SessionWriter::start(self.wire.clone(), (address, &session.head), options)
    }
}

/// Namespace and id as the wire has them.
pub(super) fn names(key: &SessionKey) -> (String, String) {
    (key.namespace.as_str().to_owned(), key.id.as_str().to_owned())
}

/// One call, with a longest wait for its answer.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    let answer = tokio::time::timeout(limit, call).await.map_err(|_| Error::timeout(limit))?;
    Ok(answer?.into_inner())
}

impl Transport for Wire {
    fn pipelines(&self) -> bool {
        self.ingest.as_ref().is_some_and(|ingest| ingest.is_open())
    }

    fn append(&self, address: &Address, batch: Batch) -> Reply<Ack> {
        let (stubs, ingest, address) = (self.stubs.clone(), self.ingest.clone(), address.clone());
        Box::pin(async move {
            if let Some(ingest) = ingest
                && let Some(open) = Box::pin(ingest.stream(&stubs, address.timeout)).await
            {
                return ingest.append(open, address, batch).await;
            }
            unary(stubs, address, batch).await
        })
    }

    fn flush(&self, address: &Address) -> Reply<Head> {
        let (namespace, session_id) = names(&address.key);
        let request = pb::FlushRequest { namespace, session_id, epoch: address.epoch };
        let (mut log, timeout) = (self.stubs.log.clone(), address.timeout);
        Box::pin(async move { convert::some_head(within(timeout, log.flush(request)).await?.head) })
    }

    fn renew(&self, address: &Address) -> Reply<Head> {
        let (namespace, session_id) = names(&address.key);
        let epoch = address.epoch.unwrap_or_default();
        let request = pb::RenewRequest { namespace, session_id, epoch, ttl_ms: None };
        let (mut owners, timeout) = (self.stubs.owners.clone(), address.timeout);
        Box::pin(async move { convert::some_head(within(timeout, owners.renew(request)).await?.head) })
    }
}

/// An append as a call of its own.
async fn unary(mut stubs: wire::Client, address: Address, batch: Batch) -> Result<Ack, Error> {
    let (namespace, session_id) = names(&address.key);
    let request = pb::AppendRequest {
        namespace,
        session_id,
        first_seq: Some(batch.first),
        events: batch.events.into_iter().map(wire::new_event).collect(),
        ack_level: Some(pb::AckLevel::from(batch.level).into()),
        strict: false,
        incarnation: Some(address.incarnation.0.to_vec().into()),
        epoch: address.epoch,
    };
    convert::ack(within(address.timeout, stubs.log.append(request)).await?)
}
