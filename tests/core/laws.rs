//! Laws that hold for every fold, over logs with payloads that no reader expects.

use proptest::prelude::*;
use quipu::model::{Event, Seq, json};
use quipu::replay::assemble::Assembler;
use quipu::replay::attempts::{Attempts, UsageTotals};
use quipu::replay::cut::{CutAt, CutSearch};
use quipu::replay::fork::{ForkAt, Stem, cut};
use quipu::replay::history::{PageRequest, page, results_without_call};
use quipu::replay::projection::Projection;
use quipu::replay::stats::Stats;
use quipu::replay::text::semantic_text;
use quipu::replay::trace::{records, trace, window};

use crate::given::any_log;

/// The state of every fold, as text.
#[derive(Clone, Debug, Default)]
struct Folds {
    attempts: Attempts,
    stats: Stats,
    stem: Stem,
    projection: Projection,
}

impl Folds {
    fn apply(&mut self, event: &Event) {
        self.attempts.apply(event);
        self.stats.apply(event);
        self.stem.apply(event);
        self.projection.apply(event);
    }
}

fn assembled(events: &[Event]) -> Vec<String> {
    let mut assembler = Assembler::default();
    for event in events {
        // A chunk that cannot be folded changes nothing.
        let _ = assembler.apply_event(event);
    }
    let mut texts = assembler.interrupted_blocks();
    texts.extend(assembler.blocks().unwrap_or_default());
    texts.extend(assembler.replay_state().unwrap_or_default());
    texts.extend(assembler.usage().map(str::to_owned));
    texts.push(assembler.finish().to_owned());
    texts
}

proptest! {
    #[test]
    fn no_payload_breaks_a_fold(log in any_log(), n in 0..70u64) {
        let seq = Seq::new(n).unwrap();
        for text in assembled(&log) {
            prop_assert_eq!(json::check(text.as_bytes()), Ok(()), "{}", text);
        }
        for at in [ForkAt::Head, ForkAt::LastTurn, ForkAt::Inclusive(seq), ForkAt::Anchor(seq)] {
            if let Ok(cut) = cut(&log, at) {
                prop_assert!(cut.seed_length.get() <= log.len() as u64);
            }
        }
        let _ = (records(&log), trace(&log, seq), window(&log, seq, (3, 3)));
        prop_assert!(log.iter().filter_map(semantic_text).all(|text| !text.is_empty()));
        results_without_call(page(&log, PageRequest { messages_max: n, ..PageRequest::default() }).of(&log));
    }

    /// From the end of a log the same boundaries are found as from its start.
    #[test]
    fn a_cut_found_backwards_is_the_cut(log in any_log(), n in 0..70u64) {
        let search = |at, end: usize| {
            let mut search = CutSearch::new(at, Seq::new(end as u64).unwrap());
            let _ = log[..end].iter().rev().all(|event| search.apply(event));
            search.cut()
        };
        prop_assert_eq!(search(CutAt::End, log.len()), cut(&log, ForkAt::Head));
        prop_assert_eq!(search(CutAt::LastTurn, log.len()), cut(&log, ForkAt::LastTurn));
        if n < log.len() as u64 {
            let inclusive = cut(&log, ForkAt::Inclusive(Seq::new(n).unwrap()));
            prop_assert_eq!(search(CutAt::End, n as usize + 1), inclusive);
        }
    }

    /// What a checkpoint keeps is all that a fold needs: it goes on from a copy as it would have gone on.
    #[test]
    fn folds_go_on_from_a_checkpoint(log in any_log(), at in 0..60usize) {
        let (mut whole, mut first) = (Folds::default(), Folds::default());
        let at = at.min(log.len());
        for event in &log {
            whole.apply(event);
        }
        for event in &log[..at] {
            first.apply(event);
        }
        let mut second = first.clone();
        let asked = (first.projection.nodes(), first.stats.figures());
        for event in &log[at..] {
            second.apply(event);
        }
        prop_assert_eq!(format!("{second:?}"), format!("{whole:?}"));
        prop_assert_eq!(asked, (first.projection.nodes(), first.stats.figures()));
        let own = UsageTotals::since(Seq::ZERO, whole.attempts.all());
        let late = UsageTotals::since(Seq::new(at as u64).unwrap(), whole.attempts.all());
        prop_assert!(late.committed.input <= own.committed.input);
    }
}
