//! Committed changes as a reader of all of them sees them: by position, with the name of the session.

use std::sync::Arc;

use super::{Birth, Change, Extent, Graft, LogId, Position, Run, extents};
use crate::codec::Chain;
use crate::codec::change::Kind;
use crate::model::{Owner, Seq};

/// One committed change.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Its place in the order of the node.
    pub position: Position,
    /// The same, but for changes that were lost: the last of them.
    pub through: Position,
    /// When it was committed, by the server's clock.
    pub time_ms: u64,
    /// What it is; `None` for changes that were lost to damage.
    pub kind: Option<Kind>,
    /// The log that it changed.
    pub log: LogId,
    /// The session, unless nobody knows its name any more.
    pub birth: Option<Arc<Birth>>,
    /// Seq of its first event, or the log's next seq when it has none.
    pub first_seq: Seq,
    /// The chain after it.
    pub chain: Chain,
    /// The events that it added; of a fork the one that ends the seed.
    pub run: Option<Run>,
    /// Of a fork: where the events stand that it inherits, and whose they are.
    pub inherited: Vec<(Extent, Option<Arc<Birth>>)>,
    /// Of a change of hands: the ownership after it.
    pub owner: Option<Arc<Owner>>,
}

/// A page of changes.
#[derive(Clone, Debug, Default)]
pub struct ChangePage {
    /// Changes below this position are not kept one by one any more: of them only the state that sessions have is left.
    pub first_kept: Position,
    /// The changes, without a hole.
    pub changes: Vec<Committed>,
}

impl Committed {
    /// A change as an engine committed it.
    pub(super) fn of(change: &Change, position: Position, time_ms: u64) -> Self {
        let (kind, log, first_seq, chain, run) = match change {
            Change::Repair { log, run } => (Kind::Repair, log, run.first_seq, run.chain, Some(run.clone())),
            Change::Create { log, .. } => (Kind::Create, log, Seq::ZERO, Chain::START, None),
            Change::Append { log, run } => (Kind::Append, log, run.first_seq, run.chain, Some(run.clone())),
            Change::Delete { log, next_seq, chain } => (Kind::Delete, log, *next_seq, *chain, None),
            Change::Owner { log, next_seq, chain, .. } => (Kind::Owner, log, *next_seq, *chain, None),
            Change::Fork { log, graft } => {
                (Kind::Fork, log, graft.seed_length(), graft.end().1, extents::marker(graft))
            }
            Change::Detach { log, copy: Some(run) } => (Kind::Detach, log, run.first_seq, run.chain, None),
            Change::Detach { log, copy: None } => (Kind::Detach, log, Seq::ZERO, Chain::START, None),
            Change::Purge { log, next_seq, chain } => (Kind::Purge, log, *next_seq, *chain, None),
        };
        let mut committed = Self { time_ms, kind: Some(kind), log: *log, first_seq, chain, run, ..Self::at(position) };
        match change {
            Change::Fork { graft, .. } => committed.inherited = inherited(graft),
            Change::Owner { owner, .. } => committed.owner = Some(owner.clone()),
            _ => {}
        }
        committed
    }

    /// Puts in the sessions that it names, as far as anybody knows them.
    pub(super) fn name(&mut self, birth: impl Fn(LogId) -> Option<Arc<Birth>>) {
        if self.birth.is_none() {
            self.birth = birth(self.log);
        }
        for (extent, of) in &mut self.inherited {
            *of = birth(LogId(extent.log));
        }
    }

    /// Changes that were lost.
    pub(super) fn lost(from: u64, through: u64) -> Self {
        Self { through: Position(through), ..Self::at(Position(from)) }
    }

    /// Nothing yet, at its place.
    pub(super) fn at(position: Position) -> Self {
        Self {
            position,
            through: position,
            time_ms: 0,
            kind: None,
            log: LogId(0),
            birth: None,
            first_seq: Seq::ZERO,
            chain: Chain::START,
            run: None,
            inherited: Vec::new(),
            owner: None,
        }
    }

    /// What it is, as a word that stays.
    pub fn kind_name(&self) -> &'static str {
        match self.kind.map(Kind::code) {
            None => "lost",
            Some(1) => "create",
            Some(2) => "append",
            Some(3) => "delete",
            Some(4) => "owner",
            Some(5) => "repair",
            Some(6) => "fork",
            Some(7) => "detach",
            Some(8) => "purge",
            Some(_) => "other",
        }
    }
}

/// What a fork inherits, of nobody yet.
pub(super) fn inherited(graft: &Graft) -> Vec<(Extent, Option<Arc<Birth>>)> {
    graft.extents.iter().map(|extent| (*extent, None)).collect()
}
