//! Forking: a child that shares its parent's events by reference (design, section 6; reference 9, 10).
//!
//! The boundary is looked for without any lock, in what was accepted when the call came. Then both names are locked for
//! as long as it takes to decide and to queue: the child's record goes into the committer's queue behind everything of
//! the parent that it shares, so that one commit makes both durable, and before whatever could take that away again.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::boundary::{Accepted, Boundary};
use super::committer::Waiter;
use super::face::wait;
use super::ownership::Act;
use super::session::{Live, Slot, State};
use super::{Error, Reason, Service, Session, blocking, durable, live, live_as, now_ms};
use crate::codec::{Chain, Summary, event, graft};
use crate::model::{Event, Header, Incarnation, Seq, SessionId, SessionKey};
use crate::replay::fork::{Birth as ChildBirth, Cut, ForkAt};
use crate::store::extents::inherit;
use crate::store::{Birth, Change, Extent, Graft, LogId, new_incarnation};

/// Which agent preset a child's header names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// None (core).
    #[default]
    Dropped,
    /// The one that the parent goes on with: the last selected, or that of its header (host).
    Kept,
    /// This one.
    Named(String),
}

/// What is to be forked, and how.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The parent.
    pub key: SessionKey,
    /// Only this life of the parent's name.
    pub incarnation: Option<Incarnation>,
    /// Only while the parent is owned under this epoch.
    pub epoch: Option<u64>,
    /// Only if the parent still has this revision.
    pub expected_revision: Option<Vec<u8>>,
    /// Where.
    pub at: ForkAt,
    /// The child's name; without one a name is made.
    pub child: Option<SessionId>,
    /// Instead of the parent's directory.
    pub cwd: Option<String>,
    /// The child's labels; the parent's do not travel.
    pub labels: BTreeMap<String, String>,
    /// The child's preset.
    pub preset: Preset,
}

/// What became of a fork.
#[derive(Clone, Debug)]
pub struct Forked {
    /// The child.
    pub session: Session,
    /// How many events it inherited.
    pub seed_length: Seq,
    /// The chain after them, in the parent and in the child.
    pub chain: Chain,
    /// The same request made it before.
    pub already_existed: bool,
}

/// The parent, as it stood when the call came.
struct Parent {
    accepted: Accepted,
    birth: Arc<Birth>,
}

impl Service {
    /// Forks a session, durably. The same request for the same child gives the same answer, also after the parent has
    /// changed or gone.
    pub async fn fork(&self, fork: Fork) -> Result<Forked, Error> {
        self.check_writable()?;
        let request = fingerprint(&fork);
        let id = fork.child.clone().map_or_else(generated, Ok)?;
        let child = SessionKey { namespace: fork.key.namespace.clone(), id };
        let child_slot = self.inner.slots.get(&child).await?;
        if let Some(forked) = self.repeated_fork(&child_slot, (&child, request)).await? {
            return Ok(forked);
        }
        if child == fork.key {
            return Err(super::absent(&child));
        }
        let slot = self.inner.slots.get(&fork.key).await?;
        self.born(&fork.key, &slot).await?;
        let parent = match self.look_at_parent(&fork, &slot) {
            Ok(parent) => parent,
            Err(error) => return Err(self.told(&slot, error).await),
        };
        let (at, accepted) = (fork.at, parent.accepted);
        let log = accepted.log;
        let (boundary, extents) = blocking(move || {
            let extents = accepted.store.extents(accepted.log)?;
            accepted.boundary(at).map(|boundary| (boundary, extents))
        })
        .await??;
        let header = child_header(&fork, (&parent.birth, &boundary))?;
        let profile = parent.birth.profile;
        let birth = Birth { key: child.clone(), incarnation: new_incarnation(), profile, header };
        let planned = Planned { log, boundary, extents, birth, request };
        let queued = match self.queue_fork(&fork, planned, (&slot, &child_slot)) {
            Ok(queued) => queued,
            Err(error) => return Err(self.told(&slot, error).await),
        };
        let Some((waiter, forked)) = queued else {
            let forked = self.repeated_fork(&child_slot, (&child, request)).await?;
            return forked.ok_or_else(|| exists(&child));
        };
        durable(waiter).await?;
        let state = child_slot.state.lock();
        let settled = live_as(&state, forked.session.head.incarnation).map(|live| live.session(self.inner.store_id));
        Ok(Forked { session: settled.unwrap_or(forked.session), ..forked })
    }

    /// Where a fork at that boundary would be cut.
    pub async fn cut(&self, key: &SessionKey, at: ForkAt) -> Result<Cut, Error> {
        let slot = self.inner.slots.get(key).await?;
        self.born(key, &slot).await?;
        let accepted = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            live.check_whole()?;
            Accepted::of(live, &self.inner.store)
        };
        Ok(blocking(move || accepted.cut(at)).await??.0)
    }

    /// Waits until a fork is durable, if the session is one: before that nothing of it can be read.
    pub(super) async fn born(&self, key: &SessionKey, slot: &Arc<Slot>) -> Result<(), Error> {
        let waiter = {
            let state = slot.state.lock();
            live(&state, key)?.is_unborn.then(|| self.committer.submit(slot, None, None))
        };
        wait(waiter).await
    }

    /// The child, if it is there already; refused if another request made it.
    async fn repeated_fork(
        &self,
        slot: &Arc<Slot>,
        (key, request): (&SessionKey, [u8; 16]),
    ) -> Result<Option<Forked>, Error> {
        let (session, seed_length, log) = {
            let state = slot.state.lock();
            let State::Live(live) = &*state else { return Ok(None) };
            if live.request != request {
                return Err(exists(key));
            }
            (live.session(self.inner.store_id), live.birth.header.seed_length.unwrap_or_default(), live.log)
        };
        self.born(key, slot).await?;
        let (store, seed_length) = (self.inner.store.clone(), Seq::saturating(seed_length));
        let chain = blocking(move || super::read::chain_before(&*store, log, seed_length)).await??;
        Ok(Some(Forked { session, seed_length, chain, already_existed: true }))
    }

    fn look_at_parent(&self, fork: &Fork, slot: &Arc<Slot>) -> Result<Parent, Error> {
        let state = slot.state.lock();
        let live = live(&state, &fork.key)?;
        live.check_incarnation(fork.incarnation)?;
        if matches!(fork.at, ForkAt::Head | ForkAt::LastTurn) {
            live.check_whole()?;
        }
        live.check_epoch(fork.epoch, Act::Flush)?;
        self.check_revision(fork, live)?;
        Ok(Parent { accepted: Accepted::of(live, &self.inner.store), birth: live.birth.clone() })
    }

    fn check_revision(&self, fork: &Fork, live: &Live) -> Result<(), Error> {
        let revision = live.head(self.inner.store_id).revision;
        match &fork.expected_revision {
            Some(expected) if *expected != revision => {
                let message = format!("`{}` has another revision than the expected one", fork.key);
                Err(live.conflict(self.inner.store_id, Reason::RevisionConflict, message, None))
            }
            _ => Ok(()),
        }
    }

    /// Decides and queues under the locks of both names; `None` if somebody else took the child's name meanwhile.
    fn queue_fork(
        &self,
        fork: &Fork,
        planned: Planned,
        (slot, child_slot): (&Arc<Slot>, &Arc<Slot>),
    ) -> Result<Option<(Waiter, Forked)>, Error> {
        let permit = Some(self.place_for_a_call()?);
        let (parent, mut child) = lock_both((&fork.key, slot), (&planned.birth.key, child_slot));
        if matches!(&*child, State::Live(_)) {
            return Ok(None);
        }
        let live = live(&parent, &fork.key)?;
        if live.log != planned.log {
            return Err(Error::new(Reason::IncarnationMismatch, "the parent was created anew during the call"));
        }
        live.check_epoch(fork.epoch, Act::Flush)?;
        self.check_revision(fork, live)?;
        // What was queued to stand alone does so before this fork is there, and may share nothing any more.
        let extents = if live.shared_until > Seq::ZERO { &planned.extents[..] } else { &[] };
        let now_ms = planned.birth.header.created_at_ms;
        let graft = planned.graft(extents)?;
        let log = self.inner.store.allot();
        let live = Live::grafted(log, &graft, now_ms);
        let session = live.session(self.inner.store_id);
        let (seed_length, chain) = (graft.seed_length(), graft.chain());
        let change = Change::Fork { log, graft: Arc::new(graft) };
        let waiter = self.committer.submit(child_slot, Some(change), permit);
        *child = State::Live(Box::new(live));
        Ok(Some((waiter, Forked { session, seed_length, chain, already_existed: false })))
    }
}

/// All that a fork needs from before the locks.
struct Planned {
    log: LogId,
    boundary: Boundary,
    extents: Arc<[Extent]>,
    birth: Birth,
    request: [u8; 16],
}

impl Planned {
    fn graft(&self, extents: &[Extent]) -> Result<Graft, Error> {
        let Boundary { cut, chain, summary } = &self.boundary;
        let extents = inherit(self.log, extents, (cut.seed_length, *chain));
        if extents.len() > graft::EXTENTS_MAX {
            let message = format!("the child would be made of {} parts; detach the parent first", extents.len());
            return Err(Error::new(Reason::Quota, message));
        }
        let mut marker = Vec::new();
        if let Some(Event { seq, body }) = cut.marker(self.birth.header.created_at_ms as i64) {
            event::encode(seq, &body, &mut marker);
        }
        let mut summary = summary.clone();
        summary.add(&Summary::of(&marker));
        let (birth, request) = (self.birth.clone(), self.request);
        Ok(Graft { birth, request, extents, summary, marker: marker.into() })
    }
}

/// Locks two different names, always in the same order.
fn lock_both<'a>(
    (key, slot): (&SessionKey, &'a Arc<Slot>),
    (child_key, child_slot): (&SessionKey, &'a Arc<Slot>),
) -> (MutexGuard<'a, State>, MutexGuard<'a, State>) {
    if key < child_key {
        let parent = slot.state.lock();
        (parent, child_slot.state.lock())
    } else {
        let child = child_slot.state.lock();
        (slot.state.lock(), child)
    }
}

fn child_header(fork: &Fork, (parent, boundary): (&Birth, &Boundary)) -> Result<Header, Error> {
    let kept = || boundary.summary.agent_preset.as_ref().map(|noted| noted.text.clone());
    let agent_preset = match &fork.preset {
        Preset::Dropped => None,
        Preset::Kept => kept().or_else(|| parent.header.agent_preset.clone()),
        Preset::Named(name) => Some(name.clone()),
    };
    let birth = ChildBirth { created_at_ms: now_ms(), agent_preset };
    let inherited = boundary.cut.header(fork.key.id.as_str(), &parent.header, birth);
    let cwd = fork.cwd.clone().or(inherited.cwd);
    let header = Header { cwd, labels: fork.labels.clone(), ..inherited };
    header.check()?;
    Ok(header)
}

fn exists(key: &SessionKey) -> Error {
    Error::new(Reason::SessionExists, format!("`{key}` exists, and another request made it"))
}

fn generated() -> Result<SessionId, Error> {
    Ok(SessionId::new(&format!("session-{}", crate::store::new_uuid()))?)
}

/// What tells a request for a child from another one; not the epoch, which may change hands between two tries. Stored with the child: the form is for ever.
fn fingerprint(fork: &Fork) -> [u8; 16] {
    let Fork { key, incarnation, expected_revision, at, child: _, epoch: _, cwd, labels, preset } = fork;
    let (kind, seq) = match at {
        ForkAt::Head => (0, Seq::ZERO),
        ForkAt::Inclusive(seq) => (1, *seq),
        ForkAt::Anchor(seq) => (2, *seq),
        ForkAt::LastTurn => (3, Seq::ZERO),
    };
    let (preset, preset_name) = match preset {
        Preset::Dropped => (0, ""),
        Preset::Kept => (1, ""),
        Preset::Named(name) => (2, name.as_str()),
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind, preset, u8::from(incarnation.is_some()), u8::from(expected_revision.is_some())]);
    hasher.update(&[u8::from(cwd.is_some())]).update(&seq.get().to_le_bytes());
    let texts = [key.namespace.as_str(), key.id.as_str(), preset_name, cwd.as_deref().unwrap_or_default()];
    let labels = labels.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    let bytes = [&incarnation.unwrap_or_default().0[..], expected_revision.as_deref().unwrap_or_default()];
    for part in texts.into_iter().chain(labels).map(str::as_bytes).chain(bytes) {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    let mut request = [0; 16];
    request.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    request
}
