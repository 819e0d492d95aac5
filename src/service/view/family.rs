//! The family of a session, from the headers of its namespace.

use std::collections::HashMap;

use crate::model::{SessionId, SessionKey};
use crate::replay::lineage::{self, LineEnd, LineageError};
use crate::service::{Error, Reason, Service, absent, blocking};
use crate::store::{ListFilter, Session, Store};

/// Descendants that an answer names.
const DESCENDANTS_MAX: usize = 10_000;
/// Sessions read at once.
const PAGE: usize = 1000;

/// A session in a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Its id.
    pub id: SessionId,
    /// The parent that its header names.
    pub parent: Option<String>,
    /// When it was created.
    pub created_at_ms: u64,
    /// How many events it inherited.
    pub seed_length: Option<u64>,
    /// Generations from the target.
    pub depth: u64,
    /// How many durable events it has.
    pub next_seq: u64,
}

/// The family of a session.
#[derive(Clone, Debug)]
pub struct Family {
    /// The session.
    pub target: Relative,
    /// From the parent outwards.
    pub ancestors: Vec<Relative>,
    /// Each before its own children.
    pub descendants: Vec<Relative>,
    /// The parent that is not there.
    pub missing_parent: Option<String>,
    /// There are more descendants.
    pub is_truncated: bool,
}

impl Service {
    /// The family of a session among the durable sessions of its namespace.
    pub async fn family(&self, key: &SessionKey) -> Result<Family, Error> {
        let permit = self.inner.reads.take(1);
        let _permit = permit.ok_or_else(|| Error::new(Reason::ReaderBudget, "too many reads are running"))?;
        let (store, key) = (self.inner.store.clone(), key.clone());
        blocking(move || trace(&*store, &key)).await?
    }
}

fn trace(store: &dyn Store, key: &SessionKey) -> Result<Family, Error> {
    let sessions = sessions(store, key)?;
    let mut family = lineage::Family::default();
    for (id, session) in &sessions {
        let header = &session.birth.header;
        family.insert(id, header.created_at_ms, header.parent_session.as_deref());
    }
    let lineage = family.trace(key.id.as_str()).map_err(|error| match error {
        LineageError::NotFound { .. } => absent(key),
        LineageError::Cycle { .. } => Error::new(Reason::FormatUnsupported, error.to_string()),
    })?;
    let relative = |id: &str, depth: u64| sessions.get(id).map(|session| relative(session, depth));
    let ancestors = lineage.ancestors.iter().zip(1..).filter_map(|(id, depth)| relative(id, depth)).collect();
    let is_truncated = lineage.descendants.len() > DESCENDANTS_MAX;
    let descendants = lineage.descendants.iter().take(DESCENDANTS_MAX);
    let descendants = descendants.filter_map(|descendant| relative(&descendant.id, descendant.depth)).collect();
    let missing_parent = match lineage.end {
        LineEnd::Root(_) => None,
        LineEnd::Unresolved(parent) => Some(parent),
    };
    let target = relative(key.id.as_str(), 0).ok_or_else(|| absent(key))?;
    Ok(Family { target, ancestors, descendants, missing_parent, is_truncated })
}

/// All sessions of the namespace. One that changes while the pages are read may be missed; its own entry is looked up.
fn sessions(store: &dyn Store, key: &SessionKey) -> Result<HashMap<String, Session>, Error> {
    let filter = ListFilter { namespace: key.namespace.as_str().to_owned(), ..ListFilter::default() };
    let (mut sessions, mut after) = (HashMap::new(), None);
    loop {
        let page = store.list(&filter, after, PAGE)?;
        sessions.extend(page.sessions.into_iter().map(|session| (session.birth.key.id.as_str().to_owned(), session)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut wanted = Some(key.id.as_str().to_owned());
    while let Some(id) = wanted.take() {
        let is_known = sessions.contains_key(&id);
        if !is_known && let Ok(key) = SessionKey::new(key.namespace.as_str(), &id) {
            sessions.extend(store.find(&key)?.map(|found| (id.clone(), found.session)));
        }
        // Up the line, as far as it was not listed.
        if !is_known {
            wanted = sessions.get(&id).and_then(|session| session.birth.header.parent_session.clone());
        }
    }
    Ok(sessions)
}

fn relative(session: &Session, depth: u64) -> Relative {
    let (birth, header) = (&session.birth, &session.birth.header);
    Relative {
        id: birth.key.id.clone(),
        parent: header.parent_session.clone(),
        created_at_ms: header.created_at_ms,
        seed_length: header.seed_length,
        depth,
        next_seq: session.next_seq.get(),
    }
}
