//! `write_behind.json`, the reference's batching of accepted events as scripts, played against the running service with
//! time that stands still.
//!
//! Where the design differs, the comparison says so:
//! - A write that ends finds its successor at once: events that came meanwhile are written without a window of their
//!   own. So batches may be cut elsewhere and start sooner; order, content and the end of the window are the same, and
//!   nothing is ever written later than the reference writes it.
//! - `Flush` covers what was accepted before it, and does not wait for what comes while it waits.
//! - A failed write is final for the process (a page cache after a failed sync tells no truth): nothing is written
//!   again, every flush is refused, and the host sends again after the restart. What the reference keeps and retries is
//!   kept by the client, which has everything from the durable mark on.
//! - There is no wait to cancel: `cancelWait` stops a timer that the service does not show.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use quipu::model::{Event, NewEvent, Profile, Seq};
use quipu::service::{AckLevel, Append, Error, Head, Options, Service};
use quipu::store::memory::MemoryStore;
use quipu::store::{Change, Health, LogId, Run, Store, StoreError};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::persistence::cases;
use crate::support::host::{Host, key};

/// Commits wait until the script settles them.
#[derive(Default)]
struct Disk {
    inner: MemoryStore,
    state: Mutex<State>,
    changed: Condvar,
    finished: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The seqs of every write that began.
    writes: Vec<Vec<u64>>,
    is_writing: bool,
    verdict: Option<bool>,
}

impl Store for Disk {
    pass_on!();

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        let seqs = changes.iter().filter_map(|change| match change {
            Change::Append { run, .. } => Some(run.first_seq.get()..run.next_seq().get()),
            _ => None,
        });
        let seqs: Vec<u64> = seqs.flatten().collect();
        if seqs.is_empty() {
            return self.inner.commit(changes, time_ms);
        }
        let mut state = self.state.lock().unwrap();
        state.writes.push(seqs);
        state.is_writing = true;
        while state.verdict.is_none() {
            let (again, waited) = self.changed.wait_timeout(state, Duration::from_secs(20)).unwrap();
            state = again;
            // A script that failed must not keep the thread.
            if waited.timed_out() {
                state.verdict = Some(false);
            }
        }
        state.is_writing = false;
        let is_good = state.verdict.take() == Some(true);
        drop(state);
        self.finished.fetch_add(1, Ordering::SeqCst);
        if is_good {
            self.inner.commit(changes, time_ms)
        } else {
            Err(StoreError::Poisoned("a planned failure".into()))
        }
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.inner.read(log, from, bytes_max)
    }
}

struct Play {
    disk: Arc<Disk>,
    host: Host,
    next: u64,
    flushes: Vec<(u64, JoinHandle<Result<Head, Error>>)>,
    failed: bool,
    /// While a thread is busy, time does not move by itself.
    _still: std::sync::mpsc::Sender<()>,
}

impl Play {
    async fn start(window_ms: u64) -> Self {
        let disk = Arc::new(Disk::default());
        let options = Options { accept_window: Duration::from_millis(window_ms), ..Options::default() };
        let host = Host { service: Service::new(disk.clone(), options) };
        let (_still, busy) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || busy.recv().is_ok());
        host.create("s", Profile::Raw).await;
        let play = Self { disk, host, next: 0, flushes: Vec::new(), failed: false, _still };
        // The write of the creation is over.
        play.until(async || true).await;
        play
    }

    /// Lets everybody run who can, until that is so: what another thread does is waited for by what it shows.
    async fn until(&self, mut is_so: impl AsyncFnMut() -> bool) -> bool {
        let began = std::time::Instant::now();
        loop {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            if is_so().await {
                return true;
            }
            if began.elapsed() > Duration::from_secs(5) {
                return false;
            }
        }
    }

    async fn durable(&self) -> u64 {
        self.host.head("s").await.durable_next_seq.get()
    }

    fn is_writing(&self) -> bool {
        self.disk.state.lock().unwrap().is_writing
    }

    fn written(&self) -> Vec<u64> {
        self.disk.state.lock().unwrap().writes.concat()
    }

    async fn step(&mut self, step: &Value) {
        match step["op"].as_str().unwrap() {
            "enqueue" => {
                for _ in 0..step["count"].as_u64().unwrap_or(1) {
                    let appended = self.host.service.append(self.event()).await;
                    assert_eq!(appended.is_err(), self.failed);
                    self.next += u64::from(appended.is_ok());
                }
            }
            "advance" => tokio::time::advance(Duration::from_millis(step["ms"].as_u64().unwrap())).await,
            "writeOk" | "writeFail" => {
                let is_good = step["op"] == "writeOk";
                if !self.is_writing() {
                    return;
                }
                let (finished, written) = (self.disk.finished.load(Ordering::SeqCst), self.written().len() as u64);
                self.disk.state.lock().unwrap().verdict = Some(is_good);
                self.disk.changed.notify_all();
                let is_over = async || {
                    let is_over = self.disk.finished.load(Ordering::SeqCst) > finished;
                    let is_known = if is_good {
                        self.durable().await >= written
                    } else {
                        self.host.service.health() != Health::Writable
                    };
                    is_over && is_known
                };
                assert!(self.until(is_over).await, "a write that was settled ends");
                self.failed |= !is_good;
            }
            "flush" => {
                let service = self.host.service.clone();
                let flush = tokio::spawn(async move { service.flush(&key("s"), None).await });
                self.flushes.push((self.next, flush));
            }
            "cancelWait" => {}
            other => panic!("unknown step {other}"),
        }
        self.until(async || true).await;
    }

    /// So large that another thread writes it, while this one goes on with the script.
    fn event(&self) -> Append {
        let data = format!("\"{}\"", "x".repeat(130 << 10));
        let body = NewEvent {
            time_ms: 1,
            kind: "note".into(),
            data: data.into(),
            ignorable: false,
            surface_op: None,
            source_event_seqs: None,
        };
        let event = Event { seq: Seq::new(self.next).unwrap(), body };
        Append {
            key: key("s"),
            first_seq: event.seq,
            events: vec![event.body],
            level: AckLevel::Accepted,
            strict: false,
            incarnation: None,
            epoch: None,
        }
    }
}

#[test]
fn accepted_events_are_written_in_order_within_the_window_as_the_vectors_say() {
    let cases = cases("write_behind.json");
    let (mut steps, mut exact, mut failing) = (0, 0, 0);
    for case in &cases {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let name = case["name"].as_str().unwrap();
            let mut play = Play::start(case["input"]["maxDelayMs"].as_u64().unwrap()).await;
            let expected = case["expected"]["after"].as_array().unwrap();
            for (index, (step, expected)) in case["input"]["steps"].as_array().unwrap().iter().zip(expected).enumerate()
            {
                play.step(step).await;
                steps += 1;
                let what = format!("{name}, step {index} {step}");
                let written = play.written();
                assert_eq!(written, (0..written.len() as u64).collect::<Vec<_>>(), "{what}: in order, each once");
                if play.failed {
                    assert!(!play.is_writing(), "{what}: nothing is written after a failure");
                    continue;
                }
                let wanted: Vec<u64> = expected["writes"].as_array().unwrap().iter().flat_map(numbers).collect();
                let in_time = play.until(async || play.written().len() >= wanted.len() || play.is_writing()).await;
                let written = play.written();
                assert!(in_time, "{what}: {written:?} after the reference wrote {wanted:?}");
                exact += u64::from(written == wanted);
                let durable = play.durable().await;
                play.until(async || true).await;
                for ((covers, flush), state) in play.flushes.iter().zip(expected["flushes"].as_array().unwrap()) {
                    let is_done = flush.is_finished();
                    assert!(!is_done || durable >= *covers, "{what}: no flush ends before what it covers is durable");
                    assert!(
                        is_done || state != "resolved" || play.is_writing(),
                        "{what}: not later than the reference"
                    );
                }
            }
            // What the script left open.
            while play.is_writing() {
                play.step(&serde_json::json!({"op": "writeOk"})).await;
            }
            let durable = play.durable().await;
            for (covers, flush) in play.flushes.drain(..) {
                let is_ok = flush.await.unwrap().is_ok();
                assert!(!is_ok || durable >= covers, "{name}: what a flush said is durable");
                assert!(is_ok || play.failed, "{name}: only a failure refuses a flush");
            }
            failing += u64::from(play.failed);
        });
    }
    println!(
        "write_behind.json: {} cases, {steps} steps, {exact} with the same writes, {failing} cases fail",
        cases.len()
    );
}

fn numbers(batch: &Value) -> Vec<u64> {
    batch.as_array().unwrap().iter().map(|seq| seq.as_u64().unwrap()).collect()
}
