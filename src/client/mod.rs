//! A client for hosts: what it takes so that a session loses nothing and gets nothing twice, in domain types.
//!
//! A [`Client`] is a connection. A [`SessionWriter`] keeps what the server has not made durable, and sends it until it
//! has; a [`Checkpoints`] policy says where a host must wait for that. [`advice`] is the error table of the contract as
//! code. The invariant: an event that a writer took is in the log exactly once, or the writer has ended with an error
//! that says why, and still has the event. What is absent: no state on disk, no clock of another machine, and no
//! guessing; whether a batch is stored is asked of the log, by position and content.

pub mod advice;
mod backoff;
mod checkpoints;
mod connection;
mod convert;
mod drive;
mod error;
mod ingest;
mod lane;
mod outbox;
mod transport;
mod writer;

pub use advice::Advice;
pub use backoff::Pauses;
pub use checkpoints::Checkpoints;
pub use connection::Client;
pub use error::{Cause, Detail, Error};
pub use writer::{Marks, SessionWriter, WriterOptions, WriterStats};

pub use crate::service::{AckLevel, Reason};

use crate::codec::Chain;
use crate::model::{Header, Incarnation, Profile, Seq, SessionKey, Tenure};

/// Where a log stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The seq that the next event gets.
    pub next_seq: Seq,
    /// Everything below is on stable storage.
    pub durable_next_seq: Seq,
    /// Opaque: for comparison only.
    pub revision: Vec<u8>,
    /// The chain through `next_seq - 1`.
    pub chain: Chain,
    /// Which life of the name.
    pub incarnation: Incarnation,
    /// When the log last changed, by the server's clock.
    pub updated_ms: u64,
    /// The seq of the event that started the turn that is open, if the server said.
    pub open_turn: Option<Seq>,
    /// Who has the session.
    pub owner: Option<Owner>,
}

/// Who has a session, as the server tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The epoch of the owner.
    pub epoch: u64,
    /// What the holder called itself.
    pub holder: String,
    /// What it has.
    pub tenure: Tenure,
    /// When that began, by the server's clock. For people.
    pub since_ms: u64,
    /// How long the lease still ran when this was told.
    pub expires_in_ms: Option<u64>,
}

/// A session without its events.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its name.
    pub key: SessionKey,
    /// What stands beside the log.
    pub header: Header,
    /// The rules for appends.
    pub profile: Profile,
    /// Where the log stands.
    pub head: Head,
}

/// The right to write to a session, as [`Client::prepare`] got it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// The session, balanced and durable.
    pub session: Session,
    /// The epoch to publish, to write and to release with.
    pub epoch: u64,
    /// How many events were appended to close a turn that was left open; they are the last ones.
    pub repaired: u64,
}

/// A claim to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who asks, for the eyes of others. Best unique per process.
    pub holder: String,
    /// How long the lease runs without a sign of life; the server's default when absent.
    pub ttl: Option<std::time::Duration>,
    /// Take the session although its owner's lease runs, and why.
    pub take_over: Option<String>,
}
