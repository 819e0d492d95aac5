//! The loop behind a writer: sends what waits, takes answers in, pauses, flushes, keeps the lease.
//!
//! One task per writer, owned by it and ended with it. It carries out what [`super::outbox`] decides. The lock is held
//! for moments, never over a wait.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::lane::{Answer, Lane};
use super::outbox::{Outbox, Verdict};
use super::transport::{Address, Reply, Transport};
use super::{AckLevel, Advice, Error, Head, WriterOptions, WriterStats};

/// What the writer and its task share.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// There is work: events, a checkpoint.
    pub(super) work: Notify,
    /// The marks moved, or it is over.
    pub(super) moved: Notify,
}

pub(super) struct State {
    pub(super) outbox: Outbox,
    /// Somebody waits until everything below is durable.
    pub(super) barrier: u64,
    /// Why it is over.
    pub(super) end: Option<Box<Error>>,
    pub(super) stats: WriterStats,
}

/// A call beside the batches.
enum Chore {
    /// Makes durable what was accepted below that seq.
    Flush(u64),
    /// Begins the lease anew.
    Renew,
}

pub(super) struct Driver {
    shared: Arc<Shared>,
    transport: Arc<dyn Transport>,
    address: Address,
    options: WriterOptions,
    lane: Lane,
    chore: Option<(Chore, Reply<Head>)>,
    backoff: Backoff,
    /// Nothing is sent before.
    resume_at: Option<Instant>,
    failing_since: Option<Instant>,
    /// When the last sign of life was answered.
    alive_at: Instant,
    /// The durable mark while something accepted waits to become durable by itself, and since when it stands there.
    unsettled: Option<(u64, Instant)>,
}

/// What woke the loop.
enum Wake {
    Work,
    Time,
    Answer(Answer),
    Chore(Result<Head, Error>),
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        transport: Arc<dyn Transport>,
        (address, options): (Address, WriterOptions),
    ) -> Self {
        Self {
            lane: Lane::new(transport.clone(), address.clone()),
            backoff: Backoff::new(options.pauses),
            shared,
            transport,
            address,
            options,
            chore: None,
            resume_at: None,
            failing_since: None,
            alive_at: Instant::now(),
            unsettled: None,
        }
    }

    /// Runs until it is over.
    pub(super) async fn run(mut self) {
        loop {
            if self.resume_at.is_none_or(|at| at <= Instant::now()) {
                self.resume_at = None;
                self.send();
                self.find_chore();
            }
            let verdict = match self.wake().await {
                Wake::Work | Wake::Time => continue,
                Wake::Answer(answer) => self.answered(answer),
                Wake::Chore(result) => self.chore_done(result),
            };
            if let Err(error) = verdict {
                self.shared.state.lock().end = Some(error);
                self.shared.moved.notify_waiters();
                return;
            }
            self.shared.moved.notify_waiters();
        }
    }

    async fn wake(&mut self) -> Wake {
        let until = self.next_time();
        let chore = async {
            match &mut self.chore {
                Some((_, call)) => call.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = self.lane.answer() => Wake::Answer(answer),
            result = chore => Wake::Chore(result),
            () = self.shared.work.notified() => Wake::Work,
            () = tokio::time::sleep_until(until) => Wake::Time,
        }
    }

    /// When there is something to do although nothing happens.
    fn next_time(&self) -> Instant {
        let idle = Instant::now() + Duration::from_secs(3600);
        if let Some(at) = self.resume_at {
            return at;
        }
        let renewal = self.renewal().unwrap_or(idle);
        let settling = self.unsettled.map_or(idle, |(_, since)| since + self.options.settle_after);
        if self.chore.is_some() { idle } else { renewal.min(settling) }
    }

    fn renewal(&self) -> Option<Instant> {
        self.options.lease.filter(|_| self.address.epoch.is_some()).map(|lease| self.alive_at + lease / 3)
    }

    /// Fills the lane.
    fn send(&mut self) {
        let mut state = self.shared.state.lock();
        let is_ordered = self.transport.pipelines() && !state.outbox.is_fenced();
        let window = if is_ordered { self.options.batches_in_flight.max(1) } else { 1 };
        while self.lane.len() < window {
            let Some((span, events)) = state.outbox.take() else { return };
            // The batch that reaches a barrier makes everything before it durable, too.
            let level = if span.next >= state.barrier && state.barrier > span.first {
                AckLevel::Durable
            } else {
                self.options.level
            };
            state.stats.batches_sent += 1;
            self.lane.send(span, events, level);
        }
    }

    /// Finds a call to make beside the batches.
    fn find_chore(&mut self) {
        if self.chore.is_some() {
            return;
        }
        let flush = self.flush_upto();
        if let Some(upto) = flush {
            let call = self.transport.flush(&self.address);
            self.chore = Some((Chore::Flush(upto), call));
        } else if self.renewal().is_some_and(|at| at <= Instant::now()) {
            let call = self.transport.renew(&self.address);
            self.chore = Some((Chore::Renew, call));
        }
    }

    /// Whether all that was sent is confirmed and some of it must become durable now.
    fn flush_upto(&mut self) -> Option<u64> {
        let state = self.shared.state.lock();
        let (durable, confirmed) = (state.outbox.durable(), state.outbox.confirmed());
        if durable == confirmed {
            self.unsettled = None;
            return None;
        }
        let since = match self.unsettled {
            Some((mark, since)) if mark == durable => since,
            _ => Instant::now(),
        };
        self.unsettled = Some((durable, since));
        let is_waited_for = state.barrier > durable && state.barrier <= confirmed;
        let is_due = is_waited_for || since + self.options.settle_after <= Instant::now();
        (is_due && self.lane.len() == 0).then_some(confirmed)
    }

    fn answered(&mut self, Answer { span, result }: Answer) -> Result<(), Box<Error>> {
        let verdict = {
            let mut state = self.shared.state.lock();
            match result {
                Ok(ack) => {
                    state.stats.batches_confirmed += 1;
                    state.stats.deduplicated += u64::from(ack.deduplicated);
                    state.outbox.acknowledged(span, &ack)?;
                    drop(state);
                    self.succeeded();
                    return Ok(());
                }
                Err(error) => {
                    self.lane.clear();
                    state.stats.failures += 1;
                    let advised = (error.retry_after, error.clone());
                    (state.outbox.failed(span, error), advised)
                }
            }
        };
        self.obey(verdict.0, verdict.1)
    }

    fn chore_done(&mut self, result: Result<Head, Error>) -> Result<(), Box<Error>> {
        let Some((chore, _)) = self.chore.take() else { return Ok(()) };
        let verdict = match (result, chore) {
            (Ok(_), Chore::Renew) => {
                self.succeeded();
                return Ok(());
            }
            (Ok(head), Chore::Flush(upto)) => {
                self.succeeded();
                let verdict = self.shared.state.lock().outbox.flushed(upto, &head);
                if head.next_seq.get() < upto {
                    self.lane.clear();
                }
                return self.obey(verdict, (None, Error::timeout(Duration::ZERO)));
            }
            (Err(error), _) => {
                let mut state = self.shared.state.lock();
                state.stats.failures += 1;
                let advised = (error.retry_after, error.clone());
                let verdict = match error.advice() {
                    Advice::Again => Verdict::Pause,
                    Advice::Yield => {
                        self.lane.clear();
                        state.outbox.fenced_elsewhere(error)
                    }
                    _ => Verdict::Stop(Box::new(error)),
                };
                (verdict, advised)
            }
        };
        self.obey(verdict.0, verdict.1)
    }

    fn obey(&mut self, verdict: Verdict, (floor, error): (Option<Duration>, Error)) -> Result<(), Box<Error>> {
        match verdict {
            Verdict::Resend | Verdict::Probe => Ok(()),
            Verdict::Rewind => {
                self.shared.state.lock().stats.rewinds += 1;
                Ok(())
            }
            Verdict::Stop(error) => Err(error),
            Verdict::Pause => {
                let now = Instant::now();
                let since = *self.failing_since.get_or_insert(now);
                if now.duration_since(since) >= self.options.patience {
                    return Err(Box::new(error));
                }
                self.resume_at = Some(now + self.backoff.next(floor));
                Ok(())
            }
        }
    }

    fn succeeded(&mut self) {
        self.failing_since = None;
        self.backoff.reset();
        self.alive_at = Instant::now();
    }
}
