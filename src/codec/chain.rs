//! The chain: a hash that two logs share exactly when they share all their events.

use std::fmt;

use crate::model::Event;

/// BLAKE3 over everything a log holds up to some event:
/// `chain(n) = BLAKE3(chain(n-1) || canonical(event n))`, with the canonical encoding of [`super::event`] and
/// [`Chain::START`] before the first event. Any reader can recompute it; equal chains prove equal prefixes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chain(pub [u8; 32]);

impl Chain {
    /// `chain(-1)`: BLAKE3 of the ASCII text `quipu chain 1`.
    pub const START: Self = Self([
        0x53, 0x1d, 0x95, 0x83, 0xe9, 0xcf, 0x93, 0xc8, 0x72, 0x08, 0xf0, 0x15, 0x4b, 0xcf, 0x8b, 0x01, 0x2e, 0x04,
        0x21, 0x43, 0xae, 0xb6, 0x50, 0xc3, 0x69, 0x1d, 0xee, 0x8e, 0x2b, 0x74, 0x8c, 0x5f,
    ]);

    /// The chain after one more event, given by its canonical encoding.
    #[must_use]
    pub fn next(self, canonical: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(canonical);
        Self(*hasher.finalize().as_bytes())
    }

    /// The chain after one more event.
    #[must_use]
    pub fn after(self, event: &Event) -> Self {
        let mut canonical = Vec::with_capacity(event.body.weight());
        super::event::encode(event.seq, &event.body, &mut canonical);
        self.next(&canonical)
    }

    /// The first eight bytes: enough to tell, when records are read in order, that none is missing in between.
    pub fn link(self) -> u64 {
        let mut link = [0; 8];
        link.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(link)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_the_hash_of_its_name() {
        assert_eq!(Chain::START.0, *blake3::hash(b"quipu chain 1").as_bytes());
    }
}
