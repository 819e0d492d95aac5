//! Between wire and values. In: checked, the refusal names the field. Out: cannot fail.

use crate::codec::summary::Turns;
use crate::model::header::FORMAT_VERSION;
use crate::model::{
    Event, Header, Incarnation, NewEvent, Origin, Profile, Seq, SessionKey, SurfaceOp, TakeOver, Tenure,
};
use crate::replay::admit::Report;
use crate::service::{AckLevel, Claim, Error, FirstClaim, Head, Holding, Reason, Session, TailState};

use super::pb;
use super::status::clipped;

type Result<T> = std::result::Result<T, Error>;

fn invalid<T>(field: &str, problem: impl std::fmt::Display) -> Result<T> {
    Err(Error::field(Reason::InvalidRequest, field, problem))
}

pub(super) fn key(namespace: &str, id: &str) -> Result<SessionKey> {
    Ok(SessionKey::new(namespace, id)?)
}

pub(super) fn incarnation(bytes: Option<&[u8]>) -> Result<Option<Incarnation>> {
    let Some(bytes) = bytes else { return Ok(None) };
    match bytes.try_into() {
        Ok(bytes) => Ok(Some(Incarnation(bytes))),
        Err(_) => invalid("incarnation", format_args!("has {} bytes; 16 are needed", bytes.len())),
    }
}

pub(super) fn seq(field: &str, number: u64) -> Result<Seq> {
    Seq::new(number).map_or_else(|| invalid(field, "must be at most 2^53 - 1"), Ok)
}

pub(super) fn ack_level(level: Option<i32>) -> Result<AckLevel> {
    match level.map(pb::AckLevel::try_from) {
        None | Some(Ok(pb::AckLevel::Durable)) => Ok(AckLevel::Durable),
        Some(Ok(pb::AckLevel::Accepted)) => Ok(AckLevel::Accepted),
        Some(Ok(pb::AckLevel::Unspecified) | Err(_)) => {
            invalid("ack_level", "is not a level; leave it out for DURABLE")
        }
    }
}

impl From<AckLevel> for pb::AckLevel {
    fn from(level: AckLevel) -> Self {
        match level {
            AckLevel::Accepted => Self::Accepted,
            AckLevel::Durable => Self::Durable,
        }
    }
}

pub(super) fn profile(profile: Option<i32>) -> Result<Profile> {
    match profile.map(pb::Profile::try_from) {
        None | Some(Ok(pb::Profile::Dsh)) => Ok(Profile::Dsh),
        Some(Ok(pb::Profile::DshStrict)) => Ok(Profile::DshStrict),
        Some(Ok(pb::Profile::Raw)) => Ok(Profile::Raw),
        Some(Ok(pb::Profile::Unspecified) | Err(_)) => invalid("profile", "is not a profile; leave it out for DSH"),
    }
}

/// The header without its id.
pub(super) fn header(header: pb::Header) -> Result<Header> {
    let origin = match header.origin.map(pb::Origin::try_from) {
        None => None,
        Some(Ok(pb::Origin::Subagent)) => Some(Origin::Subagent),
        Some(Ok(pb::Origin::Unspecified) | Err(_)) => {
            return invalid("header.origin", "is not an origin; leave it out");
        }
    };
    Ok(Header {
        created_at_ms: header.created_at_ms.unwrap_or_default(),
        cwd: header.cwd,
        parent_session: header.parent_session,
        seed_length: header.seed_length,
        origin,
        delegation_depth: header.delegation_depth,
        agent_preset: header.agent_preset,
        labels: header.labels.into_iter().collect(),
    })
}

/// One event of a batch; sizes and JSON are the service's to check.
pub(super) fn new_event(index: usize, event: pb::NewEvent) -> Result<NewEvent> {
    let field = |name: &str| format!("events[{index}].{name}");
    let invalid = |name: &str, problem: &str| Error::field(Reason::InvalidEvent, field(name), problem);
    let surface_op = match event.surface_op.map(|surface| surface.op) {
        None => None,
        Some(Some(pb::surface_op::Op::Append(pb::SurfaceAppend {}))) => Some(SurfaceOp::Append),
        Some(Some(pb::surface_op::Op::Replace(pb::SurfaceReplace { start, end }))) => {
            let seq =
                |n| Seq::new(n).ok_or_else(|| invalid("surface_op.replace", "must name seqs of at most 2^53 - 1"));
            Some(SurfaceOp::Replace { start: seq(start)?, end: seq(end)? })
        }
        Some(None) => return Err(invalid("surface_op", "is neither append nor replace")),
    };
    let sources = |list: pb::SourceEventSeqs| {
        let seqs: Option<Vec<Seq>> = list.seqs.into_iter().map(Seq::new).collect();
        seqs.ok_or_else(|| invalid("source_event_seqs", "must name seqs of at most 2^53 - 1"))
    };
    Ok(NewEvent {
        time_ms: event.time_ms,
        kind: event.r#type.into(),
        data: event.data,
        ignorable: event.ignorable,
        surface_op,
        source_event_seqs: event.source_event_seqs.map(sources).transpose()?,
    })
}

impl From<Event> for pb::Event {
    fn from(event: Event) -> Self {
        let body = event.body;
        Self {
            seq: event.seq.get(),
            time_ms: body.time_ms,
            r#type: body.kind.as_ref().to_owned(),
            data: body.data,
            ignorable: body.ignorable,
            surface_op: body.surface_op.map(Into::into),
            source_event_seqs: body.source_event_seqs.map(source_event_seqs),
        }
    }
}

impl From<NewEvent> for pb::NewEvent {
    fn from(event: NewEvent) -> Self {
        Self {
            time_ms: event.time_ms,
            r#type: event.kind.as_ref().to_owned(),
            data: event.data,
            ignorable: event.ignorable,
            surface_op: event.surface_op.map(Into::into),
            source_event_seqs: event.source_event_seqs.map(source_event_seqs),
        }
    }
}

fn source_event_seqs(seqs: Vec<Seq>) -> pb::SourceEventSeqs {
    pb::SourceEventSeqs { seqs: seqs.into_iter().map(Seq::get).collect() }
}

impl From<SurfaceOp> for pb::SurfaceOp {
    fn from(op: SurfaceOp) -> Self {
        let op = match op {
            SurfaceOp::Append => pb::surface_op::Op::Append(pb::SurfaceAppend {}),
            SurfaceOp::Replace { start, end } => {
                pb::surface_op::Op::Replace(pb::SurfaceReplace { start: start.get(), end: end.get() })
            }
        };
        Self { op: Some(op) }
    }
}

impl From<Head> for pb::Head {
    fn from(head: Head) -> Self {
        Self {
            next_seq: head.next_seq.get(),
            durable_next_seq: head.durable_next_seq.get(),
            revision: head.revision.to_vec().into(),
            chain: head.chain.0.to_vec().into(),
            incarnation: head.incarnation.0.to_vec().into(),
            updated_at_ms: head.updated_ms,
            tail: head.tail.map(Into::into),
            owner: head.owner.map(Into::into),
        }
    }
}

impl From<Holding> for pb::Owner {
    fn from(holding: Holding) -> Self {
        let owner = holding.owner;
        let state = match owner.tenure {
            Tenure::Reserved => pb::OwnerState::Reserved,
            Tenure::Live => pb::OwnerState::Live,
            Tenure::Released => pb::OwnerState::Released,
        };
        Self {
            epoch: owner.epoch,
            holder: owner.holder.as_ref().to_owned(),
            state: state.into(),
            since_ms: owner.since_ms,
            expires_in_ms: holding.expires_in.map(|left| left.as_millis() as u64),
        }
    }
}

impl From<&TakeOver> for pb::TakeOver {
    fn from(take_over: &TakeOver) -> Self {
        Self {
            epoch: take_over.epoch,
            at_ms: take_over.at_ms,
            holder: take_over.holder.as_ref().to_owned(),
            from_holder: take_over.from.as_ref().to_owned(),
            reason: take_over.reason.as_ref().to_owned(),
        }
    }
}

/// What a new session is to belong to.
pub(super) fn first_claim(claim: Option<pb::FirstClaim>) -> Result<Option<FirstClaim>> {
    let Some(pb::FirstClaim { holder, ttl_ms, publish }) = claim else { return Ok(None) };
    Ok(Some(FirstClaim { claim: Claim::new(&holder, ttl_ms, None)?, publish }))
}

/// An event with its place, from a client.
pub(super) fn event(index: usize, event: pb::Event) -> Result<Event> {
    let seq = seq("closers[].seq", event.seq)?;
    let body = pb::NewEvent {
        time_ms: event.time_ms,
        r#type: event.r#type,
        data: event.data,
        ignorable: event.ignorable,
        surface_op: event.surface_op,
        source_event_seqs: event.source_event_seqs,
    };
    Ok(Event { seq, body: new_event(index, body)? })
}

impl From<TailState> for pb::TailState {
    fn from(tail: TailState) -> Self {
        let open_turn = tail.open_turn.map(|(turn, since)| pb::OpenTurn { turn, since_seq: since.get() });
        Self { open_turn, breaches: tail.breaches }
    }
}

impl From<Report> for pb::BreachReport {
    fn from(Report { seq, breach }: Report) -> Self {
        let (rule, field) = (breach.rule().to_owned(), breach.field().to_owned());
        Self { seq: seq.get(), rule, field, text: clipped(breach.to_string()) }
    }
}

impl From<Profile> for pb::Profile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Dsh => Self::Dsh,
            Profile::DshStrict => Self::DshStrict,
            Profile::Raw => Self::Raw,
        }
    }
}

impl From<Session> for pb::Session {
    fn from(session: Session) -> Self {
        let birth = &session.birth;
        let profile = pb::Profile::from(birth.profile);
        Self {
            namespace: birth.key.namespace.as_str().to_owned(),
            header: Some(pb_header(birth.key.id.as_str(), birth.header.clone())),
            profile: profile.into(),
            title: session.summary.title.map(|title| title.text),
            bytes: session.summary.bytes,
            events: session.head.next_seq.get(),
            shared_events: session.shared_until.get(),
            forks: session.forks,
            turn_open: session.summary.turns == Turns::Open,
            take_overs: session.owner.iter().flat_map(|owner| &owner.take_overs).map(Into::into).collect(),
            head: Some(session.head.into()),
        }
    }
}

/// A header with its id, as the wire has it.
pub(super) fn pb_header(id: &str, header: Header) -> pb::Header {
    const { assert!(FORMAT_VERSION == 0) };
    let origin = header.origin.map(|Origin::Subagent| pb::Origin::Subagent.into());
    pb::Header {
        id: id.to_owned(),
        created_at_ms: Some(header.created_at_ms),
        cwd: header.cwd,
        parent_session: header.parent_session,
        seed_length: header.seed_length,
        origin,
        delegation_depth: header.delegation_depth,
        agent_preset: header.agent_preset,
        labels: header.labels.into_iter().collect(),
    }
}
