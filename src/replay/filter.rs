//! Which events of a log a reader asks for (reference 13.5).
//!
//! Clauses are joined by and, the values of one clause by or; an empty list of values matches nothing. A filter that
//! exists is valid. It looks at one event and its status, and at the payload only for its text; text is matched
//! literally, whatever the case, with any white space between the words.

use super::text::{folded, is_space, semantic_text};
use super::trace::{EventRecord, Status};
use crate::model::Event;

/// One clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clause {
    /// The seq is in the range.
    Seq(Range),
    /// The time in milliseconds is in the range.
    Time(Range),
    /// The type is one of these.
    Types(Vec<String>),
    /// The status is one of these.
    Statuses(Vec<Status>),
    /// The text holds this.
    Text(Needle),
}

/// A range, both ends included, each open if absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    from: Option<i64>,
    to: Option<i64>,
}

impl Range {
    /// Checks and takes the ends; `name` is the field of an error.
    pub fn new(name: &'static str, from: Option<i64>, to: Option<i64>) -> Result<Self, FilterError> {
        match (from, to) {
            (Some(low), Some(high)) if low > high => Err(FilterError::Inverted { name }),
            _ => Ok(Self { from, to }),
        }
    }

    fn holds(self, n: i64) -> bool {
        self.from.is_none_or(|from| from <= n) && self.to.is_none_or(|to| n <= to)
    }
}

/// A text to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needle(String);

impl Needle {
    /// Takes a text that is not blank.
    pub fn new(text: &str) -> Result<Self, FilterError> {
        if text.chars().all(is_space) {
            return Err(FilterError::Blank);
        }
        Ok(Self(folded(text)))
    }

    /// Whether a text holds it.
    pub fn is_in(&self, text: &str) -> bool {
        folded(text).contains(&self.0)
    }
}

/// Why a filter was refused; the texts are the reference's where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A range that ends before it starts.
    #[error("session {name} filter from must be less than or equal to to")]
    Inverted {
        /// The field.
        name: &'static str,
    },
    /// A text without anything to look for.
    #[error("session text filter must not be blank")]
    Blank,
}

/// An event with text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The event.
    pub record: EventRecord,
    /// What it says.
    pub text: String,
}

/// Whether an event passes every clause. The payload is read only if one asks for text.
pub fn matches(event: &Event, record: &EventRecord, clauses: &[Clause]) -> bool {
    let is_cheap = |clause: &&Clause| !matches!(clause, Clause::Text(_));
    clauses.iter().filter(is_cheap).all(|clause| passes(record, "", clause)) && {
        let mut needles = clauses.iter().filter(|clause| !is_cheap(clause)).peekable();
        needles.peek().is_none() || {
            let text = semantic_text(event).unwrap_or_default();
            needles.all(|clause| passes(record, &text, clause))
        }
    }
}

/// The event as a document, if it says something and passes every clause.
pub fn document(event: &Event, record: EventRecord, clauses: &[Clause]) -> Option<Document> {
    let text = semantic_text(event)?;
    let passes = clauses.iter().all(|clause| passes(&record, &text, clause));
    passes.then_some(Document { record, text })
}

fn passes(record: &EventRecord, text: &str, clause: &Clause) -> bool {
    match clause {
        Clause::Seq(range) => range.holds(record.seq.get() as i64),
        Clause::Time(range) => range.holds(record.time_ms),
        Clause::Types(kinds) => kinds.iter().any(|kind| **kind == *record.kind),
        Clause::Statuses(statuses) => statuses.contains(&record.status),
        Clause::Text(needle) => needle.is_in(text),
    }
}
