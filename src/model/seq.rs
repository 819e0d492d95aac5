//! Positions inside one log.

use std::fmt;

/// The largest integer that an IEEE double holds together with all smaller ones: 2^53 - 1.
pub const INT53_MAX: u64 = (1 << 53) - 1;

/// The number of an event in its log: 0-based, gapless, at most [`INT53_MAX`].
///
/// Also used for `next_seq`, the seq that the next event gets; that one may reach `INT53_MAX + 1`, at which the
/// log is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// The first seq of every log.
    pub const ZERO: Self = Self(0);

    /// A seq, if `n` is in range.
    pub fn new(n: u64) -> Option<Self> {
        (n <= INT53_MAX).then_some(Self(n))
    }

    /// The seq as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The seq `count` events later, as a `next_seq`; `None` when the log would grow past the last seq.
    pub fn advance(self, count: u64) -> Option<Self> {
        let n = self.0.checked_add(count)?;
        (n <= INT53_MAX + 1).then_some(Self(n))
    }

    /// The seq of a value read from a verified record; values outside the range become the end of the range,
    /// which no log reaches.
    pub const fn saturating(n: u64) -> Self {
        Self(if n > INT53_MAX + 1 { INT53_MAX + 1 } else { n })
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
