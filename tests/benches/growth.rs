//! How the answers at the end of a log grow with the log: each is asked of a session that is not in memory.
//!
//! `cargo bench --profile bench-ci --bench growth`. For 10 k, 100 k and 1 M events: a store is filled, closed, and opened
//! anew for every single answer. Prints the best of fifteen and what it grows by. `QUIPU_BENCH_EVENTS=10000,100000` takes other
//! sizes. A turn has a hundred events, six of them messages; every forty turns the messages so far are replaced by one.
//! `QUIPU_BENCH_COMPACT=0` never replaces any: the worst for what grows with the surface.
#![allow(clippy::pedantic, clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu::model::{Event, Header, NewEvent, Profile, Seq, SessionKey, SurfaceOp};
use quipu::replay::fork::ForkAt;
use quipu::replay::history::PageRequest;
use quipu::service::{AckLevel, Append, Ask, Options, Service};
use quipu::store::Store;
use quipu::store::local::{LocalStore, Options as StoreOptions};
use quipu::store::memory::MemoryStore;

const ROUNDS: usize = 15;
const TURN: usize = 100;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn event(kind: &str, data: String) -> NewEvent {
    let is_node = matches!(kind, "user/message" | "assistant/message" | "tool/result");
    let surface_op = is_node.then_some(SurfaceOp::Append);
    NewEvent { time_ms: 1, kind: kind.into(), data: data.into(), ignorable: false, surface_op, source_event_seqs: None }
}

/// A turn of three steps, two of them with a tool. `is_open` leaves its last step open, the call unanswered.
fn turn(number: usize, is_open: bool) -> Vec<NewEvent> {
    let mut events = vec![event("turn/start", format!(r#"{{"turn":{number}}}"#))];
    for step in 1..=3 {
        let place = format!(r#""turn":{number},"step":{step}"#);
        events.push(event("step/start", format!("{{{place}}}")));
        if step == 1 {
            let user =
                r#"{"id":"u","role":"user","source":{"kind":"user"},"content":[{"type":"text","text":"do that"}]}"#;
            events.push(event("user/message", user.to_owned()));
        }
        if (number, step) == (1, 1) {
            let header =
                r#"{"reason":"initial","header":{"config":{"provider":"p","model":"m"},"system":"S","tools":[]}}"#;
            events.push(event("request/header", header.to_owned()));
        }
        let fill = [25, 54, TURN - 3][step - 1] - events.len();
        events.extend((0..fill).map(|_| {
            event(
                "assistant/chunk",
                format!(r#"{{{place},"chunk":{{"type":"text-delta","index":0,"text":"some words "}}}}"#),
            )
        }));
        let has_call = step < 3 || is_open;
        let call = if has_call {
            r#"{"type":"tool-call","id":"c","name":"bash","arguments":"{}"}"#
        } else {
            r#"{"type":"text","text":"done"}"#
        };
        let source = r#""source":{"kind":"model","provider":"p","model":"m"}"#;
        events.push(event(
            "assistant/message",
            format!(r#"{{{place},"message":{{"id":"a","role":"assistant",{source},"content":[{call}]}}}}"#),
        ));
        if has_call {
            events.push(event("tool/call", format!(r#"{{{place},"callId":"c","name":"bash","arguments":"{{}}"}}"#)));
        }
        if step == 3 && is_open {
            return events;
        }
        if has_call {
            let content = r#"[{"type":"tool-result","toolCallId":"c","content":[{"type":"text","text":"ok"}]}]"#;
            let result = format!(
                r#""message":{{"id":"r","role":"user","source":{{"kind":"tool","callId":"c"}},"content":{content}}}"#
            );
            events.push(event("tool/result", format!("{{{place},{result}}}")));
        }
        events.push(event("step/end", format!("{{{place}}}")));
    }
    events.push(event("turn/end", format!(r#"{{"turn":{number},"reason":{{"kind":"completed"}}}}"#)));
    events
}

/// Every so many turns all messages are replaced by one, as hosts do when a context is full.
const COMPACTED_AFTER: usize = 40;

fn log(events: usize) -> impl Iterator<Item = Vec<NewEvent>> {
    let turns = events / TURN;
    let compacts = std::env::var("QUIPU_BENCH_COMPACT").as_deref() != Ok("0");
    let (mut nodes, mut next): (Vec<Seq>, u64) = (Vec::new(), 0);
    (1..=turns).map(move |number| {
        let mut events = turn(number, number == turns);
        if compacts && number % COMPACTED_AFTER == 0 {
            // In the place of the user's message, which is the third event.
            events[2].surface_op = Some(SurfaceOp::Replace { start: nodes[0], end: nodes[nodes.len() - 1] });
            events[2].source_event_seqs = Some(std::mem::take(&mut nodes));
        }
        let seqs = events.iter().zip(next..).filter(|(event, _)| event.surface_op.is_some());
        nodes.extend(seqs.filter_map(|(_, seq)| Seq::new(seq)));
        next += events.len() as u64;
        events
    })
}

fn ask() -> Ask {
    Ask { key: SessionKey::new("default", "s").unwrap(), incarnation: None, before: None, is_balanced: false }
}

async fn fill(store: Arc<dyn Store>, events: usize) -> u64 {
    let service = Service::new(store, Options::default());
    service.create(ask().key, (Header::default(), Profile::Dsh, false), None).await.unwrap();
    let mut next = Seq::ZERO;
    for events in log(events) {
        next = append(&service, next, events, AckLevel::Accepted).await;
    }
    service.flush(&ask().key, None).await.unwrap();
    service.close().await;
    next.get()
}

async fn append(service: &Service, first_seq: Seq, events: Vec<NewEvent>, level: AckLevel) -> Seq {
    let append = Append { key: ask().key, first_seq, events, level, strict: false, incarnation: None, epoch: None };
    service.append(append).await.unwrap().head.next_seq
}

const ANSWERS: [&str; 5] = ["history page of 50", "closers", "fork boundary", "latest header", "first append"];

async fn answer(service: &Service, what: &str, end: &mut u64) {
    match what {
        "closers" => assert_eq!(service.closers(&ask()).await.unwrap().1.len(), 3),
        "fork boundary" => drop(service.cut(&ask().key, ForkAt::LastTurn).await.unwrap()),
        "latest header" => assert!(service.latest_header(&ask()).await.unwrap().1.is_some()),
        "first append" => {
            let note = vec![event("session/title", r#"{"title":"x"}"#.to_owned())];
            *end = append(service, Seq::new(*end).unwrap(), note, AckLevel::Durable).await.get();
        }
        _ => {
            let mut page = service.history(&ask(), PageRequest::default()).await.unwrap();
            let mut events = 0;
            loop {
                match page.next(256 << 10).await.unwrap().len() {
                    0 => break,
                    more => events += more,
                }
            }
            assert!(events > 1000);
        }
    }
}

/// The best of some answers by services that start with nothing in memory: what it costs, and not what else the machine
/// did meanwhile.
async fn cold(dir: &Path, what: &str, end: &mut u64) -> Duration {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let store: Arc<dyn Store> = Arc::new(LocalStore::open(dir, StoreOptions::default()).unwrap());
        let service = Service::new(store, Options::default());
        let start = Instant::now();
        answer(&service, what, end).await;
        times.push(start.elapsed());
        service.close().await;
    }
    times.into_iter().min().unwrap()
}

async fn growth(sizes: &[usize]) {
    let mut table = vec![Vec::new(); ANSWERS.len()];
    for &size in sizes {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path(), StoreOptions::default()).unwrap();
        let mut end = fill(Arc::new(store), size).await;
        for (what, row) in ANSWERS.iter().zip(&mut table) {
            row.push(cold(dir.path(), what, &mut end).await);
        }
    }
    let sizes: Vec<_> = sizes.iter().map(|size| format!("{:>10}", size)).collect();
    println!("{:<20}{}  growth", "cold, us at events", sizes.concat());
    for (what, row) in ANSWERS.iter().zip(table) {
        let micros: Vec<_> = row.iter().map(|time| format!("{:>10}", time.as_micros())).collect();
        let growth = row.last().unwrap().as_secs_f64() / row[0].as_secs_f64();
        println!("{what:<20}{}  x{growth:.2}", micros.concat());
    }
}

/// One core, nothing but memory.
async fn derive(events: usize) {
    let bodies = log(events).flatten();
    let log: Vec<_> =
        bodies.enumerate().map(|(seq, body)| Event { seq: Seq::new(seq as u64).unwrap(), body }).collect();
    let start = Instant::now();
    let messages = quipu::replay::messages::derive(&log).unwrap().len();
    let rate = log.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("messages from a log in memory: {rate:.1} M events/s ({messages} messages of {} events)", log.len());
    drop(log);
    let store = Arc::new(MemoryStore::new());
    let next = fill(store.clone(), events).await;
    let service = Service::new(store, Options::default());
    let ask = Ask { before: Seq::new(next - 1), ..ask() };
    let start = Instant::now();
    service.messages(&ask).await.unwrap();
    let rate = next as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("the same through the service, encoded events in memory, no checkpoint: {rate:.1} M events/s");
}

fn main() {
    let sizes = std::env::var("QUIPU_BENCH_EVENTS").unwrap_or_else(|_| "10000,100000,1000000".to_owned());
    let sizes: Vec<usize> = sizes.split(',').map(|size| size.trim().parse().unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        growth(&sizes).await;
        derive(*sizes.last().unwrap()).await;
    });
}
