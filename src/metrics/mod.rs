//! What a node counts: plain atomics that any floor may touch, and the one list of what they are called.
//!
//! Floor 0. [`catalog`] is the source of truth for names, units, labels and help texts; the page, OTLP, the
//! documentation, the dashboard and the alerts are held to it by tests. Recording costs an atomic addition or two and
//! never waits, so that it may stand on the way to an acknowledgement. What is absent: exporters, formats, a clock, a
//! global registry. A node has one [`Metrics`], made where the node is put together and handed down.

mod catalog;
mod instrument;
mod span;

pub use self::catalog::{CATALOG, Metrics};
pub use self::instrument::{
    Bounds, Counter, Distribution, Entry, Family, Gauge, Histogram, Instrument, Kind, Level, Sample, Value,
};
pub use self::span::{Entered, GroupSpan, SpanRef, Spans};
