//! Restoring a whole log from JSON objects, with every check that the reference makes (2.3).
//!
//! One struct takes one object at a time and keeps the events. The order of the checks decides which of several
//! offences is named, so it is the reference's: retired type, envelope, shape, retired reason, contiguity, surface. The
//! header beside the log and the writing of `session/end-seed` are the caller's.

use super::line::{Draft, EnvelopeError};
use super::shape::{self, ShapeError};
use super::surface::{Surface, SurfaceError, in_log};
use super::vocabulary::{END_SEED, RETIRED_HEADER_DELTA};
use crate::model::json::{self, Value};
use crate::model::{Event, Seq};

/// The event that a restore refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedError {
    /// Its index.
    pub index: usize,
    /// Its type, if it has one; part of the text.
    pub kind: String,
    /// The rule that it breaks.
    pub problem: SeedProblem,
}

/// What is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeedProblem {
    /// The retired type `request/header-delta`.
    RetiredDelta,
    /// Not an envelope.
    Envelope(EnvelopeError),
    /// A payload of the wrong shape.
    Shape(ShapeError),
    /// The retired header reason `fallback`.
    RetiredReason,
    /// Not the next seq.
    Gap {
        /// The seq found.
        seq: Seq,
    },
    /// A broken surface rule.
    Surface(SurfaceError),
}

impl std::fmt::Display for SeedError {
    /// The reference's text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index, kind, problem } = self;
        match problem {
            SeedProblem::RetiredDelta => {
                write!(f, "seed event at index {index} uses unsupported legacy request/header-delta format")
            }
            SeedProblem::Envelope(error) => write!(f, "seed event at index {index} {error}"),
            SeedProblem::Shape(error) => write!(f, "seed {kind} at index {index} {error}"),
            SeedProblem::RetiredReason => {
                write!(f, "seed {kind} at index {index} uses unsupported legacy request/header reason \"fallback\"")
            }
            SeedProblem::Gap { seq } => {
                write!(f, "seed event at index {index} has seq {seq} (expected {index}); ")?;
                f.write_str("seed must be contiguous from 0")
            }
            SeedProblem::Surface(error) => write!(f, "invalid seed event at index {index}: {error}"),
        }
    }
}

impl std::error::Error for SeedError {}

/// A log that is being restored.
///
/// Law: an object that is refused changes nothing. Growth: the events, and [`Surface`].
#[derive(Clone, Debug, Default)]
pub struct Seed {
    events: Vec<Event>,
    surface: Surface,
}

impl Seed {
    /// Takes the next object.
    pub fn push(&mut self, object: Value<'_, '_>) -> Result<(), SeedError> {
        match self.take(object) {
            Ok(event) => {
                self.events.push(event);
                Ok(())
            }
            Err(problem) => {
                let kind = object.get("type").and_then(Value::to_text).unwrap_or_default();
                Err(SeedError { index: self.events.len(), kind, problem })
            }
        }
    }

    fn take(&mut self, object: Value<'_, '_>) -> Result<Event, SeedProblem> {
        if object.get("type").and_then(Value::as_text).is_some_and(|kind| kind.is(RETIRED_HEADER_DELTA)) {
            return Err(SeedProblem::RetiredDelta);
        }
        let draft = Draft::read(object).map_err(SeedProblem::Envelope)?;
        let data = json::parse(&draft.data).ok();
        let data = data.as_ref().map(json::Doc::root);
        if let Some(data) = data {
            shape::check(&draft.kind, data).map_err(SeedProblem::Shape)?;
        }
        if *draft.kind == *super::vocabulary::REQUEST_HEADER && shape::has_retired_reason(data) {
            return Err(SeedProblem::RetiredReason);
        }
        if draft.seq.get() != self.events.len() as u64 {
            return Err(SeedProblem::Gap { seq: draft.seq });
        }
        self.surface.apply_draft(&draft, &in_log(&self.events)).map_err(SeedProblem::Surface)?;
        // The surface takes well-formed markers only, so that a draft it took is an event.
        draft.into_event().ok_or(SeedProblem::Envelope(EnvelopeError))
    }

    /// The events taken so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Whether the log already ends with the marker that a restore would otherwise append (reference 2.3).
    pub fn is_marked(&self) -> bool {
        self.events.last().is_some_and(|event| *event.body.kind == *END_SEED)
    }

    /// The events and their surface.
    pub fn into_parts(self) -> (Vec<Event>, Surface) {
        (self.events, self.surface)
    }
}
