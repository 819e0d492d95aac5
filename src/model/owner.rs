//! Who may append to a session: the record of its ownership, as it is stored.
//!
//! One value says all there is: the last epoch handed out, who got it, what became of it, and how the session changed
//! hands against the will of an owner. The invariant: the epoch of a log never falls. What is absent: when a lease
//! ends, which is the business of a running clock, and what follows from all this for a write.

use std::sync::Arc;

/// Longest name of a holder in bytes.
pub const HOLDER_BYTES_MAX: usize = 128;
/// Longest reason of a take-over in bytes.
pub const REASON_BYTES_MAX: usize = 256;
/// Longest time to live of a lease in milliseconds: a day.
pub const TTL_MS_MAX: u64 = 86_400_000;
/// Take-overs that are remembered.
pub const TAKE_OVERS_MAX: usize = 16;
/// Bytes of text of the take-overs that are remembered: the record lives in one entry of the index.
const TRAIL_BYTES_MAX: usize = 3_000;

/// What an owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// A reservation: nobody appends.
    Reserved,
    /// The session: it appends.
    Live,
    /// Nothing any more.
    Released,
}

/// One owner displacing another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// The epoch that the new owner got.
    pub epoch: u64,
    /// When, by the server's clock.
    pub at_ms: u64,
    /// The new owner.
    pub holder: Arc<str>,
    /// The old one.
    pub from: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
}

/// The ownership of a session that had an owner at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The last epoch that was handed out.
    pub epoch: u64,
    /// Who got it.
    pub holder: Arc<str>,
    /// What became of it.
    pub tenure: Tenure,
    /// When that began, by the server's clock.
    pub since_ms: u64,
    /// How long a lease lasts.
    pub ttl_ms: u64,
    /// The last take-overs, oldest first.
    pub take_overs: Vec<TakeOver>,
}

impl Owner {
    /// Whether somebody has the session.
    pub fn is_held(&self) -> bool {
        self.tenure != Tenure::Released
    }

    /// Adds a take-over to the trail, and forgets the oldest ones beyond what is kept.
    pub fn remember(&mut self, take_over: TakeOver) {
        self.take_overs.push(take_over);
        let bytes = |trail: &[TakeOver]| -> usize { trail.iter().map(TakeOver::weight).sum() };
        while self.take_overs.len() > TAKE_OVERS_MAX || bytes(&self.take_overs) > TRAIL_BYTES_MAX {
            self.take_overs.remove(0);
        }
    }
}

impl TakeOver {
    fn weight(&self) -> usize {
        self.holder.len() + self.from.len() + self.reason.len() + 28
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trail_keeps_the_last_take_overs_within_its_bytes() {
        for (text, kept) in [("x".to_owned(), TAKE_OVERS_MAX), ("x".repeat(128), 7)] {
            let mut owner = Owner {
                epoch: 0,
                holder: "h".into(),
                tenure: Tenure::Live,
                since_ms: 0,
                ttl_ms: 1,
                take_overs: Vec::new(),
            };
            for epoch in 1..=40 {
                let text: Arc<str> = text.as_str().into();
                owner.remember(TakeOver { epoch, at_ms: 0, holder: text.clone(), from: text.clone(), reason: text });
            }
            let epochs: Vec<_> = owner.take_overs.iter().map(|take_over| take_over.epoch).collect();
            assert_eq!(epochs, (41 - kept as u64..=40).collect::<Vec<_>>());
        }
    }
}
