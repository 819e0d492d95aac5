//! The promises, held against real servers.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::large_futures,
    clippy::unreadable_literal,
    missing_docs,
    unreachable_pub,
    reason = "test code"
)]

mod views;
