//! The manifest: what an archive holds, in one exact form.

use std::fmt::Write as _;

use super::ArchiveError;
use crate::codec::Chain;
use crate::model::header::FORMAT_VERSION;
use crate::model::json::{self, Value, quote};
use crate::model::{Header, Namespace, Origin, Profile, SessionId};

/// What names the format.
const FORMAT: &str = "quipu-archive";
/// The one version that exists.
const VERSION: i64 = 1;

/// What an archive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The tenant whose sessions they are.
    pub namespace: Namespace,
    /// Runs of stream deltas are written as packed rows.
    pub is_packed: bool,
    /// BLAKE3 of everything before the manifest.
    pub digest: [u8; 32],
    /// The sessions, the root first, every other one after its parent.
    pub sessions: Vec<Member>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its entry.
    pub file: String,
    /// The session.
    pub id: SessionId,
    /// Its header, labels included.
    pub header: Header,
    /// The rules for its appends.
    pub profile: Profile,
    /// How many events.
    pub events: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// The chain through the last event, as the file has the events.
    pub chain: Chain,
    /// How many events had line breaks between the tokens of their data, which became spaces.
    pub line_breaks: u64,
}

impl Manifest {
    /// The text of the entry.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{{\"format\":\"{FORMAT}\",\"version\":{VERSION},\"namespace\":\"{}\",\"packed\":{},\"digest\":\"{}\",\"sessions\":[",
            self.namespace,
            self.is_packed,
            hex(&self.digest),
        );
        for (index, member) in self.sessions.iter().enumerate() {
            text.push_str(if index == 0 { "\n" } else { ",\n" });
            text.push_str(&member.text());
        }
        text.push_str("\n]}\n");
        text
    }

    /// Reads what [`text`](Self::text) writes, and nothing else.
    pub fn read(text: &[u8]) -> Result<Self, ArchiveError> {
        let doc = json::parse(text).map_err(|error| wrong(&error.to_string()))?;
        let root = doc.root();
        if root.get("format").and_then(Value::to_text).as_deref() != Some(FORMAT) {
            return Err(wrong("is no manifest"));
        }
        let version = root.get("version").and_then(Value::as_int53);
        if version != Some(VERSION) {
            let found = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            return Err(wrong(&format!("has the version {found}; this build reads {VERSION}")));
        }
        let namespace = root.get("namespace").and_then(Value::to_text).unwrap_or_default();
        let manifest = Self {
            namespace: Namespace::new(&namespace).map_err(|error| wrong(&error.to_string()))?,
            is_packed: root.get("packed").and_then(Value::as_bool) == Some(true),
            digest: bytes32(root.get("digest")).ok_or_else(|| wrong("has no digest"))?,
            sessions: root
                .get("sessions")
                .into_iter()
                .flat_map(Value::items)
                .map(Member::read)
                .collect::<Result<_, _>>()?,
        };
        if manifest.text().as_bytes() != text {
            return Err(wrong("is not in the one form that it has"));
        }
        Ok(manifest)
    }
}

impl Member {
    fn text(&self) -> String {
        let Self { events, bytes, line_breaks, .. } = self;
        let breaks = if *line_breaks > 0 { format!(",\"lineBreaks\":{line_breaks}") } else { String::new() };
        let profile = profile_name(self.profile);
        format!(
            "{{\"file\":{},\"profile\":\"{profile}\",\"events\":{events},\"bytes\":{bytes},\"chain\":\"{}\"{breaks},\"header\":{}}}",
            quote(&self.file),
            hex(&self.chain.0),
            header_text(&self.id, &self.header),
        )
    }

    fn read(value: Value<'_, '_>) -> Result<Self, ArchiveError> {
        let text = |key: &str| value.get(key).and_then(Value::to_text).unwrap_or_default();
        let count = |key: &str| value.get(key).and_then(Value::as_int53).and_then(|n| u64::try_from(n).ok());
        let head = value.get("header").ok_or_else(|| wrong("has a session without header"))?;
        let id = head.get("id").and_then(Value::to_text).unwrap_or_default();
        let mut header = Header::from_json(&id, head).map_err(|error| wrong(&format!("has a header that {error}")))?;
        let labels = head.get("labels").into_iter().flat_map(Value::entries);
        header.labels = labels
            .filter_map(|(key, label)| Some((String::from_utf8(key.decode().into_owned()).ok()?, label.to_text()?)))
            .collect();
        header.check().map_err(|error| wrong(&format!("has a header that {error}")))?;
        let profile = [Profile::Dsh, Profile::DshStrict, Profile::Raw];
        let profile = profile.into_iter().find(|profile| profile_name(*profile) == text("profile"));
        Ok(Self {
            file: text("file"),
            id: SessionId::new(&id).map_err(|error| wrong(&error.to_string()))?,
            header,
            profile: profile.ok_or_else(|| wrong("has a session without profile"))?,
            events: count("events").ok_or_else(|| wrong("has a session without count"))?,
            bytes: count("bytes").ok_or_else(|| wrong("has a session without size"))?,
            chain: Chain(bytes32(value.get("chain")).ok_or_else(|| wrong("has a session without chain"))?),
            line_breaks: count("lineBreaks").unwrap_or_default(),
        })
    }
}

fn header_text(id: &SessionId, header: &Header) -> String {
    let mut text =
        format!("{{\"version\":{FORMAT_VERSION},\"id\":{},\"createdAt\":{}", quote(id.as_str()), header.created_at_ms);
    let texts =
        [("cwd", &header.cwd), ("parentSession", &header.parent_session), ("agentPreset", &header.agent_preset)];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key, quote(text.as_ref()?))));
    let counts = [("seedLength", header.seed_length), ("delegationDepth", header.delegation_depth)];
    let counts = counts.into_iter().filter_map(|(key, count)| Some((key, count?.to_string())));
    let origin = header.origin.map(|Origin::Subagent| ("origin", "\"subagent\"".to_owned()));
    for (key, value) in texts.chain(counts).chain(origin) {
        // Writing to a string cannot fail.
        let _ = write!(text, ",\"{key}\":{value}");
    }
    if !header.labels.is_empty() {
        let labels: Vec<_> =
            header.labels.iter().map(|(key, label)| format!("{}:{}", quote(key), quote(label))).collect();
        let _ = write!(text, ",\"labels\":{{{}}}", labels.join(","));
    }
    text.push('}');
    text
}

fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::Dsh => "dsh",
        Profile::DshStrict => "dsh-strict",
        Profile::Raw => "raw",
    }
}

fn wrong(problem: &str) -> ArchiveError {
    ArchiveError::Manifest { problem: problem.to_owned() }
}

fn hex(bytes: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}

fn bytes32(value: Option<Value<'_, '_>>) -> Option<[u8; 32]> {
    let text = value?.to_text()?;
    blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes())
}
