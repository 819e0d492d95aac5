//! Session logs as files: what comes in from elsewhere and what goes out.
//!
//! Floor 3. Readers here take streams, never paths, and hold no more than one line at a time. They produce
//! `model` values and do not decide whether a log may be appended: that is for the service.

pub mod archive;
pub mod dsh;
pub mod foreign;
