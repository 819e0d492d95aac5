//! One walk along the final log: which call wrote what, in which order, under which epoch.

use std::collections::HashMap;

use quipu::model::Event;
use quipu::replay::Tail;
use quipu::replay::repair::closers_of;

use super::calls::Ask;
use super::{Check, Log, Piece, Time, chains, digest};

impl<'h> Check<'h> {
    /// Rules 2, 3, 4, 5, 9 and 11, along the log.
    pub(super) fn log(&mut self) {
        let log: &'h Log = &self.history.log;
        self.chains = chains(&log.events);
        if self.chains.last() != Some(&log.chain) {
            self.broken(4, "the chain of the head is not that of the events".to_owned());
        }
        for (at, event) in log.events.iter().enumerate() {
            if event.seq.get() != at as u64 {
                self.broken(4, format!("seq {} stands at place {at}", event.seq));
            }
        }
        self.take_apart();
        self.real_time();
        self.epochs_along();
    }

    /// Cuts the log into what was written by one call each.
    fn take_apart(&mut self) {
        let repairs = self.repairs();
        let mut nameless = self.history.calls.iter().filter(|call| call.may_have_repaired()).count();
        let events: &'h [Event] = &self.history.log.events;
        let (mut tail, mut at) = (Tail::default(), 0);
        let mut found = 0;
        while at < events.len() {
            let (piece, length) = match self.by_digest.get(&digest(&events[at].body)).copied() {
                Some((op, index)) => (Some(Piece::Op(op)), self.batch((op, index), at)),
                None => {
                    let closers = closers_of(&tail);
                    let is_repair = !closers.is_empty() && events[at..].starts_with(&closers);
                    let by = repairs.get(&(at as u64)).copied();
                    if !is_repair {
                        let rule = if by.is_some() { 11 } else { 2 };
                        self.broken(rule, format!("nobody wrote seq {at}, `{}`", events[at].body.kind));
                    } else if by.is_none() {
                        if nameless == 0 {
                            self.broken(2, format!("nobody repaired the log at seq {at}"));
                        }
                        nameless = nameless.saturating_sub(1);
                    }
                    found += usize::from(is_repair && by.is_some());
                    (is_repair.then_some(Piece::Repair(by)), if is_repair { closers.len() } else { 1 })
                }
            };
            self.pieces.extend(piece.map(|piece| (at as u64, piece)));
            if matches!(piece, Some(Piece::Repair(_))) {
                self.closers(&tail, &events[at..at + length]);
            }
            for event in &events[at..at + length] {
                self.balanced.push(tail.is_balanced());
                tail.apply(event);
            }
            if matches!(piece, Some(Piece::Repair(_))) && !tail.is_balanced() {
                self.broken(11, format!("a turn is open behind the repair at seq {at}"));
            }
            at += length;
        }
        self.balanced.push(tail.is_balanced());
        self.seen.repairs = found;
        if found != repairs.len() {
            self.broken(11, format!("{} repairs were acknowledged, {found} are there", repairs.len()));
        }
    }

    /// Where repairs begin that were acknowledged, and by which call.
    fn repairs(&mut self) -> HashMap<u64, usize> {
        let mut repairs = HashMap::new();
        let history = self.history;
        for (at, call) in history.calls.iter().enumerate() {
            let repaired = call.repaired();
            let mark = call.shown().and_then(|shown| shown.mark.as_ref());
            let Some(mark) = mark.filter(|_| repaired > 0) else { continue };
            if let Some(before) = repairs.insert(mark.next_seq.saturating_sub(repaired), at) {
                self.broken(11, format!("calls {before} and {at} both made the repair before seq {}", mark.next_seq));
            }
        }
        repairs
    }

    /// How many events from `at` on are this batch; a batch is whole and once.
    fn batch(&mut self, (at_op, index): (usize, usize), at: usize) -> usize {
        let events: &'h [Event] = &self.history.log.events;
        let op = &self.ops[at_op];
        let length = op.events.len();
        let whole = events.get(at..at + length);
        let is_whole = index == 0
            && whole.is_some_and(|found| found.iter().zip(op.events).all(|(event, of)| digest(&event.body) == *of));
        let (before, first_seq) = (op.placed, op.first_seq);
        if !is_whole {
            self.broken(3, format!("event {index} of append {at_op} stands at seq {at} without the rest of its batch"));
            return 1;
        }
        if let Some(before) = before {
            self.broken(3, format!("append {at_op} is stored twice: at seq {before} and {at}"));
        } else {
            self.ops[at_op].placed = Some(at as u64);
        }
        if first_seq != at as u64 {
            self.broken(3, format!("append {at_op} for seq {first_seq} is stored at {at}"));
        }
        length
    }

    /// What closers must be, said without the code that makes them.
    fn closers(&mut self, before: &Tail, closers: &[Event]) {
        let time_ms = before.last().map_or(0, |(_, time_ms)| time_ms);
        let started: Vec<bool> = before.pending().map(|call| call.call_seq.is_some()).collect();
        let mut results = started.iter();
        for event in closers {
            let body = &event.body;
            if body.time_ms != time_ms {
                self.broken(11, format!("the closer at seq {} has another time than the last event", event.seq));
            }
            if &*body.kind != "tool/result" {
                continue;
            }
            let data: serde_json::Value = serde_json::from_slice(&body.data).unwrap_or_default();
            let wanted = match results.next() {
                Some(true) => "TOOL_OUTCOME_UNKNOWN",
                Some(false) => "TOOL_NOT_STARTED",
                None => "no result",
            };
            let is_error = data["message"]["content"][0]["isError"] == true;
            if data["error"]["code"] != wanted || !is_error {
                self.broken(11, format!("the closer at seq {} should say {wanted}", event.seq));
            }
        }
        if results.next().is_some() || closers.last().is_none_or(|last| &*last.body.kind != "turn/end") {
            self.broken(11, format!("the repair of {} events leaves something open", closers.len()));
        }
    }

    /// Rule 5: what returned before another was invoked stands before it.
    fn real_time(&mut self) {
        let (mut latest, mut latest_at) = (0, 0);
        for index in 0..self.pieces.len() {
            let (at, piece) = self.pieces[index];
            let (invoked, returned) = match piece {
                Piece::Op(op) => (self.ops[op].invoked, self.ops[op].returned),
                Piece::Repair(Some(call)) => (self.history.calls[call].invoked, self.history.calls[call].returned),
                Piece::Repair(None) => (0, Time::MAX),
            };
            if returned < latest {
                self.broken(
                    5,
                    format!("seq {at} was there before seq {latest_at} was asked for, and stands behind it"),
                );
            }
            if invoked > latest {
                (latest, latest_at) = (invoked, at);
            }
        }
    }

    /// Rule 9 along the log: epochs never fall, and what nobody owned ends an epoch.
    fn epochs_along(&mut self) {
        let (mut last, mut is_over) = (0, false);
        let given_back = self.given_back();
        for index in 0..self.pieces.len() {
            let (at, piece) = self.pieces[index];
            let epoch = match piece {
                Piece::Op(op) => self.ops[op].epoch,
                Piece::Repair(None) => continue,
                Piece::Repair(Some(call)) => match (&self.history.calls[call].ask, self.history.calls[call].shown()) {
                    (Ask::Prepare { .. }, Some(shown)) => {
                        // It stands before all of its epoch.
                        let before = shown.owner.map_or(0, |owner| owner.epoch.saturating_sub(1));
                        if before < last {
                            self.broken(9, format!("the repair at seq {at} is of epoch {}, behind {last}", before + 1));
                        }
                        (last, is_over) = (last.max(before), true);
                        continue;
                    }
                    (Ask::Repair { epoch, .. }, _) => *epoch,
                    _ => None,
                },
            };
            match epoch {
                None if last == 0 => {}
                None => {
                    let returned = match piece {
                        Piece::Op(op) => self.ops[op].returned,
                        Piece::Repair(call) => call.map_or(Time::MAX, |call| self.history.calls[call].returned),
                    };
                    if given_back.get(last as usize).is_none_or(|moment| *moment > returned) {
                        self.broken(9, format!("seq {at} is nobody's, while epoch {last} had the session"));
                    }
                    is_over = true;
                }
                Some(epoch) if epoch < last => {
                    self.broken(9, format!("seq {at} is of epoch {epoch}, behind an event of epoch {last}"));
                }
                Some(epoch) if epoch == last && is_over => {
                    self.broken(9, format!("seq {at} is of epoch {epoch}, which was over"));
                }
                Some(epoch) => (last, is_over) = (epoch, false),
            }
        }
    }

    /// For each epoch the first moment at which it, or a later one, was asked to be given back.
    pub(super) fn given_back(&self) -> Vec<Time> {
        let mut moments = Vec::new();
        for call in &self.history.calls {
            let Ask::Release { epoch } = call.ask else { continue };
            if moments.len() <= epoch as usize {
                moments.resize(epoch as usize + 1, Time::MAX);
            }
            moments[epoch as usize] = call.invoked.min(moments[epoch as usize]);
        }
        for epoch in (1..moments.len()).rev() {
            moments[epoch - 1] = moments[epoch - 1].min(moments[epoch]);
        }
        moments
    }
}
