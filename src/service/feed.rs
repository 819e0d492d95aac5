//! Everything that is committed on this node, in the order in which it was.
//!
//! A reader holds a position and reads the store from there; a mark that moves with every commit wakes it. Positions have
//! no holes, so that whoever saw one knows that it saw all below it. A reader that wants no past, or whose past is not
//! kept any more, is first told how the sessions stand.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::budget::Permit;
use super::session::Live;
use super::{Error, Fact, Reason, Service, Session, blocking};
use crate::store::{Committed, Found, LogId, Position, Store};

/// Bytes of changes read at once.
const PAGE_BYTES: usize = 256 << 10;
/// Sessions told at once.
const SESSIONS_MAX: usize = 200;

/// A reader of the changes.
pub struct Feed {
    /// The first position whose change is kept.
    pub first_kept: Position,
    /// The position of the last change when the reader came.
    pub began_at: Position,
    store: Arc<dyn Store>,
    store_id: [u8; 16],
    next: Position,
    /// The log after which the sessions are told, while they are.
    telling: Option<LogId>,
    mark: watch::Receiver<u64>,
    is_live: bool,
    _place: Permit,
}

/// What comes next.
#[derive(Debug)]
pub enum FeedStep {
    /// How sessions stand, each with the position of its last change.
    States(Vec<(Session, Position)>),
    /// All were told. The changes behind this position follow.
    Told(Position),
    /// Changes, without a hole.
    Changes(Vec<Committed>),
    /// There are no more for now.
    CaughtUp,
    /// None came for as long as the reader wanted to wait.
    Idle,
}

impl Service {
    /// Starts to read changes from a position on; `with_states` starts with how the sessions stand instead.
    pub async fn feed(&self, from: Position, with_states: bool) -> Result<Feed, Error> {
        let place = self.inner.followers.take(1);
        let place = place.ok_or_else(|| Error::new(Reason::ReaderBudget, "too many streams follow"))?;
        // First the mark, then the store: what is committed in between moves the mark.
        let mark = self.committer.mark();
        let (store, from) = (self.inner.store.clone(), Position(from.0.max(1)));
        let began_at = store.position();
        if from.0 > began_at.0 + 1 {
            let message = format!("the last change has position {}; {} is beyond it", began_at.0, from.0);
            let fact = Fact::Named(vec![("position", began_at.0.to_string())]);
            return Err(Error::new(Reason::BeyondHead, message).with(fact));
        }
        let reader = store.clone();
        let page = blocking(move || reader.changes(Position(u64::MAX), 1)).await??;
        let first_kept = page.first_kept;
        let telling = (with_states || from < first_kept).then_some(LogId(0));
        let next = if telling.is_some() { Position(began_at.0 + 1) } else { from };
        let store_id = self.inner.store_id;
        Ok(Feed { first_kept, began_at, store, store_id, next, telling, mark, is_live: false, _place: place })
    }

    /// Identifies the store; positions of another one mean nothing here.
    pub fn store_id(&self) -> [u8; 16] {
        self.inner.store_id
    }
}

impl Feed {
    /// The position of the next change.
    pub fn next_position(&self) -> Position {
        self.next
    }

    /// What comes next. Waits up to `patience` when there is nothing. Can be dropped at any moment without a loss.
    pub async fn next(&mut self, patience: Duration) -> Result<FeedStep, Error> {
        if let Some(after) = self.telling {
            return self.tell(after).await;
        }
        loop {
            self.mark.borrow_and_update();
            let (store, next) = (self.store.clone(), self.next);
            if store.position() >= next {
                let page = blocking(move || store.changes(next, PAGE_BYTES)).await??;
                if let Some(last) = page.changes.last() {
                    self.next = Position(last.through.0 + 1);
                    return Ok(FeedStep::Changes(page.changes));
                }
            }
            if !self.is_live {
                self.is_live = true;
                return Ok(FeedStep::CaughtUp);
            }
            if !matches!(tokio::time::timeout(patience, self.mark.changed()).await, Ok(Ok(()))) {
                return Ok(FeedStep::Idle);
            }
        }
    }

    async fn tell(&mut self, after: LogId) -> Result<FeedStep, Error> {
        let store = self.store.clone();
        let sessions = blocking(move || store.sessions(after, SESSIONS_MAX)).await??;
        self.telling = sessions.last().map(|session| session.log);
        if sessions.is_empty() {
            return Ok(FeedStep::Told(self.began_at));
        }
        let state = |session: crate::store::Session| {
            let position = session.position;
            (Live::from(Found { session, damage: None }).session(self.store_id), position)
        };
        Ok(FeedStep::States(sessions.into_iter().map(state).collect()))
    }
}
