//! What a list shows of a log, folded from its canonical events: title, preset, bytes, whether a turn is open.
//!
//! Every batch adds a [`Summary`] of its own to that of its log, when it is committed and again when a journal is
//! replayed, so that the two never differ and nobody reads a log to list it. Texts are clipped, so that a summary stays
//! small whatever the log holds. It decides nothing: whether a title is a good one, or a turn a legal one, is not known
//! here.

use std::borrow::Cow;

use bytes::Bytes;

use super::event::Skimmed;
use super::reader::{Malformed, Reader, put_block, put_optional};
use crate::model::{Seq, json};

/// Longest title and preset that are kept, in bytes; what is longer is clipped.
pub const TEXT_BYTES_MAX: usize = 160;

/// What the turn brackets of a log say at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// No turn ever started or ended.
    #[default]
    None,
    /// The last bracket started one.
    Open,
    /// The last bracket ended one.
    Closed,
}

/// A text and the event that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The event.
    pub seq: Seq,
    /// The text; what is no Unicode is replaced.
    pub text: String,
}

/// What is kept of a log. Constant size, and additive: [`Summary::add`] of summaries of consecutive parts equals the
/// summary of the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Canonical bytes of the events.
    pub bytes: u64,
    /// The latest `session/title`.
    pub title: Option<Noted>,
    /// The latest `agent-preset/selected`.
    pub agent_preset: Option<Noted>,
    /// The turn brackets.
    pub turns: Turns,
    /// Whether the last event is `session/end-seed`.
    pub is_marked: bool,
}

impl Summary {
    /// The summary of events in their canonical encoding. What follows a malformed one is not looked at.
    pub fn of(events: &[u8]) -> Self {
        let mut summary = Self { bytes: events.len() as u64, ..Self::default() };
        for event in Skimmed::all(events) {
            summary.is_marked = event.kind == b"session/end-seed";
            match event.kind {
                b"turn/start" => summary.turns = Turns::Open,
                b"turn/end" => summary.turns = Turns::Closed,
                b"session/title" => summary.title = noted(&event, "title").or(summary.title),
                b"agent-preset/selected" => {
                    summary.agent_preset = noted(&event, "agentPreset").or(summary.agent_preset);
                }
                _ => {}
            }
        }
        summary
    }

    /// Adds what follows; an empty part changes nothing.
    pub fn add(&mut self, next: &Self) {
        if next.bytes == 0 {
            return;
        }
        self.bytes += next.bytes;
        self.title = next.title.clone().or_else(|| self.title.take());
        self.agent_preset = next.agent_preset.clone().or_else(|| self.agent_preset.take());
        self.is_marked = next.is_marked;
        if next.turns != Turns::None {
            self.turns = next.turns;
        }
    }

    /// Appends the encoding to `out`: at most 400 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.push(match self.turns {
            Turns::None => 0,
            Turns::Open => 1,
            Turns::Closed => 2,
        });
        out.push(u8::from(self.is_marked));
        for noted in [&self.title, &self.agent_preset] {
            put_optional(noted.as_ref(), out, |noted, out| {
                out.extend_from_slice(&noted.seq.get().to_le_bytes());
                put_block(noted.text.as_bytes(), out);
            });
        }
    }

    /// Takes one encoding off the front of `bytes`.
    pub fn decode(bytes: &mut Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "summary");
        Ok(Self {
            bytes: reader.u64()?,
            turns: match reader.u8()? {
                0 => Turns::None,
                1 => Turns::Open,
                2 => Turns::Closed,
                _ => return reader.fail(),
            },
            is_marked: reader.u8()? == 1,
            title: reader.optional(decode_noted)?,
            agent_preset: reader.optional(decode_noted)?,
        })
    }
}

fn decode_noted(reader: &mut Reader<'_>) -> Result<Noted, Malformed> {
    Ok(Noted { seq: Seq::saturating(reader.u64()?), text: reader.text()? })
}

fn noted(event: &Skimmed<'_>, name: &str) -> Option<Noted> {
    Some(Noted { seq: event.seq, text: text(event.data, name)? })
}

/// A member of a payload as text, clipped.
fn text(data: &[u8], name: &str) -> Option<String> {
    let doc = json::parse(data).ok()?;
    let text = doc.root().get(name)?.as_text()?.decode();
    let text = match &text {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => String::from_utf8_lossy(bytes),
    };
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(text.get(..end).unwrap_or_default().to_owned())
}
