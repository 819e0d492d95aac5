//! The lossless JSON boundary (reference 2.1).
//!
//! [`check`] is the door that every `data` passes: one value, UTF-8, lossless for a reader that keeps numbers as
//! IEEE doubles, no duplicate keys. It never changes a byte. [`parse`] gives the readers of payloads a flat view
//! of the text; nesting costs heap in proportion to the text and never stack. Escaped lone surrogates are legal
//! and survive: strings decode to WTF-8.

mod canonical;
mod number;
mod scan;
mod value;

pub use canonical::{canonical, quote};
pub use number::number_text;
pub use value::{Doc, Text, Value};

/// Why a text was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {at}")]
pub struct JsonError {
    /// What is wrong.
    pub kind: JsonErrorKind,
    /// Byte offset of the first offence.
    pub at: usize,
}

/// Most values of one text, keys counted. A value takes 16 bytes.
pub const VALUES_MAX: usize = 1 << 21;

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonErrorKind {
    /// Not UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// Not JSON.
    #[error("is not JSON: unexpected text")]
    Syntax,
    /// Something follows the value.
    #[error("is not one JSON value: more text follows")]
    TrailingText,
    /// Longer than 4 GiB.
    #[error("is too long")]
    TooLong,
    /// More values, keys counted, than any one text needs: a text of brackets would take many times its size in memory.
    #[error("holds more than {VALUES_MAX} values")]
    TooMany,
    /// A number that a double turns into negative zero.
    #[error("holds a negative zero, which does not survive a round trip")]
    NegativeZero,
    /// A number beyond the range of a double.
    #[error("holds a number outside the range of a double")]
    NotFinite,
    /// An object with the same key twice.
    #[error("holds a duplicate object key")]
    DuplicateKey,
}

/// Parses a text whose numbers are lossless; duplicate keys pass (a reader sees the last one).
pub fn parse(text: &[u8]) -> Result<Doc<'_>, JsonError> {
    let doc = scan::scan(text)?;
    number::check_numbers(&doc)?;
    Ok(doc)
}

/// Parses a text that is JSON, lossless or not; [`Doc::check`] tells which.
pub fn parse_any(text: &[u8]) -> Result<Doc<'_>, JsonError> {
    scan::scan(text)
}

/// Whether a text is JSON at all, lossless or not.
pub fn is_json(text: &[u8]) -> bool {
    scan::scan(text).is_ok()
}

/// The rule for `data`: what [`parse`] accepts, without duplicate keys.
pub fn check(text: &[u8]) -> Result<(), JsonError> {
    parse_any(text)?.check()
}
