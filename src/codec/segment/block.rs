//! A block on disk: a header, then the packed events, compressed.

use super::super::reader::Reader;
use super::super::{Chain, Malformed};
use super::unpack::Block;
use super::{PACKED_BYTES_MAX, Packer};
use crate::codec::frame::PAYLOAD_BYTES_MAX;
use crate::model::Seq;

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 76;
/// The largest canonical form of a block that is read: runs are not split, so that the last one may be a whole record.
const CANONICAL_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64;
const WHAT: &str = "sealed block";
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_WITH_DICTIONARY: u8 = 2;
/// The largest dictionary.
pub const DICTIONARY_BYTES_MAX: usize = 1 << 20;

/// What a block says about itself. Its first four bytes are a CRC-32C of everything behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The log.
    pub log: u64,
    /// Seq of the first event.
    pub first_seq: Seq,
    /// How many events.
    pub count: u32,
    /// [`Chain::link`] of the chain before.
    pub link: u64,
    /// The chain after.
    pub chain: Chain,
    /// Bytes of the canonical events.
    pub canonical_bytes: u32,
}

/// Compresses and decompresses blocks, with memory that is used again.
pub struct Codec {
    level: i32,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    dictionary: Vec<u8>,
}

impl Codec {
    /// A codec that compresses with that level of zstd, 1 to 19.
    pub fn new(level: i32) -> Self {
        Self::with_dictionary(level, Vec::new())
    }

    /// As [`Codec::new`], for blocks that are read with that dictionary: text that many of them hold, such as the
    /// instructions that every session begins with.
    pub fn with_dictionary(level: i32, dictionary: Vec<u8>) -> Self {
        Self { level: level.clamp(1, 19), compressor: None, dictionary }
    }

    /// What [`Codec::with_dictionary`] was given.
    pub fn dictionary(&self) -> &[u8] {
        &self.dictionary
    }

    /// Bytes as they are stored: compressed if that is shorter, and how.
    fn squeeze(&mut self, plain: &[u8], out: &mut Vec<u8>) -> u8 {
        if self.compressor.is_none() {
            self.compressor = zstd::bulk::Compressor::with_dictionary(self.level, &self.dictionary).ok();
        }
        let compressed = self.compressor.as_mut().and_then(|compressor| compressor.compress(plain).ok());
        if let Some(compressed) = compressed.filter(|compressed| compressed.len() < plain.len()) {
            out.extend_from_slice(&compressed);
            return if self.dictionary.is_empty() { ZSTD } else { ZSTD_WITH_DICTIONARY };
        }
        out.extend_from_slice(plain);
        PLAIN
    }

    /// Appends a block to `out`: everything that was pushed to the packer.
    pub fn encode(&mut self, log: u64, bounds: (Seq, u64, Chain), packer: Packer, out: &mut Vec<u8>) -> BlockHeader {
        let (first_seq, link, chain) = bounds;
        let (count, canonical_bytes) = (packer.count(), packer.canonical_bytes() as u32);
        let header = BlockHeader { log, first_seq, count, link, chain, canonical_bytes };
        let plain = packer.finish();
        let start = out.len();
        out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
        let how = self.squeeze(&plain, out);
        let mut fields = Vec::with_capacity(BLOCK_HEADER_BYTES - 4);
        fields.extend_from_slice(&[super::VERSION, how, 0, 0]);
        fields.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        fields.extend_from_slice(&canonical_bytes.to_le_bytes());
        fields.extend_from_slice(&count.to_le_bytes());
        for number in [log, first_seq.get(), link] {
            fields.extend_from_slice(&number.to_le_bytes());
        }
        fields.extend_from_slice(&chain.0);
        out[start + 4..start + BLOCK_HEADER_BYTES].copy_from_slice(&fields);
        let checksum = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// Appends `plain` with its length and how it is stored, for [`inflate`].
    pub fn deflate(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.push(PLAIN);
        out.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        let how = self.squeeze(plain, out);
        out[start] = how;
    }
}

/// What [`Codec::deflate`] wrote; refuses more than `bytes_max`.
pub fn inflate(bytes: &[u8], bytes_max: usize, what: &'static str) -> Result<Vec<u8>, Malformed> {
    let Some((&[how, a, b, c, d], stored)) = bytes.split_first_chunk::<5>() else { return Err(Malformed(what)) };
    expand((how, &[]), stored, u32::from_le_bytes([a, b, c, d]) as usize, bytes_max).ok_or(Malformed(what))
}

/// Exactly `length` bytes, or nothing.
fn expand((how, dictionary): (u8, &[u8]), stored: &[u8], length: usize, bytes_max: usize) -> Option<Vec<u8>> {
    if length > bytes_max {
        return None;
    }
    let plain = match how {
        PLAIN => stored.to_vec(),
        ZSTD => zstd::bulk::decompress(stored, length).ok()?,
        ZSTD_WITH_DICTIONARY => {
            zstd::bulk::Decompressor::with_dictionary(dictionary).ok()?.decompress(stored, length).ok()?
        }
        _ => return None,
    };
    (plain.len() == length).then_some(plain)
}

impl Block {
    /// Reads a stored block, of which all bytes are checked, with the dictionary of its file.
    pub fn decode(bytes: &[u8], dictionary: &[u8]) -> Result<Self, Malformed> {
        const DAMAGED: Malformed = Malformed(WHAT);
        let (checksum, covered) = bytes.split_at_checked(4).ok_or(DAMAGED)?;
        if crc32c::crc32c(covered).to_le_bytes() != checksum {
            return Err(DAMAGED);
        }
        let (fields, stored) = covered.split_at_checked(BLOCK_HEADER_BYTES - 4).ok_or(DAMAGED)?;
        let mut fields = bytes::Bytes::copy_from_slice(fields);
        let mut reader = Reader::new(&mut fields, WHAT);
        let [version, how, _, _] = reader.array()?;
        if version > super::VERSION {
            return Err(Malformed("sealed block of a newer quipu"));
        }
        let packed_bytes = reader.u32()? as usize;
        let (canonical_bytes, count) = (reader.u32()?, reader.u32()?);
        let (log, first_seq, link) = (reader.u64()?, Seq::saturating(reader.u64()?), reader.u64()?);
        let header = BlockHeader { log, first_seq, count, link, chain: Chain(reader.array()?), canonical_bytes };
        if u64::from(canonical_bytes) > CANONICAL_BYTES_MAX {
            return Err(DAMAGED);
        }
        let packed = expand((how, dictionary), stored, packed_bytes, PACKED_BYTES_MAX).ok_or(DAMAGED)?;
        Self::parse(header, packed)
    }
}
