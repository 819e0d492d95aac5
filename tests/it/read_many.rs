//! Many followers on one stream: each sees its log exactly, whatever happens to the others.

use std::collections::HashMap;

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::rpc::pb::read_from_response::Frame;
use quipu::rpc::pb::read_many_request::Action;
use quipu::rpc::pb::read_many_response::Content;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::support::{Calls, Node, Random, batch, notes, run, setting};

struct Many {
    wishes: UnboundedSender<pb::ReadManyRequest>,
    frames: Streaming<pb::ReadManyResponse>,
    /// Where each reader stands.
    next: HashMap<u32, u64>,
    ended: Vec<(u32, String)>,
}

impl Many {
    async fn open(client: &mut Client) -> Self {
        let (wishes, receiver) = unbounded_channel();
        let frames = client.log.read_many(UnboundedReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { wishes, frames, next: HashMap::new(), ended: Vec::new() }
    }

    fn add(&mut self, reader: u32, id: &str, from_seq: u64) {
        self.next.insert(reader, from_seq);
        let request = pb::ReadFromRequest { session_id: id.to_owned(), from_seq, ..Default::default() };
        self.wishes.send(pb::ReadManyRequest { reader, action: Some(Action::Add(request)) }).unwrap();
    }

    fn remove(&mut self, reader: u32) {
        let action = Some(Action::Remove(pb::RemoveReader {}));
        self.wishes.send(pb::ReadManyRequest { reader, action }).unwrap();
    }

    async fn step(&mut self) -> bool {
        let Some(answer) = self.frames.message().await.unwrap() else { return false };
        match answer.content.unwrap() {
            Content::Frame(frame) => match frame.frame.unwrap() {
                Frame::Events(events) => {
                    let next = self.next.get_mut(&answer.reader).unwrap();
                    for event in events.events {
                        assert_eq!(event.seq, *next, "reader {}", answer.reader);
                        *next += 1;
                    }
                }
                Frame::End(end) => self.ended.push((answer.reader, end.reason().as_str_name().to_owned())),
                _ => {}
            },
            Content::Refusal(refusal) => self.ended.push((answer.reader, refusal.reason().as_str_name().to_owned())),
        }
        true
    }

    async fn end_of(&mut self, reader: u32) -> String {
        loop {
            if let Some(at) = self.ended.iter().position(|(number, _)| *number == reader) {
                return self.ended.remove(at).1;
            }
            assert!(self.step().await);
        }
    }
}

#[test]
fn readers_come_and_go_and_refusals_stay_with_their_reader() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        for id in ["a", "b"] {
            client.make(id).await;
            client.append(batch(id, 0, notes(id, 5))).await.unwrap();
        }
        let mut many = Many::open(&mut client).await;
        many.add(1, "a", 0);
        many.add(2, "b", 3);
        many.add(3, "nobody", 0);
        many.add(4, "a", 99);
        assert_eq!(many.end_of(3).await, "ERROR_REASON_SESSION_NOT_FOUND");
        assert_eq!(many.end_of(4).await, "ERROR_REASON_BEYOND_HEAD");
        many.wishes.send(pb::ReadManyRequest { reader: 1, action: None }).unwrap();
        assert_eq!(many.end_of(1).await, "ERROR_REASON_INVALID_REQUEST");
        while many.next[&1] < 5 || many.next[&2] < 5 {
            assert!(many.step().await);
        }
        many.remove(1);
        many.remove(77);
        assert_eq!(many.end_of(1).await, "READ_END_REASON_REMOVED");
        client.append(batch("a", 5, notes("a", 1))).await.unwrap();
        many.add(1, "a", 5);
        client.append(batch("b", 5, notes("b", 1))).await.unwrap();
        while many.next[&1] < 6 || many.next[&2] < 6 {
            assert!(many.step().await);
        }
        client.remove("b").await.unwrap();
        assert_eq!(many.end_of(2).await, "READ_END_REASON_DELETED");
        many.remove(1);
        assert_eq!(many.end_of(1).await, "READ_END_REASON_REMOVED");
        let Many { wishes, mut frames, .. } = many;
        drop(wishes);
        assert!(frames.message().await.unwrap().is_none());
    });
}

/// Long form: QUIPU_FOLLOW_CUTS=10000.
#[test]
fn streams_of_many_readers_that_are_cut_at_random_resume_without_a_gap() {
    run(async {
        const SESSIONS: u32 = 8;
        let mut random = Random::new("QUIPU_FOLLOW_SEED");
        let node = Node::memory().await;
        let mut client = node.client().await;
        let mut ends = [0_u64; SESSIONS as usize];
        let mut seen: HashMap<u32, u64> = (0..SESSIONS).map(|n| (n, 0)).collect();
        for n in 0..SESSIONS {
            client.make(&format!("s{n}")).await;
        }
        for _ in 0..setting("QUIPU_FOLLOW_CUTS", 500) / 2 {
            let mut many = Many::open(&mut client).await;
            for (reader, from) in &seen {
                many.add(*reader, &format!("s{reader}"), *from);
            }
            for _ in 0..random.below(10) {
                let at = random.below(u64::from(SESSIONS)) as usize;
                client.append(batch(&format!("s{at}"), ends[at], notes("x", 2))).await.unwrap();
                ends[at] += 2;
            }
            for _ in 0..random.below(30) {
                // Every reader gives three frames at least: start, caught up, and events if there are some.
                assert!(many.step().await);
                if many.next.iter().all(|(reader, next)| *next == ends[*reader as usize]) {
                    break;
                }
            }
            seen = many.next;
        }
        let mut many = Many::open(&mut client).await;
        for (reader, from) in &seen {
            many.add(*reader, &format!("s{reader}"), *from);
        }
        while many.next.iter().any(|(reader, next)| *next < ends[*reader as usize]) {
            assert!(many.step().await);
        }
    });
}
