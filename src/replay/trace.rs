//! What became of an event: whether the model still sees it, what replaced it, what was made from it (reference 13.1,
//! 13.2, 13.4).
//!
//! The answers need the whole log, because any later event may replace an earlier one; a log that breaks a surface rule
//! anywhere has none. [`Statuses`] is the state, fed event by event. Provenance is one step deep: what an event cites
//! and what cites it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::surface::{Change, Originals, Replacement, Surface, SurfaceError, SurfaceFault, in_log};
use super::vocabulary::is_surface;
use crate::model::{Event, NewEvent, Seq};

/// Most events that a window shows on either side.
pub const CONTEXT_EVENTS_MAX: u64 = 50;

/// How an event stands to the model's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It is a node of the surface.
    Current,
    /// It was one and was replaced.
    Shadowed,
    /// It never was one.
    LogOnly,
}

/// An event without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Its place.
    pub seq: Seq,
    /// Its type.
    pub kind: Arc<str>,
    /// Its time.
    pub time_ms: i64,
    /// How it stands.
    pub status: Status,
}

/// The surface of a log with the history of its replacements.
///
/// Laws: feeding events one by one equals feeding them at once; a refused event changes nothing; every event has
/// exactly one status. Growth: what [`Surface`] needs, and two entries per shadowed event.
#[derive(Clone, Debug, Default)]
pub struct Statuses {
    surface: Surface,
    replaced_by: BTreeMap<Seq, Seq>,
    replaced: BTreeMap<Seq, Vec<Seq>>,
}

impl Statuses {
    /// The statuses of a whole log; one broken rule refuses the log.
    pub fn from_events(events: &[Event]) -> Result<Self, SurfaceFault> {
        let mut statuses = Self::default();
        for (index, event) in events.iter().enumerate() {
            statuses.apply(event, &in_log(events)).map_err(|error| SurfaceFault { index, error })?;
        }
        Ok(statuses)
    }

    /// Takes the next event, or refuses it and stays as it is.
    pub fn apply(&mut self, event: &Event, originals: &Originals<'_>) -> Result<(), SurfaceError> {
        if let Change::Replaced(Replacement { seq, shadowed, .. }) = self.surface.apply(event, originals)? {
            self.replaced_by.extend(shadowed.iter().map(|&node| (node, seq)));
            self.replaced.insert(seq, shadowed);
        }
        Ok(())
    }

    /// The surface.
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// The status of an event of this log.
    pub fn status(&self, event: &Event) -> Status {
        match self.replaced_by(event.seq) {
            Some(_) => Status::Shadowed,
            None if is_surface(&event.body.kind) => Status::Current,
            None => Status::LogOnly,
        }
    }

    /// The record of an event of this log.
    pub fn record(&self, event: &Event) -> EventRecord {
        let kind = Arc::clone(&event.body.kind);
        EventRecord { seq: event.seq, kind, time_ms: event.body.time_ms, status: self.status(event) }
    }

    /// The event that replaced a node.
    pub fn replaced_by(&self, seq: Seq) -> Option<Seq> {
        self.replaced_by.get(&seq).copied()
    }

    /// What replaced an event, what replaced that, and so on; empty for a current one.
    pub fn replacement_chain(&self, seq: Seq) -> Vec<Seq> {
        std::iter::successors(self.replaced_by(seq), |&replacer| self.replaced_by(replacer)).collect()
    }

    /// The nodes that an event removed, in surface order.
    pub fn replaced(&self, seq: Seq) -> &[Seq] {
        self.replaced.get(&seq).map_or(&[], Vec::as_slice)
    }
}

/// Everything that links one event to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTrace {
    /// The event.
    pub target: EventRecord,
    /// What replaced it, immediately and then further on.
    pub replacement_chain: Vec<Seq>,
    /// The nodes that it removed, in surface order.
    pub replaced: Vec<Seq>,
    /// What it cites, in its own order.
    pub sources: Vec<Seq>,
    /// The later events that cite it, in log order.
    pub derived: Vec<Seq>,
}

/// Why there is no trace or window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The log has no such event.
    #[error("no event at seq {seq}")]
    NotFound {
        /// The seq asked for.
        seq: Seq,
    },
    /// More context than a window shows.
    #[error("{side} must be an integer between 0 and {CONTEXT_EVENTS_MAX}")]
    Window {
        /// `before` or `after`.
        side: &'static str,
    },
    /// The surface does not fold.
    #[error("invalid session surface: {0}")]
    Surface(#[from] SurfaceFault),
}

/// The records of a whole log, in log order (reference 13.1).
///
/// Law: one record and one status per event.
pub fn records(events: &[Event]) -> Result<Vec<EventRecord>, SurfaceFault> {
    let statuses = Statuses::from_events(events)?;
    Ok(events.iter().map(|event| statuses.record(event)).collect())
}

/// The trace of one event; whether it exists is asked before whether the log folds (reference 13.2).
///
/// Law: the chain of replacements ends on the surface.
pub fn trace(events: &[Event], seq: Seq) -> Result<EventTrace, TraceError> {
    find(events, seq)?;
    let mut tracer = Tracer::new(seq);
    for (index, event) in events.iter().enumerate() {
        tracer.apply(event, &in_log(events)).map_err(|error| SurfaceFault { index, error })?;
    }
    tracer.trace().ok_or(TraceError::NotFound { seq })
}

/// The search for what one event is linked to, fed the whole log.
///
/// Growth: what [`Statuses`] needs, and the seqs of the events that cite the target.
#[derive(Clone, Debug)]
pub struct Tracer {
    seq: Seq,
    statuses: Statuses,
    /// The target without its payload, and what it cites.
    target: Option<(Event, Vec<Seq>)>,
    derived: Vec<Seq>,
}

impl Tracer {
    /// A search for the links of one event.
    pub fn new(seq: Seq) -> Self {
        Self { seq, statuses: Statuses::default(), target: None, derived: Vec::new() }
    }

    /// Takes the next event, or refuses it and stays as it is.
    pub fn apply(&mut self, event: &Event, originals: &Originals<'_>) -> Result<(), SurfaceError> {
        self.statuses.apply(event, originals)?;
        let sources = event.body.source_event_seqs.as_deref().unwrap_or_default();
        if event.seq == self.seq {
            let body = NewEvent { data: Bytes::new(), source_event_seqs: None, ..event.body.clone() };
            self.target = Some((Event { seq: event.seq, body }, sources.to_vec()));
        } else if event.seq > self.seq && sources.contains(&self.seq) {
            self.derived.push(event.seq);
        }
        Ok(())
    }

    /// The trace; `None` if the event was not in the log.
    pub fn trace(self) -> Option<EventTrace> {
        let (target, sources) = self.target?;
        Some(EventTrace {
            target: self.statuses.record(&target),
            replacement_chain: self.statuses.replacement_chain(self.seq),
            replaced: self.statuses.replaced(self.seq).to_vec(),
            sources,
            derived: self.derived,
        })
    }
}

/// An event with its neighbours, clipped to the log; the limits are checked first (reference 13.4).
pub fn window(events: &[Event], seq: Seq, (before, after): (u64, u64)) -> Result<&[Event], TraceError> {
    for (side, count) in [("before", before), ("after", after)] {
        if count > CONTEXT_EVENTS_MAX {
            return Err(TraceError::Window { side });
        }
    }
    let at = find(events, seq)?;
    let end = (at + 1 + after as usize).min(events.len());
    Ok(&events[at.saturating_sub(before as usize)..end])
}

fn find(events: &[Event], seq: Seq) -> Result<usize, TraceError> {
    events.binary_search_by_key(&seq, |event| event.seq).map_err(|_| TraceError::NotFound { seq })
}
