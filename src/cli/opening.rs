//! Opening the store, with everything that can be in the way of it.
//!
//! Another process may still have the directory: the pod before this one, or a service that is being restarted. Whoever
//! waits for it says so, in its log and in its readiness, and does not die of it: a process that ends and is started
//! again and again is harder to understand than one that waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Config;
use super::serve::Signals;
use crate::ops::Node;
use crate::ops::health::State;
use crate::store::local::{LocalStore, OpenError};

/// Between two tries to take the directory.
const RETRY: Duration = Duration::from_millis(200);
/// Between two lines of the log that say what is waited for.
const REMIND: Duration = Duration::from_secs(10);

/// Opens the store; `None` when a signal ended the wait.
pub(super) async fn open(
    config: &Config,
    node: &Arc<Node>,
    signals: &mut Signals,
) -> anyhow::Result<Option<Arc<LocalStore>>> {
    let began = Instant::now();
    let mut reminded = None;
    loop {
        let tried = Instant::now();
        let opened = tokio::select! {
            opened = attempt(config, node) => opened?,
            () = signals.next() => {
                tracing::info!("told to end before the store was open");
                // A store that is being opened can be left at any moment, as after a kill.
                std::process::exit(0);
            }
        };
        let holder = match opened {
            Ok(store) => {
                node.metrics.lock_wait.set(0.0);
                node.metrics.open_duration.set(tried.elapsed().as_secs_f64());
                return Ok(Some(Arc::new(store)));
            }
            Err(OpenError::Locked { holder, .. }) if began.elapsed() < config.lock_wait => holder,
            Err(error) => return Err(error.into()),
        };
        let waited = began.elapsed();
        node.metrics.lock_wait.set(waited.as_secs_f64());
        node.health.set(State::Waiting, format!("the data directory is in use by {holder}"));
        if reminded.is_none_or(|at: Instant| at.elapsed() > REMIND) {
            reminded = Some(Instant::now());
            let waited = waited.as_secs();
            tracing::warn!(holder, waited, "waiting for another process to let go of the data directory");
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = signals.next() => {
                tracing::info!("told to end while waiting; closed");
                return Ok(None);
            }
        }
    }
}

async fn attempt(config: &Config, node: &Arc<Node>) -> anyhow::Result<Result<LocalStore, OpenError>> {
    let (dir, options, metrics) = (config.data_dir.clone(), config.store.clone(), node.metrics.clone());
    Ok(tokio::task::spawn_blocking(move || LocalStore::open_metered(&dir, options, metrics)).await?)
}
