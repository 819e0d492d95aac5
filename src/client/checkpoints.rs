//! When a host must not go on before its log is durable, decided by event type (reference, section 8).

use crate::replay::vocabulary::{LLM_RETRY_STARTED, REQUEST_CONTEXT, REQUEST_HEADER, STEP_END, STEP_START, TOOL_CALL};

/// The types after whose events [`super::SessionWriter::record`] waits until everything is durable.
///
/// The default set stands at the three boundaries of the reference: before a step's request is derived (`step/end`,
/// `step/start`), before a model is asked (`request/header`, `request/context`, `llm/retry-started`) and before the body
/// of a tool (`tool/call`). A host whose tools call tools logs the nested calls with [`super::SessionWriter::append`],
/// which never waits for a checkpoint. A checkpoint with nothing to write costs no call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    after: Vec<String>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self::after([STEP_START, STEP_END, REQUEST_HEADER, REQUEST_CONTEXT, LLM_RETRY_STARTED, TOOL_CALL])
    }
}

impl Checkpoints {
    /// After events of exactly these types.
    pub fn after<S: Into<String>>(types: impl IntoIterator<Item = S>) -> Self {
        Self { after: types.into_iter().map(Into::into).collect() }
    }

    /// Never: the host calls `checkpoint` itself.
    pub fn none() -> Self {
        Self { after: Vec::new() }
    }

    /// Whether an event of this type is followed by a checkpoint.
    pub fn is_due_after(&self, kind: &str) -> bool {
        self.after.iter().any(|other| other == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_stand_before_requests_tool_bodies_and_steps_and_nowhere_else() {
        let policy = Checkpoints::default();
        for kind in ["step/start", "step/end", "request/header", "request/context", "llm/retry-started", "tool/call"] {
            assert!(policy.is_due_after(kind), "{kind}");
        }
        for kind in ["assistant/chunk", "assistant/message", "tool/result", "turn/start", "turn/end", "note"] {
            assert!(!policy.is_due_after(kind), "{kind}");
        }
        assert!(!Checkpoints::none().is_due_after("tool/call"));
        assert!(Checkpoints::after(["note"]).is_due_after("note"));
    }
}
