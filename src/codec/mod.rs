//! Bytes: how values look outside memory.
//!
//! Floor 1. Pure: bytes in, values out. What is encoded decodes to the same bytes of every event; what is damaged
//! is refused with a reason. Knows `model` only, and neither files nor sockets.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod rows;
