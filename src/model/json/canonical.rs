//! The compact text that ECMAScript would give a value (reference 2.1).

use super::number::number_text;
use super::value::{Kind, Text, Value};

/// Compact text: no spaces, numbers in shortest form, integer-like keys first in ascending order, of duplicate
/// keys the last value in the first one's place, lone surrogates as lower-case escapes.
///
/// Iterative: depth costs heap, not stack.
pub fn canonical(value: Value<'_, '_>) -> String {
    let mut out = String::with_capacity(value.raw().len());
    let mut todo = vec![Piece::Value(value)];
    while let Some(piece) = todo.pop() {
        match piece {
            Piece::Literal(text) => out.push_str(text),
            Piece::Key(key) => {
                write_text(key, &mut out);
                out.push(':');
            }
            Piece::Value(value) => write_value(value, &mut out, &mut todo),
        }
    }
    out
}

/// The JSON string literal of a Rust text, as [`canonical`] would write it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|character| write_character(character, &mut out));
    out.push('"');
    out
}

enum Piece<'d, 't> {
    Literal(&'static str),
    Key(Text<'t>),
    Value(Value<'d, 't>),
}

fn write_value<'d, 't>(value: Value<'d, 't>, out: &mut String, todo: &mut Vec<Piece<'d, 't>>) {
    match value.node().kind {
        Kind::Number => {
            let number = value.as_f64().and_then(number_text);
            out.push_str(number.as_deref().unwrap_or_else(|| value.raw()));
        }
        Kind::Array => {
            out.push('[');
            let from = todo.len();
            todo.push(Piece::Literal("]"));
            let items: Vec<_> = value.items().collect();
            for (index, item) in items.into_iter().enumerate().rev() {
                todo.push(Piece::Value(item));
                if index > 0 {
                    todo.push(Piece::Literal(","));
                }
            }
            debug_assert!(todo.len() > from);
        }
        Kind::Object => {
            out.push('{');
            todo.push(Piece::Literal("}"));
            for (index, (key, member)) in members(value).into_iter().enumerate().rev() {
                todo.push(Piece::Value(member));
                todo.push(Piece::Key(key));
                if index > 0 {
                    todo.push(Piece::Literal(","));
                }
            }
        }
        Kind::Null | Kind::True | Kind::False => out.push_str(value.raw()),
        Kind::Text | Kind::EscapedText => value.as_text().into_iter().for_each(|text| write_text(text, out)),
    }
}

/// Members in ECMAScript's order.
fn members<'d, 't>(object: Value<'d, 't>) -> Vec<(Text<'t>, Value<'d, 't>)> {
    let mut first = std::collections::HashMap::new();
    let mut members: Vec<(Text<'t>, Value<'d, 't>)> = Vec::new();
    for (key, value) in object.entries() {
        if let Some(&index) = first.get(&key.decode()) {
            members[index] = (key, value);
        } else {
            first.insert(key.decode(), members.len());
            members.push((key, value));
        }
    }
    members.sort_by_key(|(key, _)| array_index(*key).map_or((1, 0), |index| (0, index)));
    members
}

/// The key as an array index (canonical, below 2^32 - 1), if it is one.
fn array_index(key: Text<'_>) -> Option<u32> {
    let key = key.decode();
    let canonical =
        key.len() <= 10 && key.iter().all(u8::is_ascii_digit) && (key[..] == *b"0" || key.first() != Some(&b'0'));
    let index = canonical.then(|| std::str::from_utf8(&key).ok()?.parse().ok()).flatten()?;
    (index != u32::MAX).then_some(index)
}

fn write_text(text: Text<'_>, out: &mut String) {
    out.push('"');
    let decoded = text.decode();
    let mut rest: &[u8] = &decoded;
    while !rest.is_empty() {
        let valid = match std::str::from_utf8(rest) {
            Ok(all) => all,
            Err(e) => std::str::from_utf8(&rest[..e.valid_up_to()]).unwrap_or_default(),
        };
        valid.chars().for_each(|character| write_character(character, out));
        rest = &rest[valid.len()..];
        if let [a, b, c, tail @ ..] = rest {
            // What is left over is a lone surrogate in WTF-8.
            let unit = u32::from(a & 0x0F) << 12 | u32::from(b & 0x3F) << 6 | u32::from(c & 0x3F);
            out.push_str(&escape(unit));
            rest = tail;
        }
    }
    out.push('"');
}

fn escape(unit: u32) -> String {
    format!("\\u{unit:04x}")
}

fn write_character(character: char, out: &mut String) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\t' => out.push_str("\\t"),
        '\n' => out.push_str("\\n"),
        '\u{c}' => out.push_str("\\f"),
        '\r' => out.push_str("\\r"),
        control if control < ' ' => out.push_str(&escape(control as u32)),
        other => out.push(other),
    }
}
