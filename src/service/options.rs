//! How a service behaves: its limits, windows and budgets, with defaults.
//!
//! Values only; the configuration of the program fills them in.

use std::time::Duration;

use super::Retention;
use crate::model::Limits;

/// How the service behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limits of an append.
    pub limits: Limits,
    /// Bytes of appends that may wait at once.
    pub append_budget_bytes: usize,
    /// Bytes of batches that one stream of appends may have unanswered.
    pub stream_credit_bytes: usize,
    /// Reads that may run at once.
    pub reads_max: usize,
    /// Streams and sessions on streams that may follow at once.
    pub followers_max: usize,
    /// Bytes of recent events kept for all followers together.
    pub follow_budget_bytes: usize,
    /// How long an accepted change may wait for company before it is written.
    pub accept_window: Duration,
    /// How long an append waits for the disk before its outcome is called unknown.
    pub commit_timeout: Duration,
    /// Sessions kept in memory although nobody uses them.
    pub idle_sessions_max: usize,
    /// Unknown event types that contribute nothing to any view.
    pub log_only_types: Vec<String>,
    /// How long the sessions of a namespace are kept.
    pub retention: Vec<Retention>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            append_budget_bytes: 64 << 20,
            stream_credit_bytes: 4 << 20,
            reads_max: 256,
            followers_max: 20_000,
            follow_budget_bytes: 32 << 20,
            accept_window: Duration::from_millis(200),
            commit_timeout: Duration::from_secs(30),
            idle_sessions_max: 10_000,
            log_only_types: Vec::new(),
            retention: Vec::new(),
        }
    }
}
