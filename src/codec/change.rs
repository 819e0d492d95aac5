//! What a committed change says: the payload of a journal record.
//!
//! One record is one change, and a change that touches several keys is one record, so that it is atomic by
//! construction. Numbers that are not in [`Kind`] are those of a later version, which this one refuses by number.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::reader::{Malformed, Reader, put_block, put_optional};
use crate::model::{Header, Incarnation, Origin, Profile, SessionKey};

/// The kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A session begins.
    Create,
    /// Events are added to a log.
    Append,
    /// A session is deleted.
    Delete,
    /// A session changes hands; the payload is an ownership. The header counts its epoch.
    Owner,
    /// Closers are added to a log: an append that the service decided on.
    Repair,
    /// A session begins as a fork of another.
    Fork,
    /// A copy of shared events, or (without events) the end of such copying: the log stands alone.
    Detach,
    /// A deleted log gives up its events from some seq on.
    Purge,
}

impl Kind {
    /// The number on disk.
    pub const fn code(self) -> u8 {
        match self {
            Self::Create => 1,
            Self::Append => 2,
            Self::Delete => 3,
            Self::Owner => 4,
            Self::Repair => 5,
            Self::Fork => 6,
            Self::Detach => 7,
            Self::Purge => 8,
        }
    }

    /// The kind of a number.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Create),
            2 => Some(Self::Append),
            3 => Some(Self::Delete),
            4 => Some(Self::Owner),
            5 => Some(Self::Repair),
            6 => Some(Self::Fork),
            7 => Some(Self::Detach),
            8 => Some(Self::Purge),
            _ => None,
        }
    }
}

/// What a `Create` record says, and the constant part of a session in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    /// The name.
    pub key: SessionKey,
    /// Which life of the name.
    pub incarnation: Incarnation,
    /// The rules for appends.
    pub profile: Profile,
    /// The header.
    pub header: Header,
}

impl Birth {
    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_block(self.key.namespace.as_str().as_bytes(), out);
        put_block(self.key.id.as_str().as_bytes(), out);
        out.extend_from_slice(&self.incarnation.0);
        out.push(match self.profile {
            Profile::Dsh => 1,
            Profile::DshStrict => 2,
            Profile::Raw => 3,
        });
        encode_header(&self.header, out);
    }

    /// Takes one encoding off the front of `bytes`.
    pub fn decode(bytes: &mut Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "session");
        let (namespace, id) = (reader.text()?, reader.text()?);
        let key = SessionKey::new(&namespace, &id).or_else(|_| reader.fail())?;
        let incarnation = Incarnation(reader.array()?);
        let profile = match reader.u8()? {
            1 => Profile::Dsh,
            2 => Profile::DshStrict,
            3 => Profile::Raw,
            _ => return reader.fail(),
        };
        Ok(Self { key, incarnation, profile, header: decode_header(&mut reader)? })
    }
}

impl Birth {
    /// Appends the payload of a `Create` record: the encoding twice, each as length, bytes and CRC-32C.
    ///
    /// It is the only place that holds the name, so that one damaged place must not hide that there is a session.
    pub fn encode_twice(&self, out: &mut Vec<u8>) {
        let mut birth = Vec::with_capacity(256);
        self.encode(&mut birth);
        put_twice(&birth, out);
    }

    /// Reads the payload of a `Create` record from whichever half is sound.
    pub fn decode_either(payload: &Bytes) -> Result<Self, Malformed> {
        decode_either(payload, Self::decode)
    }
}

/// Appends a block twice, each as length, bytes and CRC-32C.
pub(super) fn put_twice(block: &[u8], out: &mut Vec<u8>) {
    for _ in 0..2 {
        put_block(block, out);
        out.extend_from_slice(&crc32c::crc32c(block).to_le_bytes());
    }
}

/// Reads what stands there twice from whichever half is sound.
pub(super) fn decode_either<T>(
    payload: &Bytes,
    decode: impl Fn(&mut Bytes) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let sealed = |mut bytes: Bytes| {
        let mut reader = Reader::new(&mut bytes, "record");
        let mut block = reader.block()?;
        if reader.u32()? == crc32c::crc32c(&block) { decode(&mut block) } else { reader.fail() }
    };
    // The length of the first half may be what is damaged; the halves are alike.
    sealed(payload.clone()).or_else(|_| sealed(payload.slice(payload.len() / 2..)))
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_block(text.as_bytes(), out);
}

fn put_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn encode_header(header: &Header, out: &mut Vec<u8>) {
    put_number(header.created_at_ms, out);
    put_optional(header.cwd.as_deref(), out, put_text);
    put_optional(header.parent_session.as_deref(), out, put_text);
    put_optional(header.seed_length, out, put_number);
    put_optional(header.origin, out, |Origin::Subagent, out| out.push(1));
    put_optional(header.delegation_depth, out, put_number);
    put_optional(header.agent_preset.as_deref(), out, put_text);
    out.extend_from_slice(&(header.labels.len() as u32).to_le_bytes());
    for (name, value) in &header.labels {
        put_text(name, out);
        put_text(value, out);
    }
}

fn decode_header(reader: &mut Reader<'_>) -> Result<Header, Malformed> {
    Ok(Header {
        created_at_ms: reader.u64()?,
        cwd: reader.optional(Reader::text)?,
        parent_session: reader.optional(Reader::text)?,
        seed_length: reader.optional(Reader::u64)?,
        origin: reader.optional(|reader| match reader.u8()? {
            1 => Ok(Origin::Subagent),
            _ => reader.fail(),
        })?,
        delegation_depth: reader.optional(Reader::u64)?,
        agent_preset: reader.optional(Reader::text)?,
        labels: {
            let count = reader.u32()?;
            let mut labels = BTreeMap::new();
            for _ in 0..count {
                labels.insert(reader.text()?, reader.text()?);
            }
            labels
        },
    })
}
