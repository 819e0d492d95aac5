//! From text to a flat list of nodes, without recursion.

use super::value::{Doc, Kind, Node};
use super::{JsonError, JsonErrorKind};

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

/// Length of the prefix without quote, backslash and control characters; eight bytes a step, because this is
/// where an append spends its time on large payloads.
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut length = 0;
    for chunk in text.chunks_exact(8) {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        let below_space = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        let zero = |x: u64| x.wrapping_sub(ONES) & !x & HIGH;
        // A borrow can only flag a byte behind a true hit, so "none" is exact.
        if (below_space | zero(quote) | zero(backslash)) != 0 {
            break;
        }
        length += 8;
    }
    let tail = &text[length..];
    length + tail.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\').unwrap_or(tail.len())
}
