//! Watches over the disk: how long the running commit takes, seen by a thread that does not wait for it.
//!
//! It measures and calls; what a stall means is decided by the committer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the watchdog looks.
const WATCH: Duration = Duration::from_millis(50);

/// Measures how long the disk takes, from a thread that does not wait for it.
pub(super) struct Watchdog {
    epoch: Instant,
    /// Milliseconds since the epoch at which the running commit began, plus one; 0 when none runs.
    since: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Watchdog {
    pub(super) fn start(timeout: Duration, stalled: impl Fn() + Send + 'static) -> Self {
        let (epoch, since, stop) = (Instant::now(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (watched, stopped) = (since.clone(), stop.clone());
        let watch = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(WATCH);
                if took(epoch, &watched).is_some_and(|took| took > timeout) {
                    stalled();
                }
            }
        };
        let started = std::thread::Builder::new().name("quipu-watchdog".to_owned()).spawn(watch);
        if let Err(error) = started {
            tracing::warn!(%error, "no watchdog: appends wait for a stalled disk without end");
        }
        Self { epoch, since, stop }
    }

    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.since.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
        let done = work();
        self.since.store(0, Ordering::Relaxed);
        done
    }

    pub(super) fn took(&self) -> Option<Duration> {
        took(self.epoch, &self.since)
    }
}

/// How long the running commit takes already, if one runs.
fn took(epoch: Instant, since: &AtomicU64) -> Option<Duration> {
    let began = since.load(Ordering::Relaxed).checked_sub(1)?;
    Some(epoch.elapsed().saturating_sub(Duration::from_millis(began)))
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
