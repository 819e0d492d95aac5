//! Elements of a JSON array as they are spelled.
//!
//! Owns the array's text and no parse of it, so that a row can be given out member by member after its line is gone.
//! Only for arrays that were parsed and checked before; nothing is checked here.

use crate::model::json::Value;

/// The elements of a checked array of numbers or strings, cut from its text one by one.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    text: Box<str>,
    at: usize,
    left: usize,
}

impl Tokens {
    pub(super) fn of(array: Value<'_, '_>) -> Self {
        Self { text: array.raw().into(), at: 1, left: array.items().count() }
    }

    /// How many elements were not taken yet.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn next_token(&mut self) -> Option<&str> {
        self.left = self.left.checked_sub(1)?;
        let rest = self.text.get(self.at..)?;
        let start = self.at + rest.find(|c: char| !is_between(c))?;
        let token = self.text.get(start..)?;
        let length = string_length(token).unwrap_or_else(|| token.find(is_between).unwrap_or(token.len()));
        self.at = start + length;
        token.get(..length)
    }

    pub(super) fn next_int(&mut self) -> Option<i64> {
        // An integer may be spelled `1e3`.
        self.next_token()?.parse::<f64>().ok().map(|number| number as i64)
    }
}

fn is_between(c: char) -> bool {
    matches!(c, ',' | ']' | ' ' | '\t' | '\n' | '\r')
}

/// Length of the string token at the start, quotes included.
pub(super) fn string_length(text: &str) -> Option<usize> {
    let content = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = content.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some(end + 2)
}
