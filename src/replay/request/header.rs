//! Request headers: the latest snapshot, its canonical form, and when two are the same.
//!
//! A header is a complete snapshot: the last one wins as a whole, with no merging of members, and stays in force across
//! turns, forks and resumes (reference 4.1). The canonical form is text in ECMAScript's serialisation, so that tool
//! schemas keep their key order and numbers their shortest form. What a provider makes of a header is not known here.

use std::sync::Arc;

use crate::model::json::{self, Value};
use crate::model::{Event, Seq};
use crate::replay::vocabulary::REQUEST_HEADER;

/// A `request/header` event without a header: only a log that was never held to the shapes has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request/header at seq {seq} holds no header")]
pub struct NoHeader {
    /// The event.
    pub seq: Seq,
}

/// A request header in canonical form, as JSON text.
///
/// Equality of this type is equality of the texts; whether a new snapshot must be logged is [`RequestHeader::is_same`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader(Arc<str>);

impl RequestHeader {
    /// The canonical form of a header (reference 4.1, 18.15).
    ///
    /// Members in the order `config`, `adapterDefaults`, `system`, `tools`; others are dropped. `config` passes whole,
    /// unknown members included; `adapterDefaults` passes whole if one of its two marks is `true`; `system` if it is a
    /// string that is not empty; `tools` if it is a list that is not empty. Law: canonical forms are fixed points.
    pub fn canonical(header: Value<'_, '_>) -> Self {
        let marked = |defaults: &Value<'_, '_>| MARKS.iter().any(|name| is_true(*defaults, name));
        let members = [
            ("config", header.get("config")),
            ("adapterDefaults", header.get("adapterDefaults").filter(marked)),
            ("system", header.get("system").filter(|system| system.as_text().is_some_and(|text| !text.is_empty()))),
            ("tools", header.get("tools").filter(|tools| tools.is_array() && tools.items().next().is_some())),
        ];
        let member = |(name, value): (&str, Option<Value<'_, '_>>)| {
            value.map(|value| format!("\"{name}\":{}", json::canonical(value)))
        };
        let members: Vec<_> = members.into_iter().filter_map(member).collect();
        Self(format!("{{{}}}", members.join(",")).into())
    }

    /// The header that an event sets; `None` for events of other types.
    pub fn of_event(event: &Event) -> Result<Option<Self>, NoHeader> {
        if *event.body.kind != *REQUEST_HEADER {
            return Ok(None);
        }
        let none = NoHeader { seq: event.seq };
        let doc = json::parse(&event.body.data).map_err(|_| none)?;
        let header = doc.root().get("header").filter(|header| header.is_object()).ok_or(none)?;
        Ok(Some(Self::canonical(header)))
    }

    /// The JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// Whether requests with these two headers are the same: see [`is_same`].
    pub fn is_same(&self, other: &Self) -> bool {
        match (json::parse(self.0.as_bytes()), json::parse(other.0.as_bytes())) {
            (Ok(a), Ok(b)) => is_same(a.root(), b.root()),
            _ => false,
        }
    }
}

const MARKS: [&str; 2] = ["reasoningEffort", "maxTokens"];
const CONFIG: [&str; 6] = ["provider", "model", "reasoningEffort", "temperature", "maxTokens", "stop"];

/// Whether two headers, taken as they are, make the same request, so that no new snapshot need be logged (4.1).
///
/// Compared are six members of `config` (`stop` element by element; `[]` differs from absent), the two marks of
/// `adapterDefaults`, `system` (empty differs from absent) and the tools in order by their text, so that the key order
/// inside a schema counts; absent tools are an empty list. Unknown members of `config` are not compared.
pub fn is_same(a: Value<'_, '_>, b: Value<'_, '_>) -> bool {
    let config = |name: &&str| same_member(a.get("config"), b.get("config"), name);
    let mark = |header: Value<'_, '_>, name| header.get("adapterDefaults").is_some_and(|marks| is_true(marks, name));
    let tools = |header: Value<'_, '_>| -> Vec<String> {
        header.get("tools").into_iter().flat_map(Value::items).map(json::canonical).collect()
    };
    CONFIG.iter().all(config)
        && MARKS.iter().all(|name| mark(a, name) == mark(b, name))
        && same_member(Some(a), Some(b), "system")
        && tools(a) == tools(b)
}

fn same_member(a: Option<Value<'_, '_>>, b: Option<Value<'_, '_>>, name: &str) -> bool {
    match (a.and_then(|a| a.get(name)), b.and_then(|b| b.get(name))) {
        (None, None) => true,
        (Some(a), Some(b)) => a.same(b),
        _ => false,
    }
}

fn is_true(value: Value<'_, '_>, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool) == Some(true)
}

/// Where the header in force stands.
///
/// Law: the batch fold equals the stepwise fold. Growth: one seq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatestHeader(Option<Seq>);

impl LatestHeader {
    /// Takes the next event.
    pub fn apply(&mut self, event: &Event) {
        self.apply_kind(event.seq, &event.body.kind);
    }

    pub(in crate::replay) fn apply_kind(&mut self, seq: Seq, kind: &str) {
        if kind == REQUEST_HEADER {
            self.0 = Some(seq);
        }
    }

    pub(in crate::replay) fn at(seq: Option<Seq>) -> Self {
        Self(seq)
    }

    /// The event that set the header in force; see [`RequestHeader::of_event`].
    pub fn seq(self) -> Option<Seq> {
        self.0
    }
}

/// The header in force after `events`; `from` if they set none (reference 4.1, `foldRequestHeader`).
pub fn fold(events: &[Event], from: Option<RequestHeader>) -> Result<Option<RequestHeader>, NoHeader> {
    let latest = events.iter().rev().find(|event| *event.body.kind == *REQUEST_HEADER);
    latest.map_or(Ok(from), RequestHeader::of_event)
}

/// Why a header was logged, as its event says: `initial`, `resume`, `change` or another word (reference 4.1).
pub fn reason(event: &Event) -> Option<String> {
    if *event.body.kind != *REQUEST_HEADER {
        return None;
    }
    json::parse(&event.body.data).ok()?.root().get("reason").and_then(Value::to_text)
}
