//! From refusals to statuses: the one place with gRPC codes.

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb::{ErrorInfo, RetryInfo};

use super::pb;
use crate::service::{Error, Fact, Holding, Reason};

/// The domain of [`ErrorInfo`].
pub(super) const DOMAIN: &str = "quipu.v1";

/// Code and wire reason of each reason.
fn row(reason: Reason) -> (Code, pb::ErrorReason) {
    use Reason as R;
    use pb::ErrorReason as W;
    match reason {
        R::InvalidEvent => (Code::InvalidArgument, W::InvalidEvent),
        R::BracketViolation => (Code::InvalidArgument, W::BracketViolation),
        R::EventTooLarge => (Code::InvalidArgument, W::EventTooLarge),
        R::BatchTooLarge => (Code::InvalidArgument, W::BatchTooLarge),
        R::InvalidId => (Code::InvalidArgument, W::InvalidId),
        R::BadPageToken => (Code::InvalidArgument, W::BadPageToken),
        R::InvalidRequest => (Code::InvalidArgument, W::InvalidRequest),
        R::SessionNotFound => (Code::NotFound, W::SessionNotFound),
        R::EventNotFound => (Code::NotFound, W::EventNotFound),
        R::SessionExists => (Code::AlreadyExists, W::SessionExists),
        R::SeqConflict => (Code::Aborted, W::SeqConflict),
        R::SeqGap => (Code::Aborted, W::SeqGap),
        R::RevisionConflict => (Code::Aborted, W::RevisionConflict),
        R::Fenced => (Code::FailedPrecondition, W::Fenced),
        R::OwnerRequired => (Code::FailedPrecondition, W::OwnerRequired),
        R::LeaseHeld => (Code::FailedPrecondition, W::LeaseHeld),
        R::NotPublished => (Code::FailedPrecondition, W::NotPublished),
        R::TurnOpen => (Code::FailedPrecondition, W::TurnOpen),
        R::SessionLive => (Code::FailedPrecondition, W::SessionLive),
        R::ForkBoundary => (Code::FailedPrecondition, W::ForkBoundary),
        R::NotPrimary => (Code::FailedPrecondition, W::NotPrimary),
        R::FormatUnsupported => (Code::FailedPrecondition, W::FormatUnsupported),
        R::IncarnationMismatch => (Code::FailedPrecondition, W::IncarnationMismatch),
        R::HasForks => (Code::FailedPrecondition, W::HasForks),
        R::BeyondHead => (Code::OutOfRange, W::BeyondHead),
        R::Quota => (Code::ResourceExhausted, W::Quota),
        R::Rate => (Code::ResourceExhausted, W::Rate),
        R::StorageReadOnly => (Code::ResourceExhausted, W::StorageReadOnly),
        R::ReaderBudget => (Code::ResourceExhausted, W::ReaderBudget),
        R::Starting => (Code::Unavailable, W::Starting),
        R::Draining => (Code::Unavailable, W::Draining),
        R::ReplicaBehind => (Code::Unavailable, W::ReplicaBehind),
        R::SyncTimeout => (Code::Unavailable, W::SyncTimeout),
        R::SyncFailed => (Code::Unavailable, W::SyncFailed),
        R::CorruptRange => (Code::DataLoss, W::CorruptRange),
        R::ChainMismatch => (Code::DataLoss, W::ChainMismatch),
        R::TokenInvalid => (Code::Unauthenticated, W::TokenInvalid),
        R::Scope => (Code::PermissionDenied, W::Scope),
        R::Internal => (Code::Internal, W::Internal),
    }
}

/// The name that goes into [`ErrorInfo`]: the enum value without its prefix.
pub(super) fn name(reason: pb::ErrorReason) -> &'static str {
    reason.as_str_name().trim_start_matches("ERROR_REASON_")
}

impl From<Error> for pb::StreamRefusal {
    fn from(error: Error) -> Self {
        let (code, reason) = row(error.reason);
        let status = Status::from(error);
        let details = bytes::Bytes::copy_from_slice(status.details());
        Self {
            code: code.into(),
            reason: reason.into(),
            message: status.message().to_owned(),
            details,
            is_consequence: false,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, reason) = row(error.reason);
        let mut info = ErrorInfo {
            reason: name(reason).to_owned(),
            domain: DOMAIN.to_owned(),
            metadata: std::collections::HashMap::new(),
        };
        let detail = match error.fact {
            Fact::None => None,
            Fact::Field(field) => {
                info.metadata.insert("field".to_owned(), field);
                None
            }
            Fact::Named(facts) => {
                info.metadata.extend(facts.into_iter().map(|(name, value)| (name.to_owned(), value)));
                None
            }
            Fact::Conflict { head, first_differing_seq } => {
                info.metadata.insert("next_seq".to_owned(), head.next_seq.to_string());
                let first_differing_seq = first_differing_seq.map(crate::model::Seq::get);
                let detail = pb::ConflictDetail { head: Some((*head).into()), first_differing_seq };
                Some(any("quipu.v1.ConflictDetail", &detail))
            }
            Fact::Limit { name, size, limit } => {
                let facts = [("limit_name", name.to_owned()), ("size", size.to_string()), ("limit", limit.to_string())];
                info.metadata.extend(facts.map(|(key, value)| (key.to_owned(), value)));
                let detail = pb::LimitDetail { limit_name: name.to_owned(), size, limit };
                Some(any("quipu.v1.LimitDetail", &detail))
            }
            Fact::Owner(holding) => {
                info.metadata.extend(owner_facts(&holding));
                Some(any("quipu.v1.OwnerDetail", &pb::OwnerDetail { owner: Some(holding.into()) }))
            }
            Fact::Fenced { owner, committed } => {
                info.metadata.extend(owner.iter().flat_map(owner_facts));
                info.metadata.extend(committed.map(|committed| ("committed".to_owned(), committed.to_string())));
                Some(any("quipu.v1.FencedDetail", &pb::FencedDetail { owner: owner.map(Into::into), committed }))
            }
            Fact::Corrupt { good_next_seq } => {
                info.metadata.insert("good_next_seq".to_owned(), good_next_seq.to_string());
                let detail = pb::CorruptDetail { good_next_seq: good_next_seq.get() };
                Some(any("quipu.v1.CorruptDetail", &detail))
            }
        };
        let retry = error.reason.retry_after().and_then(|delay| prost_types::Duration::try_from(delay).ok());
        let retry = retry.map(|delay| any("google.rpc.RetryInfo", &RetryInfo { retry_delay: Some(delay) }));
        let details = [Some(any("google.rpc.ErrorInfo", &info)), retry, detail].into_iter().flatten().collect();
        let message = clipped(error.message);
        let whole = tonic_types::pb::Status { code: code.into(), message: message.clone(), details };
        Self::with_details(code, message, whole.encode_to_vec().into())
    }
}

/// What an owner is, for those who read metadata only.
fn owner_facts(holding: &Holding) -> [(String, String); 3] {
    let owner = &holding.owner;
    let facts = [("owner_epoch", owner.epoch.to_string()), ("owner_since_ms", owner.since_ms.to_string())];
    let [epoch, since_ms] = facts.map(|(name, value)| (name.to_owned(), value));
    [epoch, since_ms, ("owner".to_owned(), owner.holder.as_ref().to_owned())]
}

/// Longest message in bytes. It travels in an HTTP/2 header, escaped, and in the details again, and clients take
/// headers of 16 KiB or less.
const MESSAGE_BYTES_MAX: usize = 1000;

/// A message may quote what was sent, whose length only the request's own limit bounds.
pub(super) fn clipped(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push('\u{2026}');
    }
    message
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tonic_types::StatusExt;

    use super::*;

    #[test]
    fn every_reason_has_a_row_a_name_and_its_retry_advice_on_the_wire() {
        let mut seen = HashSet::new();
        for reason in Reason::ALL {
            let (code, wire) = row(reason);
            assert!(seen.insert(wire), "{wire:?} twice");
            let status = Status::from(Error::new(reason, "text"));
            assert_eq!((status.code(), status.message()), (code, "text"));
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (name(wire), DOMAIN));
            assert!(!info.reason.contains("ERROR_REASON"));
            let retry = details.retry_info().and_then(|retry| retry.retry_delay);
            assert_eq!(retry, reason.retry_after(), "{reason:?}");
            let waits = matches!(code, Code::Unavailable) || matches!(reason, Reason::Rate | Reason::ReaderBudget);
            assert_eq!(retry.is_some(), waits && reason != Reason::SyncFailed, "{reason:?}");
        }
        let named = (0..200).filter_map(|n| pb::ErrorReason::try_from(n).ok()).count();
        assert_eq!(named, seen.len() + 1, "every value of the schema but zero has a reason");
    }

    #[test]
    fn a_message_stays_small_enough_for_a_header() {
        let status = Status::from(Error::new(Reason::InvalidRequest, "\u{20ac}".repeat(100_000)));
        assert!(status.message().len() < 1010 && status.message().starts_with('\u{20ac}'));
        assert!(status.details().len() < 2000);
    }

    #[test]
    fn facts_travel_as_metadata_and_as_typed_details() {
        let status =
            Status::from(Error::new(Reason::EventTooLarge, "m").with(Fact::Limit { name: "n", size: 2, limit: 1 }));
        let whole = tonic_types::pb::Status::decode(status.details()).unwrap();
        let last = whole.details.last().unwrap();
        assert_eq!(last.type_url, "type.googleapis.com/quipu.v1.LimitDetail");
        let detail = pb::LimitDetail::decode(&last.value[..]).unwrap();
        assert_eq!((detail.limit_name.as_str(), detail.size, detail.limit), ("n", 2, 1));
        assert_eq!(status.get_error_details().error_info().unwrap().metadata["size"], "2");
    }
}
