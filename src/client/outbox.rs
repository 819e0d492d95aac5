//! The events that a writer must keep: what the server has not called durable.
//!
//! A queue of events from the durable mark on, with three marks in it: what is confirmed (accepted by the server as ours),
//! what is sent, and where it ends. Everything is decided here, from answers alone: no clock, no call, no task. The
//! invariants: `durable <= confirmed <= sent <= next`; an event leaves the queue only when it is durable; a batch that was
//! sent once is sent again with the same bounds, so that the server can say whether it has it.

use std::collections::VecDeque;

use super::{AckLevel, Advice, Error, Head};
use crate::codec::{Chain, event};
use crate::model::{Event, Incarnation, NewEvent, Seq};

/// What a batch may hold, and the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) events: usize,
    pub(super) bytes: usize,
    pub(super) batch_events: usize,
    pub(super) batch_bytes: usize,
}

/// The place of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) next: u64,
}

/// What an answered append said.
#[derive(Clone, Debug)]
pub(super) struct Ack {
    /// Everything below is on stable storage.
    pub(super) durable_next_seq: Seq,
    /// The head, from calls that tell it.
    pub(super) head: Option<Head>,
    pub(super) level: AckLevel,
    pub(super) deduplicated: bool,
}

/// What to do after a failure.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Send again after a pause.
    Pause,
    /// Send again at once: the marks have moved.
    Resend,
    /// The same, and the server has less than it had confirmed.
    Rewind,
    /// Fenced, but a later batch may have landed: ask for that, too.
    Probe,
    /// It is over.
    Stop(Box<Error>),
}

/// An event that waits, with the chain after it.
#[derive(Debug)]
struct Entry {
    event: NewEvent,
    weight: usize,
    chain: Chain,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Outbox {
    bounds: Bounds,
    incarnation: Incarnation,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Seq of the first entry: everything below is durable.
    durable: u64,
    /// The chain before the first entry.
    chain: Chain,
    /// Everything below was confirmed.
    confirmed: u64,
    /// The next to be sent.
    sent: u64,
    /// Ends of the batches that were ever sent and are not durable.
    cuts: VecDeque<u64>,
    /// Set by a fence: its refusal.
    fence: Option<Box<Error>>,
}

impl Outbox {
    /// Goes on from a head; everything below its `next_seq` is somebody else's concern.
    pub(super) fn new(head: &Head, bounds: Bounds) -> Self {
        let at = head.next_seq.get();
        Self {
            bounds,
            incarnation: head.incarnation,
            entries: VecDeque::new(),
            bytes: 0,
            durable: at,
            chain: head.chain,
            confirmed: at,
            sent: at,
            cuts: VecDeque::new(),
            fence: None,
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.durable + self.entries.len() as u64
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether somebody else has the session: what was sent is asked for, one batch at a time.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.is_some()
    }

    /// Whether an event of that weight may come in; an empty queue takes any.
    pub(super) fn has_room(&self, weight: usize) -> bool {
        let is_full = self.entries.len() >= self.bounds.events || self.bytes + weight > self.bounds.bytes;
        self.entries.is_empty() || !is_full
    }

    /// Takes an event and gives its place; `None` when the log is full.
    pub(super) fn push(&mut self, event: NewEvent) -> Option<Seq> {
        let seq = Seq::new(self.next())?;
        let mut encoded = Vec::with_capacity(event.weight() + 64);
        event::encode(seq, &event, &mut encoded);
        let before = self.entries.back().map_or(self.chain, |entry| entry.chain);
        let weight = event.weight();
        self.bytes += weight;
        self.entries.push_back(Entry { event, weight, chain: before.next(&encoded) });
        Some(seq)
    }

    /// The next batch to send, if there is one. Its events are shared with the queue.
    pub(super) fn take(&mut self) -> Option<(Span, Vec<NewEvent>)> {
        let limit = if self.fence.is_some() { self.cuts.back().copied().unwrap_or(self.sent) } else { self.next() };
        if self.sent >= limit {
            return None;
        }
        let first = self.sent;
        let next = self.cuts.iter().copied().find(|cut| *cut > first).unwrap_or_else(|| self.cut());
        self.sent = next;
        let events = self.entries.range(self.index(first)..self.index(next)).map(|entry| entry.event.clone()).collect();
        Some((Span { first, next }, events))
    }

    /// Cuts a new batch at `sent`.
    fn cut(&mut self) -> u64 {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.weight;
            bytes <= self.bounds.batch_bytes
        };
        let count = self.entries.range(self.index(self.sent)..).take(self.bounds.batch_events).take_while(fits);
        let next = self.sent + (count.count() as u64).max(1);
        self.cuts.push_back(next);
        next
    }

    fn index(&self, seq: u64) -> usize {
        seq.saturating_sub(self.durable) as usize
    }

    /// A batch was confirmed.
    pub(super) fn acknowledged(&mut self, span: Span, ack: &Ack) -> Result<(), Box<Error>> {
        if let Some(head) = &ack.head {
            self.check(head)?;
        }
        self.confirm(span.next);
        if ack.level == AckLevel::Durable {
            self.settle(span.next);
        }
        self.settle(ack.durable_next_seq.get().min(self.confirmed));
        Ok(())
    }

    /// Everything below `upto`, which was confirmed when the flush was sent, was flushed.
    pub(super) fn flushed(&mut self, upto: u64, head: &Head) -> Verdict {
        if head.next_seq.get() < upto {
            return self.go_back(head);
        }
        if let Err(diverged) = self.check(head) {
            return Verdict::Stop(diverged);
        }
        self.settle(head.durable_next_seq.get().min(self.confirmed));
        Verdict::Resend
    }

    /// A call that is no append was fenced, or refused for another owner.
    pub(super) fn fenced_elsewhere(&mut self, error: Error) -> Verdict {
        self.sent = self.confirmed;
        self.fence.get_or_insert_with(|| Box::new(error));
        match self.cuts.back() {
            Some(cut) if *cut > self.confirmed => Verdict::Probe,
            // Nothing that was sent is in doubt.
            _ => self.stop_fenced(true),
        }
    }

    /// A batch failed; whatever was sent after it was called back.
    pub(super) fn failed(&mut self, span: Span, error: Error) -> Verdict {
        self.sent = self.sent.min(span.first.max(self.confirmed));
        match (error.advice(), &error.detail) {
            (Advice::Again, _) => Verdict::Pause,
            (Advice::Split, _) if span.next - span.first > 1 => self.split(span),
            (Advice::Look, super::Detail::Conflict { head, first_differing_seq }) => {
                let (next, differing) = (head.next_seq.get(), first_differing_seq.map(Seq::get));
                if next < span.first {
                    return self.go_back(head);
                }
                // The stored part of the batch is ours, and the rest is new: a batch that was cut otherwise.
                if differing == Some(next) && next > span.first && next <= span.next {
                    self.confirm(next);
                    self.sent = next;
                    return Verdict::Resend;
                }
                Verdict::Stop(Box::new(error))
            }
            (Advice::Yield, detail) => {
                let has_landed = matches!(detail, super::Detail::Fenced { committed: Some(true), .. });
                self.fenced(span, has_landed, error)
            }
            _ => Verdict::Stop(Box::new(error)),
        }
    }

    /// The log ends at `next`, which is below what was sent: after a restart of the server what was only accepted is
    /// gone, and is sent again. What is there is ours, by its chain.
    fn go_back(&mut self, head: &Head) -> Verdict {
        if let Err(diverged) = self.check(head) {
            return Verdict::Stop(diverged);
        }
        let next = head.next_seq.get();
        if next < self.durable {
            let message = format!("the log ends at seq {next}, although {} was confirmed as durable", self.durable);
            return Verdict::Stop(Box::new(Error::diverged(message)));
        }
        let verdict = if next < self.confirmed { Verdict::Rewind } else { Verdict::Resend };
        self.confirmed = next.min(self.next());
        self.sent = self.confirmed;
        verdict
    }

    fn fenced(&mut self, span: Span, has_landed: bool, error: Error) -> Verdict {
        if has_landed {
            self.confirm(span.next);
            self.sent = span.next;
        }
        self.fence.get_or_insert_with(|| Box::new(error));
        if has_landed && self.cuts.back().is_some_and(|cut| *cut > span.next) {
            return Verdict::Probe;
        }
        self.stop_fenced(has_landed)
    }

    /// The end, with the refusal of the fence and whether the last batch that was sent is stored.
    fn stop_fenced(&self, has_landed: bool) -> Verdict {
        let mut refusal = self.fence.clone().unwrap_or_else(|| Box::new(Error::diverged("the writer was fenced")));
        if let super::Detail::Fenced { committed, .. } = &mut refusal.detail {
            *committed = Some(has_landed);
        }
        Verdict::Stop(refusal)
    }

    /// The server takes smaller batches only.
    fn split(&mut self, span: Span) -> Verdict {
        self.bounds.batch_events = ((span.next - span.first) / 2).max(1) as usize;
        self.bounds.batch_bytes = (self.bounds.batch_bytes / 2).max(1);
        self.cuts.retain(|cut| *cut <= self.sent);
        Verdict::Resend
    }

    /// Compares a head with what must stand there if all of it is ours.
    fn check(&self, head: &Head) -> Result<(), Box<Error>> {
        if head.incarnation != self.incarnation {
            let message = format!("the session was created anew: it is {}", head.incarnation);
            return Err(Box::new(Error::diverged(message)));
        }
        let next = head.next_seq.get();
        let ours = match next.checked_sub(self.durable) {
            Some(0) => Some(self.chain),
            Some(count) => self.entries.get(count as usize - 1).map(|entry| entry.chain),
            None => None,
        };
        match ours {
            Some(chain) if chain != head.chain => {
                let message = format!("the log holds other events than ours below seq {next}");
                Err(Box::new(Error::diverged(message)))
            }
            _ => Ok(()),
        }
    }

    fn confirm(&mut self, next: u64) {
        self.confirmed = self.confirmed.max(next);
        self.sent = self.sent.max(self.confirmed);
    }

    fn settle(&mut self, next: u64) {
        while self.durable < next {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.weight;
            self.chain = entry.chain;
            self.durable += 1;
        }
        while self.cuts.front().is_some_and(|cut| *cut <= self.durable) {
            self.cuts.pop_front();
        }
    }

    /// The events that are not known to be in the log, in order.
    pub(super) fn unconfirmed(&self) -> Vec<Event> {
        let entries = self.entries.range(self.index(self.confirmed)..);
        let seqs = (self.confirmed..).map(Seq::saturating);
        seqs.zip(entries).map(|(seq, entry)| Event { seq, body: entry.event.clone() }).collect()
    }
}
