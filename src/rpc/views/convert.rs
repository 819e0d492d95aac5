//! Conversions of the views.

use std::sync::Arc;

use bytes::Bytes;

use super::super::convert::{incarnation, key, seq};
use super::super::pb;
use super::super::sessions::missing;
use super::super::status::clipped;
use crate::model::Seq;
use crate::replay::attempts::{Attempt, Outcome, TokenUsage};
use crate::replay::filter::{Clause, FilterError, Needle, Range};
use crate::replay::pairing::PairingError;
use crate::replay::trace::{EventRecord, Status};
use crate::service::{Ask, Assembled, Basis, Error, Fact, Family, History, Reason, RecordQuery, Relative, Statistics};

type Result<T> = std::result::Result<T, Error>;

pub(super) fn ask(log: Option<pb::LogView>) -> Result<Ask> {
    let log = log.ok_or_else(|| missing("log"))?;
    let is_balanced = match log.balance.map(pb::Balance::try_from) {
        None | Some(Ok(pb::Balance::Physical)) => false,
        Some(Ok(pb::Balance::Balanced)) => true,
        Some(Ok(pb::Balance::Unspecified) | Err(_)) => {
            let problem = "is not a balance; leave it out for PHYSICAL";
            return Err(Error::field(Reason::InvalidRequest, "log.balance", problem));
        }
    };
    Ok(Ask {
        key: key(&log.namespace, &log.session_id)?,
        incarnation: incarnation(log.incarnation.as_deref())?,
        before: log.before_seq.map(|before| seq("log.before_seq", before)).transpose()?,
        is_balanced,
    })
}

/// The size of a page, given the usual and the largest one.
pub(super) fn page_size(asked: u32, (usual, max): (u32, u32)) -> Result<usize> {
    match asked {
        0 => Ok(usual as usize),
        size if size > max => {
            let problem = format!("is {size}; at most {max} are allowed");
            Err(Error::field(Reason::InvalidRequest, "page_size", problem))
        }
        size => Ok(size as usize),
    }
}

/// Messages in frames of about `bytes_max`, at least one message each.
pub(super) fn message_frames(messages: Vec<(Seq, Arc<str>, Bytes)>, bytes_max: usize) -> Vec<pb::MessageFrame> {
    let mut frames: Vec<pb::MessageFrame> = Vec::new();
    let mut bytes = usize::MAX;
    for (seq, kind, message) in messages {
        bytes = bytes.saturating_add(message.len() + 64);
        if bytes > bytes_max {
            bytes = message.len();
            frames.push(pb::MessageFrame::default());
        }
        if let Some(frame) = frames.last_mut() {
            frame.messages.push(pb::Message { seq: seq.get(), r#type: kind.as_ref().to_owned(), message });
        }
    }
    frames
}

pub(super) fn pairing(pairing: std::result::Result<bool, PairingError>) -> pb::Pairing {
    match pairing {
        Ok(true) => pb::Pairing { is_balanced: true, problem: String::new() },
        Ok(false) => pb::Pairing { is_balanced: false, problem: "tool calls have no result".to_owned() },
        Err(error) => pb::Pairing { is_balanced: false, problem: error.to_string() },
    }
}

pub(super) fn assembled(assembled: Assembled, bytes_max: usize) -> Result<pb::AssembleAttemptResponse> {
    let texts = [&assembled.usage, &assembled.finish, &assembled.replay_state];
    let bytes = texts.into_iter().flatten().chain(&assembled.blocks).map(String::len).sum::<usize>();
    if bytes > bytes_max {
        let (size, limit) = (bytes as u64, bytes_max as u64);
        let message = format!("the attempt has {size} bytes; {limit} fit into an answer; read its events instead");
        let fact = Fact::Limit { name: "event_bytes_max", size, limit };
        return Err(Error::new(Reason::EventTooLarge, message).with(fact));
    }
    Ok(pb::AssembleAttemptResponse {
        basis: Some(assembled.basis.into()),
        attempt: Some(assembled.attempt.into()),
        blocks: assembled.blocks.into_iter().map(Into::into).collect(),
        usage: assembled.usage.map(Into::into),
        finish: assembled.finish.map(Into::into),
        replay_state: assembled.replay_state.map(Into::into),
        problem: assembled.problem.map(clipped).unwrap_or_default(),
    })
}

pub(super) fn history_start(history: &History) -> pb::ReadHistoryStart {
    let next = |seq: Seq| seq.get() + 1;
    pb::ReadHistoryStart {
        basis: Some(history.basis.into()),
        first_seq: history.page.range.map(|(first, _)| first.get()),
        next_seq: history.page.range.map_or(0, |(_, last)| next(last)),
        has_more: history.page.has_more,
        is_capped: history.page.is_capped,
    }
}

pub(super) fn record_query(request: pb::ListEventRecordsRequest) -> Result<RecordQuery> {
    let refused = |field: &'static str| move |e: FilterError| Error::field(Reason::InvalidRequest, field, e);
    let mut clauses = Vec::new();
    if !request.types.is_empty() {
        clauses.push(Clause::Types(request.types));
    }
    if !request.statuses.is_empty() {
        clauses.push(Clause::Statuses(request.statuses.into_iter().map(status).collect::<Result<_>>()?));
    }
    if request.time_from_ms.is_some() || request.time_to_ms.is_some() {
        let range = Range::new("time", request.time_from_ms, request.time_to_ms);
        clauses.push(Clause::Time(range.map_err(refused("time_from_ms"))?));
    }
    if let Some(text) = request.text {
        clauses.push(Clause::Text(Needle::new(&text).map_err(refused("text"))?));
    }
    let count = page_size(request.page_size, (1000, 10_000))?;
    Ok(RecordQuery { from: seq("from_seq", request.from_seq)?, count, clauses })
}

fn status(status: i32) -> Result<Status> {
    match pb::EventStatus::try_from(status) {
        Ok(pb::EventStatus::Current) => Ok(Status::Current),
        Ok(pb::EventStatus::Shadowed) => Ok(Status::Shadowed),
        Ok(pb::EventStatus::LogOnly) => Ok(Status::LogOnly),
        Ok(pb::EventStatus::Unspecified) | Err(_) => {
            Err(Error::field(Reason::InvalidRequest, "statuses", "holds something that is not a status"))
        }
    }
}

pub(super) fn record(record: &EventRecord, data_bytes: usize) -> pb::EventRecord {
    let status = match record.status {
        Status::Current => pb::EventStatus::Current,
        Status::Shadowed => pb::EventStatus::Shadowed,
        Status::LogOnly => pb::EventStatus::LogOnly,
    };
    pb::EventRecord {
        seq: record.seq.get(),
        time_ms: record.time_ms,
        r#type: record.kind.as_ref().to_owned(),
        status: status.into(),
        data_bytes: data_bytes as u64,
    }
}

impl From<Basis> for pb::ViewBasis {
    fn from(basis: Basis) -> Self {
        let incarnation = basis.incarnation.0.to_vec().into();
        Self { next_seq: basis.next_seq.get(), incarnation, closers: basis.closers as u32 }
    }
}

impl From<TokenUsage> for pb::TokenUsage {
    fn from(usage: TokenUsage) -> Self {
        Self {
            input_tokens: usage.input,
            output_tokens: usage.output,
            cache_read_tokens: usage.cache_read,
            cache_write_tokens: usage.cache_write,
            reasoning_tokens: usage.reasoning,
        }
    }
}

impl From<Attempt> for pb::Attempt {
    fn from(attempt: Attempt) -> Self {
        let (outcome, message_seq) = match attempt.outcome {
            Outcome::Open => (pb::AttemptOutcome::Open, None),
            Outcome::Committed { message_seq } => (pb::AttemptOutcome::Committed, Some(message_seq)),
            Outcome::Interrupted { message_seq } => (pb::AttemptOutcome::Interrupted, message_seq),
            Outcome::Retried => (pb::AttemptOutcome::Retried, None),
            Outcome::Failed => (pb::AttemptOutcome::Failed, None),
        };
        Self {
            turn: attempt.turn,
            step: attempt.step,
            number: attempt.number,
            first_seq: attempt.first_seq.get(),
            last_seq: attempt.last_seq.get(),
            first_chunk_seq: attempt.first_chunk_seq.map(Seq::get),
            chunk_count: attempt.chunk_count,
            outcome: outcome.into(),
            message_seq: message_seq.map(Seq::get),
            finish: attempt.finish.map(clipped),
            usage: attempt.usage.map(|usage| usage.tokens.into()),
        }
    }
}

impl From<Relative> for pb::Relative {
    fn from(relative: Relative) -> Self {
        Self {
            session_id: relative.id.as_str().to_owned(),
            parent_session: relative.parent,
            created_at_ms: relative.created_at_ms,
            seed_length: relative.seed_length,
            depth: u32::try_from(relative.depth).unwrap_or(u32::MAX),
            next_seq: relative.next_seq,
        }
    }
}

impl From<Family> for pb::TraceSessionResponse {
    fn from(family: Family) -> Self {
        Self {
            target: Some(family.target.into()),
            ancestors: family.ancestors.into_iter().map(Into::into).collect(),
            descendants: family.descendants.into_iter().map(Into::into).collect(),
            is_complete: family.missing_parent.is_none(),
            missing_parent: family.missing_parent,
            is_truncated: family.is_truncated,
        }
    }
}

impl From<Statistics> for pb::GetSessionStatsResponse {
    fn from(statistics: Statistics) -> Self {
        let figures = statistics.figures;
        let [open, committed, interrupted, retried, failed] = statistics.attempts;
        Self {
            basis: Some(statistics.basis.into()),
            turns: figures.turns,
            steps: figures.steps,
            llm_ms: figures.llm_ms,
            tool_ms: figures.tool_ms,
            ttft_ms: figures.ttft_ms,
            ttft_steps: figures.ttft_steps,
            decode_ms: figures.decode_ms,
            decode_tokens: figures.decode_tokens,
            attempts: Some(pb::AttemptCounts { open, committed, interrupted, retried, failed }),
            committed: Some(statistics.usage.committed.into()),
            uncommitted: Some(statistics.usage.uncommitted.into()),
            own_committed: Some(statistics.own_usage.committed.into()),
            own_uncommitted: Some(statistics.own_usage.uncommitted.into()),
        }
    }
}
