//! Checked little-endian reading.

use bytes::{Buf, Bytes};

/// The bytes are not what the format says. Frames carry checksums, so that this means damage or a defect, never an
/// everyday event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

/// A cursor that fails instead of panicking when the input ends.
pub(super) struct Reader<'a> {
    bytes: &'a mut Bytes,
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a mut Bytes, what: &'static str) -> Self {
        Self { bytes, what }
    }

    pub(super) fn fail<T>(&self) -> Result<T, Malformed> {
        Err(Malformed(self.what))
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    fn need(&self, count: usize) -> Result<(), Malformed> {
        if self.bytes.len() < count { self.fail() } else { Ok(()) }
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.need(1)?;
        Ok(self.bytes.get_u8())
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.need(4)?;
        Ok(self.bytes.get_u32_le())
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.need(8)?;
        Ok(self.bytes.get_u64_le())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.need(N)?;
        let mut array = [0; N];
        self.bytes.copy_to_slice(&mut array);
        Ok(array)
    }

    /// The next `count` bytes, shared with the input.
    pub(super) fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        self.need(count)?;
        Ok(self.bytes.split_to(count))
    }

    /// A length and that many bytes.
    pub(super) fn block(&mut self) -> Result<Bytes, Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let block = self.block()?;
        std::str::from_utf8(&block).map(str::to_owned).or_else(|_| self.fail())
    }

    /// `None` or a value, told apart by a byte.
    pub(super) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => self.fail(),
        }
    }
}

/// Writes a length and that many bytes.
pub(super) fn put_block(block: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(block.len() as u32).to_le_bytes());
    out.extend_from_slice(block);
}

/// Writes the byte that tells presence, then the value.
pub(super) fn put_optional<T>(value: Option<T>, out: &mut Vec<u8>, put: impl FnOnce(T, &mut Vec<u8>)) {
    match value {
        None => out.push(0),
        Some(value) => {
            out.push(1);
            put(value, out);
        }
    }
}
