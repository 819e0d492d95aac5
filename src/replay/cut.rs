//! The search for a fork's boundary, newest event first (reference 9, 10).
//!
//! [`fork::cut`](super::fork::cut) for a reader that has the end of a log at hand and not its start: it stops at the first
//! turn bracket that decides, so that a boundary near the end costs what is behind the last turn. Only turn brackets and
//! the marker of a seed matter; payloads do not, but for the number of an open turn.

use super::Ordinal;
use super::fork::{Cut, ForkError};
use super::vocabulary::{END_SEED, TURN_END, TURN_START};
use crate::model::json;
use crate::model::{Event, Seq};

/// Which cut is searched for; anchors are searched for forwards, with [`super::fork::AnchorSearch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAt {
    /// After the last event of the prefix ([`ForkAt::Head`](super::fork::ForkAt::Head), and
    /// [`ForkAt::Inclusive`](super::fork::ForkAt::Inclusive) for a prefix that ends there).
    End,
    /// After the last completed turn of the prefix and the standalone events that follow it.
    LastTurn,
}

/// The search. Constant size.
///
/// Laws: fed all events of a prefix newest first, until it wants no more, it gives what [`super::fork::cut`] gives; no
/// event is an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutSearch {
    at: CutAt,
    found: Cut,
    /// The newest event below the cut was not seen yet.
    is_new: bool,
    outcome: Option<Result<(), Ordinal>>,
}

impl CutSearch {
    /// A search in the events before `end`.
    pub fn new(at: CutAt, end: Seq) -> Self {
        Self { at, found: Cut { seed_length: end, is_marked: false }, is_new: true, outcome: None }
    }

    /// Takes the next older event; says whether it wants another.
    pub fn apply(&mut self, event: &Event) -> bool {
        let kind = &*event.body.kind;
        if std::mem::take(&mut self.is_new) {
            self.found.is_marked = kind == END_SEED;
        }
        match (kind, self.at) {
            (TURN_END, _) => self.outcome = Some(Ok(())),
            (TURN_START, CutAt::End) => {
                let doc = json::parse(&event.body.data).ok();
                let turn = Ordinal::read(doc.as_ref().map(json::Doc::root), "turn");
                self.outcome = Some(Err(turn));
            }
            (TURN_START, CutAt::LastTurn) => {
                self.found = Cut { seed_length: event.seq, is_marked: false };
                self.is_new = true;
            }
            _ => {}
        }
        self.outcome.is_none()
    }

    /// Whether it stopped at the end of a turn.
    pub fn has_met_a_turns_end(&self) -> bool {
        self.outcome == Some(Ok(()))
    }

    /// The cut, once no more events are wanted or none are left.
    pub fn cut(&self) -> Result<Cut, ForkError> {
        match (self.outcome, self.at, self.found.boundary()) {
            (Some(Err(turn)), _, Some(boundary)) => Err(ForkError::OpenTurn { boundary, turn }),
            (None, CutAt::LastTurn, _) => Err(ForkError::NoCompletedTurn),
            _ => Ok(self.found),
        }
    }
}
