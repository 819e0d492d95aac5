//! An engine in memory: the port's rules in their plainest form, for tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::{
    Birth, Change, ChangePage, Committed, Damage, Extent, Found, Graft, Health, ListCursor, ListFilter, ListPage,
    LogId, NOTE_BYTES_MAX, Note, Position, Remains, Run, Session, Store, StoreError, extents,
};
use crate::codec::{Chain, Summary};
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
    /// Deleted, and not wholly purged.
    deleted: BTreeMap<LogId, Session>,
    runs: HashMap<LogId, BTreeMap<Seq, Run>>,
    notes: HashMap<LogId, Note>,
    extents: HashMap<LogId, Arc<[Extent]>>,
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
                self.sessions.insert(*log, Session::born(*log, birth.clone(), (time_ms, position)));
            }
            Change::Append { log, run } | Change::Repair { log, run } => {
                let session = self.sessions.get_mut(log).ok_or_else(|| StoreError::Defect(format!("no {log:?}")))?;
                (session.next_seq, session.chain) = (run.next_seq(), run.chain);
                (session.updated_ms, session.position) = (session.updated_ms.max(time_ms), position);
                session.summary.add(&Summary::of(&run.events));
                self.runs.entry(*log).or_default().insert(run.first_seq, run.clone());
            }
            Change::Delete { log, .. } => {
                if let Some(session) = self.sessions.remove(log) {
                    self.names.remove(&session.birth.key);
                    self.notes.remove(log);
                    let updated_ms = session.updated_ms.max(time_ms);
                    self.deleted.insert(*log, Session { updated_ms, position, ..session });
                }
            }
            Change::Fork { log, graft } => self.fork(*log, graft, (time_ms, position)),
            Change::Detach { log, copy } => self.detach(*log, copy.as_ref(), position),
            Change::Purge { log, next_seq, chain } => self.purge(*log, (*next_seq, *chain), position),
            Change::Owner { log, owner, .. } => {
                let session = self.sessions.get_mut(log).ok_or_else(|| StoreError::Defect(format!("no {log:?}")))?;
                (session.owner, session.position) = (Some(owner.clone()), position);
            }
        }
        let mut committed = Committed::of(change, position, time_ms);
        committed.name(|log| self.births.get(&log).cloned());
        self.changes.push(committed);
        Ok(())
    }

    fn fork(&mut self, log: LogId, graft: &Graft, at: (u64, Position)) {
        let session = Session::grafted(log, graft, at);
        self.names.insert(session.birth.key.clone(), log);
        self.births.insert(log, session.birth.clone());
        if let Some(run) = extents::marker(graft) {
            self.runs.entry(log).or_default().insert(run.first_seq, run);
        }
        self.extents.insert(log, graft.extents.as_slice().into());
        self.sessions.insert(log, session);
    }

    fn detach(&mut self, log: LogId, copy: Option<&Run>, position: Position) {
        let Some(session) = self.sessions.get_mut(&log) else { return };
        match copy {
            Some(run) if run.first_seq == session.copied_until && run.first_seq < session.shared_until => {
                session.copied_until = run.next_seq();
                session.summary.bytes += run.events.len() as u64;
                self.runs.entry(log).or_default().insert(run.first_seq, run.clone());
            }
            None if session.copied_until == session.shared_until => {
                (session.copied_until, session.shared_until) = (Seq::ZERO, Seq::ZERO);
                session.position = position;
                self.extents.remove(&log);
            }
            _ => {}
        }
    }

    fn purge(&mut self, log: LogId, (next_seq, chain): (Seq, Chain), position: Position) {
        let is_less = |session: &&mut Session| next_seq < session.next_seq || next_seq <= session.shared_until;
        let Some(session) = self.deleted.get_mut(&log).filter(is_less) else { return };
        (session.next_seq, session.chain, session.position) = (next_seq, chain, position);
        session.marker = session.marker.filter(|marker| *marker < next_seq);
        if next_seq <= session.shared_until {
            self.deleted.remove(&log);
            self.extents.remove(&log);
            self.runs.remove(&log);
        } else if let Some(runs) = self.runs.get_mut(&log) {
            runs.retain(|first_seq, _| *first_seq < next_seq);
        }
    }

    fn session(&self, log: LogId) -> Option<&Session> {
        self.sessions.get(&log).or_else(|| self.deleted.get(&log))
    }

    /// Live logs that share events of this one, each with the end of what it shares.
    fn sharers(&self, log: LogId) -> impl Iterator<Item = Seq> {
        let live = self.extents.iter().filter(|(child, _)| self.sessions.contains_key(child));
        let shared = live.filter_map(move |(_, extents)| extents.iter().find(|extent| extent.log == log.0));
        shared.map(|extent| extent.until)
    }

    fn read_own(&self, log: LogId, from: Seq, bytes_max: usize) -> Vec<Run> {
        let Some(runs) = self.runs.get(&log) else { return Vec::new() };
        let first = runs.range(..=from).next_back().filter(|(_, run)| run.next_seq() > from);
        let Some((&first, _)) = first else { return Vec::new() };
        let mut bytes = 0;
        let within = |run: &&Run| {
            let fits = bytes == 0 || bytes + run.events.len() <= bytes_max;
            bytes += run.events.len();
            fits
        };
        runs.range(first..).map(|(_, run)| run).take_while(within).cloned().collect()
    }

    fn remains_of(&self, session: &Session) -> Remains {
        let needed_until = self.sharers(session.log).max().unwrap_or(Seq::ZERO);
        let own_from = session.shared_until;
        let runs = self.runs.get(&session.log);
        let runs = || runs.into_iter().flatten().map(|(_, run)| run);
        let unneeded = || runs().filter(|run| run.first_seq >= needed_until.max(own_from));
        let cut = unneeded().next().map_or(session.next_seq, |run| run.first_seq);
        let before = runs().filter(|run| run.next_seq() == cut).map(|run| run.chain).last();
        let inherited = self.extents.get(&session.log).and_then(|extents| extents.last()).map(|extent| extent.chain);
        let bytes = |run: &Run| run.events.len() as u64;
        Remains {
            session: session.clone(),
            needed_until,
            cut,
            chain: before.or(inherited).unwrap_or(Chain::START),
            events: session.next_seq.get() - cut.get(),
            bytes: unneeded().map(bytes).sum(),
            held_bytes: runs().map(bytes).sum(),
        }
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
        let shared = state.session(log).filter(|session| from < session.shared_until);
        let extents = shared.and_then(|_| state.extents.get(&log));
        let Some(extent) = extents.and_then(|extents| extents::holder(extents, from)) else {
            return Ok(state.read_own(log, from, bytes_max));
        };
        let runs = state.read_own(LogId(extent.log), from, bytes_max);
        if runs.is_empty() {
            let (damage, reason) = (Damage { good_next_seq: from }, "the shared events are missing".to_owned());
            return Err(StoreError::Damaged { damage, reason });
        }
        extents::clip(runs, &extent)
    }

    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError> {
        let state = self.state.read();
        let sessions = state.sessions.values().filter(|session| filter.admits(session)).cloned();
        Ok(page(sessions.collect(), after, count))
    }

    fn note(&self, log: LogId, note: Note) {
        let mut state = self.state.write();
        if state.sessions.contains_key(&log) && note.bytes.len() <= NOTE_BYTES_MAX {
            state.notes.insert(log, note);
        }
    }

    fn noted(&self, log: LogId) -> Option<Note> {
        self.state.read().notes.get(&log).cloned()
    }

    fn extents(&self, log: LogId) -> Result<Arc<[Extent]>, StoreError> {
        Ok(self.state.read().extents.get(&log).cloned().unwrap_or_default())
    }

    fn forks(&self, log: LogId) -> Result<u64, StoreError> {
        Ok(self.state.read().sharers(log).count() as u64)
    }

    fn needs(&self, log: LogId, from: Seq, until: Seq) -> Result<bool, StoreError> {
        let state = self.state.read();
        Ok(from < until && state.session(log).is_some_and(|session| from < session.next_seq))
    }

    fn remains(&self, after: Option<LogId>, count: usize) -> Result<Vec<Remains>, StoreError> {
        let state = self.state.read();
        let deleted = state.deleted.values().filter(|session| after.is_none_or(|after| session.log > after));
        Ok(deleted.take(count).map(|session| state.remains_of(session)).collect())
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
