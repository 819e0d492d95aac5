//! Reading a log: durable events, verified, in frames.

use std::sync::Arc;

use super::budget::Permit;
use super::session::Slot;
use super::{Append, Error, Fact, Head, Reason, Service, Session, blocking, error, live};
use crate::codec::{Chain, event};
use crate::metrics::Metrics;
use crate::model::{Event, Incarnation, Seq, SessionKey};
use crate::store::{Damage, LogId, Run, Store};

/// Bytes that one read takes from the store ahead of its reader.
const AHEAD_BYTES_MAX: usize = 1 << 20;

/// Events that follow each other.
pub type Batch = Vec<Event>;

/// Bytes of a batch with types and source lists, which may weigh more than the data.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A read of one log, from some seq to what was durable when it began.
pub struct Reading {
    /// The session when the read began.
    pub session: Session,
    /// The chain before the first event.
    pub chain_before: Chain,
    store: Arc<dyn Store>,
    log: LogId,
    next: Seq,
    end: Seq,
    damage: Option<Damage>,
    ahead: std::collections::VecDeque<Event>,
    metrics: Arc<Metrics>,
    _permit: Permit,
}

impl Service {
    /// Starts to read a log from `from` on.
    pub async fn read(&self, key: &SessionKey, from: Seq, incarnation: Option<Incarnation>) -> Result<Reading, Error> {
        let permit = self.inner.reads.take(1);
        let permit = permit.ok_or_else(|| Error::new(Reason::ReaderBudget, "too many reads are running"))?;
        let slot = self.inner.slots.get(key).await?;
        let (session, log, end, (damage, chain_at_end)) = {
            let state = slot.state.lock();
            let live = live(&state, key)?;
            live.check_incarnation(incarnation)?;
            let session = live.session(self.inner.store_id);
            (session, live.log, live.durable_next_seq, (live.damage, live.durable_chain))
        };
        let store = self.inner.store.clone();
        let chain_before = if from >= end {
            chain_at_end
        } else {
            let store = store.clone();
            blocking(move || chain_before(&*store, log, from)).await??
        };
        let ahead = std::collections::VecDeque::new();
        let metrics = self.inner.metrics.clone();
        Ok(Reading { session, chain_before, store, log, next: from, end, damage, ahead, metrics, _permit: permit })
    }

    /// The first seq at which a batch differs from what is accepted; `None` when all of it is there.
    pub(super) async fn first_differing(&self, append: &Append, slot: &Arc<Slot>) -> Result<Option<Seq>, Error> {
        let (log, head, pending): (LogId, Head, Vec<Run>) = {
            let state = slot.state.lock();
            let live = live(&state, &append.key)?;
            live.check_incarnation(append.incarnation)?;
            (live.log, live.head(self.inner.store_id), live.pending.iter().cloned().collect())
        };
        let mut seq = append.first_seq;
        let mut rest = append.events.iter();
        while !rest.as_slice().is_empty() && seq < head.next_seq {
            let in_memory = pending.iter().find(|run| run.first_seq <= seq && seq < run.next_seq()).cloned();
            let run = match in_memory {
                Some(run) => run,
                None => self.stored_run(log, seq).await?,
            };
            let stored = run.decode()?;
            let start = seq;
            let stored = stored.into_iter().filter(|event| event.seq >= start);
            for (event, stored) in rest.by_ref().zip(stored) {
                if *event != stored.body {
                    return Ok(Some(stored.seq));
                }
                seq = Seq::saturating(seq.get() + 1);
            }
            if seq < run.next_seq() {
                break;
            }
            // `zip` took one event more than the run had.
            rest = append.events[(seq.get() - append.first_seq.get()) as usize..].iter();
        }
        let end = append.first_seq.get() + append.events.len() as u64;
        Ok((end > head.next_seq.get()).then_some(head.next_seq))
    }

    pub(super) async fn stored_run(&self, log: LogId, seq: Seq) -> Result<Run, Error> {
        let store = self.inner.store.clone();
        let runs = blocking(move || store.read(log, seq, 1)).await??;
        runs.into_iter().next().ok_or_else(|| error::corrupt(seq))
    }
}

impl Reading {
    /// Where the next event is read.
    pub fn next_seq(&self) -> Seq {
        self.ahead.front().map_or(self.next, |event| event.seq)
    }

    /// Ends the read before `end`, if that is earlier.
    #[must_use]
    pub fn up_to(mut self, end: Seq) -> Self {
        self.end = self.end.min(end);
        self
    }

    /// The next events: at most `bytes_max` of data and `events_max` events. One event that is larger comes alone, if
    /// it has at most `alone_max`; else the batch is empty. `None` at the end. Damage is an error, after the last good
    /// event.
    pub async fn next(
        &mut self,
        bytes_max: usize,
        alone_max: usize,
        events_max: usize,
    ) -> Result<Option<Batch>, Error> {
        if self.ahead.is_empty() {
            self.fill(bytes_max).await?;
        }
        let (mut count, mut bytes, mut weight) = (0, 0, 0);
        for event in self.ahead.iter().take(events_max) {
            bytes += event.body.data.len();
            weight += event.body.weight();
            let is_full = bytes > bytes_max || weight > BATCH_BYTES_MAX;
            if is_full && (count > 0 || event.body.data.len() > alone_max) {
                break;
            }
            count += 1;
        }
        Ok((!self.ahead.is_empty()).then(|| self.ahead.drain(..count).collect()))
    }

    async fn fill(&mut self, bytes_max: usize) -> Result<(), Error> {
        if let Some(damage) = self.damage
            && self.next >= damage.good_next_seq
        {
            return Err(error::corrupt(damage.good_next_seq));
        }
        if self.next >= self.end {
            return Ok(());
        }
        let (store, log, from, end) = (self.store.clone(), self.log, self.next, self.end);
        // More than one batch at a time: finding the place of a run costs more than reading along.
        let ahead = bytes_max.saturating_mul(4).min(AHEAD_BYTES_MAX);
        let events = blocking(move || load(&*store, log, (from, end), ahead)).await?;
        let events = events.map_err(|error| corrupt_at_least(error, self.next))?;
        self.metrics.read_events.add(events.len() as u64);
        self.metrics.read_bytes.add(events.iter().map(|event| event.body.data.len() as u64).sum());
        match events.last() {
            Some(last) => self.next = Seq::saturating(last.seq.get() + 1),
            // The store says there is less than was acknowledged.
            None => return Err(error::corrupt(self.next)),
        }
        self.ahead = events.into();
        Ok(())
    }
}

/// A damaged run is refused as a whole, but the reader may already have events of it.
pub(super) fn corrupt_at_least(refusal: Error, next: Seq) -> Error {
    match refusal.fact {
        Fact::Corrupt { good_next_seq } if good_next_seq < next => error::corrupt(next),
        _ => refusal,
    }
}

pub(super) fn load(store: &dyn Store, log: LogId, (from, end): (Seq, Seq), bytes_max: usize) -> Result<Batch, Error> {
    let (mut events, mut decoder) = (Vec::new(), event::Decoder::default());
    for run in store.read(log, from, bytes_max)? {
        run.decode_into(&mut decoder, &mut events)?;
    }
    // Runs are read whole; the first and the last may reach beyond what was asked for.
    events.truncate(events.partition_point(|event| event.seq < end));
    events.drain(..events.partition_point(|event| event.seq < from));
    Ok(events)
}

/// The chain before an event. Records hold the chain after their last event; in between it is computed.
pub(super) fn chain_before(store: &dyn Store, log: LogId, seq: Seq) -> Result<Chain, Error> {
    let Some(last) = seq.get().checked_sub(1).and_then(Seq::new) else { return Ok(Chain::START) };
    let run = store.read(log, last, 1)?.into_iter().next().ok_or_else(|| error::corrupt(last))?;
    if run.next_seq() == seq {
        return Ok(run.chain);
    }
    // The event before the run ends one, so that this goes one level deep.
    let chain = chain_before(store, log, run.first_seq)?;
    Ok(run.chain_at(chain, seq)?)
}
