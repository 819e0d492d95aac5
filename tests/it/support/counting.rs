//! An engine that counts the events that are read from it: what an answer costs, whatever the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu::model::Seq;
use quipu::store::{Change, LogId, Run, Store, StoreError};

pub struct CountingStore {
    inner: Arc<dyn Store>,
    read: AtomicU64,
}

impl CountingStore {
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self { inner, read: AtomicU64::new(0) }
    }

    /// The engine that is counted.
    pub fn inner(&self) -> Arc<dyn Store> {
        self.inner.clone()
    }

    /// Events read since the last call.
    pub fn take(&self) -> u64 {
        self.read.swap(0, Ordering::Relaxed)
    }
}

impl Store for CountingStore {
    pass_on!();

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        self.inner.commit(changes, time_ms)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let runs = self.inner.read(log, from, bytes_max)?;
        self.read.fetch_add(runs.iter().map(|run| u64::from(run.count)).sum(), Ordering::Relaxed);
        Ok(runs)
    }
}
