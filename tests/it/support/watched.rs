//! An engine whose reads are counted, and fail when the test says so.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu::model::Seq;
use quipu::store::memory::MemoryStore;
use quipu::store::{Change, LogId, Run, Store, StoreError};

#[derive(Default)]
pub struct Watched {
    inner: MemoryStore,
    /// Events that reads gave.
    pub events: AtomicU64,
    /// Commits that were made, and changes in them.
    pub commits: AtomicU64,
    pub changes: AtomicU64,
    /// What reads fail with, after those that are spared.
    pub fails: Mutex<Option<StoreError>>,
    pub spared: AtomicU64,
    /// Reads that were made.
    pub reads: AtomicU64,
}

impl Store for Watched {
    pass_on!();

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.changes.fetch_add(changes.len() as u64, Ordering::SeqCst);
        self.inner.commit(changes, time_ms)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.fails.lock().unwrap().clone() {
            let spare = |spared: u64| spared.checked_sub(1);
            if self.spared.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spare).is_err() {
                return Err(error);
            }
        }
        let runs = self.inner.read(log, from, bytes_max)?;
        self.events.fetch_add(runs.iter().map(|run| u64::from(run.count)).sum(), Ordering::SeqCst);
        Ok(runs)
    }
}
