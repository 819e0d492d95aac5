//! The one seam between writers and the wire.
//!
//! A transport carries one request and gives its one answer; it repeats nothing and remembers nothing of a session. Calls
//! of one writer are polled in the order in which they were made, and arrive in that order where
//! [`Transport::pipelines`] says so.

use std::pin::Pin;
use std::time::Duration;

use super::outbox::Ack;
use super::{AckLevel, Error, Head};
use crate::model::{Incarnation, NewEvent, SessionKey};

/// What all calls of a writer have in common.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) key: SessionKey,
    pub(super) incarnation: Incarnation,
    pub(super) epoch: Option<u64>,
    /// Longest wait for an answer.
    pub(super) timeout: Duration,
    /// Tells the writers of a connection apart.
    pub(super) lane: u32,
}

/// Events to append.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) first: u64,
    pub(super) events: Vec<NewEvent>,
    pub(super) level: AckLevel,
    /// The first one after a failure: the server must not take it for a consequence.
    pub(super) resumes: bool,
}

/// An answer to come. Dropped, the call is called back; what was asked for may happen all the same.
pub(super) type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// The calls of a writer.
pub(super) trait Transport: Send + Sync {
    /// Whether batches of one writer arrive in the order in which they were sent, so that several may be on their way.
    fn pipelines(&self) -> bool;
    /// Appends a batch.
    fn append(&self, address: &Address, batch: Batch) -> Reply<Ack>;
    /// Makes durable what was accepted.
    fn flush(&self, address: &Address) -> Reply<Head>;
    /// Begins the lease anew.
    fn renew(&self, address: &Address) -> Reply<Head>;
}
