//! One pass over a plain session file that must be whole: what was written to be read again, not what a crash left.

use std::io::BufRead;

use super::cursor::{Cursor, Entry, Issue};
use super::header::HeaderLine;
use super::input::{self, Fetched, Input};
use super::write::header_line;
use super::{DshError, ReadOptions};
use crate::codec::rows::{CHUNK_TYPE, Member, Members};
use crate::model::{Event, Header, NewEvent, Seq, SessionId};

/// The events of a file in order; ends after the first error. A torn tail is an error, too.
pub struct Whole<R> {
    /// The session.
    pub id: SessionId,
    /// Its header.
    pub header: Header,
    input: Input<R>,
    cursor: Cursor,
    row: Option<Members>,
    text: Vec<u8>,
    is_done: bool,
}

impl<R: BufRead> Whole<R> {
    /// Reads the header line, which must be as [`super::Writer`] writes it.
    pub fn open(reader: R, options: &ReadOptions) -> Result<Self, DshError> {
        let mut input = input::open(reader, options)?;
        let mut text = Vec::new();
        let is_line = matches!(input.next_line(&mut text, 1)?, Fetched::Line);
        if !is_line || input.is_compressed() {
            return Err(DshError::Empty);
        }
        let (id, header) = HeaderLine::parse(&text)?.finish(false, options, &mut Vec::new())?;
        if header_line(&id, &header).as_bytes() != text {
            return Err(DshError::NotHeader);
        }
        let cursor = Cursor::new(false, header.created_at_ms);
        Ok(Self { id, header, input, cursor, row: None, text, is_done: false })
    }

    fn line(&mut self) -> Result<Option<Event>, DshError> {
        let line = self.cursor.line();
        match self.input.next_line(&mut self.text, line.file)? {
            Fetched::Line => {}
            Fetched::Fragment(_) => return Err(DshError::Unfinished { line }),
            Fetched::End => {
                self.is_done = true;
                return Ok(None);
            }
        }
        match self.cursor.apply(&self.text)? {
            Entry::Event(event) => Ok(Some(event)),
            Entry::Row(members) => {
                self.row = Some(members);
                Ok(None)
            }
            Entry::Bad { issue, .. } => Err(match issue {
                Issue::Unparsable(cause) => DshError::Unparsable { line, cause },
                Issue::Gap { expected, got } => DshError::Gap { line, expected, got },
                Issue::Unterminated => DshError::Unfinished { line },
            }),
        }
    }
}

impl<R: BufRead> Iterator for Whole<R> {
    type Item = Result<Event, DshError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_done {
            if let Some(Member { seq, time_ms, data }) = self.row.as_mut().and_then(Iterator::next) {
                let kind = CHUNK_TYPE.into();
                let body =
                    NewEvent { time_ms, kind, data, ignorable: false, surface_op: None, source_event_seqs: None };
                return Some(Ok(Event { seq: Seq::saturating(seq), body }));
            }
            match self.line() {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
