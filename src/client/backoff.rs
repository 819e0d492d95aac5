//! Pauses between attempts: growing, and spread at random, so that clients who failed together do not come back
//! together. Knows no clock and no call.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How pauses grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// About the first pause.
    pub first: Duration,
    /// About the longest.
    pub longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { first: Duration::from_millis(20), longest: Duration::from_secs(2) }
    }
}

/// The pauses of one series of attempts.
#[derive(Debug)]
pub(super) struct Backoff {
    pauses: Pauses,
    failures: u32,
    random: RandomState,
}

impl Backoff {
    pub(super) fn new(pauses: Pauses) -> Self {
        Self { pauses, failures: 0, random: RandomState::new() }
    }

    /// The pause after one more failure, at least `floor`: between a half and the whole of what doubles each time.
    pub(super) fn next(&mut self, floor: Option<Duration>) -> Duration {
        let doubled = self.pauses.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let whole = doubled.min(self.pauses.longest).max(floor.unwrap_or_default());
        let share = self.random.hash_one(self.failures) as u32;
        whole / 2 + (whole / 2).mul_f64(f64::from(share) / f64::from(u32::MAX)) + floor.unwrap_or_default() / 2
    }

    /// A success: the next failure is the first one again.
    pub(super) fn reset(&mut self) {
        if self.failures > 0 {
            *self = Self::new(self.pauses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_differ_and_respect_the_server() {
        let pauses = Pauses { first: Duration::from_millis(10), longest: Duration::from_secs(1) };
        let (mut one, mut other) = (Backoff::new(pauses), Backoff::new(pauses));
        let mut differ = 0;
        for n in 0..40 {
            let whole = Duration::from_millis(10 << n.min(10)).min(pauses.longest);
            let pair = [one.next(None), other.next(None)];
            pair.iter()
                .for_each(|pause| assert!(*pause >= whole / 2 && *pause <= whole, "{n}: {pause:?} of {whole:?}"));
            differ += u32::from(pair[0] != pair[1]);
        }
        assert!(differ > 30, "two clients have the same pauses");
        assert!(one.next(Some(Duration::from_secs(5))) >= Duration::from_secs(5));
        one.reset();
        assert!(one.next(None) <= pauses.first);
    }
}
