//! quipu.
pub mod model;

pub mod replay;
