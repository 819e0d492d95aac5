//! Reads and writes the session files of the reference harness: plain or compressed JSONL, format 0 (reference 7.8, 15).
//!
//! Two passes over the same bytes: [`scan()`] judges the whole file, [`events()`] then gives the events of its committed
//! part. Both are streams; memory is a small multiple of the longest line. `data` is the line's own text, never
//! written anew. A torn tail is told apart from damage exactly as the reference does it, and damage is always a
//! typed error with its line. Whether the events make a valid log is not known here, and nothing is normalised.

mod cursor;
mod envelope;
mod error;
mod events;
mod frame;
mod frames;
mod header;
mod input;
mod name;
mod scan;
mod whole;
mod write;

pub use cursor::{BadLine, Issue};
pub use error::{DshError, Line};
pub use events::{Events, events};
pub use input::{Input, open};
pub use name::file_name;
pub use scan::{Note, Scan, scan};
pub use whole::Whole;
pub use write::{Omission, WriteOptions, Writer};
pub(super) use write::{header_line, on_one_line};

use crate::model::json::Value;
use crate::model::{NewEvent, SessionId};

/// One event in the reference's line form; one without seq and time gets `time_ms`. The refusal names the field.
pub fn read_event(value: Value<'_, '_>, time_ms: Option<i64>) -> Result<NewEvent, String> {
    envelope::read(value, time_ms).map_err(|fault| format!("`{}` {}", fault.field, fault.problem))
}

/// How to read a file.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The id to give the session; without it the file's own.
    pub id: Option<SessionId>,
    /// The working directory to put into the header; without it the file's own. The only way to take a file in whose
    /// own is not an absolute POSIX path, except for recordings, which just lose it.
    pub cwd: Option<String>,
    /// Longest line in bytes, newline included; a longer one is refused.
    pub line_bytes_max: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { id: None, cwd: None, line_bytes_max: 64 << 20 }
    }
}
