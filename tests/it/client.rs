//! The client library, against real servers: nothing lost, nothing twice, whatever happens on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quipu::client::{AckLevel, Client, Pauses, SessionWriter, WriterOptions, WriterStats};
use quipu::model::{Header, NewEvent, Profile, SessionKey};
use quipu::rpc::pb;
use tokio::task::JoinSet;

use crate::support::lossy::Lossy;
use crate::support::process::Process;
use crate::support::{Calls, Random, all_of, run_long, setting, stored};

const SMALL: [&str; 6] = ["--segment-bytes", "24MiB", "--spare-segments", "1", "--reserve-bytes", "0"];

fn key(id: &str) -> SessionKey {
    SessionKey::new("", id).unwrap()
}

fn note(text: impl std::fmt::Display) -> NewEvent {
    NewEvent {
        time_ms: 1_700_000_000_000,
        kind: "note".into(),
        data: format!("{{\"n\":\"{text}\"}}").into_bytes().into(),
        ignorable: false,
        surface_op: None,
        source_event_seqs: None,
    }
}

/// Each append of its own, so that each has an answer that can be lost.
fn one_by_one(level: AckLevel) -> WriterOptions {
    let pauses = Pauses { first: Duration::from_millis(2), longest: Duration::from_millis(500) };
    WriterOptions { batch_events_max: 1, level, pauses, timeout: Duration::from_secs(10), ..WriterOptions::default() }
}

/// What the log of a session must be.
fn intent(id: &str, count: u64) -> Vec<pb::NewEvent> {
    (0..count).map(|n| quipu::rpc::client::new_event(note(format!("{id} {n}")))).collect()
}

/// Writes the intent of a session, with a checkpoint now and then.
async fn write(writer: Arc<SessionWriter>, id: String, count: u64, mut random: Random) {
    for n in 0..count {
        let seq = writer.append(note(format!("{id} {n}"))).await.unwrap();
        assert_eq!(seq.get(), n, "the place of an event is known at once");
        if random.below(50) == 0 {
            assert!(writer.checkpoint().await.unwrap().get() > n);
        }
    }
    writer.checkpoint().await.unwrap();
}

/// A server that is killed, and a proxy before it that loses a tenth of the answers.
struct Weather {
    dir: tempfile::TempDir,
    server: Process,
    proxy: Lossy,
    random: Random,
}

impl Weather {
    async fn new(mut random: Random) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &SMALL);
        let proxy = Lossy::before(&server.address, Random::seeded(random.next()), 100).await;
        Self { dir, server, proxy, random }
    }

    /// kill -9, and another process that opens what it left.
    fn kill(&mut self) {
        self.server.kill();
        self.server = Process::start(self.dir.path(), &SMALL);
        self.proxy.moved(&self.server.address);
    }

    /// Writes `appends` events into sessions of their own, every other one without streams, through `kills` kills; then
    /// every log must be what was meant.
    async fn write(&mut self, name: &str, level: AckLevel, (appends, kills): (u64, u64)) -> WriterStats {
        const SESSIONS: u64 = 50;
        let started = Instant::now();
        let streams = Client::new(&self.proxy.address).unwrap();
        let clients = [streams.clone(), streams.without_streams()];
        let (mut writing, mut writers, each) = (JoinSet::new(), Vec::new(), appends / SESSIONS);
        for n in 0..SESSIONS {
            let id = format!("{name}{n}");
            let client = &clients[n as usize % 2];
            let session = client.create(&key(&id), Header::default(), Profile::Raw).await.unwrap();
            let writer = Arc::new(client.writer(&session, one_by_one(level)));
            writers.push(writer.clone());
            writing.spawn(write(writer, id, each, Random::seeded(self.random.next())));
        }
        let confirmed = || writers.iter().map(|writer| writer.marks().confirmed.get()).sum::<u64>();
        // Kills spread over what is to be written, so that they meet a server at work on any machine.
        for kill in 1..=kills {
            while confirmed() < appends * kill / (kills + 1) && !writing.is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.kill();
        }
        writing.join_all().await;
        let sum = |of: fn(&WriterStats) -> u64| writers.iter().map(|writer| of(&writer.stats())).sum::<u64>();
        let stats = WriterStats {
            batches_sent: sum(|stats| stats.batches_sent),
            batches_confirmed: sum(|stats| stats.batches_confirmed),
            deduplicated: sum(|stats| stats.deduplicated),
            failures: sum(|stats| stats.failures),
            rewinds: sum(|stats| stats.rewinds),
        };
        println!("{appends} appends {name} in {SESSIONS} sessions, {kills} kills, {:?}: {stats:?}", started.elapsed());
        let mut direct = self.server.client().await;
        for n in 0..SESSIONS {
            let id = format!("{name}{n}");
            let read = direct.read(all_of(&id)).await.unwrap();
            assert!(read.events() == stored(0, &intent(&id, each)), "{id} is not what was meant");
        }
        stats
    }
}

/// A tenth of the answers lost, and kill -9. Long form: QUIPU_LOSSY_APPENDS=20000 QUIPU_LOSSY_KILLS=6.
#[test]
fn a_log_equals_the_intent_exactly_over_lost_answers_and_killed_servers() {
    run_long(async {
        let (appends, kills) = (setting("QUIPU_LOSSY_APPENDS", 8_000), setting("QUIPU_LOSSY_KILLS", 4));
        let mut weather = Weather::new(Random::new("QUIPU_LOSSY_SEED")).await;
        let durable = weather.write("durable", AckLevel::Durable, (appends / 2, kills / 2)).await;
        let accepted = weather.write("accepted", AckLevel::Accepted, (appends / 2, kills / 2)).await;
        let tally = &weather.proxy.losses.tally;
        println!("{tally:?}");
        let [unary, lost, messages, cut] =
            [&tally.answers, &tally.lost, &tally.messages, &tally.cut].map(|count| count.load(Ordering::Relaxed));
        assert!(lost * 100 > unary * 5 && cut * 100 > messages, "hardly any was lost");
        assert!(unary > 100 && messages > 10, "both ways were used");
        for stats in [durable, accepted] {
            assert!(stats.deduplicated > 0, "answers that were lost were asked for again: {stats:?}");
        }
        // Whether a kill meets accepted events that are not durable is up to chance.
        println!("{} rewinds", accepted.rewinds);
        weather.server.end();
    });
}
