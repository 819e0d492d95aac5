//! Writers that keep a ledger of what was acknowledged, and hold a server to it afterwards.

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use tonic_types::StatusExt;

use super::{Calls, Random, Read, all_of, batch};

/// What is known of one session.
struct Life {
    id: String,
    /// `CreateSession` was answered.
    is_born: bool,
    /// Which session each event was appended to: a fork has events of others.
    writers: Vec<std::sync::Arc<str>>,
    /// Sizes of the events whose append was answered.
    sizes: Vec<u32>,
    /// Sizes of the batch that was on its way.
    pending: Vec<u32>,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Alive,
    /// `DeleteSession` was sent.
    Asked,
    /// It was answered.
    Gone,
}

/// One host: appends to one session at a time, now and then deletes it or starts another.
pub struct Writer {
    name: String,
    random: Random,
    event_bytes_max: u64,
    lives: Vec<Life>,
    made: u32,
    pub appends: u64,
    pub forks: u64,
}

/// What a check found.
#[derive(Default, Debug, Clone, Copy)]
pub struct Found {
    /// Events that were acknowledged and are there.
    pub acknowledged: u64,
    /// Batches in flight that turned out stored.
    pub in_flight_stored: u64,
    /// Batches in flight that turned out absent.
    pub in_flight_absent: u64,
}

/// A session above this is left for another one.
const SESSION_BYTES: u64 = 12 << 20;

impl Writer {
    pub fn new(name: &str, seed: u64, event_bytes_max: u64) -> Self {
        let random = Random::seeded(seed);
        Self { name: name.to_owned(), random, event_bytes_max, lives: Vec::new(), made: 0, appends: 0, forks: 0 }
    }

    /// Writes until the server goes away. A refusal is a failed test: this writer is the only one in its sessions.
    pub async fn run(mut self, mut client: Client) -> Self {
        loop {
            let step = self.step(&mut client).await;
            if let Err(status) = step {
                let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
                match reason.as_deref() {
                    None => {}
                    // It says that nothing was stored.
                    Some("DRAINING") => self.lives.iter_mut().for_each(|life| life.pending.clear()),
                    Some(_) => panic!("{}: {status:?}", self.name),
                }
                return self;
            }
        }
    }

    async fn step(&mut self, client: &mut Client) -> Result<(), tonic::Status> {
        let is_usable = |life: &Life| life.end == End::Alive && life.is_born;
        let Some(at) = self.lives.iter().rposition(is_usable) else { return self.create(client).await };
        let life = &self.lives[at];
        let bytes: u64 = life.sizes.iter().map(|size| u64::from(*size)).sum();
        if bytes > SESSION_BYTES || self.random.below(60) == 0 {
            if self.random.below(3) == 0 && self.lives.iter().filter(|life| life.end == End::Alive).count() < 4 {
                return self.create(client).await;
            }
            self.lives[at].end = End::Asked;
            client.remove(&self.lives[at].id.clone()).await?;
            self.lives[at].end = End::Gone;
            return Ok(());
        }
        match self.random.below(40) {
            0 | 1 if self.lives.len() < 8 => return self.fork(client, at).await,
            2 => return self.detach(client, at).await,
            3 => return purge(client).await,
            _ => {}
        }
        let sizes = self.sizes();
        let life = &mut self.lives[at];
        life.pending.clone_from(&sizes);
        let first_seq = life.sizes.len() as u64;
        let request = batch(&life.id, first_seq, events(&life.id, first_seq, &sizes));
        if self.random.below(8) == 0 {
            let accepted = Some(pb::AckLevel::Accepted.into());
            client.append(pb::AppendRequest { ack_level: accepted, ..request }).await?;
            assert!(client.flush(&life.id.clone()).await?.durable_next_seq >= first_seq + sizes.len() as u64);
        } else {
            client.append(request).await?;
        }
        life.sizes.append(&mut life.pending);
        self.appends += 1;
        Ok(())
    }

    async fn create(&mut self, client: &mut Client) -> Result<(), tonic::Status> {
        let id = format!("{}.{}", self.name, self.made);
        self.made += 1;
        self.lives.push(Life::new(&id));
        let request = pb::CreateSessionRequest {
            header: Some(pb::Header { id, cwd: Some("/w".repeat(50)), ..Default::default() }),
            profile: Some(pb::Profile::Raw.into()),
            ..Default::default()
        };
        client.sessions.create_session(request).await?;
        self.lives.last_mut().unwrap().is_born = true;
        Ok(())
    }

    /// Forks a session at its end; the child is written to from then on.
    async fn fork(&mut self, client: &mut Client, at: usize) -> Result<(), tonic::Status> {
        let parent = &self.lives[at];
        let mut child = Life::new(&format!("{}.{}", self.name, self.made));
        self.made += 1;
        (child.writers, child.sizes) = (parent.writers.clone(), parent.sizes.clone());
        child.writers.resize(child.sizes.len(), parent.id.as_str().into());
        if parent.writers.last().is_none_or(|writer| &**writer != MARKER) || parent.sizes.len() > parent.writers.len() {
            child.writers.push(MARKER.into());
            child.sizes.push(2);
        }
        let request =
            pb::ForkRequest { session_id: parent.id.clone(), child_id: Some(child.id.clone()), ..Default::default() };
        let seed_length = parent.sizes.len() as u64;
        self.lives.push(child);
        let forked = client.forks.fork(request).await?.into_inner();
        assert_eq!(forked.seed_length, seed_length);
        self.lives.last_mut().unwrap().is_born = true;
        self.forks += 1;
        Ok(())
    }

    async fn detach(&mut self, client: &mut Client, at: usize) -> Result<(), tonic::Status> {
        let request = pb::DetachRequest { session_id: self.lives[at].id.clone(), ..Default::default() };
        let mut steps = client.forks.detach(request).await?.into_inner();
        while steps.message().await?.is_some() {}
        Ok(())
    }

    /// From one byte to the largest event, the small ones most often.
    fn sizes(&mut self) -> Vec<u32> {
        let count = [1, 1, 1, 1, 2, 5, 30, 100][self.random.below(8) as usize];
        let mut sizes: Vec<_> = (0..count)
            .map(|_| {
                let class = [100, 100, 100, 100, 100, 1000, 1000, 5000][self.random.below(8) as usize];
                1 + self.random.below(class) as u32
            })
            .collect();
        let large = match self.random.below(60) {
            0 => self.event_bytes_max,
            1 => 1 + self.random.below(self.event_bytes_max),
            2..8 => 1 + self.random.below(50_000),
            _ => return sizes,
        };
        sizes.truncate(10);
        sizes.push(large as u32);
        sizes
    }

    /// Compares a server with the ledger, and takes over what the batches in flight came to.
    pub async fn check(&mut self, client: &mut Client) -> Found {
        let mut found = Found::default();
        let mut kept = Vec::new();
        for mut life in std::mem::take(&mut self.lives) {
            let id = life.id.clone();
            match client.get(&id).await {
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::NotFound, "{id}: {status:?}");
                    assert!(!life.is_born || life.end != End::Alive, "session {id} was acknowledged and is lost");
                }
                Ok(_) => {
                    assert_ne!(life.end, End::Gone, "session {id} was deleted and is back");
                    (life.is_born, life.end) = (true, End::Alive);
                    let read = client.read(all_of(&id)).await.unwrap();
                    life.settle(&read, &mut found);
                    kept.push(life);
                }
            }
        }
        self.lives = kept;
        found
    }

    /// The sessions that are there.
    pub fn sessions(&self) -> Vec<String> {
        self.lives.iter().map(|life| life.id.clone()).collect()
    }
}

/// Stands for the marker that a fork begins with.
const MARKER: &str = "the marker";

async fn purge(client: &mut Client) -> Result<(), tonic::Status> {
    let mut steps = client.admin.purge(pb::PurgeRequest::default()).await?.into_inner();
    while steps.message().await?.is_some() {}
    Ok(())
}

impl Life {
    fn new(id: &str) -> Self {
        let (writers, sizes, pending) = (Vec::new(), Vec::new(), Vec::new());
        Self { id: id.to_owned(), is_born: false, writers, sizes, pending, end: End::Alive }
    }

    fn settle(&mut self, read: &Read, found: &mut Found) {
        let id = &self.id;
        assert!(read.refusal.is_none(), "{id}: {:?}", read.refusal);
        assert_eq!(read.reason(), pb::ReadEndReason::EndOfLog);
        let events = read.frames.iter().flatten();
        let (acknowledged, count) = (self.sizes.len(), events.clone().count());
        assert!(count >= acknowledged, "{id}: {acknowledged} events were acknowledged, {count} are there");
        found.acknowledged += acknowledged as u64;
        let pending = std::mem::take(&mut self.pending);
        if count > acknowledged {
            assert_eq!(count, acknowledged + pending.len(), "{id}: a part of a batch is there");
            found.in_flight_stored += 1;
            self.sizes.extend(pending);
        } else if !pending.is_empty() {
            found.in_flight_absent += 1;
        }
        for (seq, (event, size)) in (0..).zip(events.zip(&self.sizes)) {
            assert_eq!(event.seq, seq, "{id}");
            let writer = self.writers.get(seq as usize).map_or(id.as_str(), |writer| writer);
            let data = if writer == MARKER { b"{}".to_vec() } else { data(writer, seq, *size) };
            assert!(event.data == data, "{id}: seq {seq} came back with other bytes");
        }
    }
}

fn events(id: &str, first_seq: u64, sizes: &[u32]) -> Vec<pb::NewEvent> {
    (first_seq..).zip(sizes).map(|(seq, size)| super::note(data(id, seq, *size))).collect()
}

/// A JSON text of exactly `size` bytes that only this event has.
fn data(id: &str, seq: u64, size: u32) -> Vec<u8> {
    let salt = id.bytes().fold(seq, |salt, byte| salt.wrapping_mul(0x0100_0000_01B3) ^ u64::from(byte));
    let mut random = Random::seeded(salt);
    if size == 1 {
        return vec![b'0' + random.below(10) as u8];
    }
    let pattern: Vec<u8> = (0..16).flat_map(|_| random.next().to_le_bytes()).map(|byte| b'0' + (byte & 31)).collect();
    let mut data = Vec::with_capacity(size as usize + pattern.len());
    data.push(b'"');
    while data.len() < size as usize {
        data.extend(&pattern);
    }
    data.truncate(size as usize);
    data[size as usize - 1] = b'"';
    data
}
