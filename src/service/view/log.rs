//! A prefix of a log, read in pieces in either direction, with closers behind it.
//!
//! Blocking. Forwards it holds one piece of about a megabyte; backwards one as well, starting small, so that whoever
//! looks for something near the end reads little. It gives every event once and in order, or an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::{Error, Reason, error};
use crate::model::{Event, Seq};
use crate::replay::Tail;
use crate::replay::surface::Original;
use crate::replay::vocabulary::{TURN_END, TURN_START};
use crate::store::{LogId, Store};

const PIECE_BYTES: usize = 1 << 20;
/// Events of the first piece backwards, and of the largest.
const SPAN_FIRST: u64 = 64;
const SPAN_MAX: u64 = 4096;
/// Bytes read around one event that is looked up.
const LOOKUP_BYTES: usize = 64 << 10;

/// The prefix.
#[derive(Clone)]
pub(in crate::service) struct Log {
    store: Arc<dyn Store>,
    id: LogId,
    end: Seq,
    closers: Vec<Event>,
    /// Its rewrites were held to the rules when they were appended.
    is_trusted: bool,
    gone: Arc<AtomicBool>,
}

/// Tells a fold that nobody waits for it any more.
pub(super) struct Watch(Arc<AtomicBool>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Log {
    pub(in crate::service) fn new(store: &Arc<dyn Store>, (id, end): (LogId, Seq), is_trusted: bool) -> Self {
        Self { store: store.clone(), id, end, closers: Vec::new(), is_trusted, gone: Arc::default() }
    }

    pub(in crate::service) fn id(&self) -> LogId {
        self.id
    }

    pub(super) fn close_with(&mut self, closers: Vec<Event>) {
        self.closers = closers;
    }

    pub(super) fn closers(&self) -> &[Event] {
        &self.closers
    }

    /// The end of what is stored.
    pub(super) fn end(&self) -> Seq {
        self.end
    }

    /// The end with the closers.
    pub(super) fn closed_end(&self) -> Seq {
        Seq::saturating(self.end.get() + self.closers.len() as u64)
    }

    pub(super) fn watch(&self) -> Watch {
        Watch(self.gone.clone())
    }

    /// The same log for a reader of its own.
    pub(super) fn renewed(&self) -> Self {
        Self { gone: Arc::default(), ..self.clone() }
    }

    /// The same log up to another end, without closers.
    pub(super) fn up_to(&self, end: Seq) -> Self {
        Self { end, closers: Vec::new(), ..self.clone() }
    }

    /// The events from `from` on, until `each` wants no more.
    pub(in crate::service) fn forward(
        &self,
        from: Seq,
        mut each: impl FnMut(Event) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut next = from;
        while next < self.end {
            self.check_wanted()?;
            let before = next;
            for run in self.store.read(self.id, next, PIECE_BYTES)? {
                for event in run.decode()? {
                    if event.seq >= before && event.seq < self.end && !each(event)? {
                        return Ok(());
                    }
                }
                next = run.next_seq();
            }
            if next == before {
                return Err(error::corrupt(next));
            }
        }
        for event in self.closers.iter().filter(|event| event.seq >= from) {
            if !each(event.clone())? {
                break;
            }
        }
        Ok(())
    }

    /// The events before `before`, newest first, until `each` wants no more.
    pub(in crate::service) fn backward(
        &self,
        before: Seq,
        mut each: impl FnMut(&Event) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        for event in self.closers.iter().rev().filter(|event| event.seq < before) {
            if !each(event)? {
                return Ok(());
            }
        }
        let (mut before, mut span) = (before.min(self.end), SPAN_FIRST);
        while before > Seq::ZERO {
            self.check_wanted()?;
            let from = Seq::saturating(before.get().saturating_sub(span));
            let Some(piece) = self.piece(from, before)? else {
                span = (span / 4).max(1);
                continue;
            };
            for event in piece.iter().rev() {
                if !each(event)? {
                    return Ok(());
                }
            }
            before = piece.first().map_or(Seq::ZERO, |event| event.seq);
            span = (span * 2).min(SPAN_MAX);
        }
        Ok(())
    }

    /// The events from `from`, or somewhat earlier, to `before`; `None` if they are too many bytes to hold at once. One
    /// event is never too large.
    fn piece(&self, from: Seq, before: Seq) -> Result<Option<Vec<Event>>, Error> {
        let (mut events, mut next, mut bytes): (Vec<Event>, _, _) = (Vec::new(), from, 0);
        while next < before {
            let start = next;
            for run in self.store.read(self.id, next, PIECE_BYTES)? {
                if run.first_seq >= before {
                    break;
                }
                bytes += run.events.len();
                if bytes > PIECE_BYTES && before.get() - from.get() > 1 && run.next_seq() < before {
                    return Ok(None);
                }
                next = run.next_seq();
                events.extend(run.decode()?.into_iter().filter(|event| event.seq < before));
            }
            if next == start {
                return Err(error::corrupt(next));
            }
        }
        Ok(Some(events))
    }

    /// The events of these seqs, which must ascend. Their data is copied, so that no more than that stays in memory.
    pub(super) fn events(&self, seqs: &[Seq]) -> Result<Vec<Event>, Error> {
        let mut events = Vec::with_capacity(seqs.len());
        let mut wanted = seqs.iter().copied().peekable();
        while let Some(&seq) = wanted.peek() {
            self.check_wanted()?;
            if let Some(closer) = self.closers.iter().find(|closer| closer.seq == seq) {
                events.push(closer.clone());
                wanted.next();
                continue;
            }
            let before = events.len();
            for run in self.store.read(self.id, seq, LOOKUP_BYTES)? {
                if wanted.peek().is_none_or(|seq| run.next_seq() <= *seq) {
                    continue;
                }
                for event in run.decode()? {
                    if wanted.next_if_eq(&event.seq).is_some() {
                        events.push(owned(event));
                    }
                }
            }
            if events.len() == before {
                return Err(error::corrupt(seq));
            }
        }
        Ok(events)
    }

    /// One event; `None` at or past the end.
    pub(super) fn event(&self, seq: Seq) -> Result<Option<Event>, Error> {
        if seq >= self.closed_end() {
            return Ok(None);
        }
        Ok(self.events(&[seq])?.pop())
    }

    /// What a fold needs to know of an event that a later one rewrites.
    pub(in crate::service) fn original(&self, seq: Seq) -> Original {
        if self.is_trusted {
            return Original::Admitted;
        }
        match self.event(seq) {
            Ok(Some(event)) => Original::of(&event),
            Ok(None) | Err(_) => Original::Missing,
        }
    }

    /// What is open at the end: whatever came before the last turn bracket does not matter.
    pub(in crate::service) fn tail(&self) -> Result<Tail, Error> {
        Ok(self.tail_within(u64::MAX)?.unwrap_or_default())
    }

    /// The same; `None` if the last turn bracket is not among the last `events_max` events.
    pub(super) fn tail_within(&self, events_max: u64) -> Result<Option<Tail>, Error> {
        let (mut start, mut is_found) = (self.end, false);
        self.backward(self.end, |event| {
            start = event.seq;
            is_found = matches!(&*event.body.kind, TURN_START | TURN_END);
            Ok(!is_found && self.end.get() - start.get() < events_max)
        })?;
        if !is_found && start > Seq::ZERO {
            return Ok(None);
        }
        let mut tail = Tail::default();
        self.forward(start, |event| {
            tail.apply(&event);
            Ok(true)
        })?;
        Ok(Some(tail))
    }

    fn check_wanted(&self) -> Result<(), Error> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(Error::new(Reason::Draining, "the caller is gone"));
        }
        Ok(())
    }
}

/// The event with data of its own: what is read in pieces shares the piece.
pub(super) fn owned(mut event: Event) -> Event {
    event.body.data = bytes::Bytes::copy_from_slice(&event.body.data);
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Chain, event};
    use crate::model::{Header, Incarnation, NewEvent, Profile, SessionKey};
    use crate::store::memory::MemoryStore;
    use crate::store::{Birth, Change, Run};

    /// A log of runs of these sizes; every tenth event is large.
    fn log(sizes: &[u64]) -> Log {
        let store = MemoryStore::new();
        let id = store.allot();
        let key = SessionKey::new("default", "s").unwrap();
        let birth = Birth { key, incarnation: Incarnation([0; 16]), profile: Profile::Raw, header: Header::default() };
        store.commit(&[Change::Create { log: id, birth: Arc::new(birth) }], 0).unwrap();
        let mut next = 0;
        for size in sizes {
            let mut events = Vec::new();
            for seq in next..next + size {
                let large = if seq % 10 == 0 { "x".repeat(200_000) } else { String::new() };
                let kind = if seq == 7 { TURN_START } else { "note" };
                let body = NewEvent {
                    time_ms: 0,
                    kind: kind.into(),
                    data: format!("{{\"turn\":1,\"x\":\"{large}\"}}").into(),
                    ignorable: false,
                    surface_op: None,
                    source_event_seqs: None,
                };
                event::encode(Seq::saturating(seq), &body, &mut events);
            }
            let first_seq = Seq::saturating(next);
            let run = Run { first_seq, count: *size as u32, link: 0, chain: Chain::START, events: events.into() };
            store.commit(&[Change::Append { log: id, run }], 0).unwrap();
            next += size;
        }
        let store: Arc<dyn Store> = Arc::new(store);
        Log::new(&store, (id, Seq::saturating(next)), true)
    }

    #[test]
    fn both_directions_give_every_event_once_whatever_the_runs_and_the_sizes() {
        for sizes in [&[1; 150][..], &[150], &[3, 1, 70, 1, 1, 60, 14], &[]] {
            let log = log(sizes);
            let end: u64 = sizes.iter().sum();
            for bound in [0, 1, 9, 10, 11, 75, end].map(|bound| bound.min(end)) {
                let (mut forward, mut backward) = (Vec::new(), Vec::new());
                log.forward(Seq::saturating(bound), |event| {
                    forward.push(event.seq.get());
                    Ok(true)
                })
                .unwrap();
                log.backward(Seq::saturating(bound), |event| {
                    backward.push(event.seq.get());
                    Ok(true)
                })
                .unwrap();
                assert_eq!(forward, (bound..end).collect::<Vec<_>>());
                assert_eq!(backward, (0..bound).rev().collect::<Vec<_>>());
            }
            let wanted: Vec<_> = (0..end).filter(|seq| seq % 7 < 2).map(Seq::saturating).collect();
            let found: Vec<_> = log.events(&wanted).unwrap().iter().map(|event| event.seq).collect();
            assert_eq!(found, wanted);
            assert_eq!(log.event(Seq::saturating(end)).unwrap(), None);
            let open = log.tail().unwrap().open_turn().map(|turn| turn.since.get());
            assert_eq!(open, (end > 7).then_some(7));
        }
    }

    #[test]
    fn a_fold_that_nobody_waits_for_stops() {
        let log = log(&[20]);
        drop(log.watch());
        assert!(log.forward(Seq::ZERO, |_| Ok(true)).is_err());
    }
}
