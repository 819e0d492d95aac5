//! quipu: a durable, verifiable log server for the sessions of AI-agent hosts.
//!
//! A host appends every event of a session and keeps nothing on its own disk. An acknowledged event is on stable
//! storage; a log comes back byte for byte, each event checked, or the answer says from where on it cannot be proved.
//!
//! # Floors
//!
//! A floor names only floors below it; `tests/tidy.rs` holds the table.
//!
//! | floor | module | what it is |
//! |---|---|---|
//! | 0 | [`metrics`] | what a node counts: atomics, and the list of what they are called |
//! | 0 | [`model`] | ids, seqs, events, headers, the JSON boundary |
//! | 1 | [`codec`] | bytes: canonical events, the chain, frames of the journal, packed chunk rows |
//! | 1 | [`replay`] | pure folds over events: surface, requests, repair, forks, history, traces |
//! | 2 | [`store`] | the port, its contract, and the engines; [`store::local`] is the journal and its index |
//! | 3 | [`service`] | sessions, the committer, reads, limits |
//! | 3 | [`portable`] | session files of other harnesses |
//! | 4 | [`rpc`] | gRPC: adapters, conversions, statuses, the client |
//! | 4 | [`ops`] | what an operator sees: states, probes, metrics, traces |
//! | 5 | [`client`] | what a host links: writers that lose nothing, readers that go on, windows |
//! | 5 | [`cli`] | `quipu serve` and the operator's commands; the composition root |
//!
//! # Invariants, as absences
//!
//! - The core (`model`, `codec`, `replay`) reads no clock, draws no randomness, does no I/O and never waits.
//! - Nothing above `store::local` knows sled, and nothing that was acknowledged depends on it.
//! - Nothing below `rpc` knows a status code or a generated type.
//! - Nobody is told of a change before its sync has returned, except who asked for `ACCEPTED`.
//! - No byte of `data` is ever written anew: what came in goes out.
//! - No code deletes what it cannot parse. The torn end of the journal, which was never acknowledged, is the one
//!   exception, and a copy of it is kept.
//! - No queue is without a permit in front of it.

// Floor 0.
pub mod metrics;
pub mod model;

// Floor 1.
pub mod codec;
pub mod replay;

// Floor 2.
pub mod store;

// Floor 3.
pub mod portable;
pub mod service;

// Floor 4.
pub mod rpc;

// Floor 4, beside it: it looks at all the others, rpc too.
pub mod ops;

// Floor 5.
pub mod cli;
pub mod client;
