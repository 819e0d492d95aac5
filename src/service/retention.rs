//! Retention: sessions that nobody touched for long are deleted, by a rule for each namespace.
//!
//! Age counts from the last change of a log by this node's clock. A session that may still be worked on is never taken:
//! one with accepted events on their way, with an owner or with an open turn. What is taken is deleted like by anybody; a
//! purge frees its space.

use std::time::Duration;

use super::ownership::Act;
use super::session::Live;
use super::{Error, Reason, Service, Session, durable, live, now_ms};
use crate::codec::summary::Turns;
use crate::model::Namespace;
use crate::store::{Change, ListCursor, ListFilter};

/// How long the sessions of a namespace are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The tenant.
    pub namespace: Namespace,
    /// Time since the last change after which a session may go.
    pub keep: Duration,
}

/// Why an old session stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A turn is open.
    OpenTurn,
    /// Somebody owns it.
    Owned,
    /// It changed meanwhile.
    Changed,
}

/// A session that is older than the rule allows.
#[derive(Clone, Debug)]
pub struct Aged {
    /// The session.
    pub session: Session,
    /// Why it stays; `None`: it goes, or in a dry run it would.
    pub kept: Option<Kept>,
}

/// Retention on its way through a namespace.
pub struct Retaining {
    service: Service,
    filter: ListFilter,
    cutoff_ms: u64,
    is_dry: bool,
    after: Option<ListCursor>,
    is_done: bool,
}

/// Sessions looked at together.
const SESSIONS_AT_ONCE: usize = 100;

impl Service {
    /// Begins to apply the rule of a namespace, or another age in its place; a dry run deletes nothing.
    pub fn retain(&self, namespace: Namespace, keep: Option<Duration>, is_dry: bool) -> Result<Retaining, Error> {
        let rules = &self.inner.options.retention;
        let rule = || rules.iter().find(|rule| rule.namespace == namespace).map(|rule| rule.keep);
        let keep = keep.or_else(rule).ok_or_else(|| {
            let problem = format!("is missing, and the configuration has no rule for `{namespace}`");
            Error::field(Reason::InvalidRequest, "keep_ms", problem)
        })?;
        if !is_dry {
            self.check_writable()?;
        }
        let cutoff_ms = now_ms().saturating_sub(keep.as_millis() as u64);
        let updated_ms = (None, Some(cutoff_ms));
        let filter = ListFilter { namespace: namespace.as_str().to_owned(), updated_ms, ..ListFilter::default() };
        // The list is newest first, so that it starts where the rule does.
        let after = Some(ListCursor { updated_ms: cutoff_ms, log: crate::store::LogId(0) });
        Ok(Retaining { service: self.clone(), filter, cutoff_ms, is_dry, after, is_done: false })
    }

    /// The configured rules.
    pub fn retention(&self) -> &[Retention] {
        &self.inner.options.retention
    }
}

impl Retaining {
    /// The next old sessions, deleted durably unless they stay or this is a dry run. `None` at the end.
    pub async fn step(&mut self) -> Result<Option<Vec<Aged>>, Error> {
        if self.is_done {
            return Ok(None);
        }
        let (sessions, next) = self.service.list(self.filter.clone(), self.after, SESSIONS_AT_ONCE).await?;
        (self.after, self.is_done) = (next, next.is_none());
        let (mut aged, mut last) = (Vec::with_capacity(sessions.len()), None);
        for session in sessions {
            // What cannot be read is not old, it is damaged, and somebody should look at it.
            let Ok(slot) = self.service.inner.slots.get(&session.birth.key).await else { continue };
            let permit = if self.is_dry { None } else { Some(self.service.place_for_a_call()?) };
            let mut state = slot.state.lock();
            let Ok(live) = live(&state, &session.birth.key) else { continue };
            let kept = self.kept(live);
            if kept.is_none() && !self.is_dry {
                self.service.check_writable()?;
                let change = Change::Delete { log: live.log, next_seq: live.next_seq, chain: live.chain };
                last = Some(self.service.committer.submit(&slot, Some(change), permit));
                *state = super::State::Absent;
            }
            aged.push(Aged { session, kept });
        }
        if let Some(waiter) = last {
            durable(waiter).await?;
        }
        Ok(Some(aged))
    }

    fn kept(&self, live: &Live) -> Option<Kept> {
        if live.updated_ms >= self.cutoff_ms || live.next_seq > live.durable_next_seq || live.is_unborn {
            Some(Kept::Changed)
        } else if live.check_epoch(None, Act::Keep).is_err() {
            Some(Kept::Owned)
        } else if live.summary.turns == Turns::Open {
            Some(Kept::OpenTurn)
        } else {
            None
        }
    }
}
