//! Crash repair: the synthetic events that close an open turn.
//!
//! The reference's `interruptedTurnClosers` (section 6), equal to it byte for byte. Laws: deterministic (every time is
//! the last event's), append-only, idempotent (a closed log has no closers), and the result is balanced. Repair invents
//! neither an assistant message nor the outcome of a tool that had started, and it validates nothing.

use bytes::Bytes;

use super::Ordinal;
use super::tail::{PendingCall, Tail, answered};
use super::vocabulary::{STEP_END, TOOL_RESULT, TURN_END};
use crate::model::json;
use crate::model::{Event, NewEvent, Seq, SurfaceOp};

const NOT_STARTED: Verdict = Verdict {
    name: "ToolNotStartedError",
    code: "TOOL_NOT_STARTED",
    text: "The tool call was interrupted before the Harness recorded it as started. Retry it if it is still needed.",
};

const OUTCOME_UNKNOWN: Verdict = Verdict {
    name: "ToolOutcomeUnknownError",
    code: "TOOL_OUTCOME_UNKNOWN",
    text: "The tool call was interrupted after it was recorded, but no result was durably recorded. Its outcome is \
           unknown. Decide whether to retry from the tool semantics: retry only if the operation is read-only or \
           idempotent; if it may have side effects, first verify external state or ask the user. Do not retry blindly.",
};

/// What a closer says about a call.
struct Verdict {
    name: &'static str,
    code: &'static str,
    text: &'static str,
}

/// The events that close the turn that is open at the end of `events`; none if none is open (reference 6).
///
/// Laws: the same events give the same closers; they only follow; closing what is closed adds nothing; what they close
/// is balanced.
///
/// Seqs go on from the last event's, whatever came before it. Only the last open turn is closed, and only calls that
/// its open step still waits for; brackets of other kinds (compaction, retry) stay as they are.
pub fn closers<'e>(events: impl IntoIterator<Item = &'e Event>) -> Vec<Event> {
    closers_of(&Tail::from_events(events))
}

/// The same, from the tail alone: what it costs does not depend on the log's length.
///
/// In order: one error `tool/result` per pending call, `step/end` if a step is open, `turn/end {interrupted}`. A log
/// that has no room for all of them up to the last seq gets none.
pub fn closers_of(tail: &Tail) -> Vec<Event> {
    let (Some(turn), Some((last, time_ms))) = (tail.open_turn(), tail.last()) else { return Vec::new() };
    let mut closers = Closers { turn: turn.number, last, time_ms, events: Vec::new() };
    let pushed = tail.pending().try_for_each(|call| closers.result(call));
    let pushed = pushed.and_then(|()| tail.open_step().map_or(Some(()), |step| closers.step_end(step.number)));
    pushed.and_then(|()| closers.turn_end()).map(|()| closers.events).unwrap_or_default()
}

struct Closers {
    turn: Ordinal,
    last: Seq,
    time_ms: i64,
    events: Vec<Event>,
}

impl Closers {
    fn next_seq(&self) -> Option<Seq> {
        Seq::new(self.last.get().checked_add(1 + self.events.len() as u64)?)
    }

    fn push(&mut self, kind: &'static str, data: String, surface_op: Option<SurfaceOp>) -> Option<&mut Event> {
        let body = NewEvent {
            time_ms: self.time_ms,
            kind: kind.into(),
            data: Bytes::from(data),
            ignorable: false,
            surface_op,
            source_event_seqs: None,
        };
        let seq = self.next_seq()?;
        self.events.push(Event { seq, body });
        self.events.last_mut()
    }

    fn result(&mut self, call: &PendingCall) -> Option<()> {
        let verdict = if call.call_seq.is_some() { &OUTCOME_UNKNOWN } else { &NOT_STARTED };
        let Verdict { name, code, text } = verdict;
        let (id, seq) = (&call.id, self.next_seq()?);
        let data = format!(
            "{{{}\"message\":{{\"id\":\"interrupted-tool-result-{id}-{seq}\",\"role\":\"user\",\
             \"source\":{{\"kind\":\"tool\",\"callId\":\"{id}\"}},\
             \"content\":[{{\"type\":\"tool-result\",\"toolCallId\":\"{id}\",\"isError\":true,\
             \"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}}]}},\
             \"error\":{{\"name\":\"{name}\",\"code\":\"{code}\"}}}}",
            place(&[("turn", self.turn), ("step", call.step)]),
        );
        let event = self.push(TOOL_RESULT, data, Some(SurfaceOp::Append))?;
        event.body.source_event_seqs = call.call_seq.map(|seq| vec![seq]);
        Some(())
    }

    fn step_end(&mut self, step: Ordinal) -> Option<()> {
        let members = place(&[("turn", self.turn), ("step", step)]);
        self.push(STEP_END, format!("{{{}}}", members.trim_end_matches(',')), None).map(drop)
    }

    fn turn_end(&mut self) -> Option<()> {
        let turn = place(&[("turn", self.turn)]);
        self.push(TURN_END, format!("{{{turn}\"reason\":{{\"kind\":\"interrupted\"}}}}"), None).map(drop)
    }
}

/// The members that say where; a number that the log does not have is left out, as ECMAScript leaves out `undefined`.
fn place(members: &[(&str, Ordinal)]) -> String {
    let member = |(name, number): &(&str, Ordinal)| number.json().map(|json| format!("\"{name}\":{json},"));
    members.iter().filter_map(member).collect()
}

/// Why events of a caller do not close a turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct CloserError {
    /// Which of them; their number when one is missing.
    pub index: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// Holds closers that somebody else made to what the computed ones are.
///
/// Laws: [`closers_of`] the same tail passes, and what passes leaves no turn, no step and no call open. Free are times,
/// ids of messages, the order of the results, and what they say; fixed are seqs, types, turn, step, which call each
/// result answers, and the citation of a call that had started.
pub fn check_closers(tail: &Tail, own: &[Event]) -> Result<(), CloserError> {
    let refuse = |index: usize, problem: String| Err(CloserError { index, problem });
    let computed = closers_of(tail);
    let mut wanted: Vec<&Event> = computed.iter().collect();
    for (index, event) in own.iter().enumerate() {
        let Some(first) = computed.first() else { return refuse(index, "closes nothing: no turn is open".to_owned()) };
        let seq = first.seq.get() + index as u64;
        if event.seq.get() != seq {
            return refuse(index, format!("has seq {}; the next one is {seq}", event.seq));
        }
        // Results come in any order, and before what ends step and turn.
        let results = wanted.iter().take_while(|closer| &*closer.body.kind == TOOL_RESULT).count();
        let matches = wanted.iter().take(results.max(1)).position(|closer| is_alike(closer, event));
        let Some(at) = matches else {
            let expected = wanted.first().map_or("nothing more", |closer| &*closer.body.kind);
            return refuse(index, format!("does not close what is open: `{expected}` is expected"));
        };
        wanted.remove(at);
    }
    match wanted.first() {
        Some(missing) => refuse(own.len(), format!("is missing: `{}`", missing.body.kind)),
        None => Ok(()),
    }
}

/// Whether two closers close the same.
fn is_alike(computed: &Event, own: &Event) -> bool {
    let (Ok(ours), Ok(theirs)) = (json::parse(&computed.body.data), json::parse(&own.body.data)) else { return false };
    let (ours, theirs) = (ours.root(), theirs.root());
    let place = |name: &str| match (ours.get(name), theirs.get(name)) {
        (Some(ours), Some(theirs)) => ours.same(theirs),
        (None, None) => true,
        _ => false,
    };
    let call = |root| answered(Some(root));
    let body = |event: &Event| (event.body.kind.clone(), event.body.surface_op, event.body.source_event_seqs.clone());
    body(computed) == body(own) && place("turn") && place("step") && call(ours) == call(theirs)
}
