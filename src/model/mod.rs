//! Values: ids, seqs, events, headers, and the JSON boundary.
//!
//! Floor 0. Names no other floor, does no I/O, reads no clock and draws no randomness. A value that exists is
//! valid: constructors check, so that the floors above never re-check. Neither the wire nor the disk is known
//! here; both convert to these types and can change without changing them.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod event;
pub mod header;
pub mod id;
pub mod json;
pub mod limit;
pub mod owner;
pub mod seq;

pub use event::{Event, EventError, NewEvent, SurfaceOp};
pub use header::{Header, HeaderError, Origin, Profile};
pub use id::{IdError, Incarnation, Namespace, SessionId, SessionKey};
pub use limit::Limits;
pub use owner::{Owner, TakeOver, Tenure};
pub use seq::{INT53_MAX, Seq};
