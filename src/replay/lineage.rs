//! The family of a session: ancestors outwards, descendants down to the leaves (reference 13.3).
//!
//! A [`Family`] is told of sessions in any order and answers from their header links alone. Ties between siblings are
//! decided by the bytes of the ids, where the reference asks the platform's collation and two machines may disagree.
//! It does not know where sessions are stored or whether they are live; whoever builds a family decides what is in it.

use std::collections::{BTreeMap, BTreeSet};

/// The sessions that a trace may name.
///
/// Law: the order in which sessions are added does not matter. Growth: two entries per session.
#[derive(Clone, Debug, Default)]
pub struct Family {
    members: BTreeMap<String, Member>,
    children: BTreeMap<String, BTreeSet<(u64, String)>>,
}

#[derive(Clone, Debug)]
struct Member {
    created_at_ms: u64,
    parent: Option<String>,
}

/// Where the line of ancestors ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineEnd {
    /// At a session without a parent: the last ancestor, or the session itself.
    Root(String),
    /// At a parent that is not there; the trace is not complete.
    Unresolved(String),
}

/// A descendant and how far down it is: 1 for a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descendant {
    /// The session.
    pub id: String,
    /// Its generation.
    pub depth: u64,
}

/// The family of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// From the parent outwards.
    pub ancestors: Vec<String>,
    /// Where they end.
    pub end: LineEnd,
    /// Each before its own children; siblings by creation time, then by the bytes of their ids.
    pub descendants: Vec<Descendant>,
}

/// Why there is no lineage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineageError {
    /// The session is not in the family.
    #[error("session {id:?} not found")]
    NotFound {
        /// The session.
        id: String,
    },
    /// A session is its own ancestor.
    #[error("session lineage contains a cycle at {id:?}")]
    Cycle {
        /// The session that was met again.
        id: String,
    },
}

impl Family {
    /// Adds a session, or puts it in the place of the one with that id.
    pub fn insert(&mut self, id: &str, created_at_ms: u64, parent: Option<&str>) {
        self.remove(id);
        if let Some(parent) = parent {
            self.children.entry(parent.to_owned()).or_default().insert((created_at_ms, id.to_owned()));
        }
        self.members.insert(id.to_owned(), Member { created_at_ms, parent: parent.map(str::to_owned) });
    }

    /// Takes a session out; its children then have a parent that is not there.
    pub fn remove(&mut self, id: &str) {
        let Some(Member { created_at_ms, parent: Some(parent) }) = self.members.remove(id) else { return };
        if let Some(siblings) = self.children.get_mut(&parent) {
            siblings.remove(&(created_at_ms, id.to_owned()));
            if siblings.is_empty() {
                self.children.remove(&parent);
            }
        }
    }

    /// The family of one session (reference 13.3). A cycle among its ancestors is an error; a missing parent is not.
    pub fn trace(&self, id: &str) -> Result<Lineage, LineageError> {
        let (ancestors, end) = self.ancestors(id)?;
        Ok(Lineage { ancestors, end, descendants: self.descendants(id) })
    }

    fn ancestors(&self, id: &str) -> Result<(Vec<String>, LineEnd), LineageError> {
        let mut member = self.members.get(id).ok_or_else(|| LineageError::NotFound { id: id.to_owned() })?;
        let (mut ancestors, mut seen) = (Vec::new(), BTreeSet::from([id]));
        while let Some(parent) = &member.parent {
            if !seen.insert(parent) {
                return Err(LineageError::Cycle { id: parent.clone() });
            }
            match self.members.get(parent) {
                None => return Ok((ancestors, LineEnd::Unresolved(parent.clone()))),
                Some(found) => member = found,
            }
            ancestors.push(parent.clone());
        }
        let root = ancestors.last().map_or(id, String::as_str).to_owned();
        Ok((ancestors, LineEnd::Root(root)))
    }

    /// Whoever has a line of ancestors without a cycle has no cycle below: each session has one parent.
    fn descendants(&self, id: &str) -> Vec<Descendant> {
        let children = |id: &str, depth| {
            let children = self.children.get(id).into_iter().flatten().rev();
            children.map(move |(_, id)| (id.as_str(), depth))
        };
        let mut open: Vec<_> = children(id, 1).collect();
        let mut descendants = Vec::new();
        while let Some((id, depth)) = open.pop() {
            descendants.push(Descendant { id: id.to_owned(), depth });
            open.extend(children(id, depth + 1));
        }
        descendants
    }
}
