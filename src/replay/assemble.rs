//! The chunks of one attempt, folded into content blocks (reference 5.2).
//!
//! [`Assembler`] is fed chunk by chunk and can be asked at any point; a refused chunk leaves it as it was. Blocks
//! come out as JSON text made of the log's own slices, so escaped lone surrogates survive and a pair split over two
//! deltas joins again. It does not know which events form an attempt ([`super::attempts`] does) and never decides
//! whether the result is committed.

use std::collections::BTreeMap;

use super::chunk::{BlockKind, Chunk, Index, StreamError};
use super::text::is_blank;
use super::vocabulary::ASSISTANT_CHUNK;
use crate::model::json::{self, Value};
use crate::model::{Event, Seq};

/// The state of one attempt's stream.
///
/// Laws: blocks come in first-seen order; the first `block-end` of an index freezes it; usage and finish are
/// last-wins; applying a prefix and then the rest equals applying all.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    blocks: Vec<Block>,
    places: BTreeMap<Index, usize>,
    usage: Option<String>,
    finish: Option<Finish>,
}

#[derive(Clone, Debug)]
struct Block {
    index: Index,
    kind: BlockKind,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Open(Buffers),
    Closed { json: String, blank: bool },
}

/// Escaped text as it will stand between quotes.
#[derive(Clone, Debug, Default)]
struct Buffers {
    text: String,
    has_ink: bool,
    id: Option<String>,
    name: String,
    arguments: String,
}

#[derive(Clone, Debug)]
struct Finish {
    reason: String,
    kind: String,
    replay_state: Option<String>,
}

/// A chunk that cannot be folded, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chunk at seq {seq}: {error}")]
pub struct BrokenStream {
    /// The event.
    pub seq: Seq,
    /// What is wrong.
    pub error: StreamError,
}

impl Assembler {
    /// Folds one chunk (the `chunk` member of an `assistant/chunk` payload; reference 5.1, 5.2).
    ///
    /// An unknown type or a chunk without the fields its type needs is an error and changes nothing.
    pub fn apply(&mut self, chunk: Value<'_, '_>) -> Result<(), StreamError> {
        match Chunk::read(chunk)? {
            Chunk::BlockStart { index, kind } => {
                self.block(index, kind);
            }
            Chunk::TextDelta { index, kind, text } => self.append(index, kind, |buffers| {
                buffers.text.push_str(text.raw());
                buffers.has_ink |= !is_blank(text);
            }),
            Chunk::CallDelta { index, id, name, arguments } => self.append(index, BlockKind::ToolCall, |buffers| {
                buffers.id = Some(id.raw().to_owned());
                if let Some(name) = name.filter(|name| !name.is_empty()) {
                    name.raw().clone_into(&mut buffers.name);
                }
                buffers.arguments.push_str(arguments.raw());
            }),
            Chunk::BlockEnd { index, block } => self.close(index, block),
            Chunk::Usage(usage) => self.usage = Some(usage.raw().to_owned()),
            Chunk::Finish { reason, replay_state } => {
                self.finish = Some(Finish {
                    reason: reason.raw().to_owned(),
                    kind: reason.get("kind").and_then(Value::to_text).unwrap_or_default(),
                    replay_state: replay_state.map(|state| state.raw().to_owned()),
                });
            }
        }
        Ok(())
    }

    /// Folds one event of the attempt; anything but a chunk is passed over.
    pub fn apply_event(&mut self, event: &Event) -> Result<(), BrokenStream> {
        if *event.body.kind != *ASSISTANT_CHUNK {
            return Ok(());
        }
        let doc = json::parse(&event.body.data).ok();
        let chunk = doc.as_ref().and_then(|doc| doc.root().get("chunk"));
        let folded = chunk.map_or(Err(StreamError::Malformed { field: "chunk" }), |chunk| self.apply(chunk));
        folded.map_err(|error| BrokenStream { seq: event.seq, error })
    }

    /// The blocks as JSON texts, in first-seen order, closed ones verbatim (reference 5.2).
    ///
    /// After a `max-tokens` finish tool calls are left out, since their arguments may be cut. An open block of a
    /// type that only a `block-end` can complete is an error.
    pub fn blocks(&self) -> Result<Vec<String>, StreamError> {
        let blocks = self.blocks.iter().map(|block| Ok((self.drops(block), block.emit()?)));
        let blocks: Result<Vec<_>, StreamError> = blocks.collect();
        Ok(blocks?.into_iter().filter(|(dropped, _)| !dropped).map(|(_, json)| json).collect())
    }

    /// What may be kept when the stream is cut here: text and reasoning with something in them (reference 5.2, 5.3).
    /// Never fails.
    pub fn interrupted_blocks(&self) -> Vec<String> {
        self.blocks.iter().filter(|block| block.has_text()).filter_map(|block| block.emit().ok()).collect()
    }

    /// The last usage seen, as the log has it.
    pub fn usage(&self) -> Option<&str> {
        self.usage.as_deref()
    }

    /// The last finish reason as JSON text; a stream without one reads as stopped.
    pub fn finish(&self) -> &str {
        self.finish.as_ref().map_or(r#"{"kind":"stop"}"#, |finish| &finish.reason)
    }

    /// The `kind` of the last finish reason; `None` while no finish was seen.
    pub fn finish_kind(&self) -> Option<&str> {
        self.finish.as_ref().map(|finish| finish.kind.as_str())
    }

    /// The replay state that belongs to [`Assembler::blocks`], as JSON text (reference 5.2).
    ///
    /// Its `blocks` entries must match all blocks seen, or it is dropped whole; entries of blocks that were left out
    /// go with them, and then nothing but `response` and `blocks` remains.
    pub fn replay_state(&self) -> Result<Option<String>, StreamError> {
        self.blocks.iter().try_for_each(Block::check)?;
        let Some(state) = self.finish.as_ref().and_then(|finish| finish.replay_state.as_deref()) else {
            return Ok(None);
        };
        let Ok(doc) = json::parse(state.as_bytes()) else { return Ok(None) };
        let Some(entries) = doc.root().get("blocks") else { return Ok(Some(state.to_owned())) };
        if entries.items().count() != self.blocks.len() || !entries.is_array() {
            return Ok(None);
        }
        if !self.blocks.iter().any(|block| self.drops(block)) {
            return Ok(Some(state.to_owned()));
        }
        let kept = entries.items().zip(&self.blocks).filter(|(_, block)| !self.drops(block));
        let kept: Vec<_> = kept.map(|(entry, _)| entry.raw()).collect();
        let response = doc.root().get("response").map_or_else(String::new, |v| format!("\"response\":{},", v.raw()));
        Ok(Some(format!("{{{response}\"blocks\":[{}]}}", kept.join(","))))
    }

    fn drops(&self, block: &Block) -> bool {
        block.kind == BlockKind::ToolCall && self.finish_kind() == Some("max-tokens")
    }

    fn block(&mut self, index: Index, kind: BlockKind) -> Option<&mut Block> {
        let place = *self.places.entry(index).or_insert_with(|| {
            self.blocks.push(Block { index, kind, state: State::Open(Buffers::default()) });
            self.blocks.len() - 1
        });
        self.blocks.get_mut(place)
    }

    fn append(&mut self, index: Index, kind: BlockKind, add: impl FnOnce(&mut Buffers)) {
        if let Some(Block { state: State::Open(buffers), .. }) = self.block(index, kind) {
            add(buffers);
        }
    }

    fn close(&mut self, index: Index, value: Value<'_, '_>) {
        let kind = BlockKind::of_block(value);
        let Some(block) = self.block(index, kind.clone()) else { return };
        if matches!(block.state, State::Open(_)) {
            let blank = value.get("text").and_then(Value::as_text).is_none_or(is_blank);
            block.kind = kind;
            block.state = State::Closed { json: value.raw().to_owned(), blank };
        }
    }
}

impl Block {
    /// Whether it can be emitted.
    fn check(&self) -> Result<(), StreamError> {
        match (&self.kind, &self.state) {
            (BlockKind::Other(name), State::Open(_)) => Err(StreamError::Incomplete(name.clone())),
            _ => Ok(()),
        }
    }

    fn emit(&self) -> Result<String, StreamError> {
        let buffers = match &self.state {
            State::Closed { json, .. } => return Ok(json.clone()),
            State::Open(buffers) => buffers,
        };
        Ok(match &self.kind {
            BlockKind::Text => format!(r#"{{"type":"text","text":"{}"}}"#, buffers.text),
            BlockKind::Reasoning => format!(r#"{{"type":"reasoning","text":"{}"}}"#, buffers.text),
            BlockKind::ToolCall => {
                let id = buffers
                    .id
                    .clone()
                    .unwrap_or_else(|| format!("call-{}", json::number_text(self.index.get()).unwrap_or_default()));
                let Buffers { name, arguments, .. } = buffers;
                format!(r#"{{"type":"tool-call","id":"{id}","name":"{name}","arguments":"{arguments}"}}"#)
            }
            BlockKind::Other(name) => return Err(StreamError::Incomplete(name.clone())),
        })
    }

    fn has_text(&self) -> bool {
        let blank = match &self.state {
            State::Open(buffers) => !buffers.has_ink,
            State::Closed { blank, .. } => *blank,
        };
        matches!(self.kind, BlockKind::Text | BlockKind::Reasoning) && !blank
    }
}
