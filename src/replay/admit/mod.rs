//! The door of a log: which batches may follow what is there.
//!
//! Three profiles. `raw` holds a batch to contiguity and JSON. `dsh` refuses whatever would make a later read refuse the
//! log, which includes a read that had to close it first: message and header shapes, turn brackets, retired
//! vocabulary, surface and source rules; it reports what breaks the nesting of turns, steps and calls, because a host
//! whose event is refused has lost it. `dsh-strict` refuses those too. Unknown types pass under all three (design,
//! section 4; the rules are those of the reference, 1.7, 2.3 to 2.5 and 7.9).
//!
//! A batch is taken whole or not at all: a refusal names seq, field and rule, and changes nothing. Envelope limits and
//! sizes are the event's own check; ownership, deduplication and the clock are not known here.

mod nesting;
mod violation;

pub use nesting::Breach;
pub use violation::{Refusal, Report, Violation};

use nesting::Nesting;

use super::checkpoint::{In, Out};
use super::request::LatestHeader;
use super::shape;
use super::surface::{Change, Original, Originals, Surface, SurfaceError, in_log};
use super::tail::Tail;
use super::vocabulary::{
    ASSISTANT_CHUNK, ASSISTANT_MESSAGE, REQUEST_HEADER, STEP_END, STEP_START, TOOL_CALL, TOOL_RESULT, TURN_END,
    TURN_START, USER_MESSAGE,
};
use crate::model::json::{self, Doc, Value};
use crate::model::{Event, NewEvent, Profile, Seq};

/// What the door knows of a session: the state of every fold that a reader of the tail needs.
///
/// Laws: admitting a batch equals admitting its events one by one; a refused batch leaves the state as it was; what
/// `dsh` admits, a restore accepts, and so are the closers after it. Growth: eight bytes per surface node, one entry
/// per unanswered call of the open step ([`Tail`]); everything else is constant. A batch costs its own size, plus one
/// walk over the nodes per replacement, plus a copy of the unanswered calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    next: Seq,
    tail: Tail,
    nesting: Nesting,
    surface: Surface,
    fault: Option<(Seq, SurfaceError)>,
    header: LatestHeader,
    breaches: u64,
}

/// An event at the door, with its payload as the caller has parsed it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a, 't> {
    /// The place that it is to have.
    pub seq: Seq,
    /// The event.
    pub body: &'a NewEvent,
    /// The payload; needed for the types that [`reads_payload`] names, and looked at for no other.
    pub doc: Option<&'a Doc<'t>>,
}

/// Whether the door looks into the payloads of a type. All other types cost no parsing.
pub fn reads_payload(kind: &str) -> bool {
    matches!(kind, ASSISTANT_CHUNK | TURN_START | TURN_END | STEP_START | STEP_END | USER_MESSAGE)
        || matches!(kind, ASSISTANT_MESSAGE | TOOL_CALL | TOOL_RESULT | REQUEST_HEADER)
}

/// What to put back when a batch is refused.
struct Journal {
    before: Admission,
    /// What the surface did, but for events that did nothing to it.
    changes: Vec<Change>,
    log_only: usize,
    reports: Vec<Report>,
}

impl Admission {
    /// Decides over a batch that is to follow, and takes it unless it is refused (reference 2.2, design 4).
    ///
    /// `originals` looks up the events that the batch rewrites ([`super::surface::original_needed`]); events of the
    /// batch itself are found here. Gives the breaches that the profile lets pass; `raw` looks for none.
    pub fn admit(
        &mut self,
        profile: Profile,
        batch: &[Event],
        originals: &Originals<'_>,
    ) -> Result<Vec<Report>, Refusal> {
        let mut docs = Vec::with_capacity(batch.len());
        let mut broken = None;
        for event in batch {
            match json::parse(&event.body.data) {
                Ok(doc) => docs.push(doc),
                Err(error) => {
                    broken = Some(Refusal { seq: event.seq, violation: Violation::Json(error) });
                    break;
                }
            }
        }
        let arrivals = batch.iter().zip(&docs);
        let arrivals = arrivals.map(|(event, doc)| Arrival { seq: event.seq, body: &event.body, doc: Some(doc) });
        self.admit_parsed(profile, &arrivals.collect::<Vec<_>>(), originals, broken)
    }

    /// The same for a batch whose JSON was checked before; an event of it that was not ends it with `broken`.
    fn admit_parsed(
        &mut self,
        profile: Profile,
        batch: &[Arrival<'_, '_>],
        originals: &Originals<'_>,
        broken: Option<Refusal>,
    ) -> Result<Vec<Report>, Refusal> {
        let mut journal =
            Journal { before: self.without_surface(), changes: Vec::new(), log_only: 0, reports: Vec::new() };
        let lookup = |seq: Seq| match batch.binary_search_by_key(&seq, |arrival| arrival.seq) {
            Ok(index) => Original::of_new(batch[index].body),
            Err(_) => originals(seq),
        };
        for arrival in batch {
            if let Err(violation) = self.take(profile, arrival, &lookup, &mut journal) {
                self.restore(journal);
                return Err(Refusal { seq: arrival.seq, violation });
            }
        }
        if let Some(refusal) = broken {
            self.restore(journal);
            return Err(refusal);
        }
        Ok(journal.reports)
    }

    /// [`Admission::admit`] for a batch whose JSON the caller has checked, so that no payload is parsed twice.
    pub fn admit_new(
        &mut self,
        profile: Profile,
        batch: &[Arrival<'_, '_>],
        originals: &Originals<'_>,
    ) -> Result<Vec<Report>, Refusal> {
        self.admit_parsed(profile, batch, originals, None)
    }

    /// Takes an event that is stored, whatever profile it was stored under: what breaks a surface rule is noted as
    /// [`Admission::surface_fault`], broken nesting is counted. Only an event that is not the next one is refused, or a
    /// rewrite whose original `originals` does not have.
    pub fn apply(&mut self, event: &Event, originals: &Originals<'_>) -> Result<(), Refusal> {
        // A payload that cannot be read still is an event of its type.
        let doc = if reads_payload(&event.body.kind) { json::parse(&event.body.data).ok() } else { None };
        let arrival = Arrival { seq: event.seq, body: &event.body, doc: doc.as_ref() };
        let taken = self.step(Profile::Raw, &arrival, originals);
        taken.map(drop).map_err(|violation| Refusal { seq: event.seq, violation })
    }

    /// The state of a stored log, whatever profile it was written under: an event that breaks a surface rule is noted
    /// as [`Admission::surface_fault`].
    pub fn from_events(events: &[Event]) -> Result<Self, Refusal> {
        let mut admission = Self::default();
        events.iter().try_for_each(|event| admission.apply(event, &in_log(events)))?;
        Ok(admission)
    }

    /// The seq of the event that comes next.
    pub fn next_seq(&self) -> Seq {
        self.next
    }

    /// What is open at the end.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// The surface, up to the first fault.
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// The event at which the surface stopped to fold, and why. Only `raw` sessions have one; readers of the surface
    /// refuse the log from then on.
    pub fn surface_fault(&self) -> Option<(Seq, &SurfaceError)> {
        self.fault.as_ref().map(|(seq, error)| (*seq, error))
    }

    /// How many breaches of nesting there were, reported or not: no profile but `dsh-strict` keeps them out.
    pub fn breaches(&self) -> u64 {
        self.breaches
    }

    /// Where the request header in force stands.
    pub fn latest_header(&self) -> LatestHeader {
        self.header
    }

    /// `None` once the surface has a fault.
    pub(super) fn save(&self, out: &mut Out) -> Option<()> {
        if self.fault.is_some() {
            return None;
        }
        self.tail.save(out);
        self.nesting.save(out);
        self.surface.save(out);
        out.option(self.header.seq(), |out, seq| out.number(seq.get()));
        out.number(self.breaches);
        Some(())
    }

    pub(super) fn load(from: &mut In<'_>) -> Option<Self> {
        let (tail, nesting) = (Tail::load(from)?, Nesting::load(from)?);
        let surface = Surface::load(from)?;
        let header = LatestHeader::at(from.option(In::seq)?);
        let (next, breaches) = (surface.next_seq(), from.number()?);
        Some(Self { next, tail, nesting, surface, fault: None, header, breaches })
    }

    fn without_surface(&self) -> Self {
        Self {
            next: self.next,
            tail: self.tail.clone(),
            nesting: self.nesting,
            surface: Surface::default(),
            fault: self.fault.clone(),
            header: self.header,
            breaches: self.breaches,
        }
    }

    fn restore(&mut self, journal: Journal) {
        let mut surface = std::mem::take(&mut self.surface);
        for change in journal.changes.into_iter().rev() {
            surface.undo(change);
        }
        (0..journal.log_only).for_each(|_| surface.undo(Change::LogOnly));
        *self = Self { surface, ..journal.before };
    }

    fn take(
        &mut self,
        profile: Profile,
        arrival: &Arrival<'_, '_>,
        originals: &Originals<'_>,
        journal: &mut Journal,
    ) -> Result<(), Violation> {
        if profile != Profile::Raw {
            check_payload(&arrival.body.kind, arrival.doc.map(Doc::root))?;
        }
        let (change, breaches) = self.step(profile, arrival, originals)?;
        match change {
            Some(Change::LogOnly) => journal.log_only += 1,
            change => journal.changes.extend(change),
        }
        pass(profile, arrival.seq, breaches, &mut journal.reports)?;
        Ok(())
    }

    /// Moves every fold by one event; gives what the surface did and which breaches there are. A refusal leaves all
    /// folds but the surface as they were, and that one too.
    fn step(
        &mut self,
        profile: Profile,
        arrival: &Arrival<'_, '_>,
        originals: &Originals<'_>,
    ) -> Result<(Option<Change>, Vec<Breach>), Violation> {
        let Arrival { seq, body, doc } = *arrival;
        let next = self.next.advance(1).filter(|_| seq == self.next);
        let next = next.ok_or(Violation::Gap { expected: self.next })?;
        let data = doc.map(Doc::root);
        let change = self.step_surface(profile, arrival, originals)?;
        let breaches = self.nesting.check(&self.tail, body, data);
        self.breaches += breaches.len() as u64;
        self.tail.apply_parsed(seq, body, data);
        self.nesting.apply(&body.kind, data);
        self.header.apply_kind(seq, &body.kind);
        self.next = next;
        Ok((change, breaches))
    }

    /// Folds the surface. A log whose surface is broken stays broken, and is held to no surface rule any more.
    fn step_surface(
        &mut self,
        profile: Profile,
        arrival: &Arrival<'_, '_>,
        originals: &Originals<'_>,
    ) -> Result<Option<Change>, Violation> {
        if self.fault.is_some() {
            return Ok(None);
        }
        match self.surface.apply_new(arrival.seq, arrival.body, originals) {
            Ok(change) => Ok(Some(change)),
            // A failed look-up says nothing about the log.
            Err(error @ SurfaceError::OriginalMissing { .. }) => Err(error.into()),
            Err(error) if profile == Profile::Raw => {
                self.fault = Some((arrival.seq, error));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn check_payload(kind: &str, data: Option<Value<'_, '_>>) -> Result<(), Violation> {
    if let Some(what) = shape::retired(kind, data) {
        return Err(Violation::Retired(what));
    }
    let Some(data) = data else { return Ok(()) };
    shape::check(kind, data).map_err(|error| Violation::Shape { error, bare: kind == USER_MESSAGE })?;
    if shape::is_turn_bracket(kind, data) { Ok(()) } else { Err(Violation::TurnBracket) }
}

fn pass(profile: Profile, seq: Seq, breaches: Vec<Breach>, reports: &mut Vec<Report>) -> Result<(), Breach> {
    if profile == Profile::DshStrict {
        return breaches.into_iter().next().map_or(Ok(()), Err);
    }
    if profile == Profile::Dsh {
        reports.extend(breaches.into_iter().map(|breach| Report { seq, breach }));
    }
    Ok(())
}
