//! What a fork commits: the payload of a `Fork` record.
//!
//! A child shares its parent's events by reference: a list of [`Extent`]s says in which logs they stand. The list is
//! flat: it names the logs that really hold the events, however many generations lie in between. With it travel the
//! child's birth, what a list shows of it, and the one event that only the child has. All of it stands twice in the
//! record, each with a checksum, because it is the only place that says that there is such a session and what it is made
//! of.

use bytes::Bytes;

use super::change::{Birth, decode_either, put_twice};
use super::reader::{Malformed, Reader, put_block};
use super::{Chain, Summary};
use crate::model::Seq;

/// Most extents of one log. A log of more parts must be detached before it is forked.
pub const EXTENTS_MAX: usize = 1024;

/// A part of a log that stands in another log, under the same seqs: from the end of the extent before (or 0) on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The log that holds the events.
    pub log: u64,
    /// The seq after the last one.
    pub until: Seq,
    /// The chain there.
    pub chain: Chain,
}

impl Extent {
    /// Bytes of an encoded extent.
    pub const BYTES: usize = 48;

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.log.to_le_bytes());
        out.extend_from_slice(&self.until.get().to_le_bytes());
        out.extend_from_slice(&self.chain.0);
    }

    /// Takes all encodings that there are.
    pub fn decode_all(mut bytes: Bytes) -> Result<Vec<Self>, Malformed> {
        let mut reader = Reader::new(&mut bytes, "extents");
        let mut extents = Vec::new();
        while !reader.is_at_end() {
            let (log, until, chain) = (reader.u64()?, Seq::saturating(reader.u64()?), Chain(reader.array()?));
            extents.push(Self { log, until, chain });
        }
        Ok(extents)
    }
}

/// What a `Fork` record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graft {
    /// Name, incarnation, profile, header of the child.
    pub birth: Birth,
    /// Which request made it: a repetition of the same one is answered with this child.
    pub request: [u8; 16],
    /// Where the inherited events stand.
    pub extents: Vec<Extent>,
    /// What a list shows of the child at its birth; its bytes are those of the marker.
    pub summary: Summary,
    /// The canonical encoding of the event that ends the seed, or nothing if the seed ended with one.
    pub marker: Bytes,
}

impl Graft {
    /// How many events are inherited.
    pub fn seed_length(&self) -> Seq {
        self.extents.last().map_or(Seq::ZERO, |extent| extent.until)
    }

    /// The chain after them.
    pub fn chain(&self) -> Chain {
        self.extents.last().map_or(Chain::START, |extent| extent.chain)
    }

    /// The seq after the last event of the newborn child, and the chain there.
    pub fn end(&self) -> (Seq, Chain) {
        let (length, chain) = (self.seed_length(), self.chain());
        if self.marker.is_empty() {
            (length, chain)
        } else {
            (Seq::saturating(length.get() + 1), chain.next(&self.marker))
        }
    }

    /// The link before the marker.
    pub fn link(&self) -> u64 {
        self.chain().link()
    }

    /// Appends the payload of a record to `out`.
    pub fn encode_twice(&self, out: &mut Vec<u8>) {
        let mut graft = Vec::with_capacity(512);
        self.birth.encode(&mut graft);
        graft.extend_from_slice(&self.request);
        self.summary.encode(&mut graft);
        let mut extents = Vec::with_capacity(self.extents.len() * Extent::BYTES);
        self.extents.iter().for_each(|extent| extent.encode(&mut extents));
        put_block(&extents, &mut graft);
        put_block(&self.marker, &mut graft);
        put_twice(&graft, out);
    }

    /// Reads the payload of a record from whichever half is sound.
    pub fn decode_either(payload: &Bytes) -> Result<Self, Malformed> {
        decode_either(payload, Self::decode)
    }

    fn decode(bytes: &mut Bytes) -> Result<Self, Malformed> {
        let birth = Birth::decode(bytes)?;
        let request = Reader::new(bytes, "fork").array()?;
        let summary = Summary::decode(bytes)?;
        let mut reader = Reader::new(bytes, "fork");
        let extents = Extent::decode_all(reader.block()?)?;
        Ok(Self { birth, request, extents, summary, marker: reader.block()? })
    }
}
