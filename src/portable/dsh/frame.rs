//! Where a Zstandard frame ends (RFC 8878, section 3.1), without decoding it.
//!
//! The decoder cannot say whether a frame that it could not decode was damaged or merely cut short; its block
//! headers can. Skippable frames and other magic numbers are refused: the reference writes neither.

use super::DshError;

/// What every frame begins with.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Follows one frame byte by byte.
pub(super) struct Walker {
    part: Part,
    /// The bytes of the current field so far, for fields that are looked at.
    field: [u8; 4],
    have: usize,
    has_checksum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Magic,
    Descriptor,
    BlockHeader,
    /// So many bytes that are not looked at, then a block header.
    Skip(usize),
    /// So many bytes that are not looked at, then the end.
    Last(usize),
}

/// What a complete field says about the part after it.
type Then = fn(&mut Walker) -> Result<Part, DshError>;

impl Walker {
    pub(super) fn new() -> Self {
        Self { part: Part::Magic, field: [0; 4], have: 0, has_checksum: false }
    }

    /// Whether not one byte of the frame was seen.
    pub(super) fn is_untouched(&self) -> bool {
        self.part == Part::Magic && self.have == 0
    }

    /// Whether the frame was seen to its end.
    pub(super) fn is_done(&self) -> bool {
        self.part == Part::Last(0)
    }

    /// Takes what of `input` belongs to the frame and says how much that is.
    pub(super) fn walk(&mut self, input: &[u8]) -> Result<usize, DshError> {
        let mut used = 0;
        while !self.is_done() {
            let rest = input.get(used..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            used += self.step(rest)?;
        }
        Ok(used)
    }

    fn step(&mut self, rest: &[u8]) -> Result<usize, DshError> {
        match self.part {
            Part::Magic => self.look(rest, 4, Self::magic),
            Part::Descriptor => self.look(rest, 1, Self::descriptor),
            Part::BlockHeader => self.look(rest, 3, Self::block),
            Part::Skip(count) => {
                let used = count.min(rest.len());
                self.part = if used == count { Part::BlockHeader } else { Part::Skip(count - used) };
                Ok(used)
            }
            Part::Last(count) => {
                let used = count.min(rest.len());
                self.part = Part::Last(count - used);
                Ok(used)
            }
        }
    }

    /// Collects a field of `size` bytes; `then` decides what comes after it.
    fn look(&mut self, rest: &[u8], size: usize, then: Then) -> Result<usize, DshError> {
        let missing = self.field.iter_mut().take(size).skip(self.have);
        let used = missing.zip(rest).map(|(place, &byte)| *place = byte).count();
        self.have += used;
        if self.have == size {
            self.part = then(self)?;
            self.have = 0;
        }
        Ok(used)
    }

    fn magic(&mut self) -> Result<Part, DshError> {
        if self.field == MAGIC { Ok(Part::Descriptor) } else { corrupt("a frame has a bad magic number") }
    }

    fn descriptor(&mut self) -> Result<Part, DshError> {
        let descriptor = self.field[0];
        if descriptor & 0x08 != 0 {
            return corrupt("a frame header has its reserved bit set");
        }
        self.has_checksum = descriptor & 0x04 != 0;
        let is_single_segment = descriptor & 0x20 != 0;
        let window = usize::from(!is_single_segment);
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 0x03)];
        let content_size = [usize::from(is_single_segment), 2, 4, 8][usize::from(descriptor >> 6)];
        Ok(match window + dictionary + content_size {
            0 => Part::BlockHeader,
            count => Part::Skip(count),
        })
    }

    fn block(&mut self) -> Result<Part, DshError> {
        let [a, b, c, _] = self.field;
        let header = u32::from_le_bytes([a, b, c, 0]);
        let size = match header >> 1 & 3 {
            0 | 2 => (header >> 3) as usize,
            1 => 1,
            _ => return corrupt("a block has the reserved type"),
        };
        let checksum = if self.has_checksum { 4 } else { 0 };
        Ok(match (header & 1 == 1, size) {
            (true, _) => Part::Last(size + checksum),
            (false, 0) => Part::BlockHeader,
            (false, _) => Part::Skip(size),
        })
    }
}

fn corrupt<T>(problem: &str) -> Result<T, DshError> {
    Err(DshError::Zstd { problem: problem.to_owned() })
}
