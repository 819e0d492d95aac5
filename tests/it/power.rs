//! Power cuts: what was acknowledged is on the volume, and every store opens again.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::load::{Found, Writer};
use crate::support::process::Process;
use crate::support::volume::Volume;
use crate::support::{Calls, Random, all_of, batch, notes, refused, run, run_long, setting, stored};

const SMALL: [&str; 14] = [
    "--segment-bytes",
    "24MiB",
    "--batch-bytes-max",
    "5MiB",
    "--spare-segments",
    "1",
    "--reserve-bytes",
    "1MiB",
    "--checkpoint-interval",
    "100ms",
    // Every finished segment is sealed at once, so that cuts hit the sealer too.
    "--seal-batch-bytes",
    "1MiB",
    "--seal-bytes-per-second",
    "1GiB",
];
const CALM: [&str; 10] = [
    "--segment-bytes",
    "24MiB",
    "--batch-bytes-max",
    "5MiB",
    "--spare-segments",
    "1",
    "--reserve-bytes",
    "0",
    "--checkpoint-interval",
    "60m",
];
/// Cuts before a volume is replaced: segments stay, and the volume is small.
const CUTS_PER_VOLUME: u64 = 10;

#[test]
fn power_cuts_lose_nothing_that_was_acknowledged_and_every_store_opens() {
    run_long(async {
        let cuts = setting("QUIPU_POWER_CUTS", 100);
        let mut random = Random::new("QUIPU_POWER_SEED");
        let (mut total, mut appends, mut forks, mut done) = (Found::default(), 0, 0, 0);
        while done < cuts {
            let Some(mut volume) = Volume::new(2 << 30) else { return };
            let mut writers: Vec<_> = (0..3).map(|n| Writer::new(&format!("w{n}"), random.next(), 4 << 20)).collect();
            let mut server = Process::start(&volume.dir(), &SMALL);
            for _ in 0..CUTS_PER_VOLUME.min(cuts - done) {
                let mut running = tokio::task::JoinSet::new();
                for writer in writers.drain(..) {
                    running.spawn(writer.run(server.client().await));
                }
                tokio::time::sleep(Duration::from_micros(random.below(400_000))).await;
                volume.cut(server.id(), || server.kill());
                writers = running.join_all().await;
                server = Process::start(&volume.dir(), &SMALL);
                let mut client = server.client().await;
                for writer in &mut writers {
                    let found = writer.check(&mut client).await;
                    total.acknowledged += found.acknowledged;
                    total.in_flight_stored += found.in_flight_stored;
                    total.in_flight_absent += found.in_flight_absent;
                }
                assert_eq!(blobs(&volume.dir()), 0, "index/blobs is empty");
                done += 1;
            }
            appends += writers.iter().map(|writer| writer.appends).sum::<u64>();
            forks += writers.iter().map(|writer| writer.forks).sum::<u64>();
            server.kill();
        }
        println!("{done} cuts, {appends} appends and {forks} forks acknowledged, {total:?}");
        assert!(appends > cuts * 3, "the load must be one");
        assert!(total.in_flight_absent > 0, "the cuts must bite");
    });
}

/// Files beside sled's log, which sled never syncs.
fn blobs(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("index/blobs")).map_or(0, Iterator::count)
}

#[test]
fn a_volume_that_dies_makes_the_server_say_so() {
    run(async {
        let Some(volume) = Volume::new(512 << 20) else { return };
        let mut server = Process::start(&volume.dir(), &CALM);
        // The append is to be the first that meets the dead volume: all segments are made, no checkpoint comes.
        let segments = || std::fs::read_dir(volume.dir().join("journal")).unwrap();
        while segments().filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == "qj").count() < 2 {
            tokio::task::yield_now().await;
        }
        let mut client = server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        volume.shut_down();
        refused(client.append(batch("s", 5, notes("b", 5))).await, Code::Unavailable, "SYNC_FAILED");
        let next = client.append(batch("s", 5, notes("b", 5))).await;
        refused(next, Code::ResourceExhausted, "STORAGE_READ_ONLY");
        assert_eq!(client.head("s").await.durable_next_seq, 5);
        // Whether the bytes can still be had is the volume's to say; what is given is true and never called all.
        if let Ok(read) = client.read(all_of("s")).await {
            let events = read.events();
            assert_eq!(events, stored(0, &notes("a", 5))[..events.len()]);
            assert!(events.len() == 5 || read.end.is_none());
        }
        let channel = tonic::transport::Endpoint::new(server.address.clone()).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel);
        let request = HealthCheckRequest { service: "quipu.v1.LogService".to_owned() };
        let mut watch = health.watch(request).await.unwrap().into_inner();
        let turned = async { while watch.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {} };
        tokio::time::timeout(Duration::from_secs(10), turned).await.expect("health says NOT_SERVING");
        server.kill();
    });
}

const CONTROL: &str = "QUIPU_IT_CONTROL";

/// Not a test: what the control below runs as a process, a store that acknowledges after sled's flush alone.
#[test]
fn control_process() {
    let Some(dir) = std::env::var_os(CONTROL) else { return };
    let db = sled::open(&dir).unwrap();
    // The empty store is on the volume, names and all: what is lost later, flush lost.
    db.flush().unwrap();
    let dir = Path::new(&dir);
    for path in [dir.join("db"), dir.to_owned(), dir.parent().unwrap().to_owned()] {
        std::fs::File::open(path).unwrap().sync_all().unwrap();
    }
    for n in 0_u64.. {
        db.insert(n.to_be_bytes(), control_value(n)).unwrap();
        db.flush().unwrap();
        println!("ACK {n}");
    }
}

fn control_value(n: u64) -> Vec<u8> {
    let mut random = Random::seeded(n);
    let size = [100, 1_000, 20_000][random.below(3) as usize];
    (0..size).map(|_| random.next() as u8).collect()
}

#[test]
fn the_cuts_bite_a_store_that_acknowledges_after_sleds_flush_loses_data() {
    let mut random = Random::new("QUIPU_CONTROL_SEED");
    for cut in 1..=20 {
        let Some(mut volume) = Volume::new(256 << 20) else { return };
        let mut control = Command::new(std::env::current_exe().unwrap());
        control.args(["power::control_process", "--exact", "--nocapture"]).env(CONTROL, volume.dir());
        let mut child = control.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut answered = lines.filter_map(|line| line.rsplit_once("ACK ")?.1.parse::<u64>().ok());
        let enough = 50 + random.below(500);
        let last = answered.by_ref().take_while(|ack| *ack < enough).last().unwrap();
        let id = child.id();
        volume.cut(id, || {
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let last = answered.last().unwrap_or(last);
        let losses = control_losses(&volume.dir(), last);
        println!("control, cut {cut}: of {} acknowledged: {losses:?}", last + 1);
        if losses != Ok(0) {
            return;
        }
    }
    panic!("the control lost nothing in 20 cuts: this harness proves nothing");
}

/// How many acknowledged values are missing or wrong, or that the store does not open.
fn control_losses(dir: &Path, last: u64) -> Result<usize, String> {
    let look = || {
        let db = sled::open(dir).map_err(|e| e.to_string())?;
        let is_there =
            |n: &u64| db.get(n.to_be_bytes()).is_ok_and(|value| value.is_some_and(|v| v == control_value(*n)));
        Ok((0..=last).filter(|n| !is_there(n)).count())
    };
    catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|_| Err("sled panicked".to_owned()))
}
