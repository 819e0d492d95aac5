//! The payload shapes that a reader insists on: messages, request headers, the ends of turns.
//!
//! What a restore of the reference checks (2.3, 2.5) and what its storage boundary adds on every read (7.9), so that a
//! log that passes here opens there. Nothing else in a payload is checked: unknown members, turn numbers of chunks and
//! malformed chunks pass. The texts are the reference's, without the subject that each boundary puts in front.

use super::Ordinal;
use super::vocabulary::{
    ASSISTANT_MESSAGE, REQUEST_HEADER, RETIRED_HEADER_DELTA, RETIRED_MODE_SET, RETIRED_REASON, TOOL_RESULT, TURN_END,
    TURN_START, USER_MESSAGE,
};
use crate::model::json::Value;

/// Why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No message, or one without an id.
    #[error("lacks an identified message")]
    Unidentified,
    /// The role does not go with the type.
    #[error("message must have role \"{0}\"")]
    Role(&'static str),
    /// No source, or one without a kind.
    #[error("message has invalid source")]
    Source,
    /// The content is not an array.
    #[error("message has invalid content")]
    Content,
    /// An assistant message that no model wrote.
    #[error("message must have model source")]
    ModelSource,
    /// A tool result that no tool gave.
    #[error("message must have tool source")]
    ToolSource,
    /// A tool result with other blocks than one.
    #[error("message must contain one tool-result block")]
    ResultBlock,
    /// A tool result whose block and source name different calls.
    #[error("message has mismatched tool call ids")]
    CallIds,
    /// A request header without a route.
    #[error("lacks provider/model")]
    Route,
    /// A reasoning effort that is not a text.
    #[error("has an invalid reasoningEffort")]
    Effort,
    /// Adapter defaults that mark nothing.
    #[error("has invalid adapterDefaults")]
    Defaults,
}

impl ShapeError {
    /// The member of `data` that is wrong; for `user/message` the message is `data` itself.
    pub fn path(self) -> &'static str {
        match self {
            Self::Unidentified => "message.id",
            Self::Role(_) => "message.role",
            Self::Source | Self::ModelSource => "message.source",
            Self::ToolSource => "message.source.callId",
            Self::Content | Self::ResultBlock => "message.content",
            Self::CallIds => "message.content[0].toolCallId",
            Self::Route => "header.config",
            Self::Effort => "header.config.reasoningEffort",
            Self::Defaults => "header.adapterDefaults",
        }
    }
}

/// Checks the shape that a type prescribes (reference 2.3, step 4), in the reference's order.
pub fn check(kind: &str, data: Value<'_, '_>) -> Result<(), ShapeError> {
    match kind {
        REQUEST_HEADER => check_header(data.get("header")),
        USER_MESSAGE => check_message(Some(data), "user").map(drop),
        ASSISTANT_MESSAGE => {
            let source = check_message(data.get("message"), "assistant")?;
            let model = is(source, "kind", "model") && has_text(source, "provider") && has_text(source, "model");
            if model { Ok(()) } else { Err(ShapeError::ModelSource) }
        }
        TOOL_RESULT => check_result(data.get("message")),
        _ => Ok(()),
    }
}

/// The common rules; gives the source.
fn check_message<'d, 't>(message: Option<Value<'d, 't>>, role: &'static str) -> Result<Value<'d, 't>, ShapeError> {
    let message = message.filter(|message| message.is_object() && has_text(*message, "id"));
    let message = message.ok_or(ShapeError::Unidentified)?;
    if !is(message, "role", role) {
        return Err(ShapeError::Role(role));
    }
    let source = message.get("source").filter(|source| source.is_object() && has_text(*source, "kind"));
    let source = source.ok_or(ShapeError::Source)?;
    message.get("content").filter(|content| content.is_array()).map(|_| source).ok_or(ShapeError::Content)
}

fn check_result(message: Option<Value<'_, '_>>) -> Result<(), ShapeError> {
    let source = check_message(message, "user")?;
    if !is(source, "kind", "tool") || !has_text(source, "callId") {
        return Err(ShapeError::ToolSource);
    }
    let mut blocks = message.and_then(|message| message.get("content")).into_iter().flat_map(Value::items);
    let whole =
        |block: &Value<'_, '_>| is(*block, "type", "tool-result") && block.get("content").is_some_and(Value::is_array);
    let block = blocks.next().filter(whole).ok_or(ShapeError::ResultBlock)?;
    if blocks.next().is_some() {
        return Err(ShapeError::ResultBlock);
    }
    let same = block.get("toolCallId").zip(source.get("callId")).is_some_and(|(a, b)| a.same(b));
    if same { Ok(()) } else { Err(ShapeError::CallIds) }
}

fn check_header(header: Option<Value<'_, '_>>) -> Result<(), ShapeError> {
    let config = header.and_then(|header| header.get("config"));
    let config = config.filter(|config| has_text(*config, "provider") && has_text(*config, "model"));
    let config = config.ok_or(ShapeError::Route)?;
    if config.get("reasoningEffort").is_some() && !has_text(config, "reasoningEffort") {
        return Err(ShapeError::Effort);
    }
    let Some(defaults) = header.and_then(|header| header.get("adapterDefaults")) else { return Ok(()) };
    let marks = |name: &'static str, value: Value<'_, '_>| value.as_bool() == Some(true) && config.get(name).is_some();
    let legal = defaults.is_object()
        && defaults.entries().all(|(key, value)| {
            let name = ["reasoningEffort", "maxTokens"].into_iter().find(|name| key.is(name));
            name.is_some_and(|name| marks(name, value))
        });
    if legal { Ok(()) } else { Err(ShapeError::Defaults) }
}

/// A retired piece of vocabulary (reference 2.5); the text says which.
pub fn retired(kind: &str, data: Option<Value<'_, '_>>) -> Option<&'static str> {
    match kind {
        RETIRED_HEADER_DELTA => Some("request/header-delta event"),
        RETIRED_MODE_SET => Some("mode/set event"),
        REQUEST_HEADER if has_retired_reason(data) => Some("request/header reason \"fallback\""),
        _ => None,
    }
}

/// Whether a `request/header` has the reason that is retired.
pub(super) fn has_retired_reason(data: Option<Value<'_, '_>>) -> bool {
    data.is_some_and(|data| is(data, "reason", RETIRED_REASON))
}

/// Whether every later read accepts this turn bracket (reference 7.9, 18.18).
///
/// A read insists on `turn/end` being exactly `{turn >= 1, reason: {kind, ...}}`, and on no members beside `kind` for
/// the four plain kinds. A start whose number no legal end can carry is refused too: repair would have to write one.
pub fn is_turn_bracket(kind: &str, data: Value<'_, '_>) -> bool {
    match kind {
        TURN_START => {
            let trigger = data.get("trigger");
            let exact = trigger.is_none_or(|t| has_string(t, "kind") && has_only(data, &["turn", "trigger"]));
            exact && Ordinal::read(Some(data), "turn").is_positive()
        }
        TURN_END => {
            let reason = data.get("reason").filter(|reason| has_string(*reason, "kind"));
            let exact = has_only(data, &["turn", "reason"]) && Ordinal::read(Some(data), "turn").is_positive();
            exact && reason.is_some_and(is_end_reason)
        }
        _ => true,
    }
}

fn is_end_reason(reason: Value<'_, '_>) -> bool {
    let plain = ["completed", "blocked", "max-tokens", "interrupted"].iter().any(|kind| is(reason, "kind", kind));
    !plain || has_only(reason, &["kind"])
}

fn is(value: Value<'_, '_>, name: &str, text: &str) -> bool {
    value.get(name).and_then(Value::as_text).is_some_and(|found| found.is(text))
}

fn has_string(value: Value<'_, '_>, name: &str) -> bool {
    value.get(name).and_then(Value::as_text).is_some()
}

fn has_text(value: Value<'_, '_>, name: &str) -> bool {
    value.get(name).and_then(Value::as_text).is_some_and(|text| !text.is_empty())
}

fn has_only(value: Value<'_, '_>, names: &[&str]) -> bool {
    value.is_object() && value.entries().all(|(key, _)| names.iter().any(|name| key.is(name)))
}
