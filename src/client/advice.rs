//! What a caller does about a failure: the error table of the contract, as code.
//!
//! One row per reason, without a wildcard, so that a new reason does not compile until somebody has decided. The rows
//! follow the comments of `errors.proto`. Statuses without a reason come from the transport, or from something between
//! client and server, and go by their code.

use tonic::Code;

use super::Reason;
use super::error::{Cause, Error};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The same call again, after a pause. It may have been carried out; an exact repetition is never stored twice.
    Again,
    /// Look where the log stands; the head comes with the refusal.
    Look,
    /// The same in smaller pieces. Nothing was stored.
    Split,
    /// Somebody else has the session: write no more.
    Yield,
    /// Nothing helps that a program could decide: correct the request, or ask an operator.
    Stop,
}

/// The row of a reason.
pub fn advice(reason: Reason) -> Advice {
    use Reason as R;
    match reason {
        R::Rate
        | R::ReaderBudget
        | R::Starting
        | R::Draining
        | R::ReplicaBehind
        | R::SyncTimeout
        // The store is read-only until it is opened again, or has room again; the events must be kept until then.
        | R::SyncFailed
        | R::StorageReadOnly => Advice::Again,
        R::SeqConflict | R::SeqGap | R::RevisionConflict => Advice::Look,
        R::BatchTooLarge => Advice::Split,
        R::Fenced | R::OwnerRequired | R::LeaseHeld | R::SessionLive => Advice::Yield,
        R::InvalidEvent
        | R::BracketViolation
        | R::EventTooLarge
        | R::InvalidId
        | R::BadPageToken
        | R::InvalidRequest
        | R::SessionNotFound
        | R::EventNotFound
        | R::SessionExists
        | R::NotPublished
        | R::TurnOpen
        | R::ForkBoundary
        | R::NotPrimary
        | R::FormatUnsupported
        | R::IncarnationMismatch
        | R::HasForks
        | R::BeyondHead
        | R::Quota
        | R::CorruptRange
        | R::ChainMismatch
        | R::TokenInvalid
        | R::Scope
        | R::Internal => Advice::Stop,
    }
}

impl Error {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self.cause {
            Cause::Refused(reason) => advice(reason),
            Cause::Timeout => Advice::Again,
            Cause::Status(code) => of_code(code),
            Cause::Contract | Cause::Diverged => Advice::Stop,
        }
    }

    /// Whether the call may have been carried out although it failed.
    pub fn is_in_doubt(&self) -> bool {
        match self.cause {
            Cause::Refused(reason) => {
                matches!(reason, Reason::SyncTimeout | Reason::SyncFailed | Reason::Internal)
            }
            Cause::Status(_) | Cause::Timeout | Cause::Contract => true,
            Cause::Diverged => false,
        }
    }
}

/// The row of a status without a reason.
fn of_code(code: Code) -> Advice {
    match code {
        // What tonic makes of connections that break, in their different ways.
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::Internal
        | Code::DeadlineExceeded
        | Code::ResourceExhausted => Advice::Again,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => Advice::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service;

    /// The table once more, by hand, in the order of `errors.proto`: code and test must agree row by row.
    const ROWS: [(&str, Advice); 39] = [
        ("INVALID_EVENT", Advice::Stop),
        ("BRACKET_VIOLATION", Advice::Stop),
        ("EVENT_TOO_LARGE", Advice::Stop),
        ("BATCH_TOO_LARGE", Advice::Split),
        ("INVALID_ID", Advice::Stop),
        ("BAD_PAGE_TOKEN", Advice::Stop),
        ("INVALID_REQUEST", Advice::Stop),
        ("SESSION_NOT_FOUND", Advice::Stop),
        ("EVENT_NOT_FOUND", Advice::Stop),
        ("SESSION_EXISTS", Advice::Stop),
        ("SEQ_CONFLICT", Advice::Look),
        ("SEQ_GAP", Advice::Look),
        ("REVISION_CONFLICT", Advice::Look),
        ("FENCED", Advice::Yield),
        ("OWNER_REQUIRED", Advice::Yield),
        ("LEASE_HELD", Advice::Yield),
        ("NOT_PUBLISHED", Advice::Stop),
        ("TURN_OPEN", Advice::Stop),
        ("SESSION_LIVE", Advice::Yield),
        ("FORK_BOUNDARY", Advice::Stop),
        ("NOT_PRIMARY", Advice::Stop),
        ("FORMAT_UNSUPPORTED", Advice::Stop),
        ("INCARNATION_MISMATCH", Advice::Stop),
        ("HAS_FORKS", Advice::Stop),
        ("BEYOND_HEAD", Advice::Stop),
        ("QUOTA", Advice::Stop),
        ("RATE", Advice::Again),
        ("STORAGE_READ_ONLY", Advice::Again),
        ("READER_BUDGET", Advice::Again),
        ("STARTING", Advice::Again),
        ("DRAINING", Advice::Again),
        ("REPLICA_BEHIND", Advice::Again),
        ("SYNC_TIMEOUT", Advice::Again),
        ("SYNC_FAILED", Advice::Again),
        ("CORRUPT_RANGE", Advice::Stop),
        ("CHAIN_MISMATCH", Advice::Stop),
        ("TOKEN_INVALID", Advice::Stop),
        ("SCOPE", Advice::Stop),
        ("INTERNAL", Advice::Stop),
    ];

    #[test]
    fn every_reason_comes_back_from_its_status_with_its_row() {
        assert_eq!(ROWS.len(), Reason::ALL.len());
        for (reason, (name, row)) in Reason::ALL.into_iter().zip(ROWS) {
            let status = tonic::Status::from(service::Error::new(reason, "text"));
            let error = Error::from(status);
            assert_eq!(error.cause, Cause::Refused(reason), "{name}");
            assert_eq!((error.message.as_str(), error.retry_after), ("text", reason.retry_after()), "{name}");
            assert_eq!(error.advice(), row, "{name}");
            assert_eq!(crate::rpc::client::reason("quipu.v1", name), Some(reason), "{name}");
            // Where the server says to wait, waiting is the advice.
            assert!(reason.retry_after().is_none() || row == Advice::Again, "{name}");
        }
    }

    #[test]
    fn a_status_without_a_reason_goes_by_its_code_and_its_outcome_is_unknown() {
        for n in 0..=16 {
            let code = Code::from_i32(n);
            let error = Error::from(tonic::Status::new(code, ""));
            let again = matches!(n, 1 | 2 | 4 | 8 | 13 | 14);
            assert_eq!(error.advice() == Advice::Again, again, "{code:?}");
            assert!(error.is_in_doubt() && !error.message.is_empty(), "{code:?}");
        }
    }
}
