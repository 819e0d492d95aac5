//! One session in memory: where its log stands, accepted and durable.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::fold::{Arriving, Fold};
use super::follow::{Ended, Tail};
use super::note::Noted;
use super::ownership::{Act, Moment, Ownership};
use super::{FirstClaim, Head, Session, error};
use crate::codec::{Chain, Summary, event};
use crate::model::{Incarnation, NewEvent, Owner, Profile, Seq, Tenure};
use crate::replay::admit::Report;
use crate::store::{Birth, Change, Damage, Found, Graft, LogId, Run};

use super::error::{Error, Fact, Reason};

/// The place of a session name in memory. Whoever holds it, holds the only one: it leaves the map only when nobody
/// does.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) state: Mutex<State>,
    /// Ticks of the sweeper at the last use.
    pub(super) used: AtomicU64,
    /// Held by whoever folds the log.
    pub(super) folding: Arc<tokio::sync::Mutex<()>>,
    /// Held by whoever copies what the log shares.
    pub(super) detaching: Arc<tokio::sync::Mutex<()>>,
    /// The ends of logs whose deletion is not durable yet.
    pub(super) leaving: Mutex<Vec<(LogId, Weak<Mutex<Tail>>)>>,
}

impl Slot {
    /// A log is being deleted; its followers hear it when that is durable.
    pub(super) fn part(&self, live: &Live) {
        if live.tail.strong_count() > 0 {
            self.leaving.lock().push((live.log, live.tail.clone()));
        }
    }

    /// The deletion of a log is durable.
    pub(super) fn parted(&self, log: LogId) {
        let mut leaving = self.leaving.lock();
        for (_, tail) in leaving.extract_if(.., |(leaving, _)| *leaving == log) {
            if let Some(tail) = tail.upgrade() {
                tail.lock().end(Ended::Deleted);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) enum State {
    /// The store was not asked yet.
    #[default]
    Unknown,
    /// There is no such session.
    Absent,
    /// There is.
    Live(Box<Live>),
}

/// A log between what was accepted and what is durable.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) log: LogId,
    pub(super) birth: Arc<Birth>,
    pub(super) next_seq: Seq,
    pub(super) chain: Chain,
    pub(super) durable_next_seq: Seq,
    pub(super) durable_chain: Chain,
    pub(super) updated_ms: u64,
    pub(super) damage: Option<Damage>,
    /// Accepted runs that are not durable yet, in order.
    pub(super) pending: VecDeque<Run>,
    /// What the log leaves at its end. Once a log of the profiles dsh has one, it moves with every append; that of a raw
    /// one is as old as the last view that needed it.
    pub(super) fold: Option<Box<Fold>>,
    /// Which checkpoint of it the store has.
    pub(super) noted: Noted,
    /// What a list shows of the accepted log.
    pub(super) summary: Summary,
    /// Events below are shared with other logs.
    pub(super) shared_until: Seq,
    /// Which request made it, if it is a fork.
    pub(super) request: [u8; 16],
    /// It is a fork that is not durable yet: nothing of it can be read.
    pub(super) is_unborn: bool,
    /// Who may write.
    pub(super) ownership: Ownership,
    /// What followers look at, as long as there are some.
    pub(super) tail: Weak<Mutex<Tail>>,
}

impl Live {
    pub(super) fn new(log: LogId, birth: Arc<Birth>, updated_ms: u64) -> Self {
        Self {
            log,
            birth,
            next_seq: Seq::ZERO,
            chain: Chain::START,
            durable_next_seq: Seq::ZERO,
            durable_chain: Chain::START,
            updated_ms,
            damage: None,
            pending: VecDeque::new(),
            fold: None,
            noted: Noted::default(),
            summary: Summary::default(),
            shared_until: Seq::ZERO,
            request: [0; 16],
            is_unborn: false,
            ownership: Ownership::default(),
            tail: Weak::new(),
        }
    }

    /// A fork on its way to the disk.
    pub(super) fn grafted(log: LogId, graft: &Graft, updated_ms: u64) -> Self {
        let (next_seq, chain) = graft.end();
        Self {
            next_seq,
            chain,
            summary: graft.summary.clone(),
            shared_until: graft.seed_length(),
            request: graft.request,
            is_unborn: true,
            ..Self::new(log, Arc::new(graft.birth.clone()), updated_ms)
        }
    }

    /// The fork became durable.
    pub(super) fn settle_birth(&mut self, graft: &Graft, time_ms: u64) {
        (self.durable_next_seq, self.durable_chain) = graft.end();
        self.updated_ms = time_ms;
        self.is_unborn = false;
    }

    /// Holds a batch that is next to the rules of its profile; a refusal changes nothing. Gives what it breaks although
    /// it may stay. The log must have been folded, unless it is raw.
    pub(super) fn hold(&mut self, batch: &Arriving<'_, '_>) -> Result<Vec<Report>, Error> {
        let is_full = self.next_seq.advance(batch.events.len() as u64).is_none();
        match &mut self.fold {
            Some(fold) if self.birth.profile != Profile::Raw && !is_full => {
                fold.admit(self.birth.profile, self.next_seq, batch)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Whether the log must be folded before it takes appends.
    pub(super) fn needs_fold(&self) -> bool {
        self.fold.is_none() && self.birth.profile != Profile::Raw
    }

    /// Adds a batch at the end: encodes it, moves next seq and chain, and keeps it until it is durable.
    pub(super) fn admit(&mut self, events: &[NewEvent], bytes: usize) -> Result<Run, Error> {
        let first_seq = self.next_seq;
        let next_seq = first_seq.advance(events.len() as u64);
        let next_seq =
            next_seq.ok_or_else(|| Error::new(Reason::SeqGap, "the log is full: it would pass seq 2^53 - 1"))?;
        let (mut encoded, mut chain) = (Vec::with_capacity(bytes), self.chain);
        for (index, event) in events.iter().enumerate() {
            let start = encoded.len();
            event::encode(Seq::saturating(first_seq.get() + index as u64), event, &mut encoded);
            chain = chain.next(&encoded[start..]);
        }
        let count = events.len() as u32;
        let run = Run { first_seq, count, link: self.chain.link(), chain, events: encoded.into() };
        self.summary.add(&Summary::of(&run.events));
        (self.next_seq, self.chain) = (next_seq, chain);
        self.pending.push_back(run.clone());
        if let Some(tail) = self.tail.upgrade() {
            tail.lock().accept(&run);
        }
        Ok(run)
    }

    /// A run of this log became durable.
    pub(super) fn settle(&mut self, run: &Run, time_ms: u64) {
        self.pending.pop_front();
        (self.durable_next_seq, self.durable_chain) = (run.next_seq(), run.chain);
        self.updated_ms = self.updated_ms.max(time_ms);
        if let Some(tail) = self.tail.upgrade() {
            tail.lock().settle(self.durable_next_seq);
        }
    }

    /// A commit failed: what is pending may be lost.
    pub(super) fn give_up(&self) {
        if let Some(tail) = self.tail.upgrade() {
            tail.lock().end(Ended::Uncertain);
        }
    }

    pub(super) fn head(&self, store: [u8; 16]) -> Head {
        let incarnation = self.birth.incarnation;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&store).update(&incarnation.0).update(&self.next_seq.get().to_le_bytes()).update(&self.chain.0);
        let mut revision = [0; 16];
        revision.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Head {
            next_seq: self.next_seq,
            durable_next_seq: self.durable_next_seq,
            revision,
            chain: self.chain,
            incarnation,
            updated_ms: self.updated_ms,
            owner: self.ownership.record().and_then(|_| self.ownership.holding(Instant::now())),
            tail: self.fold.as_ref().filter(|fold| fold.next_seq() == self.next_seq).map(|fold| fold.tail_state()),
        }
    }

    pub(super) fn session(&self, store: [u8; 16]) -> Session {
        Session {
            birth: self.birth.clone(),
            head: self.head(store),
            summary: self.summary.clone(),
            shared_until: self.shared_until,
            forks: None,
            owner: self.ownership.record().cloned(),
        }
    }

    /// Refuses a write that is not the owner's. Asked under the slot's lock, with which the write is queued.
    pub(super) fn check_epoch(&self, epoch: Option<u64>, act: Act) -> Result<(), Error> {
        self.ownership.check(epoch, act, Instant::now())
    }

    /// The first owner of a new session: the change to commit.
    pub(super) fn belong_to(&mut self, first: &FirstClaim) -> Result<Change, Error> {
        let at = Moment::now();
        let owner = self.ownership.claim(&first.claim, at)?;
        let tenure = if first.publish { Tenure::Live } else { owner.tenure };
        Ok(self.pass_to(Owner { tenure, ..owner }, at.now))
    }

    /// A change of hands, decided: the change to commit.
    pub(super) fn pass_to(&mut self, owner: Owner, now: Instant) -> Change {
        let owner = Arc::new(owner);
        self.ownership.decide(owner.clone(), now);
        Change::Owner { log: self.log, next_seq: self.next_seq, chain: self.chain, owner }
    }

    /// Refuses a caller who means another life of the name.
    pub(super) fn check_incarnation(&self, wanted: Option<Incarnation>) -> Result<(), Error> {
        match wanted {
            Some(wanted) if wanted != self.birth.incarnation => {
                let message = format!("`{}` was created anew: it is {}", self.birth.key, self.birth.incarnation);
                Err(Error::new(Reason::IncarnationMismatch, message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses writes to a log that is not whole.
    pub(super) fn check_whole(&self) -> Result<(), Error> {
        self.damage.map_or(Ok(()), |damage| Err(error::corrupt(damage.good_next_seq)))
    }

    pub(super) fn conflict(&self, store: [u8; 16], reason: Reason, message: String, at: Option<Seq>) -> Error {
        let head = Box::new(self.head(store));
        Error::new(reason, message).with(Fact::Conflict { head, first_differing_seq: at })
    }
}

impl From<Found> for Live {
    fn from(found: Found) -> Self {
        let session = found.session;
        let ownership = Ownership::stored(session.owner.clone(), None);
        Self {
            ownership,
            next_seq: session.next_seq,
            chain: session.chain,
            durable_next_seq: session.next_seq,
            durable_chain: session.chain,
            damage: found.damage,
            summary: session.summary,
            shared_until: session.shared_until,
            request: session.request,
            ..Self::new(session.log, session.birth, session.updated_ms)
        }
    }
}
