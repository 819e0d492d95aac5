//! One line after another: what it is in the place where it stands.
//!
//! The one struct that both passes fold over, so that they cannot disagree. A line that does not continue the log is
//! not an error here: whether it is damage or a torn tail depends on what follows it (reference 7.8).

use std::fmt;

use super::envelope::{self, Fault};
use super::error::{Line, excerpt};
use super::{DshError, Scan};
use crate::codec::rows::{self, Expanded, Members, Place, RowError};
use crate::model::json::{self, Doc, JsonError, Value, number_text};
use crate::model::{Event, Seq};

/// The type whose presence after a bad line makes that line damage.
const TURN_END: &str = "turn/end";

/// Why a line is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// Not one JSON value.
    #[error("the line {0}")]
    Json(JsonError),
    /// A packed row that stands for nothing.
    #[error(transparent)]
    Row(RowError),
}

/// Why a line does not continue the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issue {
    /// It is no record.
    Unparsable(BadLine),
    /// Its seq is not the next one.
    Gap {
        /// The next one.
        expected: u64,
        /// Its seq, as ECMAScript would print it.
        got: String,
    },
    /// It has no newline: its write never finished.
    Unterminated,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unparsable(cause) => cause.fmt(f),
            Self::Gap { expected, got } => write!(f, "seq {expected} had to come, got {got}"),
            Self::Unterminated => f.write_str("the line has no end"),
        }
    }
}

/// A line, read in its place.
pub(super) enum Entry {
    Event(Event),
    Row(Members),
    Bad {
        issue: Issue,
        /// Whether the line itself is a turn's end, out of its place.
        ends_turn: bool,
    },
}

/// The place that the next line stands in.
#[derive(Debug)]
pub(super) struct Cursor {
    line: u64,
    next_seq: u64,
    /// The time of the event before, for recordings.
    time_ms: i64,
    is_recorded: bool,
}

impl Cursor {
    pub(super) fn new(is_recorded: bool, created_at_ms: u64) -> Self {
        Self { line: 1, next_seq: 0, time_ms: created_at_ms as i64, is_recorded }
    }

    pub(super) fn of(scan: &Scan) -> Self {
        Self::new(scan.is_recorded, scan.header.created_at_ms)
    }

    /// The line that comes next.
    pub(super) fn line(&self) -> Line {
        Line::from_event(self.line)
    }

    /// How many events the lines so far stand for.
    pub(super) fn events(&self) -> u64 {
        self.next_seq
    }

    /// Reads the next line; a bad one leaves everything as it was but the line number.
    pub(super) fn apply(&mut self, text: &[u8]) -> Result<Entry, DshError> {
        let line = self.line();
        self.line += 1;
        let doc = match json::parse_any(text) {
            Ok(doc) => doc,
            Err(error) => return Ok(unparsable(BadLine::Json(error))),
        };
        let entry = match self.expand(doc.root()) {
            Err(error) => unparsable(BadLine::Row(error)),
            Ok(Expanded::Row(members)) => self.row(members),
            Ok(Expanded::Other(value)) => self.event(value, line)?,
        };
        self.admit(&entry, &doc, line)?;
        Ok(entry)
    }

    fn expand<'d, 't>(&self, record: Value<'d, 't>) -> Result<Expanded<'d, 't>, RowError> {
        if self.is_recorded {
            rows::decode_unplaced(record, Place { seq: self.next_seq, time_ms: self.time_ms })
        } else {
            rows::decode(record)
        }
    }

    fn row(&self, members: Members) -> Entry {
        let got = members.place().seq;
        if got == self.next_seq { Entry::Row(members) } else { self.gap(got.to_string(), false) }
    }

    fn event(&self, value: Value<'_, '_>, line: Line) -> Result<Entry, DshError> {
        if value.is_null() || (self.is_recorded && !value.is_object()) {
            return Err(DshError::NotAnEvent { line, found: excerpt(value.raw()) });
        }
        let seq = value.get("seq");
        let is_next = seq.and_then(Value::as_int53).and_then(|seq| u64::try_from(seq).ok()) == Some(self.next_seq);
        if !self.is_recorded && !is_next {
            return Ok(self.gap(printed(seq), is_turn_end(value)));
        }
        let recorded_time = self.is_recorded.then_some(self.time_ms);
        let body = envelope::read(value, recorded_time).map_err(|fault| {
            let Fault { field, problem } = fault;
            DshError::Envelope { line, field: excerpt(&field), problem }
        })?;
        // Cannot saturate: the seq equals the number of events before it.
        Ok(Entry::Event(Event { seq: Seq::saturating(self.next_seq), body }))
    }

    fn gap(&self, got: String, ends_turn: bool) -> Entry {
        Entry::Bad { issue: Issue::Gap { expected: self.next_seq, got }, ends_turn }
    }

    /// Moves behind an entry, if its line is lossless.
    fn admit(&mut self, entry: &Entry, doc: &Doc<'_>, line: Line) -> Result<(), DshError> {
        let (events, time_ms) = match entry {
            Entry::Bad { .. } => return Ok(()),
            Entry::Event(event) => (1, event.body.time_ms),
            Entry::Row(members) => (members.len() as u64, members.last_time_ms()),
        };
        doc.check().map_err(|error| DshError::Lossy { line, error })?;
        self.next_seq += events;
        self.time_ms = time_ms;
        Ok(())
    }

    /// Skips a line behind the first bad one and says whether it is a turn's end.
    pub(super) fn skip(&mut self, text: &[u8]) -> bool {
        self.line += 1;
        json::parse_any(text).is_ok_and(|doc| is_turn_end(doc.root()))
    }
}

/// Whether the first line of events is from a recording: an event or a row that lost its place.
pub(super) fn is_recording(text: &[u8]) -> bool {
    let places = ["seq", "seq0", "time", "time0"];
    json::parse_any(text).is_ok_and(|doc| {
        let has = |key| doc.root().get(key).is_some();
        has("type") && has("data") && !places.into_iter().any(has)
    })
}

fn unparsable(cause: BadLine) -> Entry {
    Entry::Bad { issue: Issue::Unparsable(cause), ends_turn: false }
}

fn is_turn_end(value: Value<'_, '_>) -> bool {
    value.get("type").and_then(Value::as_text).is_some_and(|kind| kind.is(TURN_END))
}

fn printed(value: Option<Value<'_, '_>>) -> String {
    let Some(value) = value else { return "undefined".to_owned() };
    let text = value.as_f64().and_then(number_text).or_else(|| value.to_text());
    excerpt(text.as_deref().unwrap_or_else(|| value.raw()))
}
