//! The index: finds sessions and runs. All of it can be made anew from the journal.
//!
//! The only place that names sled. Nothing acknowledged depends on it: sled's flush does not sync, and a damaged file
//! opens as a shorter one. So entries are small (a large page moves to a file that sled never syncs), values carry a
//! checksum, the newest run of a session is checked against its head, the number of names is checked at open, and a
//! panic inside sled is a failure like any other. A failure of any of these makes the engine put the index aside and
//! build a new one.
//!
//! | key | value |
//! |---|---|
//! | `s` log | the session: birth, head, damage |
//! | `n` namespace length, namespace, id | log |
//! | `a` namespace length, namespace, !updated, !log | nothing: the list, newest change first |
//! | `r` log, first seq | a block of places |
//! | `k` log, number of the piece | a piece of its note |
//! | `o` log | the ownership; the session has its checksum, so that neither can be older than the other |
//! | `g` log | the birth of a session that was deleted |
//! | `!mark` | the checkpoint: cursor, horizon, number of names and of shares, highest log, format |
//!
//! Numbers in keys are big-endian. `shares` has the rest: forks and deleted logs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::journal::Cursor;
use super::notes;
use super::place::{self, Place};
use super::roll::gone_key;
use super::rows::{checksum, decode_entry, decode_mark, encode_entry, encode_mark, seal};
use super::shares::deleted_key;
use super::table::{Entry, Table};
use crate::codec::ownership;
use crate::model::{Namespace, Seq, SessionKey};
use crate::store::{ListCursor, LogId, Note, Position, StoreError};

/// Largest key and value. With at most 16 entries on a page, pages stay far below the 128 KiB at which sled moves them
/// to a file of their own.
const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 4096;
/// Entries in one sled batch.
const BATCH_ENTRIES_MAX: usize = 1000;

/// The index is unusable.
#[derive(Debug, thiserror::Error)]
#[error("index: {0}")]
pub(super) struct Broken(pub(super) String);

impl Broken {
    /// For the reason of another error.
    pub(super) fn of(reason: &impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }

    /// Whether it failed for want of space.
    pub(super) fn is_disk_full(&self) -> bool {
        self.0.contains("No space left")
    }
}

impl From<sled::Error> for Broken {
    fn from(error: sled::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<Broken> for StoreError {
    fn from(broken: Broken) -> Self {
        tracing::error!(error = %broken, "the index is unusable");
        Self::Rebuilding
    }
}

/// A checkpoint: how far the index goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) cursor: Cursor,
    pub(super) horizon: Position,
    pub(super) log_max: u64,
    pub(super) names: u64,
    pub(super) shares: u64,
}

/// An open index.
pub(super) struct Index {
    pub(super) db: sled::Db,
    file: std::fs::File,
    names: AtomicU64,
    /// Rows that say who shares what, and deleted logs.
    pub(super) shares: AtomicU64,
    store: u64,
}

/// sled panics on some damage; that must not take the caller along.
fn guarded<T>(work: impl FnOnce() -> Result<T, Broken>) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Broken("sled panicked".to_owned())))
}

impl Index {
    /// Opens or makes the index in `dir` and checks that the names it should have are there.
    pub(super) fn open(dir: &Path, store: [u8; 16], cache_bytes: u64) -> Result<(Self, Mark), Broken> {
        let store = u64::from_le_bytes(store[..8].try_into().unwrap_or_default());
        guarded(|| {
            let config = sled::Config::new().path(dir).cache_capacity(cache_bytes).flush_every_ms(None);
            let db = config.open()?;
            let file = std::fs::File::open(dir.join("db")).map_err(|e| Broken(e.to_string()))?;
            std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Broken(e.to_string()))?;
            let mark = match db.get(b"!mark")? {
                Some(bytes) => decode_mark(&bytes, store)?,
                None if db.is_empty() => Mark::default(),
                None => return Err(Broken("no checkpoint in an index that is not empty".to_owned())),
            };
            let names = db.scan_prefix(b"n").count() as u64;
            let listed = db.scan_prefix(b"a").count() as u64;
            // More names than marked are changes after the checkpoint, which the replay repeats; fewer are lost ones.
            if names < mark.names || listed < mark.names {
                return Err(Broken(format!("{names} names and {listed} list entries of {}", mark.names)));
            }
            let shares = db.scan_prefix(b"f").chain(db.scan_prefix(b"d")).count() as u64;
            if shares < mark.shares {
                return Err(Broken(format!("{shares} shares of {}", mark.shares)));
            }
            Ok((Self { db, file, names: names.into(), shares: shares.into(), store }, mark))
        })
    }

    /// Works on the entries; a panic is a failure.
    pub(super) fn guarded<T>(&self, work: impl FnOnce(&sled::Db) -> Result<T, Broken>) -> Result<T, Broken> {
        guarded(|| work(&self.db))
    }

    /// The log that has a name.
    pub(super) fn find(&self, key: &SessionKey) -> Result<Option<LogId>, Broken> {
        guarded(|| self.db.get(name_key(key))?.map(|log| decode_log(&log)).transpose())
    }

    /// The latest change of any session in it.
    pub(super) fn position_max(&self) -> Result<u64, Broken> {
        guarded(|| {
            let mut max = 0;
            for item in self.db.scan_prefix(b"s").chain(self.db.scan_prefix(b"d")) {
                let (key, bytes) = item?;
                let log = decode_log(key.get(1..).unwrap_or_default())?;
                max = max.max(decode_entry(log, &bytes)?.0.session.position.0);
            }
            Ok(max)
        })
    }

    /// The session of that log.
    pub(super) fn entry(&self, log: LogId) -> Result<Option<Entry>, Broken> {
        guarded(|| self.load(log))
    }

    fn load(&self, log: LogId) -> Result<Option<Entry>, Broken> {
        let (live, deleted) = (self.db.get(session_key(log))?, self.db.get(deleted_key(log))?);
        let is_deleted = live.is_none();
        let Some(bytes) = live.or(deleted) else { return Ok(None) };
        let entry = Entry { deleted: is_deleted, ..self.owned(decode_entry(log, &bytes)?)? };
        let newest = self.db.range(run_key(log, Seq::ZERO)..run_key(LogId(log.0 + 1), Seq::ZERO)).next_back();
        let end = match newest.transpose()? {
            None => Seq::ZERO,
            Some((key, block)) => last_place(&key, &block)?.next_seq(),
        };
        // A session that lags behind its runs, or is ahead of them, is a page that went back in time.
        let marker = entry.session.marker.map_or(0, |marker| marker.get() + 1);
        if end.max(entry.session.shared_until).get().max(marker) == entry.session.next_seq.get() {
            Ok(Some(entry))
        } else {
            Err(Broken(format!("head and runs of {log:?} differ")))
        }
    }

    /// The entry with its owner.
    fn owned(&self, (mut entry, sum): (Entry, u64)) -> Result<Entry, Broken> {
        let log = entry.session.log;
        if sum != 0 {
            let Some(bytes) = self.db.get(owner_key(log))? else { return broken("session without its owner") };
            if checksum(&bytes) != sum {
                return Err(Broken(format!("head and owner of {log:?} differ")));
            }
            let owner = ownership::decode(&mut Bytes::copy_from_slice(&bytes)).map_err(|e| Broken(e.to_string()))?;
            entry.session.owner = Some(Arc::new(owner));
        }
        Ok(entry)
    }

    /// Places that cover a log from `from` on, at most about `runs_max` of them. Empty when the index has no run at
    /// or after `from`.
    pub(super) fn places(&self, log: LogId, from: Seq, runs_max: usize) -> Result<Vec<Place>, Broken> {
        guarded(|| {
            let mut places = Vec::new();
            let start = self.db.range(run_key(log, Seq::ZERO)..=run_key(log, from)).next_back().transpose()?;
            let start = start.map_or_else(|| run_key(log, from), |(key, _)| key.to_vec());
            for item in self.db.range(start..run_key(LogId(log.0 + 1), Seq::ZERO)) {
                let (key, block) = item?;
                let block = place::unpack(decode_run_key(&key)?, &block).map_err(|e| Broken(e.to_string()))?;
                places.extend(block.into_iter().filter(|place| place.next_seq() > from));
                if places.len() >= runs_max {
                    break;
                }
            }
            Ok(places)
        })
    }

    /// The note of a log.
    pub(super) fn note(&self, log: LogId) -> Result<Option<Note>, Broken> {
        guarded(|| {
            let pieces: Result<Vec<_>, _> = self.db.scan_prefix(note_prefix(log)).values().collect();
            Ok(notes::join(pieces?))
        })
    }

    /// Walks the list of a namespace after a place in it, until `visit` says stop.
    pub(super) fn walk(
        &self,
        namespace: &Namespace,
        after: Option<ListCursor>,
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), Broken> {
        guarded(|| {
            let prefix = list_prefix(namespace.as_str());
            let start = after.map_or_else(|| prefix.clone(), |after| list_key(namespace.as_str(), after));
            for item in self.db.range(start.clone()..) {
                let (key, _) = item?;
                if !key.starts_with(&prefix) {
                    break;
                }
                if after.is_some() && key == start {
                    continue;
                }
                let cursor = decode_list_key(&key, prefix.len())?;
                let bytes = self.db.get(session_key(cursor.log))?;
                let entry = bytes.map(|bytes| decode_entry(cursor.log, &bytes)).transpose()?;
                let entry = entry.filter(|(entry, _)| entry.session.updated_ms == cursor.updated_ms);
                let entry = entry.map(|entry| self.owned(entry)).transpose()?;
                let is_wanted = entry.map(&mut *visit);
                // A checkpoint may have moved the row since it was read; a row that is still there is wrong.
                if is_wanted.is_none() && self.db.contains_key(&key)? {
                    return Err(Broken("a list row without its session".into()));
                }
                if is_wanted == Some(false) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Stores the changes of a table, then the mark, each on stable storage before the next.
    pub(super) fn write(&self, table: &Table) -> Result<(), Broken> {
        guarded(|| {
            let mut batch = Batch { index: self, pending: sled::Batch::default(), entries: 0 };
            // Names first: what a crash leaves of this is completed by the replay, which learns names from creations and
            // deletions that the sessions do not have yet.
            table.names.iter().try_for_each(|(key, log)| batch.name(key, *log))?;
            batch.forks(table)?;
            table.logs.values().try_for_each(|entry| batch.entry(entry))?;
            batch.apply()?;
            table.notes.iter().try_for_each(|(log, note)| batch.note(log, note))?;
            batch.apply()?;
            self.sync()?;
            let names = self.names.load(Ordering::Relaxed);
            let shares = self.shares.load(Ordering::Relaxed);
            let mark = Mark { cursor: table.cursor, horizon: table.horizon, log_max: table.log_max, names, shares };
            self.db.insert(b"!mark", encode_mark(&mark, self.store))?;
            self.sync()
        })
    }

    fn sync(&self) -> Result<(), Broken> {
        self.db.flush()?;
        self.file.sync_data().map_err(|e| Broken(e.to_string()))
    }
}

pub(super) struct Batch<'a> {
    pub(super) index: &'a Index,
    pending: sled::Batch,
    entries: usize,
}

impl Batch<'_> {
    fn entry(&mut self, entry: &Entry) -> Result<(), Broken> {
        let session = &entry.session;
        let namespace = session.birth.key.namespace.as_str();
        let before = self.index.db.get(session_key(session.log))?;
        if let Some(before) = &before {
            let before = decode_entry(session.log, before)?.0.session;
            self.remove(list_key(namespace, ListCursor { updated_ms: before.updated_ms, log: session.log }))?;
        }
        if entry.is_gone {
            return self.leave(entry);
        }
        // A deleted log stays readable.
        for (first_seq, block) in place::pack(&entry.copies).into_iter().chain(place::pack(&entry.places)) {
            self.insert(run_key(session.log, first_seq), block)?;
        }
        self.leave(entry)?;
        if entry.deleted {
            self.forget(session.log, 0)?;
            self.share(deleted_key(session.log), Some(encode_entry(entry, 0)))?;
            self.remove(owner_key(session.log))?;
            let mut birth = Vec::with_capacity(256);
            session.birth.encode(&mut birth);
            self.insert(gone_key(session.log), seal(birth))?;
            return self.remove(session_key(session.log));
        }
        let mut owner = Vec::new();
        session.owner.iter().for_each(|current| ownership::encode(current, &mut owner));
        self.insert(session_key(session.log), encode_entry(entry, checksum(&owner)))?;
        if !owner.is_empty() {
            self.insert(owner_key(session.log), owner)?;
        }
        self.insert(list_key(namespace, ListCursor { updated_ms: session.updated_ms, log: session.log }), Vec::new())
    }

    /// Puts a note in the place of the one before, unless its log was deleted.
    fn note(&mut self, log: LogId, note: &Note) -> Result<(), Broken> {
        if !self.index.db.contains_key(session_key(log))? {
            return Ok(());
        }
        let pieces = notes::split(note);
        self.forget(log, pieces.len())?;
        let prefix = note_prefix(log);
        let key = |number: usize| [&prefix[..], &(number as u16).to_be_bytes()].concat();
        pieces.into_iter().enumerate().try_for_each(|(number, piece)| self.insert(key(number), piece))
    }

    /// Removes the pieces of a note from a number on.
    fn forget(&mut self, log: LogId, from: usize) -> Result<(), Broken> {
        let keys: Result<Vec<_>, _> = self.index.db.scan_prefix(note_prefix(log)).keys().skip(from).collect();
        keys?.into_iter().try_for_each(|key| self.remove(key.to_vec()))
    }

    fn name(&mut self, key: &SessionKey, log: Option<LogId>) -> Result<(), Broken> {
        let is_new = !self.index.db.contains_key(name_key(key))?;
        if let Some(log) = log {
            self.index.names.fetch_add(u64::from(is_new), Ordering::Relaxed);
            self.insert(name_key(key), log.0.to_be_bytes().to_vec())
        } else {
            self.index.names.fetch_sub(u64::from(!is_new), Ordering::Relaxed);
            self.remove(name_key(key))
        }
    }

    pub(super) fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Broken> {
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return Err(Broken(format!("an entry of {} and {} bytes is too large", key.len(), value.len())));
        }
        self.pending.insert(key, value);
        self.count()
    }

    pub(super) fn remove(&mut self, key: Vec<u8>) -> Result<(), Broken> {
        self.pending.remove(key);
        self.count()
    }

    fn count(&mut self) -> Result<(), Broken> {
        self.entries += 1;
        if self.entries.is_multiple_of(BATCH_ENTRIES_MAX) { self.apply() } else { Ok(()) }
    }

    fn apply(&mut self) -> Result<(), Broken> {
        self.index.db.apply_batch(std::mem::take(&mut self.pending))?;
        Ok(())
    }
}

pub(super) fn session_key(log: LogId) -> Vec<u8> {
    [b"s", &log.0.to_be_bytes()[..]].concat()
}

fn owner_key(log: LogId) -> Vec<u8> {
    [b"o", &log.0.to_be_bytes()[..]].concat()
}

fn name_key(key: &SessionKey) -> Vec<u8> {
    let namespace = key.namespace.as_str().as_bytes();
    [b"n", &[namespace.len() as u8][..], namespace, key.id.as_str().as_bytes()].concat()
}

fn list_prefix(namespace: &str) -> Vec<u8> {
    [b"a", &[namespace.len() as u8][..], namespace.as_bytes()].concat()
}

fn list_key(namespace: &str, at: ListCursor) -> Vec<u8> {
    [&list_prefix(namespace)[..], &(!at.updated_ms).to_be_bytes(), &(!at.log.0).to_be_bytes()].concat()
}

pub(super) fn run_key(log: LogId, first_seq: Seq) -> Vec<u8> {
    [b"r", &log.0.to_be_bytes()[..], &first_seq.get().to_be_bytes()].concat()
}

fn note_prefix(log: LogId) -> Vec<u8> {
    [b"k", &log.0.to_be_bytes()[..]].concat()
}

pub(super) fn broken<T>(what: &str) -> Result<T, Broken> {
    Err(Broken(format!("malformed {what}")))
}

pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

pub(super) fn decode_log(bytes: &[u8]) -> Result<LogId, Broken> {
    number(bytes).map_or_else(|| broken("log id"), |log| Ok(LogId(log)))
}

fn decode_list_key(key: &[u8], prefix: usize) -> Result<ListCursor, Broken> {
    let updated_ms = key.get(prefix..prefix + 8).and_then(number);
    let log = key.get(prefix + 8..).and_then(number);
    match (updated_ms, log) {
        (Some(updated_ms), Some(log)) => Ok(ListCursor { updated_ms: !updated_ms, log: LogId(!log) }),
        _ => broken("list key"),
    }
}

pub(super) fn decode_run_key(key: &[u8]) -> Result<Seq, Broken> {
    key.get(9..).and_then(number).map_or_else(|| broken("run key"), |seq| Ok(Seq::saturating(seq)))
}

fn last_place(key: &[u8], block: &[u8]) -> Result<Place, Broken> {
    let places = place::unpack(decode_run_key(key)?, block).map_err(|e| Broken(e.to_string()))?;
    places.last().copied().map_or_else(|| broken("empty block"), Ok)
}
