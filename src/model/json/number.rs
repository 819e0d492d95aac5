//! Numbers: what a double keeps, and how ECMAScript writes one.

use super::value::{Doc, Kind};
use super::{JsonError, JsonErrorKind};

/// The double nearest to a JSON number text.
pub(super) fn value(text: &str) -> f64 {
    // The grammar of JSON numbers is a subset of Rust's, so that this cannot fail.
    text.parse().unwrap_or(f64::NAN)
}

/// Refuses numbers that a double does not keep finite, or turns into negative zero.
pub(super) fn check_numbers(doc: &Doc<'_>) -> Result<(), JsonError> {
    for node in doc.nodes.iter().filter(|node| node.kind == Kind::Number) {
        let text = &doc.text[node.start as usize..node.end as usize];
        let plain = text.len() < 300 && text.bytes().all(|byte| byte.is_ascii_digit());
        if plain {
            continue;
        }
        let number = value(text);
        let kind = if !number.is_finite() {
            JsonErrorKind::NotFinite
        } else if number == 0.0 && number.is_sign_negative() {
            JsonErrorKind::NegativeZero
        } else {
            continue;
        };
        return Err(JsonError { kind, at: node.start as usize });
    }
    Ok(())
}

/// The text that ECMAScript gives a double; `None` for what JSON cannot hold losslessly (not finite, negative
/// zero).
pub fn number_text(number: f64) -> Option<String> {
    if !number.is_finite() || (number == 0.0 && number.is_sign_negative()) {
        return None;
    }
    if number == 0.0 {
        return Some("0".to_owned());
    }
    // Rust's exponent form has the shortest digits that read back as the same double, like ECMAScript's.
    let text = format!("{:e}", number.abs());
    let (mantissa, exponent) = text.split_once('e')?;
    let digits = mantissa.replace('.', "");
    let point = exponent.parse::<i32>().ok()? + 1;
    let sign = if number < 0.0 { "-" } else { "" };
    Some(format!("{sign}{}", place(&digits, point)))
}

/// Digits with the decimal point after `point` of them (ECMA-262, Number::toString).
fn place(digits: &str, point: i32) -> String {
    let count = digits.len() as i32;
    match point {
        1..=21 if count <= point => format!("{digits}{}", "0".repeat((point - count) as usize)),
        1..=21 => format!("{}.{}", &digits[..point as usize], &digits[point as usize..]),
        -5..=0 => format!("0.{}{digits}", "0".repeat(-point as usize)),
        _ => {
            let sign = if point > 0 { '+' } else { '-' };
            let exponent = (point - 1).abs();
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            format!("{first}{dot}{rest}e{sign}{exponent}")
        }
    }
}
