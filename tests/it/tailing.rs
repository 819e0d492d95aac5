//! Failure cases about tailing and subscription that others have lived through, by the ids of the collection they come
//! from: what is right, and the test that holds it. Those that nothing else tests are tested below.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quipu::model::Seq;
use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::rpc::pb::changes_response::Frame;
use quipu::service::Options;
use quipu::store::memory::MemoryStore;
use quipu::store::{Change, ChangePage, LogId, Position, Run, Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::follow::{Follower, following};
use crate::support::process::Process;
use crate::support::python::file;
use crate::support::{Calls, Node, all_of, batch, note, notes, refusal, run, run_long, setting};

/// Id, what is right, and where it is tested (`file::test`).
type Case = (&'static str, &'static str, &'static [&'static str]);

const CASES: [Case; 10] = [
    (
        "C74",
        "a stream never falls silent: it ends with a reason when the server goes, with an error when its source dies, and a peer that is gone is noticed by both sides in a stated time",
        &[
            "it/follow::a_shutdown_with_many_followers_ends_each_with_a_reason_and_in_time",
            "it/tailing::what_is_durable_when_the_server_goes_is_sent_or_the_end_says_where_to_go_on_c74",
            "it/tailing::a_server_that_hangs_is_noticed_by_its_reader_who_goes_on_without_a_gap_c74",
            "it/tailing::a_reader_that_cannot_be_reached_is_noticed_by_the_server_c74",
            "it/tailing::a_source_that_panics_ends_its_stream_with_an_error_c74",
            "it/follow::too_many_followers_are_refused_and_heartbeats_carry_the_head",
        ],
    ),
    (
        "C76",
        "a start at the end waits for the next event, one beyond it is refused; the server remembers no cursor",
        &["it/follow::a_start_at_the_end_gives_the_next_event_and_one_beyond_it_is_refused"],
    ),
    (
        "C77",
        "from_seq is included, whatever came before, also after a restart",
        &[
            "it/follow::a_start_at_the_end_gives_the_next_event_and_one_beyond_it_is_refused",
            "it/follow::a_follower_gets_history_and_then_every_event_once",
        ],
    ),
    (
        "C78",
        "history goes over into live by seq: one more at every step, whatever runs beside it",
        &[
            "it/tailing::a_slow_reader_of_a_long_log_misses_nothing_while_everything_runs_beside_it_c78",
            "it/follow::a_slow_follower_is_moved_back_to_the_store_and_misses_nothing",
            "it/crowd::many_writers_and_followers_that_come_and_go_see_every_log_exactly",
        ],
    ),
    (
        "C80",
        "a reader whose past is not kept is told so, and starts with the state of all sessions; a log never loses its start in silence",
        &[
            "it/tailing::a_position_that_is_not_kept_any_more_starts_with_the_states_c80",
            "it/tailing::a_log_whose_start_is_gone_ends_with_an_error_and_never_begins_later_c80",
        ],
    ),
    (
        "C82",
        "the position is the one that was asked for until an event moves it, however often the stream is cut",
        &["it/follow::a_start_at_the_end_gives_the_next_event_and_one_beyond_it_is_refused"],
    ),
    (
        "C84",
        "the feed is the union of all logs in the order of the commits; a refused append leaves no hole",
        &["it/feed::the_feed_is_the_union_of_all_logs_in_commit_order"],
    ),
    (
        "C86",
        "a reader that takes nothing costs a bounded place, delays nobody, and is served from the store afterwards",
        &[
            "it/follow::a_slow_follower_is_moved_back_to_the_store_and_misses_nothing",
            "it/crowd::a_crowd_with_stuck_readers_costs_the_server_a_bounded_memory",
        ],
    ),
    (
        "C87",
        "the next page starts where the last one says that it ended, for any limit",
        &["it/tailing::pages_of_any_size_over_logs_forks_imports_and_the_feed_repeat_nothing_c87"],
    ),
    (
        "C88",
        "a session that was replaced ends its followers and refuses those who come back",
        &["it/follow::deletion_and_a_new_session_of_the_name_end_the_stream"],
    ),
];

#[test]
fn every_case_about_tailing_has_a_rule_and_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (id, right, tests) in CASES {
        assert!(!right.is_empty() && !tests.is_empty(), "{id} says nothing");
        for test in tests {
            let (file, name) = test.split_once("::").unwrap();
            let text = std::fs::read_to_string(root.join(file).with_extension("rs")).unwrap();
            assert!(text.contains(&format!("fn {name}(")), "{id}: there is no test {test}");
        }
        println!("{id}: {right}");
    }
}

#[test]
fn what_is_durable_when_the_server_goes_is_sent_or_the_end_says_where_to_go_on_c74() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 900))).await.unwrap();
        let mut follower = Follower::start(&mut client, following("s", 0)).await;
        let ending = tokio::task::spawn_blocking(move || server.end());
        // The follower holds the end of the stream to the seq after its last event.
        while follower.step().await {}
        assert_eq!(follower.end, Some(pb::ReadEndReason::Draining));
        ending.await.unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        let mut rest = Follower::start(&mut client, following("s", follower.next_seq)).await;
        rest.until(900).await;
        server.end();
    });
}

/// A client that probes its connection often.
async fn watchful(address: &str) -> Client {
    let endpoint = Endpoint::new(address.to_owned()).unwrap().tcp_nodelay(true);
    let endpoint = endpoint.http2_keep_alive_interval(Duration::from_millis(500));
    Client::over(endpoint.keep_alive_timeout(Duration::from_secs(2)).connect().await.unwrap())
}

#[test]
fn a_server_that_hangs_is_noticed_by_its_reader_who_goes_on_without_a_gap_c74() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = watchful(&server.address).await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        let mut frames = client.log.read_from(following("s", 0)).await.unwrap().into_inner();
        let mut seen = 0;
        while seen < 5 {
            if let Some(pb::read_from_response::Frame::Events(events)) = frames.message().await.unwrap().unwrap().frame
            {
                seen += events.events.len() as u64;
            }
        }
        server.signal("STOP");
        let began = Instant::now();
        let ended = loop {
            match frames.message().await {
                Ok(Some(frame)) => assert!(!matches!(frame.frame, Some(pb::read_from_response::Frame::Events(_)))),
                Ok(None) => panic!("an end in peace"),
                Err(status) => break status,
            }
        };
        println!("noticed after {:?}: {ended}", began.elapsed());
        server.signal("CONT");
        let mut client = server.client().await;
        client.append(batch("s", 5, notes("b", 3))).await.unwrap();
        let mut follower = Follower::start(&mut client, following("s", seen)).await;
        follower.until(8).await;
        server.end();
    });
}

/// Passes bytes on in both directions until it is told to keep them: a network that drops every packet.
struct Network {
    address: String,
    is_cut: Arc<AtomicBool>,
}

impl Network {
    async fn to(server: &str) -> Self {
        let (target, is_cut) = (server.trim_start_matches("http://").to_owned(), Arc::new(AtomicBool::new(false)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let cut = is_cut.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&target).await.unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_in, far_out, cut.clone()));
                tokio::spawn(pass(far_in, near_out, cut.clone()));
            }
        });
        Self { address, is_cut }
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    is_cut: Arc<AtomicBool>,
) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if is_cut.load(Ordering::Relaxed) {
            // Both sides keep a connection that looks healthy.
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

#[test]
fn a_reader_that_cannot_be_reached_is_noticed_by_the_server_c74() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--keepalive", "1s", "--followers-max", "1"]);
        let network = Network::to(&server.address).await;
        let mut client = server.client().await;
        client.make("s").await;
        let mut far = Client::connect(&network.address).await.unwrap();
        let mut lost = Follower::start(&mut far, following("s", 0)).await;
        lost.live().await;
        assert_eq!(client.log.read_from(following("s", 0)).await.unwrap_err().code(), Code::ResourceExhausted);
        network.is_cut.store(true, Ordering::Relaxed);
        let began = Instant::now();
        // Its place comes back once the probe was not answered.
        let mut follower = loop {
            match client.log.read_from(following("s", 0)).await {
                Ok(frames) => break frames.into_inner(),
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        println!("noticed after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert!(follower.message().await.unwrap().is_some());
        drop(follower);
        server.end();
    });
}

/// An engine with planned defects: reads that panic, and a feed whose past is not kept.
struct Defective {
    inner: Arc<dyn Store>,
    panics: AtomicBool,
    first_kept: Position,
}

impl Defective {
    fn over(inner: Arc<dyn Store>, first_kept: u64) -> Arc<Self> {
        Arc::new(Self { inner, panics: AtomicBool::new(false), first_kept: Position(first_kept) })
    }
}

impl Store for Defective {
    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        self.inner.commit(changes, time_ms)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        assert!(!self.panics.load(Ordering::Relaxed), "a planned panic");
        self.inner.read(log, from, bytes_max)
    }

    fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError> {
        assert!(!self.panics.load(Ordering::Relaxed), "a planned panic");
        let page = self.inner.changes(from.max(self.first_kept), bytes_max)?;
        Ok(ChangePage { first_kept: self.first_kept, ..page })
    }

    pass_on_all_but_changes!();
}

#[test]
fn a_source_that_panics_ends_its_stream_with_an_error_c74() {
    run(async {
        let store = Defective::over(Arc::new(MemoryStore::new()), 1);
        let node = Node::over(store.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        let changes = pb::ChangesRequest { from_position: 1, follow: true, ..Default::default() };
        let mut feed = client.feed.changes(changes).await.unwrap().into_inner();
        let start = feed.message().await.unwrap().unwrap();
        assert!(matches!(start.frame, Some(Frame::Start(_))));
        store.panics.store(true, Ordering::Relaxed);
        client.append(batch("s", 5, notes("b", 1))).await.unwrap();
        let watch = pb::WatchRequest { session_id: "s".to_owned(), from_seq: Some(0), ..Default::default() };
        // The feed may have had its first changes in hand; what comes behind them it cannot have.
        let ends = [
            end_of(client.log.read_from(following("s", 0)).await).await,
            end_of(client.log.read_from(all_of("s")).await).await,
            end_of(client.log.watch(watch).await).await,
            end_of(Ok(tonic::Response::new(feed))).await,
        ];
        for status in ends {
            assert_eq!((status.code(), refusal(status).reason.as_str()), (Code::Internal, "INTERNAL"));
        }
        // The defect was of the source; the node serves.
        store.panics.store(false, Ordering::Relaxed);
        let mut follower = Follower::start(&mut client, following("s", 0)).await;
        follower.until(6).await;
    });
}

/// The error that a stream ends with.
async fn end_of<T>(answer: Result<tonic::Response<tonic::Streaming<T>>, tonic::Status>) -> tonic::Status {
    let mut frames = match answer {
        Ok(frames) => frames.into_inner(),
        Err(status) => return status,
    };
    loop {
        match frames.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an end in peace"),
            Err(status) => return status,
        }
    }
}

/// Long form: QUIPU_FOLLOW_EVENTS=200000.
#[test]
fn a_slow_reader_of_a_long_log_misses_nothing_while_everything_runs_beside_it_c78() {
    run_long(async {
        let events = setting("QUIPU_FOLLOW_EVENTS", 6_000);
        let dir = tempfile::tempdir().unwrap();
        let args = ["--segment-bytes", "24MiB", "--checkpoint-interval", "50ms", "--follow-budget-bytes", "256KiB"];
        let server = Process::start(dir.path(), &args);
        let mut client = server.client().await;
        client.make("s").await;
        let data = |seq: u64| note(format!("\"{seq} {}\"", "x".repeat(2_000)));
        let history = events / 2;
        for first in (0..history).step_by(500) {
            let until = (first + 500).min(history);
            client.append(batch("s", first, (first..until).map(data).collect())).await.unwrap();
        }
        let mut follower = Follower::start(&mut client, following("s", 0)).await;
        let mut writer = server.client().await;
        let writing = tokio::spawn(async move {
            let mut next = history;
            while next < events {
                let until = (next + 1 + next % 40).min(events);
                let level = if next.is_multiple_of(3) { pb::AckLevel::Accepted } else { pb::AckLevel::Durable };
                let append = batch("s", next, (next..until).map(data).collect());
                writer.append(pb::AppendRequest { ack_level: Some(level.into()), ..append }).await.unwrap();
                next = until;
                if next.is_multiple_of(7) {
                    writer.flush("s").await.unwrap();
                }
            }
            writer.flush("s").await.unwrap();
        });
        let mut slowly = 40;
        while follower.next_seq < events {
            assert!(follower.step().await);
            for event in follower.events.drain(..) {
                assert!(event.data.starts_with(format!("\"{} ", event.seq).as_bytes()), "seq {}", event.seq);
            }
            if slowly > 0 {
                slowly -= 1;
                // Slower than the writer, which is what the case is about.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        writing.await.unwrap();
        println!("{events} events, {} times live, {} times behind", follower.caught_up, follower.fell_behind);
        server.end();
    });
}

/// The sessions that a reader of the feed is told of, and the positions of the changes behind them.
async fn told(client: &mut Client, from_position: u64) -> (pb::ChangesStart, Vec<String>, Vec<u64>) {
    let request = pb::ChangesRequest { from_position, ..Default::default() };
    let mut frames = client.feed.changes(request).await.unwrap().into_inner();
    let (mut start, mut states, mut positions) = (pb::ChangesStart::default(), Vec::new(), Vec::new());
    while let Some(frame) = frames.message().await.unwrap() {
        match frame.frame.unwrap() {
            Frame::Start(found) => start = found,
            Frame::States(found) => {
                assert!(positions.is_empty(), "states come first");
                states.extend(found.sessions.into_iter().map(|s| s.session.unwrap().header.unwrap().id));
            }
            Frame::StatesEnd(end) => assert_eq!(end.position, start.position),
            Frame::Changes(changes) => positions.extend(changes.changes.into_iter().map(|change| change.position)),
            _ => {}
        }
    }
    (start, states, positions)
}

#[test]
fn a_position_that_is_not_kept_any_more_starts_with_the_states_c80() {
    run(async {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let node = Node::over(memory.clone(), Options::default()).await;
        let mut client = node.client().await;
        for id in ["a", "b", "c"] {
            client.make(id).await;
            client.append(batch(id, 0, notes(id, 2))).await.unwrap();
        }
        drop((client, node));
        // The first four changes are not kept any more.
        let node = Node::over(Defective::over(memory, 5), Options::default()).await;
        let mut client = node.client().await;
        for gone in [0, 1, 4] {
            let (start, states, positions) = told(&mut client, gone).await;
            assert_eq!((start.first_kept, start.position), (5, 6));
            assert_eq!((states, positions), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], vec![]), "{gone}");
        }
        // What is kept is told as changes, without a word about states.
        for (kept, expected) in [(5, vec![5, 6]), (6, vec![6]), (7, vec![])] {
            let (_, states, positions) = told(&mut client, kept).await;
            assert_eq!((states.len(), positions), (0, expected));
        }
    });
}

/// No log of ours loses its start while it is there; a store that lost it says so.
#[test]
fn a_log_whose_start_is_gone_ends_with_an_error_and_never_begins_later_c80() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        client.make("s").await;
        for first in 0..20 {
            client
                .append(batch("s", first, vec![note(format!("\"needle{first} {}\"", "x".repeat(50)))]))
                .await
                .unwrap();
        }
        server.end();
        damage(dir.path(), b"needle3 ");
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        for from in [0, 3] {
            let mut seen = Vec::new();
            let attempt = client.log.read_from(following("s", from)).await;
            let status = match attempt {
                Err(status) => status,
                Ok(frames) => {
                    let mut frames = frames.into_inner();
                    loop {
                        match frames.message().await {
                            Ok(Some(frame)) => {
                                if let Some(pb::read_from_response::Frame::Events(events)) = frame.frame {
                                    seen.extend(events.events.into_iter().map(|event| event.seq));
                                }
                            }
                            Ok(None) => panic!("an end in peace"),
                            Err(status) => break status,
                        }
                    }
                }
            };
            let refusal = refusal(status);
            assert_eq!((refusal.code, refusal.reason.as_str()), (Code::DataLoss, "CORRUPT_RANGE"));
            assert_eq!(refusal.corrupt().good_next_seq, 3);
            assert!(seen.iter().copied().eq(from..3), "{seen:?}");
        }
        server.end();
    });
}

/// Turns a bit where some text stands in the journal.
fn damage(dir: &Path, text: &[u8]) {
    for entry in std::fs::read_dir(dir.join("journal")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            return;
        }
    }
    panic!("not found");
}

#[test]
fn pages_of_any_size_over_logs_forks_imports_and_the_feed_repeat_nothing_c87() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        client.make("s").await;
        for (first, next) in [(0, 1), (1, 5), (5, 14), (14, 23)] {
            let data = |n: u64| note(format!("\"{}\"", "x".repeat((n * 37 % 500) as usize)));
            client.append(batch("s", first, (first..next).map(data).collect())).await.unwrap();
        }
        let fork = pb::ForkRequest {
            session_id: "s".to_owned(),
            child_id: Some("child".to_owned()),
            boundary: Some(pb::Boundary::Inclusive.into()),
            boundary_seq: Some(11),
            ..Default::default()
        };
        client.forks.fork(fork).await.unwrap();
        client.append(batch("child", 13, notes("own", 9))).await.unwrap();
        let sample = file("tests/data/samples/dsh-v0-parallel-tool-calls.jsonl");
        server.json(&["import", sample.to_str().unwrap(), "--id", "sample", "--cwd", "/work"], b"");
        for id in ["s", "child", "sample"] {
            let whole = client.read(all_of(id)).await.unwrap().events();
            assert!(whole.len() > 20, "{id} has {} events", whole.len());
            for limit in [1, 2, 7] {
                let (mut pages, mut next) = (Vec::new(), 0);
                loop {
                    let page = pb::ReadFromRequest { from_seq: next, limit_events: limit, ..all_of(id) };
                    let page = client.read(page).await.unwrap();
                    next = page.end.as_ref().unwrap().next_seq;
                    pages.extend(page.events());
                    if page.reason() == pb::ReadEndReason::EndOfLog {
                        break;
                    }
                }
                assert_eq!(pages, whole, "{id} by {limit}");
            }
        }
        // The feed has no pages; whoever stops after some changes goes on behind the last one.
        let whole = told(&mut client, 1).await.2;
        for limit in [1, 2, 7] {
            let mut seen: Vec<u64> = Vec::new();
            while seen.len() < whole.len() {
                let from = seen.last().map_or(1, |last| last + 1);
                seen.extend(told(&mut client, from).await.2.into_iter().take(limit));
            }
            assert_eq!(seen, whole, "by {limit}");
        }
        server.end();
    });
}
