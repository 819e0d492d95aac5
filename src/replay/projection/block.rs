//! Content blocks as a display shows them (reference 5.5).
//!
//! Strings are kept as the log escapes them, without quotes, so that nothing is lost on the way to a client.

use crate::model::json::Value;
use crate::replay::chunk::BlockKind;
use crate::replay::text::is_blank;

/// One block of an assistant step on the screen. All strings are in JSON's escaped form, without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisplayBlock {
    /// Answer text.
    Text(Passage),
    /// Reasoning.
    Reasoning(Passage),
    /// A call of a tool.
    Call {
        /// The call's id.
        call_id: String,
        /// The tool.
        name: String,
        /// The arguments, unparsed.
        arguments: String,
    },
    /// Any other block, as JSON text; `null` while only its start was seen.
    Other(String),
}

/// Text, and whether there is anything but white space in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// The escaped text.
    pub escaped: String,
    pub(super) has_ink: bool,
}

impl DisplayBlock {
    /// The block that a bare `block-start` shows.
    pub(super) fn empty(kind: &BlockKind) -> Self {
        match kind {
            BlockKind::Text => Self::Text(Passage::default()),
            BlockKind::Reasoning => Self::Reasoning(Passage::default()),
            BlockKind::ToolCall => Self::Call { call_id: String::new(), name: String::new(), arguments: String::new() },
            BlockKind::Other(_) => Self::Other("null".to_owned()),
        }
    }

    /// A complete block; absent strings are empty.
    pub(super) fn complete(block: Value<'_, '_>) -> Self {
        let text = |name| block.get(name).and_then(Value::as_text);
        let escaped = |name| text(name).map_or_else(String::new, |text| text.raw().to_owned());
        let passage = || Passage { escaped: escaped("text"), has_ink: !text("text").is_none_or(is_blank) };
        match BlockKind::of_block(block) {
            BlockKind::Text => Self::Text(passage()),
            BlockKind::Reasoning => Self::Reasoning(passage()),
            BlockKind::ToolCall => {
                Self::Call { call_id: escaped("id"), name: escaped("name"), arguments: escaped("arguments") }
            }
            BlockKind::Other(_) => Self::Other(block.raw().to_owned()),
        }
    }

    /// Whether a reader sees something: tool calls are shown by their own nodes.
    pub fn is_visible(&self) -> bool {
        match self {
            Self::Text(passage) | Self::Reasoning(passage) => passage.has_ink,
            Self::Call { .. } => false,
            Self::Other(_) => true,
        }
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self, Self::Call { .. })
    }

    pub(super) fn is_of(&self, kind: &BlockKind) -> bool {
        matches!(
            (self, kind),
            (Self::Text(_), BlockKind::Text)
                | (Self::Reasoning(_), BlockKind::Reasoning)
                | (Self::Call { .. }, BlockKind::ToolCall)
                | (Self::Other(_), BlockKind::Other(_))
        )
    }
}
