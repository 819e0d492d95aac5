//! The pure core against golden vectors, fixtures and laws.
#![allow(clippy::pedantic, clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "test code")]

mod admit;
mod archive;
mod assemble;
mod cases;
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
mod projection;
mod repair;
mod request;
mod rows;
mod stats;
mod surface;
mod trace;
mod vectors;
mod window;
