//! From a packed block back to canonical events, from any knot on.

use bytes::Bytes;

use super::super::varint::Numbers;
use super::super::{Chain, Malformed};
use super::{BlockHeader, REPLACE, SOURCES};
use crate::model::Seq;

const WHAT: &str = "sealed block";

/// A packed block, decompressed.
#[derive(Clone, Debug)]
pub struct Block {
    header: BlockHeader,
    knots: Vec<Knot>,
    packed: Vec<u8>,
    /// Where the streams start: kinds, operations, times, lengths, text.
    streams: [usize; 5],
}

/// A part of a block between two places at which the chain is stored.
#[derive(Clone, Copy, Debug)]
struct Knot {
    count: u32,
    bytes: usize,
    chain: Chain,
}

/// Contiguous events of one log with the chain at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Seq of the first event.
    pub first_seq: Seq,
    /// How many events.
    pub count: u32,
    /// [`Chain::link`] of the chain before.
    pub link: u64,
    /// The chain after.
    pub chain: Chain,
    /// The canonical encodings.
    pub events: Bytes,
}

impl Block {
    /// Reads the parts of a packed block whose header is known. Every length is checked here or where it is used.
    pub fn parse(header: BlockHeader, packed: Vec<u8>) -> Result<Self, Malformed> {
        let mut rest = Numbers::new(&packed, WHAT);
        let kinds = rest.count()?;
        for _ in 0..kinds {
            let length = rest.count()?;
            rest.take(length)?;
        }
        let mut knots = Vec::new();
        let (mut count, mut bytes) = (header.count, header.canonical_bytes as usize);
        for _ in 0..rest.count()? {
            let knot = Knot { count: rest.count()? as u32, bytes: rest.count()?, chain: Chain(rest.array()?) };
            let (Some(events_left), Some(bytes_left)) = (count.checked_sub(knot.count), bytes.checked_sub(knot.bytes))
            else {
                return rest.fail();
            };
            (count, bytes) = (events_left, bytes_left);
            knots.push(knot);
        }
        knots.push(Knot { count, bytes, chain: header.chain });
        let lengths = [rest.count()?, rest.count()?, rest.count()?];
        let mut at = packed.len() - rest.rest().len();
        let mut streams = [0; 5];
        for (start, length) in streams[1..].iter_mut().zip(lengths.into_iter().chain([0])) {
            *start = at;
            at = at.saturating_add(length);
        }
        if at > packed.len() { rest.fail() } else { Ok(Self { header, knots, packed, streams }) }
    }

    /// What the block says about itself.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// Pieces from the one that holds `from` on, until about `bytes_max` bytes or the end; at least one, unless
    /// `from` lies behind the block.
    pub fn pieces(&self, from: Seq, bytes_max: usize) -> Result<Vec<Piece>, Malformed> {
        let mut walk = Walk::new(self)?;
        let (mut pieces, mut link, mut bytes) = (Vec::new(), self.header.link, 0);
        let mut bounds = Vec::new();
        let mut out = Vec::with_capacity(self.room(from, bytes_max));
        for knot in &self.knots {
            let first = walk.seq;
            let end = first + u64::from(knot.count);
            if end <= from.get() {
                walk.skip(knot.count)?;
            } else if knot.count > 0 {
                if !bounds.is_empty() && bytes + knot.bytes > bytes_max {
                    break;
                }
                bytes += knot.bytes;
                let start = out.len();
                walk.expand(knot.count, start + knot.bytes, &mut out)?;
                if out.len() != start + knot.bytes {
                    return Err(Malformed(WHAT));
                }
                bounds.push((Seq::saturating(first), link, *knot, start));
            }
            link = knot.chain.link();
        }
        let out = Bytes::from(out);
        for (first_seq, link, Knot { count, bytes, chain }, start) in bounds {
            pieces.push(Piece { first_seq, count, link, chain, events: out.slice(start..start + bytes) });
        }
        Ok(pieces)
    }

    /// The bytes that [`Block::pieces`] gives. Bounded by the header's length, which has been checked.
    fn room(&self, from: Seq, bytes_max: usize) -> usize {
        let (mut end, mut room) = (self.header.first_seq.get(), 0);
        for knot in &self.knots {
            end += u64::from(knot.count);
            if end > from.get() && (room == 0 || room + knot.bytes <= bytes_max) {
                room += knot.bytes;
            } else if room > 0 {
                break;
            }
        }
        room
    }
}

/// Events of one operation.
#[derive(Clone, Copy)]
struct Operation<'a> {
    /// Name of the type.
    kind: &'a [u8],
    flags: u8,
    /// The common parts, and how many events are left.
    head: &'a [u8],
    tail: &'a [u8],
    left: u64,
}

/// Walks over the events of a block.
struct Walk<'a> {
    kinds: Vec<&'a [u8]>,
    operations: Numbers<'a>,
    times: Numbers<'a>,
    lengths: Numbers<'a>,
    text: Numbers<'a>,
    seq: u64,
    time: u64,
    current: Operation<'a>,
    /// The fields between flags and data of an event with a replacement or sources.
    extra: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(block: &'a Block) -> Result<Self, Malformed> {
        let packed = &block.packed[..];
        let part = |index: usize| {
            let end = block.streams.get(index + 1).copied().unwrap_or(packed.len());
            Numbers::new(packed.get(block.streams[index]..end).unwrap_or_default(), WHAT)
        };
        let mut rest = part(0);
        let mut kinds = Vec::new();
        for _ in 0..rest.count()? {
            let length = rest.count()?;
            kinds.push(rest.take(length)?);
        }
        let current = Operation { kind: &[], flags: 0, head: &[], tail: &[], left: 0 };
        let (operations, times, lengths, text) = (part(1), part(2), part(3), part(4));
        let (seq, time, extra) = (block.header.first_seq.get(), 0, Vec::new());
        Ok(Self { kinds, operations, times, lengths, text, seq, time, current, extra })
    }

    fn advance(&mut self) -> Result<(), Malformed> {
        let kind = self.operations.number()?;
        let [flags] = self.operations.array()?;
        let index = usize::try_from(kind >> 1).unwrap_or(usize::MAX);
        let Some(name) = self.kinds.get(index).copied() else { return self.operations.fail() };
        self.extra.clear();
        self.current = Operation { kind: name, flags, head: &[], tail: &[], left: 1 };
        if kind & 1 == 1 {
            self.current.left = self.operations.number()?;
            let (head, tail) = (self.operations.count()?, self.operations.count()?);
            (self.current.head, self.current.tail) = (self.text.take(head)?, self.text.take(tail)?);
            if self.current.left == 0 || flags & (REPLACE | SOURCES) != 0 {
                return self.operations.fail();
            }
        } else if flags & (REPLACE | SOURCES) != 0 {
            self.read_extra(flags)?;
        }
        Ok(())
    }

    fn read_extra(&mut self, flags: u8) -> Result<(), Malformed> {
        if flags & REPLACE != 0 {
            let start = self.operations.difference(self.seq)?;
            let end = self.operations.difference(start)?;
            self.extra.extend_from_slice(&start.to_le_bytes());
            self.extra.extend_from_slice(&end.to_le_bytes());
        }
        if flags & SOURCES != 0 {
            let count = self.operations.count()?;
            self.extra.extend_from_slice(&(count as u32).to_le_bytes());
            let mut before = self.seq;
            for _ in 0..count {
                before = self.operations.difference(before)?;
                self.extra.extend_from_slice(&before.to_le_bytes());
            }
        }
        Ok(())
    }

    fn skip(&mut self, count: u32) -> Result<(), Malformed> {
        for _ in 0..count {
            if self.current.left == 0 {
                self.advance()?;
            }
            self.current.left -= 1;
            self.time = self.times.difference(self.time)?;
            let length = self.lengths.count()?;
            self.text.take(length)?;
            self.seq = self.seq.wrapping_add(1);
        }
        Ok(())
    }

    /// Appends events to `out`, which must not get longer than `end`.
    fn expand(&mut self, count: u32, end: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        for _ in 0..count {
            if self.current.left == 0 {
                self.advance()?;
            }
            self.current.left -= 1;
            self.time = self.times.difference(self.time)?;
            let length = self.lengths.count()?;
            let own = self.text.take(length)?;
            let Operation { kind, flags, head, tail, .. } = self.current;
            let data = head.len() + own.len() + tail.len();
            let total = 8 + 8 + 4 + kind.len() + 1 + self.extra.len() + 4 + data;
            if end - out.len() < total {
                return self.lengths.fail();
            }
            out.extend_from_slice(&self.seq.to_le_bytes());
            out.extend_from_slice(&self.time.to_le_bytes());
            out.extend_from_slice(&(kind.len() as u32).to_le_bytes());
            out.extend_from_slice(kind);
            out.push(flags);
            out.extend_from_slice(&self.extra);
            out.extend_from_slice(&(data as u32).to_le_bytes());
            out.extend_from_slice(head);
            out.extend_from_slice(own);
            out.extend_from_slice(tail);
            self.seq = self.seq.wrapping_add(1);
        }
        Ok(())
    }
}
