//! Pure folds over the events of one session: the specification, executable.
//!
//! Floor 1: names [`crate::model`] and nothing else; values in, values out. Each contract has one incremental struct
//! with one `apply`, and the batch form is a loop over it. A fold parses a payload only where its rule needs it, and
//! copes with lone surrogates, huge strings and deep nesting: text that goes back into a log is copied, never decoded.
//! No fold knows where events are stored, who sent them, or what time it is.
//!
//! # Contracts
//!
//! Numbers in brackets are sections of the reference; they stand at each item as well.
//!
//! | module | question | laws |
//! |---|---|---|
//! | [`tail`] \[6\] | what is open at the end: turn, step, calls without a result | batch = stepwise |
//! | [`repair`] \[6\] | which events close it | deterministic, append-only, idempotent, balanced, byte-equal |
//! | [`surface`] \[2.4, 3\] | which events stand for the model's messages, in which order | batch = stepwise; a refusal changes nothing; the generation moves with replacements only |
//! | [`messages`] \[3.2\] | what the model sees | depends on the surface's events only; bytes as stored |
//! | [`pairing`] \[3.5\] | where calls and results are balanced | one cut more than nodes; the first is balanced |
//! | [`request`] \[4\] | what was asked at a dispatch | later events do not matter; canonical headers are fixed points |
//! | [`shape`] \[2.3, 2.5, 7.9\] | which payloads a reader insists on | - |
//! | [`seed`] \[2.3\] | does a reader open this log, and which offence does it name | a refusal changes nothing |
//! | [`admit`] | may this batch follow | batch = stepwise; a refusal changes nothing; what `dsh` admits, [`seed`] opens, with the closers after it too |
//! | [`mod@line`] \[1.1\] | an event as a line of text, and back | a line reads back as its event |
//! | [`vocabulary`] \[1.4, 1.5\] | which types there are | known types always pass |
//!
//! # What folds do not share
//!
//! Surface and repair look at the same log and may disagree: repair closes what is pending in the open step, whatever the
//! surface shows, and a replacement may part a call from its result. [`pairing`] says so; nothing here mends it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod admit;
pub mod assemble;
pub mod attempts;
pub mod chunk;
pub mod filter;
pub mod fork;
pub mod history;
pub mod line;
pub mod lineage;
pub mod messages;
pub mod ordinal;
pub mod pairing;
pub mod projection;
pub mod repair;
pub mod request;
pub mod seed;
pub mod shape;
pub mod stats;
pub mod surface;
pub mod tail;
pub mod text;
pub mod trace;
pub mod vocabulary;
pub mod window;

pub use admit::Admission;
pub use ordinal::Ordinal;
pub use surface::Surface;
pub use tail::Tail;
