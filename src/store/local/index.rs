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
//! | `!mark` | the checkpoint: cursor, horizon, number of names, highest log |
//!
//! Numbers in keys are big-endian.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};

use super::journal::Cursor;
use super::place::{self, Place};
use super::table::{Entry, Table};
use crate::codec::Chain;
use crate::model::{Namespace, Seq, SessionKey};
use crate::store::{Birth, Damage, ListCursor, LogId, Position, Session, StoreError};

/// Largest key and value. With at most 16 entries on a page, pages stay far below the 128 KiB at which sled moves them
/// to a file of their own.
const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 4096;
/// Entries in one sled batch.
const BATCH_ENTRIES_MAX: usize = 1000;

/// The index is unusable.
#[derive(Debug, thiserror::Error)]
#[error("index: {0}")]
pub(super) struct Broken(String);

impl Broken {
    pub(super) fn new(what: &str) -> Self {
        Self(what.to_owned())
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
    names: u64,
}

/// Blocks of places of a log that take the place of others.
pub(super) struct Moved {
    pub(super) log: LogId,
    pub(super) removed: Vec<Seq>,
    pub(super) inserted: Vec<(Seq, Vec<u8>)>,
}

/// An open index.
pub(super) struct Index {
    db: sled::Db,
    file: std::fs::File,
    names: AtomicU64,
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
            Ok((Self { db, file, names: names.into(), store }, mark))
        })
    }

    /// The log that has a name.
    pub(super) fn find(&self, key: &SessionKey) -> Result<Option<LogId>, Broken> {
        guarded(|| self.db.get(name_key(key))?.map(|log| decode_log(&log)).transpose())
    }

    /// The latest change of any session in it.
    pub(super) fn position_max(&self) -> Result<u64, Broken> {
        guarded(|| {
            let mut max = 0;
            for item in self.db.scan_prefix(b"s") {
                let (key, bytes) = item?;
                let log = decode_log(key.get(1..).unwrap_or_default())?;
                max = max.max(decode_entry(log, &bytes)?.session.position.0);
            }
            Ok(max)
        })
    }

    /// The session of that log.
    pub(super) fn entry(&self, log: LogId) -> Result<Option<Entry>, Broken> {
        guarded(|| self.load(log))
    }

    fn load(&self, log: LogId) -> Result<Option<Entry>, Broken> {
        let Some(bytes) = self.db.get(session_key(log))? else { return Ok(None) };
        let entry = decode_entry(log, &bytes)?;
        let newest = self.db.range(run_key(log, Seq::ZERO)..run_key(LogId(log.0 + 1), Seq::ZERO)).next_back();
        let end = match newest.transpose()? {
            None => Seq::ZERO,
            Some((key, block)) => last_place(&key, &block)?.next_seq(),
        };
        // A session that lags behind its runs, or is ahead of them, is a page that went back in time.
        if end == entry.session.next_seq {
            Ok(Some(entry))
        } else {
            Err(Broken(format!("head and runs of {log:?} differ")))
        }
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

    /// The blocks of places from the one that may reach `start` to the last before `end`, with their keys; and the one
    /// before.
    pub(super) fn blocks(&self, log: LogId, start: Seq, end: Seq) -> Result<Vec<(Seq, Vec<Place>)>, Broken> {
        guarded(|| {
            let before = self.db.range(run_key(log, Seq::ZERO)..run_key(log, start)).next_back().transpose()?;
            let from = before.map_or_else(|| run_key(log, start), |(key, _)| key.to_vec());
            let items = self.db.range(from..run_key(log, end)).map(|item| {
                let (key, block) = item?;
                let key = decode_run_key(&key)?;
                Ok((key, place::unpack(key, &block).map_err(|e| Broken(e.to_string()))?))
            });
            items.collect()
        })
    }

    /// Replaces blocks of places; readers see all of it or nothing.
    pub(super) fn relocate(&self, logs: Vec<Moved>) -> Result<(), Broken> {
        guarded(|| {
            let mut batch = sled::Batch::default();
            for Moved { log, removed, inserted } in logs {
                removed.into_iter().for_each(|seq| batch.remove(run_key(log, seq)));
                inserted.into_iter().for_each(|(seq, block)| batch.insert(run_key(log, seq), block));
            }
            self.db.apply_batch(batch)?;
            Ok(())
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
                let entry = entry.filter(|entry| entry.session.updated_ms == cursor.updated_ms);
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
            table.logs.values().try_for_each(|entry| batch.entry(entry))?;
            batch.apply()?;
            self.sync()?;
            let names = self.names.load(Ordering::Relaxed);
            let mark = Mark { cursor: table.cursor, horizon: table.horizon, log_max: table.log_max, names };
            self.db.insert(b"!mark", encode_mark(&mark, self.store))?;
            self.sync()
        })
    }

    /// Returns when everything written is on stable storage.
    pub(super) fn sync(&self) -> Result<(), Broken> {
        guarded(|| {
            self.db.flush()?;
            self.file.sync_data().map_err(|e| Broken(e.to_string()))
        })
    }
}

struct Batch<'a> {
    index: &'a Index,
    pending: sled::Batch,
    entries: usize,
}

impl Batch<'_> {
    fn entry(&mut self, entry: &Entry) -> Result<(), Broken> {
        let session = &entry.session;
        let namespace = session.birth.key.namespace.as_str();
        let before = self.index.db.get(session_key(session.log))?;
        if let Some(before) = &before {
            let before = decode_entry(session.log, before)?.session;
            self.remove(list_key(namespace, ListCursor { updated_ms: before.updated_ms, log: session.log }))?;
        }
        // A deleted log stays readable.
        for (first_seq, block) in place::pack(&entry.places) {
            self.insert(run_key(session.log, first_seq), block)?;
        }
        if entry.deleted {
            return self.remove(session_key(session.log));
        }
        self.insert(session_key(session.log), encode_entry(entry))?;
        self.insert(list_key(namespace, ListCursor { updated_ms: session.updated_ms, log: session.log }), Vec::new())
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

    fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Broken> {
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return Err(Broken(format!("an entry of {} and {} bytes is too large", key.len(), value.len())));
        }
        self.pending.insert(key, value);
        self.count()
    }

    fn remove(&mut self, key: Vec<u8>) -> Result<(), Broken> {
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

fn session_key(log: LogId) -> Vec<u8> {
    [b"s", &log.0.to_be_bytes()[..]].concat()
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

fn run_key(log: LogId, first_seq: Seq) -> Vec<u8> {
    [b"r", &log.0.to_be_bytes()[..], &first_seq.get().to_be_bytes()].concat()
}

fn broken<T>(what: &str) -> Result<T, Broken> {
    Err(Broken(format!("malformed {what}")))
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn decode_log(bytes: &[u8]) -> Result<LogId, Broken> {
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

fn decode_run_key(key: &[u8]) -> Result<Seq, Broken> {
    key.get(9..).and_then(number).map_or_else(|| broken("run key"), |seq| Ok(Seq::saturating(seq)))
}

fn last_place(key: &[u8], block: &[u8]) -> Result<Place, Broken> {
    let places = place::unpack(decode_run_key(key)?, block).map_err(|e| Broken(e.to_string()))?;
    places.last().copied().map_or_else(|| broken("empty block"), Ok)
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn unseal(bytes: &[u8]) -> Result<Bytes, Broken> {
    let Some((content, checksum)) = bytes.split_at_checked(bytes.len().wrapping_sub(4)) else { return broken("entry") };
    if crc32c::crc32c(content).to_le_bytes() == checksum {
        Ok(Bytes::copy_from_slice(content))
    } else {
        broken("entry")
    }
}

fn encode_entry(entry: &Entry) -> Vec<u8> {
    let session = &entry.session;
    let mut out = Vec::with_capacity(256);
    let good = entry.damage.map_or(u64::MAX, |damage| damage.good_next_seq.get());
    for number in [session.next_seq.get(), session.updated_ms, session.position.0, good] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&session.chain.0);
    session.birth.encode(&mut out);
    seal(out)
}

fn decode_entry(log: LogId, bytes: &[u8]) -> Result<Entry, Broken> {
    let mut bytes = unseal(bytes)?;
    if bytes.len() < 64 {
        return broken("session");
    }
    let next_seq = Seq::saturating(bytes.get_u64_le());
    let (updated_ms, position) = (bytes.get_u64_le(), Position(bytes.get_u64_le()));
    let good = bytes.get_u64_le();
    let damage = (good != u64::MAX).then(|| Damage { good_next_seq: Seq::saturating(good) });
    let mut chain = [0; 32];
    bytes.copy_to_slice(&mut chain);
    let birth = Birth::decode(&mut bytes).map_err(|e| Broken(e.to_string()))?;
    let session = Session { log, birth: Arc::new(birth), next_seq, chain: Chain(chain), updated_ms, position };
    Ok(Entry { session, damage, deleted: false, places: Vec::new() })
}

fn encode_mark(mark: &Mark, store: u64) -> Vec<u8> {
    let cursor = mark.cursor;
    let numbers = [cursor.segment, cursor.offset, cursor.position, mark.horizon.0, mark.log_max, mark.names, store];
    seal(numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

fn decode_mark(bytes: &[u8], store: u64) -> Result<Mark, Broken> {
    let mut bytes = unseal(bytes)?;
    if bytes.len() != 56 {
        return broken("checkpoint");
    }
    let cursor = Cursor { segment: bytes.get_u64_le(), offset: bytes.get_u64_le(), position: bytes.get_u64_le() };
    let (horizon, log_max, names) = (Position(bytes.get_u64_le()), bytes.get_u64_le(), bytes.get_u64_le());
    if bytes.get_u64_le() == store {
        Ok(Mark { cursor, horizon, log_max, names })
    } else {
        Err(Broken("the index of another store".to_owned()))
    }
}
