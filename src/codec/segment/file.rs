//! What a sealed file says about itself: its header and its directory, each stored twice.

use super::super::reader::{Malformed, Reader};
use super::super::varint::{Numbers, put, put_difference};
use super::super::{Chain, Summary};
use super::block::{Codec, inflate};
use crate::model::Seq;

/// The version of the format of sealed files.
pub const VERSION: u8 = 1;
/// Bytes of a file's header.
pub const FILE_HEADER_BYTES: usize = 128;
/// Largest directory, unpacked.
pub const DIRECTORY_BYTES_MAX: usize = 1 << 30;
const MAGIC: [u8; 7] = [0xF5, b'q', b's', b'e', b'a', b'l', 0xFF];
const WHAT: &str = "directory of a sealed file";

/// Why a header was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Its checksum does not match, or it is no header.
    #[error("the header of a sealed file is damaged")]
    Damaged,
    /// It is sound, and of a later version.
    #[error("a sealed file of format {0}; this quipu reads {VERSION}: use a newer quipu")]
    Newer(u8),
}

/// The first and the last bytes of a sealed file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileHeader {
    /// The store that the file belongs to.
    pub store: [u8; 16],
    /// Its number; also its name.
    pub number: u64,
    /// The journal segments that it stands for, first and last.
    pub journals: (u64, u64),
    /// The changes that it stands for, first and last.
    pub positions: (u64, u64),
    /// Length of the file.
    pub file_bytes: u64,
    /// Where the two copies of the directory start.
    pub directories: (u64, u64),
    /// Bytes of one copy.
    pub directory_bytes: u32,
    /// CRC-32C of one copy.
    pub directory_checksum: u32,
    /// Where the two copies of the dictionary start.
    pub dictionaries: (u64, u64),
    /// Bytes of one copy; 0 for no dictionary.
    pub dictionary_bytes: u32,
    /// CRC-32C of one copy.
    pub dictionary_checksum: u32,
}

impl FileHeader {
    /// The header's bytes. Every version has this length and ends with a CRC-32C, so that a newer one is told from a
    /// damaged one.
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = Vec::with_capacity(FILE_HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.store);
        let (journals, positions, directories) = (self.journals, self.positions, self.directories);
        let numbers = [self.number, journals.0, journals.1, positions.0, positions.1];
        for number in numbers.into_iter().chain([self.file_bytes, directories.0, directories.1]) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.directory_bytes.to_le_bytes());
        out.extend_from_slice(&self.directory_checksum.to_le_bytes());
        for offset in [self.dictionaries.0, self.dictionaries.1] {
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out.extend_from_slice(&self.dictionary_bytes.to_le_bytes());
        out.extend_from_slice(&self.dictionary_checksum.to_le_bytes());
        out.resize(FILE_HEADER_BYTES - 4, 0);
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        let mut header = [0; FILE_HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (content, checksum) = bytes.split_at_checked(FILE_HEADER_BYTES - 4).ok_or(Unreadable::Damaged)?;
        if crc32c::crc32c(content).to_le_bytes() != checksum || !content.starts_with(&MAGIC) {
            return Err(Unreadable::Damaged);
        }
        let mut content = bytes::Bytes::copy_from_slice(&content[MAGIC.len()..]);
        Self::fields(&mut Reader::new(&mut content, WHAT)).unwrap_or(Err(Unreadable::Damaged))
    }

    fn fields(reader: &mut Reader<'_>) -> Result<Result<Self, Unreadable>, Malformed> {
        let version = reader.u8()?;
        if version > VERSION {
            return Ok(Err(Unreadable::Newer(version)));
        }
        Ok(Ok(Self {
            store: reader.array()?,
            number: reader.u64()?,
            journals: (reader.u64()?, reader.u64()?),
            positions: (reader.u64()?, reader.u64()?),
            file_bytes: reader.u64()?,
            directories: (reader.u64()?, reader.u64()?),
            directory_bytes: reader.u32()?,
            directory_checksum: reader.u32()?,
            dictionaries: (reader.u64()?, reader.u64()?),
            dictionary_bytes: reader.u32()?,
            dictionary_checksum: reader.u32()?,
        }))
    }
}

/// A record of the journal that holds no events of its own, kept as it was: a creation, a fork, a deletion, a purge, a
/// change of owner, the end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The clock of its group.
    pub time_ms: u64,
    /// Header, stub and payload.
    pub record: bytes::Bytes,
}

/// Which events of a log a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A copy of events that it shared: one record, so that a copy which is not next stays one that changes nothing.
    Copy,
    /// Its own.
    Own,
}

/// A block of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The log.
    pub log: u64,
    /// Which events of it.
    pub part: Part,
    /// Seq of the first event.
    pub first_seq: Seq,
    /// How many events.
    pub count: u32,
    /// [`Chain::link`] of the chain before.
    pub link: u64,
    /// The chain after.
    pub chain: Chain,
    /// Position of the last run.
    pub position: u64,
    /// Latest clock of a run.
    pub time_ms: u64,
    /// Where the block starts.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u32,
    /// What a list shows of the events.
    pub summary: Summary,
}

/// Everything that is in a file, so that an index can be built without reading a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// The records without events, in the order of their positions.
    pub states: Vec<State>,
    /// The blocks, in the order of their offsets, without a gap.
    pub entries: Vec<Entry>,
}

impl Directory {
    /// Whether some block holds that event.
    pub fn holds(&self, log: u64, part: Part, seq: Seq) -> bool {
        let of = |entry: &&Entry| (entry.log, entry.part) == (log, part) && entry.first_seq <= seq;
        // Of copies there may be several.
        let is_in = |entry: &Entry| seq.get() < entry.first_seq.get() + u64::from(entry.count);
        let start = self.entries.partition_point(|entry| (entry.log, entry.part) < (log, part));
        self.entries.iter().skip(start).take_while(|entry| (entry.log, entry.part) == (log, part)).filter(of).any(is_in)
    }

    /// The bytes of one copy.
    pub fn encode(&self, codec: &mut Codec) -> Vec<u8> {
        let mut plain = Vec::new();
        put(self.states.len() as u64, &mut plain);
        let mut time = 0;
        for state in &self.states {
            put_difference(state.time_ms, time, &mut plain);
            put(state.record.len() as u64, &mut plain);
            plain.extend_from_slice(&state.record);
            time = state.time_ms;
        }
        put(self.entries.len() as u64, &mut plain);
        let (mut log, mut position, mut offset) = (0, 0, 0);
        for entry in &self.entries {
            put_difference(entry.log, log, &mut plain);
            put(entry.first_seq.get(), &mut plain);
            put(u64::from(entry.count), &mut plain);
            put_difference(entry.position, position, &mut plain);
            put_difference(entry.time_ms, time, &mut plain);
            put_difference(entry.offset, offset, &mut plain);
            put(u64::from(entry.bytes), &mut plain);
            plain.extend_from_slice(&entry.link.to_le_bytes());
            plain.extend_from_slice(&entry.chain.0);
            plain.push(u8::from(entry.part == Part::Copy));
            let start = plain.len();
            entry.summary.encode(&mut plain);
            let summary = plain.split_off(start);
            put(summary.len() as u64, &mut plain);
            plain.extend_from_slice(&summary);
            (log, position, time) = (entry.log, entry.position, entry.time_ms);
            offset = entry.offset + u64::from(entry.bytes);
        }
        let mut out = Vec::new();
        codec.deflate(&plain, &mut out);
        out
    }

    /// Reads a copy whose checksum was compared.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let plain = bytes::Bytes::from(inflate(bytes, DIRECTORY_BYTES_MAX, WHAT)?);
        let mut rest = Numbers::new(&plain, WHAT);
        let mut directory = Self::default();
        let mut time = 0;
        for _ in 0..rest.count()? {
            time = rest.difference(time)?;
            let length = rest.count()?;
            let record = plain.slice_ref(rest.take(length)?);
            directory.states.push(State { time_ms: time, record });
        }
        let (mut log, mut position, mut offset) = (0, 0, 0);
        for _ in 0..rest.count()? {
            log = rest.difference(log)?;
            let (first_seq, count) = (Seq::saturating(rest.number()?), rest.count()? as u32);
            (position, time) = (rest.difference(position)?, rest.difference(time)?);
            offset = rest.difference(offset)?;
            let bytes = rest.count()? as u32;
            let (link, chain) = (u64::from_le_bytes(rest.array()?), Chain(rest.array()?));
            let part = if rest.number()? == 1 { Part::Copy } else { Part::Own };
            let length = rest.count()?;
            let summary = Summary::decode(&mut plain.slice_ref(rest.take(length)?))?;
            let time_ms = time;
            directory.entries.push(Entry {
                log,
                part,
                first_seq,
                count,
                link,
                chain,
                position,
                time_ms,
                offset,
                bytes,
                summary,
            });
            offset = offset.wrapping_add(u64::from(bytes));
        }
        if rest.is_empty() { Ok(directory) } else { rest.fail() }
    }
}
