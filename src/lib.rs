//! quipu.
pub mod codec;
pub mod model;
pub mod portable;
