//! The canonical encoding of an event: what the journal stores and what the chain hashes.
//!
//! All integers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | seq, unsigned |
//! | 8 | time in milliseconds, signed |
//! | 4, n | length of the type, the type as UTF-8 |
//! | 1 | flags: 1 ignorable, 2 has a surface operation, 4 it is a replacement, 8 has source seqs |
//! | 8, 8 | start and end of the replacement, if flag 4 |
//! | 4, 8 each | count of source seqs, the seqs, if flag 8 |
//! | 4, n | length of the data, the data as it was appended |
//!
//! Version 1, for ever: a change of a byte here changes every chain. `tests/verify_chain.py` is the same rule in
//! another language.

use std::sync::Arc;

use bytes::Bytes;

use super::reader::{Malformed, Reader, put_block};
use crate::model::{Event, NewEvent, Seq, SurfaceOp};

const IGNORABLE: u8 = 1;
const SURFACE: u8 = 2;
const REPLACE: u8 = 4;
const SOURCES: u8 = 8;

/// Appends the canonical encoding of an event to `out`.
pub fn encode(seq: Seq, event: &NewEvent, out: &mut Vec<u8>) {
    out.extend_from_slice(&seq.get().to_le_bytes());
    out.extend_from_slice(&event.time_ms.to_le_bytes());
    put_block(event.kind.as_bytes(), out);
    let mut flags = if event.ignorable { IGNORABLE } else { 0 };
    flags |= match event.surface_op {
        None => 0,
        Some(SurfaceOp::Append) => SURFACE,
        Some(SurfaceOp::Replace { .. }) => SURFACE | REPLACE,
    };
    flags |= if event.source_event_seqs.is_some() { SOURCES } else { 0 };
    out.push(flags);
    if let Some(SurfaceOp::Replace { start, end }) = event.surface_op {
        out.extend_from_slice(&start.get().to_le_bytes());
        out.extend_from_slice(&end.get().to_le_bytes());
    }
    if let Some(seqs) = &event.source_event_seqs {
        out.extend_from_slice(&(seqs.len() as u32).to_le_bytes());
        for seq in seqs {
            out.extend_from_slice(&seq.get().to_le_bytes());
        }
    }
    put_block(&event.data, out);
}

/// Bytes of the first encoding of several.
pub fn length(bytes: &[u8]) -> Result<usize, Malformed> {
    const WHAT: Malformed = Malformed("event");
    let number = |at: usize| -> Result<usize, Malformed> {
        let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>).ok_or(WHAT)?;
        Ok(u32::from_le_bytes(*bytes) as usize)
    };
    let mut at = 16;
    at += 4 + number(at)?;
    let flags = *bytes.get(at).ok_or(WHAT)?;
    at += 1 + if flags & REPLACE == 0 { 0 } else { 16 };
    if flags & SOURCES != 0 {
        at += 4 + 8 * number(at)?;
    }
    at += 4 + number(at)?;
    if at <= bytes.len() { Ok(at) } else { Err(WHAT) }
}

/// Reads events from their encodings, sharing their data with the input and their types with each other.
#[derive(Debug, Default)]
pub struct Decoder {
    kinds: Vec<Arc<str>>,
}

/// Types remembered by one decoder; a log has a few dozen.
const KINDS_MAX: usize = 64;

impl Decoder {
    /// Takes one event off the front of `bytes`.
    pub fn decode(&mut self, bytes: &mut Bytes) -> Result<Event, Malformed> {
        let mut reader = Reader::new(bytes, "event");
        let seq = reader.u64()?;
        let time_ms = i64::from_le_bytes(reader.array()?);
        let kind = reader.block()?;
        let flags = reader.u8()?;
        let surface_op = match flags & (SURFACE | REPLACE) {
            0 => None,
            SURFACE => Some(SurfaceOp::Append),
            REPLACE => return reader.fail(),
            _ => {
                Some(SurfaceOp::Replace { start: Seq::saturating(reader.u64()?), end: Seq::saturating(reader.u64()?) })
            }
        };
        let source_event_seqs = if flags & SOURCES == 0 { None } else { Some(sources(&mut reader)?) };
        let data = reader.block()?;
        let Some(seq) = Seq::new(seq) else { return reader.fail() };
        if flags > (IGNORABLE | SURFACE | REPLACE | SOURCES) {
            return reader.fail();
        }
        let kind = self.kind(&kind)?;
        let ignorable = flags & IGNORABLE != 0;
        Ok(Event { seq, body: NewEvent { time_ms, kind, data, ignorable, surface_op, source_event_seqs } })
    }

    fn kind(&mut self, bytes: &[u8]) -> Result<Arc<str>, Malformed> {
        if let Some(known) = self.kinds.iter().find(|kind| kind.as_bytes() == bytes) {
            return Ok(known.clone());
        }
        let kind: Arc<str> = std::str::from_utf8(bytes).map_err(|_| Malformed("event type"))?.into();
        if self.kinds.len() < KINDS_MAX {
            self.kinds.push(kind.clone());
        }
        Ok(kind)
    }
}

fn sources(reader: &mut Reader<'_>) -> Result<Vec<Seq>, Malformed> {
    let count = reader.u32()? as usize;
    let list = reader.take(count.saturating_mul(8))?;
    let number = |bytes: &[u8]| {
        let mut array = [0; 8];
        array.copy_from_slice(bytes);
        Seq::saturating(u64::from_le_bytes(array))
    };
    Ok(list.chunks_exact(8).map(number).collect())
}
