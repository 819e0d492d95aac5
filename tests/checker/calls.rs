//! What a recorder writes down of a call: what was asked, when, and what the answer said.

use super::Digest;

/// Nanoseconds since the recording began, by one monotonic clock.
pub type Time = u64;

/// One call, or one attempt of one.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who made it; holders have the same numbers.
    pub process: u32,
    /// Which life of the server it went to: a killed one begins another.
    pub life: u32,
    pub invoked: Time,
    /// Without meaning when the outcome is unknown.
    pub returned: Time,
    pub ask: Ask,
    pub outcome: Outcome,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `op` is the same for all attempts to get one batch stored, which differ in nothing. Every event is unique.
    Append {
        op: u64,
        epoch: Option<u64>,
        first_seq: u64,
        events: Vec<Digest>,
        is_durable: bool,
    },
    Prepare {
        ttl: Time,
        take_over: bool,
    },
    Publish {
        epoch: u64,
    },
    Release {
        epoch: u64,
    },
    Renew {
        epoch: u64,
        ttl: Option<Time>,
    },
    Flush {
        epoch: Option<u64>,
    },
    /// Closers that are committed are the computed ones.
    Repair {
        expected: [u8; 16],
        epoch: Option<u64>,
    },
    Load,
    Inspect,
    /// Of everything from a seq on.
    Read {
        from: u64,
    },
    Get,
    Fork {
        child: u64,
        epoch: Option<u64>,
    },
}

impl Ask {
    /// The epoch that it was made with.
    pub fn epoch(&self) -> Option<u64> {
        match *self {
            Ask::Publish { epoch } | Ask::Release { epoch } | Ask::Renew { epoch, .. } => Some(epoch),
            Ask::Append { epoch, .. } | Ask::Flush { epoch } | Ask::Repair { epoch, .. } | Ask::Fork { epoch, .. } => {
                epoch
            }
            Ask::Prepare { .. } | Ask::Load | Ask::Inspect | Ask::Read { .. } | Ask::Get => None,
        }
    }
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    Ok(Shown),
    /// It changed nothing; what the refusal told.
    Refused(Refusal, Shown),
    Unknown,
}

/// Why it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another epoch is the current one; whether the very batch is stored.
    Fenced { committed: Option<bool> },
    /// Its seq is taken by other bytes.
    Conflict,
    /// Anything else.
    Other,
}

/// What an answer said.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    pub mark: Option<Mark>,
    /// Who has the session, or had it last. Of a Prepare: the new reservation.
    pub owner: Option<Owned>,
    /// An append that was stored before.
    pub is_repetition: bool,
    /// Closers that the call appended, which end at the mark.
    pub repaired: u64,
    /// Events that were read.
    pub events: Option<Vec<Digest>>,
    pub fork: Option<Fork>,
}

/// A head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub next_seq: u64,
    pub durable_next_seq: u64,
    pub revision: [u8; 16],
    pub chain: [u8; 32],
}

/// An owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    pub epoch: u64,
    pub holder: u32,
}

/// A fork that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    pub seed_length: u64,
    pub chain: [u8; 32],
}

impl Call {
    /// What the answer said, if there was one.
    pub fn shown(&self) -> Option<&Shown> {
        match &self.outcome {
            Outcome::Ok(shown) | Outcome::Refused(_, shown) => Some(shown),
            Outcome::Unknown => None,
        }
    }

    /// The epoch that it was made with.
    pub fn epoch(&self) -> Option<u64> {
        self.ask.epoch()
    }

    pub(super) fn is_ok(&self) -> bool {
        matches!(self.outcome, Outcome::Ok(_))
    }

    pub(super) fn is_repetition(&self) -> bool {
        self.shown().is_some_and(|shown| shown.is_repetition)
    }

    pub(super) fn repaired(&self) -> u64 {
        self.shown().filter(|_| self.is_ok()).map_or(0, |shown| shown.repaired)
    }

    /// Whether it may have closed a turn although nobody knows.
    pub(super) fn may_have_repaired(&self) -> bool {
        let can = matches!(self.ask, Ask::Load | Ask::Prepare { .. } | Ask::Repair { .. });
        can && matches!(self.outcome, Outcome::Unknown)
    }
}
