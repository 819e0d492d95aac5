//! The values of the index: sessions, the checkpoint, and the checksum that each of them carries.
//!
//! A value that does not have the form or the checksum makes the index unusable, never a session wrong. Keys are the
//! business of `index` and `shares`.

use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::index::{Broken, Mark, broken};
use super::journal::Cursor;
use super::table::Entry;
use crate::codec::{Chain, Summary};
use crate::model::Seq;
use crate::store::{Birth, Damage, LogId, Position, Session};

/// The form of the entries; another one is built anew.
const FORMAT: u64 = 3;

pub(super) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

pub(super) fn unseal(bytes: &[u8]) -> Result<Bytes, Broken> {
    let Some((content, checksum)) = bytes.split_at_checked(bytes.len().wrapping_sub(4)) else { return broken("entry") };
    if crc32c::crc32c(content).to_le_bytes() == checksum {
        Ok(Bytes::copy_from_slice(content))
    } else {
        broken("entry")
    }
}

/// The checksum of an ownership; that of nothing is 0, and no other is.
pub(super) fn checksum(owner: &[u8]) -> u64 {
    if owner.is_empty() { 0 } else { u64::from(crc32c::crc32c(owner)) + 1 }
}

/// `owner` is the checksum of the ownership.
pub(super) fn encode_entry(entry: &Entry, owner: u64) -> Vec<u8> {
    let session = &entry.session;
    let mut out = Vec::with_capacity(256);
    let good = entry.damage.map_or(u64::MAX, |damage| damage.good_next_seq.get());
    for number in [session.next_seq.get(), session.updated_ms, session.position.0, good] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&session.chain.0);
    session.birth.encode(&mut out);
    let marker = session.marker.map_or(u64::MAX, Seq::get);
    for number in [session.shared_until.get(), session.copied_until.get(), marker, owner] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&session.request);
    session.summary.encode(&mut out);
    seal(out)
}

pub(super) fn decode_entry(log: LogId, bytes: &[u8]) -> Result<(Entry, u64), Broken> {
    let mut bytes = unseal(bytes)?;
    if bytes.len() < 64 {
        return broken("session");
    }
    let next_seq = Seq::saturating(bytes.get_u64_le());
    let (updated_ms, position) = (bytes.get_u64_le(), Position(bytes.get_u64_le()));
    let good = bytes.get_u64_le();
    let damage = (good != u64::MAX).then(|| Damage { good_next_seq: Seq::saturating(good) });
    let mut chain = [0; 32];
    bytes.copy_to_slice(&mut chain);
    let birth = Arc::new(Birth::decode(&mut bytes).map_err(|e| Broken::of(&e))?);
    if bytes.len() < 48 {
        return broken("session");
    }
    let (shared_until, copied_until) = (Seq::saturating(bytes.get_u64_le()), Seq::saturating(bytes.get_u64_le()));
    let marker = Seq::new(bytes.get_u64_le());
    let owner = bytes.get_u64_le();
    let mut request = [0; 16];
    bytes.copy_to_slice(&mut request);
    let summary = Summary::decode(&mut bytes).map_err(|e| Broken::of(&e))?;
    let born = Session::born(log, birth, (updated_ms, position));
    let chain = Chain(chain);
    let session = Session { next_seq, chain, shared_until, copied_until, marker, request, summary, ..born };
    Ok((Entry::new(session, damage, false), owner))
}

pub(super) fn encode_mark(mark: &Mark, store: u64) -> Vec<u8> {
    let cursor = mark.cursor;
    let numbers =
        [cursor.segment, cursor.offset, cursor.position, mark.horizon.0, mark.log_max, mark.names, mark.shares];
    let numbers = numbers.into_iter().chain([FORMAT, store]);
    seal(numbers.flat_map(u64::to_le_bytes).collect())
}

pub(super) fn decode_mark(bytes: &[u8], store: u64) -> Result<Mark, Broken> {
    let mut bytes = unseal(bytes)?;
    if bytes.len() != 72 {
        return broken("checkpoint, or one of another format");
    }
    let cursor = Cursor { segment: bytes.get_u64_le(), offset: bytes.get_u64_le(), position: bytes.get_u64_le() };
    let (horizon, log_max) = (Position(bytes.get_u64_le()), bytes.get_u64_le());
    let (names, shares) = (bytes.get_u64_le(), bytes.get_u64_le());
    if bytes.get_u64_le() != FORMAT {
        return broken("checkpoint: it has another format");
    }
    if bytes.get_u64_le() == store {
        Ok(Mark { cursor, horizon, log_max, names, shares })
    } else {
        broken("checkpoint: it is of another store")
    }
}
