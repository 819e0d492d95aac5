//! The family of a session, from the headers of its namespace.

use std::collections::HashSet;

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
    let lineage = family(store, key)?.trace(key.id.as_str()).map_err(|error| match error {
        LineageError::NotFound { .. } => absent(key),
        LineageError::Cycle { .. } => Error::new(Reason::FormatUnsupported, error.to_string()),
    })?;
    // One that was deleted meanwhile is left out.
    let relative = |id: &str, depth: u64| Ok(find(store, key, id)?.map(|session| relative(&session, depth)));
    let relatives = |named: Vec<(&str, u64)>| -> Result<Vec<Relative>, Error> {
        named.into_iter().filter_map(|(id, depth)| relative(id, depth).transpose()).collect()
    };
    let target = relative(key.id.as_str(), 0)?.ok_or_else(|| absent(key))?;
    let descendants = lineage.descendants.iter().take(DESCENDANTS_MAX);
    Ok(Family {
        target,
        ancestors: relatives(lineage.ancestors.iter().map(String::as_str).zip(1..).collect())?,
        descendants: relatives(descendants.map(|one| (one.id.as_str(), one.depth)).collect())?,
        missing_parent: match lineage.end {
            LineEnd::Root(_) => None,
            LineEnd::Unresolved(parent) => Some(parent),
        },
        is_truncated: lineage.descendants.len() > DESCENDANTS_MAX,
    })
}

/// The session with its line of ancestors, and all sessions of the namespace that have a parent. One that changes while
/// the pages are read may be missed below the session, never above it.
fn family(store: &dyn Store, key: &SessionKey) -> Result<lineage::Family, Error> {
    let mut family = lineage::Family::default();
    let filter = ListFilter { namespace: key.namespace.as_str().to_owned(), ..ListFilter::default() };
    let mut after = None;
    loop {
        let page = store.list(&filter, after, PAGE)?;
        let children = page.sessions.iter().filter(|session| session.birth.header.parent_session.is_some());
        children.for_each(|session| insert(&mut family, session));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let (mut wanted, mut seen) = (Some(key.id.as_str().to_owned()), HashSet::new());
    while let Some(id) = wanted.take().filter(|id| seen.insert(id.clone())) {
        if let Some(session) = find(store, key, &id)? {
            insert(&mut family, &session);
            wanted.clone_from(&session.birth.header.parent_session);
        }
    }
    Ok(family)
}

fn insert(family: &mut lineage::Family, session: &Session) {
    let (birth, header) = (&session.birth, &session.birth.header);
    family.insert(birth.key.id.as_str(), header.created_at_ms, header.parent_session.as_deref());
}

/// A session of the namespace of `key`. Headers may name parents that no session can be called.
fn find(store: &dyn Store, key: &SessionKey, id: &str) -> Result<Option<Session>, Error> {
    let Ok(key) = SessionKey::new(key.namespace.as_str(), id) else { return Ok(None) };
    Ok(store.find(&key)?.map(|found| found.session))
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
