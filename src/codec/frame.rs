//! Frames of the journal: segment header, group, record.
//!
//! ```text
//! segment file   one block of 4,096 bytes: SegmentHeader, then zeros; then groups; then zeros to the end
//! group          starts on a sector (512 bytes): GroupHeader (64), records, PADDING to the next sector
//! record         RecordHeader (84), RecordStub (40), payload
//! ```
//!
//! A group is what one write and one sync made durable. Its header has a checksum; each record has one over its
//! header, one over its stub and one over its payload, so that a payload is never served unverified and is hashed
//! once only. The stub repeats what a record touches, so that one damaged place cannot hide whose record it is.
//!
//! A sector is written whole or not at all, and an unwritten one reads as zeros, because segments are filled with
//! zeros before use. No valid group contains an all-zero sector (its texts have no NUL, and it is padded with another
//! byte), so a group that was torn by a crash shows at least one, and a group that was damaged later shows none: the
//! two are told apart by looking.
//! Integers are little-endian.

use bytes::Bytes;

use super::Chain;
use super::change::Kind;
use super::reader::{Malformed, Reader};
use crate::model::Seq;

/// The alignment of groups.
pub const SECTOR: usize = 512;
/// Bytes before the first group of a segment.
pub const SEGMENT_HEADER_BYTES: usize = 4096;
/// Bytes of a group header.
pub const GROUP_HEADER_BYTES: usize = 64;
/// Bytes of a record before its payload: header and stub.
pub const RECORD_HEADER_BYTES: usize = 84 + RECORD_STUB_BYTES;
const RECORD_STUB_BYTES: usize = 40;
/// What follows the records of a group up to the next sector. Not zero: the last sector of a group may hold no more
/// than a few zero bytes of its last record, and would look as if it had never been written.
pub const PADDING: u8 = 0xA5;
/// Largest payload of one record: far above any batch, far below a length that could hurt.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;
/// Largest group.
pub const GROUP_BYTES_MAX: usize = 1 << 30;

/// Not UTF-8, so that no event can contain it.
const GROUP_MAGIC: [u8; 8] = [0xF5, b'q', b'g', b'r', b'o', b'u', 0xFF, 1];
const SEGMENT_MAGIC: [u8; 8] = [0xF5, b'q', b's', b'e', b'g', b'm', 0xFF, 1];
const RECORD_VERSION: u8 = 1;

/// The first block of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store that the segment belongs to.
    pub store: [u8; 16],
    /// Segments count from 1, without a hole.
    pub segment: u64,
    /// Length of the file in bytes; a shorter file was cut.
    pub file_bytes: u64,
}

impl SegmentHeader {
    /// The block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        put_checksum(&mut out, 0);
        out.resize(SEGMENT_HEADER_BYTES, 0);
        out
    }

    /// Reads a block; refuses any other magic, version or checksum.
    pub fn decode(block: &[u8]) -> Result<Self, Malformed> {
        let mut bytes = checked(block, 44, "segment header")?;
        let mut reader = Reader::new(&mut bytes, "segment header");
        if reader.array()? != SEGMENT_MAGIC {
            return reader.fail();
        }
        Ok(Self { store: reader.array()?, segment: reader.u64()?, file_bytes: reader.u64()? })
    }
}

/// What stands before the records of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// Bytes of the records.
    pub body_bytes: u32,
    /// How many records.
    pub records: u32,
    /// Position of the first record; the others follow without a hole.
    pub first_position: u64,
    /// The server's clock at the commit.
    pub time_ms: u64,
    /// The segment that the group was written to.
    pub segment: u64,
    /// First half of the store id: a block of another store is never taken for ours.
    pub store: u64,
}

impl GroupHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; GROUP_HEADER_BYTES] {
        let mut out = Vec::with_capacity(GROUP_HEADER_BYTES);
        out.extend_from_slice(&GROUP_MAGIC);
        out.extend_from_slice(&self.body_bytes.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        for number in [self.first_position, self.time_ms, self.segment, self.store] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(GROUP_HEADER_BYTES - 4, 0);
        put_checksum(&mut out, 0);
        let mut header = [0; GROUP_HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut bytes = checked(bytes, GROUP_HEADER_BYTES, "group header")?;
        let mut reader = Reader::new(&mut bytes, "group header");
        if reader.array()? != GROUP_MAGIC {
            return reader.fail();
        }
        let header = Self {
            body_bytes: reader.u32()?,
            records: reader.u32()?,
            first_position: reader.u64()?,
            time_ms: reader.u64()?,
            segment: reader.u64()?,
            store: reader.u64()?,
        };
        if header.body_bytes as usize > GROUP_BYTES_MAX { reader.fail() } else { Ok(header) }
    }

    /// Bytes from this header to the next group.
    pub fn span(&self) -> u64 {
        (GROUP_HEADER_BYTES as u64 + u64::from(self.body_bytes)).next_multiple_of(SECTOR as u64)
    }
}

/// What a record says about its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What the payload is.
    pub kind: Kind,
    /// The place in the node's order of changes.
    pub position: u64,
    /// The log that it changes.
    pub log: u64,
    /// Seq of the first event (`Append`, `Repair`), else the log's `next_seq`.
    pub first_seq: Seq,
    /// How many events; of an `Owner` record its epoch, so that the stub keeps it.
    pub count: u32,
    /// [`Chain::link`] of the chain before.
    pub link: u64,
    /// The chain after.
    pub chain: Chain,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// CRC-32C of the payload.
    pub payload_checksum: u32,
}

/// The part of a record's header that is stored twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordStub {
    /// See [`RecordHeader::kind`]; `None` for one that this version does not know.
    pub kind: Option<Kind>,
    /// See [`RecordHeader::position`].
    pub position: u64,
    /// See [`RecordHeader::log`].
    pub log: u64,
    /// See [`RecordHeader::first_seq`].
    pub first_seq: Seq,
    /// See [`RecordHeader::count`].
    pub count: u32,
    /// See [`RecordHeader::payload_bytes`].
    pub payload_bytes: u32,
}

impl RecordHeader {
    /// Appends header and stub to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[self.kind.code(), RECORD_VERSION, 0, 0]);
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        for number in [self.position, self.log, self.first_seq.get(), self.link] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.payload_checksum.to_le_bytes());
        out.extend_from_slice(&self.chain.0);
        put_checksum(out, start);
        let stub = out.len();
        for number in [self.position, self.log, self.first_seq.get()] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        out.extend_from_slice(&[self.kind.code(), RECORD_VERSION, 0, 0]);
        put_checksum(out, stub);
    }

    /// The seq after its events, if it holds events.
    pub fn next_seq(&self) -> Seq {
        Seq::saturating(self.first_seq.get().saturating_add(u64::from(self.count)))
    }

    /// The part that the stub repeats.
    pub fn stub(&self) -> RecordStub {
        RecordStub {
            kind: Some(self.kind),
            position: self.position,
            log: self.log,
            first_seq: self.first_seq,
            count: self.count,
            payload_bytes: self.payload_bytes,
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut bytes = checked(bytes, RECORD_HEADER_BYTES - RECORD_STUB_BYTES, "record header")?;
        let mut reader = Reader::new(&mut bytes, "record header");
        let [kind, version, _, _] = reader.array()?;
        let Some(kind) = Kind::from_code(kind).filter(|_| version == RECORD_VERSION) else {
            return Err(Malformed("record: kind or version of a newer quipu"));
        };
        let payload_bytes = reader.u32()?;
        Ok(Self {
            kind,
            position: reader.u64()?,
            log: reader.u64()?,
            first_seq: Seq::saturating(reader.u64()?),
            link: reader.u64()?,
            count: reader.u32()?,
            payload_checksum: reader.u32()?,
            chain: Chain(reader.array()?),
            payload_bytes,
        })
    }

    /// Whether `payload` is what was stored.
    pub fn matches(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_bytes as usize && crc32c::crc32c(payload) == self.payload_checksum
    }
}

/// What the first bytes of a record say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStart {
    /// The header is sound; the payload may still not be.
    Sound(RecordHeader),
    /// The header is damaged, but the stub says whose it was.
    Damaged(RecordStub),
    /// Not a record, or damaged beyond both.
    Lost,
}

impl RecordStart {
    /// Reads the first [`RECORD_HEADER_BYTES`] of a record.
    pub fn decode(bytes: &[u8]) -> Self {
        let split = RECORD_HEADER_BYTES - RECORD_STUB_BYTES;
        let Some((header, stub)) = bytes.get(..RECORD_HEADER_BYTES).map(|bytes| bytes.split_at(split)) else {
            return Self::Lost;
        };
        let start = match RecordHeader::decode(header) {
            Ok(header) => Self::Sound(header),
            Err(_) => decode_stub(stub).map_or(Self::Lost, Self::Damaged),
        };
        match start.payload_bytes() {
            Some(bytes) if bytes > PAYLOAD_BYTES_MAX => Self::Lost,
            _ => start,
        }
    }

    /// Declared bytes of the payload.
    pub fn payload_bytes(&self) -> Option<usize> {
        match self {
            Self::Sound(header) => Some(header.payload_bytes as usize),
            Self::Damaged(stub) => Some(stub.payload_bytes as usize),
            Self::Lost => None,
        }
    }
}

fn decode_stub(bytes: &[u8]) -> Result<RecordStub, Malformed> {
    let mut bytes = checked(bytes, RECORD_STUB_BYTES, "record stub")?;
    let mut reader = Reader::new(&mut bytes, "record stub");
    let (position, log, first_seq) = (reader.u64()?, reader.u64()?, Seq::saturating(reader.u64()?));
    let (count, payload_bytes) = (reader.u32()?, reader.u32()?);
    let [kind, version, _, _] = reader.array()?;
    let kind = Kind::from_code(kind).filter(|_| version == RECORD_VERSION);
    Ok(RecordStub { kind, position, log, first_seq, count, payload_bytes })
}

/// Appends the CRC-32C of everything from `start` on.
fn put_checksum(out: &mut Vec<u8>, start: usize) {
    let checksum = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// The first `length` bytes without the checksum that ends them, if it holds.
fn checked(bytes: &[u8], length: usize, what: &'static str) -> Result<Bytes, Malformed> {
    let bytes = bytes.get(..length).ok_or(Malformed(what))?;
    let (content, checksum) = bytes.split_at(length - 4);
    if crc32c::crc32c(content).to_le_bytes() != checksum {
        return Err(Malformed(what));
    }
    Ok(Bytes::copy_from_slice(content))
}

/// Whether a torn write could have left this: some sector of it was never written.
pub fn has_unwritten_sector(bytes: &[u8]) -> bool {
    bytes.chunks(SECTOR).any(|sector| sector.iter().all(|&byte| byte == 0))
}
