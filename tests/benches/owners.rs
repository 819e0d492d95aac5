//! What ownership costs: an append with an epoch against one without, and a Prepare as the log grows.
//!
//! `cargo bench --profile bench-ci --bench owners`. Appends of one event each to an owned session and to one that nobody
//! owns, in turns of a few in one run, over an engine in memory (all processor) and over the local one (with its sync);
//! medians over many turns, because the machine is never quiet. Then Prepare of a session that is not in memory, with an
//! open turn of a hundred events, without asking for events. `QUIPU_BENCH_EVENTS=10000,100000` takes other sizes.
#![allow(clippy::pedantic, clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu::model::{Header, NewEvent, Profile, Seq, SessionKey, SurfaceOp};
use quipu::service::{AckLevel, Append, Claim, Options, Prepare, Service};
use quipu::store::Store;
use quipu::store::local::{LocalStore, Options as StoreOptions};
use quipu::store::memory::MemoryStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 15;

fn key(id: &str) -> SessionKey {
    SessionKey::new("default", id).unwrap()
}

fn event(kind: &str, data: String) -> NewEvent {
    let surface_op = (kind == "assistant/message").then_some(SurfaceOp::Append);
    NewEvent { time_ms: 1, kind: kind.into(), data: data.into(), ignorable: false, surface_op, source_event_seqs: None }
}

/// A turn of a hundred events; an open one ends with a call that has started.
fn turn(number: u64, is_open: bool) -> Vec<NewEvent> {
    let place = format!(r#""turn":{number},"step":1"#);
    let mut events =
        vec![event("turn/start", format!(r#"{{"turn":{number}}}"#)), event("step/start", format!("{{{place}}}"))];
    let chunk = format!(r#"{{{place},"chunk":{{"type":"text-delta","index":0,"text":"some words "}}}}"#);
    events.extend((0..95).map(|_| event("assistant/chunk", chunk.clone())));
    let content = if is_open { r#"{"type":"tool-call","id":"c","name":"bash","arguments":"{}"}"# } else { "" };
    let source = r#""source":{"kind":"model","provider":"p","model":"m"}"#;
    let message = format!(r#""message":{{"id":"a","role":"assistant",{source},"content":[{content}]}}"#);
    events.push(event("assistant/message", format!("{{{place},{message}}}")));
    if is_open {
        events.push(event("tool/call", format!(r#"{{{place},"callId":"c","name":"bash","arguments":"{{}}"}}"#)));
        return events;
    }
    events.push(event("step/end", format!("{{{place}}}")));
    events.push(event("turn/end", format!(r#"{{"turn":{number},"reason":{{"kind":"completed"}}}}"#)));
    events
}

async fn append(service: &Service, (id, first_seq): (&str, u64), events: Vec<NewEvent>, epoch: Option<u64>) -> u64 {
    let (first_seq, level) = (Seq::new(first_seq).unwrap(), AckLevel::Durable);
    let append = Append { key: key(id), first_seq, events, level, strict: false, incarnation: None, epoch };
    service.append(append).await.unwrap().head.next_seq.get()
}

async fn prepare(service: &Service, id: &str) -> (u64, u64) {
    let claim = Claim::new("bench", None, Some("a bench")).unwrap();
    let prepared = service.prepare(&Prepare { key: key(id), incarnation: None, claim }).await.unwrap();
    (prepared.epoch, prepared.repaired)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Appends in turns: owned, unowned, and the other way round.
async fn epochs(what: &str, store: Arc<dyn Store>, (turns, each): (usize, u64)) {
    let service = Service::new(store, Options::default());
    for id in ["nobody's", "owned"] {
        service.create(key(id), (Header::default(), Profile::Raw, false), None).await.unwrap();
    }
    let (epoch, _) = prepare(&service, "owned").await;
    service.publish(&key("owned"), epoch).await.unwrap();
    let sessions = [("nobody's", None), ("owned", Some(epoch))];
    let (mut times, mut next) = ([Vec::new(), Vec::new()], [0, 0]);
    let data = format!("\"{}\"", "x".repeat(510));
    for number in 0..turns * 2 {
        for which in [number % 2, 1 - number % 2] {
            let (id, epoch) = sessions[which];
            let events: Vec<_> = (0..each).map(|_| vec![event("note", data.clone())]).collect();
            let start = Instant::now();
            for events in events {
                next[which] = append(&service, (id, next[which]), events, epoch).await;
            }
            times[which].push(start.elapsed() / each as u32);
        }
    }
    // Pairs are neighbours in time, so that their differences are of the epoch, and the medians of the machine.
    let ratios = times[0].iter().zip(&times[1]).map(|(without, with)| with.as_secs_f64() / without.as_secs_f64());
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let quartiles = [1, 2, 3].map(|quarter| (ratios[ratios.len() * quarter / 4] - 1.0) * 100.0);
    let [without, with] = times.map(median);
    println!(
        "{what:<16} without {without:>10.2?}  with an epoch {with:>10.2?}  medians {:+.1} %  pairs {:+.1} % ({:+.1} to {:+.1})",
        (with.as_secs_f64() / without.as_secs_f64() - 1.0) * 100.0,
        quartiles[1],
        quartiles[0],
        quartiles[2],
    );
    service.close().await;
}

fn open(dir: &Path) -> Service {
    Service::new(Arc::new(LocalStore::open(dir, StoreOptions::default()).unwrap()), Options::default())
}

/// Best and median of what a Prepare takes that closes an open turn, each by a service with nothing in memory.
async fn prepares(events: u64) -> (Duration, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let service = open(dir.path());
    service.create(key("s"), (Header::default(), Profile::Dsh, false), None).await.unwrap();
    let (mut next, mut number) = (0, 0);
    while next < events {
        let batch = (0..10).flat_map(|more| turn(number + more + 1, false)).collect();
        number += 10;
        next = append(&service, ("s", next), batch, None).await;
    }
    service.close().await;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let service = open(dir.path());
        number += 1;
        next = append(&service, ("s", next), turn(number, true), None).await;
        service.close().await;
        let service = open(dir.path());
        let start = Instant::now();
        let (epoch, repaired) = prepare(&service, "s").await;
        times.push(start.elapsed());
        assert_eq!(repaired, 3);
        next += repaired;
        service.release(&key("s"), epoch).await.unwrap();
        service.close().await;
    }
    (*times.iter().min().unwrap(), median(times))
}

fn main() {
    let sizes = std::env::var("QUIPU_BENCH_EVENTS").unwrap_or_else(|_| "10000,100000,1000000".to_owned());
    let sizes: Vec<u64> = sizes.split(',').map(|size| size.trim().parse().unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        println!("an append of one event of 512 bytes");
        epochs("memory", Arc::new(MemoryStore::new()), (400, 100)).await;
        let dir = tempfile::tempdir().unwrap();
        epochs("with its sync", Arc::new(LocalStore::open(dir.path(), StoreOptions::default()).unwrap()), (200, 20))
            .await;
        println!("Prepare of a session that is not in memory, with an open turn of 99 events");
        for size in sizes {
            let (best, median) = prepares(size).await;
            println!("{size:>10} events: best {best:.2?}, median {median:.2?} of {ROUNDS}");
        }
    });
}
