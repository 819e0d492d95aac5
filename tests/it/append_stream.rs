//! Appends over one stream: order, refusals that stay on their lane, backpressure, and how it ends.

use std::collections::HashMap;
use std::sync::Arc;

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::fault::{FaultStore, Plan};
use quipu::store::memory::MemoryStore;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::support::gate::GateStore;
use crate::support::{Calls, Node, Random, all_of, batch, note, notes, refusal, run, stored};

/// One open call.
struct Stream {
    frames: mpsc::UnboundedSender<pb::AppendStreamRequest>,
    answers: Streaming<pb::AppendStreamResponse>,
    credit: u64,
    ready: std::collections::VecDeque<pb::AppendResult>,
}

impl Stream {
    async fn open(client: &mut Client) -> Self {
        let (frames, receiver) = mpsc::unbounded_channel();
        let mut answers = client.log.append_stream(UnboundedReceiverStream::new(receiver)).await.unwrap().into_inner();
        let first = answers.message().await.unwrap().unwrap();
        assert!(first.credit_bytes > 0 && first.results.is_empty(), "the credit comes first: {first:?}");
        Self { frames, answers, credit: first.credit_bytes, ready: std::collections::VecDeque::new() }
    }

    fn send(&self, lane: u32, id: &str, (first_seq, events): (u64, Vec<pb::NewEvent>)) {
        self.put(frame(lane, id, (first_seq, events)));
    }

    fn put(&self, frame: pb::AppendStreamRequest) {
        self.frames.send(frame).unwrap();
    }

    async fn next(&mut self) -> Result<Option<pb::AppendResult>, Status> {
        while self.ready.is_empty() {
            let Some(answer) = self.answers.message().await? else { return Ok(None) };
            assert!(!answer.results.is_empty(), "an answer says something");
            self.ready.extend(answer.results);
        }
        Ok(self.ready.pop_front())
    }

    async fn result(&mut self) -> pb::AppendResult {
        self.next().await.unwrap().expect("an answer")
    }

    /// Closes our side; everything must have been answered.
    async fn close(self) {
        let Self { frames, mut answers, ready, .. } = self;
        assert!(ready.is_empty());
        drop(frames);
        assert!(answers.message().await.unwrap().is_none());
    }
}

fn frame(lane: u32, id: &str, (first_seq, events): (u64, Vec<pb::NewEvent>)) -> pb::AppendStreamRequest {
    let (session_id, first_seq) = (id.to_owned(), Some(first_seq));
    pb::AppendStreamRequest { lane, session_id, first_seq, events, ..Default::default() }
}

fn reason(result: &pb::AppendResult) -> &'static str {
    result.refusal.as_ref().map_or("", |refusal| refusal.reason().as_str_name().trim_start_matches("ERROR_REASON_"))
}

#[test]
fn pipelined_batches_of_many_sessions_are_stored_and_answered_in_order() {
    run(async {
        const LANES: u32 = 20;
        let mut random = Random::new("QUIPU_STREAM_SEED");
        let node = Node::memory().await;
        let mut client = node.client().await;
        let mut logs: HashMap<u32, Vec<pb::NewEvent>> = HashMap::new();
        let mut sent: HashMap<u32, Vec<u64>> = HashMap::new();
        for lane in 0..LANES {
            client.make(&format!("s{lane}")).await;
        }
        let mut stream = Stream::open(&mut client).await;
        for n in 0..2000 {
            let lane = random.below(u64::from(LANES)) as u32;
            let log = logs.entry(lane).or_default();
            let events = notes(&n.to_string(), 1 + random.below(4) as usize);
            // Only the first frame of a lane names its session.
            let id = if log.is_empty() { format!("s{lane}") } else { String::new() };
            let level = if random.below(3) == 0 { pb::AckLevel::Accepted } else { pb::AckLevel::Durable };
            let frame = frame(lane, &id, (log.len() as u64, events.clone()));
            stream.put(pb::AppendStreamRequest { ack_level: Some(level.into()), ..frame });
            log.extend(events);
            sent.entry(lane).or_default().push(log.len() as u64);
        }
        let mut left = 2000;
        while left > 0 {
            let result = stream.result().await;
            assert!(result.refusal.is_none() && result.batches > 0, "{result:?}");
            left -= result.batches;
            let ends: Vec<u64> = sent.get_mut(&result.lane).unwrap().drain(..result.batches as usize).collect();
            assert_eq!(ends.last(), Some(&result.next_seq), "the oldest that were not answered");
            let is_durable = result.ack_level() == pb::AckLevel::Durable;
            assert!(!is_durable || result.durable_next_seq == result.next_seq);
        }
        stream.close().await;
        for (lane, log) in logs {
            let id = format!("s{lane}");
            client.flush(&id).await.unwrap();
            assert_eq!(client.read(all_of(&id)).await.unwrap().events(), stored(0, &log));
        }
    });
}

#[test]
fn a_refused_batch_refuses_what_follows_on_its_lane_and_nothing_else() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("a").await;
        client.make("b").await;
        let mut stream = Stream::open(&mut client).await;
        stream.send(1, "a", (0, notes("a", 2)));
        stream.send(2, "b", (0, notes("b", 1)));
        stream.send(1, "", (7, notes("gap", 1)));
        stream.send(1, "", (2, notes("would fit", 1)));
        stream.send(2, "", (1, notes("b", 1)));
        let (mut of_a, mut of_b) = (Vec::new(), 0);
        while of_a.iter().map(|result: &pb::AppendResult| result.batches).sum::<u32>() < 3 || of_b < 2 {
            let result = stream.result().await;
            if result.lane == 1 { of_a.push(result) } else { of_b += result.batches }
        }
        assert_eq!(of_a.iter().map(reason).collect::<Vec<_>>(), ["", "SEQ_GAP", "SEQ_GAP"]);
        assert_eq!(of_a[1].next_seq, 2, "where the log ends");
        let consequences: Vec<_> = of_a[1..].iter().map(|r| r.refusal.as_ref().unwrap().is_consequence).collect();
        assert_eq!(consequences, [false, true]);
        let refused = of_a[1].refusal.clone().unwrap();
        let status = Status::with_details(Code::from(refused.code), refused.message, refused.details);
        assert_eq!(refusal(status).conflict().head.unwrap().next_seq, 2, "the details of a unary call");

        // Taken up again; other kinds of refusal, each on its lane.
        stream.put(pb::AppendStreamRequest { resume: true, ..frame(1, "", (2, notes("fits", 1))) });
        assert_eq!(stream.result().await.next_seq, 3);
        let wrong = [
            (frame(3, "", (0, notes("x", 1))), "INVALID_REQUEST"),
            (frame(4, "nobody", (0, notes("x", 1))), "SESSION_NOT_FOUND"),
            (frame(2, "a", (2, notes("x", 1))), "INVALID_REQUEST"),
            (frame(5, "a", (3, vec![note("{")])), "INVALID_EVENT"),
            (frame(6, "a", (3, vec![])), "BATCH_TOO_LARGE"),
            (pb::AppendStreamRequest { first_seq: None, ..frame(7, "a", (3, notes("x", 1))) }, "INVALID_REQUEST"),
            (
                pb::AppendStreamRequest { incarnation: Some(vec![7; 16].into()), ..frame(8, "a", (3, notes("x", 1))) },
                "INCARNATION_MISMATCH",
            ),
            (pb::AppendStreamRequest { strict: true, ..frame(9, "a", (0, notes("a", 2))) }, "SEQ_CONFLICT"),
        ];
        for (frame, expected) in wrong {
            let lane = frame.lane;
            stream.put(frame);
            let result = stream.result().await;
            assert_eq!((result.lane, reason(&result)), (lane, expected), "{result:?}");
        }
        stream.send(1, "", (3, notes("still", 1)));
        assert_eq!(stream.result().await.next_seq, 4);
        stream.close().await;
        assert_eq!(client.head("a").await.next_seq, 4);
        assert_eq!(client.head("b").await.next_seq, 2);
    });
}

#[test]
fn repetitions_and_sessions_that_are_not_in_memory_go_the_long_way_in_order() {
    run(async {
        let store = Arc::new(MemoryStore::new());
        let first = Node::over(store.clone(), Options::default()).await;
        let mut client = first.client().await;
        let header = pb::Header { id: "s".to_owned(), ..Default::default() };
        let create = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
        client.sessions.create_session(create).await.unwrap();
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        drop(first);

        // Profile dsh: the log must be folded first. All behind it wait.
        let node = Node::over(store, Options::default()).await;
        let mut client = node.client().await;
        let mut stream = Stream::open(&mut client).await;
        stream.send(0, "s", (0, notes("a", 5)));
        for n in 0..10 {
            stream.send(0, "", (5 + n, notes(&n.to_string(), 1)));
        }
        stream.send(0, "", (5, notes("0", 1)));
        let first = stream.result().await;
        assert_eq!((first.deduplicated, first.batches), (true, 1));
        let mut batches = 0;
        loop {
            let result = stream.result().await;
            assert!(result.refusal.is_none(), "{result:?}");
            batches += result.batches;
            if result.deduplicated {
                break;
            }
        }
        assert_eq!(batches, 11);
        stream.close().await;
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), (0..15).collect::<Vec<_>>());
    });
}

#[test]
fn a_client_that_sends_more_than_its_credit_waits_and_loses_nothing() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let options = Options { stream_credit_bytes: 16 << 10, ..Options::default() };
        let node = Node::over(gate.clone(), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        let mut stream = Stream::open(&mut client).await;
        assert_eq!(stream.credit, 16 << 10);
        gate.shut();
        let event = note(format!("\"{}\"", "x".repeat(1000)));
        for n in 0..200 {
            stream.send(0, "s", (n, vec![event.clone()]));
        }
        gate.reached().await;
        // 1000 bytes of data and what stands around them: 12 batches are the credit, the next is not read.
        let mut others = node.client().await;
        while others.head("s").await.next_seq < 12 {
            tokio::task::yield_now().await;
        }
        for _ in 0..50 {
            assert!(others.head("s").await.next_seq <= 13, "it reads beyond the credit");
        }
        gate.open();
        let mut answered = 0;
        while answered < 200 {
            answered += stream.result().await.batches;
        }
        stream.close().await;
        assert_eq!(others.head("s").await.durable_next_seq, 200);
    });
}

#[test]
fn a_node_without_room_lets_a_stream_wait_instead_of_refusing() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let limits = quipu::model::Limits { batch_bytes_max: 4000, event_bytes_max: 4000, ..Default::default() };
        let options = Options { append_budget_bytes: 4000, limits, ..Options::default() };
        let node = Node::over(gate.clone(), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.make("t").await;
        gate.shut();
        let event = note(format!("\"{}\"", "x".repeat(1500)));
        let (mut one, mut two) = (Stream::open(&mut client).await, Stream::open(&mut client).await);
        for n in 0..20 {
            one.send(0, "s", (n, vec![event.clone()]));
        }
        gate.reached().await;
        for n in 0..20 {
            two.send(0, "t", (n, vec![event.clone()]));
        }
        gate.open();
        for stream in [&mut one, &mut two] {
            let mut answered = 0;
            while answered < 20 {
                let result = stream.result().await;
                assert!(result.refusal.is_none(), "{result:?}");
                answered += result.batches;
            }
        }
    });
}

#[test]
fn a_disk_that_fails_ends_the_stream_and_leaves_the_outcome_open() {
    run(async {
        let plan = Plan { fail_at: Some(3), failed_survives: true, ..Plan::default() };
        let node = Node::over(Arc::new(FaultStore::new(plan)), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        let mut stream = Stream::open(&mut client).await;
        stream.send(0, "s", (0, notes("a", 1)));
        assert_eq!(stream.result().await.next_seq, 1);
        stream.send(0, "", (1, notes("b", 1)));
        let refusal = refusal(stream.next().await.unwrap_err());
        assert_eq!((refusal.code, refusal.reason.as_str()), (Code::Unavailable, "SYNC_FAILED"));
    });
}

#[test]
fn a_shutdown_answers_what_was_read_and_ends_the_stream_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = crate::support::process::Process::start(dir.path(), &[]);
    run(async move {
        let mut client = server.client().await;
        client.make("s").await;
        let mut stream = Stream::open(&mut client).await;
        stream.send(0, "s", (0, notes("a", 1)));
        assert_eq!(stream.result().await.next_seq, 1);
        let ended = tokio::task::spawn_blocking(move || server.end());
        let refusal = refusal(stream.next().await.unwrap_err());
        assert_eq!((refusal.code, refusal.reason.as_str()), (Code::Unavailable, "DRAINING"));
        ended.await.unwrap();
    });
}
