//! quipu.
pub mod codec;
pub mod model;
