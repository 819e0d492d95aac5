//! Events: what a log consists of.

use std::sync::Arc;

use bytes::Bytes;

use super::json::{self, Doc, JsonError};
use super::limit::{Limits, SOURCES_MAX, TYPE_BYTES_MAX};
use super::seq::{INT53_MAX, Seq};

/// How an event changes the surface, the ordered list of events that produce model messages (reference 2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurfaceOp {
    /// The event becomes the last node.
    Append,
    /// The event takes the place of the nodes from `start` to `end`, by position.
    Replace {
        /// Seq of the first node replaced.
        start: Seq,
        /// Seq of the last node replaced.
        end: Seq,
    },
}

/// An event as a host sends it: everything but its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Milliseconds since 1970 by the host's clock, |time| <= 2^53 - 1; never used for order.
    pub time_ms: i64,
    /// The event type, at most 256 bytes; unknown types are stored like known ones.
    pub kind: Arc<str>,
    /// One JSON value, byte for byte as the host sent it.
    pub data: Bytes,
    /// A reader that does not know the type may skip the event.
    pub ignorable: bool,
    /// The surface operation, if the event has one.
    pub surface_op: Option<SurfaceOp>,
    /// Seqs of the events that this one was made from; absent differs from empty.
    pub source_event_seqs: Option<Vec<Seq>>,
}

/// An event with its place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The place.
    pub seq: Seq,
    /// Everything else.
    pub body: NewEvent,
}

/// Why an event was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A field outside its range; `field` is the wire name.
    #[error("`{field}` {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// `data` is not one lossless JSON value.
    #[error("`data` {0}")]
    Data(JsonError),
    /// `data` is larger than the limit.
    #[error("`data` has {bytes} bytes; {max} are allowed")]
    TooLarge {
        /// Size found.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

impl NewEvent {
    /// Checks envelope, JSON and size: the rules of every profile (reference 1.1, 2.1).
    pub fn check(&self, limits: &Limits) -> Result<(), EventError> {
        self.parse(limits).map(drop)
    }

    /// The same, and gives the payload that it had to parse.
    pub fn parse(&self, limits: &Limits) -> Result<Doc<'_>, EventError> {
        if self.time_ms.unsigned_abs() > INT53_MAX {
            return Err(field("time_ms", "must be within +-(2^53 - 1)".to_owned()));
        }
        if self.kind.len() > TYPE_BYTES_MAX {
            let problem = format!("has {} bytes; {TYPE_BYTES_MAX} are allowed", self.kind.len());
            return Err(field("type", problem));
        }
        check_sources(self.source_event_seqs.as_deref().unwrap_or_default())?;
        if self.data.len() > limits.event_bytes_max {
            return Err(EventError::TooLarge { bytes: self.data.len(), max: limits.event_bytes_max });
        }
        let doc = json::parse_any(&self.data).map_err(EventError::Data)?;
        doc.check().map_err(EventError::Data)?;
        Ok(doc)
    }

    /// The bytes that count against a batch limit and the append budget.
    pub fn weight(&self) -> usize {
        let sources = self.source_event_seqs.as_deref().unwrap_or_default().len();
        self.data.len() + self.kind.len() + sources * 8 + 64
    }
}

/// No profile takes a seq twice (reference 2.4).
fn check_sources(sources: &[Seq]) -> Result<(), EventError> {
    if sources.len() > SOURCES_MAX {
        let problem = format!("has {} entries; {SOURCES_MAX} are allowed", sources.len());
        return Err(field("source_event_seqs", problem));
    }
    let mut sorted = sources.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(field("source_event_seqs", format!("names seq {} twice", pair[0]))),
        None => Ok(()),
    }
}

fn field(field: &'static str, problem: String) -> EventError {
    EventError::Field { field, problem }
}
