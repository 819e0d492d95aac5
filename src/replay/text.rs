//! What counts as white space, and the text of an event as a reader or a search sees it (reference 5.5, 13.5).
//!
//! White space is ECMAScript's set, because the reference trims with it: Unicode's space separators, the line
//! separators and the byte order mark, but not the zero width space. Nothing here goes back into a log, so lone
//! surrogates may become U+FFFD.

use super::vocabulary::{ASSISTANT_MESSAGE, TODO_WRITE, TOOL_CALL, TOOL_RESULT, TURN_END, USER_MESSAGE};
use crate::model::Event;
use crate::model::json::{self, Text, Value};

/// Whether ECMAScript's `trim` removes the character.
pub fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ' | '\u{A0}' | '\u{1680}' | '\u{2000}'..='\u{200A}')
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202F}' | '\u{205F}' | '\u{3000}' | '\u{FEFF}')
}

/// Whether a string holds nothing but white space.
pub fn is_blank(text: Text<'_>) -> bool {
    String::from_utf8_lossy(&text.decode()).chars().all(is_space)
}

/// The text of an event as a reader sees it; `None` for events that say nothing (reference 13.5).
///
/// Message text, names and arguments of calls, results and their errors, todo items, and how a turn ended if not by
/// completing; reasoning and images are left out. Parts are trimmed, empty ones dropped, the rest joined by newlines.
pub fn semantic_text(event: &Event) -> Option<String> {
    let kind = &*event.body.kind;
    let says = matches!(kind, USER_MESSAGE | ASSISTANT_MESSAGE | TOOL_CALL | TOOL_RESULT | TODO_WRITE | TURN_END);
    if !says {
        return None;
    }
    let doc = json::parse(&event.body.data).ok()?;
    let data = doc.root();
    let mut parts = Parts::default();
    match kind {
        USER_MESSAGE => parts.blocks(data.get("content")),
        ASSISTANT_MESSAGE => parts.blocks(data.get("message").and_then(|message| message.get("content"))),
        TOOL_CALL => parts.members(data, &["name", "arguments"]),
        TOOL_RESULT => {
            parts.blocks(data.get("message").and_then(|message| message.get("content")));
            if let Some(error) = data.get("error") {
                parts.members(error, &["name", "code"]);
            }
        }
        TODO_WRITE => {
            for todo in data.get("todos").into_iter().flat_map(Value::items) {
                parts.members(todo, &["status", "content"]);
            }
        }
        _ => parts.turn_end(data),
    }
    Some(parts.0.join("\n")).filter(|text| !text.is_empty())
}

#[derive(Default)]
struct Parts(Vec<String>);

impl Parts {
    fn push(&mut self, text: &str) {
        let text = text.trim_matches(is_space);
        if !text.is_empty() {
            self.0.push(text.to_owned());
        }
    }

    fn members(&mut self, value: Value<'_, '_>, names: &[&str]) {
        for text in names.iter().filter_map(|name| value.get(name).and_then(Value::to_text)) {
            self.push(&text);
        }
    }

    /// Content blocks in document order; results hold blocks of their own, to any depth.
    fn blocks(&mut self, content: Option<Value<'_, '_>>) {
        let mut open: Vec<_> = content.into_iter().flat_map(Value::items).collect();
        open.reverse();
        while let Some(block) = open.pop() {
            let Some(kind) = block.get("type").and_then(Value::as_text) else { continue };
            if kind.is("text") {
                self.members(block, &["text"]);
            } else if kind.is("tool-call") {
                self.members(block, &["name", "arguments"]);
            } else if kind.is("tool-result") {
                let at = open.len();
                open.extend(block.get("content").into_iter().flat_map(Value::items));
                if let Some(inner) = open.get_mut(at..) {
                    inner.reverse();
                }
            }
        }
    }

    fn turn_end(&mut self, data: Value<'_, '_>) {
        let Some(reason) = data.get("reason") else { return };
        let kind = reason.get("kind").and_then(Value::to_text).unwrap_or_default();
        if matches!(kind.as_str(), "error" | "aborted" | "max-tokens" | "interrupted") {
            self.push(&kind);
        }
        if let Some(error) = reason.get("error").filter(|_| kind == "error") {
            self.members(error, &["message"]);
        }
    }
}

/// Text as a search compares it: runs of white space are one space, and case is folded character by character.
pub fn folded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if !is_space(c) => out.push(fold(c)),
            _ if out.ends_with(' ') => {}
            _ => out.push(' '),
        }
    }
    out
}

/// Unicode's simple case folding: what has no single counterpart stays, and the dotless i is a letter of its own.
fn fold(c: char) -> char {
    const DOTLESS_I: char = '\u{131}';
    if c.is_ascii() || c == DOTLESS_I {
        return c.to_ascii_lowercase();
    }
    let upper = only(c.to_uppercase()).unwrap_or(c);
    only(upper.to_lowercase()).unwrap_or(c)
}

fn only(mut chars: impl Iterator<Item = char>) -> Option<char> {
    chars.next().filter(|_| chars.next().is_none())
}
