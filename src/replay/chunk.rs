//! One chunk of a model stream, read from its payload (reference 5.1).
//!
//! The only reader of `assistant/chunk` payloads: the assembler, the display projection and the figures fold what
//! it returns and differ only in what they do with it. Text stays in its escaped form, so half a surrogate pair in
//! one delta meets its other half in the next. It knows nothing of attempts, steps or order.

use crate::model::json::{Text, Value};

/// Why a stream could not be read or assembled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A field is absent or of another kind than the chunk's type needs.
    #[error("chunk lacks a usable `{field}`")]
    Malformed {
        /// The field.
        field: &'static str,
    },
    /// A chunk type that the reference does not have.
    #[error("unknown chunk type {0:?}")]
    UnknownChunk(String),
    /// A block of a type without an open form was never closed.
    #[error("cannot assemble incomplete block of type \"{0}\"")]
    Incomplete(String),
}

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Answer text.
    Text,
    /// Reasoning text.
    Reasoning,
    /// A call of a tool.
    ToolCall,
    /// Any other type: the set is open.
    Other(String),
}

impl BlockKind {
    /// The kind that a block type names.
    pub fn of(name: Text<'_>) -> Self {
        if name.is("text") {
            Self::Text
        } else if name.is("reasoning") {
            Self::Reasoning
        } else if name.is("tool-call") {
            Self::ToolCall
        } else {
            Self::Other(String::from_utf8_lossy(&name.decode()).into_owned())
        }
    }

    /// The kind of a content block; a block without a readable `type` is `Other("")`.
    pub fn of_block(block: Value<'_, '_>) -> Self {
        block.get("type").and_then(Value::as_text).map_or_else(|| Self::Other(String::new()), Self::of)
    }
}

/// The key of a block inside one attempt: any number, compared by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Index(f64);

impl Index {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Eq for Index {}

impl PartialOrd for Index {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Index {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A chunk, borrowed from its payload.
#[derive(Clone, Debug)]
pub enum Chunk<'d, 't> {
    /// A block begins.
    BlockStart {
        /// Which block.
        index: Index,
        /// What it is.
        kind: BlockKind,
    },
    /// More text of a text or reasoning block.
    TextDelta {
        /// Which block.
        index: Index,
        /// [`BlockKind::Text`] or [`BlockKind::Reasoning`].
        kind: BlockKind,
        /// The text.
        text: Text<'t>,
    },
    /// More of a tool call.
    CallDelta {
        /// Which block.
        index: Index,
        /// The call's id.
        id: Text<'t>,
        /// The tool's name, if this delta carries it.
        name: Option<Text<'t>>,
        /// More of the raw arguments.
        arguments: Text<'t>,
    },
    /// A block is complete.
    BlockEnd {
        /// Which block.
        index: Index,
        /// The whole block.
        block: Value<'d, 't>,
    },
    /// Tokens used so far.
    Usage(Value<'d, 't>),
    /// The stream ended.
    Finish {
        /// `{kind, ...}`.
        reason: Value<'d, 't>,
        /// What the provider wants to see again.
        replay_state: Option<Value<'d, 't>>,
    },
}

impl<'d, 't> Chunk<'d, 't> {
    /// Reads the `chunk` member of a payload.
    pub fn read(chunk: Value<'d, 't>) -> Result<Self, StreamError> {
        let kind = text(chunk, "type")?;
        let delta = |kind| Ok(Self::TextDelta { index: index(chunk)?, kind, text: text(chunk, "text")? });
        let named = |name: &str| kind.is(name);
        if named("text-delta") {
            return delta(BlockKind::Text);
        }
        if named("reasoning-delta") {
            return delta(BlockKind::Reasoning);
        }
        if named("tool-call-delta") {
            return Ok(Self::CallDelta {
                index: index(chunk)?,
                id: text(chunk, "id")?,
                name: chunk.get("name").and_then(Value::as_text),
                arguments: text(chunk, "argumentsDelta")?,
            });
        }
        if named("block-start") {
            return Ok(Self::BlockStart { index: index(chunk)?, kind: BlockKind::of(text(chunk, "blockType")?) });
        }
        if named("block-end") {
            return Ok(Self::BlockEnd { index: index(chunk)?, block: object(chunk, "block")? });
        }
        if named("usage") {
            return Ok(Self::Usage(object(chunk, "usage")?));
        }
        if named("finish") {
            let replay_state = chunk.get("replayState").filter(|state| !state.is_null());
            return Ok(Self::Finish { reason: object(chunk, "reason")?, replay_state });
        }
        Err(StreamError::UnknownChunk(String::from_utf8_lossy(&kind.decode()).into_owned()))
    }

    /// The block that it is about.
    pub fn index(&self) -> Option<Index> {
        match self {
            Self::BlockStart { index, .. }
            | Self::TextDelta { index, .. }
            | Self::CallDelta { index, .. }
            | Self::BlockEnd { index, .. } => Some(*index),
            Self::Usage(_) | Self::Finish { .. } => None,
        }
    }

    /// Whether it shows that the model has begun to answer: non-empty text or reasoning, call arguments, or a
    /// call's name (reference 5.5).
    pub fn is_token(&self) -> bool {
        match self {
            Self::TextDelta { text, .. } => !text.is_empty(),
            Self::CallDelta { name, arguments, .. } => name.is_some() || !arguments.is_empty(),
            _ => false,
        }
    }
}

fn text<'t>(chunk: Value<'_, 't>, field: &'static str) -> Result<Text<'t>, StreamError> {
    chunk.get(field).and_then(Value::as_text).ok_or(StreamError::Malformed { field })
}

fn index(chunk: Value<'_, '_>) -> Result<Index, StreamError> {
    chunk.get("index").and_then(Value::as_f64).map(Index).ok_or(StreamError::Malformed { field: "index" })
}

fn object<'d, 't>(chunk: Value<'d, 't>, field: &'static str) -> Result<Value<'d, 't>, StreamError> {
    chunk.get(field).filter(|value| value.is_object()).ok_or(StreamError::Malformed { field })
}
