//! The ways in which an event can break the surface.
//!
//! One variant per rule of the reference (2.4), with its text; each names the envelope field that is wrong. Which of
//! several offences is named is decided by the order of the plan, not here.

use std::sync::Arc;

use super::SourcesError;
use crate::model::Seq;

/// Why an event breaks the surface; the texts are the reference's (2.4).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SurfaceError {
    /// The seq is not the next one.
    #[error("session event seq {seq} is not contiguous; expected {expected}")]
    NotContiguous {
        /// The seq found.
        seq: Seq,
        /// The next one.
        expected: Seq,
    },
    /// A log-only type with a surface operation.
    #[error("session event \"{kind}\" is not surface-eligible and cannot carry surfaceOp")]
    OpOnLogOnly {
        /// The type.
        kind: Arc<str>,
    },
    /// A log-only type with sources.
    #[error("session event \"{kind}\" is not surface-eligible and cannot carry sourceEventSeqs")]
    SourcesOnLogOnly {
        /// The type.
        kind: Arc<str>,
    },
    /// A surface type without an operation.
    #[error("session event \"{kind}\" is surface-eligible and requires a surfaceOp marker")]
    OpMissing {
        /// The type.
        kind: Arc<str>,
    },
    /// An operation that is neither `"append"` nor an object.
    #[error("session event \"{kind}\" carries an invalid surfaceOp")]
    OpInvalid {
        /// The type.
        kind: Arc<str>,
    },
    /// An object that is no replacement.
    #[error("session event \"{kind}\" carries an invalid replace surfaceOp")]
    ReplaceInvalid {
        /// The type.
        kind: Arc<str>,
    },
    /// The range names an event that is not a current node.
    #[error("surface replace: {end} seq {seq} not found in surface")]
    NotANode {
        /// `start` or `end`.
        end: &'static str,
        /// The seq named.
        seq: Seq,
    },
    /// The range ends before it starts.
    #[error("surface replace: start seq {start} (index {start_index}) is after end seq {end} (index {end_index})")]
    Reversed {
        /// Where the range starts.
        start: Seq,
        /// Its position.
        start_index: usize,
        /// Where it ends.
        end: Seq,
        /// Its position.
        end_index: usize,
    },
    /// The sources break a rule.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// A tool result that would replace several nodes.
    #[error("tool/result surface replacement must rewrite exactly one current node")]
    RewritesSeveral,
    /// A tool result that would replace something else.
    #[error("tool/result surface replacement must target a current tool/result")]
    RewritesOther,
    /// A tool result that differs in more than its content.
    #[error("tool/result surface replacement may change only content")]
    RewritesMore,
    /// The caller could not show the event that is rewritten; nothing was decided.
    #[error("tool/result surface replacement: the event at seq {seq} could not be read")]
    OriginalMissing {
        /// The event to rewrite.
        seq: Seq,
    },
}

impl SurfaceError {
    /// The envelope field that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NotContiguous { .. } => "seq",
            Self::SourcesOnLogOnly { .. } | Self::Sources(_) => "source_event_seqs",
            Self::RewritesMore => "data",
            _ => "surface_op",
        }
    }
}
