//! Turn and step numbers as logs state them.
//!
//! The reference copies these numbers and never checks them outside its strict companion, so that a stored log may hold
//! a fraction, or none at all. An [`Ordinal`] keeps what a double keeps and compares by value; it does not know which
//! number would have been right.

use std::fmt;

use super::checkpoint::{In, Out};
use crate::model::json::{Value, number_text};

/// The number of a turn or a step; absent when the payload has none, or something that is not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ordinal(Option<f64>);

impl Ordinal {
    /// No number.
    pub const ABSENT: Self = Self(None);
    /// The number of the first turn, and of the first step of each turn.
    pub const FIRST: Self = Self(Some(1.0));

    /// The member `name` of a payload.
    pub fn read(data: Option<Value<'_, '_>>, name: &str) -> Self {
        Self(data.and_then(|data| data.get(name)).and_then(Value::as_f64))
    }

    /// The number, if it is an integer of at most 53 bits.
    pub fn as_int53(self) -> Option<i64> {
        const MAX: f64 = crate::model::INT53_MAX as f64;
        self.0.filter(|number| number.fract() == 0.0 && number.abs() <= MAX).map(|number| number as i64)
    }

    pub(super) fn save(self, out: &mut Out) {
        out.option(self.0, Out::double);
    }

    pub(super) fn load(from: &mut In<'_>) -> Option<Self> {
        from.option(In::double).map(Self)
    }

    /// Whether it is a legal number: an integer from 1 (reference 1.7, 7.9).
    pub fn is_positive(self) -> bool {
        self.as_int53().is_some_and(|number| number >= 1)
    }

    /// The number that follows this one; 1 follows none.
    #[must_use]
    pub fn following(self) -> Self {
        Self(Some(self.0.map_or(1.0, |number| number + 1.0)))
    }

    /// The JSON text, in ECMAScript's form; nothing if there is no number.
    pub fn json(self) -> Option<String> {
        self.0.and_then(number_text)
    }
}

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.json().as_deref().unwrap_or("none"))
    }
}
