//! The state that the folds of a tail have at some point of a log, as bytes and back.
//!
//! Who keeps the bytes need not read the log again up to that point. They are a shortcut and never the truth: bytes that
//! are damaged, of another version, or made under another set of log-only types give nothing, and the folds start anew.
//! Where the bytes are kept, and which log they belong to, is not known here; nor is the reference, which has no such
//! thing.

use super::Admission;
use super::fork::Stem;
use super::vocabulary::UnknownType;
use crate::model::Seq;

/// Layout of the bytes. Another one is passed over, in both directions.
const VERSION: u8 = 1;

/// What folding a log up to some point has found.
///
/// Laws: [`from_bytes`] of [`to_bytes`] is the same state; no input panics; a changed byte is noticed. Growth: about a
/// byte per surface node, a few per unanswered call.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The folds that the door keeps.
    pub admission: Admission,
    /// What the log offers to forks.
    pub stem: Stem,
    /// The first event that no view may pass over.
    pub unknown: Option<UnknownType>,
    /// The types that were log-only when that was decided.
    pub log_only: Vec<String>,
}

impl Checkpoint {
    /// Whether the state would be the same if these types were the log-only ones: none was taken away, and the first
    /// unknown type is not one that was added.
    pub fn suits(&self, log_only: &[String]) -> bool {
        let still_unknown = self.unknown.as_ref().is_none_or(|unknown| !log_only.contains(&unknown.kind));
        still_unknown && self.log_only.iter().all(|kind| log_only.contains(kind))
    }
}

/// The state as bytes. `None` for a log whose surface is broken, which only `raw` sessions have and no view reads.
pub fn to_bytes(
    admission: &Admission,
    stem: &Stem,
    unknown: Option<&UnknownType>,
    log_only: &[String],
) -> Option<Vec<u8>> {
    let mut out = Out(vec![VERSION]);
    admission.save(&mut out)?;
    stem.save(&mut out);
    out.option(unknown, |out, unknown| {
        out.number(unknown.seq.get());
        out.text(&unknown.kind);
    });
    out.number(log_only.len() as u64);
    log_only.iter().for_each(|kind| out.text(kind));
    let checksum = crc32c::crc32c(&out.0);
    out.0.extend_from_slice(&checksum.to_le_bytes());
    Some(out.0)
}

/// The state that bytes of [`to_bytes`] hold; `None` for all others.
pub fn from_bytes(bytes: &[u8]) -> Option<Checkpoint> {
    let (content, checksum) = bytes.split_last_chunk::<4>()?;
    let mut from = In(content);
    if crc32c::crc32c(content).to_le_bytes() != *checksum || from.byte()? != VERSION {
        return None;
    }
    let admission = Admission::load(&mut from)?;
    let stem = Stem::load(&mut from)?;
    let unknown = from.option(|from| Some(UnknownType { seq: from.seq()?, kind: from.text()?.to_owned() }))?;
    let count = from.number()?;
    let log_only = (0..count).map(|_| from.text().map(str::to_owned)).collect::<Option<Vec<_>>>()?;
    from.0.is_empty().then_some(Checkpoint { admission, stem, unknown, log_only })
}

/// Where state is written to. Numbers take seven bits per byte.
pub(super) struct Out(Vec<u8>);

impl Out {
    pub(super) fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// A number near zero, of either sign.
    pub(super) fn signed(&mut self, n: i64) {
        self.number(((n << 1) ^ (n >> 63)) as u64);
    }

    pub(super) fn double(&mut self, n: f64) {
        self.0.extend_from_slice(&n.to_bits().to_le_bytes());
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Where state is read from; every read gives `None` on what no [`Out`] has written.
pub(super) struct In<'b>(&'b [u8]);

impl<'b> In<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        // Nearly all numbers are distances of nodes, which have one byte.
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Some(u64::from(*byte));
        }
        self.long_number()
    }

    fn long_number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }

    pub(super) fn signed(&mut self) -> Option<i64> {
        let n = self.number()?;
        Some((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    pub(super) fn double(&mut self) -> Option<f64> {
        let bits = u64::from_le_bytes(self.take(8)?.try_into().ok()?);
        Some(f64::from_bits(bits)).filter(|n| !n.is_nan())
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn seq(&mut self) -> Option<Seq> {
        Seq::ZERO.advance(self.number()?)
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let count = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.take(count)?).ok()
    }

    /// An optional value; the outer `None` is a failure.
    #[expect(clippy::option_option, reason = "an absent value is not a failed read")]
    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    /// Bytes that are left, which bound how many values can follow.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }
}
