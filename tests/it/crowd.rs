//! Many followers: what a crowd costs, what stuck ones cost the others, and that everybody sees the log exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::rpc::pb::read_from_response::Frame;
use quipu::service::Options;
use quipu::store::memory::MemoryStore;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::append_stream::{Stream, frame};
use crate::follow::{Follower, following};
use crate::support::cgroup::{MemoryLimit, peak, processor, resident};
use crate::support::process::Process;
use crate::support::{Calls, Node, Random, batch, note, notes, run, run_long, setting};

const MIB: u64 = 1 << 20;

/// Time of each of some appends, in order of length.
async fn appends(client: &mut Client, id: &str, (first, count): (u64, u64)) -> Vec<Duration> {
    let mut times = Vec::new();
    for seq in first..first + count {
        let began = Instant::now();
        client.append(batch(id, seq, vec![note(format!("\"{}\"", "x".repeat(512)))])).await.unwrap();
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times
}

fn share(times: &[Duration], part: f64) -> Duration {
    times[((times.len() - 1) as f64 * part) as usize]
}

/// Short form of 1,000 followers of a session of 1 GiB, 100 of them stuck: QUIPU_CROWD=1000 QUIPU_CROWD_MIB=1024.
#[test]
fn a_crowd_with_stuck_readers_costs_the_server_a_bounded_memory() {
    let (crowd, mib) = (setting("QUIPU_CROWD", 100), setting("QUIPU_CROWD_MIB", 96));
    const APPENDS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    let limit = MemoryLimit::hold(server.id(), 512 * MIB);
    run_long(async {
        let mut client = server.client().await;
        for id in ["s", "beside"] {
            client.make(id).await;
        }
        for first in (0..mib).step_by(4) {
            let event = || note(format!("\"{}\"", "x".repeat(MIB as usize - 2)));
            client.append(batch("s", first, (0..4).map(|_| event()).collect())).await.unwrap();
        }
        let history = mib.next_multiple_of(4);
        let alone = appends(&mut client, "s", (history, APPENDS)).await;
        let beside_alone = appends(&mut client, "beside", (0, APPENDS)).await;
        let next = history + APPENDS;

        // One in ten starts at the beginning and takes nothing behind the first frame.
        let mut stuck = Vec::new();
        let mut live = JoinSet::new();
        let mut shared = server.client().await;
        let arrived = Arc::new(AtomicU64::new(0));
        for n in 0..crowd {
            if n % 10 == 0 {
                let mut own = server.client().await;
                stuck.push(Follower::start(&mut own, following("s", 0)).await);
                continue;
            }
            if n % 100 == 1 {
                shared = server.client().await;
            }
            let (mut client, arrived) = (shared.clone(), arrived.clone());
            live.spawn(async move {
                let mut follower = Follower::start(&mut client, following("s", next)).await;
                follower.live().await;
                arrived.fetch_add(1, Ordering::Relaxed);
                follower.until(next + APPENDS).await;
                assert_eq!(follower.events.len() as u64, APPENDS);
            });
        }
        while arrived.load(Ordering::Relaxed) < crowd - stuck.len() as u64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = resident(server.id());
        let crowded = appends(&mut client, "s", (next, APPENDS)).await;
        let beside = appends(&mut client, "beside", (APPENDS, APPENDS)).await;
        while let Some(done) = live.join_next().await {
            done.unwrap();
        }
        let (after, peak) = (resident(server.id()), peak(server.id()));
        for (what, times) in
            [("alone", alone), ("in the crowd", crowded), ("beside, alone", beside_alone), ("beside the crowd", beside)]
        {
            println!("append {what}: p50 {:?}, p99 {:?}", share(&times, 0.5), share(&times, 0.99));
        }
        println!(
            "{crowd} followers, {} stuck, {mib} MiB: {} MiB before the appends, {} after, {} at most; limit {:?}",
            stuck.len(),
            before / MIB,
            after / MIB,
            peak / MIB,
            limit.as_ref().map(MemoryLimit::times_full),
        );
        assert!(after < before + 48 * MIB, "it grew by {} MiB", (after - before) / MIB);
        assert!(peak < 512 * MIB, "{} MiB", peak / MIB);
        // A stuck one that reads again has missed nothing.
        let mut late = stuck.pop().unwrap();
        while late.next_seq < next + APPENDS {
            assert!(late.step().await);
            late.events.clear();
        }
        drop((late, stuck));
        server.end();
    });
}

/// Short form of 10,000 idle followers on 10,000 sessions: QUIPU_IDLE_FOLLOWERS=10000.
#[test]
fn an_idle_follower_on_a_session_of_its_own_costs_a_few_kilobytes() {
    let count = setting("QUIPU_IDLE_FOLLOWERS", 500);
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &["--idle-sessions-max", "100000"]);
    run_long(async {
        let mut client = server.client().await;
        let mut making = JoinSet::new();
        for part in 0..16 {
            let mut client = client.clone();
            making.spawn(async move {
                for n in (part..count).step_by(16) {
                    client.make(&format!("s{n}")).await;
                }
            });
        }
        making.join_all().await;
        // Like the sessions of a list that nobody follows.
        client.append(batch("s0", 0, notes("a", 1))).await.unwrap();
        let before = resident(server.id());
        let mut followers = Vec::new();
        for n in 0..count {
            if n % 500 == 0 {
                client = server.client().await;
            }
            let mut follower = Follower::start(&mut client, following(&format!("s{n}"), 0)).await;
            follower.live().await;
            followers.push(follower);
        }
        let (after, began, spent) = (resident(server.id()), Instant::now(), processor(server.id()));
        let bytes = after.saturating_sub(before) / count;
        // What they cost while nothing happens: a heartbeat in ten seconds.
        tokio::time::sleep(Duration::from_secs(if count > 1000 { 20 } else { 1 })).await;
        let share = (processor(server.id()) - spent).as_secs_f64() / began.elapsed().as_secs_f64();
        println!("{count} idle followers: {bytes} bytes each, {:.2} % of a processor", share * 100.0);
        // The figure of the release build is smaller; this holds the order of it.
        assert!(bytes < 32 << 10, "{bytes} bytes");
        client.append(batch("s1", 0, notes("a", 1))).await.unwrap();
        followers[1].until(1).await;
        drop(followers);
        server.end();
    });
}

/// What the event of a session at a seq is.
fn content(session: u64, seq: u64) -> String {
    format!("\"{session}.{seq} {}\"", "x".repeat((seq * 31 % 700) as usize))
}

/// What writers and followers know of each other.
struct Meet {
    /// Where each log ends, as far as its writer has sent it.
    ends: Vec<AtomicU64>,
    /// How far each log was heard by the one who follows all of it.
    heard: Vec<watch::Sender<u64>>,
    until: Instant,
}

/// Appends to one session until the time is over, by calls or over a stream, and gives where its log ends. Now and then
/// it waits until it was heard, so that nothing wakes the follower but what is already there.
async fn write(mut client: Client, session: u64, (meet, mut random): (Arc<Meet>, Random)) -> u64 {
    let id = format!("s{session}");
    let mut stream = if session.is_multiple_of(2) { Some(Stream::open(&mut client).await) } else { None };
    let (mut next, mut in_flight) = (0, 0);
    let mut heard = meet.heard[session as usize].subscribe();
    while Instant::now() < meet.until {
        let count = 1 + random.below(6);
        let events = (next..next + count).map(|seq| note(content(session, seq))).collect();
        let (waits, is_lazy) = (random.below(4) == 0, random.below(3) == 0);
        let level = if is_lazy && !waits { pb::AckLevel::Accepted } else { pb::AckLevel::Durable };
        if let Some(stream) = &mut stream {
            stream.put(pb::AppendStreamRequest { ack_level: Some(level.into()), ..frame(0, &id, (next, events)) });
            in_flight += 1;
            while in_flight > 8 {
                let result = stream.result().await;
                assert!(result.refusal.is_none(), "{result:?}");
                in_flight -= result.batches;
            }
        } else {
            let append = batch(&id, next, events);
            client.append(pb::AppendRequest { ack_level: Some(level.into()), ..append }).await.unwrap();
        }
        next += count;
        meet.ends[session as usize].store(next, Ordering::Relaxed);
        if waits {
            let wait = heard.wait_for(|heard| *heard >= next);
            let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
            assert!(waited.is_ok(), "a wake-up was lost: s{session} at {next}");
        }
    }
    while let Some(stream) = stream.as_mut().filter(|_| in_flight > 0) {
        in_flight -= stream.result().await.batches;
    }
    let last = pb::NewEvent { r#type: LAST.to_owned(), ..note("0") };
    client.append(batch(&id, next, vec![last])).await.unwrap();
    next + 1
}

/// The type of the last event of a log.
const LAST: &str = "last";

/// Follows one log from the beginning to its last event, with nothing that would wake it but the events.
async fn follow_to_the_end(mut client: Client, session: u64, meet: Arc<Meet>) -> Follower {
    let request = pb::ReadFromRequest { heartbeat_ms: 3_600_000, ..following(&format!("s{session}"), 0) };
    let mut follower = Follower::start(&mut client, request).await;
    while follower.events.last().is_none_or(|event| event.r#type != LAST) {
        follower.events.clear();
        assert!(follower.step().await);
        for event in &follower.events {
            assert!(event.r#type == LAST || event.data == content(session, event.seq).as_bytes());
        }
        meet.heard[session as usize].send_replace(follower.next_seq);
    }
    follower
}

/// Follows one session after the other from somewhere, for a while, until the time is over.
async fn come_and_go(mut client: Client, meet: Arc<Meet>, mut random: Random) -> (u64, u64) {
    let (mut rounds, mut seen) = (0, 0);
    let (ends, until) = (&meet.ends, meet.until);
    while Instant::now() < until {
        let session = random.below(ends.len() as u64);
        // Accepted, so that it may lie beyond what is durable.
        let end = ends[session as usize].load(Ordering::Relaxed);
        let from = if random.below(3) == 0 { end } else { random.below(end + 1) };
        let accepted = random.below(3) == 0;
        let request = pb::ReadFromRequest { accepted, heartbeat_ms: 200, ..following(&format!("s{session}"), from) };
        let Ok(frames) = client.log.read_from(request).await else { continue };
        let (mut frames, mut next, wanted) = (frames.into_inner(), from, random.below(200));
        while next < from + wanted && Instant::now() < until {
            match frames.message().await.unwrap().unwrap().frame.unwrap() {
                Frame::Events(events) => {
                    for event in events.events {
                        assert_eq!(event.seq, next, "a gap or a repetition in s{session}");
                        assert!(event.r#type == LAST || event.data == content(session, next).as_bytes());
                        next += 1;
                    }
                }
                Frame::CaughtUp(mark) => {
                    let head = mark.head.unwrap();
                    let told = if accepted { next >= head.durable_next_seq } else { true };
                    assert!(told, "caught up at {next} of {head:?}");
                }
                Frame::Heartbeat(_) if wanted > 150 => break,
                Frame::End(end) => panic!("{end:?}"),
                _ => {}
            }
        }
        rounds += 1;
        seen += next - from;
    }
    (rounds, seen)
}

/// Long form: QUIPU_HAMMER_SECONDS=600. 50 writers, 200 followers that start at random moments.
#[test]
fn many_writers_and_followers_that_come_and_go_see_every_log_exactly() {
    const WRITERS: u64 = 50;
    let seconds = setting("QUIPU_HAMMER_SECONDS", 4);
    let mut random = Random::new("QUIPU_HAMMER_SEED");
    let dir = tempfile::tempdir().unwrap();
    // So little memory that followers are moved to the store and back all the time.
    let args = ["--follow-budget-bytes", "64KiB", "--segment-bytes", "24MiB", "--checkpoint-interval", "100ms"];
    // Several loops, so that those who look and those who publish are on threads of their own.
    let server = Process::start(dir.path(), &[&args[..], &["--serving-loops", "3"]].concat());
    run_long(async {
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(server.client().await);
        }
        for n in 0..WRITERS {
            clients[0].make(&format!("s{n}")).await;
        }
        let meet = Arc::new(Meet {
            ends: (0..WRITERS).map(|_| AtomicU64::new(0)).collect(),
            heard: (0..WRITERS).map(|_| watch::Sender::new(0)).collect(),
            until: Instant::now() + Duration::from_secs(seconds),
        });
        let (mut writers, mut followers) = (JoinSet::new(), JoinSet::new());
        for n in 0..WRITERS {
            let random = Random::seeded(random.next());
            writers.spawn(write(clients[n as usize % 8].clone(), n, (meet.clone(), random)));
        }
        for n in 0..200 {
            let random = Random::seeded(random.next());
            followers.spawn(come_and_go(clients[n % 8].clone(), meet.clone(), random));
        }
        let mut whole = JoinSet::new();
        for n in 0..WRITERS {
            whole.spawn(follow_to_the_end(clients[n as usize % 8].clone(), n, meet.clone()));
        }
        let (mut rounds, mut seen, mut events, mut behind) = (0, 0, 0, 0);
        while let Some(done) = followers.join_next().await {
            let (more, events) = done.unwrap();
            (rounds, seen) = (rounds + more, seen + events);
        }
        while let Some(end) = writers.join_next().await {
            events += end.unwrap();
        }
        let mut told = 0;
        while let Some(done) =
            tokio::time::timeout(Duration::from_secs(60), whole.join_next()).await.expect("a wake-up was lost")
        {
            let follower = done.unwrap();
            (told, behind) = (told + follower.next_seq, behind + follower.fell_behind);
        }
        assert_eq!(told, events);
        println!("{seconds} s: {events} events, {rounds} followers came and saw {seen}, {behind} moves to the store");
        assert!(rounds >= 200);
        server.end();
    });
}

/// Short form of 1,000 followers that start at once at every seq of a log that grows.
#[test]
fn followers_that_start_at_every_seq_of_a_growing_log_see_it_exactly() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let mut followers = JoinSet::new();
        for seq in 0..150 {
            let mut own = client.clone();
            followers.spawn(async move { Follower::start(&mut own, following("s", seq)).await.until(200).await });
            client.append(batch("s", seq, notes(&seq.to_string(), 1))).await.unwrap();
        }
        for seq in 150..200 {
            client.append(batch("s", seq, notes("end", 1))).await.unwrap();
        }
        while let Some(done) = followers.join_next().await {
            done.unwrap();
        }
    });
}

#[test]
fn followers_their_lag_their_fallbacks_and_their_bytes_are_counted() {
    run(async {
        // Without memory for recent events, every event that a live follower gets is a fallback to the store.
        let options = Options { follow_budget_bytes: 0, ..Options::default() };
        let node = Node::over(Arc::new(MemoryStore::new()), options).await;
        let metrics = node.service.metrics().clone();
        let mut client = node.client().await;
        client.make("s").await;
        let mut follower = Follower::start(&mut client, following("s", 0)).await;
        follower.live().await;
        let changes = pb::ChangesRequest { follow: true, ..Default::default() };
        let mut feed = client.feed.changes(changes).await.unwrap().into_inner();
        client.append(batch("s", 0, notes("a", 100))).await.unwrap();
        follower.until(100).await;
        let bytes: u64 = follower.events.iter().map(|event| event.data.len() as u64).sum();
        assert_eq!((metrics.follow_events.get(), metrics.follow_bytes.get()), (100, bytes));
        assert!(metrics.follow_fallbacks.get() >= 1 && follower.fell_behind >= 1);
        while metrics.feed_changes.get() < 2 {
            feed.message().await.unwrap().unwrap();
        }
        node.service.measure();
        assert_eq!((metrics.followers.get(), metrics.follow_lag.get()), (2.0, 0.0));
        // One that takes nothing lags once its connection has no room.
        let large = || note(format!("\"{}\"", "x".repeat(1 << 20)));
        for first in 0..16 {
            client.append(batch("s", 100 + first, vec![large()])).await.unwrap();
        }
        node.service.measure();
        assert!(metrics.follow_lag.get() >= 1.0, "{}", metrics.follow_lag.get());
        follower.until(116).await;
        drop((follower, feed));
        loop {
            node.service.measure();
            if (metrics.followers.get(), metrics.follow_lag.get()) == (0.0, 0.0) {
                break;
            }
            tokio::task::yield_now().await;
        }
    });
}
