//! An engine in memory: the port's rules in their plainest form, for tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::{
    Birth, Change, ChangePage, Committed, Found, Health, ListCursor, ListFilter, ListPage, LogId, Position, Run,
    Session, Store, StoreError,
};
use crate::codec::Chain;
use crate::model::{Seq, SessionKey};

/// Keeps everything in memory and loses it with the process.
#[derive(Debug)]
pub struct MemoryStore {
    id: [u8; 16],
    next_log: AtomicU64,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    position: Position,
    names: BTreeMap<SessionKey, LogId>,
    sessions: HashMap<LogId, Session>,
    runs: HashMap<LogId, BTreeMap<Seq, Run>>,
    births: HashMap<LogId, Arc<Birth>>,
    changes: Vec<Committed>,
    closed: bool,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self { id: super::new_incarnation().0, next_log: AtomicU64::new(1), state: RwLock::default() }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn apply(&mut self, change: &Change, time_ms: u64) -> Result<(), StoreError> {
        self.position.0 += 1;
        let position = self.position;
        match change {
            Change::Create { log, birth } => {
                self.names.insert(birth.key.clone(), *log);
                self.births.insert(*log, birth.clone());
                let birth = birth.clone();
                let (next_seq, chain) = (Seq::ZERO, Chain::START);
                let session = Session { log: *log, birth, next_seq, chain, updated_ms: time_ms, position };
                self.sessions.insert(*log, session);
            }
            Change::Append { log, run } => {
                let session = self.sessions.get_mut(log).ok_or_else(|| StoreError::Defect(format!("no {log:?}")))?;
                (session.next_seq, session.chain) = (run.next_seq(), run.chain);
                (session.updated_ms, session.position) = (session.updated_ms.max(time_ms), position);
                self.runs.entry(*log).or_default().insert(run.first_seq, run.clone());
            }
            Change::Delete { log, .. } => {
                if let Some(session) = self.sessions.remove(log) {
                    self.names.remove(&session.birth.key);
                }
            }
        }
        let mut committed = Committed::of(change, position, time_ms, None);
        committed.birth = self.births.get(&committed.log).cloned();
        self.changes.push(committed);
        Ok(())
    }
}

impl Store for MemoryStore {
    fn allot(&self) -> LogId {
        LogId(self.next_log.fetch_add(1, Ordering::Relaxed))
    }

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        let mut state = self.state.write();
        if state.closed {
            return Err(StoreError::Poisoned("the store is closed".into()));
        }
        changes.iter().try_for_each(|change| state.apply(change, time_ms))
    }

    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError> {
        let state = self.state.read();
        let session = state.names.get(key).and_then(|log| state.sessions.get(log));
        Ok(session.map(|session| Found { session: session.clone(), damage: None }))
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let state = self.state.read();
        let Some(runs) = state.runs.get(&log) else { return Ok(Vec::new()) };
        let first = runs.range(..=from).next_back().filter(|(_, run)| run.next_seq() > from);
        let Some((&first, _)) = first else { return Ok(Vec::new()) };
        let mut bytes = 0;
        let within = |run: &&Run| {
            let fits = bytes == 0 || bytes + run.events.len() <= bytes_max;
            bytes += run.events.len();
            fits
        };
        Ok(runs.range(first..).map(|(_, run)| run).take_while(within).cloned().collect())
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        let state = self.state.read();
        let sessions = state.sessions.values().filter(|session| filter.admits(session)).cloned();
        Ok(page(sessions.collect(), after, count))
    }

    fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError> {
        let state = self.state.read();
        let start = state.changes.partition_point(|change| change.position < from);
        let mut bytes = 0;
        let within = |change: &&Committed| {
            let fits = bytes == 0 || bytes <= bytes_max;
            bytes += 1 + change.run.as_ref().map_or(0, |run| run.events.len());
            fits
        };
        let changes = state.changes[start..].iter().take_while(within).cloned().collect();
        Ok(ChangePage { first_kept: Position(1), changes })
    }

    fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Session>, StoreError> {
        let state = self.state.read();
        let mut sessions: Vec<Session> = state.sessions.values().filter(|s| s.log > after).cloned().collect();
        sessions.sort_by_key(|session| session.log);
        sessions.truncate(count);
        Ok(sessions)
    }

    fn health(&self) -> Health {
        if self.state.read().closed { Health::Poisoned("the store is closed".into()) } else { Health::Writable }
    }

    fn position(&self) -> Position {
        self.state.read().position
    }

    fn id(&self) -> [u8; 16] {
        self.id
    }

    fn close(&self) {
        self.state.write().closed = true;
    }
}

/// Sorts sessions newest change first and cuts the page after `after`.
pub(super) fn page(mut sessions: Vec<Session>, after: Option<ListCursor>, count: usize) -> ListPage {
    let rank = |updated_ms: u64, log: LogId| (std::cmp::Reverse(updated_ms), std::cmp::Reverse(log));
    sessions.sort_by_key(|session| rank(session.updated_ms, session.log));
    if let Some(after) = after {
        sessions.retain(|session| rank(session.updated_ms, session.log) > rank(after.updated_ms, after.log));
    }
    let more = sessions.len() > count;
    sessions.truncate(count);
    let next = sessions.last().filter(|_| more);
    let next = next.map(|last| ListCursor { updated_ms: last.updated_ms, log: last.log });
    ListPage { sessions, next }
}
