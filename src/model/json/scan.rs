//! From text to a flat list of nodes, without recursion.

use super::value::{Doc, Kind, Node};
use super::{JsonError, JsonErrorKind, VALUES_MAX};

pub(super) fn scan(text: &[u8]) -> Result<Doc<'_>, JsonError> {
    if u32::try_from(text.len()).is_err() {
        return Err(JsonError { kind: JsonErrorKind::TooLong, at: 0 });
    }
    let text =
        std::str::from_utf8(text).map_err(|e| JsonError { kind: JsonErrorKind::NotUtf8, at: e.valid_up_to() })?;
    let mut scanner = Scanner { text: text.as_bytes(), at: 0, nodes: Vec::with_capacity(16), open: Vec::new() };
    scanner.run()?;
    Ok(Doc { text, nodes: scanner.nodes })
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    nodes: Vec<Node>,
    /// Indices of the containers that are still open.
    open: Vec<u32>,
}

impl Scanner<'_> {
    fn run(&mut self) -> Result<(), JsonError> {
        loop {
            let opened = self.value()?;
            if !opened && !self.after_value()? {
                return Ok(());
            }
        }
    }

    fn error<T>(&self, kind: JsonErrorKind) -> Result<T, JsonError> {
        Err(JsonError { kind, at: self.at })
    }

    fn syntax<T>(&self) -> Result<T, JsonError> {
        self.error(JsonErrorKind::Syntax)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes one value; `true` when that opened a container whose first value comes next.
    fn value(&mut self) -> Result<bool, JsonError> {
        self.skip_space();
        if self.nodes.len() >= VALUES_MAX {
            return self.error(JsonErrorKind::TooMany);
        }
        match self.peek() {
            Some(b'{') => self.open(Kind::Object, b'}'),
            Some(b'[') => self.open(Kind::Array, b']'),
            Some(b'"') => self.string().map(|()| false),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| false),
            Some(b't') => self.literal(b"true", Kind::True),
            Some(b'f') => self.literal(b"false", Kind::False),
            Some(b'n') => self.literal(b"null", Kind::Null),
            _ => self.syntax(),
        }
    }

    fn push(&mut self, kind: Kind, start: usize) {
        let next = self.nodes.len() as u32 + 1;
        self.nodes.push(Node { kind, start: start as u32, end: self.at as u32, next });
    }

    fn open(&mut self, kind: Kind, close: u8) -> Result<bool, JsonError> {
        self.open.push(self.nodes.len() as u32);
        self.push(kind, self.at);
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(close) {
            self.close();
            return Ok(false);
        }
        if kind == Kind::Object {
            self.key()?;
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.at += 1;
        if let Some(index) = self.open.pop() {
            let next = self.nodes.len() as u32;
            let node = &mut self.nodes[index as usize];
            node.end = self.at as u32;
            node.next = next;
        }
    }

    /// Takes what may follow a value; `true` when another value must come.
    fn after_value(&mut self) -> Result<bool, JsonError> {
        loop {
            self.skip_space();
            let Some(&index) = self.open.last() else {
                let done = self.at == self.text.len();
                return if done { Ok(false) } else { self.error(JsonErrorKind::TrailingText) };
            };
            let is_object = self.nodes[index as usize].kind == Kind::Object;
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    if is_object {
                        self.skip_space();
                        self.key()?;
                    }
                    return Ok(true);
                }
                Some(b'}') if is_object => self.close(),
                Some(b']') if !is_object => self.close(),
                _ => return self.syntax(),
            }
        }
    }

    fn key(&mut self) -> Result<(), JsonError> {
        if self.peek() != Some(b'"') {
            return self.syntax();
        }
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return self.syntax();
        }
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, word: &[u8], kind: Kind) -> Result<bool, JsonError> {
        if !self.text[self.at..].starts_with(word) {
            return self.syntax();
        }
        let start = self.at;
        self.at += word.len();
        self.push(kind, start);
        Ok(false)
    }

    /// Takes a string; the node's span is what stands between the quotes.
    fn string(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        let start = self.at;
        let mut kind = Kind::Text;
        loop {
            self.at += plain_length(&self.text[self.at..]);
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    kind = Kind::EscapedText;
                    self.escape()?;
                }
                _ => return self.syntax(),
            }
        }
        self.push(kind, start);
        self.at += 1;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return self.syntax();
                    }
                    self.at += 1;
                }
            }
            _ => return self.syntax(),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        self.push(Kind::Number, start);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.syntax() } else { Ok(()) }
    }
}

/// Length of the prefix without quote, backslash and control characters; in blocks without branches, which compile to
/// vector instructions, because this is where an append spends its time on large payloads.
fn plain_length(text: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    let mut length = 0;
    for block in text.chunks_exact(BLOCK) {
        if block.iter().fold(false, |any, &byte| any | is_special(byte)) {
            break;
        }
        length += BLOCK;
    }
    let tail = &text[length..];
    length + tail.iter().position(|&byte| is_special(byte)).unwrap_or(tail.len())
}
