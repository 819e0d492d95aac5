//! quipu.
pub mod codec;
pub mod model;
pub mod portable;
pub mod rpc;
pub mod service;
pub mod store;
