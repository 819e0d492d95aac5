//! Model calls: the list of them, and one with its blocks.

use super::log::Log;
use super::{Ask, Basis, Depth, PageOf};
use crate::model::{Event, Seq};
use crate::replay::assemble::{Assembler, BrokenStream};
use crate::replay::attempts::{Attempt, AttemptSearch, Attempts, Outcome, is_bracket};
use crate::service::{Error, Reason, Service};

/// One model call with what its chunks add up to; texts are JSON.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// What it was made from.
    pub basis: Basis,
    /// The attempt.
    pub attempt: Attempt,
    /// The blocks, in first-seen order.
    pub blocks: Vec<String>,
    /// The last usage.
    pub usage: Option<String>,
    /// The last finish reason.
    pub finish: Option<String>,
    /// The replay state that belongs to the blocks.
    pub replay_state: Option<String>,
    /// Why blocks are missing.
    pub problem: Option<String>,
}

impl Service {
    /// The attempts that begin at or after `from`, at most `count`.
    pub async fn attempts(&self, ask: &Ask, (from, count): (Seq, usize)) -> Result<PageOf<Attempt>, Error> {
        let view = self.view(ask, Depth::Tail).await?;
        let check = view.check();
        let fold = move |log: &Log| {
            let mut attempts = Attempts::default();
            log.forward(Seq::ZERO, |event| {
                check(&event)?;
                attempts.apply(&event);
                Ok(true)
            })?;
            let mut items: Vec<Attempt> = attempts.all().iter().filter(|a| a.first_seq >= from).cloned().collect();
            let next = items.get(count).map(|attempt| attempt.first_seq);
            items.truncate(count);
            Ok((items, next))
        };
        let (items, next) = view.run(fold).await?;
        Ok(PageOf { basis: view.basis, items, next })
    }

    /// The attempt that an event is part of, with its blocks.
    pub async fn assemble(&self, ask: &Ask, seq: Seq) -> Result<Assembled, Error> {
        let view = self.view(ask, Depth::Tail).await?;
        let (basis, check) = (view.basis, view.check());
        view.run(move |log| {
            let attempt = find(log, seq)?;
            let none = || Error::new(Reason::EventNotFound, format!("seq {seq} is part of no attempt"));
            assemble(log, (basis, attempt.ok_or_else(none)?), &check)
        })
        .await
    }
}

/// The attempt that an event is part of. Reads its step.
pub(super) fn find(log: &Log, seq: Seq) -> Result<Option<Attempt>, Error> {
    if seq >= log.closed_end() {
        return Ok(None);
    }
    let mut start = Seq::ZERO;
    log.backward(Seq::saturating(seq.get() + 1), |event| {
        start = event.seq;
        Ok(!is_bracket(&event.body.kind))
    })?;
    let mut search = AttemptSearch::new(seq);
    log.forward(start, |event| Ok(search.apply(&event)))?;
    Ok(search.attempt().cloned())
}

fn assemble(
    log: &Log,
    (basis, attempt): (Basis, Attempt),
    check: &dyn Fn(&Event) -> Result<(), Error>,
) -> Result<Assembled, Error> {
    let mut assembler = Assembler::default();
    let mut broken: Option<BrokenStream> = None;
    log.forward(attempt.first_seq, |event| {
        if event.seq > attempt.last_seq {
            return Ok(false);
        }
        check(&event)?;
        broken = assembler.apply_event(&event).err();
        Ok(broken.is_none())
    })?;
    let mut problem = broken.map(|broken| broken.to_string());
    let is_cut = matches!(attempt.outcome, Outcome::Interrupted { .. });
    let blocks = match assembler.blocks() {
        // What a cut leaves for the model: text and reasoning, no call that may be incomplete.
        _ if is_cut => assembler.interrupted_blocks(),
        Ok(blocks) => blocks,
        Err(error) => {
            problem.get_or_insert_with(|| error.to_string());
            assembler.interrupted_blocks()
        }
    };
    let replay_state = if is_cut { None } else { assembler.replay_state().ok().flatten() };
    Ok(Assembled {
        basis,
        attempt,
        blocks,
        usage: assembler.usage().map(str::to_owned),
        finish: assembler.finish_kind().map(|_| assembler.finish().to_owned()),
        replay_state,
        problem,
    })
}
