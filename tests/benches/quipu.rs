//! quipu's adapter for the peer load generator: unary appends, catch-up reads.
use crate::RunArgs;
use crate::core::*;
use anyhow::{Result, anyhow, bail};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tonic::transport::{Channel, Endpoint};

pub mod pb {
    tonic::include_proto!("quipu.v1");
}
use pb::log_service_client::LogServiceClient;
use pb::read_from_response::Frame;
use pb::session_service_client::SessionServiceClient;

pub struct Quipu {
    channels: Vec<Channel>,
    turn: AtomicUsize,
}

pub async fn open(a: &RunArgs) -> Result<Quipu> {
    let mut channels = Vec::new();
    for _ in 0..a.conns {
        channels.push(Endpoint::new(format!("http://{}", a.addr))?.tcp_nodelay(true).connect().await?);
    }
    Ok(Quipu { channels, turn: AtomicUsize::new(0) })
}

impl Quipu {
    fn channel(&self) -> Channel {
        self.channels[self.turn.fetch_add(1, Relaxed) % self.channels.len()].clone()
    }
    fn log(&self) -> LogServiceClient<Channel> {
        LogServiceClient::new(self.channel()).max_decoding_message_size(16 << 20)
    }
    async fn make(&self, session: &str) -> Result<()> {
        let header = pb::Header { id: session.into(), ..Default::default() };
        let request = pb::CreateSessionRequest { header: Some(header), profile: Some(PROFILE.into()), ..Default::default() };
        SessionServiceClient::new(self.channel()).create_session(request).await?;
        Ok(())
    }
}

const PROFILE: pb::Profile = pb::Profile::Raw;

/// The payload is 512 printable bytes; as an event's data it is a JSON string of them.
fn event(payload: &Bytes) -> pb::NewEvent {
    let mut data = Vec::with_capacity(payload.len() + 2);
    data.push(b'"');
    data.extend_from_slice(payload);
    data.push(b'"');
    pb::NewEvent { time_ms: 1_700_000_000_000, r#type: "note".into(), data: data.into(), ..Default::default() }
}

struct W {
    client: LogServiceClient<Channel>,
    session: String,
    seq: u64,
}

#[async_trait]
impl Writer for W {
    async fn append(&mut self, batch: &[Bytes]) -> Result<()> {
        let request = pb::AppendRequest {
            session_id: self.session.clone(),
            first_seq: Some(self.seq),
            events: batch.iter().map(event).collect(),
            ..Default::default()
        };
        let answer = self.client.append(request).await?.into_inner();
        self.seq = answer.head.ok_or_else(|| anyhow!("no head"))?.next_seq;
        Ok(())
    }
}

#[async_trait]
impl Peer for Quipu {
    async fn create(&self, sessions: &[String]) -> Result<()> {
        for session in sessions {
            self.make(session).await?;
        }
        Ok(())
    }
    async fn writer(&self, session: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(W { client: self.log(), session: session.into(), seq: 0 }))
    }
    async fn pipe(&self, _session: &str, _for_tail: bool) -> Result<Option<Box<dyn Pipe>>> {
        Ok(None)
    }
    async fn read_all(&self, session: &str, n: u64) -> Result<(u64, u64)> {
        let request = pb::ReadFromRequest { session_id: session.into(), limit_events: n, ..Default::default() };
        let mut frames = self.log().read_from(request).await?.into_inner();
        let (mut events, mut bytes) = (0, 0);
        while let Some(message) = frames.message().await? {
            match message.frame {
                Some(Frame::Events(frame)) => {
                    for event in frame.events {
                        if event.seq != events {
                            bail!("seq {} where {events} was due", event.seq);
                        }
                        events += 1;
                        bytes += event.data.len() as u64 - 2;
                    }
                }
                Some(Frame::Start(_) | Frame::End(_)) | None => {}
            }
        }
        Ok((events, bytes))
    }
    async fn subscribe(&self, _session: &str) -> Result<Option<BoxStream<'static, Result<Bytes>>>> {
        Ok(None)
    }
}

