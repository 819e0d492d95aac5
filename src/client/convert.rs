//! From the wire to the values of the client. An answer is checked like a request: what breaks the contract is an error
//! that says so, never a default.

use super::outbox::Ack;
use super::{AckLevel, Error, Head, Owner, Session};
use crate::codec::Chain;
use crate::model::{Incarnation, Profile, Seq, SessionKey, Tenure};
use crate::rpc::{client as wire, pb};

/// A head.
pub(super) fn head(head: pb::Head) -> Result<Head, Error> {
    Ok(Head {
        next_seq: Seq::saturating(head.next_seq),
        durable_next_seq: Seq::saturating(head.durable_next_seq),
        chain: chain(&head.chain)?,
        incarnation: incarnation(&head.incarnation)?,
        updated_ms: head.updated_at_ms,
        open_turn: head.tail.and_then(|tail| tail.open_turn).map(|turn| Seq::saturating(turn.since_seq)),
        revision: head.revision.to_vec(),
        owner: head.owner.map(owner),
    })
}

/// An owner. What a newer server calls otherwise is held to be a reservation, which takes no appends.
pub(super) fn owner(owner: pb::Owner) -> Owner {
    let tenure = match owner.state() {
        pb::OwnerState::Live => Tenure::Live,
        pb::OwnerState::Released => Tenure::Released,
        pb::OwnerState::Reserved | pb::OwnerState::Unspecified => Tenure::Reserved,
    };
    let pb::Owner { epoch, holder, since_ms, expires_in_ms, .. } = owner;
    Owner { epoch, holder, tenure, since_ms, expires_in_ms }
}

/// A head that must be there.
pub(super) fn some_head(found: Option<pb::Head>) -> Result<Head, Error> {
    head(found.ok_or_else(|| Error::contract("no head"))?)
}

/// A session that must be there.
pub(super) fn some_session(session: Option<pb::Session>) -> Result<Session, Error> {
    let session = session.ok_or_else(|| Error::contract("no session"))?;
    let header = session.header.ok_or_else(|| Error::contract("no header"))?;
    let profile = match pb::Profile::try_from(session.profile) {
        Ok(pb::Profile::Dsh) => Profile::Dsh,
        Ok(pb::Profile::DshStrict) => Profile::DshStrict,
        Ok(pb::Profile::Raw) => Profile::Raw,
        Ok(pb::Profile::Unspecified) | Err(_) => return Err(Error::contract("an unknown profile")),
    };
    Ok(Session {
        key: SessionKey::new(&session.namespace, &header.id)?,
        header: wire::header_of(header).ok_or_else(|| Error::contract("a header that is none"))?,
        profile,
        head: some_head(session.head)?,
    })
}

/// A chain value.
pub(super) fn chain(bytes: &[u8]) -> Result<Chain, Error> {
    bytes.try_into().map(Chain).map_err(|_| Error::contract("a chain without 32 bytes"))
}

fn incarnation(bytes: &[u8]) -> Result<Incarnation, Error> {
    bytes.try_into().map(Incarnation).map_err(|_| Error::contract("an incarnation without 16 bytes"))
}

/// The answer of an append.
pub(super) fn ack(response: pb::AppendResponse) -> Result<Ack, Error> {
    let level = level(response.ack_level())?;
    let head = some_head(response.head)?;
    Ok(Ack { durable_next_seq: head.durable_next_seq, head: Some(head), level, deduplicated: response.deduplicated })
}

/// The level that was reached.
pub(super) fn level(level: pb::AckLevel) -> Result<AckLevel, Error> {
    match level {
        pb::AckLevel::Accepted => Ok(AckLevel::Accepted),
        pb::AckLevel::Durable => Ok(AckLevel::Durable),
        pb::AckLevel::Unspecified => Err(Error::contract("an unknown level")),
    }
}
