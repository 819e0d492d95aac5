//! The bytes of a session file as lines.
//!
//! Both encodings look alike from here on. No line is held that is longer than the limit, and no more than one.

use std::io::{BufRead, Chain, Cursor, Read};

use super::frame::MAGIC;
use super::frames::Frames;
use super::{DshError, ReadOptions};

/// A session file, decompressed if need be; feeds one pass.
pub struct Input<R> {
    source: Source<Chain<Cursor<Vec<u8>>, R>>,
    line_bytes_max: usize,
}

enum Source<R> {
    Plain(R),
    Zstd(Box<Frames<R>>),
}

/// Looks at the first bytes and takes the file for what they say: Zstandard frames or plain lines.
///
/// The first frame of a compressed file is read and checked here. Memory: one line and the decoder's window, at most
/// 128 MiB by the decoder's own limit and 2 MiB for what the reference writes.
pub fn open<R: BufRead>(mut reader: R, options: &ReadOptions) -> Result<Input<R>, DshError> {
    let line_bytes_max = options.line_bytes_max;
    let mut start = Vec::with_capacity(MAGIC.len());
    reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
    let is_compressed = !start.is_empty() && MAGIC.starts_with(&start);
    let reader = Cursor::new(start).chain(reader);
    let source = if is_compressed {
        Source::Zstd(Box::new(Frames::open(reader, line_bytes_max)?))
    } else {
        Source::Plain(reader)
    };
    Ok(Input { source, line_bytes_max })
}

/// What the next line turned out to be.
pub(super) enum Fetched {
    /// A complete line, newline included.
    Line,
    /// That many bytes without a newline, then the end.
    Fragment(u64),
    /// The end.
    End,
}

impl<R: BufRead> Input<R> {
    /// Whether the file is a sequence of Zstandard frames.
    pub fn is_compressed(&self) -> bool {
        matches!(self.source, Source::Zstd(_))
    }

    /// How many plain bytes stand in complete frames so far; 0 for a plain file.
    pub(super) fn complete_bytes(&self) -> u64 {
        match &self.source {
            Source::Plain(_) => 0,
            Source::Zstd(frames) => frames.complete_bytes(),
        }
    }

    /// Whether a complete frame ended inside a line.
    pub(super) fn is_line_split(&self) -> bool {
        matches!(&self.source, Source::Zstd(frames) if frames.is_line_split())
    }

    /// Whether the stream ended inside a frame.
    pub(super) fn is_cut(&self) -> bool {
        matches!(&self.source, Source::Zstd(frames) if frames.is_cut())
    }

    /// Reads the line numbered `file_line` into `line`. What is longer than the limit is read past, not kept; it is an
    /// error only if it turns out to be a line.
    pub(super) fn next_line(&mut self, line: &mut Vec<u8>, file_line: u64) -> Result<Fetched, DshError> {
        line.clear();
        let max = self.line_bytes_max;
        let mut bytes = 0;
        loop {
            let chunk = self.fill()?;
            if chunk.is_empty() {
                return Ok(if bytes == 0 { Fetched::End } else { Fetched::Fragment(bytes) });
            }
            let (taken, ends) = match chunk.iter().position(|&byte| byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (chunk.len(), false),
            };
            bytes += taken as u64;
            let fits = bytes <= max as u64;
            if fits {
                line.extend_from_slice(chunk.get(..taken).unwrap_or(chunk));
            }
            self.consume(taken);
            match (ends, fits) {
                (true, true) => return Ok(Fetched::Line),
                (true, false) => return Err(DshError::LineTooLong { file_line, bytes, max }),
                (false, _) => {}
            }
        }
    }

    fn fill(&mut self) -> Result<&[u8], DshError> {
        match &mut self.source {
            Source::Plain(reader) => Ok(reader.fill_buf()?),
            Source::Zstd(frames) => frames.fill(),
        }
    }

    fn consume(&mut self, count: usize) {
        match &mut self.source {
            Source::Plain(reader) => reader.consume(count),
            Source::Zstd(frames) => frames.consume(count),
        }
    }
}
