//! The pure core against golden vectors, fixtures and laws.
#![allow(clippy::pedantic, clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "test code")]

mod admit;
mod archive;
mod assemble;
mod cases;
#[path = "../checker/mod.rs"]
mod checker;
mod checkpoint;
mod codec;
mod dsh;
mod foreign;
mod fork;
mod given;
mod history;
mod json;
mod laws;
mod lineage;
mod logs;
mod persistence;
mod planted;
mod projection;
mod repair;
mod request;
mod rows;
mod segment;
mod stats;
mod surface;
mod trace;
mod vectors;
mod window;

/// A number from the environment, for tests with a long form.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}
