//! Appending: a batch is checked, held to the profile of its session, put at the end of the log, and committed.
//!
//! Payloads are parsed once, outside any lock; what is decided under the slot's lock costs the batch, not the log. A
//! refusal at any point leaves the session as it was.

use std::sync::Arc;
use std::time::Instant;

use super::budget::Permit;
use super::committer::Waiter;
use super::fold::{Arriving, Rewritten};
use super::ownership::Act;
use super::session::{Live, Slot};
use super::{Error, Head, Reason, Service, durable, live, live_as, live_mut};
use crate::model::json::Doc;
use crate::model::{Incarnation, Limits, NewEvent, Seq, SessionKey};
use crate::replay::admit::{Report, reads_payload};
use crate::replay::surface::original_needed;
use crate::store::{Change, Run};

/// When an append is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckLevel {
    /// In memory, in order.
    Accepted,
    /// On stable storage.
    Durable,
}

/// A batch to append.
#[derive(Clone, Debug)]
pub struct Append {
    /// The session.
    pub key: SessionKey,
    /// The place of the first event.
    pub first_seq: Seq,
    /// The events.
    pub events: Vec<NewEvent>,
    /// When to answer.
    pub level: AckLevel,
    /// Refuse a repetition.
    pub strict: bool,
    /// Only to this life of the name.
    pub incarnation: Option<Incarnation>,
    /// Of the owner who writes.
    pub epoch: Option<u64>,
}

/// What became of a batch.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The head after it.
    pub head: Head,
    /// The level that was reached.
    pub level: AckLevel,
    /// It was stored before.
    pub deduplicated: bool,
    /// What it breaks, although it was stored.
    pub reports: Vec<Report>,
}

/// What became of a batch under the lock.
enum Placed {
    /// Nothing: its first seq is taken, in this life of the name.
    Taken(Incarnation),
    /// It is in memory, which is all that was asked for.
    Accepted(Appended),
    /// It is on its way.
    Queued(Waiter, Appended),
}

/// What becomes of a batch that nothing refuses.
pub(super) enum Decided {
    /// Its log must be folded first.
    Fold,
    /// Its first seq is taken.
    Taken,
    /// It is the end of the log now.
    Next(Run, Vec<Report>),
}

impl Service {
    /// Appends a batch (design, section 4).
    pub async fn append(&self, append: Append) -> Result<Appended, Error> {
        let (bytes, docs) = check_batch(&append.events, &self.inner.options.limits)?;
        self.check_writable()?;
        let mut permit = Some(self.permit(bytes)?);
        let slot = self.inner.slots.get(&append.key).await?;
        let rewrites = append.events.iter().any(|event| original_needed(event).is_some());
        let originals = if rewrites { Box::pin(self.originals(&append, &slot)).await? } else { Rewritten::default() };
        let arriving = Arriving { events: &append.events, docs, bytes, originals };
        let placed = loop {
            match self.place(&append, &arriving, (&slot, &mut permit)) {
                Ok(Some(placed)) => break placed,
                // Boxed, like all rare ways here: they must not make the future of every append larger.
                Ok(None) => Box::pin(self.fold(&append.key, &slot)).await?,
                Err(refusal) => return Err(Box::pin(self.refused(refusal, &append, &slot)).await),
            }
        };
        drop(arriving);
        match placed {
            // From here on for this life of the name only: it may be deleted and created anew in between.
            Placed::Taken(incarnation) => {
                let append = Append { incarnation: Some(incarnation), ..append };
                Box::pin(self.repeated(append, (&slot, permit))).await
            }
            Placed::Accepted(appended) => Ok(appended),
            Placed::Queued(waiter, appended) => {
                durable(waiter).await?;
                let settled = live_as(&slot.state.lock(), appended.head.incarnation).map(|live| live.updated_ms);
                let updated_ms = settled.unwrap_or(appended.head.updated_ms);
                let head = Head { durable_next_seq: appended.head.next_seq, updated_ms, ..appended.head };
                Ok(Appended { head, ..appended })
            }
        }
    }

    /// Puts a batch at the end of its log and into the committer's queue, all under the slot's lock. `None`: the log must
    /// be folded first.
    fn place(
        &self,
        append: &Append,
        arriving: &Arriving<'_, '_>,
        (slot, permit): (&Arc<Slot>, &mut Option<Permit>),
    ) -> Result<Option<Placed>, Error> {
        let mut state = slot.state.lock();
        let live = live_mut(&mut state, &append.key)?;
        let (run, reports) = match self.decide(live, append, arriving)? {
            Decided::Fold => return Ok(None),
            Decided::Taken => return Ok(Some(Placed::Taken(live.birth.incarnation))),
            Decided::Next(run, reports) => (run, reports),
        };
        let change = Change::Append { log: live.log, run };
        let appended =
            Appended { head: live.head(self.inner.store_id), level: append.level, deduplicated: false, reports };
        Ok(Some(match (append.level, permit.take()) {
            (AckLevel::Accepted, Some(permit)) => {
                self.committer.accept(slot, change, permit);
                Placed::Accepted(appended)
            }
            (_, permit) => Placed::Queued(self.committer.submit(slot, Some(change), permit), appended),
        }))
    }

    /// Holds a batch to everything that can refuse it, and adds it to the log in memory if nothing does. Whoever gets a
    /// run must queue it before the slot is unlocked.
    pub(super) fn decide(
        &self,
        live: &mut Live,
        append: &Append,
        arriving: &Arriving<'_, '_>,
    ) -> Result<Decided, Error> {
        live.check_incarnation(append.incarnation)?;
        live.check_whole()?;
        live.check_epoch(append.epoch, Act::Append)?;
        if append.first_seq > live.next_seq {
            let message = format!("the batch starts at seq {}, the log ends at {}", append.first_seq, live.next_seq);
            return Err(live.conflict(self.inner.store_id, Reason::SeqGap, message, None));
        }
        if append.first_seq < live.next_seq {
            return Ok(Decided::Taken);
        }
        if live.needs_fold() {
            return Ok(Decided::Fold);
        }
        arriving.originals.check(live.log)?;
        let reports = live.hold(arriving)?;
        let run = live.admit(&append.events, arriving.bytes)?;
        live.note_growth(arriving.bytes);
        if append.epoch.is_some() {
            live.ownership.touch(Instant::now());
        }
        let metrics = &self.inner.metrics;
        metrics.append_events.add(u64::from(run.count));
        metrics.append_bytes.add(arriving.bytes as u64);
        reports.iter().for_each(|report| metrics.breaches.with(&[report.breach.rule()]).inc());
        Ok(Decided::Next(run, reports))
    }

    /// Answers a batch whose first seq is taken: the same bytes are a repetition, other bytes a conflict.
    async fn repeated(&self, append: Append, (slot, permit): (&Arc<Slot>, Option<Permit>)) -> Result<Appended, Error> {
        self.born(&append.key, slot).await?;
        let differing = self.first_differing(&append, slot).await?;
        let store_id = self.inner.store_id;
        let (head, waiter) = {
            let state = slot.state.lock();
            let live = live(&state, &append.key)?;
            live.check_incarnation(append.incarnation)?;
            if append.strict || differing.is_some() {
                let at = differing.unwrap_or(append.first_seq);
                let message = match differing {
                    None => format!("seq {at} is stored already, with the same bytes"),
                    Some(at) if at >= live.next_seq => {
                        format!("the batch repeats stored events and goes beyond them; append from seq {at} on")
                    }
                    Some(at) => format!("seq {at} is stored already, with other bytes"),
                };
                return Err(live.conflict(store_id, Reason::SeqConflict, message, Some(at)));
            }
            (live.head(store_id), self.committer.submit(slot, None, permit))
        };
        self.inner.metrics.append_repeated.inc();
        if append.level == AckLevel::Accepted {
            return Ok(Appended { head, level: AckLevel::Accepted, deduplicated: true, reports: Vec::new() });
        }
        durable(waiter).await?;
        let head = Head { durable_next_seq: head.durable_next_seq.max(head.next_seq), ..head };
        Ok(Appended { head, level: AckLevel::Durable, deduplicated: true, reports: Vec::new() })
    }
}

/// Payloads that were parsed, where something looks at them.
pub(super) type Docs<'t> = Vec<Option<Doc<'t>>>;

/// Checks a batch against the limits and gives its weight in bytes, and the payloads that an admission will look at.
pub(super) fn check_batch<'t>(events: &'t [NewEvent], limits: &Limits) -> Result<(usize, Docs<'t>), Error> {
    if events.is_empty() {
        return Err(Error::field(Reason::BatchTooLarge, "events", "is empty; at least one event is needed"));
    }
    if events.len() > limits.batch_events_max {
        return Err(Error::limit(Reason::BatchTooLarge, "batch_events_max", events.len(), limits.batch_events_max));
    }
    let parse = |(index, event): (usize, &'t NewEvent)| {
        let doc = event.parse(limits).map_err(|error| Error::event(index, error))?;
        Ok(reads_payload(&event.kind).then_some(doc))
    };
    let docs = events.iter().enumerate().map(parse).collect::<Result<Docs<'t>, Error>>()?;
    let bytes = events.iter().map(NewEvent::weight).sum();
    if bytes > limits.batch_bytes_max {
        return Err(Error::limit(Reason::BatchTooLarge, "batch_bytes_max", bytes, limits.batch_bytes_max));
    }
    Ok((bytes, docs))
}
