//! The sessions that are in memory: each once, loaded when first asked for, dropped when idle.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ownership::Ownership;
use super::session::{Live, Slot, State};
use super::{Error, blocking, note};
use crate::model::{Owner, SessionKey};
use crate::store::{LogId, Store};

pub(super) struct Slots {
    store: Arc<dyn Store>,
    idle_max: usize,
    tick: AtomicU64,
    by_name: Mutex<HashMap<SessionKey, Arc<Slot>>>,
    leases: Mutex<Leases>,
}

/// When the leases end of sessions that are not in memory.
struct Leases {
    /// A lease from before the process runs for its full time from here.
    started: Instant,
    by_log: HashMap<LogId, Instant>,
}

/// Sweeps after which an unused slot goes.
const IDLE_TICKS: u64 = 6;

impl Slots {
    pub(super) fn new(store: Arc<dyn Store>, idle_max: usize) -> Self {
        let leases = Mutex::new(Leases { started: Instant::now(), by_log: HashMap::new() });
        Self { store, idle_max, tick: AtomicU64::new(0), by_name: Mutex::default(), leases }
    }

    /// The slot of a name, with what the store knows of it.
    pub(super) async fn get(&self, key: &SessionKey) -> Result<Arc<Slot>, Error> {
        let slot = self.slot(key);
        if matches!(*slot.state.lock(), State::Unknown) {
            Box::pin(self.load(key, &slot)).await?;
        }
        Ok(slot)
    }

    async fn load(&self, key: &SessionKey, slot: &Slot) -> Result<(), Error> {
        let (store, name) = (self.store.clone(), key.clone());
        let found = blocking(move || store.find(&name)).await??;
        let mut state = slot.state.lock();
        // Somebody else may have been faster, and may have changed it since.
        if matches!(*state, State::Unknown) {
            *state = found.map_or(State::Absent, |found| {
                let owner = found.session.owner.clone();
                let until = owner.as_ref().and_then(|owner| self.leases.lock().take(found.session.log, owner));
                State::Live(Box::new(Live { ownership: Ownership::stored(owner, until), ..Live::from(found) }))
            });
        }
        Ok(())
    }

    /// The slot of a name, with whatever is known of it already.
    pub(super) fn slot(&self, key: &SessionKey) -> Arc<Slot> {
        let tick = self.tick.load(Ordering::Relaxed);
        let mut slots = self.by_name.lock();
        if let Some(slot) = slots.get(key) {
            slot.used.store(tick, Ordering::Relaxed);
            return slot.clone();
        }
        if slots.len() >= self.idle_max {
            slots.retain(|_, slot| self.keeps(slot, false));
        }
        let slot = Arc::new(Slot { used: tick.into(), ..Slot::default() });
        slots.insert(key.clone(), slot.clone());
        slot
    }

    /// Names that are held in memory.
    pub(super) fn len(&self) -> usize {
        self.by_name.lock().len()
    }

    /// Drops slots that were idle for a while.
    pub(super) fn sweep(&self) {
        let tick = self.tick.fetch_add(1, Ordering::Relaxed);
        let mut slots = self.by_name.lock();
        slots.retain(|_, slot| self.keeps(slot, slot.used.load(Ordering::Relaxed) + IDLE_TICKS > tick));
        let room = slots.len() * 2;
        slots.shrink_to(room);
        let now = Instant::now();
        self.leases.lock().by_log.retain(|_, until| *until > now);
    }

    /// Whether a slot stays in the map, which is locked. Of one that goes, a note and the end of its lease stay.
    fn keeps(&self, slot: &Arc<Slot>, is_fresh: bool) -> bool {
        if is_fresh || is_needed(slot) {
            return true;
        }
        note::leave(&*self.store, slot);
        if let State::Live(live) = &*slot.state.lock()
            && let Some(until) = live.ownership.until()
        {
            self.leases.lock().by_log.insert(live.log, until);
        }
        false
    }

    /// Notes what is known of all sessions, before the store closes.
    pub(super) fn note_all(&self) {
        self.by_name.lock().values().for_each(|slot| note::leave(&*self.store, slot));
    }
}

impl Leases {
    /// When a lease ends: one that this process knows ends when it was to, an older one after its full time. One that
    /// was forgotten because it ran out has run out by that, too.
    fn take(&mut self, log: LogId, owner: &Owner) -> Option<Instant> {
        let known = self.by_log.remove(&log);
        known.or_else(|| self.started.checked_add(Duration::from_millis(owner.ttl_ms)))
    }
}

/// Whether a slot is held by somebody besides the map, which is locked. An entry of the committer's queue holds its
/// slot, so that one with changes on their way is always needed.
fn is_needed(slot: &Arc<Slot>) -> bool {
    Arc::strong_count(slot) > 1
}
