//! The sessions that are in memory: each once, loaded when first asked for, dropped when idle.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::session::{Live, Slot, State};
use super::{Error, blocking};
use crate::model::SessionKey;
use crate::store::Store;

pub(super) struct Slots {
    store: Arc<dyn Store>,
    idle_max: usize,
    tick: AtomicU64,
    by_name: Mutex<HashMap<SessionKey, Arc<Slot>>>,
}

/// Sweeps after which an unused slot goes.
const IDLE_TICKS: u64 = 6;

impl Slots {
    pub(super) fn new(store: Arc<dyn Store>, idle_max: usize) -> Self {
        Self { store, idle_max, tick: AtomicU64::new(0), by_name: Mutex::default() }
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
            *state = found.map_or(State::Absent, |found| State::Live(Live::from(found)));
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
            slots.retain(|_, slot| is_needed(slot));
        }
        let slot = Arc::new(Slot { used: tick.into(), ..Slot::default() });
        slots.insert(key.clone(), slot.clone());
        slot
    }

    /// Drops slots that were idle for a while.
    pub(super) fn sweep(&self) {
        let tick = self.tick.fetch_add(1, Ordering::Relaxed);
        let mut slots = self.by_name.lock();
        slots.retain(|_, slot| is_needed(slot) || slot.used.load(Ordering::Relaxed) + IDLE_TICKS > tick);
        let room = slots.len() * 2;
        slots.shrink_to(room);
    }
}

/// Whether a slot is held by somebody besides the map, which is locked. An entry of the committer's queue holds its
/// slot, so that one with changes on their way is always needed.
fn is_needed(slot: &Arc<Slot>) -> bool {
    Arc::strong_count(slot) > 1
}
