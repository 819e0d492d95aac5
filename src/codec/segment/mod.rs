//! Sealed segments: what a finished part of the journal becomes.
//!
//! ```text
//! file        FileHeader (128), dictionary, blocks, directory, dictionary and directory again, FileHeader again
//! block       BlockHeader (76), then the packed events of one log, compressed
//! dictionary  compressed: text that many blocks hold; they are compressed with it and read with it
//! directory   compressed: the records without events, as they were, and one entry for each block
//! ```
//!
//! A block holds contiguous events of one log. [`pack`] takes apart what they share: a run of events whose data have
//! the same beginning and end names both once, texts stand behind each other, times and source seqs are differences.
//! [`unpack`] gives the canonical encodings back byte for byte, from any knot on. A knot is a point at which the chain
//! is stored, so that a read need not begin at the block's start.
//!
//! All bytes of a file are under some CRC-32C, and whatever is needed to know what a file holds stands in it twice.

mod block;
mod file;
mod pack;
mod unpack;

pub use block::{BLOCK_HEADER_BYTES, BlockHeader, Codec, DICTIONARY_BYTES_MAX, inflate};
pub use file::{
    DIRECTORY_BYTES_MAX, Directory, Entry, FILE_HEADER_BYTES, FileHeader, Part, State, Unreadable, VERSION,
};
pub use pack::Packer;
pub use unpack::{Block, Piece};

/// Flags of a canonical event, as in [`super::event`].
const REPLACE: u8 = 4;
const SOURCES: u8 = 8;

/// The largest packed block: one record of the journal and what its packing adds at worst.
pub const PACKED_BYTES_MAX: usize = super::frame::PAYLOAD_BYTES_MAX + (16 << 20);
