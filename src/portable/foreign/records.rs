//! A stream of lines as a stream of events.

use std::collections::VecDeque;
use std::io::{self, BufRead};

use super::{Harness, Mapped, Mapper};
use crate::model::Event;

/// Longest line in bytes; a longer one is named as damaged and read past.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The events of a transcript, in order; [`mapped`](Records::mapped) says after the last one what the file came to.
pub struct Records<R> {
    reader: R,
    mapper: Mapper,
    ready: VecDeque<Event>,
    line: Vec<u8>,
    is_done: bool,
}

/// Reads a transcript.
pub fn records<R: BufRead>(reader: R, harness: Harness) -> Records<R> {
    let mapper = Mapper::new(harness);
    Records { reader, mapper, ready: VecDeque::new(), line: Vec::new(), is_done: false }
}

impl<R: BufRead> Records<R> {
    /// See [`Mapper::mapped`].
    pub fn mapped(&mut self) -> Mapped {
        self.mapper.mapped()
    }

    /// Reads one line; `false` at the end.
    fn step(&mut self) -> io::Result<bool> {
        self.line.clear();
        let mut bytes = 0;
        loop {
            let chunk = self.reader.fill_buf()?;
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            let is_end = chunk.is_empty();
            bytes += part.len();
            if bytes <= LINE_BYTES_MAX {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() || is_end {
                return Ok(self.give(bytes, is_end));
            }
        }
    }

    fn give(&mut self, bytes: usize, is_end: bool) -> bool {
        match (bytes > LINE_BYTES_MAX, is_end) {
            (true, _) => self.mapper.refuse_line(bytes as u64, LINE_BYTES_MAX),
            (false, false) => self.mapper.apply(&self.line),
            (false, true) if bytes > 0 => self.mapper.apply_last(&self.line),
            (false, true) => {}
        }
        !is_end
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = io::Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.is_done {
            match self.step() {
                Ok(true) => {}
                Ok(false) => {
                    self.is_done = true;
                    self.mapper.finish();
                }
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
            self.ready.extend(self.mapper.take());
        }
        self.ready.pop_front().map(Ok)
    }
}
