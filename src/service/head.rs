//! What a call tells of a session: its name and header, and where its log stands.
//!
//! Values only, taken from the session in memory at one moment; nothing here changes with it.

use std::sync::Arc;

use super::{Holding, TailState};
use crate::codec::{Chain, Summary};
use crate::model::{Incarnation, Owner, Seq};
use crate::store::Birth;

/// Where a log stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The seq that the next event gets.
    pub next_seq: Seq,
    /// Everything below is on stable storage.
    pub durable_next_seq: Seq,
    /// Changes with every append, never with a read; equal for equal logs of one store only.
    pub revision: [u8; 16],
    /// The chain through `next_seq - 1`.
    pub chain: Chain,
    /// Which life of the name.
    pub incarnation: Incarnation,
    /// When the log last changed durably, by this node's clock.
    pub updated_ms: u64,
    /// What stands open at the end, if the log was folded.
    pub tail: Option<TailState>,
    /// Who owns the session.
    pub owner: Option<Holding>,
}

/// A session without its events.
#[derive(Clone, Debug)]
pub struct Session {
    /// Name, incarnation, profile, header.
    pub birth: Arc<Birth>,
    /// Where the log stands.
    pub head: Head,
    /// What a list shows of it.
    pub summary: Summary,
    /// Events below are shared with other logs by reference.
    pub shared_until: Seq,
    /// How many live sessions share events of it; `None` where nobody asked.
    pub forks: Option<u64>,
    /// Its ownership as it is stored, also when the last owner gave it back.
    pub owner: Option<Arc<Owner>>,
}
