//! The first pass: is this a session file, and how much of it counts?

use std::fmt;
use std::io::BufRead;

use super::cursor::{self, Cursor, Entry, Issue};
use super::error::Line;
use super::header::HeaderLine;
use super::input::{Fetched, Input};
use super::{DshError, ReadOptions};
use crate::model::{Header, SessionId};

/// Something that an operator should know about a file that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The working directory was a placeholder of a recording and is gone.
    CwdDropped {
        /// What it was.
        cwd: String,
    },
    /// Header fields that no header has; the reference drops them as well.
    FieldsDropped {
        /// Their names.
        keys: Vec<String>,
    },
    /// The file goes on behind the committed part; what follows was never finished.
    TornTail {
        /// Where it begins.
        line: Line,
        /// Why the line does not count.
        issue: Issue,
    },
    /// The last compressed frame is cut short; the records that could be read from it are in the committed part.
    FrameCut,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CwdDropped { cwd } => write!(f, "the working directory {cwd:?} is a placeholder and was dropped"),
            Self::FieldsDropped { keys } => write!(f, "unknown header fields were dropped: {}", keys.join(", ")),
            Self::TornTail { line, issue } => write!(f, "the tail from {line} on is torn: {issue}"),
            Self::FrameCut => f.write_str("the last compressed frame is cut short"),
        }
    }
}

/// What the first pass found. The counts are of plain bytes, also for a compressed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The session.
    pub id: SessionId,
    /// Its header.
    pub header: Header,
    /// Events in the committed part, packed ones counted one by one.
    pub events: u64,
    /// Length of the header line.
    pub header_bytes: u64,
    /// Length of the committed part, header included.
    pub committed_bytes: u64,
    /// Length of everything that could be read; what lies beyond the committed part is the torn tail.
    pub total_bytes: u64,
    /// Whether the file ends in something unfinished: a torn tail or a frame that is cut short.
    pub is_torn: bool,
    /// Whether the file is a recording whose events lack seq and time. They are numbered from 0; each has the time of
    /// the one before it, the first that of the header, and members of a packed row keep their gaps.
    pub is_recorded: bool,
    /// What an operator should know.
    pub notes: Vec<Note>,
}

/// Reads a whole file and judges it (reference 7.8).
///
/// The committed part ends before the first line that is no record in its place, or is not finished. If a `turn/end`
/// follows that line, the file is damaged instead of torn, and so it is if the line stands in a complete compressed
/// frame: then this is an error. Every event of the committed part has a sound envelope and lossless data.
pub fn scan<R: BufRead>(mut input: Input<R>, options: &ReadOptions) -> Result<Scan, DshError> {
    let mut header = Vec::new();
    if !matches!(input.next_line(&mut header, 1)?, Fetched::Line) {
        return Err(DshError::Empty);
    }
    let header_bytes = header.len() as u64;
    let header = HeaderLine::parse(&header)?;
    let mut line = Vec::new();
    let first = input.next_line(&mut line, 2)?;
    let is_recorded = matches!(first, Fetched::Line) && cursor::is_recording(&line);
    let mut notes = Vec::new();
    let (id, header) = header.finish(is_recorded, options, &mut notes)?;
    let mut pass = Pass {
        cursor: Cursor::new(is_recorded, header.created_at_ms),
        committed_bytes: header_bytes,
        total_bytes: header_bytes,
        torn: None,
    };
    pass.run(&mut input, first, line)?;
    notes.extend(pass.torn.map(|(line, issue)| Note::TornTail { line, issue }));
    notes.extend(input.is_cut().then_some(Note::FrameCut));
    Ok(Scan {
        id,
        header,
        events: pass.cursor.events(),
        header_bytes,
        committed_bytes: pass.committed_bytes,
        total_bytes: pass.total_bytes,
        is_torn: input.is_cut() || pass.total_bytes > pass.committed_bytes,
        is_recorded,
        notes,
    })
}

struct Pass {
    cursor: Cursor,
    committed_bytes: u64,
    total_bytes: u64,
    /// The first line that does not count, and why.
    torn: Option<(Line, Issue)>,
}

impl Pass {
    fn run<R: BufRead>(
        &mut self,
        input: &mut Input<R>,
        mut fetched: Fetched,
        mut text: Vec<u8>,
    ) -> Result<(), DshError> {
        loop {
            let line = self.cursor.line();
            if input.is_line_split() {
                return Err(DshError::FrameRecord { line });
            }
            match fetched {
                Fetched::Line => self.line(&text)?,
                Fetched::Fragment(bytes) => {
                    self.total_bytes += bytes;
                    self.torn.get_or_insert((line, Issue::Unterminated));
                }
                Fetched::End => break,
            }
            fetched = input.next_line(&mut text, self.cursor.line().file)?;
        }
        match &self.torn {
            Some((line, _)) if self.committed_bytes < input.complete_bytes() => {
                Err(DshError::FrameRecord { line: *line })
            }
            _ => Ok(()),
        }
    }

    fn line(&mut self, text: &[u8]) -> Result<(), DshError> {
        self.total_bytes += text.len() as u64;
        let mut ends_turn = false;
        if self.torn.is_some() {
            ends_turn = self.cursor.skip(text);
        } else {
            let line = self.cursor.line();
            match self.cursor.apply(text)? {
                Entry::Event(_) | Entry::Row(_) => self.committed_bytes = self.total_bytes,
                Entry::Bad { issue, ends_turn: is_end } => {
                    ends_turn = is_end;
                    self.torn = Some((line, issue));
                }
            }
        }
        match self.torn.take_if(|_| ends_turn) {
            Some((line, issue)) => Err(damage(line, issue)),
            None => Ok(()),
        }
    }
}

/// The error for a bad line in the committed part.
fn damage(line: Line, issue: Issue) -> DshError {
    match issue {
        Issue::Unparsable(cause) => DshError::Unparsable { line, cause },
        Issue::Gap { expected, got } => DshError::Gap { line, expected, got },
        // Nothing can follow a line without an end.
        Issue::Unterminated => DshError::FrameRecord { line },
    }
}
