//! The door of a log: which batches may follow what is there.
//!
//! Three profiles. `raw` holds a batch to contiguity and JSON. `dsh` refuses whatever would make a later read refuse the
//! log, which includes a read that had to close it first: message and header shapes, turn brackets, retired
//! vocabulary, surface and source rules; it reports what breaks the nesting of turns, steps and calls, because a host
//! whose event is refused has lost it. `dsh-strict` refuses those too. Unknown types pass under all three.
//!
//! A batch is taken whole or not at all: a refusal names seq, field and rule, and changes nothing. Envelope limits and
//! sizes are the event's own check; ownership, deduplication and the clock are not known here.

mod nesting;

pub use nesting::Breach;

use nesting::Nesting;

use super::request::LatestHeader;
use super::shape::{self, ShapeError};
use super::surface::{Change, Original, Originals, Surface, SurfaceError, in_log};
use super::tail::Tail;
use super::vocabulary::USER_MESSAGE;
use crate::model::json::{self, JsonError, Value};
use crate::model::{Event, Profile, Seq};

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
}

/// What to put back when a batch is refused.
struct Journal {
    before: Admission,
    changes: Vec<Change>,
    reports: Vec<Report>,
}

impl Admission {
    /// Decides over a batch that is to follow, and takes it unless it is refused.
    ///
    /// `originals` looks up the events that the batch rewrites ([`super::surface::original_needed`]); events of the
    /// batch itself are found here. Gives the breaches that the profile lets pass; `raw` looks for none.
    pub fn admit(
        &mut self,
        profile: Profile,
        batch: &[Event],
        originals: &Originals<'_>,
    ) -> Result<Vec<Report>, Refusal> {
        let mut journal = Journal { before: self.without_surface(), changes: Vec::new(), reports: Vec::new() };
        let in_batch = in_log(batch);
        let lookup = |seq| match in_batch(seq) {
            Original::Missing => originals(seq),
            found => found,
        };
        for event in batch {
            if let Err(violation) = self.take(profile, event, &lookup, &mut journal) {
                self.restore(journal);
                return Err(Refusal { seq: event.seq, violation });
            }
        }
        Ok(journal.reports)
    }

    /// The state of a stored log, whatever profile it was written under: an event that breaks a surface rule is noted
    /// as [`Admission::surface_fault`].
    pub fn from_events(events: &[Event]) -> Result<Self, Refusal> {
        let mut admission = Self::default();
        admission.admit(Profile::Raw, events, &|_| Original::Missing)?;
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

    /// Where the request header in force stands.
    pub fn latest_header(&self) -> LatestHeader {
        self.header
    }

    fn without_surface(&self) -> Self {
        Self {
            next: self.next,
            tail: self.tail.clone(),
            nesting: self.nesting,
            surface: Surface::default(),
            fault: self.fault.clone(),
            header: self.header,
        }
    }

    fn restore(&mut self, journal: Journal) {
        let mut surface = std::mem::take(&mut self.surface);
        for change in journal.changes.into_iter().rev() {
            surface.undo(change);
        }
        *self = Self { surface, ..journal.before };
    }

    fn take(
        &mut self,
        profile: Profile,
        event: &Event,
        originals: &Originals<'_>,
        journal: &mut Journal,
    ) -> Result<(), Violation> {
        let next = self.next.advance(1).filter(|_| event.seq == self.next);
        let next = next.ok_or(Violation::Gap { expected: self.next })?;
        let doc = json::parse(&event.body.data).map_err(Violation::Json)?;
        let data = doc.root();
        if profile != Profile::Raw {
            check_payload(&event.body.kind, data)?;
        }
        self.take_surface(profile, event, originals, journal)?;
        if profile != Profile::Raw {
            let breaches = self.nesting.check(&self.tail, event, data);
            pass(profile, event.seq, breaches, &mut journal.reports)?;
        }
        self.tail.apply_parsed(event, Some(data));
        self.nesting.apply(&event.body.kind, data);
        self.header.apply(event);
        self.next = next;
        Ok(())
    }

    /// Folds the surface. A log whose surface is broken stays broken, and is held to no surface rule any more.
    fn take_surface(
        &mut self,
        profile: Profile,
        event: &Event,
        originals: &Originals<'_>,
        journal: &mut Journal,
    ) -> Result<(), Violation> {
        if self.fault.is_some() {
            return Ok(());
        }
        match self.surface.apply(event, originals) {
            Ok(change) => journal.changes.push(change),
            // A failed look-up says nothing about the log.
            Err(error @ SurfaceError::OriginalMissing { .. }) => return Err(error.into()),
            Err(error) if profile == Profile::Raw => self.fault = Some((event.seq, error)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn check_payload(kind: &str, data: Value<'_, '_>) -> Result<(), Violation> {
    if let Some(what) = shape::retired(kind, Some(data)) {
        return Err(Violation::Retired(what));
    }
    shape::check(kind, data).map_err(|error| Violation::Shape { error, bare: kind == USER_MESSAGE })?;
    if shape::is_turn_bracket(kind, data) { Ok(()) } else { Err(Violation::TurnBracket) }
}

fn pass(profile: Profile, seq: Seq, breaches: Vec<Breach>, reports: &mut Vec<Report>) -> Result<(), Breach> {
    for breach in breaches {
        if profile == Profile::DshStrict {
            return Err(breach);
        }
        reports.push(Report { seq, breach });
    }
    Ok(())
}
