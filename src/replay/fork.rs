//! Where a log may be forked, and what the child starts with (reference 9, 10; design 6).
//!
//! A fork copies a prefix that ends outside any open turn. [`Stem`] follows a log and knows at every point where such
//! prefixes end; [`cut`] answers for a boundary that a caller names. Invariant: a cut is whole: the child's seed is
//! exactly the events before `seed_length`, and only turn brackets decide. Names, owners and storage are not known.

use std::collections::BTreeMap;

use super::Ordinal;
use super::checkpoint::{In, Out};
use super::vocabulary::{END_SEED, TURN_END, TURN_START};
use crate::model::json::{self, Value};
use crate::model::{Event, Header, NewEvent, Seq};

/// Where a caller wants a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkAt {
    /// After the last event; an empty log gives an empty child (core, boundary omitted).
    Head,
    /// After this event (core).
    Inclusive(Seq),
    /// After the turn that this event is in, with the standalone events that follow it (host). An anchor beyond the
    /// log means the last completed turn.
    Anchor(Seq),
    /// After the last completed turn, with the standalone events that follow it (host, anchor omitted).
    LastTurn,
}

/// Why there is no fork at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ForkError {
    /// The boundary is not in the log.
    #[error("fork boundary {boundary} does not exist (last seq: {})", last.map_or_else(|| "none".to_owned(), |seq| seq.to_string()))]
    Missing {
        /// The boundary.
        boundary: Seq,
        /// The last event.
        last: Option<Seq>,
    },
    /// The prefix ends inside a turn.
    #[error("fork boundary {boundary} ends inside open turn {turn}")]
    OpenTurn {
        /// The boundary.
        boundary: Seq,
        /// The turn.
        turn: Ordinal,
    },
    /// No turn ends at or after the anchor.
    #[error("the turn containing event {anchor} is not completed")]
    Incomplete {
        /// The anchor.
        anchor: Seq,
    },
    /// No turn ever ended.
    #[error("there is no completed turn to fork from")]
    NoCompletedTurn,
}

/// A prefix that a child may start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many events the child inherits.
    pub seed_length: Seq,
    /// Whether the inherited events end with `session/end-seed`; then the child gets no second one.
    pub is_marked: bool,
}

impl Cut {
    /// The last event inherited; `None` for an empty seed.
    pub fn boundary(self) -> Option<Seq> {
        self.seed_length.get().checked_sub(1).and_then(Seq::new)
    }

    /// The `session/end-seed` event that ends the child's seed, unless the seed ends with one already.
    ///
    /// It stands in the child only. A full log has no room for it.
    pub fn marker(self, time_ms: i64) -> Option<Event> {
        let seq = Seq::new(self.seed_length.get()).filter(|_| !self.is_marked)?;
        let body = NewEvent {
            time_ms,
            kind: END_SEED.into(),
            data: "{}".into(),
            ignorable: false,
            surface_op: None,
            source_event_seqs: None,
        };
        Some(Event { seq, body })
    }

    /// The child's header: `cwd` travels, and `agent_preset` if the caller says so; origin, delegation depth and labels
    /// do not. The parent is the immediate one, and the seed length counts all that was copied, inherited markers
    /// included.
    ///
    /// The core's fork names no preset; the host's names the one of [`Stem::agent_preset`], or else the parent
    /// header's.
    pub fn header(self, parent_id: &str, parent: &Header, birth: Birth) -> Header {
        Header {
            created_at_ms: birth.created_at_ms,
            cwd: parent.cwd.clone(),
            parent_session: Some(parent_id.to_owned()),
            seed_length: Some(self.seed_length.get()),
            origin: None,
            delegation_depth: None,
            agent_preset: birth.agent_preset,
            labels: BTreeMap::new(),
        }
    }
}

impl Cut {
    fn save(self, out: &mut Out) {
        out.number(self.seed_length.get());
        out.flag(self.is_marked);
    }

    fn load(from: &mut In<'_>) -> Option<Self> {
        Some(Self { seed_length: from.seq()?, is_marked: from.flag()? })
    }
}

/// What a child's header has from its birth and not from its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Birth {
    /// The time of the fork.
    pub created_at_ms: u64,
    /// The preset that the child goes on with.
    pub agent_preset: Option<String>,
}

/// What a log, or the part of it that was fed, offers to forks. Constant size.
///
/// Laws: feeding events one by one equals feeding them at once; no event is an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stem {
    next_seq: Seq,
    is_marked: bool,
    open_turn: Option<Ordinal>,
    completed: Option<Cut>,
    trails: bool,
    agent_preset: Option<String>,
}

impl Stem {
    /// Folds one event.
    pub fn apply(&mut self, event: &Event) {
        self.apply_new(event.seq, &event.body);
    }

    /// The same for an event without its place.
    pub fn apply_new(&mut self, seq: Seq, body: &NewEvent) {
        let kind = &*body.kind;
        self.next_seq = seq.advance(1).unwrap_or(seq);
        self.is_marked = kind == END_SEED;
        match kind {
            TURN_START => {
                let doc = json::parse(&body.data).ok();
                self.open_turn = Some(Ordinal::read(doc.as_ref().map(json::Doc::root), "turn"));
                self.trails = false;
            }
            TURN_END => {
                self.open_turn = None;
                self.trails = true;
            }
            "agent-preset/selected" => {
                let doc = json::parse(&body.data).ok();
                let preset = doc.as_ref().and_then(|doc| doc.root().get("agentPreset")).and_then(Value::to_text);
                if preset.is_some() {
                    self.agent_preset = preset;
                }
            }
            _ => {}
        }
        if self.trails {
            self.completed = Some(self.here());
        }
    }

    /// The cut after the last event; an error inside an open turn. Open steps do not matter (reference 9).
    pub fn head(&self) -> Result<Cut, ForkError> {
        match (self.open_turn, self.here().boundary()) {
            (Some(turn), Some(boundary)) => Err(ForkError::OpenTurn { boundary, turn }),
            _ => Ok(self.here()),
        }
    }

    /// The cut after the last completed turn and the standalone events that follow it up to the next turn (reference 10).
    pub fn last_turn(&self) -> Option<Cut> {
        self.completed
    }

    /// The preset of the last `agent-preset/selected`.
    pub fn agent_preset(&self) -> Option<&str> {
        self.agent_preset.as_deref()
    }

    pub(super) fn save(&self, out: &mut Out) {
        self.here().save(out);
        out.option(self.open_turn, |out, turn| turn.save(out));
        out.option(self.completed, |out, cut| cut.save(out));
        out.flag(self.trails);
        out.option(self.agent_preset.as_deref(), Out::text);
    }

    pub(super) fn load(from: &mut In<'_>) -> Option<Self> {
        let Cut { seed_length: next_seq, is_marked } = Cut::load(from)?;
        let open_turn = from.option(Ordinal::load)?;
        let (completed, trails) = (from.option(Cut::load)?, from.flag()?);
        let agent_preset = from.option(|from| from.text().map(str::to_owned))?;
        Some(Self { next_seq, is_marked, open_turn, completed, trails, agent_preset })
    }

    fn here(&self) -> Cut {
        Cut { seed_length: self.next_seq, is_marked: self.is_marked }
    }
}

/// The cut that a boundary means in a log (reference 9 for [`ForkAt::Head`] and [`ForkAt::Inclusive`], 10 for the others).
///
/// Law: a child that starts with the cut derives what its parent derives there.
///
/// An anchor takes the first turn that ends at or after it, whatever its number; so an anchor between two turns means
/// the later one, and an anchor on a standalone event after the last completed turn is refused like one inside an open
/// turn, although the fork without an anchor includes that very event.
pub fn cut(events: &[Event], at: ForkAt) -> Result<Cut, ForkError> {
    let last = events.last().map(|event| event.seq);
    match at {
        ForkAt::Head => stem(events).head(),
        ForkAt::Inclusive(boundary) => {
            let end = events.partition_point(|event| event.seq <= boundary);
            if last < Some(boundary) {
                return Err(ForkError::Missing { boundary, last });
            }
            stem(&events[..end]).head()
        }
        ForkAt::Anchor(anchor) if last >= Some(anchor) => {
            let from = events.partition_point(|event| event.seq < anchor);
            let mut search = AnchorSearch::default();
            for event in &events[from..] {
                if !search.apply(event) {
                    break;
                }
            }
            search.cut().ok_or(ForkError::Incomplete { anchor })
        }
        ForkAt::Anchor(_) | ForkAt::LastTurn => stem(events).last_turn().ok_or(ForkError::NoCompletedTurn),
    }
}

fn stem<'e>(events: impl IntoIterator<Item = &'e Event>) -> Stem {
    let mut stem = Stem::default();
    events.into_iter().for_each(|event| stem.apply(event));
    stem
}

/// The search for the turn that an anchor means. It is fed the events from the anchor on and costs what that turn costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnchorSearch {
    stem: Stem,
}

impl AnchorSearch {
    /// Takes the next event; says whether it wants another.
    pub fn apply(&mut self, event: &Event) -> bool {
        if self.stem.last_turn().is_some() && *event.body.kind == *TURN_START {
            return false;
        }
        self.stem.apply(event);
        true
    }

    /// The cut, once no more events are wanted or none are left; `None` if no turn ended.
    pub fn cut(&self) -> Option<Cut> {
        self.stem.last_turn()
    }
}
