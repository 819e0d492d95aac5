//! The second pass: the events of the committed part.

use std::io::BufRead;
use std::sync::Arc;

use super::cursor::{Cursor, Entry};
use super::input::{Fetched, Input};
use super::{DshError, Scan};
use crate::codec::rows::{CHUNK_TYPE, Member, Members};
use crate::model::{Event, NewEvent, Seq};

/// The events of a file in order; ends after the first error.
pub struct Events<R> {
    input: Input<R>,
    cursor: Cursor,
    text: Vec<u8>,
    row: Option<Members>,
    chunk_type: Arc<str>,
    /// Plain bytes read so far.
    offset: u64,
    header_bytes: u64,
    committed_bytes: u64,
}

/// Reads the events that `scan` counted, from the same file opened anew: exactly [`Scan::events`] of them, or an
/// error if the file is no longer what it was.
pub fn events<R: BufRead>(input: Input<R>, scan: &Scan) -> Events<R> {
    Events {
        input,
        cursor: Cursor::of(scan),
        text: Vec::new(),
        row: None,
        chunk_type: CHUNK_TYPE.into(),
        offset: 0,
        header_bytes: scan.header_bytes,
        committed_bytes: scan.committed_bytes,
    }
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = Result<Event, DshError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(member) = self.row.as_mut().and_then(Iterator::next) {
                return Some(Ok(self.chunk(member)));
            }
            if self.offset >= self.committed_bytes {
                return None;
            }
            match self.line() {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(error) => {
                    self.offset = self.committed_bytes;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl<R: BufRead> Events<R> {
    /// Takes one line: an event, or none if it was the header or a row.
    fn line(&mut self) -> Result<Option<Event>, DshError> {
        let line = self.cursor.line();
        let is_header = self.offset == 0;
        let fetched = self.input.next_line(&mut self.text, if is_header { 1 } else { line.file })?;
        let end = self.offset + self.text.len() as u64;
        let is_in_place = if is_header { end == self.header_bytes } else { end <= self.committed_bytes };
        if !matches!(fetched, Fetched::Line) || !is_in_place {
            return Err(DshError::Changed { offset: end });
        }
        self.offset = end;
        if is_header {
            return Ok(None);
        }
        match self.cursor.apply(&self.text)? {
            Entry::Event(event) => Ok(Some(event)),
            Entry::Row(members) => {
                self.row = Some(members);
                Ok(None)
            }
            Entry::Bad { .. } => Err(DshError::Changed { offset: end }),
        }
    }

    fn chunk(&self, member: Member) -> Event {
        let Member { seq, time_ms, data } = member;
        let kind = Arc::clone(&self.chunk_type);
        let body = NewEvent { time_ms, kind, data, ignorable: false, surface_op: None, source_event_seqs: None };
        // Cannot saturate: the seq equals the number of events before it.
        Event { seq: Seq::saturating(seq), body }
    }
}
