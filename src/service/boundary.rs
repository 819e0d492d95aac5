//! Where a fork ends: the boundary that a caller names, found from the end of the log or around the anchor.
//!
//! The rules are those of [`crate::replay::fork::cut`], which looks at a whole log; this looks at no more events than
//! the turns next to the boundary have, and at none where the log's summary knows the answer. A log here is what was
//! accepted: what is durable of it, and in memory what is not yet.

use std::sync::Arc;

use super::read::chain_before;
use super::session::Live;
use super::view::Log;
use super::{Error, Fact, Reason};
use crate::codec::summary::{Noted, Turns};
use crate::codec::{Chain, Summary, event};
use crate::model::{Event, Seq};
use crate::replay::cut::{CutAt, CutSearch};
use crate::replay::fork::{AnchorSearch, Cut, ForkAt, ForkError};
use crate::store::{LogId, Run, Store};

/// Events looked at for a title or preset before a boundary, when the latest one comes after it.
const NOTED_EVENTS_MAX: usize = 1024;

/// An accepted log at some moment.
pub(super) struct Accepted {
    pub(super) store: Arc<dyn Store>,
    pub(super) log: LogId,
    end: (Seq, Chain),
    durable: (Seq, Chain),
    /// From the durable end on.
    pending: Vec<Run>,
    summary: Summary,
}

/// A boundary and what is known there.
pub(super) struct Boundary {
    pub(super) cut: Cut,
    pub(super) chain: Chain,
    /// Of the events before it; without bytes.
    pub(super) summary: Summary,
}

impl Accepted {
    /// What was accepted of a session.
    pub(super) fn of(live: &Live, store: &Arc<dyn Store>) -> Self {
        Self {
            store: store.clone(),
            log: live.log,
            end: (live.next_seq, live.chain),
            durable: (live.durable_next_seq, live.durable_chain),
            pending: live.pending.iter().cloned().collect(),
            summary: live.summary.clone(),
        }
    }

    /// The boundary that is meant.
    pub(super) fn boundary(&self, at: ForkAt) -> Result<Boundary, Error> {
        let (cut, turns) = self.cut(at)?;
        let chain = self.chain_at(cut.seed_length)?;
        let title = self.noted(self.summary.title.as_ref(), cut.seed_length, |summary| summary.title)?;
        let agent_preset =
            self.noted(self.summary.agent_preset.as_ref(), cut.seed_length, |summary| summary.agent_preset)?;
        let summary = Summary { bytes: 0, title, agent_preset, turns, is_marked: cut.is_marked };
        Ok(Boundary { cut, chain, summary })
    }

    pub(super) fn cut(&self, at: ForkAt) -> Result<(Cut, Turns), Error> {
        let end = self.end.0;
        match at {
            ForkAt::Inclusive(boundary) if boundary >= end => {
                let last = end.get().checked_sub(1).and_then(Seq::new);
                Err(refused(ForkError::Missing { boundary, last }))
            }
            ForkAt::Inclusive(boundary) => self.outside_a_turn(Seq::saturating(boundary.get() + 1)),
            ForkAt::Head => self.outside_a_turn(end),
            ForkAt::Anchor(anchor) if anchor < end => {
                let mut search = AnchorSearch::default();
                self.forward(anchor, |event| Ok(search.apply(&event)))?;
                let cut = search.cut().ok_or_else(|| refused(ForkError::Incomplete { anchor }))?;
                Ok((cut, Turns::Closed))
            }
            ForkAt::Anchor(_) | ForkAt::LastTurn => Ok((self.last_turn()?, Turns::Closed)),
        }
    }

    /// The cut at `end`, unless a turn is open there.
    fn outside_a_turn(&self, end: Seq) -> Result<(Cut, Turns), Error> {
        if end == self.end.0 && self.summary.turns != Turns::Open {
            return Ok((Cut { seed_length: end, is_marked: self.summary.is_marked }, self.summary.turns));
        }
        let search = self.search(CutAt::End, end)?;
        let turns = if search.has_met_a_turns_end() { Turns::Closed } else { Turns::None };
        Ok((search.cut().map_err(refused)?, turns))
    }

    /// The cut after the last completed turn and what follows it up to the next.
    fn last_turn(&self) -> Result<Cut, Error> {
        let seed_length = self.end.0;
        match self.summary.turns {
            Turns::None => Err(refused(ForkError::NoCompletedTurn)),
            Turns::Closed => Ok(Cut { seed_length, is_marked: self.summary.is_marked }),
            Turns::Open => self.search(CutAt::LastTurn, seed_length)?.cut().map_err(refused),
        }
    }

    fn search(&self, at: CutAt, end: Seq) -> Result<CutSearch, Error> {
        let mut search = CutSearch::new(at, end);
        // Where there is no turn at all the newest event says everything.
        self.backward(end, |event| Ok(search.apply(event) && self.summary.turns != Turns::None))?;
        Ok(search)
    }

    /// The chain before an event.
    fn chain_at(&self, seq: Seq) -> Result<Chain, Error> {
        if seq == self.end.0 {
            return Ok(self.end.1);
        }
        if seq < self.durable.0 {
            return chain_before(&*self.store, self.log, seq);
        }
        let mut chain = self.durable.1;
        for run in &self.pending {
            chain = run.chain_at(chain, seq)?;
        }
        Ok(chain)
    }

    /// The latest text of its kind before `end`: the latest of all, or else one that stands not far before.
    fn noted(
        &self,
        latest: Option<&Noted>,
        end: Seq,
        of: impl Fn(Summary) -> Option<Noted>,
    ) -> Result<Option<Noted>, Error> {
        let Some(noted) = latest else { return Ok(None) };
        if noted.seq < end {
            return Ok(Some(noted.clone()));
        }
        let (mut found, mut looked, mut encoded) = (None, 0, Vec::new());
        self.backward(end, |event| {
            encoded.clear();
            event::encode(event.seq, &event.body, &mut encoded);
            found = of(Summary::of(&encoded));
            looked += 1;
            Ok(found.is_none() && looked < NOTED_EVENTS_MAX)
        })?;
        Ok(found)
    }

    fn stored(&self) -> Log {
        Log::new(&self.store, (self.log, self.durable.0), true)
    }

    fn forward(&self, from: Seq, mut each: impl FnMut(Event) -> Result<bool, Error>) -> Result<(), Error> {
        let mut wants_more = true;
        self.stored().forward(from, |event| {
            wants_more = each(event)?;
            Ok(wants_more)
        })?;
        for run in &self.pending {
            for event in run.decode()?.into_iter().filter(|event| event.seq >= from) {
                if !wants_more {
                    return Ok(());
                }
                wants_more = each(event)?;
            }
        }
        Ok(())
    }

    fn backward(&self, before: Seq, mut each: impl FnMut(&Event) -> Result<bool, Error>) -> Result<(), Error> {
        for run in self.pending.iter().rev() {
            for event in run.decode()?.iter().rev().filter(|event| event.seq < before) {
                if !each(event)? {
                    return Ok(());
                }
            }
        }
        self.stored().backward(before, each)
    }
}

/// The refusal of a boundary.
fn refused(error: ForkError) -> Error {
    let named = |name: &'static str, seq: Seq| (name, seq.to_string());
    let facts = match &error {
        ForkError::Missing { boundary, last } => {
            let mut facts = vec![("rule", "missing".to_owned()), named("seq", *boundary)];
            facts.extend(last.map(|last| named("last_seq", last)));
            facts
        }
        ForkError::OpenTurn { boundary, turn } => {
            vec![("rule", "open-turn".to_owned()), named("seq", *boundary), ("turn", turn.to_string())]
        }
        ForkError::Incomplete { anchor } => vec![("rule", "incomplete-turn".to_owned()), named("seq", *anchor)],
        ForkError::NoCompletedTurn => vec![("rule", "no-completed-turn".to_owned())],
    };
    Error::new(Reason::ForkBoundary, error.to_string()).with(Fact::Named(facts))
}
