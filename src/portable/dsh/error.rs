//! Why a session file was refused.

use std::fmt;
use std::io;

use super::cursor::BadLine;
use crate::model::json::JsonError;
use crate::model::{HeaderError, IdError};

/// Where a line of events stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1 without the header, as in the reference's texts.
    pub event: u64,
    /// Counted from 1 in the file.
    pub file: u64,
}

impl Line {
    pub(super) fn from_event(event: u64) -> Self {
        Self { event, file: event + 1 }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.file)
    }
}

/// Why a session file was refused. Where the reference has a text for it, this is its text.
#[derive(Debug, thiserror::Error)]
pub enum DshError {
    /// The stream could not be read.
    #[error("cannot read the session file")]
    Io(#[from] io::Error),
    /// There is no complete header line.
    #[error("empty or header-less session log")]
    Empty,
    /// There is no complete first frame.
    #[error("empty or header-less Zstandard session log")]
    EmptyZstd,
    /// The compressed form is damaged.
    #[error("corrupt Zstandard session log: {problem}")]
    Zstd {
        /// What is wrong.
        problem: String,
    },
    /// A complete frame holds a line that is no record in its place.
    #[error("corrupt Zstandard session log: complete frame contains a torn JSONL record at {line}")]
    FrameRecord {
        /// The line.
        line: Line,
    },
    /// The first line is not JSON.
    #[error("corrupt session log: header line is not valid JSON")]
    HeaderNotJson,
    /// The first line is something else.
    #[error("corrupt session log: first line is not a session header")]
    NotHeader,
    /// The header is from before policies became events.
    #[error("session header uses retired policy baseline fields")]
    RetiredHeader,
    /// A later format.
    #[error(
        "session {id:?} uses log format v{version}, but this harness reads only v0: the log was written by a newer \
         harness \u{2014} upgrade the harness to open it"
    )]
    FormatNewer {
        /// The session.
        id: String,
        /// The file's version.
        version: String,
    },
    /// An earlier format.
    #[error(
        "session {id:?} uses log format v{version}, older than the supported v0, and this build ships no upgrade path \
         for it"
    )]
    FormatOlder {
        /// The session.
        id: String,
        /// The file's version.
        version: String,
    },
    /// The header breaks a rule of its own fields, or our limits.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The id cannot name a session here; [`super::ReadOptions::id`] can give another.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A line is longer than allowed.
    #[error("line {file_line} has {bytes} bytes; {max} are allowed")]
    LineTooLong {
        /// Counted from 1 in the file.
        file_line: u64,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A line in the committed part that is no record.
    #[error("corrupt session log: unparsable committed event at line {}", line.event)]
    Unparsable {
        /// The line.
        line: Line,
        /// What is wrong with it.
        #[source]
        cause: BadLine,
    },
    /// A line in the committed part that does not continue the log.
    #[error("corrupt session log: seq gap in committed region at line {} (expected {expected}, got {got})", line.event)]
    Gap {
        /// The line.
        line: Line,
        /// The seq that had to come.
        expected: u64,
        /// What came, as ECMAScript would print it.
        got: String,
    },
    /// The file ends inside a line.
    #[error("{line} has no end")]
    Unfinished {
        /// The line.
        line: Line,
    },
    /// A value that can be no event.
    #[error("{line} is `{found}`, which is no event")]
    NotAnEvent {
        /// The line.
        line: Line,
        /// The value, cut short.
        found: String,
    },
    /// JSON that a reader with IEEE doubles and one value per key does not keep.
    #[error("{line} {error}")]
    Lossy {
        /// The line.
        line: Line,
        /// What is lost, with its place in the line.
        error: JsonError,
    },
    /// An envelope that is not one of an event.
    #[error("{line}: `{field}` {problem}")]
    Envelope {
        /// The line.
        line: Line,
        /// The field.
        field: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The second pass met other bytes than the first.
    #[error("the session file changed between two passes, before byte {offset}")]
    Changed {
        /// Where the difference was met, in plain bytes.
        offset: u64,
    },
}

/// A text for a message: its start, if it is long.
pub(super) fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 64;
    match text.char_indices().nth(CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}
