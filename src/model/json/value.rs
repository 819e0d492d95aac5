//! A parsed text, as cursors into a flat list of nodes.

use std::borrow::Cow;

use super::number;
use super::{JsonError, JsonErrorKind};
use crate::model::seq::INT53_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    True,
    False,
    Number,
    Text,
    EscapedText,
    Array,
    Object,
}

/// One value or key, in document order. A container is followed by its content; `next` is the node after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) next: u32,
}

/// A parsed text. Dropping it costs one deallocation, whatever its depth.
#[derive(Debug)]
pub struct Doc<'t> {
    pub(super) text: &'t str,
    pub(super) nodes: Vec<Node>,
}

impl<'t> Doc<'t> {
    /// The value that the text is.
    pub fn root(&self) -> Value<'_, 't> {
        Value { doc: self, at: 0 }
    }

    /// The rule for `data`, on a parsed text: numbers are lossless and no object has a key twice.
    pub fn check(&self) -> Result<(), JsonError> {
        number::check_numbers(self)?;
        check_keys(self)
    }
}

/// One value inside a [`Doc`]; a copyable cursor.
#[derive(Clone, Copy, Debug)]
pub struct Value<'d, 't> {
    doc: &'d Doc<'t>,
    at: u32,
}

impl<'d, 't> Value<'d, 't> {
    pub(super) fn node(self) -> Node {
        self.doc.nodes[self.at as usize]
    }

    /// The value's own text, byte for byte; for strings with the quotes.
    pub fn raw(self) -> &'t str {
        let node = self.node();
        let quote = usize::from(matches!(node.kind, Kind::Text | Kind::EscapedText));
        &self.doc.text[node.start as usize - quote..node.end as usize + quote]
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        self.node().kind == Kind::Null
    }

    /// Whether it is an object.
    pub fn is_object(self) -> bool {
        self.node().kind == Kind::Object
    }

    /// Whether it is an array.
    pub fn is_array(self) -> bool {
        self.node().kind == Kind::Array
    }

    /// Whether it is a number.
    pub fn is_number(self) -> bool {
        self.node().kind == Kind::Number
    }

    /// The boolean, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        match self.node().kind {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    /// The number as a double, if it is one.
    pub fn as_f64(self) -> Option<f64> {
        (self.node().kind == Kind::Number).then(|| number::value(self.raw()))
    }

    /// The number, if it is an integer of at most 53 bits; `1.0` and `1e0` are.
    pub fn as_int53(self) -> Option<i64> {
        let number = self.as_f64()?;
        (number.fract() == 0.0 && number.abs() <= INT53_MAX as f64).then_some(number as i64)
    }

    /// The string, if it is one.
    pub fn as_text(self) -> Option<Text<'t>> {
        let node = self.node();
        let escaped = match node.kind {
            Kind::Text => false,
            Kind::EscapedText => true,
            _ => return None,
        };
        Some(Text { raw: &self.doc.text[node.start as usize..node.end as usize], escaped })
    }

    /// The string as Rust text, if it is one; lone surrogates become U+FFFD. For names and messages only, never for
    /// anything that goes back into a log.
    pub fn to_text(self) -> Option<String> {
        self.as_text().map(|text| String::from_utf8_lossy(&text.decode()).into_owned())
    }

    /// The elements, if it is an array; nothing otherwise.
    pub fn items(self) -> impl Iterator<Item = Value<'d, 't>> {
        let node = self.node();
        let end = if node.kind == Kind::Array { node.next } else { self.at + 1 };
        let mut at = self.at + 1;
        std::iter::from_fn(move || {
            let value = (at < end).then_some(Value { doc: self.doc, at })?;
            at = value.node().next;
            Some(value)
        })
    }

    /// The members in text order, duplicates included, if it is an object; nothing otherwise.
    pub fn entries(self) -> impl Iterator<Item = (Text<'t>, Value<'d, 't>)> {
        let node = self.node();
        let end = if node.kind == Kind::Object { node.next } else { self.at + 1 };
        let mut at = self.at + 1;
        std::iter::from_fn(move || {
            let key = (at < end).then_some(Value { doc: self.doc, at })?.as_text()?;
            let value = Value { doc: self.doc, at: at + 1 };
            at = value.node().next;
            Some((key, value))
        })
    }

    /// The member of that name (the last one, if there are several).
    pub fn get(self, name: &str) -> Option<Value<'d, 't>> {
        self.entries().filter(|(key, _)| key.is(name)).last().map(|(_, value)| value)
    }

    /// Whether both are the same JSON value: numbers by value, strings by content, objects in any order.
    pub fn same(self, other: Value<'_, '_>) -> bool {
        let mut open = vec![(self, other)];
        while let Some((a, b)) = open.pop() {
            let alike = match (a.node().kind, b.node().kind) {
                (Kind::Number, Kind::Number) => a.as_f64() == b.as_f64(),
                (Kind::Array, Kind::Array) => {
                    open.extend(a.items().zip(b.items()));
                    a.items().count() == b.items().count()
                }
                (Kind::Object, Kind::Object) => {
                    let (a, b) = (a.members(), b.members());
                    let same_keys = a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.0 == b.0);
                    open.extend(a.iter().zip(&b).map(|(a, b)| (a.1, b.1)));
                    same_keys
                }
                _ => match (a.as_text(), b.as_text()) {
                    (Some(a), Some(b)) => a.decode() == b.decode(),
                    (None, None) => a.node().kind == b.node().kind,
                    _ => false,
                },
            };
            if !alike {
                return false;
            }
        }
        true
    }

    /// The members sorted by key (as WTF-8), the last of each duplicate; nothing if it is no object.
    pub fn members(self) -> Vec<(Cow<'t, [u8]>, Value<'d, 't>)> {
        let mut members: Vec<_> = self.entries().map(|(key, value)| (key.decode(), value)).collect();
        members.reverse();
        members.sort_by(|a, b| a.0.cmp(&b.0));
        members.dedup_by(|later, first| later.0 == first.0);
        members
    }
}

/// The content of a string.
#[derive(Clone, Copy, Debug)]
pub struct Text<'t> {
    raw: &'t str,
    escaped: bool,
}

impl<'t> Text<'t> {
    /// What stands between the quotes, escapes and all.
    pub fn raw(self) -> &'t str {
        self.raw
    }

    /// Whether the content is `text`.
    pub fn is(self, text: &str) -> bool {
        if self.escaped { *self.decode() == *text.as_bytes() } else { self.raw == text }
    }

    /// The content as WTF-8: UTF-8, with lone surrogates as their three bytes.
    pub fn decode(self) -> Cow<'t, [u8]> {
        if self.escaped { Cow::Owned(unescape(self.raw)) } else { Cow::Borrowed(self.raw.as_bytes()) }
    }

    /// Whether there is no character in it.
    pub fn is_empty(self) -> bool {
        self.raw.is_empty()
    }
}

fn unescape(raw: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let used = unescape_one(&rest[at + 1..], &mut out);
        rest = &rest[at + 1 + used..];
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

/// Decodes what follows a backslash and says how many bytes that were.
fn unescape_one(rest: &str, out: &mut Vec<u8>) -> usize {
    let byte = match rest.as_bytes().first() {
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'u') => return unescape_unit(rest, out),
        Some(&other) => other,
        None => return 0,
    };
    out.push(byte);
    1
}

fn unescape_unit(rest: &str, out: &mut Vec<u8>) -> usize {
    let high = unit(rest);
    let low = rest.get(5..).filter(|tail| tail.starts_with("\\u")).map(|tail| unit(&tail[1..]));
    if let (0xD800..=0xDBFF, Some(low @ 0xDC00..=0xDFFF)) = (high, low) {
        push_code(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00), out);
        11
    } else {
        push_code(high, out);
        5
    }
}

fn unit(escape: &str) -> u32 {
    escape.get(1..5).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0xFFFD)
}

/// Generalised UTF-8: surrogates get three bytes like any other code of their size.
fn push_code(code: u32, out: &mut Vec<u8>) {
    if let Some(character) = char::from_u32(code) {
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        out.extend([0xE0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3F) as u8, 0x80 | (code & 0x3F) as u8]);
    }
}

/// Refuses a document that has an object with the same key twice.
fn check_keys(doc: &Doc<'_>) -> Result<(), JsonError> {
    let mut keys = Vec::new();
    for (index, node) in doc.nodes.iter().enumerate() {
        if node.kind != Kind::Object {
            continue;
        }
        let object = Value { doc, at: index as u32 };
        keys.clear();
        keys.extend(object.entries().map(|(key, _)| key.decode()));
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(JsonError { kind: JsonErrorKind::DuplicateKey, at: node.start as usize });
        }
    }
    Ok(())
}
