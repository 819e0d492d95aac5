//! A compressed session file as plain bytes (reference 7.8, 15.2).
//!
//! Independent frames: the first holds exactly the header line, each later one a batch of whole lines. A complete
//! frame that does not decode, or fails its checksum, is an error; a last frame that is cut short gives what can be
//! decoded of it and then ends. Inflation is bounded: one buffer of output at a time.

use std::io::BufRead;

use zstd::stream::raw::{Decoder, Operation};

use super::DshError;
use super::frame::Walker;

const OUTPUT_BYTES: usize = 128 << 10;

pub(super) struct Frames<R> {
    reader: R,
    decoder: Decoder<'static>,
    walker: Walker,
    /// Bytes at the front of `reader` that belong to the current frame and were not decoded yet.
    walked: usize,
    /// Why the current frame does not decode.
    broken: Option<String>,
    output: Vec<u8>,
    unread: std::ops::Range<usize>,
    plain_bytes: u64,
    complete_bytes: u64,
    ends_line: bool,
    is_line_split: bool,
    is_cut: bool,
}

enum Step {
    /// There may be new output.
    Output,
    /// A frame ended; its output was given.
    FrameEnd,
    /// The stream ended.
    End,
}

impl<R: BufRead> Frames<R> {
    /// Reads the first frame, which must be one line of at most `line_bytes_max` bytes.
    pub(super) fn open(reader: R, line_bytes_max: usize) -> Result<Self, DshError> {
        let mut frames = Self {
            reader,
            decoder: Decoder::new()?,
            walker: Walker::new(),
            walked: 0,
            broken: None,
            output: vec![0; OUTPUT_BYTES],
            unread: 0..0,
            plain_bytes: 0,
            complete_bytes: 0,
            ends_line: true,
            is_line_split: false,
            is_cut: false,
        };
        let mut header = frames.first_frame(line_bytes_max)?;
        frames.unread = 0..header.len();
        header.resize(header.len().max(OUTPUT_BYTES), 0);
        frames.output = header;
        Ok(frames)
    }

    fn first_frame(&mut self, line_bytes_max: usize) -> Result<Vec<u8>, DshError> {
        let mut header = Vec::new();
        loop {
            let step = self.step()?;
            header.extend_from_slice(self.unread());
            self.unread = 0..0;
            if header.len() > line_bytes_max {
                return Err(DshError::LineTooLong { file_line: 1, bytes: header.len() as u64, max: line_bytes_max });
            }
            match step {
                Step::Output => {}
                Step::FrameEnd => break,
                Step::End => return Err(DshError::EmptyZstd),
            }
        }
        let is_one_line = header.iter().position(|&byte| byte == b'\n').is_some_and(|at| at + 1 == header.len());
        if is_one_line { Ok(header) } else { corrupt("first frame is not exactly one header line".to_owned()) }
    }

    fn unread(&self) -> &[u8] {
        self.output.get(self.unread.clone()).unwrap_or_default()
    }

    /// The next plain bytes; empty at the end.
    pub(super) fn fill(&mut self) -> Result<&[u8], DshError> {
        while self.unread.is_empty() {
            if matches!(self.step()?, Step::End) {
                break;
            }
        }
        Ok(self.unread())
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.unread.start = self.unread.end.min(self.unread.start + count);
    }

    /// Plain bytes up to the end of the last complete frame.
    pub(super) fn complete_bytes(&self) -> u64 {
        self.complete_bytes
    }

    /// Whether a complete frame ended inside a line.
    pub(super) fn is_line_split(&self) -> bool {
        self.is_line_split
    }

    /// Whether the stream ended inside a frame.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn step(&mut self) -> Result<Step, DshError> {
        let input = self.reader.fill_buf()?;
        if self.walked == 0 && !self.walker.is_done() {
            if input.is_empty() {
                return Ok(self.end());
            }
            self.walked = self.walker.walk(input)?;
        }
        let taken = if self.broken.is_some() { self.walked } else { self.decode()? };
        self.reader.consume(taken);
        self.walked -= taken;
        let is_drained = self.unread.is_empty() || self.broken.is_some();
        if self.walker.is_done() && self.walked == 0 && is_drained { self.end_frame() } else { Ok(Step::Output) }
    }

    /// Decodes some of the walked input and says how much was taken.
    fn decode(&mut self) -> Result<usize, DshError> {
        let input = self.reader.fill_buf()?;
        let input = input.get(..self.walked).unwrap_or(input);
        match self.decoder.run_on_buffers(input, &mut self.output) {
            Ok(status) => {
                self.give(status.bytes_written);
                if status.bytes_read == 0 && status.bytes_written == 0 && self.walked > 0 {
                    self.broken = Some("a frame does not decode".to_owned());
                }
                Ok(status.bytes_read)
            }
            Err(error) => {
                self.broken = Some(error.to_string());
                Ok(self.walked)
            }
        }
    }

    fn give(&mut self, count: usize) {
        self.unread = 0..count;
        self.plain_bytes += count as u64;
        if let Some(last) = self.unread().last() {
            self.ends_line = *last == b'\n';
        }
    }

    fn end_frame(&mut self) -> Result<Step, DshError> {
        if let Some(problem) = self.broken.take() {
            return corrupt(problem);
        }
        self.walker = Walker::new();
        self.complete_bytes = self.plain_bytes;
        self.is_line_split |= !self.ends_line;
        Ok(Step::FrameEnd)
    }

    /// The stream is at its end: a cut frame gives what the decoder still holds.
    fn end(&mut self) -> Step {
        self.is_cut = !self.walker.is_untouched();
        if !self.is_cut || self.broken.is_some() {
            return Step::End;
        }
        match self.decoder.run_on_buffers(&[], &mut self.output) {
            Ok(status) if status.bytes_written > 0 => {
                self.give(status.bytes_written);
                Step::Output
            }
            _ => Step::End,
        }
    }
}

fn corrupt<T>(problem: String) -> Result<T, DshError> {
    Err(DshError::Zstd { problem })
}
