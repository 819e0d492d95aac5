//! The rules on `sourceEventSeqs`: which earlier events an event was made from (reference 2.4).
//!
//! Sources need not be surface events nor sorted; their order is kept verbatim. A replacement must cite every node that
//! it shadows, so that the chain of what stands for what never breaks. The events cited are not looked at.

use std::fmt::Write as _;
use std::sync::Arc;

use super::{Cited, Entry};
use crate::model::Seq;
use crate::replay::vocabulary::ASSISTANT_MESSAGE;

/// Why sources are refused; the texts are the reference's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourcesError {
    /// Not an array.
    #[error("sourceEventSeqs on event at seq {seq} must be an array when present")]
    NotArray {
        /// The event.
        seq: Seq,
    },
    /// Empty where that has no meaning: only an attempt may have had no chunks.
    #[error("sourceEventSeqs must not be empty except on assistant/message")]
    Empty,
    /// Something that is not a seq.
    #[error("session event \"{kind}\" sourceEventSeqs must densely contain non-negative safe integers")]
    NotSeqs {
        /// The type.
        kind: Arc<str>,
    },
    /// The same source twice.
    #[error("sourceEventSeqs must not contain duplicates")]
    Duplicate,
    /// A source that is not earlier.
    #[error("sourceEventSeqs must reference earlier events: {cited} >= current seq {seq}")]
    NotEarlier {
        /// The first offender in list order.
        cited: Seq,
        /// The event.
        seq: Seq,
    },
    /// A replacement that does not cite all nodes it shadows.
    #[error("surface replace: sourceEventSeqs must include every shadowed surface node; missing {}", list(missing))]
    Uncited {
        /// The nodes missing, in surface order.
        missing: Vec<Seq>,
    },
}

fn list(seqs: &[Seq]) -> String {
    let mut text = String::new();
    for (index, seq) in seqs.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{seq}");
    }
    text
}

/// Checks in the reference's order: array, empty, elements, duplicates, earlier, coverage of `shadowed`.
pub(super) fn check(entry: &Entry<'_>, shadowed: &[Seq]) -> Result<(), SourcesError> {
    let cited = match entry.sources {
        Cited::Absent => &[][..],
        Cited::NotArray => return Err(SourcesError::NotArray { seq: entry.seq }),
        Cited::NotSeqs => return Err(SourcesError::NotSeqs { kind: Arc::clone(entry.kind) }),
        Cited::List([]) if **entry.kind != *ASSISTANT_MESSAGE => return Err(SourcesError::Empty),
        Cited::List(seqs) => seqs,
    };
    let mut sorted = cited.to_vec();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair.first() == pair.last()) {
        return Err(SourcesError::Duplicate);
    }
    if let Some(&cited) = cited.iter().find(|&&seq| seq >= entry.seq) {
        return Err(SourcesError::NotEarlier { cited, seq: entry.seq });
    }
    let missing: Vec<_> = shadowed.iter().copied().filter(|node| sorted.binary_search(node).is_err()).collect();
    if missing.is_empty() { Ok(()) } else { Err(SourcesError::Uncited { missing }) }
}
