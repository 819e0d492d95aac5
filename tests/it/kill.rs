//! kill -9 under load: what was acknowledged is there, and batches are whole.

use std::time::Duration;

use crate::samples;
use crate::support::load::{Found, Writer};
use crate::support::process::Process;
use crate::support::{Random, python, run, run_long, setting};

const WRITERS: u64 = 4;
const SMALL: [&str; 10] = [
    "--segment-bytes",
    "24MiB",
    "--spare-segments",
    "1",
    "--reserve-bytes",
    "0",
    "--checkpoint-interval",
    "200ms",
    // Every finished segment is sealed at once, so that kills hit the sealer too.
    "--seal-batch-bytes",
    "1MiB",
];

#[test]
fn kill_9_under_load_loses_nothing_that_was_acknowledged() {
    run_long(async {
        let mut random = Random::new("QUIPU_KILL_SEED");
        let rounds = setting("QUIPU_KILL_ROUNDS", 20);
        let dir = tempfile::tempdir().unwrap();
        let mut writers: Vec<_> = (0..WRITERS).map(|n| Writer::new(&format!("w{n}"), random.next(), 1 << 20)).collect();
        let mut total = Found::default();
        for _ in 0..rounds {
            if random.below(4) == 0 {
                // Killed while it opens what the kill before left.
                let mut opening = Process::spawn(dir.path(), &SMALL);
                moment(&mut random, 60).await;
                opening.kill();
            }
            let mut server = Process::start(dir.path(), &SMALL);
            check(&mut writers, &server, &mut total).await;
            let mut running = tokio::task::JoinSet::new();
            for writer in writers.drain(..) {
                running.spawn(writer.run(server.client().await));
            }
            moment(&mut random, 300).await;
            server.kill();
            writers = running.join_all().await;
        }
        let server = Process::start(dir.path(), &SMALL);
        check(&mut writers, &server, &mut total).await;
        if let Some(python) = python::with_modules("blake3") {
            for id in writers.iter().flat_map(Writer::sessions) {
                let stat = server.json(&["stat", &id], b"").remove(0);
                samples::verify(&python, &server, (&id, stat["head"]["chain"].as_str().unwrap()));
            }
        }
        let appends: u64 = writers.iter().map(|writer| writer.appends).sum();
        let forks: u64 = writers.iter().map(|writer| writer.forks).sum();
        println!("{rounds} kills, {appends} appends and {forks} forks acknowledged, {total:?}");
        assert!(appends > rounds * 2, "the load must be one");
        server.end();
    });
}

#[test]
fn restarts_in_peace_under_load_lose_nothing_and_leave_nothing_torn() {
    run(async {
        let mut random = Random::new("QUIPU_RESTART_SEED");
        let dir = tempfile::tempdir().unwrap();
        let mut writers: Vec<_> = (0..WRITERS).map(|n| Writer::new(&format!("w{n}"), random.next(), 100_000)).collect();
        let mut total = Found::default();
        for _ in 0..6 {
            let mut server = Process::spawn(dir.path(), &SMALL);
            let opened: serde_json::Value =
                serde_json::from_str(&server.wait_for("the store is open").unwrap()).unwrap();
            let found = ["replayed", "torn_bytes", "damaged_places", "rebuilt"].map(|name| opened[name].to_string());
            assert_eq!(found, ["0", "0", "0", "\"no\""], "the end before was clean");
            server.serving();
            check(&mut writers, &server, &mut total).await;
            let mut running = tokio::task::JoinSet::new();
            for writer in writers.drain(..) {
                running.spawn(writer.run(server.client().await));
            }
            moment(&mut random, 300).await;
            server.end();
            writers = running.join_all().await;
        }
        let server = Process::start(dir.path(), &SMALL);
        check(&mut writers, &server, &mut total).await;
        println!("{total:?}");
        server.end();
    });
}

/// A moment at random: that is what a crash chooses.
async fn moment(random: &mut Random, millis: u64) {
    tokio::time::sleep(Duration::from_micros(random.below(millis * 1000))).await;
}

async fn check(writers: &mut [Writer], server: &Process, total: &mut Found) {
    let mut client = server.client().await;
    for writer in writers {
        let found = writer.check(&mut client).await;
        total.acknowledged = total.acknowledged.max(found.acknowledged);
        total.in_flight_stored += found.in_flight_stored;
        total.in_flight_absent += found.in_flight_absent;
    }
}
