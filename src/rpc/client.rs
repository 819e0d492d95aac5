//! A client for the CLI, the tests and the benches; other programs may use it too.

use std::task::{Context, Poll};
use std::time::Duration;

use tonic::body::Body;
use tonic::codegen::http::header::{AUTHORIZATION, HeaderValue};
use tonic::codegen::http::{Request, Response};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::convert;
use super::pb;
use super::pb::admin_service_client::AdminServiceClient;
use super::pb::face_service_client::FaceServiceClient;
use super::pb::feed_service_client::FeedServiceClient;
use super::pb::fork_service_client::ForkServiceClient;
use super::pb::log_service_client::LogServiceClient;
use super::pb::owner_service_client::OwnerServiceClient;
use super::pb::session_service_client::SessionServiceClient;
use super::pb::view_service_client::ViewServiceClient;
use crate::model::{Event, Header, NewEvent};

/// Largest message that is received: the largest event that a server can be configured for, with its envelope.
const MESSAGE_BYTES_MAX: usize = 72 << 20;

/// A connection to a server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Sessions by name.
    pub sessions: SessionServiceClient<Caller>,
    /// Events.
    pub log: LogServiceClient<Caller>,
    /// Everything that is committed.
    pub feed: FeedServiceClient<Caller>,
    /// What logs mean.
    pub views: ViewServiceClient<Caller>,
    /// Forks.
    pub forks: ForkServiceClient<Caller>,
    /// Space.
    pub admin: AdminServiceClient<Caller>,
    /// Who writes.
    pub owners: OwnerServiceClient<Caller>,
    /// Logs, balanced.
    pub faces: FaceServiceClient<Caller>,
}

/// What a client needs to be let in.
#[derive(Clone, Default)]
pub struct Access {
    /// PEM of the authorities that the server's certificate comes from; `https` needs them.
    pub ca: Option<Vec<u8>>,
    /// PEM of a certificate and of its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Sent with every call.
    pub token: Option<String>,
}

/// A channel whose calls carry a token, if there is one.
#[derive(Clone, Debug)]
pub struct Caller {
    channel: Channel,
    token: Option<HeaderValue>,
}

impl Caller {
    /// Over a channel; `None` when the token cannot stand in a header.
    pub fn new(channel: Channel, token: Option<&str>) -> Option<Self> {
        let header = |token: &str| {
            let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            header.set_sensitive(true);
            Some(header)
        };
        let token = match token {
            Some(token) => Some(header(token)?),
            None => None,
        };
        Some(Self { channel, token })
    }
}

impl tower::Service<Request<Body>> for Caller {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = tonic::transport::channel::ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        tower::Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        tower::Service::call(&mut self.channel, request)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The other end, or the way to it.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
    /// The address asks for encryption.
    #[error("https needs the certificate of the server's authority (--ca)")]
    NoAuthority,
    /// It would not arrive as it is.
    #[error("the token has characters that a header cannot carry")]
    Token,
}

impl Client {
    /// Connects to `http://host:port`.
    pub async fn connect(address: &str) -> Result<Self, Unreachable> {
        Self::connect_as(address, &Access::default()).await
    }

    /// Connects to `http://host:port` or `https://host:port`.
    pub async fn connect_as(address: &str, access: &Access) -> Result<Self, Unreachable> {
        let mut endpoint = Endpoint::new(address.to_owned())?
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .tcp_nodelay(true);
        if address.starts_with("https:") {
            let ca = access.ca.as_ref().ok_or(Unreachable::NoAuthority)?;
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
            if let Some((cert, key)) = &access.identity {
                tls = tls.identity(Identity::from_pem(cert, key));
            }
            endpoint = endpoint.tls_config(tls)?;
        }
        let caller = Caller::new(endpoint.connect().await?, access.token.as_deref());
        Ok(Self::with(caller.ok_or(Unreachable::Token)?))
    }

    /// Over a channel that is there already.
    pub fn over(channel: Channel) -> Self {
        Self::with(Caller { channel, token: None })
    }

    /// Over a channel, with a token.
    pub fn with(channel: Caller) -> Self {
        Self {
            sessions: SessionServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            log: LogServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            forks: ForkServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            admin: AdminServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            owners: OwnerServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            faces: FaceServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            feed: FeedServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            views: ViewServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX),
        }
    }
}

/// A header as CreateSession takes it.
pub fn header(id: &str, header: Header) -> pb::Header {
    convert::pb_header(id, header)
}

/// A header as a session has it; `None` when it breaks the contract of the wire.
pub fn header_of(header: pb::Header) -> Option<Header> {
    convert::header(header).ok()
}

/// An event as Append takes it.
pub fn new_event(event: NewEvent) -> pb::NewEvent {
    event.into()
}

/// An event as it came from ReadFrom; `None` when it breaks the contract of the wire.
pub fn event(event: pb::Event) -> Option<Event> {
    convert::event(0, event).ok()
}
