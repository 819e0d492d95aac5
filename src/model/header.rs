//! The header of a session: what stands beside the log (reference 1.2).

use std::collections::BTreeMap;

use super::json::Value;
use super::limit::{HEADER_BYTES_MAX, LABELS_MAX};
use super::seq::INT53_MAX;

/// The one format version that exists.
pub const FORMAT_VERSION: i64 = 0;

/// Where a session came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A parent agent started it.
    Subagent,
}

/// Which rules a session's appends are held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Refuses what would make a later read refuse the log; reports broken nesting.
    #[default]
    Dsh,
    /// Refuses broken nesting too.
    DshStrict,
    /// Envelope, contiguity and JSON only.
    Raw,
}

/// The header, without the id (the session key holds it).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Milliseconds since 1970, 0..=2^53-1.
    pub created_at_ms: u64,
    /// Absolute path of the working directory.
    pub cwd: Option<String>,
    /// Id of the parent session; may be empty.
    pub parent_session: Option<String>,
    /// How many events were inherited.
    pub seed_length: Option<u64>,
    /// Where the session came from.
    pub origin: Option<Origin>,
    /// How many delegations deep.
    pub delegation_depth: Option<u64>,
    /// Name of the agent preset.
    pub agent_preset: Option<String>,
    /// Free labels of the operator.
    pub labels: BTreeMap<String, String>,
}

/// Why a header was refused; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HeaderError(pub String);

impl Header {
    /// Checks the fields in the reference's order, then our own size limits.
    pub fn check(&self) -> Result<(), HeaderError> {
        check_int53("createdAt", Some(self.created_at_ms))?;
        if let Some(cwd) = &self.cwd {
            check_absolute(cwd)?;
        }
        check_int53("seedLength", self.seed_length)?;
        check_int53("delegationDepth", self.delegation_depth)?;
        self.check_size()
    }

    fn check_size(&self) -> Result<(), HeaderError> {
        if self.labels.len() > LABELS_MAX {
            return refuse(format!("has {} labels; {LABELS_MAX} are allowed", self.labels.len()));
        }
        if let Some(key) = self.labels.keys().find(|key| key.is_empty() || key.chars().any(char::is_control)) {
            return refuse(format!("label {key:?} must be non-empty and free of control characters"));
        }
        let texts = [&self.cwd, &self.parent_session, &self.agent_preset];
        let all = texts.into_iter().flatten().chain(self.labels.values());
        if all.into_iter().any(|text| text.contains('\0')) {
            return refuse("contains a NUL character".to_owned());
        }
        let text_bytes: usize = texts.iter().map(|text| text.as_ref().map_or(0, String::len)).sum();
        let label_bytes: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        let bytes = text_bytes + label_bytes + 64;
        if bytes > HEADER_BYTES_MAX {
            return refuse(format!("has {bytes} bytes; {HEADER_BYTES_MAX} are allowed"));
        }
        Ok(())
    }

    /// Reads a header in the reference's JSON form, with its checks in its order and its error texts.
    ///
    /// Unknown keys are dropped: the reference's own stores drop them too (reference 1.2).
    pub fn from_json(id: &str, value: Value<'_, '_>) -> Result<Self, HeaderError> {
        if !value.is_object() {
            return refuse("is not a plain JSON record".to_owned());
        }
        check_version(value)?;
        let found = value.get("id").and_then(Value::to_text);
        if found.as_deref() != Some(id) {
            let found = found.unwrap_or_default();
            return refuse(format!("id {found:?} does not match session id {id:?}"));
        }
        let created_at_ms = int53_field(value, "createdAt")?;
        let header = Self {
            created_at_ms: created_at_ms.map_or_else(|| refuse(not_int53("createdAt")), Ok)?,
            cwd: text_field(value, "cwd")?,
            parent_session: None,
            ..Self::default()
        };
        if let Some(cwd) = &header.cwd {
            check_absolute(cwd)?;
        }
        Ok(Self {
            parent_session: text_field(value, "parentSession")?,
            seed_length: int53_field(value, "seedLength")?,
            origin: origin_field(value)?,
            delegation_depth: int53_field(value, "delegationDepth")?,
            agent_preset: text_field(value, "agentPreset")?,
            ..header
        })
    }
}

fn refuse<T>(problem: String) -> Result<T, HeaderError> {
    Err(HeaderError(format!("session header {problem}")))
}

fn not_int53(name: &str) -> String {
    format!("{name} must be a non-negative safe integer")
}

fn check_int53(name: &str, value: Option<u64>) -> Result<(), HeaderError> {
    match value {
        Some(n) if n > INT53_MAX => refuse(not_int53(name)),
        _ => Ok(()),
    }
}

/// Absolute as the reference means it on POSIX: it starts with a slash.
fn check_absolute(cwd: &str) -> Result<(), HeaderError> {
    if cwd.starts_with('/') { Ok(()) } else { refuse(format!("cwd must be an absolute path, got {cwd:?}")) }
}

fn check_version(value: Value<'_, '_>) -> Result<(), HeaderError> {
    let version = value.get("version");
    if version.and_then(Value::as_int53) == Some(FORMAT_VERSION) {
        return Ok(());
    }
    let got = version.map_or_else(
        || "undefined".to_owned(),
        |version| version.to_text().unwrap_or_else(|| version.raw().to_owned()),
    );
    refuse(format!("version must be {FORMAT_VERSION}, got {got}"))
}

fn text_field(value: Value<'_, '_>, name: &str) -> Result<Option<String>, HeaderError> {
    let Some(field) = value.get(name) else { return Ok(None) };
    field.to_text().map_or_else(|| refuse(format!("{name} must be a string")), |text| Ok(Some(text)))
}

fn int53_field(value: Value<'_, '_>, name: &str) -> Result<Option<u64>, HeaderError> {
    let Some(field) = value.get(name) else { return Ok(None) };
    let number = field.as_int53().and_then(|n| u64::try_from(n).ok());
    number.map_or_else(|| refuse(not_int53(name)), |n| Ok(Some(n)))
}

fn origin_field(value: Value<'_, '_>) -> Result<Option<Origin>, HeaderError> {
    match value.get("origin").map(Value::to_text) {
        None => Ok(None),
        Some(Some(text)) if text == "subagent" => Ok(Some(Origin::Subagent)),
        Some(_) => refuse("origin must be \"subagent\"".to_owned()),
    }
}
