//! An event as one JSON object: the form that log files of the reference hold.
//!
//! [`encode`] writes the keys in the reference's order: `type`, `seq`, `time`, `data`, `surfaceOp`, `sourceEventSeqs`,
//! `ignorable` (section 1.1). `data` is copied byte for byte. [`Draft`] reads the form back without trusting it: a
//! marker that breaks the rules is kept as a fact, because the reference reports it only after other checks (2.3).

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use crate::model::json::{Value, quote};
use crate::model::{Event, NewEvent, Seq, SurfaceOp};

/// The JSON object of an event, compact but for `data`, which stands as the log has it.
///
/// JSON allows line breaks between tokens, so that `data` may hold some; a file of lines needs its canonical text.
/// Law: [`Draft::read`] gives the event back.
pub fn encode(event: &Event) -> Vec<u8> {
    let body = &event.body;
    let mut out = Vec::with_capacity(body.data.len() + 128);
    // Writing to a vector cannot fail.
    let _ = write!(out, "{{\"type\":{},\"seq\":{},\"time\":{},\"data\":", quote(&body.kind), event.seq, body.time_ms);
    out.extend_from_slice(&body.data);
    match body.surface_op {
        None => {}
        Some(SurfaceOp::Append) => out.extend_from_slice(b",\"surfaceOp\":\"append\""),
        Some(SurfaceOp::Replace { start, end }) => {
            let _ = write!(out, ",\"surfaceOp\":{{\"op\":\"replace\",\"start\":{start},\"end\":{end}}}");
        }
    }
    if let Some(sources) = &body.source_event_seqs {
        encode_sources(sources, &mut out);
    }
    if body.ignorable {
        out.extend_from_slice(b",\"ignorable\":true");
    }
    out.push(b'}');
    out
}

fn encode_sources(sources: &[Seq], out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"sourceEventSeqs\":[");
    for (index, source) in sources.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{source}");
    }
    out.push(b']');
}

/// The `surfaceOp` of an event that is not trusted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// There is none.
    Absent,
    /// A well-formed one.
    Op(SurfaceOp),
    /// Neither `"append"` nor an object.
    Invalid,
    /// An object that is not exactly `{op: "replace", start, end}` with seqs.
    InvalidReplace,
}

/// The `sourceEventSeqs` of an event that is not trusted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// There are none.
    Absent,
    /// A list of seqs.
    List(Vec<Seq>),
    /// Something else than an array.
    NotArray,
    /// An array with something that is not a seq.
    NotSeqs,
}

/// An event whose envelope holds, with markers that may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its place, as it says.
    pub seq: Seq,
    /// `time`.
    pub time_ms: i64,
    /// `type`.
    pub kind: Arc<str>,
    /// `data`, byte for byte.
    pub data: Bytes,
    /// `ignorable`.
    pub ignorable: bool,
    /// `surfaceOp`.
    pub marker: Marker,
    /// `sourceEventSeqs`.
    pub sources: Sources,
}

/// The envelope is not one (reference 1.1): an unknown or missing key, or a value of the wrong kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has an invalid event envelope")]
pub struct EnvelopeError;

impl Draft {
    /// Reads an event's object; refuses what is no envelope (reference 1.1).
    ///
    /// A `type` with a lone surrogate is refused too: types are names, and names are text.
    pub fn read(value: Value<'_, '_>) -> Result<Self, EnvelopeError> {
        if !value.is_object() || value.entries().any(|(key, _)| !ENVELOPE.iter().any(|name| key.is(name))) {
            return Err(EnvelopeError);
        }
        let kind = value.get("type").and_then(Value::as_text).ok_or(EnvelopeError)?.decode();
        let ignorable = value.get("ignorable").map(Value::as_bool);
        if ignorable.is_some_and(|flag| flag != Some(true)) {
            return Err(EnvelopeError);
        }
        Ok(Self {
            seq: value.get("seq").and_then(seq).ok_or(EnvelopeError)?,
            time_ms: value.get("time").and_then(Value::as_int53).ok_or(EnvelopeError)?,
            kind: std::str::from_utf8(&kind).map_err(|_| EnvelopeError)?.into(),
            data: value.get("data").map(|data| Bytes::copy_from_slice(data.raw().as_bytes())).ok_or(EnvelopeError)?,
            ignorable: ignorable.is_some(),
            marker: value.get("surfaceOp").map_or(Marker::Absent, marker),
            sources: value.get("sourceEventSeqs").map_or(Sources::Absent, sources),
        })
    }

    /// The event, unless a marker is malformed.
    pub fn into_event(self) -> Option<Event> {
        let surface_op = match self.marker {
            Marker::Absent => None,
            Marker::Op(op) => Some(op),
            Marker::Invalid | Marker::InvalidReplace => return None,
        };
        let source_event_seqs = match self.sources {
            Sources::Absent => None,
            Sources::List(seqs) => Some(seqs),
            Sources::NotArray | Sources::NotSeqs => return None,
        };
        let (time_ms, kind, data, ignorable) = (self.time_ms, self.kind, self.data, self.ignorable);
        let body = NewEvent { time_ms, kind, data, ignorable, surface_op, source_event_seqs };
        Some(Event { seq: self.seq, body })
    }
}

const ENVELOPE: [&str; 7] = ["type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "ignorable"];

fn seq(value: Value<'_, '_>) -> Option<Seq> {
    u64::try_from(value.as_int53()?).ok().and_then(Seq::new)
}

fn marker(value: Value<'_, '_>) -> Marker {
    if value.as_text().is_some_and(|text| text.is("append")) {
        return Marker::Op(SurfaceOp::Append);
    }
    if !value.is_object() {
        return Marker::Invalid;
    }
    replace(value).map_or(Marker::InvalidReplace, Marker::Op)
}

fn replace(value: Value<'_, '_>) -> Option<SurfaceOp> {
    let known = |key: &str| matches!(key, "op" | "start" | "end");
    let exact = value.entries().all(|(key, _)| std::str::from_utf8(&key.decode()).is_ok_and(known));
    let verb = value.get("op").and_then(Value::as_text).is_some_and(|op| op.is("replace"));
    let (start, end) = (value.get("start").and_then(seq)?, value.get("end").and_then(seq)?);
    (exact && verb).then_some(SurfaceOp::Replace { start, end })
}

fn sources(value: Value<'_, '_>) -> Sources {
    if !value.is_array() {
        return Sources::NotArray;
    }
    value.items().map(seq).collect::<Option<_>>().map_or(Sources::NotSeqs, Sources::List)
}
