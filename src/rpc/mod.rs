//! The wire: tonic adapters over the service, conversions, statuses, and the client.
//!
//! Floor 4, the only one that knows tonic and prost. An adapter converts, calls one operation of the service, and
//! converts back; it decides nothing. Requests are checked field by field on the way in, answers cannot fail on the
//! way out.

pub mod client;
pub mod connection;
pub mod loops;
pub mod observe;
pub mod server;
pub mod tls;

mod admin;
mod append_stream;
mod changes;
mod codec;
mod convert;
mod faces;
mod feed;
mod follow;
mod forks;
mod log;
mod owners;
mod read_many;
mod sessions;
mod status;
mod views;
mod watch;
mod whole;

/// Most events of a batch that a server can be configured for: what a message can hold beside its other fields.
pub const BATCH_EVENTS_MAX: usize = codec::PARTS_MAX - 100;

/// The generated types of `proto/quipu/v1`.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::or_fun_call,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
pub mod pb {
    tonic::include_proto!("quipu.v1");

    /// The descriptors of all files, with comments.
    pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));
}
