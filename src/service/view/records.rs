//! Events without their payloads: lists, traces, figures.

use std::collections::HashSet;

use super::log::Log;
use super::{Ask, Basis, Depth, PageOf};
use crate::model::{Event, Seq};
use crate::replay::attempts::{Attempts, Outcome, UsageTotals};
use crate::replay::filter::{Clause, matches};
use crate::replay::stats::{Figures, Stats};
use crate::replay::trace::{EventRecord, EventTrace, Status, Tracer};
use crate::replay::vocabulary::is_surface;
use crate::service::{Error, Reason, Service};

/// Events that one page of records looks at.
const SCAN_MAX: u64 = 100_000;

/// Which records are wanted.
#[derive(Clone, Debug)]
pub struct RecordQuery {
    /// The first seq.
    pub from: Seq,
    /// Most records.
    pub count: usize,
    /// What they must fulfil.
    pub clauses: Vec<Clause>,
}

/// The figures of a log.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// What they were made from.
    pub basis: Basis,
    /// Turns, steps, times.
    pub figures: Figures,
    /// Attempts: open, committed, interrupted, retried, failed.
    pub attempts: [u64; 5],
    /// Tokens.
    pub usage: UsageTotals,
    /// Tokens of what was not inherited.
    pub own_usage: UsageTotals,
}

impl Service {
    /// A page of records, each with the bytes of its payload. Looks at a bounded number of events per page.
    pub async fn records(&self, ask: &Ask, query: RecordQuery) -> Result<PageOf<(EventRecord, usize)>, Error> {
        let mut view = self.view(ask, Depth::Folded).await?;
        let surface = view.surface().await?;
        let list = move |log: &Log| {
            let nodes: HashSet<Seq> = surface.nodes().iter().copied().collect();
            let (mut items, mut next) = (Vec::new(), None);
            let end = Seq::saturating(query.from.get().saturating_add(SCAN_MAX));
            log.forward(query.from, |event| {
                if items.len() >= query.count || event.seq >= end {
                    next = Some(event.seq);
                    return Ok(false);
                }
                let record = record(&event, &nodes);
                if matches(&event, &record, &query.clauses) {
                    items.push((record, event.body.data.len()));
                }
                Ok(true)
            })?;
            Ok((items, next))
        };
        let (items, next) = view.run(list).await?;
        Ok(PageOf { basis: view.basis, items, next })
    }

    /// What one event is linked to, and the bytes of its payload.
    pub async fn trace(&self, ask: &Ask, seq: Seq) -> Result<(Basis, EventTrace, usize), Error> {
        let view = self.view(ask, Depth::Tail).await?;
        let check = view.check();
        let trace = move |log: &Log| {
            let (mut tracer, mut bytes) = (Tracer::new(seq), 0);
            if seq >= log.closed_end() {
                return Err(Error::new(Reason::EventNotFound, format!("there is no event at seq {seq}")));
            }
            log.forward(Seq::ZERO, |event| {
                check(&event)?;
                if event.seq == seq {
                    bytes = event.body.data.len();
                }
                let applied = tracer.apply(&event, &|seq| log.original(seq));
                applied.map(|()| true).map_err(|error| Error::unreadable(event.seq, error))
            })?;
            tracer.trace().map(|trace| (trace, bytes)).ok_or_else(|| crate::service::error::corrupt(seq))
        };
        let (trace, bytes) = view.run(trace).await?;
        Ok((view.basis, trace, bytes))
    }

    /// Counts, times and tokens.
    pub async fn statistics(&self, ask: &Ask) -> Result<Statistics, Error> {
        let view = self.view(ask, Depth::Tail).await?;
        let (basis, check, inherited) = (view.basis, view.check(), view.inherited);
        let fold = move |log: &Log| {
            let (mut stats, mut attempts) = (Stats::default(), Attempts::default());
            log.forward(Seq::ZERO, |event| {
                check(&event)?;
                stats.apply(&event);
                attempts.apply(&event);
                Ok(true)
            })?;
            let mut counts = [0; 5];
            attempts.all().iter().for_each(|attempt| counts[place(attempt.outcome)] += 1);
            Ok(Statistics {
                basis,
                figures: stats.figures(),
                attempts: counts,
                usage: UsageTotals::since(Seq::ZERO, attempts.all()),
                own_usage: UsageTotals::since(inherited, attempts.all()),
            })
        };
        view.run(fold).await
    }
}

fn place(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Open => 0,
        Outcome::Committed { .. } => 1,
        Outcome::Interrupted { .. } => 2,
        Outcome::Retried => 3,
        Outcome::Failed => 4,
    }
}

/// The record of an event, given the current nodes: what may be a node and is none was shadowed.
fn record(event: &Event, nodes: &HashSet<Seq>) -> EventRecord {
    let status = match is_surface(&event.body.kind) {
        true if nodes.contains(&event.seq) => Status::Current,
        true => Status::Shadowed,
        false => Status::LogOnly,
    };
    EventRecord { seq: event.seq, kind: event.body.kind.clone(), time_ms: event.body.time_ms, status }
}
