//! The promises, held against real servers: in-process over any engine, and as the `quipu` binary.
//!
//! Long forms: QUIPU_KILL_ROUNDS, QUIPU_POWER_CUTS. What a machine cannot do is skipped with a line `SKIPPED: why`,
//! unless QUIPU_REQUIRE_ALL=1, which makes it fail.
#![allow(
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::large_futures,
    clippy::unreadable_literal,
    clippy::single_match_else,
    missing_docs,
    unreachable_pub,
    reason = "test code"
)]

#[macro_use]
mod support;

mod admin;
mod append;
mod append_stream;
mod cli;
mod clients;
mod cold;
mod durability;
mod faces;
mod feed;
mod follow;
mod forks;
mod kill;
mod limits;
mod ops;
mod owners;
mod persistence;
mod power;
mod process;
mod read;
mod read_many;
mod samples;
mod scale;
mod security;
mod sessions;
mod views;
mod watch;
mod write_behind;
