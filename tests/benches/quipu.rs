//! quipu's adapter for the peer load generator: unary appends, appends of many sessions over one stream, catch-up reads
//! and live tails.
use crate::RunArgs;
use crate::core::*;
use anyhow::{Result, anyhow, bail};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
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
    streams: tokio::sync::Mutex<HashMap<usize, Shared>>,
    lanes: AtomicU32,
}

type Waiting = Arc<Mutex<HashMap<u32, VecDeque<oneshot::Sender<Result<()>>>>>>;

/// One AppendStream per connection, for all sessions on it.
#[derive(Clone)]
struct Shared {
    frames: mpsc::Sender<pb::AppendStreamRequest>,
    waiting: Waiting,
}

pub async fn open(a: &RunArgs) -> Result<Quipu> {
    let mut channels = Vec::new();
    for _ in 0..a.conns {
        channels.push(Endpoint::new(format!("http://{}", a.addr))?.tcp_nodelay(true).connect().await?);
    }
    Ok(Quipu { channels, turn: AtomicUsize::new(0), streams: Default::default(), lanes: AtomicU32::new(0) })
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

struct P {
    shared: Shared,
    lane: u32,
    session: String,
    seq: u64,
}

async fn shared(channel: Channel) -> Result<Shared> {
    let (frames, receiver) = mpsc::channel(4096);
    let waiting = Waiting::default();
    let answers = LogServiceClient::new(channel).append_stream(ReceiverStream::new(receiver)).await?;
    let (mut answers, told) = (answers.into_inner(), waiting.clone());
    tokio::spawn(async move {
        while let Ok(Some(answer)) = answers.message().await {
            let mut told = told.lock().unwrap();
            for result in answer.results {
                let Some(lane) = told.get_mut(&result.lane) else { continue };
                for waiter in (0..result.batches).filter_map(|_| lane.pop_front()).collect::<Vec<_>>() {
                    let refusal = result.refusal.as_ref().map(|refusal| anyhow!("{}", refusal.message));
                    let _ = waiter.send(refusal.map_or(Ok(()), Err));
                }
            }
        }
        told.lock().unwrap().clear();
    });
    Ok(Shared { frames, waiting })
}

#[async_trait]
impl Pipe for P {
    async fn submit(&mut self, batch: &[Bytes]) -> Result<BoxFuture<'static, Result<()>>> {
        let (told, waiter) = oneshot::channel();
        self.shared.waiting.lock().unwrap().entry(self.lane).or_default().push_back(told);
        let frame = pb::AppendStreamRequest {
            lane: self.lane,
            // Only the first frame of a lane names its session.
            session_id: std::mem::take(&mut self.session),
            first_seq: Some(self.seq),
            events: batch.iter().map(event).collect(),
            ..Default::default()
        };
        self.seq += batch.len() as u64;
        self.shared.frames.send(frame).await.map_err(|_| anyhow!("the stream ended"))?;
        Ok(Box::pin(async move { waiter.await.map_err(|_| anyhow!("the stream ended"))? }))
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
    async fn pipe(&self, session: &str, _for_tail: bool) -> Result<Option<Box<dyn Pipe>>> {
        let at = self.turn.fetch_add(1, Relaxed) % self.channels.len();
        let mut streams = self.streams.lock().await;
        if !streams.contains_key(&at) {
            streams.insert(at, shared(self.channels[at].clone()).await?);
        }
        let (shared, lane) = (streams[&at].clone(), self.lanes.fetch_add(1, Relaxed));
        Ok(Some(Box::new(P { shared, lane, session: session.into(), seq: 0 })))
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
                Some(_) | None => {}
            }
        }
        Ok((events, bytes))
    }
    async fn subscribe(&self, session: &str) -> Result<Option<BoxStream<'static, Result<Bytes>>>> {
        use futures::StreamExt;
        let request = pb::ReadFromRequest { session_id: session.into(), follow: true, ..Default::default() };
        let frames = self.log().read_from(request).await?.into_inner();
        let payloads = frames.flat_map(|frame| {
            futures::stream::iter(match frame.map(|frame| frame.frame) {
                // The payload stands between two quotation marks.
                Ok(Some(Frame::Events(events))) => {
                    events.events.into_iter().map(|event| Ok(event.data.slice(1..event.data.len() - 1))).collect()
                }
                Ok(_) => Vec::new(),
                Err(status) => vec![Err(status.into())],
            })
        });
        Ok(Some(payloads.boxed()))
    }
}

