//! The first line (reference 1.2, 1.3, 7.8).
//!
//! The version is looked at before the shape, because a foreign format may have another shape.

use std::cmp::Ordering;

use super::error::excerpt;
use super::{DshError, Note, ReadOptions};
use crate::model::header::FORMAT_VERSION;
use crate::model::json::{self, Doc, Text, Value, number_text};
use crate::model::{Header, HeaderError, SessionId};

const FIELDS: [&str; 10] = [
    "type",
    "version",
    "id",
    "createdAt",
    "cwd",
    "parentSession",
    "seedLength",
    "origin",
    "delegationDepth",
    "agentPreset",
];
const RETIRED: [&str; 2] = ["sandboxMode", "approvalPolicy"];

/// A header line of this format whose optional fields were not looked at.
pub(super) struct HeaderLine<'t> {
    doc: Doc<'t>,
    id: String,
}

impl<'t> HeaderLine<'t> {
    pub(super) fn parse(text: &'t [u8]) -> Result<Self, DshError> {
        let Ok(doc) = json::parse_any(text) else { return Err(DshError::HeaderNotJson) };
        let value = doc.root();
        refuse_foreign_version(value)?;
        if !is_header(value) {
            return Err(DshError::NotHeader);
        }
        if RETIRED.iter().any(|key| value.get(key).is_some()) {
            return Err(DshError::RetiredHeader);
        }
        let id = value.get("id").and_then(Value::to_text).unwrap_or_default();
        Ok(Self { doc, id })
    }

    /// The id and the header under our own rules; `notes` says what did not fit in.
    pub(super) fn finish(
        self,
        is_recorded: bool,
        options: &ReadOptions,
        notes: &mut Vec<Note>,
    ) -> Result<(SessionId, Header), DshError> {
        let value = self.doc.root();
        refuse_lone_surrogates(value)?;
        let cwd = value.get("cwd").and_then(Value::to_text);
        let is_placeholder = is_recorded && cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/'));
        let mut header = if is_placeholder || options.cwd.is_some() {
            let text = without_cwd(value);
            let doc = json::parse_any(text.as_bytes()).map_err(|_| DshError::HeaderNotJson)?;
            Header::from_json(&self.id, doc.root())?
        } else {
            Header::from_json(&self.id, value)?
        };
        if options.cwd.is_some() {
            header.cwd.clone_from(&options.cwd);
        } else if let Some(cwd) = cwd.filter(|_| is_placeholder) {
            notes.push(Note::CwdDropped { cwd });
        }
        header.check()?;
        notes.extend(dropped_fields(value));
        let id = options.id.clone().map_or_else(|| SessionId::new(&self.id), Ok)?;
        Ok((id, header))
    }
}

fn refuse_foreign_version(value: Value<'_, '_>) -> Result<(), DshError> {
    let Some((field, number)) = value.get("version").and_then(|field| Some((field, field.as_f64()?))) else {
        return Ok(());
    };
    let id = value.get("id").and_then(Value::to_text).unwrap_or_default();
    let version = number_text(number).unwrap_or_else(|| field.raw().to_owned());
    match number.partial_cmp(&(FORMAT_VERSION as f64)) {
        Some(Ordering::Equal) => Ok(()),
        Some(Ordering::Less) => Err(DshError::FormatOlder { id, version }),
        Some(Ordering::Greater) | None => Err(DshError::FormatNewer { id, version }),
    }
}

/// Whether the fields that every header has are there.
fn is_header(value: Value<'_, '_>) -> bool {
    let is_size = |key| value.get(key).and_then(Value::as_int53).is_some_and(|number| number >= 0);
    value.get("type").and_then(Value::as_text).is_some_and(|kind| kind.is("session"))
        && value.get("version").is_some_and(Value::is_number)
        && value.get("id").is_some_and(|id| id.as_text().is_some())
        && is_size("createdAt")
        && is_size("delegationDepth")
}

/// A header is kept as Rust text, which has no place for them.
fn refuse_lone_surrogates(value: Value<'_, '_>) -> Result<(), HeaderError> {
    let is_broken = |text: Text<'_>| String::from_utf8(text.decode().into_owned()).is_err();
    for key in FIELDS {
        if value.get(key).and_then(Value::as_text).is_some_and(is_broken) {
            return Err(HeaderError(format!("session header {key} holds a lone surrogate")));
        }
    }
    Ok(())
}

/// The header's text without its working directory.
fn without_cwd(value: Value<'_, '_>) -> String {
    let members: Vec<_> = value
        .entries()
        .filter(|(key, _)| !key.is("cwd"))
        .map(|(key, member)| format!("\"{}\":{}", key.raw(), member.raw()))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// A note on fields that the reference's reader drops too.
fn dropped_fields(value: Value<'_, '_>) -> Option<Note> {
    let keys: Vec<_> = value
        .entries()
        .filter(|(key, _)| !FIELDS.iter().any(|field| key.is(field)))
        .map(|(key, _)| excerpt(&String::from_utf8_lossy(&key.decode())))
        .collect();
    (!keys.is_empty()).then_some(Note::FieldsDropped { keys })
}
