//! Which event types there are, and which of them a fold may meet.
//!
//! The known set is the reference's (section 1.4). Unknown types are stored like known ones; a derived view refuses
//! them unless the event says `ignorable` or the operator registered the type as log-only (sections 1.5, 2.5). This
//! module knows names, not payloads.

use crate::model::{Event, NewEvent, Seq};

/// Opens a turn.
pub const TURN_START: &str = "turn/start";
/// Closes a turn.
pub const TURN_END: &str = "turn/end";
/// Opens a step.
pub const STEP_START: &str = "step/start";
/// Closes a step.
pub const STEP_END: &str = "step/end";
/// A message of the user or of a plugin.
pub const USER_MESSAGE: &str = "user/message";
/// One piece of a model's stream.
pub const ASSISTANT_CHUNK: &str = "assistant/chunk";
/// The message that a finished attempt leaves.
pub const ASSISTANT_MESSAGE: &str = "assistant/message";
/// A tool was started.
pub const TOOL_CALL: &str = "tool/call";
/// A tool answered.
pub const TOOL_RESULT: &str = "tool/result";
/// The list of things to do changed.
pub const TODO_WRITE: &str = "todo/write";
/// A complete request header.
pub const REQUEST_HEADER: &str = "request/header";
/// Route and capacity of the requests that follow.
pub const REQUEST_CONTEXT: &str = "request/context";
/// The end of inherited or reloaded history.
pub const END_SEED: &str = "session/end-seed";
/// A retry was scheduled.
pub const LLM_RETRY: &str = "llm/retry";
/// A retry began.
pub const LLM_RETRY_STARTED: &str = "llm/retry-started";

/// The type of header patches, retired.
pub const RETIRED_HEADER_DELTA: &str = "request/header-delta";
/// The type of mode changes, retired.
pub const RETIRED_MODE_SET: &str = "mode/set";
/// The header reason that is retired.
pub const RETIRED_REASON: &str = "fallback";

/// The known types, sorted (reference 1.4).
const KNOWN: [&str; 48] = [
    "agent-preset/selected",
    "agent/inbox/spliced",
    "approval/asked",
    "approval/decided",
    "approval/policy",
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    "command/done",
    "command/run",
    "compaction/end",
    "compaction/prune",
    "compaction/start",
    "compaction/summary",
    "feedback/record",
    "goal/change",
    "hook/invoked",
    "hook/result",
    LLM_RETRY,
    LLM_RETRY_STARTED,
    "permission/preset",
    "plan/mode",
    REQUEST_CONTEXT,
    REQUEST_HEADER,
    "sandbox/mode",
    "schedule/change",
    END_SEED,
    "session/title",
    "session/title-llm-request",
    STEP_END,
    STEP_START,
    "subagent/descriptor",
    "team/member",
    "team/message/delivered",
    "team/message/queued",
    "team/task",
    TODO_WRITE,
    "tool-workflow/agent-end",
    "tool-workflow/agent-start",
    "tool-workflow/run-end",
    "tool-workflow/run-start",
    TOOL_CALL,
    "tool/code-dispatch",
    "tool/code-dispatch-start",
    TOOL_RESULT,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    "web/deepseek-search-llm-request",
];

/// Whether the type is one of the reference's (1.4).
pub fn is_known(kind: &str) -> bool {
    KNOWN.binary_search(&kind).is_ok()
}

/// Whether events of this type can be nodes of the surface; exactly three types can (reference 1.4, 2.4).
pub fn is_surface(kind: &str) -> bool {
    matches!(kind, USER_MESSAGE | ASSISTANT_MESSAGE | TOOL_RESULT)
}

/// An event that no derived view may pass over: its type is unknown, not `ignorable` and not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event type `{kind}` at seq {seq} is unknown and not marked ignorable")]
pub struct UnknownType {
    /// Where it is.
    pub seq: Seq,
    /// The type.
    pub kind: String,
}

/// Refuses an event that a derived view must not interpret around (reference 1.5).
///
/// `is_log_only` answers for types that an operator registered as contributing nothing to any view. Law: known types
/// always pass, whatever `ignorable` says.
pub fn check_readable(event: &Event, is_log_only: &dyn Fn(&str) -> bool) -> Result<(), UnknownType> {
    check_new(event.seq, &event.body, is_log_only)
}

/// The same for an event without its place.
pub fn check_new(seq: Seq, body: &NewEvent, is_log_only: &dyn Fn(&str) -> bool) -> Result<(), UnknownType> {
    let kind = &*body.kind;
    // Most events of a log are chunks.
    if kind == ASSISTANT_CHUNK || is_known(kind) || body.ignorable || is_log_only(kind) {
        return Ok(());
    }
    Err(UnknownType { seq, kind: kind.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_types_are_sorted_and_distinct() {
        assert!(KNOWN.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
