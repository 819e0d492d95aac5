//! Following a log: history into live by seq, without a gap, a repetition or a buffer; and how it ends.

use std::sync::Arc;

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::rpc::pb::read_from_response::Frame;
use quipu::service::Options;
use quipu::store::fault::{FaultStore, Plan};
use quipu::store::memory::MemoryStore;
use tonic::{Code, Streaming};

use crate::support::gate::GateStore;
use crate::support::process::Process;
use crate::support::{Calls, Node, Random, batch, note, notes, refused, run, run_long, setting};

pub fn following(id: &str, from_seq: u64) -> pb::ReadFromRequest {
    pb::ReadFromRequest { session_id: id.to_owned(), from_seq, follow: true, ..Default::default() }
}

/// A follower that holds every frame to the contract.
pub struct Follower {
    frames: Streaming<pb::ReadFromResponse>,
    pub next_seq: u64,
    pub events: Vec<pb::Event>,
    pub caught_up: u32,
    pub fell_behind: u32,
    pub end: Option<pb::ReadEndReason>,
}

impl Follower {
    pub async fn start(client: &mut Client, request: pb::ReadFromRequest) -> Self {
        let next_seq = request.from_seq;
        let mut frames = client.log.read_from(request).await.unwrap().into_inner();
        let first = frames.message().await.unwrap().unwrap().frame.unwrap();
        assert!(matches!(first, Frame::Start(_)), "{first:?}");
        Self { frames, next_seq, events: Vec::new(), caught_up: 0, fell_behind: 0, end: None }
    }

    /// Takes one frame; `false` at the end.
    pub async fn step(&mut self) -> bool {
        let Some(frame) = self.frames.message().await.unwrap() else {
            assert!(self.end.is_some(), "a stream without a reason for its end");
            return false;
        };
        assert!(self.end.is_none(), "a frame after the end");
        match frame.frame.unwrap() {
            Frame::Events(events) => {
                for event in events.events {
                    assert_eq!(event.seq, self.next_seq, "a gap or a repetition");
                    self.next_seq += 1;
                    self.events.push(event);
                }
            }
            Frame::CaughtUp(_) => self.caught_up += 1,
            Frame::FellBehind(_) => self.fell_behind += 1,
            Frame::Heartbeat(_) => {}
            Frame::End(end) => {
                assert_eq!(end.next_seq, self.next_seq);
                self.end = Some(end.reason());
            }
            Frame::Start(_) => panic!("start comes once"),
        }
        true
    }

    pub async fn until(&mut self, next_seq: u64) {
        while self.next_seq < next_seq {
            assert!(self.step().await, "it ended: {:?}", self.end);
        }
    }

    pub async fn live(&mut self) {
        while self.caught_up == 0 {
            assert!(self.step().await);
        }
    }

    pub async fn ended(mut self) -> pb::ReadEndReason {
        while self.step().await {}
        self.end.unwrap()
    }
}

#[test]
fn a_follower_gets_history_and_then_every_event_once() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 18))).await.unwrap();
        for from in [0, 5, 17, 18] {
            let mut follower = Follower::start(&mut client, following("s", from)).await;
            follower.live().await;
            assert_eq!(follower.next_seq, client.head("s").await.next_seq);
            let end = follower.next_seq;
            client.append(batch("s", end, notes("b", 3))).await.unwrap();
            follower.until(end + 3).await;
            assert_eq!((follower.caught_up, follower.fell_behind), (1, 0), "live means live");
        }
        // An empty log, and limits.
        client.make("empty").await;
        let mut follower = Follower::start(&mut client, following("empty", 0)).await;
        client.append(batch("empty", 0, notes("a", 1))).await.unwrap();
        follower.until(1).await;
        let limited = pb::ReadFromRequest { limit_events: 3, ..following("empty", 0) };
        let mut limited = Follower::start(&mut client, limited).await;
        client.append(batch("empty", 1, notes("a", 5))).await.unwrap();
        while limited.step().await {}
        assert_eq!((limited.next_seq, limited.end), (3, Some(pb::ReadEndReason::Limit)));
    });
}

/// cases.md C76, C77, C82: positions at and beyond the end, without dependence on what came before.
#[test]
fn a_start_at_the_end_gives_the_next_event_and_one_beyond_it_is_refused() {
    run(async {
        let store = Arc::new(MemoryStore::new());
        let mut node = Node::over(store.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 18))).await.unwrap();
        for beyond in [19, 1000, (1 << 53) - 1] {
            let attempt = client.log.read_from(following("s", beyond)).await;
            let refusal = refused(attempt, Code::OutOfRange, "BEYOND_HEAD");
            assert_eq!(refusal.conflict().head.unwrap().next_seq, 18);
        }
        let attempt = client.log.read_from(following("s", u64::MAX)).await;
        assert_eq!(refused(attempt, Code::InvalidArgument, "INVALID_REQUEST").fact("field"), "from_seq");
        // Cut before anything came, again and again, also over a restart of the server.
        for _ in 0..3 {
            Follower::start(&mut client, following("s", 18)).await.live().await;
            node = Node::over(store.clone(), Options::default()).await;
            client = node.client().await;
        }
        let mut follower = Follower::start(&mut client, following("s", 18)).await;
        client.append(batch("s", 18, notes("b", 3))).await.unwrap();
        follower.until(21).await;
        assert_eq!(follower.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [18, 19, 20]);
        drop(node);
    });
}

#[test]
fn nothing_is_told_before_it_is_durable_unless_it_was_asked_for() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let node = Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        let mut durable = Follower::start(&mut client, following("s", 0)).await;
        let eager = pb::ReadFromRequest { accepted: true, ..following("s", 0) };
        let mut eager = Follower::start(&mut client, eager).await;
        durable.live().await;
        eager.live().await;
        gate.shut();
        let mut writer = node.client().await;
        let appending = tokio::spawn(async move { writer.append(batch("s", 0, notes("a", 2))).await });
        eager.until(2).await;
        gate.reached().await;
        // The commit is under way; the other one must not hear of it.
        let heard = tokio::time::timeout(std::time::Duration::from_millis(200), durable.step()).await;
        assert!(heard.is_err(), "told before it was durable");
        gate.open();
        durable.until(2).await;
        appending.await.unwrap().unwrap();
    });
}

#[test]
fn a_failed_disk_ends_who_saw_accepted_events_and_shows_the_others_nothing() {
    run(async {
        let node =
            Node::over(Arc::new(FaultStore::new(Plan { fail_at: Some(2), ..Plan::default() })), Options::default())
                .await;
        let mut client = node.client().await;
        client.make("s").await;
        let eager = pb::ReadFromRequest { accepted: true, ..following("s", 0) };
        let eager = Follower::start(&mut client, eager).await;
        let heartbeats = pb::ReadFromRequest { heartbeat_ms: 100, ..following("s", 0) };
        let mut durable = Follower::start(&mut client, heartbeats).await;
        assert_eq!(client.append(batch("s", 0, notes("a", 1))).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(eager.ended().await, pb::ReadEndReason::Uncertain);
        for _ in 0..3 {
            assert!(durable.step().await);
        }
        assert!(durable.events.is_empty());
    });
}

/// cases.md C88: a connected follower hears that its session is gone; one that comes back is refused.
#[test]
fn deletion_and_a_new_session_of_the_name_end_the_stream() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let incarnation = client.make("s").await.head.unwrap().incarnation;
        client.append(batch("s", 0, notes("a", 4))).await.unwrap();
        let deleted = Follower::start(&mut client, following("s", 0)).await;
        client.remove("s").await.unwrap();
        assert_eq!(deleted.ended().await, pb::ReadEndReason::Deleted);
        client.make("s").await;
        let back = pb::ReadFromRequest { incarnation: Some(incarnation), ..following("s", 4) };
        refused(client.log.read_from(back).await, Code::FailedPrecondition, "INCARNATION_MISMATCH");
        refused(client.log.read_from(following("s", 4)).await, Code::OutOfRange, "BEYOND_HEAD");
    });
}

#[test]
fn deletion_is_told_when_it_is_durable() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let node = Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        let mut follower = Follower::start(&mut client, following("s", 0)).await;
        follower.live().await;
        gate.shut();
        let mut other = node.client().await;
        let removing = tokio::spawn(async move {
            other.remove("s").await.unwrap();
        });
        gate.reached().await;
        let heard = tokio::time::timeout(std::time::Duration::from_millis(200), follower.step()).await;
        assert!(heard.is_err(), "told before it was durable");
        gate.open();
        removing.await.unwrap();
        assert_eq!(follower.ended().await, pb::ReadEndReason::Deleted);
    });
}

/// cases.md C78, C86: a follower that takes nothing while much is appended is served from the store afterwards.
#[test]
fn a_slow_follower_is_moved_back_to_the_store_and_misses_nothing() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--follow-budget-bytes", "1MiB"]);
        let mut client = server.client().await;
        client.make("s").await;
        let mut others = Vec::new();
        for _ in 0..5 {
            others.push(server.client().await);
        }
        let mut slow = Follower::start(&mut client, following("s", 0)).await;
        slow.live().await;
        let fast: Vec<_> = others
            .into_iter()
            .map(|mut client| {
                tokio::spawn(async move {
                    let mut fast = Follower::start(&mut client, following("s", 0)).await;
                    fast.until(600).await;
                    fast.events.clear();
                })
            })
            .collect();
        let mut writer = server.client().await;
        let before = resident_kib(server.id());
        for n in 0..600 {
            writer.append(batch("s", n, vec![note(format!("\"{}\"", "x".repeat(100_000)))])).await.unwrap();
        }
        let grown = resident_kib(server.id()).saturating_sub(before);
        println!("60 MB were appended beside a stuck follower; the server grew by {grown} KiB");
        assert!(grown < 40 << 10, "{grown} KiB");
        for fast in fast {
            fast.await.unwrap();
        }
        slow.until(600).await;
        assert!(slow.fell_behind >= 1);
        server.end();
    });
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Long form: QUIPU_FOLLOW_CUTS=10000.
#[test]
fn a_reader_that_is_cut_at_random_and_resumes_by_seq_sees_the_log_exactly() {
    run_long(async {
        let cuts = setting("QUIPU_FOLLOW_CUTS", 500);
        let mut random = Random::new("QUIPU_FOLLOW_SEED");
        let dir = tempfile::tempdir().unwrap();
        let mut server = Process::start(dir.path(), &["--checkpoint-interval", "100ms"]);
        let mut client = server.client().await;
        client.make("s").await;
        let (mut next_seq, mut seen) = (0, 0);
        for cut in 0..cuts {
            if cut % 100 == 99 {
                server.kill();
                server = Process::start(dir.path(), &["--checkpoint-interval", "100ms"]);
                client = server.client().await;
                next_seq = client.head("s").await.next_seq;
            }
            let mut writer = server.client().await;
            let (first, count) = (next_seq, 1 + random.below(20));
            let appending = tokio::spawn(async move {
                for n in 0..count {
                    writer.append(batch("s", first + n, notes(&(first + n).to_string(), 1))).await.unwrap();
                }
            });
            next_seq += count;
            let mut follower = Follower::start(&mut client, following("s", seen)).await;
            follower.until(seen + random.below(next_seq - seen + 1)).await;
            for event in &follower.events {
                let expected = format!("{{\"n\":0,\"salt\":\"{}\"}}", event.seq);
                assert_eq!(event.data, expected.as_bytes());
            }
            seen = follower.next_seq;
            drop(follower);
            appending.await.unwrap();
        }
        println!("{cuts} cuts, {next_seq} events");
        server.end();
    });
}

/// Short form of 1,000 followers.
#[test]
fn a_shutdown_with_many_followers_ends_each_with_a_reason_and_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &["--drain-timeout", "20s"]);
    run(async move {
        let mut client = server.client().await;
        let mut followers = Vec::new();
        for n in 0..20 {
            client.make(&format!("s{n}")).await;
        }
        for n in 0..setting("QUIPU_FOLLOWERS", 200) {
            let mut client = if n % 100 == 0 { server.client().await } else { client.clone() };
            let mut follower = Follower::start(&mut client, following(&format!("s{}", n % 20), 0)).await;
            follower.live().await;
            followers.push(follower);
        }
        let began = std::time::Instant::now();
        let ending = tokio::task::spawn_blocking(move || server.end());
        for follower in followers {
            assert_eq!(follower.ended().await, pb::ReadEndReason::Draining);
        }
        ending.await.unwrap();
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    });
}

#[test]
fn too_many_followers_are_refused_and_heartbeats_carry_the_head() {
    run(async {
        let node = Node::over(Arc::new(MemoryStore::new()), Options { followers_max: 1, ..Options::default() }).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 2))).await.unwrap();
        let request = pb::ReadFromRequest { heartbeat_ms: 100, ..following("s", 2) };
        let mut frames = client.log.read_from(request).await.unwrap().into_inner();
        let refusal = client.log.read_from(following("s", 0)).await;
        assert!(refused(refusal, Code::ResourceExhausted, "READER_BUDGET").delay().is_some());
        loop {
            match frames.message().await.unwrap().unwrap().frame.unwrap() {
                Frame::Start(_) | Frame::CaughtUp(_) => {}
                Frame::Heartbeat(heartbeat) => break assert_eq!(heartbeat.head.unwrap().durable_next_seq, 2),
                other => panic!("{other:?}"),
            }
        }
        drop(frames);
        while client.log.read_from(following("s", 0)).await.is_err() {
            tokio::task::yield_now().await;
        }
        let wrong = pb::ReadFromRequest { heartbeat_ms: 99, ..following("s", 0) };
        refused(client.log.read_from(wrong).await, Code::InvalidArgument, "INVALID_REQUEST");
    });
}
