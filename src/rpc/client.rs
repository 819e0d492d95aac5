//! A client for the CLI, the tests and the benches; other programs may use it too.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

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
    pub sessions: SessionServiceClient<Channel>,
    /// Events.
    pub log: LogServiceClient<Channel>,
    /// Everything that is committed.
    pub feed: FeedServiceClient<Channel>,
    /// What logs mean.
    pub views: ViewServiceClient<Channel>,
    /// Forks.
    pub forks: ForkServiceClient<Channel>,
    /// Space.
    pub admin: AdminServiceClient<Channel>,
    /// Who writes.
    pub owners: OwnerServiceClient<Channel>,
    /// Logs, balanced.
    pub faces: FaceServiceClient<Channel>,
}

impl Client {
    /// Connects to `http://host:port`.
    pub async fn connect(address: &str) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::new(address.to_owned())?
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .tcp_nodelay(true)
            .connect()
            .await?;
        Ok(Self::over(channel))
    }

    /// Over a channel that is there already.
    pub fn over(channel: Channel) -> Self {
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
