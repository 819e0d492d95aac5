//! An engine that fails on demand: what is alive, what is durable, and when it breaks.

use std::sync::Arc;

use parking_lot::Mutex;

use super::memory::MemoryStore;
use super::{
    Change, ChangePage, Extent, Found, Health, ListCursor, ListFilter, ListPage, LogId, Note, Position, Remains, Run,
    Session, Store, StoreError,
};
use crate::model::{Seq, SessionKey};

/// When the engine breaks; calls to `commit` count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// From this commit on nothing more becomes durable, although it says so: the disk lies, or the power goes.
    pub freeze_at: Option<u64>,
    /// This commit fails. Like a failed sync, its outcome is unknown and the engine takes no more.
    pub fail_at: Option<u64>,
    /// Whether the failing commit is there after the next open.
    pub failed_survives: bool,
}

/// Wraps a memory engine, and keeps beside it what a power cut would leave.
#[derive(Debug, Default)]
pub struct FaultStore {
    plan: Plan,
    live: MemoryStore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    commits: u64,
    durable: Vec<(Vec<Change>, u64)>,
    broken: Option<Arc<str>>,
}

impl FaultStore {
    /// An empty engine that follows the plan.
    pub fn new(plan: Plan) -> Self {
        Self { plan, ..Self::default() }
    }

    /// What is there after a power cut now: an engine without faults, with everything that was durable.
    pub fn after_power_cut(&self) -> Result<MemoryStore, StoreError> {
        let store = MemoryStore::new();
        for (changes, time_ms) in &self.state.lock().durable {
            for change in changes {
                if let Change::Create { log, .. } | Change::Fork { log, .. } = change {
                    while store.allot() < *log {}
                }
            }
            store.commit(changes, *time_ms)?;
        }
        Ok(store)
    }

    /// Commits that were asked for.
    pub fn commits(&self) -> u64 {
        self.state.lock().commits
    }
}

impl Store for FaultStore {
    fn allot(&self) -> LogId {
        self.live.allot()
    }

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.broken {
            return Err(StoreError::Poisoned(reason.clone()));
        }
        if let Health::Poisoned(reason) = self.live.health() {
            return Err(StoreError::Poisoned(reason));
        }
        state.commits += 1;
        let fails = self.plan.fail_at == Some(state.commits);
        let frozen = self.plan.freeze_at.is_some_and(|at| state.commits >= at);
        if !frozen && (!fails || self.plan.failed_survives) {
            state.durable.push((changes.to_vec(), time_ms));
        }
        if fails {
            let reason: Arc<str> = "a planned failure".into();
            state.broken = Some(reason.clone());
            return Err(StoreError::Poisoned(reason));
        }
        self.live.commit(changes, time_ms)
    }

    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        self.live.find(key)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.live.read(log, from, bytes_max)
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        self.live.list(filter, after, count)
    }

    fn note(&self, log: LogId, note: Note) {
        self.live.note(log, note);
    }

    fn noted(&self, log: LogId) -> Option<Note> {
        self.live.noted(log)
    }

    fn extents(&self, log: LogId) -> Result<Arc<[Extent]>, StoreError> {
        self.live.extents(log)
    }

    fn forks(&self, log: LogId) -> Result<u64, StoreError> {
        self.live.forks(log)
    }

    fn needs(&self, log: LogId, from: Seq, until: Seq) -> Result<bool, StoreError> {
        self.live.needs(log, from, until)
    }

    fn remains(&self, after: Option<LogId>, count: usize) -> Result<Vec<Remains>, StoreError> {
        self.live.remains(after, count)
    }

    fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError> {
        self.live.changes(from, bytes_max)
    }

    fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Session>, StoreError> {
        self.live.sessions(after, count)
    }

    fn health(&self) -> Health {
        self.state.lock().broken.clone().map_or_else(|| self.live.health(), Health::Poisoned)
    }

    fn position(&self) -> Position {
        self.live.position()
    }

    fn id(&self) -> [u8; 16] {
        self.live.id()
    }

    fn close(&self) {
        self.live.close();
    }
}
