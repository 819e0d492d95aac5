//! The checker itself: it takes what keeps the rules, and names the rule that a planted violation breaks.

mod model;

use std::collections::BTreeSet;

use model::{Model, Random, draw, marker};
use quipu::model::{Event, NewEvent, Seq};

use crate::checker::{Ask, Call, Fork, History, Mark, Outcome, Owned, Refusal, Seen, Shown, chains, check, digest};

/// A history made call by call, to be falsified.
struct Plot {
    model: Model,
    random: Random,
    ops: u64,
}

/// Longer than any plot.
const LONG: u64 = 1_000_000;

impl Plot {
    fn new() -> Self {
        Self { model: Model::new(), random: Random(7), ops: 0 }
    }

    fn append(&mut self, process: u32, epoch: Option<u64>, count: u64) -> usize {
        self.append_as(process, epoch, (count, true))
    }

    fn append_as(&mut self, process: u32, epoch: Option<u64>, (count, is_durable): (u64, bool)) -> usize {
        self.ops += 1;
        let events = self.model.batch(self.ops, count, &mut self.random);
        let (op, first_seq, digests) = (self.ops, self.model.next_seq(), events.iter().map(digest).collect());
        self.model.call(process, Ask::Append { op, epoch, first_seq, events: digests, is_durable }, &events)
    }

    fn ask(&mut self, process: u32, ask: Ask) -> usize {
        self.model.call(process, ask, &[])
    }

    /// Reserves and publishes.
    fn take(&mut self, process: u32, take_over: bool) -> usize {
        let at = self.ask(process, Ask::Prepare { ttl: LONG, take_over });
        let epoch = self.epoch(at);
        self.ask(process, Ask::Publish { epoch });
        at
    }

    fn epoch(&self, at: usize) -> u64 {
        self.model.calls[at].shown().unwrap().owner.unwrap().epoch
    }

    fn revision(&mut self) -> [u8; 16] {
        let at = self.ask(9, Ask::Get);
        self.model.calls[at].shown().unwrap().mark.as_ref().unwrap().revision
    }

    fn history(self) -> History {
        let history = self.model.history();
        assert!(check(&history).is_ok(), "before it is falsified: {:?}", check(&history));
        history
    }
}

fn shown(call: &mut Call) -> &mut Shown {
    match &mut call.outcome {
        Outcome::Ok(shown) | Outcome::Refused(_, shown) => shown,
        Outcome::Unknown => panic!("nothing was shown"),
    }
}

fn mark(call: &mut Call) -> &mut Mark {
    shown(call).mark.as_mut().unwrap()
}

/// Numbers and chain as they follow from the events, so that nothing but the planted violation is seen.
fn seal(history: &mut History) {
    for (seq, event) in (0..).zip(&mut history.log.events) {
        event.seq = Seq::new(seq).unwrap();
    }
    let chains = chains(&history.log.events);
    history.log.chain = *chains.last().unwrap();
    for call in &mut history.calls {
        if let Outcome::Ok(Shown { mark: Some(mark), .. }) | Outcome::Refused(_, Shown { mark: Some(mark), .. }) =
            &mut call.outcome
            && let Some(chain) = chains.get(mark.next_seq as usize)
        {
            mark.chain = *chain;
        }
    }
}

fn red(history: &History, rule: u8) {
    let violations = check(history).expect_err("nothing was seen");
    assert!(violations.iter().any(|found| found.rule == rule), "not rule {rule}: {violations:#?}");
    println!("{}", violations.iter().find(|found| found.rule == rule).unwrap().text);
}

/// Red, and by this rule only.
fn red_alone(history: &History, rule: u8) {
    red(history, rule);
    let rules: BTreeSet<_> = check(history).unwrap_err().iter().map(|found| found.rule).collect();
    assert_eq!(rules, [rule].into(), "{:#?}", check(history));
}

fn foreign(text: &str) -> NewEvent {
    NewEvent { kind: "note".into(), data: format!("\"{text}\"").into(), ..marker() }
}

#[test]
fn histories_that_keep_the_rules_pass_whatever_overlaps() {
    let mut total = Seen::default();
    for seed in 0..300 {
        let history = draw(seed, 300, 8);
        let seen = check(&history).unwrap_or_else(|violations| panic!("seed {seed}: {violations:#?}"));
        total.appends += seen.appends;
        total.unknown += seen.unknown;
        total.unknown_stored += seen.unknown_stored;
        total.fenced += seen.fenced;
        total.fenced_stored += seen.fenced_stored;
        total.epochs += seen.epochs;
        total.repairs += seen.repairs;
        total.reads += seen.reads;
        total.forks += seen.forks;
        total.accepted += seen.accepted;
        total.accepted_lost += seen.accepted_lost;
    }
    println!("{total:?}");
    let all = [total.appends, total.unknown, total.unknown_stored, total.fenced, total.fenced_stored, total.epochs];
    let more = [total.repairs, total.reads, total.forks, total.accepted, total.accepted_lost];
    assert!(all.iter().chain(&more).all(|count| *count > 0), "{total:?}");
}

#[test]
fn rule_1_an_acknowledged_append_that_is_lost_is_seen() {
    let mut plot = Plot::new();
    plot.append(1, None, 2);
    let lost = plot.append(2, None, 2);
    let mut history = plot.history();
    history.log.events.truncate(2);
    seal(&mut history);
    red(&history, 1);
    // One that was fenced and heard that it is stored is as good as acknowledged.
    let told = shown(&mut history.calls[lost]).clone();
    history.calls[lost].outcome = Outcome::Refused(Refusal::Fenced { committed: Some(true) }, told);
    red(&history, 1);
}

#[test]
fn rule_2_an_event_that_nobody_wrote_or_whose_append_was_refused_is_seen() {
    let mut plot = Plot::new();
    let refused = plot.append(1, None, 1);
    let history = plot.history();
    let mut phantom = history.clone();
    phantom.log.events.push(Event { seq: Seq::ZERO, body: foreign("nobody's") });
    seal(&mut phantom);
    red_alone(&phantom, 2);
    for refusal in [Refusal::Other, Refusal::Conflict, Refusal::Fenced { committed: Some(false) }] {
        let mut wrong = history.clone();
        wrong.calls[refused].outcome = Outcome::Refused(refusal, Shown::default());
        red_alone(&wrong, 2);
        // That an attempt before it is unknown does not help.
        let unknown = Call { outcome: Outcome::Unknown, ..wrong.calls[refused].clone() };
        wrong.calls.insert(0, unknown);
        assert_eq!(check(&wrong).is_ok(), refusal == Refusal::Other);
    }
}

#[test]
fn rule_3_an_append_that_is_stored_twice_in_half_or_elsewhere_is_seen() {
    let mut plot = Plot::new();
    plot.append(1, None, 3);
    plot.append(2, None, 2);
    let history = plot.history();
    let again: Vec<_> = history.log.events[3..].to_vec();
    let mut twice = history.clone();
    twice.log.events.extend(again);
    seal(&mut twice);
    red_alone(&twice, 3);
    let mut half = history.clone();
    half.log.events.remove(2);
    seal(&mut half);
    red(&half, 3);
    let mut elsewhere = history.clone();
    elsewhere.log.events.rotate_left(3);
    seal(&mut elsewhere);
    red(&elsewhere, 3);
}

#[test]
fn rule_4_a_wrong_number_and_a_wrong_chain_are_seen() {
    let mut plot = Plot::new();
    let at = plot.append(1, None, 3);
    let history = plot.history();
    let mut gap = history.clone();
    gap.log.events[2].seq = Seq::new(7).unwrap();
    gap.log.chain = *chains(&gap.log.events).last().unwrap();
    red_alone(&gap, 4);
    let mut chain = history.clone();
    chain.log.chain[0] ^= 1;
    red_alone(&chain, 4);
    let mut told = history.clone();
    mark(&mut told.calls[at]).chain[0] ^= 1;
    red_alone(&told, 4);
}

#[test]
fn rule_5_an_append_that_stands_before_one_that_had_returned_is_seen() {
    let mut plot = Plot::new();
    let (first, second) = (plot.append(1, None, 1), plot.append(2, None, 1));
    let mut history = plot.history();
    history.log.events.swap(0, 1);
    for (at, seq) in [(first, 1), (second, 0)] {
        let Ask::Append { first_seq, .. } = &mut history.calls[at].ask else { panic!() };
        *first_seq = seq;
    }
    seal(&mut history);
    red_alone(&history, 5);
}

#[test]
fn rule_6_a_read_that_is_behind_what_was_told_is_seen() {
    let mut plot = Plot::new();
    plot.append(1, None, 2);
    plot.append(1, None, 1);
    let (read, get) = (plot.ask(2, Ask::Read { from: 0 }), plot.ask(2, Ask::Get));
    let history = plot.history();
    let mut short = history.clone();
    shown(&mut short.calls[read]).events.as_mut().unwrap().pop();
    red_alone(&short, 6);
    let mut back = history.clone();
    mark(&mut back.calls[get]).durable_next_seq = 2;
    red_alone(&back, 6);
}

#[test]
fn rule_7_a_read_that_is_no_slice_of_the_log_is_seen() {
    let mut plot = Plot::new();
    plot.append(1, None, 3);
    let read = plot.ask(2, Ask::Read { from: 1 });
    let mut history = plot.history();
    shown(&mut history.calls[read]).events.as_mut().unwrap().swap(0, 1);
    red_alone(&history, 7);
}

#[test]
fn rule_9_an_event_of_an_old_epoch_behind_one_of_a_new_one_is_seen() {
    let mut plot = Plot::new();
    plot.take(1, false);
    let first = plot.append(1, Some(1), 1);
    plot.take(2, true);
    let second = plot.append(2, Some(2), 1);
    let history = plot.history();
    // As if the fence were before the order of the commits.
    let mut late = history.clone();
    let batch = late.log.events[0].body.clone();
    late.log.events.push(Event { seq: Seq::ZERO, body: batch });
    late.log.events.remove(0);
    for (at, seq) in [(first, late.log.events.len() as u64 - 1), (second, 0)] {
        let Ask::Append { first_seq, .. } = &mut late.calls[at].ask else { panic!() };
        *first_seq = seq;
    }
    seal(&mut late);
    red(&late, 9);
    // As if there were none: it got through after the other had been told that it has the session.
    let mut through = history.clone();
    (through.calls[first].invoked, through.calls[first].returned) = (LONG, LONG + 1);
    red(&through, 9);
}

#[test]
fn rule_9_an_old_event_behind_the_end_that_a_grant_told_is_seen() {
    let mut plot = Plot::new();
    plot.take(1, false);
    let first = plot.append(1, Some(1), 1);
    let second = plot.take(2, true);
    let mut history = plot.history();
    // The grant and the append overlap: only where they stand tells.
    let (told, returned) = (shown(&mut history.calls[0]).clone(), history.calls[second].returned);
    history.calls[first].returned = returned;
    shown(&mut history.calls[second]).mark = told.mark;
    shown(&mut history.calls[second]).repaired = 0;
    red(&history, 9);
}

#[test]
fn rule_9_an_epoch_that_is_handed_out_twice_or_falls_or_is_skipped_is_seen() {
    let mut plot = Plot::new();
    plot.take(1, false);
    let second = plot.take(2, true);
    let get = plot.ask(3, Ask::Get);
    let history = plot.history();
    let mut twice = history.clone();
    shown(&mut twice.calls[second]).owner.as_mut().unwrap().epoch = 1;
    red(&twice, 9);
    let mut falls = history.clone();
    shown(&mut falls.calls[get]).owner = Some(Owned { epoch: 1, holder: 1 });
    red_alone(&falls, 9);
    let mut skipped = history.clone();
    skipped.calls.truncate(second + 1);
    shown(&mut skipped.calls[second]).owner.as_mut().unwrap().epoch = 3;
    red_alone(&skipped, 9);
    skipped.calls.push(Call { invoked: 0, outcome: Outcome::Unknown, ..skipped.calls[second].clone() });
    assert!(check(&skipped).is_ok(), "a call of which nothing is known may have got it");
}

#[test]
fn rule_9_two_holders_of_an_epoch_are_seen() {
    let mut plot = Plot::new();
    plot.take(1, false);
    let (append, get) = (plot.append(1, Some(1), 1), plot.ask(3, Ask::Get));
    let history = plot.history();
    let mut other = history.clone();
    other.calls[append].process = 2;
    red_alone(&other, 9);
    let mut other = history.clone();
    shown(&mut other.calls[get]).owner.as_mut().unwrap().holder = 2;
    red_alone(&other, 9);
    let mut early = history.clone();
    (early.calls[append].invoked, early.calls[append].returned) = (0, 0);
    red(&early, 9);
}

#[test]
fn rule_9_a_session_that_is_handed_out_while_its_lease_runs_is_seen() {
    let mut plot = Plot::new();
    plot.take(1, false);
    plot.append(1, Some(1), 1);
    let second = plot.take(2, true);
    let history = plot.history();
    let mut granted = history.clone();
    let Ask::Prepare { take_over, .. } = &mut granted.calls[second].ask else { panic!() };
    *take_over = false;
    red_alone(&granted, 9);
    // Not when it was given back, and not when the lease may have run out.
    let mut over = granted.clone();
    over.calls[second + 1].returned = LONG * 3;
    (over.calls[second].invoked, over.calls[second].returned) = (LONG * 2, LONG * 2);
    assert!(check(&over).is_ok(), "{:?}", check(&over));
    let mut plot = Plot::new();
    plot.take(1, false);
    plot.ask(1, Ask::Release { epoch: 1 });
    plot.take(2, false);
    plot.history();
}

#[test]
fn rule_9_what_nobody_writes_while_somebody_has_the_session_is_seen() {
    let mut plot = Plot::new();
    plot.take(1, false);
    plot.append(1, Some(1), 1);
    let second = plot.append(1, Some(1), 1);
    plot.append(1, Some(1), 1);
    let mut history = plot.history();
    let Ask::Append { epoch, .. } = &mut history.calls[second].ask else { panic!() };
    *epoch = None;
    red_alone(&history, 9);
}

#[test]
fn rule_10_a_revision_that_a_read_changes_or_that_stands_for_two_logs_is_seen() {
    let mut plot = Plot::new();
    let first = plot.append(1, None, 1);
    let (inspect, second) = (plot.ask(2, Ask::Inspect), plot.append(1, None, 1));
    let history = plot.history();
    let mut changed = history.clone();
    mark(&mut changed.calls[inspect]).revision[0] ^= 1;
    red_alone(&changed, 10);
    let mut same = history.clone();
    let revision = mark(&mut same.calls[first]).revision;
    mark(&mut same.calls[second]).revision = revision;
    red_alone(&same, 10);
}

/// A plot whose log ends in an open turn.
fn open() -> Plot {
    let mut plot = Plot::new();
    loop {
        plot.append(1, None, 1);
        let tail = quipu::replay::Tail::from_events(&plot.model.log().to_vec());
        let started: Vec<_> = tail.pending().map(|call| call.call_seq.is_some()).collect();
        if started.contains(&true) && started.contains(&false) {
            return plot;
        }
    }
}

#[test]
fn rule_10_a_repair_of_another_revision_than_was_seen_is_seen() {
    let mut plot = open();
    let expected = plot.revision();
    let repair = plot.ask(2, Ask::Repair { expected, epoch: None });
    let mut history = plot.history();
    let Ask::Repair { expected, .. } = &mut history.calls[repair].ask else { panic!() };
    expected[0] ^= 1;
    red_alone(&history, 10);
}

#[test]
fn rule_11_a_repair_that_invents_is_half_or_is_lost_is_seen() {
    let plot = open();
    let closed = plot.model.next_seq() as usize;
    let mut plot = plot;
    let load = plot.ask(2, Ask::Load);
    let history = plot.history();
    assert!(check(&history).unwrap().repairs == 1);
    let falsified = |change: &dyn Fn(&mut Vec<Event>)| {
        let mut wrong = history.clone();
        change(&mut wrong.log.events);
        seal(&mut wrong);
        red(&wrong, 11);
    };
    falsified(&|events| events[closed].body.time_ms += 1);
    falsified(&|events| {
        let text = String::from_utf8(events[closed].body.data.to_vec()).unwrap();
        events[closed].body.data = text.replace("\"isError\":true,", "").into();
    });
    falsified(&|events| events.swap(closed, closed + 1));
    falsified(&|events| drop(events.pop()));
    falsified(&|events| events.truncate(closed));
    let mut both = history.clone();
    both.calls.push(both.calls[load].clone());
    red(&both, 11);
    // Without the call it is nobody's: a phantom.
    let mut nobody = history.clone();
    nobody.calls.remove(load);
    red_alone(&nobody, 2);
    nobody.calls.push(Call { outcome: Outcome::Unknown, ..history.calls[load].clone() });
    assert!(check(&nobody).is_ok(), "a load of which nothing is known may have made it");
}

#[test]
fn rule_12_a_child_that_is_not_its_parents_beginning_is_seen() {
    let mut plot = Plot::new();
    plot.append(1, None, 3);
    plot.ask(2, Ask::Load);
    let fork = plot.ask(2, Ask::Fork { child: 5, epoch: None });
    plot.append(1, None, 2);
    let history = plot.history();
    let length = shown(&mut history.calls[fork].clone()).fork.clone().unwrap().seed_length as usize;
    let falsified = |change: &dyn Fn(&mut History)| {
        let mut wrong = history.clone();
        change(&mut wrong);
        if let Some(log) = &mut wrong.children[0].found {
            log.chain = *chains(&log.events).last().unwrap();
        }
        red_alone(&wrong, 12);
    };
    falsified(&|wrong| wrong.children[0].found.as_mut().unwrap().events[1].body.time_ms += 1);
    falsified(&|wrong| wrong.children[0].found = None);
    falsified(&|wrong| {
        let later = wrong.log.events[length].clone();
        wrong.children[0].found.as_mut().unwrap().events[length] = later;
    });
    falsified(&|wrong| {
        let fork = shown(&mut wrong.calls[fork]).fork.as_mut().unwrap();
        *fork = Fork { chain: [0; 32], ..fork.clone() };
    });
    // A boundary in an open turn: the first event opened it.
    let opener = history.log.events.iter().position(|event| &*event.body.kind == "turn/start").unwrap() + 1;
    let chain = chains(&history.log.events)[opener];
    falsified(&|wrong| {
        shown(&mut wrong.calls[fork]).fork = Some(Fork { seed_length: opener as u64, chain });
        let child = wrong.children[0].found.as_mut().unwrap();
        child.events.truncate(opener);
    });
}

#[test]
fn rule_13_what_was_flushed_and_is_lost_is_seen() {
    let mut plot = Plot::new();
    plot.append(1, None, 1);
    let accepted = plot.append_as(1, None, (1, false));
    let flush = plot.ask(1, Ask::Flush { epoch: None });
    let history = plot.history();
    let mut lost = history.clone();
    lost.log.events.truncate(1);
    seal(&mut lost);
    red(&lost, 13);
    // Without the flush nothing was promised; nor by one of another life of the server.
    lost.calls[flush].life = 1;
    mark(&mut lost.calls[flush]).durable_next_seq = 1;
    assert!(check(&lost).is_ok(), "{:?}", check(&lost));
    mark(&mut lost.calls[accepted]).durable_next_seq = 2;
    red(&lost, 13);
}

/// Whether there is an order of these appends and grants, all that were answered and some of the others, that the log
/// and the clock allow: tries all.
fn oracle(history: &History) -> bool {
    fn go(history: &History, done: &mut Vec<bool>, at: usize, epoch: u64) -> bool {
        let log = &history.log.events;
        let open = |done: &[bool], call: usize| !done[call] && !matches!(history.calls[call].outcome, Outcome::Unknown);
        if at == log.len() && !(0..done.len()).any(|call| open(done, call)) {
            return true;
        }
        let first_return =
            (0..done.len()).filter(|call| open(done, *call)).map(|call| history.calls[call].returned).min();
        for call in 0..done.len() {
            if done[call] || first_return.is_some_and(|first| history.calls[call].invoked > first) {
                continue;
            }
            let (next, now) = match &history.calls[call].ask {
                Ask::Append { epoch: own, first_seq, events, .. } => {
                    let fits = log.get(at..at + events.len()).is_some_and(|stored| {
                        stored.iter().zip(events).all(|(stored, event)| digest(&stored.body) == *event)
                    });
                    if *first_seq != at as u64 || own.unwrap_or(0) != epoch || !fits {
                        continue;
                    }
                    (at + events.len(), epoch)
                }
                Ask::Prepare { .. } => {
                    if history.calls[call].shown().unwrap().owner.unwrap().epoch != epoch + 1 {
                        continue;
                    }
                    (at, epoch + 1)
                }
                _ => unreachable!(),
            };
            done[call] = true;
            if go(history, done, next, now) {
                return true;
            }
            done[call] = false;
        }
        false
    }
    go(history, &mut vec![false; history.calls.len()], 0, 0)
}

/// Some appends and grants at random moments, and a log of some of them in some order.
fn small(random: &mut Random) -> History {
    let mut history = History::default();
    let (mut next_epoch, mut next_seq) = (0, 0);
    let mut log: Vec<(u64, NewEvent)> = Vec::new();
    let mut now = 0;
    for op in 0..2 + random.below(5) {
        now += random.below(8);
        let (invoked, returned) = (now, now + 1 + random.below(12));
        let call = if random.below(3) == 0 {
            next_epoch += 1;
            let owner = Some(Owned { epoch: next_epoch, holder: next_epoch as u32 });
            let outcome = Outcome::Ok(Shown { owner, ..Shown::default() });
            let ask = Ask::Prepare { ttl: 0, take_over: true };
            Call { process: next_epoch as u32, life: 0, invoked, returned, ask, outcome }
        } else {
            // Mostly of the epoch that is current, sometimes of another.
            let epoch = if random.below(5) == 0 { random.below(next_epoch + 1) } else { next_epoch };
            let event = foreign(&op.to_string());
            let is_unknown = random.below(4) == 0;
            let first_seq = next_seq;
            if !is_unknown || random.below(2) == 0 {
                log.push((next_seq, event.clone()));
                next_seq += 1;
            }
            let ask = Ask::Append {
                op,
                epoch: (epoch > 0).then_some(epoch),
                first_seq,
                events: vec![digest(&event)],
                is_durable: true,
            };
            let outcome = if is_unknown { Outcome::Unknown } else { Outcome::Ok(Shown::default()) };
            Call { process: epoch as u32, life: 0, invoked, returned, ask, outcome }
        };
        history.calls.push(call);
    }
    // What may be wrong: one place of the log, one moment.
    if log.len() > 1 && random.below(2) == 0 {
        let (a, b) = (random.below(log.len() as u64) as usize, random.below(log.len() as u64) as usize);
        log.swap(a, b);
        for call in &mut history.calls {
            let Ask::Append { first_seq, events, .. } = &mut call.ask else { continue };
            if let Some(at) = log.iter().position(|(_, event)| digest(event) == events[0]) {
                *first_seq = at as u64;
            }
        }
    }
    if random.below(3) == 0 {
        let at = random.below(history.calls.len() as u64) as usize;
        let call = &mut history.calls[at];
        call.invoked = random.below(now + 4);
        call.returned = call.invoked + 1 + random.below(12);
    }
    if random.below(6) == 0 {
        log.pop();
    }
    let events = log.into_iter().map(|(_, body)| body);
    history.log.events = (0..).filter_map(Seq::new).zip(events).map(|(seq, body)| Event { seq, body }).collect();
    history.log.chain = *chains(&history.log.events).last().unwrap();
    history
}

#[test]
fn on_small_histories_the_checker_says_what_trying_all_orders_says() {
    let mut random = Random(crate::setting("QUIPU_ORACLE_SEED", 1));
    let histories = crate::setting("QUIPU_ORACLE_HISTORIES", 20_000);
    let mut good = 0;
    for round in 0..histories {
        let history = small(&mut random);
        let (checked, expected) = (check(&history), oracle(&history));
        assert_eq!(checked.is_ok(), expected, "history {round}: {checked:?} {history:#?}");
        good += u64::from(expected);
    }
    println!("{histories} small histories, {good} of them good");
    assert!(good > histories / 5 && good < histories * 4 / 5);
}

#[test]
fn the_cost_of_a_check_grows_with_the_history_and_no_faster() {
    let calls = crate::setting("QUIPU_CHECKED_CALLS", 40_000) as usize;
    let time = |calls: usize| {
        let history = draw(5, calls, 8);
        let once = || {
            let start = std::time::Instant::now();
            check(&history).unwrap();
            start.elapsed()
        };
        (0..3).map(|_| once()).min().unwrap()
    };
    let (few, many) = (time(calls / 8), time(calls));
    println!("{} calls in {few:?}, {calls} in {many:?}", calls / 8);
    assert!(many < few * 8 * 4, "eight times the calls took {few:?} and {many:?}");
}
