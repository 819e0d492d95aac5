//! One turn in the making: its steps, and how it ended.

use super::response::{Item, Response};
use crate::model::Seq;

/// A turn in the making.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) number: u64,
    pub(super) started_ms: i64,
    pub(super) is_written: bool,
    pub(super) steps: Vec<Step>,
    pub(super) steps_written: u64,
    /// The reason for the end, if a record says it.
    pub(super) reason: Option<String>,
    /// The last step that is in the log asked for nothing more.
    pub(super) is_final: bool,
    /// A response was cut off by the limit of its length.
    pub(super) is_cut: bool,
}

/// A step in the making.
#[derive(Default)]
pub(super) struct Step {
    /// The start is in the log, the end is not.
    pub(super) is_open: bool,
    pub(super) messages: Vec<(Item, Option<(Seq, Seq)>)>,
    pub(super) response: Option<Response>,
    pub(super) is_closed: bool,
    pub(super) results: usize,
}

const COMPLETED: &str = "{\"kind\":\"completed\"}";
const CUT: &str = "{\"kind\":\"max-tokens\"}";

impl Turn {
    /// Whether its last response asked for nothing more.
    pub(super) fn is_over(&self) -> bool {
        let is_final = |step: &Step| step.response.as_ref().is_some_and(|response| response.calls.is_empty());
        self.reason.is_some() || self.steps.last().map_or(self.is_final, is_final)
    }

    /// How it ended, if nothing else is said. Cut once is cut for the whole turn.
    pub(super) fn outcome(&self) -> &'static str {
        if self.is_cut { CUT } else { COMPLETED }
    }

    /// Keeps what a step says about the end of the turn, once it is in the log.
    pub(super) fn note_outcome(&mut self, step: &Step) {
        let response = step.response.as_ref();
        self.is_final = response.is_some_and(|response| response.calls.is_empty());
        self.is_cut |= response.is_some_and(|response| response.is_cut);
    }
}
