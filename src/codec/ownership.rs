//! The record of an ownership as bytes: the payload of an `Owner` record, and an entry of the index.
//!
//! It is the only place that holds an epoch, and a lost epoch could be handed out twice. So the journal has the encoding
//! twice, and the record's stub has the epoch once more.

use std::sync::Arc;

use bytes::Bytes;

use super::change::{decode_either, put_twice};
use super::reader::{Malformed, Reader, put_block};
use crate::model::{Owner, TakeOver, Tenure};

/// Appends the encoding of an ownership to `out`.
pub fn encode(owner: &Owner, out: &mut Vec<u8>) {
    out.push(match owner.tenure {
        Tenure::Reserved => 1,
        Tenure::Live => 2,
        Tenure::Released => 3,
    });
    for number in [owner.epoch, owner.since_ms, owner.ttl_ms] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    put_block(owner.holder.as_bytes(), out);
    out.extend_from_slice(&(owner.take_overs.len() as u32).to_le_bytes());
    for take_over in &owner.take_overs {
        for number in [take_over.epoch, take_over.at_ms] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for text in [&take_over.holder, &take_over.from, &take_over.reason] {
            put_block(text.as_bytes(), out);
        }
    }
}

/// Takes one encoding off the front of `bytes`.
pub fn decode(bytes: &mut Bytes) -> Result<Owner, Malformed> {
    let mut reader = Reader::new(bytes, "owner");
    let tenure = match reader.u8()? {
        1 => Tenure::Reserved,
        2 => Tenure::Live,
        3 => Tenure::Released,
        _ => return reader.fail(),
    };
    let (epoch, since_ms, ttl_ms) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let holder = reader.text()?.into();
    let mut take_overs = Vec::new();
    for _ in 0..reader.u32()? {
        let (epoch, at_ms) = (reader.u64()?, reader.u64()?);
        let mut text = || reader.text().map(Arc::from);
        take_overs.push(TakeOver { epoch, at_ms, holder: text()?, from: text()?, reason: text()? });
    }
    Ok(Owner { epoch, holder, tenure, since_ms, ttl_ms, take_overs })
}

/// Appends the payload of an `Owner` record: the encoding twice, each as length, bytes and CRC-32C.
pub fn encode_record(owner: &Owner, out: &mut Vec<u8>) {
    let mut bytes = Vec::with_capacity(128);
    encode(owner, &mut bytes);
    put_twice(&bytes, out);
}

/// Reads the payload of an `Owner` record from whichever half is sound.
pub fn decode_record(payload: &Bytes) -> Result<Owner, Malformed> {
    decode_either(payload, decode)
}
