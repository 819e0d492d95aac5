//! The bytes of an archive on their way in: counted, hashed, inflated, never believed.

use std::io::{self, BufRead, Read};

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::ArchiveError;

/// The raw bytes.
pub(super) struct Input<R> {
    reader: R,
    pub(super) hasher: blake3::Hasher,
    pub(super) offset: u64,
}

impl<R: BufRead> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, hasher: blake3::Hasher::new(), offset: 0 }
    }

    fn fill(&mut self) -> Result<&[u8], ArchiveError> {
        self.reader.fill_buf().map_err(ArchiveError::Io)
    }

    fn consume(&mut self, count: usize) {
        // What was filled is still there.
        if let Ok(bytes) = self.reader.fill_buf() {
            self.hasher.update(bytes.get(..count).unwrap_or(bytes));
        }
        self.reader.consume(count);
        self.offset += count as u64;
    }

    /// Whether the stream is at its end.
    pub(super) fn is_at_end(&mut self) -> Result<bool, ArchiveError> {
        Ok(self.fill()?.is_empty())
    }

    /// Exactly so many bytes, which the caller has capped.
    pub(super) fn take(&mut self, count: usize, inside: &str) -> Result<Vec<u8>, ArchiveError> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            let chunk = self.fill()?;
            if chunk.is_empty() {
                return Err(ArchiveError::Truncated { at: self.offset, inside: inside.to_owned() });
            }
            let part = chunk.get(..count - bytes.len()).unwrap_or(chunk);
            bytes.extend_from_slice(part);
            let used = part.len();
            self.consume(used);
        }
        Ok(bytes)
    }
}

/// The content of a deflated entry.
pub(super) struct Body<'a, R> {
    input: &'a mut Input<R>,
    inflate: Decompress,
    out: Vec<u8>,
    at: usize,
    crc: Crc,
    name: &'a str,
    /// Bytes that may still come out, and the limit that it is said to be.
    left: (u64, u64),
    is_done: bool,
    /// Why reading failed.
    pub(super) fault: Option<ArchiveError>,
}

/// Bytes that are inflated at a time.
const CHUNK_BYTES: usize = 64 << 10;

impl<'a, R: BufRead> Body<'a, R> {
    pub(super) fn new(input: &'a mut Input<R>, name: &'a str, left: (u64, u64)) -> Self {
        let (inflate, crc) = (Decompress::new(false), Crc::new());
        Self { input, inflate, out: Vec::new(), at: 0, crc, name, left, is_done: false, fault: None }
    }

    /// Checksum, packed and plain size of what was read.
    pub(super) fn sums(&self) -> (u32, u64, u64) {
        (self.crc.sum(), self.inflate.total_in(), self.inflate.total_out())
    }

    fn more(&mut self) -> Result<(), ArchiveError> {
        let damaged = || ArchiveError::Deflate { name: self.name.to_owned() };
        self.out.resize(CHUNK_BYTES, 0);
        self.at = 0;
        loop {
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let chunk = self.input.fill()?;
            let is_end = chunk.is_empty();
            let status = self.inflate.decompress(chunk, &mut self.out, FlushDecompress::None).map_err(|_| damaged())?;
            let used = self.inflate.total_in() - before_in;
            let made = self.inflate.total_out() - before_out;
            self.input.consume(used as usize);
            self.is_done = status == Status::StreamEnd;
            if self.is_done || made > 0 {
                self.out.truncate(made as usize);
                self.left.0 = self.left.0.checked_sub(made).ok_or(ArchiveError::TooLarge { max: self.left.1 })?;
                self.crc.update(&self.out);
                return Ok(());
            }
            if is_end {
                let inside = format!("the entry {:?}", self.name);
                return Err(ArchiveError::Truncated { at: self.input.offset, inside });
            }
            if used == 0 {
                return Err(damaged());
            }
        }
    }
}

impl<R: BufRead> BufRead for Body<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let is_empty = self.at >= self.out.len() && !self.is_done;
        if is_empty && let Err(error) = self.more() {
            self.out.clear();
            let told = io::Error::other(error.to_string());
            self.fault = Some(error);
            return Err(told);
        }
        Ok(self.out.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl<R: BufRead> Read for Body<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let chunk = self.fill_buf()?;
        let count = chunk.len().min(out.len());
        for (place, byte) in out.iter_mut().zip(chunk) {
            *place = *byte;
        }
        self.consume(count);
        Ok(count)
    }
}
