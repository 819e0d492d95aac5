//! quipu.
pub mod model;
