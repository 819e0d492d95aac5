//! Who may write to a session: the state machine of epochs and leases, without a clock and without a wait.
//!
//! It is asked and moved under the lock of the session's slot, which is the order of the commits: a write that it let
//! through stands before the first event of the next epoch, and one that comes later is refused. Laws: epochs rise by
//! one; a lease that ran out takes nothing from its owner, it only lets the next claim through; what is shown to others
//! is durable. Times come as values. What is absent: the log, its turns, and the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{Error, Fact, Reason};
use crate::model::{Owner, TakeOver, Tenure};

/// An owner, with what is left of its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The owner.
    pub owner: Arc<Owner>,
    /// Zero when the lease ran out, `None` when nobody keeps its time here.
    pub expires_in: Option<Duration>,
}

/// Who wants a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The name of the claimer.
    pub holder: Arc<str>,
    /// The time to live of its lease.
    pub ttl_ms: u64,
    /// Why it may displace an owner whose lease runs.
    pub take_over: Option<Arc<str>>,
}

/// What is done with an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Events are added. Nobody else may, and a reserved log takes none.
    Append,
    /// The log is deleted: nobody else may.
    Keep,
    /// An open turn is closed: nobody else may.
    Repair,
    /// What is there is made durable, or shared with a fork: anybody may who names no epoch.
    Flush,
}

/// A moment, by the clock that leases run on and by the one that people read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) now_ms: u64,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { now: Instant::now(), now_ms: super::now_ms() }
    }
}

/// The ownership of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct Ownership {
    /// As it was decided.
    current: Option<Arc<Owner>>,
    /// As it is durable.
    told: Option<Arc<Owner>>,
    /// When the lease ends.
    until: Option<Instant>,
}

impl Ownership {
    /// As it was stored; its lease ends then.
    pub(super) fn stored(owner: Option<Arc<Owner>>, until: Option<Instant>) -> Self {
        Self { current: owner.clone(), told: owner, until }
    }

    /// The end of the lease, if somebody has one.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until.filter(|_| self.held().is_some())
    }

    /// Whether all that was decided is durable.
    pub(super) fn is_settled(&self) -> bool {
        match (&self.current, &self.told) {
            (Some(current), Some(told)) => Arc::ptr_eq(current, told),
            (None, None) => true,
            _ => false,
        }
    }

    /// What there is to tell: the record, also of an owner who gave the session back.
    pub(super) fn record(&self) -> Option<&Arc<Owner>> {
        self.told.as_ref()
    }

    /// Who is shown as the owner.
    pub(super) fn holding(&self, now: Instant) -> Option<Holding> {
        let owner = self.told.as_ref().filter(|owner| owner.is_held())?;
        let expires_in = self.until.map(|until| until.saturating_duration_since(now));
        Some(Holding { owner: owner.clone(), expires_in })
    }

    /// Whoever has the session as it was decided last.
    fn held(&self) -> Option<&Arc<Owner>> {
        self.current.as_ref().filter(|owner| owner.is_held())
    }

    /// The live owner.
    pub(super) fn live(&self) -> Option<&Arc<Owner>> {
        self.held().filter(|owner| owner.tenure == Tenure::Live)
    }

    /// Whether the lease of whoever has the session still runs.
    pub(super) fn is_running(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| until > now)
    }

    /// The reservation that a claimer gets.
    pub(super) fn claim(&self, claim: &Claim, at: Moment) -> Result<Owner, Error> {
        let before = self.held();
        let is_again = |owner: &Owner| owner.tenure == Tenure::Reserved && owner.holder == claim.holder;
        if let Some(owner) = before.filter(|owner| self.is_running(at.now) && !is_again(owner))
            && claim.take_over.is_none()
        {
            return Err(self.taken(owner, at.now));
        }
        let last = self.current.as_deref();
        let mut owner = Owner {
            epoch: last.map_or(0, |owner| owner.epoch) + 1,
            holder: claim.holder.clone(),
            tenure: Tenure::Reserved,
            since_ms: at.now_ms,
            ttl_ms: claim.ttl_ms,
            take_overs: last.map(|owner| owner.take_overs.clone()).unwrap_or_default(),
        };
        if let (Some(displaced), Some(reason)) = (before, &claim.take_over) {
            let (holder, from, reason) = (claim.holder.clone(), displaced.holder.clone(), reason.clone());
            owner.remember(TakeOver { epoch: owner.epoch, at_ms: at.now_ms, holder, from, reason });
        }
        Ok(owner)
    }

    /// What a reservation becomes when it is published; `None` if it was.
    pub(super) fn publish(&self, epoch: u64, at: Moment) -> Result<Option<Owner>, Error> {
        let owner = self.current(epoch, at.now)?;
        let live = || Owner { tenure: Tenure::Live, since_ms: at.now_ms, ..owner.as_ref().clone() };
        Ok((owner.tenure == Tenure::Reserved).then(live))
    }

    /// What is left of an owner that gives the session back; `None` if it did.
    pub(super) fn release(&self, epoch: u64, at: Moment) -> Result<Option<Owner>, Error> {
        if self.current.as_ref().is_some_and(|owner| owner.epoch == epoch && !owner.is_held()) {
            return Ok(None);
        }
        let owner = self.current(epoch, at.now)?;
        Ok(Some(Owner { tenure: Tenure::Released, since_ms: at.now_ms, ..owner.as_ref().clone() }))
    }

    /// The owner with another time to live; `None` if that is the one it has.
    pub(super) fn renew(&self, epoch: u64, ttl_ms: Option<u64>, at: Moment) -> Result<Option<Owner>, Error> {
        let owner = self.current(epoch, at.now)?;
        let ttl_ms = ttl_ms.filter(|ttl_ms| *ttl_ms != owner.ttl_ms);
        Ok(ttl_ms.map(|ttl_ms| Owner { ttl_ms, ..owner.as_ref().clone() }))
    }

    /// Refuses to close a turn for somebody who is nobody: an owner may go on with it, also after its lease.
    pub(super) fn may_close(&self) -> Result<(), Error> {
        let Some(owner) = self.held() else { return Ok(()) };
        let message = format!("`{}` owns the session and may go on with its open turn", owner.holder);
        Err(self.refusal(Reason::TurnOpen, message, Instant::now()))
    }

    /// Refuses a write that is not the owner's.
    pub(super) fn check(&self, epoch: Option<u64>, act: Act, now: Instant) -> Result<(), Error> {
        match (epoch, self.held()) {
            (None, None) => Ok(()),
            (None, Some(_)) if act == Act::Flush => Ok(()),
            (None, Some(owner)) if act == Act::Repair => Err(self.taken(owner, now)),
            (None, Some(owner)) => {
                let message = format!("`{}` owns the session; the call needs its epoch", owner.holder);
                Err(self.refusal(Reason::OwnerRequired, message, now))
            }
            (Some(epoch), _) => {
                let owner = self.current(epoch, now)?;
                if act == Act::Append && owner.tenure == Tenure::Reserved {
                    let message = format!("epoch {epoch} is a reservation; publish it before the first append");
                    return Err(self.refusal(Reason::NotPublished, message, now));
                }
                Ok(())
            }
        }
    }

    /// The refusal of somebody who is not that owner.
    fn taken(&self, owner: &Owner, now: Instant) -> Error {
        let (reason, what) = match owner.tenure {
            Tenure::Live => (Reason::SessionLive, "is live"),
            Tenure::Reserved | Tenure::Released => (Reason::LeaseHeld, "is reserved"),
        };
        self.refusal(reason, format!("the session {what} with `{}`, epoch {}", owner.holder, owner.epoch), now)
    }

    /// Whoever has the session, if it has that epoch.
    fn current(&self, epoch: u64, now: Instant) -> Result<&Arc<Owner>, Error> {
        if let Some(owner) = self.held().filter(|owner| owner.epoch == epoch) {
            return Ok(owner);
        }
        let message = match &self.current {
            None => format!("epoch {epoch} was never handed out: nobody owned the session yet"),
            Some(owner) if owner.is_held() => {
                format!("epoch {epoch} is over: `{}` has the session with epoch {}", owner.holder, owner.epoch)
            }
            Some(owner) => format!("epoch {epoch} is over: epoch {} gave the session back", owner.epoch),
        };
        let owner = self.shown(now);
        Err(Error::new(Reason::Fenced, message).with(Fact::Fenced { owner, committed: None }))
    }

    /// As it was decided, for those who are told only when it is durable.
    pub(super) fn shown(&self, now: Instant) -> Option<Holding> {
        let expires_in = self.until().map(|until| until.saturating_duration_since(now));
        self.current.clone().map(|owner| Holding { owner, expires_in })
    }

    /// A refusal that names whoever has the session.
    pub(super) fn refusal(&self, reason: Reason, message: String, now: Instant) -> Error {
        let error = Error::new(reason, message);
        self.shown(now).map_or_else(|| error.clone(), |owner| error.clone().with(Fact::Owner(owner)))
    }

    /// Takes what was decided, and begins its lease.
    pub(super) fn decide(&mut self, owner: Arc<Owner>, now: Instant) {
        self.until = now.checked_add(Duration::from_millis(owner.ttl_ms));
        self.current = Some(owner);
    }

    /// The owner showed a sign of life.
    pub(super) fn touch(&mut self, now: Instant) {
        if let Some(owner) = self.held() {
            self.until = now.checked_add(Duration::from_millis(owner.ttl_ms));
        }
    }

    /// What was decided became durable.
    pub(super) fn settle(&mut self, owner: &Arc<Owner>) {
        self.told = Some(owner.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(100);

    /// The states that an ownership can be in; epoch 1 is `a`'s.
    fn states(start: Instant) -> [(&'static str, Ownership, Instant); 6] {
        let at = Moment { now: start, now_ms: 7 };
        let claim = Claim { holder: "a".into(), ttl_ms: 100, take_over: None };
        let mut reserved = Ownership::default();
        let owner = reserved.claim(&claim, at).unwrap();
        reserved.decide(Arc::new(owner), start);
        let mut live = reserved.clone();
        let owner = live.publish(1, at).unwrap().unwrap();
        live.decide(Arc::new(owner), start);
        let mut released = live.clone();
        let owner = released.release(1, at).unwrap().unwrap();
        released.decide(Arc::new(owner), start);
        let (running, over) = (start + TTL / 2, start + TTL);
        [
            ("nobody", Ownership::default(), running),
            ("reserved", reserved.clone(), running),
            ("reserved, run out", reserved, over),
            ("live", live.clone(), running),
            ("live, run out", live, over),
            ("released", released, running),
        ]
    }

    /// What comes out of everything that can be asked of a state.
    fn outcomes(ownership: &Ownership, now: Instant) -> Vec<String> {
        let at = Moment { now, now_ms: 8 };
        let claim = |holder: &str, why: Option<&str>| {
            let claim = Claim { holder: holder.into(), ttl_ms: 100, take_over: why.map(Into::into) };
            ownership.claim(&claim, at).map(|owner| format!("{} {}", owner.epoch, owner.take_overs.len()))
        };
        let passed = |passed: Result<Option<Owner>, Error>| {
            passed.map(|owner| owner.map_or_else(|| "same".to_owned(), |owner| format!("{:?}", owner.tenure)))
        };
        let check = |epoch, act| ownership.check(epoch, act, now).map(|()| "ok".to_owned());
        let all = [
            claim("b", None),
            claim("a", None),
            claim("b", Some("why")),
            passed(ownership.publish(1, at)),
            passed(ownership.publish(9, at)),
            passed(ownership.renew(1, None, at)),
            passed(ownership.renew(1, Some(5), at)),
            passed(ownership.release(1, at)),
            check(None, Act::Append),
            check(Some(1), Act::Append),
            check(Some(9), Act::Append),
            check(None, Act::Flush),
            check(Some(1), Act::Flush),
            check(None, Act::Keep),
            check(Some(1), Act::Keep),
            check(None, Act::Repair),
            check(Some(1), Act::Repair),
            ownership.may_close().map(|()| "ok".to_owned()),
        ];
        all.map(|outcome| outcome.unwrap_or_else(|error| format!("{:?}", error.reason))).to_vec()
    }

    /// One row per question, one column per state.
    const TABLE: [[&str; 7]; 18] = [
        ["claim by another", "1 0", "LeaseHeld", "2 0", "SessionLive", "2 0", "2 0"],
        ["claim by the holder", "1 0", "2 0", "2 0", "SessionLive", "2 0", "2 0"],
        ["take over", "1 0", "2 1", "2 1", "2 1", "2 1", "2 0"],
        ["publish", "Fenced", "Live", "Live", "same", "same", "Fenced"],
        ["publish another", "Fenced", "Fenced", "Fenced", "Fenced", "Fenced", "Fenced"],
        ["renew", "Fenced", "same", "same", "same", "same", "Fenced"],
        ["renew for longer", "Fenced", "Reserved", "Reserved", "Live", "Live", "Fenced"],
        ["release", "Fenced", "Released", "Released", "Released", "Released", "same"],
        ["append of nobody", "ok", "OwnerRequired", "OwnerRequired", "OwnerRequired", "OwnerRequired", "ok"],
        ["append", "Fenced", "NotPublished", "NotPublished", "ok", "ok", "Fenced"],
        ["append of another", "Fenced", "Fenced", "Fenced", "Fenced", "Fenced", "Fenced"],
        ["flush of nobody", "ok", "ok", "ok", "ok", "ok", "ok"],
        ["flush", "Fenced", "ok", "ok", "ok", "ok", "Fenced"],
        ["delete or fork of nobody", "ok", "OwnerRequired", "OwnerRequired", "OwnerRequired", "OwnerRequired", "ok"],
        ["delete or fork", "Fenced", "ok", "ok", "ok", "ok", "Fenced"],
        ["repair of nobody", "ok", "LeaseHeld", "LeaseHeld", "SessionLive", "SessionLive", "ok"],
        ["repair", "Fenced", "ok", "ok", "ok", "ok", "Fenced"],
        ["load of an open turn", "ok", "TurnOpen", "TurnOpen", "TurnOpen", "TurnOpen", "ok"],
    ];

    #[test]
    fn every_question_has_its_answer_in_every_state() {
        for (column, (state, ownership, now)) in states(Instant::now()).into_iter().enumerate() {
            for (row, outcome) in TABLE.iter().zip(outcomes(&ownership, now)) {
                assert_eq!(outcome, row[column + 1], "{} when {state}", row[0]);
            }
        }
    }

    #[test]
    fn what_is_shown_is_durable_and_a_sign_of_life_begins_the_lease_anew() {
        let start = Instant::now();
        let (_, mut live, _) = states(start)[3].clone();
        assert_eq!((live.holding(start), live.is_settled()), (None, false));
        let owner = live.current.clone().unwrap();
        live.settle(&owner);
        assert_eq!(live.holding(start).unwrap().expires_in, Some(TTL));
        live.touch(start + TTL / 2);
        assert!(live.is_running(start + TTL) && !live.is_running(start + TTL + TTL / 2));
        assert_eq!(live.holding(start + TTL * 2).unwrap().expires_in, Some(Duration::ZERO));
        assert_eq!(live.check(Some(1), Act::Append, start + TTL * 2).map_err(|error| error.reason), Ok(()));
    }
}
