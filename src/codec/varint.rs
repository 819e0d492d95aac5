//! Numbers of variable length: LEB128, and zigzag for signed differences.
//!
//! Reading never runs past the input and never takes more than ten bytes for one number.

use super::reader::Malformed;

/// Appends a number, seven bits a byte, low ones first.
pub(super) fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends the difference of two numbers; small ones of either sign are short.
pub(super) fn put_difference(number: u64, before: u64, out: &mut Vec<u8>) {
    let difference = number.wrapping_sub(before) as i64;
    put(((difference << 1) ^ (difference >> 63)) as u64, out);
}

/// A cursor over numbers and slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Numbers<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(super) fn fail<T>(&self) -> Result<T, Malformed> {
        Err(Malformed(self.what))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that was not taken yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let Some((&byte, rest)) = self.rest.split_first() else { return self.fail() };
            self.rest = rest;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        self.fail()
    }

    /// A number that counts things or bytes.
    pub(super) fn count(&mut self) -> Result<usize, Malformed> {
        let number = self.number()?;
        u32::try_from(number).map_or_else(|_| self.fail(), |number| Ok(number as usize))
    }

    /// What [`put_difference`] wrote.
    pub(super) fn difference(&mut self, before: u64) -> Result<u64, Malformed> {
        let packed = self.number()?;
        Ok(before.wrapping_add((packed >> 1) ^ (packed & 1).wrapping_neg()))
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else { return self.fail() };
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
}
