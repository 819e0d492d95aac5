//! quipu.
pub mod codec;
pub mod model;
pub mod service;
pub mod store;
