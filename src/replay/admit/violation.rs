//! What the door says: refusals and reports, by rule and field.
//!
//! The sections of the reference stand at the rules. The names of rules and fields are part of the wire's contract and stay; the texts are for people.

use super::nesting::Breach;
use crate::model::Seq;
use crate::model::json::JsonError;
use crate::replay::shape::ShapeError;
use crate::replay::surface::SurfaceError;

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// `data` is not JSON.
    #[error("`data` {0}")]
    Json(JsonError),
    /// Not the next seq.
    #[error("is not the next event: expected seq {expected}")]
    Gap {
        /// The next seq.
        expected: Seq,
    },
    /// Vocabulary that every reader refuses (reference 2.5).
    #[error("is an unsupported legacy {0}")]
    Retired(&'static str),
    /// A payload of the wrong shape (reference 2.3).
    #[error("{error}")]
    Shape {
        /// The rule.
        error: ShapeError,
        /// Whether the message is `data` itself.
        bare: bool,
    },
    /// A turn bracket that no later read accepts (reference 7.9).
    #[error("is a malformed turn bracket")]
    TurnBracket,
    /// A broken surface or source rule (reference 2.4).
    #[error(transparent)]
    Surface(#[from] SurfaceError),
    /// Broken nesting, under the strict profile (reference 1.7).
    #[error(transparent)]
    Nesting(#[from] Breach),
}

impl Violation {
    /// A name for the rule, for replies and metrics; these names stay.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Gap { .. } => "contiguity",
            Self::Retired(_) => "retired-vocabulary",
            Self::Shape { error: ShapeError::Route | ShapeError::Effort | ShapeError::Defaults, .. } => "header-shape",
            Self::Shape { .. } => "message-shape",
            Self::TurnBracket => "turn-bracket",
            Self::Surface(SurfaceError::Sources(_) | SurfaceError::SourcesOnLogOnly { .. }) => "sources",
            Self::Surface(_) => "surface",
            Self::Nesting(breach) => breach.rule(),
        }
    }

    /// The field that is wrong, with the wire names of the envelope; members of `data` as a path.
    pub fn field(&self) -> String {
        match self {
            Self::Json(_) | Self::TurnBracket => "data".to_owned(),
            Self::Gap { .. } => "seq".to_owned(),
            Self::Retired(_) => "type".to_owned(),
            Self::Shape { error, bare } => {
                let path = error.path();
                format!("data.{}", if *bare { path.trim_start_matches("message.") } else { path })
            }
            Self::Surface(error) => error.field().to_owned(),
            Self::Nesting(breach) => breach.field().to_owned(),
        }
    }
}

/// A batch that is refused: the first event that breaks a rule, and which one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("event at seq {seq}: {violation}")]
pub struct Refusal {
    /// The event.
    pub seq: Seq,
    /// The rule; it names the field.
    pub violation: Violation,
}

/// Broken nesting in a batch that was admitted all the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("event at seq {seq}: {breach}")]
pub struct Report {
    /// The event.
    pub seq: Seq,
    /// What it breaks.
    pub breach: Breach,
}
