//! The store port: where committed changes live.
//!
//! Floor 2. The port is a blocking, object-safe trait, so that engines, the fault engine and tests stay
//! deterministic; the floor above decides which thread waits. Engines: [`local`] (a journal and a rebuildable
//! index on a local disk) and [`memory`]. [`fault`] wraps any of them. All pass the suite in `contract.rs`.
//!
//! What is absent: nothing here knows the wire, a runtime, an owner or a turn (what a list shows of a log is folded by
//! the codec). Nothing above knows sled.

mod changes;
pub mod extents;
pub mod fault;
pub mod local;
pub mod memory;

#[cfg(test)]
mod contract;
#[cfg(test)]
mod contract_notes;
#[cfg(test)]
mod feed_contract;
#[cfg(test)]
mod handover;

use std::sync::Arc;

use bytes::Bytes;

pub use self::changes::{ChangePage, Committed};
pub use self::extents::Remains;
pub use crate::codec::change::Birth;
pub use crate::codec::graft::{Extent, Graft};
use crate::codec::{Chain, Summary, event};
use crate::model::{Event, Incarnation, Owner, Seq, SessionKey};

/// The number of one log in its store: one life of one session name. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// The node's commit counter: one step per committed change, without holes; the first change has 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// A run of contiguous events in their canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Seq of the first event.
    pub first_seq: Seq,
    /// How many events.
    pub count: u32,
    /// The chain before the first event, as far as the place where the run is stored remembers it.
    pub link: u64,
    /// The chain after the last event.
    pub chain: Chain,
    /// The events, one encoding after the other.
    pub events: Bytes,
}

impl Run {
    /// The seq after the last event.
    pub fn next_seq(&self) -> Seq {
        Seq::saturating(self.first_seq.get() + u64::from(self.count))
    }

    /// The events. They were verified when the run was read, so that a failure is a defect.
    pub fn decode(&self) -> Result<Vec<Event>, StoreError> {
        let mut events = Vec::new();
        self.decode_into(&mut event::Decoder::default(), &mut events)?;
        Ok(events)
    }

    /// The chain before an event, from the one before the run; before an event behind the run, the one after it.
    pub fn chain_at(&self, before: Chain, seq: Seq) -> Result<Chain, StoreError> {
        Ok(self.decode()?.iter().take_while(|event| event.seq < seq).fold(before, Chain::after))
    }

    /// Adds the events to others, with a decoder that knows their types already.
    pub fn decode_into(&self, decoder: &mut event::Decoder, events: &mut Vec<Event>) -> Result<(), StoreError> {
        let mut bytes = self.events.clone();
        events.reserve(self.count.min(4096) as usize);
        while !bytes.is_empty() {
            events.push(decoder.decode(&mut bytes).map_err(|e| StoreError::Defect(e.to_string()))?);
        }
        Ok(())
    }
}

/// One change, decided by the floor above; an engine stores it and does not judge it.
#[derive(Clone, Debug)]
pub enum Change {
    /// A session begins; `log` comes from [`Store::allot`].
    Create {
        /// The new log.
        log: LogId,
        /// Name, incarnation, profile, header.
        birth: Arc<Birth>,
    },
    /// Events are added at the end of a log.
    Append {
        /// The log.
        log: LogId,
        /// The events.
        run: Run,
    },
    /// A log is deleted and its name free again.
    Delete {
        /// The log.
        log: LogId,
        /// The log's next seq.
        next_seq: Seq,
        /// The log's chain.
        chain: Chain,
    },
    /// A log changes hands.
    Owner {
        /// The log.
        log: LogId,
        /// The log's next seq.
        next_seq: Seq,
        /// The log's chain.
        chain: Chain,
        /// The ownership from now on.
        owner: Arc<Owner>,
    },
    /// Events that close an open turn are added at the end of a log: an append that a reader of changes can tell from
    /// one of a host.
    Repair {
        /// The log.
        log: LogId,
        /// The events.
        run: Run,
    },
    /// A session begins as a fork: its first events are shared with others by reference.
    Fork {
        /// The new log.
        log: LogId,
        /// The child, and what it shares.
        graft: Arc<Graft>,
    },
    /// Shared events are copied into the log, in the order of their seqs from 0 on; without a run the copy is complete
    /// and the log shares nothing more. A copy that is not next, or an end that comes too early, changes nothing.
    Detach {
        /// The log.
        log: LogId,
        /// The next shared events.
        copy: Option<Run>,
    },
    /// A deleted log gives up its events from some seq on, the start of a run: [`Remains::cut`].
    Purge {
        /// The log.
        log: LogId,
        /// The log's next seq from now on.
        next_seq: Seq,
        /// The chain there.
        chain: Chain,
    },
}

/// What the store knows of a live session; all of it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The log.
    pub log: LogId,
    /// Name, incarnation, profile, header.
    pub birth: Arc<Birth>,
    /// The seq that the next event gets.
    pub next_seq: Seq,
    /// The chain through the last event.
    pub chain: Chain,
    /// When the log last changed, by the server's clock.
    pub updated_ms: u64,
    /// The last change of this log.
    pub position: Position,
    /// Events below are shared with other logs by reference; [`Store::extents`] says which.
    pub shared_until: Seq,
    /// Shared events below were copied already ([`Change::Detach`]).
    pub copied_until: Seq,
    /// The event that came with the fork ([`Graft::marker`]), if one did.
    pub marker: Option<Seq>,
    /// Which request made it, if it is a fork ([`Graft::request`]).
    pub request: [u8; 16],
    /// What a list shows of it; its bytes are those of the log's own events.
    pub summary: Summary,
    /// Who owns it, or owned it last.
    pub owner: Option<Arc<Owner>>,
}

impl Session {
    /// A session without events.
    pub fn born(log: LogId, birth: Arc<Birth>, (updated_ms, position): (u64, Position)) -> Self {
        Self {
            log,
            birth,
            next_seq: Seq::ZERO,
            chain: Chain::START,
            updated_ms,
            position,
            shared_until: Seq::ZERO,
            copied_until: Seq::ZERO,
            marker: None,
            request: [0; 16],
            summary: Summary::default(),
            owner: None,
        }
    }

    /// A session that a fork made.
    pub fn grafted(log: LogId, graft: &Graft, (updated_ms, position): (u64, Position)) -> Self {
        let (next_seq, chain) = graft.end();
        Self {
            next_seq,
            chain,
            shared_until: graft.seed_length(),
            marker: (!graft.marker.is_empty()).then(|| graft.seed_length()),
            request: graft.request,
            summary: graft.summary.clone(),
            ..Self::born(log, Arc::new(graft.birth.clone()), (updated_ms, position))
        }
    }
}

/// Damage that opening or reading found in one log: events from here on cannot be proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Everything below is good.
    pub good_next_seq: Seq,
}

/// A session and whether all of it can be proved.
#[derive(Clone, Debug)]
pub struct Found {
    /// The session; `next_seq` and `chain` are those of the good prefix when there is damage.
    pub session: Session,
    /// Set when the log has events that were lost or may have been.
    pub damage: Option<Damage>,
}

/// What the floor above wants to find again of a log without reading it: opaque to the store.
///
/// It says what a prefix of the log adds up to, and so can be made from the log at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The seq after the prefix.
    pub next_seq: Seq,
    /// The chain through the prefix.
    pub chain: Chain,
    /// At most [`NOTE_BYTES_MAX`].
    pub bytes: Bytes,
}

/// Bytes of one note; a larger one is not kept.
pub const NOTE_BYTES_MAX: usize = 1 << 20;

/// Which sessions a page of the list may hold.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// The tenant.
    pub namespace: String,
    /// Ids that start with this.
    pub id_prefix: String,
    /// Exactly this directory.
    pub cwd: Option<String>,
    /// Exactly this parent.
    pub parent_session: Option<String>,
    /// Creation time, from (inclusive) and until (exclusive).
    pub created_ms: (Option<u64>, Option<u64>),
    /// Time of the last change, from (inclusive) and until (exclusive).
    pub updated_ms: (Option<u64>, Option<u64>),
}

impl ListFilter {
    /// Whether a session passes.
    pub fn admits(&self, session: &Session) -> bool {
        let within = |n: u64, (from, until): (Option<u64>, Option<u64>)| {
            from.is_none_or(|from| n >= from) && until.is_none_or(|until| n < until)
        };
        let birth = &session.birth;
        birth.key.namespace.as_str() == self.namespace
            && birth.key.id.as_str().starts_with(&self.id_prefix)
            && (self.cwd.is_none() || birth.header.cwd == self.cwd)
            && (self.parent_session.is_none() || birth.header.parent_session == self.parent_session)
            && within(birth.header.created_at_ms, self.created_ms)
            && within(session.updated_ms, self.updated_ms)
    }
}

/// A place in the list: its order is newest change first, then higher log first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCursor {
    /// Time of the last change.
    pub updated_ms: u64,
    /// The log.
    pub log: LogId,
}

/// A page of the list.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Where the next page starts (after this), if there may be more.
    pub next: Option<ListCursor>,
}

/// Why an engine could not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A write or sync failed before or now; nothing more is written until the store is opened anew, and what was
    /// being written has an unknown outcome. Reads go on.
    #[error("the store is read-only: {0}")]
    Poisoned(Arc<str>),
    /// Stored bytes are damaged.
    #[error("stored bytes are damaged from seq {} on: {reason}", damage.good_next_seq)]
    Damaged {
        /// What is still good.
        damage: Damage,
        /// For the operator's log; holds paths and offsets.
        reason: String,
    },
    /// The operating system refused a read.
    #[error("read failed: {0}")]
    Io(Arc<std::io::Error>),
    /// The index does not agree with the journal; it is being rebuilt.
    #[error("the index is being rebuilt")]
    Rebuilding,
    /// A bug.
    #[error("defect: {0}")]
    Defect(String),
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Whether an engine takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Writable,
    /// It has no room for more; nothing was lost, and it takes writes again when there is room.
    Full(Arc<str>),
    /// It never will, until it is opened anew.
    Poisoned(Arc<str>),
}

/// What every engine promises.
///
/// **Order.** [`commit`](Store::commit) is called by one thread at a time. Changes get positions in the order of the
/// calls and, within a call, of the slice. The caller guarantees that appends of a log are contiguous.
///
/// **Durability.** When `commit` returns `Ok`, its changes survive the death of the process and of the machine. They
/// become visible to `find`, `read` and `list` together with that, never earlier. When it returns an error, each
/// group is wholly there or wholly absent after the next open, and the engine refuses every further commit:
/// a page cache after a failed sync tells no truth.
///
/// **Truth.** What `read` returns was checked against its checksum now. A log is never shorter than what was
/// committed without `Found::damage` or `StoreError::Damaged` saying so. One damaged log leaves the others alone.
///
/// **Sharing.** The first events of a fork are those of other logs, under the same seqs: `read` gives them as if they
/// were its own, with the same bytes and the same chain, and nothing that others append later. Damage of a shared event
/// is damage of all who share it.
///
/// **Cost.** `find`, and `read` from any seq, cost the same for a log of ten events and of ten million, and a fork of
/// either too. A fork of forks costs one look more per log that it shares with.
pub trait Store: Send + Sync {
    /// A log id that was never used.
    fn allot(&self) -> LogId;

    /// Stores a group of changes with one sync.
    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError>;

    /// The live session of that name.
    fn find(&self, key: &SessionKey) -> Result<Option<Found>, StoreError>;

    /// Runs that cover the log from `from` on: the first one holds `from`, the next follow without a gap, until about
    /// `bytes_max` or the end. Empty at or past the end. Works for a log that was deleted until its space is
    /// reclaimed.
    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError>;

    /// A page of live sessions after `after`, newest change first.
    fn list(&self, filter: &ListFilter, after: Option<ListCursor>, count: usize) -> Result<ListPage, StoreError>;

    /// Keeps a note for a log, in the place of the one before. Costs no disk: it is written behind, may be lost at any
    /// time, and goes with the log.
    fn note(&self, log: LogId, note: Note);

    /// The last note of a log, or an older one of it, or none. The caller checks that it is about this log.
    fn noted(&self, log: LogId) -> Option<Note>;

    /// What a live log shares: the events below its `shared_until`. Empty for a log that stands alone.
    fn extents(&self, log: LogId) -> Result<Arc<[Extent]>, StoreError>;

    /// How many live sessions share events of this log.
    fn forks(&self, log: LogId) -> Result<u64, StoreError>;

    /// Whether the events `from..until` that this log holds may still be asked for: by itself while it is live or deleted
    /// but not purged, or by a session that shares them. What is not needed may leave the disk.
    fn needs(&self, log: LogId, from: Seq, until: Seq) -> Result<bool, StoreError>;

    /// Deleted logs that still hold something, after `after`, in the order of their ids. What they call unneeded stays
    /// so: only what shares an event already can be forked into something that shares it.
    fn remains(&self, after: Option<LogId>, count: usize) -> Result<Vec<Remains>, StoreError>;

    /// Changes by position from `from` on, without a hole, about `bytes_max` bytes of them but one group at least; empty
    /// past the last one. What damage took is there as lost. Where changes below a position are not kept any more, the
    /// page says so and starts behind them.
    fn changes(&self, from: Position, bytes_max: usize) -> Result<ChangePage, StoreError>;

    /// Live sessions by log after `after`, about `count` of them; empty when there are no more. The order does not change,
    /// so that who walks it while sessions change meets all that were there from start to end.
    fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Session>, StoreError>;

    /// Whether a commit would be taken.
    fn health(&self) -> Health;

    /// The position of the last committed change.
    fn position(&self) -> Position;

    /// Identifies this store among all stores.
    fn id(&self) -> [u8; 16];

    /// Makes the next open cheap. The engine refuses commits afterwards.
    fn close(&self);
}

/// An incarnation: 128 random bits.
pub fn new_incarnation() -> Incarnation {
    Incarnation(*uuid::Uuid::new_v4().as_bytes())
}

/// A random UUID, as text.
pub fn new_uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}
