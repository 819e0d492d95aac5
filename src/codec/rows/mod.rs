//! Packed chunk rows: one record for a run of stream deltas (reference 15.1).
//!
//! A row names turn, step, chunk kind and index once and lists the members' texts and time gaps. Tokens are copied
//! between row and members as they are spelled, so that number spellings and escaped lone surrogates survive:
//! `decode` of what [`pack()`] wrote gives every event back byte for byte. Rows are physical; nothing outside storage
//! and import sees one.

mod pack;
mod tokens;

use std::fmt;

use bytes::Bytes;

pub use pack::{Packed, RUN_MIN, pack};

use self::tokens::Tokens;
use crate::model::INT53_MAX;
use crate::model::json::Value;

/// The type of the events that rows stand for.
pub const CHUNK_TYPE: &str = "assistant/chunk";

/// What a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Deltas of a text block.
    Text,
    /// Deltas of a reasoning block.
    Reasoning,
    /// Deltas of a tool call's arguments.
    ToolCall,
}

impl Tag {
    const ALL: [Self; 3] = [Self::Text, Self::Reasoning, Self::ToolCall];

    /// The row's `type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text-chunks",
            Self::Reasoning => "reasoning-chunks",
            Self::ToolCall => "tool-call-chunks",
        }
    }

    /// The `type` of a member's chunk.
    const fn chunk_type(self) -> &'static str {
        match self {
            Self::Text => "text-delta",
            Self::Reasoning => "reasoning-delta",
            Self::ToolCall => "tool-call-delta",
        }
    }

    /// The key of a member's own text in its chunk.
    const fn chunk_key(self) -> &'static str {
        match self {
            Self::Text | Self::Reasoning => "text",
            Self::ToolCall => "argumentsDelta",
        }
    }

    /// The key of the list of texts in the row.
    const fn list_key(self) -> &'static str {
        match self {
            Self::Text | Self::Reasoning => "texts",
            Self::ToolCall => "args",
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a row was refused; the text is the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {tag} storage row: {problem}")]
pub struct RowError {
    /// The row's tag.
    pub tag: Tag,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Where the first member of a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its seq.
    pub seq: u64,
    /// Its time.
    pub time_ms: i64,
}

/// One event out of a row; its type is [`CHUNK_TYPE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The seq. A row may run past the last seq that exists, as in the reference; the reader of the log refuses it.
    pub seq: u64,
    /// Milliseconds since 1970, at most 53 bits.
    pub time_ms: i64,
    /// Compact JSON in the reference's key order.
    pub data: Bytes,
}

/// A storage record, taken apart.
#[derive(Debug)]
pub enum Expanded<'d, 't> {
    /// A row: the events it stands for.
    Row(Members),
    /// Anything else, unchecked.
    Other(Value<'d, 't>),
}

/// Takes a storage record apart: a row into its members, anything else as it is (reference 15.1).
///
/// A row is checked whole before the first member comes out. Memory: one copy of the row's lists, whatever the
/// members add up to.
pub fn decode<'d, 't>(record: Value<'d, 't>) -> Result<Expanded<'d, 't>, RowError> {
    let Some(tag) = tag_of(record) else { return Ok(Expanded::Other(record)) };
    let refuse = |problem| Err(RowError { tag, problem });
    if !has_exactly(record, &["type", "seq0", "time0", "data"], &[]) {
        return refuse("envelope must be exactly {type, seq0, time0, data}");
    }
    let seq0 = record.get("seq0").and_then(Value::as_int53).and_then(|n| u64::try_from(n).ok());
    let Some(seq) = seq0 else { return refuse("seq0 must be a non-negative safe integer") };
    let Some(time_ms) = record.get("time0").and_then(Value::as_int53) else {
        return refuse("time0 must be a safe integer");
    };
    members(tag, record, Place { seq, time_ms }).map(Expanded::Row)
}

/// As [`decode`], for recordings whose rows lost `seq0` and `time0`: the first member stands at `place`.
pub fn decode_unplaced<'d, 't>(record: Value<'d, 't>, place: Place) -> Result<Expanded<'d, 't>, RowError> {
    let Some(tag) = tag_of(record) else { return Ok(Expanded::Other(record)) };
    if !has_exactly(record, &["type", "data"], &[]) {
        return Err(RowError { tag, problem: "a recorded envelope must be exactly {type, data}" });
    }
    members(tag, record, place).map(Expanded::Row)
}

fn tag_of(record: Value<'_, '_>) -> Option<Tag> {
    let kind = record.get("type")?.as_text()?;
    Tag::ALL.into_iter().find(|tag| kind.is(tag.as_str()))
}

/// Whether an object has all `required` keys and no others but `optional` ones.
fn has_exactly(object: Value<'_, '_>, required: &[&str], optional: &[&str]) -> bool {
    object.is_object()
        && required.iter().all(|key| object.get(key).is_some())
        && object.entries().all(|(key, _)| required.iter().chain(optional).any(|known| key.is(known)))
}

fn members(tag: Tag, record: Value<'_, '_>, place: Place) -> Result<Members, RowError> {
    let refuse = |problem| Err(RowError { tag, problem });
    let Some(data) = record.get("data").filter(|data| data.is_object()) else {
        return refuse("data must be an object");
    };
    let (required, optional, exactly): (&[_], &[_], _) = match tag {
        Tag::Text | Tag::Reasoning => {
            (&["turn", "step", "index", "dt", "texts"], &[], "data must be exactly {turn, step, index, dt, texts}")
        }
        Tag::ToolCall => (
            &["turn", "step", "index", "dt", "id", "args"],
            &["name"],
            "data must be exactly {turn, step, index, dt, id, name?, args}",
        ),
    };
    if !has_exactly(data, required, optional) {
        return refuse(exactly);
    }
    let head = head_of(tag, data)?;
    let gaps = gaps_of(tag, data)?;
    let texts = texts_of(tag, data)?;
    if gaps.left() + 1 != texts.left() {
        return refuse("dt must have one entry less than there are members");
    }
    let Some(last_time_ms) = last_time(place.time_ms, gaps.clone()) else {
        return refuse("member times must be safe integers");
    };
    Ok(Members { head: head.into(), place, gaps, texts, last_time_ms })
}

/// The text of a member's data up to its own text.
fn head_of(tag: Tag, data: Value<'_, '_>) -> Result<String, RowError> {
    let refuse = |problem| Err(RowError { tag, problem });
    let number = |key| data.get(key).filter(|value| value.is_number()).map(Value::raw);
    let (Some(turn), Some(step), Some(index)) = (number("turn"), number("step"), number("index")) else {
        return refuse("turn/step/index must be numbers");
    };
    let text = |key| data.get(key).filter(|value| value.as_text().is_some()).map(Value::raw);
    let mut call = None;
    if tag == Tag::ToolCall {
        let Some(id) = text("id") else { return refuse("id must be a string") };
        if data.get("name").is_some() && text("name").is_none() {
            return refuse("name must be a string");
        }
        call = Some((id, text("name")));
    }
    Ok(Run { tag, turn, step, index, call }.head())
}

fn gaps_of(tag: Tag, data: Value<'_, '_>) -> Result<Tokens, RowError> {
    data.get("dt")
        .filter(|gaps| gaps.is_array() && gaps.items().all(|gap| gap.as_int53().is_some()))
        .map(Tokens::of)
        .ok_or(RowError { tag, problem: "dt must be an array of safe integers" })
}

fn texts_of(tag: Tag, data: Value<'_, '_>) -> Result<Tokens, RowError> {
    let problem = match tag {
        Tag::Text | Tag::Reasoning => "texts must be a non-empty string array",
        Tag::ToolCall => "args must be a non-empty string array",
    };
    data.get(tag.list_key())
        .filter(|texts| texts.is_array() && texts.items().all(|text| text.as_text().is_some()))
        .map(Tokens::of)
        .filter(|texts| texts.left() > 0)
        .ok_or(RowError { tag, problem })
}

/// The time of the last member, if all members' times are safe integers.
fn last_time(first: i64, mut gaps: Tokens) -> Option<i64> {
    let mut time = first;
    while let Some(gap) = gaps.next_int() {
        time = time.checked_add(gap).filter(|time| time.unsigned_abs() <= INT53_MAX)?;
    }
    Some(time)
}

/// The members of a row in order; made one by one.
#[derive(Clone, Debug)]
pub struct Members {
    head: Box<str>,
    place: Place,
    gaps: Tokens,
    texts: Tokens,
    last_time_ms: i64,
}

impl Members {
    /// Where the next member stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The time of the last member.
    pub fn last_time_ms(&self) -> i64 {
        self.last_time_ms
    }
}

impl Iterator for Members {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let text = self.texts.next_token()?;
        let data = [&self.head, text, TAIL].concat().into();
        let member = Member { seq: self.place.seq, time_ms: self.place.time_ms, data };
        self.place.seq += 1;
        self.place.time_ms += self.gaps.next_int().unwrap_or(0);
        Some(member)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.texts.left(), Some(self.texts.left()))
    }
}

impl ExactSizeIterator for Members {}

/// What closes a member's data: the chunk and the payload.
const TAIL: &str = "}}";

/// The raw tokens that all members of a run share.
struct Run<'t> {
    tag: Tag,
    turn: &'t str,
    step: &'t str,
    index: &'t str,
    /// Id and name of a tool call.
    call: Option<(&'t str, Option<&'t str>)>,
}

impl Run<'_> {
    fn head(&self) -> String {
        let Self { tag, turn, step, index, .. } = self;
        let kind = tag.chunk_type();
        let key = tag.chunk_key();
        let call = self.call_members();
        format!(r#"{{"turn":{turn},"step":{step},"chunk":{{"type":"{kind}","index":{index},{call}"{key}":"#)
    }

    /// The members `id` and `name`, each with a comma behind it.
    fn call_members(&self) -> String {
        match self.call {
            None => String::new(),
            Some((id, None)) => format!(r#""id":{id},"#),
            Some((id, Some(name))) => format!(r#""id":{id},"name":{name},"#),
        }
    }
}
