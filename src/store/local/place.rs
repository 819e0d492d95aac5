//! Where the journal holds the runs of a log, and how the index packs that.

use crate::codec::Malformed;
use crate::model::Seq;

/// Where a record of a log stands in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Seq of the first event.
    pub(super) first_seq: Seq,
    /// How many events.
    pub(super) count: u32,
    /// The segment.
    pub(super) segment: u64,
    /// Where the record's header starts.
    pub(super) offset: u64,
    /// Bytes of the record with its header.
    pub(super) bytes: u32,
}

impl Place {
    pub(super) fn next_seq(&self) -> Seq {
        Seq::saturating(self.first_seq.get() + u64::from(self.count))
    }
}

/// Largest packed block. sled's entries must stay small: a page of larger ones is moved to a file that sled never
/// syncs.
pub(super) const BLOCK_BYTES_MAX: usize = 4000;
/// Largest packed place: four numbers of at most ten bytes.
const PLACE_BYTES_MAX: usize = 40;

/// Packs contiguous places into blocks, each with the seq of its first place.
///
/// A block is a sequence of (count, segment, offset, bytes) as LEB128 numbers, segment and offset as zigzag
/// differences to the place before, then a CRC-32C.
pub(super) fn pack(places: &[Place]) -> Vec<(Seq, Vec<u8>)> {
    let mut blocks: Vec<(Seq, Vec<u8>)> = Vec::new();
    let mut before = (0, 0);
    for place in places {
        let full = blocks.last().is_none_or(|(_, block)| block.len() + PLACE_BYTES_MAX + 4 > BLOCK_BYTES_MAX);
        if full {
            blocks.push((place.first_seq, Vec::new()));
            before = (0, 0);
        }
        let Some((_, block)) = blocks.last_mut() else { continue };
        put_number(u64::from(place.count), block);
        put_number(zigzag(place.segment, before.0), block);
        put_number(zigzag(place.offset, before.1), block);
        put_number(u64::from(place.bytes), block);
        before = (place.segment, place.offset);
    }
    for (_, block) in &mut blocks {
        let checksum = crc32c::crc32c(block);
        block.extend_from_slice(&checksum.to_le_bytes());
    }
    blocks
}

/// The places of a block that starts at `first_seq`.
pub(super) fn unpack(first_seq: Seq, block: &[u8]) -> Result<Vec<Place>, Malformed> {
    const WHAT: Malformed = Malformed("block of places");
    let (content, checksum) = block.split_at_checked(block.len().wrapping_sub(4)).ok_or(WHAT)?;
    if crc32c::crc32c(content).to_le_bytes() != checksum {
        return Err(WHAT);
    }
    let mut rest = content;
    let (mut places, mut seq, mut before) = (Vec::with_capacity(content.len() / 6), first_seq.get(), (0, 0));
    while !rest.is_empty() {
        let count = number(&mut rest).and_then(|n| u32::try_from(n).ok()).ok_or(WHAT)?;
        let segment = number(&mut rest).map(|n| unzigzag(n, before.0)).ok_or(WHAT)?;
        let offset = number(&mut rest).map(|n| unzigzag(n, before.1)).ok_or(WHAT)?;
        let bytes = number(&mut rest).and_then(|n| u32::try_from(n).ok()).ok_or(WHAT)?;
        places.push(Place { first_seq: Seq::saturating(seq), count, segment, offset, bytes });
        seq += u64::from(count);
        before = (segment, offset);
    }
    Ok(places)
}

fn zigzag(number: u64, before: u64) -> u64 {
    let difference = number.wrapping_sub(before) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

fn unzigzag(packed: u64, before: u64) -> u64 {
    before.wrapping_add((packed >> 1) ^ (packed & 1).wrapping_neg())
}

fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_places_come_back_and_damage_is_seen(
            raw in prop::collection::vec((1..2000u32, 1..9u64, 0..1u64 << 40, 1..1u32 << 28), 1..400),
            flip in any::<prop::sample::Index>(),
        ) {
            let mut seq = 7;
            let mut places = Vec::new();
            for (count, segment, offset, bytes) in raw {
                places.push(Place { first_seq: Seq::saturating(seq), count, segment, offset, bytes });
                seq += u64::from(count);
            }
            let blocks = pack(&places);
            let mut again = Vec::new();
            for (first_seq, block) in &blocks {
                prop_assert!(block.len() <= BLOCK_BYTES_MAX);
                again.extend(unpack(*first_seq, block).unwrap());
            }
            prop_assert_eq!(again, places);
            let (first_seq, mut block) = blocks.into_iter().next().unwrap();
            let bit = flip.index(block.len() * 8);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(unpack(first_seq, &block).is_err());
        }
    }
}
