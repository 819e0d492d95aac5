//! Why a call failed, in domain types.
//!
//! A refusal of the server keeps its reason and its typed detail. What never was an answer (no connection, no answer
//! in time, an answer that breaks the contract) is told apart, because then the outcome of the call is unknown. What to
//! do about it is not decided here; that is [`super::advice`].

use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::convert;
use super::{Head, Owner, Reason};
use crate::model::{EventError, IdError, Seq};
use crate::rpc::{client as wire, pb};

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The server refused, for a reason of the contract.
    Refused(Reason),
    /// A status without a reason that this version knows: from the transport, or from a newer server.
    Status(Code),
    /// No answer in time; the outcome is unknown.
    Timeout,
    /// An answer that breaks the contract: a defect, or something that is no quipu.
    Contract,
    /// The log is not what the server had confirmed before: confirmed events are gone, or others stand in their place.
    Diverged,
}

/// The typed facts of a refusal.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Detail {
    /// None.
    #[default]
    None,
    /// Where the log stands, and where the batch differs from it.
    Conflict {
        /// The head.
        head: Box<Head>,
        /// The first seq that differs, when something was compared.
        first_differing_seq: Option<Seq>,
    },
    /// A limit of the server.
    Limit {
        /// The setting.
        name: String,
        /// Found.
        size: u64,
        /// Allowed.
        limit: u64,
    },
    /// Another epoch is the current one.
    Fenced {
        /// The owner now, or the last one; absent when nobody ever was.
        owner: Option<Box<Owner>>,
        /// Whether the batch is stored, all of it. A [`super::SessionWriter`] means its last batch that was sent.
        committed: Option<bool>,
    },
    /// Somebody has the session.
    Owner(Box<Owner>),
    /// Events below are good.
    Corrupt {
        /// The first seq that cannot be proved.
        good_next_seq: Seq,
    },
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind of failure.
    pub cause: Cause,
    /// For people.
    pub message: String,
    /// For programs.
    pub detail: Detail,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl Error {
    pub(super) fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), detail: Detail::None, retry_after: None }
    }

    pub(super) fn contract(what: &str) -> Self {
        Self::new(Cause::Contract, format!("the server's answer breaks the contract: {what}"))
    }

    pub(super) fn timeout(limit: Duration) -> Self {
        Self::new(Cause::Timeout, format!("no answer within {limit:?}; the outcome is unknown"))
    }

    pub(super) fn diverged(message: impl Into<String>) -> Self {
        Self::new(Cause::Diverged, message)
    }

    /// The reason, when the server gave one.
    pub fn reason(&self) -> Option<Reason> {
        match self.cause {
            Cause::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

impl From<EventError> for Error {
    fn from(error: EventError) -> Self {
        let reason = match error {
            EventError::TooLarge { .. } => Reason::EventTooLarge,
            EventError::Field { .. } | EventError::Data(_) => Reason::InvalidEvent,
        };
        Self::new(Cause::Refused(reason), error.to_string())
    }
}

impl From<IdError> for Error {
    fn from(error: IdError) -> Self {
        Self::new(Cause::Refused(Reason::InvalidId), error.to_string())
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().and_then(|info| wire::reason(&info.domain, &info.reason));
        Self {
            cause: reason.map_or_else(|| Cause::Status(status.code()), Cause::Refused),
            message: match status.message() {
                "" => status.code().description().to_owned(),
                message => message.to_owned(),
            },
            detail: detail(&status).unwrap_or_default(),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
        }
    }
}

/// The typed detail of a status, if it has one that is whole.
fn detail(status: &Status) -> Option<Detail> {
    let whole = tonic_types::pb::Status::decode(status.details()).ok()?;
    whole.details.iter().find_map(|any| {
        let bytes = &any.value[..];
        match any.type_url.rsplit('/').next()? {
            "quipu.v1.ConflictDetail" => {
                let conflict = pb::ConflictDetail::decode(bytes).ok()?;
                let head = Box::new(convert::head(conflict.head?).ok()?);
                Some(Detail::Conflict { head, first_differing_seq: conflict.first_differing_seq.and_then(Seq::new) })
            }
            "quipu.v1.LimitDetail" => {
                let pb::LimitDetail { limit_name: name, size, limit } = pb::LimitDetail::decode(bytes).ok()?;
                Some(Detail::Limit { name, size, limit })
            }
            "quipu.v1.CorruptDetail" => {
                let corrupt = pb::CorruptDetail::decode(bytes).ok()?;
                Some(Detail::Corrupt { good_next_seq: Seq::saturating(corrupt.good_next_seq) })
            }
            "quipu.v1.FencedDetail" => {
                let fenced = pb::FencedDetail::decode(bytes).ok()?;
                Some(Detail::Fenced {
                    owner: fenced.owner.map(convert::owner).map(Box::new),
                    committed: fenced.committed,
                })
            }
            "quipu.v1.OwnerDetail" => {
                let owner = pb::OwnerDetail::decode(bytes).ok()?.owner?;
                Some(Detail::Owner(Box::new(convert::owner(owner))))
            }
            _ => None,
        }
    })
}
