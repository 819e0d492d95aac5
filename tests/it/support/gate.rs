//! An engine whose commits wait until the test lets them go: a disk that takes its time.

use std::sync::{Arc, Condvar, Mutex};

use quipu::model::Seq;
use quipu::store::memory::MemoryStore;
use quipu::store::{Change, LogId, Run, Store, StoreError};

pub struct GateStore {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
    changed: Condvar,
    work: Mutex<Work>,
}

/// What an engine was asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub commits: u64,
    pub reads: u64,
    pub read_bytes: u64,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    waiting: u64,
    /// The next commit panics: a defect of an engine.
    panics: bool,
}

impl Default for GateStore {
    fn default() -> Self {
        Self::over(Arc::new(MemoryStore::new()))
    }
}

impl GateStore {
    /// Before another engine.
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self { inner, state: Mutex::default(), changed: Condvar::new(), work: Mutex::default() }
    }

    /// The work since the last time that this was asked.
    pub fn work(&self) -> Work {
        std::mem::take(&mut *self.work.lock().unwrap())
    }

    /// From now on commits wait.
    pub fn shut(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    /// Lets all commits go.
    pub fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.changed.notify_all();
    }

    /// The commits from now on panic.
    pub fn break_down(&self) {
        self.state.lock().unwrap().panics = true;
    }

    /// Returns when a commit waits at the gate.
    pub async fn reached(&self) {
        while self.state.lock().unwrap().waiting == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Store for GateStore {
    pass_on!();

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        self.work.lock().unwrap().commits += 1;
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        while state.is_closed {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        let panics = state.panics;
        drop(state);
        assert!(!panics, "a planned panic");
        self.inner.commit(changes, time_ms)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let runs = self.inner.read(log, from, bytes_max)?;
        let mut work = self.work.lock().unwrap();
        work.reads += 1;
        work.read_bytes += runs.iter().map(|run| run.events.len() as u64).sum::<u64>();
        Ok(runs)
    }
}
