//! Taking, publishing, giving back and keeping a session.
//!
//! What is decided here is decided under the slot's lock and queued with it, so that an epoch takes its place in the
//! order of the commits; it is told when it is durable, and so is every refusal that names an owner. Whether a claim or
//! a write is right is the business of `ownership`, what closes a turn that of `face`.

use std::sync::Arc;

use super::face::changes;
use super::ownership::{Moment, Ownership};
use super::session::Slot;
use super::{Append, Claim, Error, Fact, Head, Reason, Service, Session, durable, live, live_mut};
use crate::model::{Incarnation, Owner, SessionKey};
use crate::replay::repair::closers_of;

/// A claim to a session that is there.
#[derive(Clone, Debug)]
pub struct Prepare {
    /// The session.
    pub key: SessionKey,
    /// Only this life of the name.
    pub incarnation: Option<Incarnation>,
    /// Who claims it.
    pub claim: Claim,
}

/// A reservation.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The session, balanced, durable, with the new owner.
    pub session: Session,
    /// The epoch.
    pub epoch: u64,
    /// How many closers were appended.
    pub repaired: u64,
}

impl Service {
    /// Closes an open turn and reserves the session under a new epoch, both durably (design, section 5).
    pub async fn prepare(&self, prepare: &Prepare) -> Result<Prepared, Error> {
        self.check_writable()?;
        let mut permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(&prepare.key).await?;
        let decided = self.closing(&prepare.key, &slot, |live, tail| {
            live.check_incarnation(prepare.incarnation)?;
            let at = Moment::now();
            let owner = live.ownership.claim(&prepare.claim, at)?;
            let Some(tail) = tail else { return Ok(None) };
            let closers = closers_of(tail);
            let mut changes = changes(live, &closers)?;
            changes.push(live.pass_to(owner, at.now));
            let session = live.session_when_durable(self.inner.store_id);
            Ok(Some((session, closers.len() as u64, self.committer.submit_all(&slot, changes, permit.take()))))
        });
        let (session, repaired, waiter) = match decided.await {
            Ok(decided) => decided,
            Err(error) => return Err(self.told(&slot, error).await),
        };
        durable(waiter).await?;
        let epoch = session.owner.as_ref().map_or(0, |owner| owner.epoch);
        Ok(Prepared { session, epoch, repaired })
    }

    /// Makes the holder of a reservation the live owner, durably.
    pub async fn publish(&self, key: &SessionKey, epoch: u64) -> Result<Head, Error> {
        self.pass(key, |ownership, at| ownership.publish(epoch, at)).await
    }

    /// Gives a session back, durably, with all that was accepted before.
    pub async fn release(&self, key: &SessionKey, epoch: u64) -> Result<Head, Error> {
        self.pass(key, |ownership, at| ownership.release(epoch, at)).await
    }

    /// Begins a lease anew.
    pub async fn renew(&self, key: &SessionKey, epoch: u64, ttl_ms: Option<u64>) -> Result<Head, Error> {
        self.pass(key, |ownership, at| ownership.renew(epoch, ttl_ms, at)).await
    }

    async fn pass(
        &self,
        key: &SessionKey,
        decide: impl FnOnce(&Ownership, Moment) -> Result<Option<Owner>, Error>,
    ) -> Result<Head, Error> {
        let permit = Some(self.place_for_a_call()?);
        let slot = self.inner.slots.get(key).await?;
        let decided = {
            let mut state = slot.state.lock();
            let live = live_mut(&mut state, key)?;
            let at = Moment::now();
            match decide(&live.ownership, at) {
                Err(error) => Err(error),
                Ok(Some(owner)) => {
                    self.check_writable()?;
                    let change = live.pass_to(owner, at.now);
                    Ok(Some(self.committer.submit(&slot, Some(change), permit)))
                }
                Ok(None) => {
                    live.ownership.touch(at.now);
                    let is_settled = live.ownership.is_settled();
                    Ok((!is_settled).then(|| self.committer.submit(&slot, None, permit)))
                }
            }
        };
        match decided {
            Err(error) => return Err(self.told(&slot, error).await),
            Ok(Some(waiter)) => durable(waiter).await?,
            Ok(None) => {}
        }
        let state = slot.state.lock();
        Ok(live(&state, key)?.head(self.inner.store_id))
    }

    /// A refusal that may be told: what it says of an owner is durable.
    pub(super) async fn told(&self, slot: &Arc<Slot>, error: Error) -> Error {
        if !error.names_an_owner() {
            return error;
        }
        let waiter = {
            let state = slot.state.lock();
            let is_settled = match &*state {
                super::State::Live(live) => live.ownership.is_settled(),
                _ => true,
            };
            (!is_settled).then(|| self.committer.submit(slot, None, None))
        };
        let Some(waiter) = waiter else { return error };
        durable(waiter).await.err().unwrap_or(error)
    }

    /// The refusal of an append that is not the owner's: to a fenced one it says whether the batch is stored.
    pub(super) async fn refused(&self, error: Error, append: &Append, slot: &Arc<Slot>) -> Error {
        let Fact::Fenced { owner, .. } = &error.fact else { return self.told(slot, error).await };
        let owner = owner.clone();
        let Ok(differing) = self.first_differing(append, slot).await else { return self.told(slot, error).await };
        // What was found may still be on its way.
        let waiter = {
            let _state = slot.state.lock();
            self.committer.submit(slot, None, None)
        };
        if let Err(unknown) = durable(waiter).await {
            return unknown;
        }
        error.with(Fact::Fenced { owner, committed: Some(differing.is_none()) })
    }
}

/// The refusal of a name or a reason that breaks its rule.
fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<(), Error> {
    if text.is_empty() || text.len() > bytes_max {
        let problem = format!("has {} bytes; 1 to {bytes_max} are allowed", text.len());
        return Err(Error::field(Reason::InvalidRequest, field, problem));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::field(Reason::InvalidRequest, field, "has a control character"));
    }
    Ok(())
}

impl Claim {
    /// Time to live of a lease that says none.
    pub const TTL_MS: u64 = 30_000;

    /// A claim whose fields keep their rules.
    pub fn new(holder: &str, ttl_ms: Option<u64>, take_over: Option<&str>) -> Result<Self, Error> {
        use crate::model::owner::{HOLDER_BYTES_MAX, REASON_BYTES_MAX};
        check_text("holder", holder, HOLDER_BYTES_MAX)?;
        take_over.map_or(Ok(()), |reason| check_text("take_over.reason", reason, REASON_BYTES_MAX))?;
        let ttl_ms = check_ttl(ttl_ms)?.unwrap_or(Self::TTL_MS);
        Ok(Self { holder: holder.into(), ttl_ms, take_over: take_over.map(Into::into) })
    }
}

/// A time to live within its range.
pub fn check_ttl(ttl_ms: Option<u64>) -> Result<Option<u64>, Error> {
    use crate::model::owner::TTL_MS_MAX;
    match ttl_ms {
        Some(ttl_ms) if !(1..=TTL_MS_MAX).contains(&ttl_ms) => {
            Err(Error::field(Reason::InvalidRequest, "ttl_ms", format!("is {ttl_ms}; 1 to {TTL_MS_MAX} are allowed")))
        }
        _ => Ok(ttl_ms),
    }
}
