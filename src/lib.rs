//! quipu.
pub mod cli;
pub mod codec;
pub mod model;
pub mod portable;
pub mod replay;
pub mod rpc;
pub mod service;
pub mod store;
