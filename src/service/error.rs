//! Why an operation was refused, by what the caller does next (design: one table of reasons).

use std::time::Duration;

use crate::model::{EventError, HeaderError, IdError, Seq};
use crate::replay::admit::{Refusal, Violation};
use crate::replay::vocabulary::UnknownType;
use crate::store::StoreError;

use super::{Head, Holding};

/// The reasons of the contract, one to one with `quipu.v1.ErrorReason`; their meaning stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "errors.proto is the text; a second one would drift")]
pub enum Reason {
    InvalidEvent,
    BracketViolation,
    EventTooLarge,
    BatchTooLarge,
    InvalidId,
    BadPageToken,
    InvalidRequest,
    SessionNotFound,
    EventNotFound,
    SessionExists,
    SeqConflict,
    SeqGap,
    RevisionConflict,
    Fenced,
    OwnerRequired,
    LeaseHeld,
    NotPublished,
    TurnOpen,
    SessionLive,
    ForkBoundary,
    NotPrimary,
    FormatUnsupported,
    IncarnationMismatch,
    HasForks,
    BeyondHead,
    Quota,
    Rate,
    StorageReadOnly,
    ReaderBudget,
    Starting,
    Draining,
    ReplicaBehind,
    SyncTimeout,
    SyncFailed,
    CorruptRange,
    ChainMismatch,
    TokenInvalid,
    Scope,
    Internal,
}

impl Reason {
    /// All of them, for the tables that must be complete.
    pub const ALL: [Self; 39] = [
        Self::InvalidEvent,
        Self::BracketViolation,
        Self::EventTooLarge,
        Self::BatchTooLarge,
        Self::InvalidId,
        Self::BadPageToken,
        Self::InvalidRequest,
        Self::SessionNotFound,
        Self::EventNotFound,
        Self::SessionExists,
        Self::SeqConflict,
        Self::SeqGap,
        Self::RevisionConflict,
        Self::Fenced,
        Self::OwnerRequired,
        Self::LeaseHeld,
        Self::NotPublished,
        Self::TurnOpen,
        Self::SessionLive,
        Self::ForkBoundary,
        Self::NotPrimary,
        Self::FormatUnsupported,
        Self::IncarnationMismatch,
        Self::HasForks,
        Self::BeyondHead,
        Self::Quota,
        Self::Rate,
        Self::StorageReadOnly,
        Self::ReaderBudget,
        Self::Starting,
        Self::Draining,
        Self::ReplicaBehind,
        Self::SyncTimeout,
        Self::SyncFailed,
        Self::CorruptRange,
        Self::ChainMismatch,
        Self::TokenInvalid,
        Self::Scope,
        Self::Internal,
    ];

    /// How long to wait before trying again, where waiting helps.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Rate | Self::ReaderBudget => Some(Duration::from_millis(50)),
            Self::Starting | Self::Draining | Self::ReplicaBehind => Some(Duration::from_millis(500)),
            Self::SyncTimeout => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// A typed fact that goes with a reason.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Nothing beyond the message.
    None,
    /// The field that is wrong, by its wire name.
    Field(String),
    /// Where the log stands, and where the batch differs.
    Conflict {
        /// The head.
        head: Box<Head>,
        /// The first seq that differs, when something was compared.
        first_differing_seq: Option<Seq>,
    },
    /// A limit, the size found and the size allowed.
    Limit {
        /// The setting.
        name: &'static str,
        /// Found.
        size: u64,
        /// Allowed.
        limit: u64,
    },
    /// Who has the session now.
    Owner(Holding),
    /// Who has it instead of the caller, and whether the caller's batch is stored.
    Fenced {
        /// The owner, or the last one; `None` when there never was one.
        owner: Option<Holding>,
        /// Whether the batch is stored; `None` when there was none.
        committed: Option<bool>,
    },
    /// Facts by name, as metadata.
    Named(Vec<(&'static str, String)>),
    /// The seq up to which events are good.
    Corrupt {
        /// Events below are good.
        good_next_seq: Seq,
    },
}

/// A refusal.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The reason.
    pub reason: Reason,
    /// For people: lower case, without a full stop, names the field or the session.
    pub message: String,
    /// For programs.
    pub fact: Fact,
}

impl Error {
    /// A refusal without a fact.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), fact: Fact::None }
    }

    /// A refusal of one field of the request.
    pub fn field(reason: Reason, field: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let field = field.into();
        Self { reason, message: format!("`{field}` {problem}"), fact: Fact::Field(field) }
    }

    /// Where the log ends, accepted and durable, if the refusal says so; else zeros.
    pub fn ends(&self) -> (u64, u64) {
        match &self.fact {
            Fact::Conflict { head, .. } => (head.next_seq.get(), head.durable_next_seq.get()),
            _ => (0, 0),
        }
    }

    /// The same refusal with a fact.
    #[must_use]
    pub fn with(self, fact: Fact) -> Self {
        Self { fact, ..self }
    }

    /// The refusal of an event of a batch that starts at `first_seq`, by the rule that it breaks.
    pub(super) fn rule(refusal: &Refusal, first_seq: Seq) -> Self {
        let Refusal { seq, violation } = refusal;
        let reason = match violation {
            Violation::Nesting(_) => Reason::BracketViolation,
            _ => Reason::InvalidEvent,
        };
        let field = format!("events[{}].{}", seq.get().saturating_sub(first_seq.get()), violation.field());
        let message = format!("`{field}` (seq {seq}): {violation}");
        let facts = vec![("seq", seq.to_string()), ("field", field), ("rule", violation.rule().to_owned())];
        Self::new(reason, message).with(Fact::Named(facts))
    }

    /// The refusal to derive anything from a log, because of the event at `seq`.
    pub(super) fn unreadable(seq: Seq, problem: impl std::fmt::Display) -> Self {
        let message = format!("no view of this log: the event at seq {seq}: {problem}");
        Self::new(Reason::FormatUnsupported, message).with(Fact::Named(vec![("seq", seq.to_string())]))
    }

    pub(super) fn limit(reason: Reason, name: &'static str, size: usize, limit: usize) -> Self {
        let (size, limit) = (size as u64, limit as u64);
        let message = format!("{size} is more than `{name}` = {limit}");
        Self { reason, message, fact: Fact::Limit { name, size, limit } }
    }

    /// The refusal of the event at `index` of a batch.
    pub(super) fn event(index: usize, error: EventError) -> Self {
        match error {
            EventError::TooLarge { bytes, max } => {
                let refusal = Self::limit(Reason::EventTooLarge, "event_bytes_max", bytes, max);
                Self { message: format!("`events[{index}].data` has {bytes} bytes; {max} are allowed"), ..refusal }
            }
            EventError::Field { field, problem } => {
                Self::field(Reason::InvalidEvent, format!("events[{index}].{field}"), problem)
            }
            EventError::Data(problem) => Self::field(Reason::InvalidEvent, format!("events[{index}].data"), problem),
        }
    }
}

impl From<IdError> for Error {
    fn from(error: IdError) -> Self {
        Self::new(Reason::InvalidId, error.to_string())
    }
}

impl From<HeaderError> for Error {
    fn from(error: HeaderError) -> Self {
        Self::field(Reason::InvalidRequest, "header", error)
    }
}

impl From<UnknownType> for Error {
    fn from(error: UnknownType) -> Self {
        let facts = vec![("seq", error.seq.to_string()), ("type", error.kind.clone())];
        Self::new(Reason::FormatUnsupported, error.to_string()).with(Fact::Named(facts))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Poisoned(_) => {
                Self::new(Reason::StorageReadOnly, "the store is read-only; see the server's log")
            }
            StoreError::Damaged { damage, .. } => corrupt(damage.good_next_seq),
            StoreError::Rebuilding => Self::new(Reason::Starting, "the index is being rebuilt"),
            StoreError::Io(error) => {
                tracing::error!(%error, "a read failed");
                Self::new(Reason::Internal, "a read failed; see the server's log")
            }
            StoreError::Defect(problem) => {
                tracing::error!(problem, "defect");
                Self::new(Reason::Internal, "a defect of the server; see its log")
            }
        }
    }
}

/// The refusal to serve events that cannot be proved.
pub(super) fn corrupt(good_next_seq: Seq) -> Error {
    let message = format!("stored events from seq {good_next_seq} on are damaged or cannot be proved complete");
    Error::new(Reason::CorruptRange, message).with(Fact::Corrupt { good_next_seq })
}
