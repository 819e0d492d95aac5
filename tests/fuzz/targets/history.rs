//! Pages of any log: contiguous, ending at their bound, tiling the log; and forks cut the same from either end.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use quipu_fuzz::Log;
use quipu_fuzz::model::Seq;
use quipu_fuzz::replay::cut::{CutAt, CutSearch};
use quipu_fuzz::replay::fork::{ForkAt, cut};
use quipu_fuzz::replay::history::{PageRequest, page, results_without_call};

#[derive(Arbitrary, Debug)]
struct Input {
    messages_max: u8,
    before_seq: Option<u8>,
    bytes_max: Option<u16>,
    whole_messages: bool,
    log: Log,
}

fuzz_target!(|input: Input| {
    let log = input.log.0;
    let request = PageRequest {
        messages_max: u64::from(input.messages_max),
        before_seq: input.before_seq.map(|seq| Seq::saturating(u64::from(seq))),
        bytes_max: input.bytes_max.map(u64::from),
        whole_messages: input.whole_messages,
    };
    let mut end = request.before_seq.map_or(log.len() as u64, |bound| bound.get().min(log.len() as u64));
    let mut next = Some(request);
    while let Some(request) = next {
        let found = page(&log, request);
        let Some((from, to)) = found.range else { break };
        assert_eq!(to.get() + 1, end, "a page ends where the one behind it starts");
        assert!(from <= to);
        assert_eq!(found.has_more, from > Seq::ZERO);
        let _ = results_without_call(found.of(&log));
        end = from.get();
        next = found.older(request);
    }
    assert_eq!(end, 0, "the pages tile the log");
    for (at, same) in [(CutAt::End, ForkAt::Head), (CutAt::LastTurn, ForkAt::LastTurn)] {
        let mut search = CutSearch::new(at, Seq::saturating(log.len() as u64));
        let _ = log.iter().rev().all(|event| search.apply(event));
        assert_eq!(search.cut(), cut(&log, same));
    }
});
