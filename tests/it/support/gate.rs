//! An engine whose commits wait until the test lets them go: a disk that takes its time.

use std::sync::{Arc, Condvar, Mutex};

use quipu::model::{Seq, SessionKey};
use quipu::store::memory::MemoryStore;
use quipu::store::{
    Change, ChangePage, Found, Health, ListCursor, ListFilter, ListPage, LogId, Position, Run, Session, Store,
    StoreError,
};

pub struct GateStore {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
    changed: Condvar,
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
        Self { inner, state: Mutex::default(), changed: Condvar::new() }
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
    fn allot(&self) -> LogId {
        self.inner.allot()
    }

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
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

    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        self.inner.find(key)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.inner.read(log, from, bytes_max)
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        self.inner.list(filter, after, count)
    }

    fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError> {
        self.inner.changes(from, bytes_max)
    }

    fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Session>, StoreError> {
        self.inner.sessions(after, count)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn id(&self) -> [u8; 16] {
        self.inner.id()
    }

    fn close(&self) {
        self.inner.close();
    }
}
