//! The limits of one append, in bytes and counts.

/// What one append may carry. Each is refused with the size found and the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one event's `data`.
    pub event_bytes_max: usize,
    /// Events in one batch.
    pub batch_events_max: usize,
    /// Bytes of one batch: data, types and source lists together.
    pub batch_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { event_bytes_max: 4 << 20, batch_events_max: 1000, batch_bytes_max: 8 << 20 }
    }
}

/// Longest event `type` in bytes.
pub const TYPE_BYTES_MAX: usize = 256;
/// Most entries of one `source_event_seqs`.
pub const SOURCES_MAX: usize = 100_000;
/// Largest encoded header in bytes; it lives in one entry of the index.
pub const HEADER_BYTES_MAX: usize = 3_000;
/// Most labels of one header.
pub const LABELS_MAX: usize = 64;
