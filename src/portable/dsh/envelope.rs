//! The envelope of one event (reference 1.1): every field but the seq.
//!
//! Refuses what a [`NewEvent`] cannot say; whether type, surface and sources fit each other is not asked here.

use bytes::Bytes;

use crate::model::json::Value;
use crate::model::limit::{SOURCES_MAX, TYPE_BYTES_MAX};
use crate::model::{NewEvent, Seq, SurfaceOp};

/// What is wrong with which field.
pub(super) struct Fault {
    pub(super) field: String,
    pub(super) problem: String,
}

const FIELDS: [&str; 7] = ["type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "ignorable"];

/// Reads an event; one of a recording has neither seq nor time and gets `recorded_time`.
pub(super) fn read(value: Value<'_, '_>, recorded_time: Option<i64>) -> Result<NewEvent, Fault> {
    if !value.is_object() {
        return fault("type", "is missing: the line is no object");
    }
    check_fields(value, recorded_time.is_some())?;
    let time_ms = recorded_time.or_else(|| value.get("time").and_then(Value::as_int53));
    Ok(NewEvent {
        kind: kind_of(value)?.into(),
        time_ms: time_ms.map_or_else(|| fault("time", "must be an integer within +-(2^53 - 1)"), Ok)?,
        data: match value.get("data") {
            Some(data) => Bytes::copy_from_slice(data.raw().as_bytes()),
            None => return fault("data", "must be present"),
        },
        ignorable: match value.get("ignorable").map(Value::as_bool) {
            None => false,
            Some(Some(true)) => true,
            Some(_) => return fault("ignorable", "must be true or absent"),
        },
        surface_op: value.get("surfaceOp").map(surface_op).transpose()?,
        source_event_seqs: value.get("sourceEventSeqs").map(sources).transpose()?,
    })
}

fn check_fields(value: Value<'_, '_>, is_recorded: bool) -> Result<(), Fault> {
    for (key, _) in value.entries() {
        if !FIELDS.iter().any(|field| key.is(field)) {
            return fault(&String::from_utf8_lossy(&key.decode()), "is no field of an event");
        }
        if is_recorded && (key.is("seq") || key.is("time")) {
            return fault(key.raw(), "must be absent, as on the first line of this recording");
        }
    }
    Ok(())
}

fn kind_of(value: Value<'_, '_>) -> Result<String, Fault> {
    let Some(text) = value.get("type").and_then(Value::as_text) else { return fault("type", "must be a string") };
    let Ok(kind) = String::from_utf8(text.decode().into_owned()) else {
        return fault("type", "must be free of lone surrogates");
    };
    if kind.len() > TYPE_BYTES_MAX {
        return fault("type", &format!("has {} bytes; {TYPE_BYTES_MAX} are allowed", kind.len()));
    }
    Ok(kind)
}

fn surface_op(value: Value<'_, '_>) -> Result<SurfaceOp, Fault> {
    if value.as_text().is_some_and(|text| text.is("append")) {
        return Ok(SurfaceOp::Append);
    }
    let is_replace = value.get("op").and_then(Value::as_text).is_some_and(|op| op.is("replace"));
    let is_exact = value.entries().all(|(key, _)| ["op", "start", "end"].iter().any(|field| key.is(field)));
    let bounds = (value.get("start").and_then(seq_of), value.get("end").and_then(seq_of));
    match bounds {
        (Some(start), Some(end)) if is_replace && is_exact => Ok(SurfaceOp::Replace { start, end }),
        _ => fault("surfaceOp", "must be \"append\" or exactly {op: \"replace\", start, end} with two seqs"),
    }
}

fn sources(value: Value<'_, '_>) -> Result<Vec<Seq>, Fault> {
    let count = value.items().take(SOURCES_MAX + 1).count();
    if count > SOURCES_MAX {
        return fault("sourceEventSeqs", &format!("has more than {SOURCES_MAX} entries"));
    }
    let seqs: Option<Vec<_>> = value.items().map(seq_of).collect();
    seqs.filter(|_| value.is_array()).map_or_else(|| fault("sourceEventSeqs", "must be an array of seqs"), Ok)
}

fn seq_of(value: Value<'_, '_>) -> Option<Seq> {
    Seq::new(u64::try_from(value.as_int53()?).ok()?)
}

fn fault<T>(field: &str, problem: &str) -> Result<T, Fault> {
    Err(Fault { field: field.to_owned(), problem: problem.to_owned() })
}
