//! Where a surface can be cut without parting a tool call from its result.
//!
//! The reference's balance (3.5), the rule of compaction: a counter over the nodes in surface order, up by the calls of
//! each assistant message, down by one for each tool result. Ids are counted, not matched. A replacement need not
//! respect it, so that a derived view must be able to say when a history is one that a provider would refuse.

use super::tail::tool_calls;
use super::vocabulary::{ASSISTANT_MESSAGE, TOOL_RESULT};
use crate::model::json;
use crate::model::{Event, Seq};

/// Why a balance has no answer; the texts are the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingError {
    /// More results than calls.
    #[error("tool-pairing balance: tool/result at surface seq {0} has no matching tool-call (corrupt surface)")]
    OrphanResult(Seq),
    /// The question was about an event that is not a current node.
    #[error("tool-pairing balance: surface seq {0} not found")]
    NotANode(Seq),
}

/// The balance of a surface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    nodes: Vec<Seq>,
    cuts: Vec<bool>,
}

impl Pairing {
    /// The balance over the nodes' events, in surface order (reference 3.5).
    ///
    /// Law: one cut more than nodes, and the first is balanced.
    pub fn from_nodes<'e>(nodes: impl IntoIterator<Item = &'e Event>) -> Result<Self, PairingError> {
        let mut balance = Self { nodes: Vec::new(), cuts: vec![true] };
        let mut open = 0;
        for event in nodes {
            open = count(event, open)?;
            balance.nodes.push(event.seq);
            balance.cuts.push(open == 0);
        }
        Ok(balance)
    }

    /// Whether each of the N+1 cuts (before the first node, then after each node) has no call open.
    pub fn cuts(&self) -> &[bool] {
        &self.cuts
    }

    /// Whether the whole surface has a result for every call.
    pub fn is_balanced(&self) -> bool {
        self.cuts.last() == Some(&true)
    }

    /// Whether the surface can be cut right before and right after this node.
    pub fn around(&self, node: Seq) -> Result<(bool, bool), PairingError> {
        let position = self.nodes.iter().position(|&seq| seq == node).ok_or(PairingError::NotANode(node))?;
        let cut = |at: usize| self.cuts.get(at).copied().unwrap_or_default();
        Ok((cut(position), cut(position + 1)))
    }
}

fn count(event: &Event, open: usize) -> Result<usize, PairingError> {
    match &*event.body.kind {
        ASSISTANT_MESSAGE => {
            let doc = json::parse(&event.body.data).ok();
            Ok(open + tool_calls(doc.as_ref().map(json::Doc::root)).count())
        }
        TOOL_RESULT => open.checked_sub(1).ok_or(PairingError::OrphanResult(event.seq)),
        _ => Ok(open),
    }
}
