//! From events to rows.

use super::tokens::string_length;
use super::{CHUNK_TYPE, Run, TAIL, Tag};
use crate::model::json::{self, Value};
use crate::model::{Event, INT53_MAX};

/// The shortest run that becomes a row.
pub const RUN_MIN: usize = 3;

/// A storage record of a packed log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packed<'e> {
    /// An event on its own.
    Event(&'e Event),
    /// A row for a run of events: compact JSON in the reference's key order.
    Row(String),
}

/// Replaces runs of at least [`RUN_MIN`] deltas by rows (reference 15.1); everything else comes out as it is.
///
/// A run has consecutive seqs and one head: the same turn, step, kind, index and call, spelled alike. Only events
/// that a row gives back byte for byte join one, which leaves out what the reference leaves out (extra keys, surface
/// fields, `ignorable`) and any other spelling. Law: [`super::decode`] of all records in order gives `events`.
pub fn pack(events: &[Event]) -> impl Iterator<Item = Packed<'_>> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let (first, others) = rest.split_first()?;
        let (length, row) = run_at(rest).map_or((1, None), |(length, row)| (length, Some(row)));
        rest = rest.get(length..).unwrap_or(others);
        Some(row.map_or(Packed::Event(first), Packed::Row))
    })
}

/// The run at the start, if it is long enough: its length and its row.
fn run_at(events: &[Event]) -> Option<(usize, String)> {
    let first = events.first()?;
    let text = std::str::from_utf8(&first.body.data).ok()?;
    let doc = json::parse(text.as_bytes()).ok()?;
    let run = run_of(doc.root())?;
    let head = run.head();
    let mut previous = first;
    let mut gaps = Vec::new();
    let mut texts = vec![own_text(first, &head)?];
    for event in events.iter().skip(1) {
        let gap = event.body.time_ms.saturating_sub(previous.body.time_ms);
        let follows = event.seq.get() == previous.seq.get() + 1 && gap.unsigned_abs() <= INT53_MAX;
        let Some(text) = own_text(event, &head).filter(|_| follows) else { break };
        gaps.push(gap.to_string());
        texts.push(text);
        previous = event;
    }
    (texts.len() >= RUN_MIN).then(|| (texts.len(), row(first, &run, &gaps.join(","), &texts.join(","))))
}

fn row(first: &Event, run: &Run<'_>, gaps: &str, texts: &str) -> String {
    let Run { tag, turn, step, index, .. } = run;
    let (seq, time) = (first.seq, first.body.time_ms);
    let call = run.call_members();
    let list = tag.list_key();
    let data = format!(r#"{{"turn":{turn},"step":{step},"index":{index},"dt":[{gaps}],{call}"{list}":[{texts}]}}"#);
    format!(r#"{{"type":"{tag}","seq0":{seq},"time0":{time},"data":{data}}}"#)
}

/// The shared tokens of a delta; `None` for what is none.
fn run_of<'t>(data: Value<'_, 't>) -> Option<Run<'t>> {
    let chunk = data.get("chunk")?;
    let kind = chunk.get("type")?.as_text()?;
    let tag = Tag::ALL.into_iter().find(|tag| kind.is(tag.chunk_type()))?;
    let number = |object: Value<'_, 't>, key| object.get(key).filter(|value| value.is_number()).map(Value::raw);
    let text = |key| chunk.get(key).filter(|value| value.as_text().is_some()).map(Value::raw);
    let call = match tag {
        Tag::ToolCall => Some((text("id")?, text("name"))),
        Tag::Text | Tag::Reasoning => None,
    };
    Some(Run { tag, turn: number(data, "turn")?, step: number(data, "step")?, index: number(chunk, "index")?, call })
}

/// The token of a member's own text, if the event is a delta with that head and nothing else.
fn own_text<'e>(event: &'e Event, head: &str) -> Option<&'e str> {
    let body = &event.body;
    let is_plain = &*body.kind == CHUNK_TYPE
        && !body.ignorable
        && body.surface_op.is_none()
        && body.source_event_seqs.is_none()
        && body.time_ms.unsigned_abs() <= INT53_MAX;
    let data = std::str::from_utf8(&body.data).ok().filter(|_| is_plain)?;
    let token = data.strip_prefix(head)?.strip_suffix(TAIL)?;
    (string_length(token) == Some(token.len()) && json::is_json(token.as_bytes())).then_some(token)
}
