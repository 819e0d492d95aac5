//! What the index tells those who read all changes: sessions by log, and who a deleted log was.
//!
//! Reads only. The order of logs does not change, so that a walk meets every session that was there throughout.

use std::sync::Arc;

use super::index::{Broken, Index, decode_log, session_key};
use super::rows::{decode_entry, unseal};
use super::table::Entry;
use crate::store::{Birth, LogId};

impl Index {
    /// The session that a log had which was deleted.
    pub(super) fn gone(&self, log: LogId) -> Result<Option<Arc<Birth>>, Broken> {
        self.guarded(|db| {
            let Some(bytes) = db.get(gone_key(log))? else { return Ok(None) };
            let birth = Birth::decode(&mut unseal(&bytes)?).map_err(|e| Broken(e.to_string()))?;
            Ok(Some(Arc::new(birth)))
        })
    }

    /// Sessions by log after `after`.
    pub(super) fn sessions(&self, after: LogId, count: usize) -> Result<Vec<Entry>, Broken> {
        self.guarded(|db| {
            let mut entries = Vec::new();
            for row in db.range(session_key(LogId(after.0 + 1))..=session_key(LogId(u64::MAX))).take(count) {
                let (key, bytes) = row?;
                entries.push(decode_entry(decode_log(key.get(1..).unwrap_or_default())?, &bytes)?.0);
            }
            Ok(entries)
        })
    }
}

pub(super) fn gone_key(log: LogId) -> Vec<u8> {
    [b"g", &log.0.to_be_bytes()[..]].concat()
}
