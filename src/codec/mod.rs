//! Bytes: how events, changes and groups look on disk, and the chain that proves a log.
//!
//! Floor 1, pure. Decoding trusts nothing: every length is checked against what is there before it is used, every
//! frame carries a CRC-32C, and no input panics. What is encoded here is never changed in place; a new form gets a
//! new version or kind number, and old ones stay readable.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod change;
pub mod event;
pub mod frame;
pub mod graft;
pub mod ownership;
pub mod rows;
pub mod segment;
pub mod summary;

mod chain;
mod reader;
mod varint;

pub use chain::Chain;
pub use reader::Malformed;
pub use summary::Summary;
