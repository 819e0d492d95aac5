//! How far the entries of one caller are committed, as a count.
//!
//! The queue of the committer is answered in its order, so that a caller with many entries on their way needs no
//! channel for each: a count says which of them are durable. What an entry was, only the caller knows.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Context;

use futures_util::task::AtomicWaker;

use super::committer::Unknown;

/// The count.
#[derive(Debug, Default)]
pub(super) struct Settled {
    count: AtomicU64,
    failure: AtomicU8,
    waiting: AtomicWaker,
}

const FAILED: u8 = 1;
const STALLED: u8 = 2;

impl Settled {
    /// One more entry was answered. After a failure the count says nothing any more.
    pub(super) fn note(&self, committed: Result<(), Unknown>) {
        match committed {
            Ok(()) => drop(self.count.fetch_add(1, Ordering::Release)),
            Err(Unknown::Failed) => self.failure.store(FAILED, Ordering::Release),
            Err(Unknown::Stalled) => self.failure.store(STALLED, Ordering::Release),
        }
        self.waiting.wake();
    }

    /// How many are durable, or why nobody knows. The task of `context` is woken when that changes.
    pub(super) fn count(&self, context: &mut Context<'_>) -> Result<u64, Unknown> {
        self.waiting.register(context.waker());
        self.look()
    }

    fn look(&self) -> Result<u64, Unknown> {
        match self.failure.load(Ordering::Acquire) {
            FAILED => Err(Unknown::Failed),
            STALLED => Err(Unknown::Stalled),
            _ => Ok(self.count.load(Ordering::Acquire)),
        }
    }
}
