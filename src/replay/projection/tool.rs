//! Tool calls and retry chains on the screen (reference 5.5).

use super::{Anchor, Boundary, Node, NodeBody, Place};
use crate::model::json::Value;
use crate::model::{Event, Seq};

/// A tool call with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolNode {
    /// The call's id as JSON text.
    pub call_id: String,
    /// The tool's name as JSON text; `None` when the call lies outside the window.
    pub name: Option<String>,
    /// The time of the call, once the call has an outcome.
    pub call_time_ms: Option<i64>,
    /// The result, or that there will be none; `None` while the tool runs.
    pub outcome: Option<ToolOutcome>,
}

/// How a tool call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutcome {
    /// The result's place.
    pub at: Anchor,
    /// Whether the result is an error.
    pub is_error: bool,
    /// `{name, code}` as JSON text.
    pub error: Option<String>,
}

/// One retry of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAttempt {
    /// The event that scheduled it.
    pub seq: Seq,
    /// Its number in the chain.
    pub retry: i64,
    /// Where it stands.
    pub state: RetryState,
}

/// Where a retry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryState {
    /// It waits.
    Scheduled,
    /// It began.
    Started,
    /// Its step or turn ended first.
    Cancelled,
}

#[derive(Clone, Debug)]
pub(super) struct Tool {
    call_id: String,
    call: Option<Call>,
    result: Option<ToolOutcome>,
    place: Place,
}

#[derive(Clone, Debug)]
struct Call {
    seq: Seq,
    time_ms: i64,
    name: Option<String>,
}

impl Tool {
    pub(super) fn new(call_id: &str) -> Self {
        Self { call_id: call_id.to_owned(), call: None, result: None, place: (None, None) }
    }

    pub(super) fn call(&mut self, event: &Event, place: Place, data: Value<'_, '_>) {
        let name = data.get("name").map(|name| name.raw().to_owned());
        self.call = Some(Call { seq: event.seq, time_ms: event.body.time_ms, name });
        self.place = place;
    }

    pub(super) fn result(&mut self, event: &Event, place: Place, data: Value<'_, '_>) {
        let is_error = result_block(data).and_then(|block| block.get("isError")).and_then(Value::as_bool);
        self.result = Some(ToolOutcome {
            at: Anchor::at(event.seq),
            is_error: is_error == Some(true),
            error: data.get("error").map(|error| error.raw().to_owned()),
        });
        if self.call.is_none() {
            self.place = place;
        }
    }

    pub(super) fn node(&self, end_of: impl Fn(Place) -> Option<Boundary>) -> Option<Node> {
        let interrupted = || {
            end_of(self.place).map(|end| ToolOutcome {
                at: Anchor::before(end.seq, 8),
                is_error: true,
                error: Some(r#"{"name":"Interrupted","code":"interrupted"}"#.to_owned()),
            })
        };
        let outcome = self.result.clone().or_else(interrupted);
        let call = self.call.as_ref();
        let settled_at = outcome.as_ref().map(|outcome| outcome.at);
        let anchor = call.map(|call| Anchor::at(call.seq)).or(settled_at)?;
        let body = ToolNode {
            call_id: self.call_id.clone(),
            name: call.and_then(|call| call.name.clone()),
            call_time_ms: call.filter(|_| outcome.is_some()).map(|call| call.time_ms),
            outcome,
        };
        Some(Node { anchor, is_visible: true, body: NodeBody::Tool(body) })
    }
}

fn result_block<'d, 't>(data: Value<'d, 't>) -> Option<Value<'d, 't>> {
    data.get("message")?.get("content")?.items().next()
}

/// The call that a `tool/result` payload answers.
pub(super) fn result_call_id<'d, 't>(data: Value<'d, 't>) -> Option<Value<'d, 't>> {
    data.get("message")?.get("source")?.get("callId")
}

#[derive(Clone, Debug, Default)]
pub(super) struct Retry {
    attempts: Vec<RetryAttempt>,
    place: Place,
}

impl Retry {
    pub(super) fn schedule(&mut self, seq: Seq, place: Place, data: Value<'_, '_>) {
        let retry = number(data);
        self.attempts.push(RetryAttempt { seq, retry, state: RetryState::Scheduled });
        self.place = place;
    }

    pub(super) fn start(&mut self, data: Value<'_, '_>) {
        let retry = number(data);
        if let Some(attempt) = self.attempts.iter_mut().rev().find(|attempt| attempt.retry == retry) {
            attempt.state = RetryState::Started;
        }
    }

    pub(super) fn node(&self, is_closed: impl Fn(Place) -> bool) -> Option<Node> {
        let anchor = Anchor::at(self.attempts.first()?.seq);
        let mut attempts = self.attempts.clone();
        if let Some(last) = attempts.last_mut()
            && last.state == RetryState::Scheduled
            && is_closed(self.place)
        {
            last.state = RetryState::Cancelled;
        }
        Some(Node { anchor, is_visible: true, body: NodeBody::Retry(attempts) })
    }
}

fn number(data: Value<'_, '_>) -> i64 {
    data.get("retry").and_then(Value::as_int53).unwrap_or(0)
}
