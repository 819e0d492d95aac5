//! One walk along the time: what a call may say, or do, after what was told before it was made.

use std::collections::HashMap;

use super::calls::{Ask, Call, Mark, Outcome, Refusal, Shown, Time};
use super::{Check, digest};

/// What had been told before a call was invoked.
#[derive(Clone, Copy, Default)]
struct Told {
    /// The log was durable up to there.
    durable: u64,
    /// The highest epoch.
    epoch: u64,
    /// The call that told it.
    by: usize,
}

impl<'h> Check<'h> {
    /// Rules 6, 7, 9 and 13: what was told stays.
    pub(super) fn moments(&mut self) {
        let calls: &'h [Call] = &self.history.calls;
        // At one moment, what is invoked comes first: neither is before the other.
        let mut moments: Vec<(Time, bool, usize)> = Vec::with_capacity(calls.len() * 2);
        for (at, call) in calls.iter().enumerate() {
            moments.push((call.invoked, false, at));
            if !matches!(call.outcome, Outcome::Unknown) {
                moments.push((call.returned, true, at));
            }
        }
        moments.sort_unstable();
        let (mut told, mut at_invocation) = (Told::default(), vec![Told::default(); calls.len()]);
        let mut given_back = 0;
        for (_, is_return, at) in moments {
            let call = &calls[at];
            if !is_return {
                at_invocation[at] = told;
                if let Ask::Release { epoch } = call.ask {
                    given_back = given_back.max(epoch);
                }
                continue;
            }
            let Some(shown) = call.shown() else { continue };
            self.answer((at, call), shown, (at_invocation[at], given_back));
            told.durable = told.durable.max(shown.mark.as_ref().map_or(0, |mark| mark.durable_next_seq));
            // Whoever got through with an epoch had the session.
            let through = call.epoch().filter(|_| call.is_ok()).unwrap_or(0);
            let epoch = shown.owner.map_or(0, |owner| owner.epoch).max(through);
            if epoch > told.epoch {
                (told.epoch, told.by) = (epoch, at);
            }
        }
        self.late(&at_invocation);
    }

    /// What was sent when a later epoch had been told already is not there, also when nobody knows what became of it.
    fn late(&mut self, at_invocation: &[Told]) {
        let given_back = self.given_back();
        let is_late = |told: Told, epoch: Option<u64>| match epoch {
            Some(epoch) => epoch < told.epoch,
            None => told.epoch > 0 && given_back.get(told.epoch as usize).is_none(),
        };
        let ops = self.ops.iter().filter(|op| is_late(at_invocation[op.first], op.epoch));
        let there: Vec<_> = ops.filter_map(|op| Some((op.placed?, op.epoch, op.first))).collect();
        for (seq, epoch, call) in there {
            self.broken(9, format!("call {call} with {epoch:?} wrote seq {seq} after a later epoch was told"));
        }
    }

    fn answer(&mut self, (at, call): (usize, &Call), shown: &Shown, (told, given_back): (Told, u64)) {
        let what = |text: String| format!("call {at}, {}: {text}", name(&call.ask));
        if let Some(mark) = &shown.mark {
            if mark.durable_next_seq < told.durable {
                let text = format!("durable up to {} after {} was told", mark.durable_next_seq, told.durable);
                self.broken(6, what(text));
            }
            self.mark(mark, &what);
        }
        if let (Some(owner), false) = (shown.owner, matches!(call.ask, Ask::Prepare { .. }))
            && owner.epoch < told.epoch
        {
            let by = &self.history.calls[told.by];
            let by = format!("by call {}, {}, {:?}", told.by, name(&by.ask), by.outcome);
            self.broken(9, what(format!("epoch {} is shown after {} was {by}", owner.epoch, told.epoch)));
        }
        match (&call.ask, &call.outcome) {
            (Ask::Prepare { .. }, Outcome::Ok(_)) => {
                let epoch = shown.owner.map_or(0, |owner| owner.epoch);
                if epoch <= told.epoch {
                    self.broken(9, what(format!("epoch {epoch} is handed out after {} was told", told.epoch)));
                }
            }
            (Ask::Read { from }, Outcome::Ok(_)) => self.read((at, *from), shown, told),
            _ => {}
        }
        let is_fenced = call.epoch().is_some_and(|epoch| epoch < told.epoch);
        if is_fenced && call.is_ok() {
            self.broken(9, what(format!("it got through with {:?} after epoch {} was told", call.epoch(), told.epoch)));
        }
        let writes_as_nobody = call.epoch().is_none()
            && match call.ask {
                Ask::Append { .. } => true,
                Ask::Load | Ask::Repair { .. } => shown.repaired > 0,
                _ => false,
            };
        // While it ran, nobody gave the session back.
        if writes_as_nobody && call.is_ok() && told.epoch > given_back {
            self.broken(9, what(format!("nobody wrote while epoch {} had the session", told.epoch)));
        }
        if let Outcome::Refused(Refusal::Fenced { committed }, _) = &call.outcome {
            self.seen.fenced += 1;
            self.seen.fenced_stored += usize::from(*committed == Some(true));
        }
    }

    /// What is told to be durable is in the final log; its chain is that of the log.
    fn mark(&mut self, mark: &Mark, what: &dyn Fn(String) -> String) {
        let length = self.history.log.events.len() as u64;
        if mark.durable_next_seq > length {
            let text = format!("durable up to {}, of {length} events", mark.durable_next_seq);
            return self.broken(13, what(text));
        }
        if mark.next_seq <= mark.durable_next_seq && self.chains.get(mark.next_seq as usize) != Some(&mark.chain) {
            self.broken(4, what(format!("the chain at seq {} is not that of the log", mark.next_seq)));
        }
    }

    fn read(&mut self, (at, from): (usize, u64), shown: &Shown, told: Told) {
        let Some(read) = &shown.events else { return };
        let log = &self.history.log.events;
        self.seen.reads += 1;
        let is_slice = log.get(from as usize..).is_some_and(|rest| {
            read.len() <= rest.len() && read.iter().zip(rest).all(|(read, event)| *read == digest(&event.body))
        });
        if !is_slice {
            self.broken(7, format!("call {at}: {} events from seq {from} are no slice of the log", read.len()));
        }
        let end = from + read.len() as u64;
        if end < told.durable {
            self.broken(6, format!("call {at}: a read ends at {end} after {} was told durable", told.durable));
        }
    }

    /// Rule 9: an epoch is handed out once and has one holder, and nobody gets a session whose lease certainly runs.
    pub(super) fn owners(&mut self) {
        let mut granted: HashMap<u64, usize> = HashMap::new();
        let mut holders: HashMap<u64, u32> = HashMap::new();
        let history = self.history;
        for (at, call) in history.calls.iter().enumerate() {
            let Some(shown) = call.shown() else { continue };
            if let (Ask::Prepare { .. }, Outcome::Ok(_), Some(owner)) = (&call.ask, &call.outcome, shown.owner)
                && let Some(before) = granted.insert(owner.epoch, at)
            {
                self.broken(9, format!("calls {before} and {at} both got epoch {}", owner.epoch));
            }
            let writer = call.epoch().filter(|_| call.is_ok()).map(|epoch| (epoch, call.process));
            for (epoch, holder) in shown.owner.map(|owner| (owner.epoch, owner.holder)).into_iter().chain(writer) {
                let before = *holders.entry(epoch).or_insert(holder);
                if before != holder {
                    self.broken(9, format!("call {at}: epoch {epoch} has the holders {before} and {holder}"));
                }
            }
        }
        self.seen.epochs = granted.len();
        for (at, call) in history.calls.iter().enumerate().filter(|(_, call)| call.is_ok()) {
            let grant = call.epoch().and_then(|epoch| granted.get(&epoch));
            if grant.is_some_and(|grant| call.returned < history.calls[*grant].invoked) {
                self.broken(9, format!("call {at} got through with {:?} before it was asked for", call.epoch()));
            }
        }
        let lost = |call: &&Call| matches!((&call.ask, &call.outcome), (Ask::Prepare { .. }, Outcome::Unknown));
        let lost = history.calls.iter().filter(lost).count() as u64;
        let missing = granted.keys().max().map_or(0, |last| last - granted.len() as u64);
        if missing > lost {
            self.broken(9, format!("{missing} epochs were skipped, {lost} calls may have got one"));
        }
        self.leases(&granted);
        self.bounds(&granted);
    }

    /// An epoch begins where its grant said that the log ends: nothing older stands behind, nothing newer before.
    fn bounds(&mut self, granted: &HashMap<u64, usize>) {
        let calls: &'h [Call] = &self.history.calls;
        let grants = granted.iter().filter_map(|(epoch, at)| {
            let mark = calls[*at].shown().and_then(|shown| shown.mark.as_ref())?;
            Some((*epoch, mark.next_seq))
        });
        let mut grants: Vec<(u64, u64)> = grants.collect();
        grants.sort_unstable();
        for pair in grants.windows(2) {
            let [(epoch, start), (next, next_start)] = [pair[0], pair[1]];
            if next_start < start {
                self.broken(9, format!("epoch {epoch} began at seq {start}, and {next} at {next_start}"));
            }
        }
        let placed = self.ops.iter().filter_map(|op| Some((op.placed?, op.events.len() as u64, op.epoch?)));
        let placed: Vec<_> = placed.collect();
        for (seq, length, epoch) in placed {
            let at = grants.partition_point(|(granted, _)| *granted <= epoch);
            if let Some((next, end)) = grants.get(at).filter(|(_, end)| seq + length > *end) {
                let text =
                    format!("seq {seq} is of epoch {epoch}, and epoch {next} was granted when the log ended at {end}");
                self.broken(9, text);
            }
            let own = at.checked_sub(1).and_then(|at| grants.get(at)).filter(|(granted, _)| *granted == epoch);
            if own.is_some_and(|(_, start)| seq < *start) {
                self.broken(9, format!("seq {seq} is of epoch {epoch}, which began behind it"));
            }
        }
    }

    /// The lease runs at least for its time from the moment that the last sign of life was sent.
    fn leases(&mut self, granted: &HashMap<u64, usize>) {
        let calls: &'h [Call] = &self.history.calls;
        let ttl_of = |call: &Call| match call.ask {
            Ask::Prepare { ttl, .. } => Some(ttl),
            Ask::Renew { ttl, .. } => ttl,
            _ => None,
        };
        // A time to live may change: the shortest that the epoch ever had is certain.
        let mut shortest: HashMap<u64, Time> = HashMap::new();
        let mut sign: HashMap<u64, Time> = HashMap::new();
        let mut given_back: HashMap<u64, Time> = HashMap::new();
        for call in calls {
            let granted =
                call.shown().filter(|_| matches!(call.ask, Ask::Prepare { .. })).and_then(|shown| shown.owner);
            let epoch = call.epoch().or_else(|| granted.map(|owner| owner.epoch));
            let Some(epoch) = epoch else { continue };
            if let Some(ttl) = ttl_of(call) {
                let before = shortest.entry(epoch).or_insert(ttl);
                *before = ttl.min(*before);
            }
            let is_sign =
                matches!(call.ask, Ask::Prepare { .. } | Ask::Publish { .. } | Ask::Renew { .. } | Ask::Append { .. });
            if is_sign && call.is_ok() && !call.is_repetition() {
                let last = sign.entry(epoch).or_default();
                *last = (*last).max(call.invoked);
            }
            if let Ask::Release { .. } = call.ask {
                let first = given_back.entry(epoch).or_insert(Time::MAX);
                *first = call.invoked.min(*first);
            }
        }
        for (epoch, at) in granted {
            let call = &calls[*at];
            let before = epoch.saturating_sub(1);
            let (Some(last), Some(ttl)) = (sign.get(&before), shortest.get(&before)) else { continue };
            let same = granted.get(&before).is_some_and(|at| calls[*at].process == call.process);
            let asks = matches!(call.ask, Ask::Prepare { take_over: true, .. });
            let given_back = given_back.get(&before).is_some_and(|moment| *moment < call.returned);
            if !asks && !same && !given_back && call.returned < last.saturating_add(*ttl) {
                let text = format!("call {at}: epoch {epoch} is handed out while the lease of {before} runs");
                self.broken(9, text);
            }
        }
    }
}

fn name(ask: &Ask) -> String {
    match ask {
        Ask::Append { op, epoch, first_seq, .. } => format!("append {op} at {first_seq} with {epoch:?}"),
        other => format!("{other:?}"),
    }
}
