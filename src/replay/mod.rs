//! Pure folds over the events of one session.
//!
//! Floor 1: names [`crate::model`] and nothing else; values in, values out. Each contract has one incremental struct
//! with one `apply`, and the batch form is a loop over it. A fold parses a payload only where its rule needs it, and
//! copes with lone surrogates, huge strings and deep nesting: text that goes back into a log is copied, never decoded.
//! No fold knows where events are stored, who sent them, or what time it is.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod admit;
pub mod line;
pub mod messages;
pub mod ordinal;
pub mod pairing;
pub mod repair;
pub mod request;
pub mod seed;
pub mod shape;
pub mod surface;
pub mod tail;
pub mod vocabulary;

pub use ordinal::Ordinal;
pub use surface::Surface;
pub use tail::Tail;
