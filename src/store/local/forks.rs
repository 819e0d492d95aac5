//! Forks in the local engine: what a table learns of them, and reading through what is shared.
//!
//! Who shares what stands in two forms that are kept together: the extents of each fork, and by log the live sessions
//! that share it. A log is given up only by a `Purge` record; what of it may go is looked up under the lock of the
//! checkpoints, in an index that holds everything up to some commit and nothing half.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::place::Place;
use super::table::{Base, Content, Entry, Table};
use super::{Shared, View};
use crate::codec::frame::RecordHeader;
use crate::codec::{Chain, graft};
use crate::model::Seq;
use crate::store::{
    Damage, Extent, Found, Graft, LogId, Position, Remains, Run, Session, StoreError, extents as shares,
};

impl Table {
    /// A session begins as a fork. What names it is taken even if the index has it: that may come from a checkpoint that
    /// was not finished.
    pub(super) fn fork(
        &mut self,
        base: Base<'_>,
        header: &RecordHeader,
        graft: &Graft,
        time_ms: u64,
    ) -> Result<(), StoreError> {
        let log = LogId(header.log);
        self.names.insert(graft.birth.key.clone(), Some(log));
        self.sharers.extend(graft.extents.iter().map(|extent| ((LogId(extent.log), log), Some(extent.until))));
        self.extents.insert(log, graft.extents.as_slice().into());
        // Not by its place in the journal: what becomes of the record later is no matter then.
        self.markers.extend(shares::marker(graft).map(|run| (log, run)));
        if self.entry(base, log)?.is_some() {
            return Ok(());
        }
        let entry = Entry::new(Session::grafted(log, graft, (time_ms, Position(header.position))), None, false);
        self.logs.insert(log, entry);
        Ok(())
    }

    /// Takes a copy of shared events, or the end of the copying.
    pub(super) fn detach(
        &mut self,
        base: Base<'_>,
        (header, place): (&RecordHeader, Place),
        content: &Content,
    ) -> Result<(), StoreError> {
        let log = LogId(header.log);
        let Some(entry) = self.entry(base, log)? else { return Ok(()) };
        let session = &mut entry.session;
        if header.count > 0 {
            if header.first_seq == session.copied_until && header.first_seq < session.shared_until {
                session.copied_until = place.next_seq();
                if let Content::Events(summary) = content {
                    session.summary.bytes += summary.bytes;
                }
                entry.copies.push(place);
                self.runs += 1;
            }
            return Ok(());
        }
        if session.copied_until != session.shared_until {
            tracing::error!(log = log.0, "a copy of shared events is not whole; they stay shared");
            return Ok(());
        }
        (session.copied_until, session.shared_until) = (Seq::ZERO, Seq::ZERO);
        session.position = session.position.max(Position(header.position));
        self.share_no_more(base, log)?;
        self.extents.remove(&log);
        Ok(())
    }

    /// A log is deleted: its name is free, and it keeps nothing of others alive.
    pub(super) fn set_free(&mut self, base: Base<'_>, log: LogId) -> Result<(), StoreError> {
        let Some(entry) = self.entry(base, log)? else { return Ok(()) };
        let (key, is_sharing) = (entry.session.birth.key.clone(), entry.session.shared_until > Seq::ZERO);
        self.names.insert(key, None);
        if is_sharing { self.share_no_more(base, log) } else { Ok(()) }
    }

    fn share_no_more(&mut self, base: Base<'_>, log: LogId) -> Result<(), StoreError> {
        let extents = match self.extents.get(&log) {
            Some(extents) => extents.clone(),
            None => base.extents(log)?,
        };
        self.sharers.extend(extents.iter().map(|extent| ((LogId(extent.log), log), None)));
        Ok(())
    }

    fn sharers_of(&self, log: LogId) -> impl Iterator<Item = (LogId, Option<Seq>)> {
        let all = (log, LogId(0))..=(log, LogId(u64::MAX));
        self.sharers.range(all).map(|((_, sharer), until)| (*sharer, *until))
    }
}

impl Entry {
    /// Takes the purge of a deleted log.
    pub(super) fn purge(&mut self, header: &RecordHeader) {
        let (session, cut) = (&mut self.session, header.first_seq);
        // Sealing may have left out already what is purged.
        let is_less = cut <= session.next_seq || cut <= session.shared_until;
        if !self.deleted || !is_less {
            tracing::error!(log = header.log, "a purge of what is not there; nothing is removed");
            return;
        }
        (session.next_seq, session.chain) = (cut, header.chain);
        // What was lost behind the cut is gone in any case.
        self.damage = self.damage.filter(|damage| damage.good_next_seq < cut);
        session.position = session.position.max(Position(header.position));
        session.marker = session.marker.filter(|marker| *marker < cut);
        self.places.retain(|place| place.first_seq < cut);
        self.is_cut = true;
        self.is_gone = cut <= session.shared_until;
    }
}

impl Base<'_> {
    /// What a log shares, as it was when it began.
    pub(super) fn extents(&self, log: LogId) -> Result<Arc<[Extent]>, StoreError> {
        if let Some(extents) = self.frozen.and_then(|frozen| frozen.extents.get(&log)) {
            return Ok(extents.clone());
        }
        Ok(self.index.ok_or(StoreError::Rebuilding)?.extents(log)?.into())
    }
}

impl View {
    fn base(&self) -> Base<'_> {
        Base { frozen: self.frozen.as_deref(), index: self.index.as_deref() }
    }

    /// The newest entry of a log, without runs.
    pub(super) fn entry(&self, log: LogId) -> Result<Option<Entry>, StoreError> {
        match self.table.logs.get(&log) {
            Some(entry) => Ok(Some(entry.without_places())),
            None => self.base().entry(log),
        }
    }

    /// What a session shares now; an index that knows less than the session is no good.
    fn extents(&self, session: &Session) -> Result<Arc<[Extent]>, StoreError> {
        if session.shared_until == Seq::ZERO {
            return Ok(Arc::default());
        }
        let recent = self.table.extents.get(&session.log).cloned();
        let extents = recent.map_or_else(|| self.base().extents(session.log), Ok)?;
        let end = extents.last().map_or(Seq::ZERO, |extent| extent.until);
        if end == session.shared_until { Ok(extents) } else { Err(StoreError::Rebuilding) }
    }

    /// What is known of a session, with the damage of what it shares: `next_seq` and `chain` are those of the prefix that
    /// is good everywhere.
    pub(super) fn with_shared_damage(&self, found: Found) -> Result<Found, StoreError> {
        let mut good = (Seq::ZERO, Chain::START);
        for extent in self.extents(&found.session)?.iter() {
            let holder = self.entry(LogId(extent.log))?;
            let good_until = holder.as_ref().map_or(good.0, |holder| {
                let damage = holder.damage.map_or(holder.session.next_seq, |damage| damage.good_next_seq);
                damage.min(holder.session.next_seq)
            });
            if good_until < extent.until {
                let held = holder.filter(|holder| holder.session.next_seq == good_until && good_until > good.0);
                let (next_seq, chain) = held.map_or(good, |holder| (good_until, holder.session.chain));
                let damage = Some(Damage { good_next_seq: next_seq });
                return Ok(Found { damage, session: Session { next_seq, chain, ..found.session } });
            }
            good = (extent.until, extent.chain);
        }
        Ok(found)
    }
}

impl Shared {
    /// The event that came with a fork.
    pub(super) fn marker(&self, log: LogId) -> Result<Run, StoreError> {
        let view = self.view.read();
        let tables = [Some(&view.table), view.frozen.as_deref()];
        if let Some(run) = tables.into_iter().flatten().find_map(|table| table.markers.get(&log)) {
            return Ok(run.clone());
        }
        let run = view.index.as_ref().ok_or(StoreError::Rebuilding)?.marker(log)?;
        run.ok_or(StoreError::Rebuilding)
    }

    /// What a log shares.
    pub(super) fn extents(&self, log: LogId) -> Result<Arc<[Extent]>, StoreError> {
        let view = self.view.read();
        view.entry(log)?.map_or_else(|| Ok(Arc::default()), |entry| view.extents(&entry.session))
    }

    /// Reads shared events where they stand; those who hold them must have them.
    pub(super) fn read_shared(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        let missing = || {
            tracing::error!(log = log.0, seq = %from, "shared events are missing");
            let reason = format!("the shared events of log {} are missing", log.0);
            StoreError::Damaged { damage: Damage { good_next_seq: from }, reason }
        };
        let extents = self.extents(log)?;
        let extent = shares::holder(&extents, from).ok_or_else(missing)?;
        let runs = self.read_own(LogId(extent.log), from, bytes_max)?;
        if runs.is_empty() { Err(missing()) } else { shares::clip(runs, &extent) }
    }

    pub(super) fn forks(&self, log: LogId) -> Result<u64, StoreError> {
        let (recent, index) = {
            let view = self.view.read();
            let tables = [view.frozen.as_deref(), Some(&view.table)];
            let recent = tables.into_iter().flatten().flat_map(|table| table.sharers_of(log));
            (recent.collect::<Vec<_>>(), view.index.clone().ok_or(StoreError::Rebuilding)?)
        };
        let (mut sharers, mut count) = (BTreeSet::new(), 0);
        // Mostly nothing changed since the last checkpoint, and then nobody needs to be told apart.
        index.sharers(log, &mut |sharer, _| {
            count += 1;
            if !recent.is_empty() {
                sharers.insert(sharer);
            }
        })?;
        if recent.is_empty() {
            return Ok(count);
        }
        for (sharer, until) in recent {
            if until.is_some() {
                sharers.insert(sharer)
            } else {
                sharers.remove(&sharer)
            };
        }
        Ok(sharers.len() as u64)
    }

    /// Whether a range that a log holds is needed: as long as the log is there, for whoever may read it.
    pub(super) fn needs(&self, log: LogId, from: Seq, until: Seq) -> Result<bool, StoreError> {
        let entry = self.view.read().entry(log)?;
        Ok(from < until && entry.is_some_and(|entry| !entry.is_gone && from < entry.session.next_seq))
    }

    pub(super) fn remains(&self, after: Option<LogId>, count: usize) -> Result<Vec<Remains>, StoreError> {
        self.checkpoint();
        let found = {
            let _guard = self.checkpointing.lock();
            let index = {
                let view = self.view.read();
                view.index.clone().filter(|_| view.frozen.is_none()).ok_or(StoreError::Rebuilding)?
            };
            index.remains(after, count)?
        };
        Ok(found)
    }
}

const _: () = assert!(graft::EXTENTS_MAX * Extent::BYTES < 1 << 20);
