//! Turns and steps, built from records that know neither.
//!
//! A turn begins with a prompt and ends before the next; a step is one response of the model with its calls and their
//! results, kept together although other records stand between them in the file. What a prompt leaves unfinished before
//! it is closed by the rules of crash repair, so that nothing is invented here. Writes only logs whose nesting is sound.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::response::{Answer, Item, Response};
use super::turn::{Step, Turn};
use crate::model::{Event, NewEvent, Seq, SurfaceOp};
use crate::replay::repair::closers_of;
use crate::replay::tail::Tail;
use crate::replay::vocabulary::{
    ASSISTANT_MESSAGE, REQUEST_CONTEXT, STEP_END, STEP_START, TOOL_CALL, TOOL_RESULT, TURN_END, TURN_START,
    USER_MESSAGE,
};

/// Why a result has no call.
pub(super) enum NoCall {
    /// No call of that id is waiting for anything.
    Unknown,
    /// It has its result.
    Answered,
}

/// What of a log was made so far.
#[derive(Default)]
pub(super) struct Turns {
    out: Vec<Event>,
    next_seq: u64,
    last_ms: i64,
    tail: Tail,
    surface: Vec<Seq>,
    prompts: HashSet<Seq>,
    places: HashMap<String, Seq>,
    turn: Option<Turn>,
    count: u64,
    context: (String, String),
}

/// What is written in the place of messages that a compaction takes away.
pub(super) struct Compaction {
    /// The literal of its id.
    pub(super) id: String,
    /// The summary's blocks.
    pub(super) blocks: Vec<String>,
    /// How many tokens the context had before.
    pub(super) tokens: Option<u64>,
    /// The message that takes their place.
    pub(super) item: Item,
}

impl Turns {
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.out)
    }

    pub(super) fn events(&self) -> u64 {
        self.next_seq
    }

    /// The time of the last event.
    pub(super) fn last_ms(&self) -> i64 {
        self.last_ms
    }

    pub(super) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// Whether the turn at the end is over.
    pub(super) fn is_complete(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::is_over)
    }

    /// The last message of a name, or of what it was part of.
    pub(super) fn place(&self, key: &str) -> Option<Seq> {
        self.places.get(key).copied()
    }

    /// Whether the turn at the end has a response.
    pub(super) fn is_answered(&self) -> bool {
        self.turn.as_ref().is_none_or(|turn| {
            turn.steps_written > 0 || turn.steps.iter().any(|step| step.response.is_some()) || turn.reason.is_some()
        })
    }

    /// A turn begins. `after` names the message that the prompt follows, where the file is a tree: a prompt that stood
    /// there before, and all that came of it, is taken from the surface.
    pub(super) fn prompt(&mut self, item: Item, after: Option<&str>) {
        self.end_turn();
        let range = after.and_then(|key| self.abandoned(key));
        self.begin(item.time_ms).messages.push((item, range));
    }

    fn abandoned(&self, after: &str) -> Option<(Seq, Seq)> {
        let seq = self.places.get(after)?;
        let at = self.surface.iter().rposition(|node| node == seq)?;
        let first = self.surface.get(at + 1).filter(|first| self.prompts.contains(first))?;
        Some((*first, *self.surface.last()?))
    }

    /// A message that begins no turn.
    pub(super) fn message(&mut self, item: Item) {
        if self.turn.is_none() {
            self.surface_event(USER_MESSAGE, (item.time_ms, item.data), item.key, None);
            return;
        }
        let time_ms = item.time_ms;
        let step = match self.current() {
            Some(step) if step.response.is_none() => step,
            _ => self.begin(time_ms),
        };
        step.messages.push((item, None));
    }

    /// The response that a record belongs to, by `is_same`; in a step of its own if there is none yet.
    pub(super) fn response(&mut self, time_ms: i64, is_same: impl Fn(&Response) -> bool) -> &mut Response {
        let steps = self.turn.as_ref().map(|turn| turn.steps.as_slice()).unwrap_or_default();
        let goes_on = |step: &Step| !step.is_closed && step.response.as_ref().is_some_and(&is_same);
        let found = steps.iter().rposition(goes_on);
        let is_free = steps.last().is_some_and(|step| step.response.is_none());
        let step = match (found, is_free) {
            (Some(at), _) => self.step_at(at, time_ms),
            (None, true) => self.step_at(usize::MAX, time_ms),
            (None, false) => self.begin(time_ms),
        };
        step.response.get_or_insert_with(Response::default)
    }

    /// The last response, while its step is not in the log.
    pub(super) fn last_response(&mut self) -> Option<&mut Response> {
        self.current().and_then(|step| step.response.as_mut())
    }

    /// Nothing more belongs to the last response, but for the results of its calls.
    pub(super) fn close_response(&mut self) {
        if let Some(step) = self.current().filter(|step| step.response.is_some()) {
            step.is_closed = true;
        }
    }

    /// Whether a response of the turn has announced a call of that id.
    pub(super) fn has_call(&self, call: &[u8]) -> bool {
        let steps = self.turn.iter().flat_map(|turn| &turn.steps).filter_map(|step| step.response.as_ref());
        steps.flat_map(|response| &response.calls).any(|found| found.key == call)
    }

    /// A result goes to its call.
    pub(super) fn result(&mut self, call: &[u8], answer: Answer) -> Result<(), NoCall> {
        let steps = self.turn.iter_mut().flat_map(|turn| turn.steps.iter_mut().rev());
        let mut is_known = false;
        for step in steps {
            let Some(response) = &mut step.response else { continue };
            for found in response.calls.iter_mut().filter(|found| found.key == call) {
                is_known = true;
                if found.answer.is_none() {
                    found.answer = Some(Answer { order: step.results, ..answer });
                    step.results += 1;
                    return Ok(());
                }
            }
        }
        Err(if is_known { NoCall::Answered } else { NoCall::Unknown })
    }

    /// The turn is over, for that reason.
    pub(super) fn end(&mut self, reason: String) {
        if let Some(turn) = &mut self.turn {
            turn.reason.get_or_insert(reason);
        }
    }

    /// The same, and nothing more belongs to it.
    pub(super) fn end_now(&mut self, reason: String) {
        self.end(reason);
        self.end_turn();
    }

    /// A title of the conversation up to a message. Only at the end.
    pub(super) fn title(&mut self, title: &str, about: Seq, source: &str) {
        let data = format!("{{\"title\":{title},\"messageSeqs\":[{about}],\"source\":{source}}}");
        self.event("session/title", self.last_ms, data);
    }

    /// A summary takes the place of the messages before `kept`.
    pub(super) fn compact(&mut self, compaction: Compaction, kept: &[Seq]) {
        self.settle();
        let Compaction { id, blocks, tokens, item } = compaction;
        let first_kept = self.surface.iter().position(|node| kept.contains(node)).unwrap_or(self.surface.len());
        let shadowed: Vec<Seq> = self.surface.iter().take(first_kept).copied().collect();
        let (Some(&start), Some(&end)) = (shadowed.first(), shadowed.last()) else { return self.message(item) };
        let turn = self.turn.as_ref().map_or_else(|| "null".to_owned(), |turn| turn.number.to_string());
        let time_ms = item.time_ms;
        self.event("compaction/start", time_ms, format!("{{\"compactionId\":{id},\"turn\":{turn}}}"));
        let list: Vec<_> = shadowed.iter().map(ToString::to_string).collect();
        let tokens = tokens.map(|count| format!(",\"shadowedTokenCount\":{count}")).unwrap_or_default();
        let (provider, model) = &self.context;
        let (provider, model) = (or_unknown(provider), or_unknown(model));
        let summary = format!(
            "{{\"compactionId\":{id},\"summary\":[{}],\"shadowedRange\":{{\"start\":{start},\"end\":{end}}},\
             \"shadowedSeqs\":[{}]{tokens},\"provider\":{provider},\"model\":{model}}}",
            blocks.join(","),
            list.join(","),
        );
        self.event("compaction/summary", time_ms, summary);
        self.surface_event(USER_MESSAGE, (time_ms, item.data), item.key, Some((start, end)));
        self.event("compaction/end", time_ms, format!("{{\"compactionId\":{id},\"turn\":{turn}}}"));
    }

    /// The end of the file. A turn that is not over stays open.
    pub(super) fn finish(&mut self) {
        let is_over = self.turn.as_ref().is_some_and(Turn::is_over);
        if is_over { self.end_turn() } else { self.write_steps() }
    }

    /// Writes what there is, so that another event can follow it. A step that waits for results cannot go on behind such
    /// an event, and its turn ends.
    pub(super) fn settle(&mut self) {
        let waits = |step: &Step| step.response.as_ref().is_some_and(|response| !response.is_answered());
        if self.turn.as_ref().is_some_and(|turn| turn.steps.iter().any(waits)) {
            return self.end_turn();
        }
        self.write_steps();
    }

    fn current(&mut self) -> Option<&mut Step> {
        self.turn.as_mut()?.steps.last_mut()
    }

    /// The step at a place, or the last one; a new one if there is none.
    fn step_at(&mut self, at: usize, time_ms: i64) -> &mut Step {
        let count = &mut self.count;
        let turn = self.turn.get_or_insert_with(|| {
            *count += 1;
            Turn { number: *count, started_ms: time_ms, ..Turn::default() }
        });
        if turn.steps.is_empty() {
            turn.steps.push(Step::default());
        }
        // There is one: see above.
        let at = at.min(turn.steps.len() - 1);
        &mut turn.steps[at]
    }

    /// A step after all others, and a turn if there is none.
    fn begin(&mut self, time_ms: i64) -> &mut Step {
        if let Some(turn) = &mut self.turn {
            turn.steps.push(Step::default());
        }
        self.step_at(usize::MAX, time_ms)
    }

    fn end_turn(&mut self) {
        self.write_steps();
        let Some(turn) = self.turn.take() else { return };
        let over = turn.reason.clone().or_else(|| turn.is_over().then(|| turn.outcome().to_owned()));
        let closers = closers_of(&self.tail);
        let kept = closers.len().saturating_sub(usize::from(over.is_some()));
        for closer in closers.into_iter().take(kept) {
            self.push(closer.body);
        }
        if let Some(reason) = over {
            let data = format!("{{\"turn\":{},\"reason\":{reason}}}", turn.number);
            self.event(TURN_END, self.last_ms, data);
        }
    }

    /// Writes the steps of the turn; the last one stays open unless it is whole.
    fn write_steps(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        if !turn.is_written {
            turn.is_written = true;
            self.event(TURN_START, turn.started_ms, format!("{{\"turn\":{}}}", turn.number));
        }
        let steps = std::mem::take(&mut turn.steps);
        let count = steps.len();
        for (index, mut step) in steps.into_iter().enumerate() {
            let place = format!("\"turn\":{},\"step\":{}", turn.number, turn.steps_written + 1);
            self.write_step(&mut step, &place);
            let is_whole = step.response.as_ref().is_some_and(Response::is_answered);
            let is_last = index + 1 == count;
            if is_whole || !is_last {
                self.close_calls();
                self.event(STEP_END, self.last_ms, format!("{{{place}}}"));
                turn.steps_written += 1;
                turn.note_outcome(&step);
            } else {
                step.messages.clear();
                step.is_open = true;
                turn.steps.push(step);
            }
        }
        self.turn = Some(turn);
    }

    /// Gives calls that were never answered what crash repair says of them.
    fn close_calls(&mut self) {
        let closers = closers_of(&self.tail);
        closers
            .into_iter()
            .take_while(|closer| *closer.body.kind == *TOOL_RESULT)
            .for_each(|closer| self.push(closer.body));
    }

    fn write_step(&mut self, step: &mut Step, place: &str) {
        if !step.is_open {
            let first_ms = step.messages.first().map(|(item, _)| item.time_ms);
            let time_ms = first_ms.or_else(|| step.response.as_ref().map(|response| response.time_ms));
            self.event(STEP_START, time_ms.unwrap_or(self.last_ms), format!("{{{place}}}"));
        }
        let is_first = !step.is_open && place.ends_with("\"step\":1");
        for (index, (item, range)) in step.messages.drain(..).enumerate() {
            let seq = self.surface_event(USER_MESSAGE, (item.time_ms, item.data), item.key, range);
            if is_first && index == 0 {
                self.prompts.insert(seq);
            }
        }
        if let Some(response) = &step.response {
            self.write_response(response, place);
        }
    }

    fn write_response(&mut self, response: &Response, place: &str) {
        self.note_context(response);
        let data = (response.time_ms, response.message(place));
        let seq = self.surface_event(ASSISTANT_MESSAGE, data, None, None);
        self.places.extend(response.keys.iter().map(|key| (key.clone(), seq)));
        for call in &response.calls {
            self.event(TOOL_CALL, call.time_ms, call.started(place));
        }
        let mut answers: Vec<_> =
            response.calls.iter().filter_map(|call| Some((call, call.answer.as_ref()?))).collect();
        answers.sort_by_key(|(_, answer)| answer.order);
        for (call, answer) in answers {
            let data = (answer.time_ms, call.answered(answer, place));
            self.surface_event(TOOL_RESULT, data, answer.key.clone(), None);
        }
    }

    /// Says which model answers, when it is another one.
    fn note_context(&mut self, response: &Response) {
        let context = (response.provider.clone(), response.model.clone());
        if context != self.context {
            let data = format!("{{\"provider\":{},\"model\":{}}}", context.0, context.1);
            self.event(REQUEST_CONTEXT, response.time_ms, data);
            self.context = context;
        }
    }

    fn event(&mut self, kind: &str, time_ms: i64, data: String) {
        self.push(NewEvent {
            time_ms,
            kind: kind.into(),
            data: Bytes::from(data),
            ignorable: false,
            surface_op: None,
            source_event_seqs: None,
        });
    }

    fn surface_event(
        &mut self,
        kind: &str,
        (time_ms, data): (i64, String),
        key: Option<String>,
        range: Option<(Seq, Seq)>,
    ) -> Seq {
        let (surface_op, source_event_seqs) = match range {
            None => (SurfaceOp::Append, None),
            Some((start, end)) => (SurfaceOp::Replace { start, end }, Some(self.between(start, end))),
        };
        let data = Bytes::from(data);
        let surface_op = Some(surface_op);
        let seq = Seq::saturating(self.next_seq);
        self.push(NewEvent { time_ms, kind: kind.into(), data, ignorable: false, surface_op, source_event_seqs });
        self.places.extend(key.map(|key| (key, seq)));
        seq
    }

    fn between(&self, start: Seq, end: Seq) -> Vec<Seq> {
        let nodes = self.surface.iter().skip_while(|node| **node != start);
        let until = nodes.clone().position(|node| *node == end).map_or(0, |at| at + 1);
        nodes.take(until).copied().collect()
    }

    fn push(&mut self, body: NewEvent) {
        // Cannot saturate: a file of so many records is not read in a lifetime.
        let event = Event { seq: Seq::saturating(self.next_seq), body };
        self.next_seq += 1;
        self.last_ms = event.body.time_ms;
        match event.body.surface_op {
            None => {}
            Some(SurfaceOp::Append) => self.surface.push(event.seq),
            Some(SurfaceOp::Replace { start, .. }) => {
                let shadowed = event.body.source_event_seqs.as_deref().map_or(0, <[Seq]>::len);
                if let Some(at) = self.surface.iter().position(|node| *node == start) {
                    self.surface.splice(at..(at + shadowed).min(self.surface.len()), [event.seq]);
                }
            }
        }
        self.tail.apply(&event);
        self.out.push(event);
    }
}

fn or_unknown(literal: &str) -> &str {
    if literal.is_empty() { "\"unknown\"" } else { literal }
}
