//! What the index keeps of forks and of deleted logs.
//!
//! | key | value |
//! |---|---|
//! | `x` log, number | a block of extents: what a fork shares |
//! | `m` log | the one event that came with a fork: link, chain, seq, encoding |
//! | `f` log, sharer | the end of what the sharer, a live log, shares of the log |
//! | `d` log | a deleted log that still holds something, in the form of a session |
//!
//! Numbers in keys are big-endian. The number of `f` and `d` rows is part of the checkpoint and checked at open: one
//! that is lost would let go what is needed.

use std::sync::atomic::Ordering;

use bytes::Buf;

use super::index::{Batch, Broken, Index, broken, decode_run_key, number, run_key, session_key};
use super::place::{self, Place};
use super::rows::{decode_entry, seal, unseal};
use super::table::{Entry, Table};
use crate::codec::Chain;
use crate::codec::graft::Extent;
use crate::model::Seq;
use crate::store::{LogId, Remains, Run};

/// Extents in one block.
const BLOCK_EXTENTS: usize = 80;

impl Index {
    /// What a fork shares; nothing for a log that is none.
    pub(super) fn extents(&self, log: LogId) -> Result<Vec<Extent>, Broken> {
        self.guarded(|db| {
            let mut extents = Vec::new();
            for item in db.scan_prefix(extents_key(log, None)) {
                let block = unseal(&item?.1)?;
                extents.extend(Extent::decode_all(block).map_err(|e| Broken::of(&e))?);
            }
            Ok(extents)
        })
    }

    /// The event that came with a fork.
    pub(super) fn marker(&self, log: LogId) -> Result<Option<Run>, Broken> {
        self.guarded(|db| {
            let Some(bytes) = db.get(marker_key(log))? else { return Ok(None) };
            let mut bytes = unseal(&bytes)?;
            if bytes.len() < 48 {
                return broken("marker");
            }
            let (link, first_seq) = (bytes.get_u64_le(), Seq::saturating(bytes.get_u64_le()));
            let mut chain = [0; 32];
            bytes.copy_to_slice(&mut chain);
            Ok(Some(Run { first_seq, count: 1, link, chain: Chain(chain), events: bytes }))
        })
    }

    /// The live sessions that share events of a log, each with the end of what it shares.
    pub(super) fn sharers(&self, log: LogId, each: &mut dyn FnMut(LogId, Seq)) -> Result<(), Broken> {
        self.guarded(|db| {
            for item in db.scan_prefix(sharer_key(log, None)) {
                let (key, until) = item?;
                let sharer = key.get(9..).and_then(number);
                match (sharer, number(&unseal(&until)?)) {
                    (Some(sharer), Some(until)) => each(LogId(sharer), Seq::saturating(until)),
                    _ => return broken("sharer"),
                }
            }
            Ok(())
        })
    }

    /// Deleted logs after `after`; the chain of those that keep some of their own events is not filled in.
    pub(super) fn remains(&self, after: Option<LogId>, count: usize) -> Result<Vec<Remains>, Broken> {
        let start = after.map_or(0, |after| after.0.saturating_add(1));
        let entries: Vec<Entry> = self.guarded(|db| {
            let rows = db.range(deleted_key(LogId(start))..=deleted_key(LogId(u64::MAX))).take(count);
            rows.map(|item| {
                let (key, bytes) = item?;
                let log = key.get(1..).and_then(number).map(LogId);
                log.map_or_else(|| broken("deleted log"), |log| Ok(decode_entry(log, &bytes)?.0))
            })
            .collect()
        })?;
        entries.into_iter().map(|entry| self.remains_of(entry)).collect()
    }

    fn remains_of(&self, entry: Entry) -> Result<Remains, Broken> {
        let session = entry.session;
        let (mut needed_until, mut user) = (Seq::ZERO, None);
        self.sharers(session.log, &mut |sharer, until| {
            if until > needed_until {
                (needed_until, user) = (until, Some(sharer));
            }
        })?;
        let cut = needed_until.max(session.shared_until).min(session.next_seq);
        let (mut bytes, mut held_bytes) = (0, 0);
        self.each_place(session.log, &mut |place| {
            held_bytes += u64::from(place.bytes);
            let unneeded = place.next_seq().get().saturating_sub(cut.max(place.first_seq).get());
            bytes += u64::from(place.bytes) * unneeded / u64::from(place.count).max(1);
        })?;
        if let (Some(marker), Some(run)) = (session.marker, self.marker(session.log)?) {
            held_bytes += run.events.len() as u64;
            bytes += if marker >= cut { run.events.len() as u64 } else { 0 };
        }
        let is_all = cut <= session.shared_until;
        // The log that needs something up to the cut knows the chain there.
        let (of, holder) = if is_all { (Some(session.log), None) } else { (user, Some(session.log.0)) };
        let extents = of.map_or_else(|| Ok(Vec::new()), |of| self.extents(of))?;
        let mut ends = extents.iter().filter(|extent| holder.is_none_or(|holder| extent.log == holder));
        let chain = match ends.next_back() {
            _ if cut == session.next_seq => session.chain,
            Some(extent) if extent.until == cut => extent.chain,
            _ if cut == Seq::ZERO => Chain::START,
            _ => return broken("extents: nobody knows the chain of a cut"),
        };
        let events = session.next_seq.get() - cut.get();
        let bytes = if is_all { held_bytes } else { bytes };
        Ok(Remains { session, needed_until, cut, chain, events, bytes, held_bytes })
    }

    /// Whether there is an entry.
    fn contains(&self, key: &[u8]) -> Result<bool, Broken> {
        Ok(self.db.contains_key(key)?)
    }

    /// The keys with a prefix.
    fn keys(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Broken> {
        self.db.scan_prefix(prefix).keys().map(|key| Ok(key?.to_vec())).collect()
    }

    /// The blocks of places of a log that may reach `seq` or lie behind it.
    fn blocks_reaching(&self, log: LogId, seq: Seq) -> Result<Vec<(Seq, Vec<u8>)>, Broken> {
        let first = self.db.range(run_key(log, Seq::ZERO)..=run_key(log, seq)).next_back().transpose()?;
        let start = first.map_or_else(|| run_key(log, seq), |(key, _)| key.to_vec());
        let blocks = self.db.range(start..run_key(LogId(log.0 + 1), Seq::ZERO));
        blocks
            .map(|item| item.map_err(Broken::from).and_then(|(key, block)| Ok((decode_run_key(&key)?, block.to_vec()))))
            .collect()
    }

    fn each_place(&self, log: LogId, each: &mut dyn FnMut(&Place)) -> Result<(), Broken> {
        self.guarded(|db| {
            for item in db.range(run_key(log, Seq::ZERO)..run_key(LogId(log.0 + 1), Seq::ZERO)) {
                let (key, block) = item?;
                let places = place::unpack(decode_run_key(&key)?, &block).map_err(|e| Broken::of(&e))?;
                places.iter().for_each(&mut *each);
            }
            Ok(())
        })
    }
}

impl Batch<'_> {
    /// What a table knows of forks. Before the sessions, like names: a crash leaves a beginning of it, and what it leaves
    /// is completed by the replay.
    pub(super) fn forks(&mut self, table: &Table) -> Result<(), Broken> {
        for (log, extents) in &table.extents {
            for (block, extents) in (0_u32..).zip(extents.chunks(BLOCK_EXTENTS)) {
                let mut bytes = Vec::with_capacity(extents.len() * Extent::BYTES + 4);
                extents.iter().for_each(|extent| extent.encode(&mut bytes));
                self.insert(extents_key(*log, Some(block)), seal(bytes))?;
            }
        }
        for (log, run) in &table.markers {
            let mut bytes = Vec::with_capacity(128);
            bytes.extend_from_slice(&run.link.to_le_bytes());
            bytes.extend_from_slice(&run.first_seq.get().to_le_bytes());
            bytes.extend_from_slice(&run.chain.0);
            bytes.extend_from_slice(&run.events);
            self.insert(marker_key(*log), seal(bytes))?;
        }
        for ((log, sharer), until) in &table.sharers {
            let until = until.map(|until| seal(until.get().to_be_bytes().to_vec()));
            self.share(sharer_key(*log, Some(*sharer)), until)?;
        }
        Ok(())
    }

    /// Sets or removes a row of those that are counted.
    pub(super) fn share(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<(), Broken> {
        let is_new = !self.index.contains(&key)?;
        if let Some(value) = value {
            self.index.shares.fetch_add(u64::from(is_new), Ordering::Relaxed);
            self.insert(key, value)
        } else {
            self.index.shares.fetch_sub(u64::from(!is_new), Ordering::Relaxed);
            self.remove(key)
        }
    }

    /// Removes what an entry no longer has: runs behind a cut, extents that were copied, everything of a log that is gone.
    pub(super) fn leave(&mut self, entry: &Entry) -> Result<(), Broken> {
        let session = &entry.session;
        let is_detached = session.request != [0; 16] && session.shared_until == Seq::ZERO;
        if entry.is_gone || is_detached {
            self.remove_all(extents_key(session.log, None))?;
        }
        if entry.is_gone {
            self.share(deleted_key(session.log), None)?;
            self.remove(marker_key(session.log))?;
            self.remove(session_key(session.log))?;
            self.remove_all(run_key(session.log, Seq::ZERO).get(..9).unwrap_or_default().to_vec())
        } else if entry.is_cut {
            self.cut(session.log, session.next_seq)
        } else {
            Ok(())
        }
    }

    fn remove_all(&mut self, prefix: Vec<u8>) -> Result<(), Broken> {
        let keys = self.index.keys(&prefix)?;
        keys.into_iter().try_for_each(|key| self.remove(key))
    }

    /// Removes the runs from `end` on, which starts one.
    fn cut(&mut self, log: LogId, end: Seq) -> Result<(), Broken> {
        for (first_seq, block) in self.index.blocks_reaching(log, end)? {
            let mut places = place::unpack(first_seq, &block).map_err(|e| Broken::of(&e))?;
            places.retain(|place| place.first_seq < end);
            self.remove(run_key(log, first_seq))?;
            for (first_seq, block) in place::pack(&places) {
                self.insert(run_key(log, first_seq), block)?;
            }
        }
        Ok(())
    }
}

pub(super) fn deleted_key(log: LogId) -> Vec<u8> {
    [b"d", &log.0.to_be_bytes()[..]].concat()
}

fn marker_key(log: LogId) -> Vec<u8> {
    [b"m", &log.0.to_be_bytes()[..]].concat()
}

fn extents_key(log: LogId, block: Option<u32>) -> Vec<u8> {
    let mut key = [b"x", &log.0.to_be_bytes()[..]].concat();
    key.extend(block.into_iter().flat_map(u32::to_be_bytes));
    key
}

fn sharer_key(log: LogId, sharer: Option<LogId>) -> Vec<u8> {
    let mut key = [b"f", &log.0.to_be_bytes()[..]].concat();
    key.extend(sharer.into_iter().flat_map(|sharer| sharer.0.to_be_bytes()));
    key
}
