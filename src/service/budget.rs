//! Permits in front of every queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of units (bytes, streams) that are lent out and come back.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    limit: usize,
    left: Arc<AtomicUsize>,
}

/// Units on loan; they come back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    units: usize,
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(units: usize) -> Self {
        Self { limit: units, left: Arc::new(units.into()) }
    }

    /// Units that can be lent at once.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Units on loan.
    pub(super) fn used(&self) -> usize {
        self.limit.saturating_sub(self.left.load(Ordering::Relaxed))
    }

    /// Lends units, or refuses at once: a caller never waits here.
    pub(super) fn take(&self, units: usize) -> Option<Permit> {
        let take = |left: usize| left.checked_sub(units);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Permit { units, left: self.left.clone() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.left.fetch_add(self.units, Ordering::Relaxed);
    }
}
