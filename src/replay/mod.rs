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
//! | [`assemble`] \[5.2\] | which blocks, usage and finish a stream adds up to | first-seen order; a refused chunk changes nothing |
//! | [`attempts`] \[5.3, 5.4\] | which model calls there were, how they ended, what they used | every chunk in one attempt; begins where [`request`] finds dispatches; usage once |
//! | [`projection`] \[5.5\] | what a display shows of a log or a window of it | no payload breaks it; the answer does not depend on when it was asked |
//! | [`stats`] \[5.6\] | how many turns and steps, and where the time went | batch = stepwise |
//! | [`fork`] \[9, 10\] | where a log may be forked, what the child starts with | a child derives what its parent derives at the boundary |
//! | [`cut`] \[9, 10\] | the same, from the end of a log | equals [`fork::cut`]; costs the tail |
//! | [`history`] \[11\] | which range of events a page is | contiguous; pages tile the log; whole messages if asked for |
//! | [`window`] \[12\] | what a following client has, and which page it asks for next | one contiguous range; while something waits, a request is under way |
//! | [`trace`] \[13.1, 13.2, 13.4\] | what became of an event | one status per event; chains end on the surface |
//! | [`lineage`] \[13.3\] | which family a session has | the order of insertion does not matter |
//! | [`filter`], [`text`] \[13.5\] | which events a reader asks for, and what they say | clauses by and, values by or |
//! | [`mod@line`] \[1.1\] | an event as a line of text, and back | a line reads back as its event |
//! | [`checkpoint`] | what the folds of a tail know, as bytes | reads back as it was; no input panics |
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
pub mod checkpoint;
pub mod chunk;
pub mod cut;
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
