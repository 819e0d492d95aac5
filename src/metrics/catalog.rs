//! Every metric: name, unit, labels, help. Nothing is exported that is not a row here.
//!
//! Names follow OpenMetrics: the unit is the last word, a counter gets `_total` where it is shown. Label values are
//! bounded: methods, codes and reasons of the schema, rules and parts of this program; never a session, a namespace, a
//! client or a message.

use std::sync::OnceLock;

use super::instrument::{Bounds, Counter, Entry, Family, Field, Gauge, Histogram, Kind, Level, Sample};
use super::span::Spans;

macro_rules! kind {
    (Counter) => {
        Kind::Counter
    };
    (Gauge) => {
        Kind::Gauge
    };
    (Seconds) => {
        Kind::Histogram(Bounds::Seconds)
    };
    (Counts) => {
        Kind::Histogram(Bounds::Counts)
    };
}

macro_rules! catalog {
    ($($field:ident: $holder:ty, $kind:ident, $name:literal, $unit:literal, [$($label:literal),*], $help:literal;)*) => {
        /// The instruments of one node.
        #[derive(Debug)]
        pub struct Metrics {
            $(#[doc = $help] pub $field: $holder,)*
            /// Who wants to know about single groups, if anybody.
            pub spans: OnceLock<Spans>,
        }

        /// All rows, in the order in which they are shown.
        pub const CATALOG: &[Entry] = &[
            $(Entry { name: $name, kind: kind!($kind), unit: $unit, labels: &[$($label),*], help: $help },)*
        ];

        impl Metrics {
            /// Instruments that stand at zero.
            pub fn new() -> Self {
                let mut entries = CATALOG.iter();
                $(let $field = Field::new(entries.next().expect("a row for each field"));)*
                Self { $($field,)* spans: OnceLock::new() }
            }

            /// What all of them say now.
            pub fn collect(&self) -> Vec<(&'static Entry, Vec<Sample>)> {
                let samples = [$(Field::samples(&self.$field)),*];
                CATALOG.iter().zip(samples).collect()
            }
        }
    };
}

catalog! {
    // Calls.
    call_duration: Family<Histogram>, Seconds, "quipu_rpc_duration_seconds", "seconds", ["method", "code"],
        "time of a call from its headers to the end of its answer, by gRPC status code";
    refusals: Family<Counter>, Counter, "quipu_rpc_refusals", "", ["reason"],
        "calls that were refused, by the reason of the error table";
    calls_running: Level, Gauge, "quipu_rpc_running", "", [],
        "calls that are being served";
    connections: Level, Gauge, "quipu_connections", "", [],
        "open client connections";
    connections_accepted: Counter, Counter, "quipu_connections_accepted", "", [],
        "client connections that were accepted";
    connections_refused: Family<Counter>, Counter, "quipu_connections_refused", "", ["why"],
        "client connections that were not served: handshake, handshake_timeout, preface_timeout, address";

    // Who may come in.
    is_insecure: Gauge, Gauge, "quipu_insecure", "", [],
        "1 when whoever reaches the node can read or write without being asked, on more than loopback";
    certificate_expiry: Gauge, Gauge, "quipu_certificate_expiry_seconds", "seconds", [],
        "when the certificate of the listener ends, in seconds since 1970; 0 without TLS";
    reloads: Family<Counter>, Counter, "quipu_reloads", "", ["what"],
        "times that changed files were put in force: tls, auth";
    reload_failing: Family<Gauge>, Gauge, "quipu_reload_failing", "", ["what"],
        "1 while changed files cannot be used and the old ones stay in force: tls, auth";

    // Appends and reads.
    append_events: Counter, Counter, "quipu_append_events", "", [],
        "events that appends put at the end of a log";
    append_bytes: Counter, Counter, "quipu_append_bytes", "bytes", [],
        "bytes of these events";
    append_repeated: Counter, Counter, "quipu_append_repeated", "", [],
        "appends that were stored before and confirmed again";
    breaches: Family<Counter>, Counter, "quipu_nesting_breaches", "", ["rule"],
        "stored events that break the nesting of turns, steps and calls, by rule";
    read_events: Counter, Counter, "quipu_read_events", "", [],
        "events that reads took from the store";
    read_bytes: Counter, Counter, "quipu_read_bytes", "bytes", [],
        "bytes of their data";
    budget_used: Family<Gauge>, Gauge, "quipu_budget_used", "", ["budget"],
        "units on loan: append_bytes, calls, reads, followers, follow_bytes";
    budget_limit: Family<Gauge>, Gauge, "quipu_budget_limit", "", ["budget"],
        "units that can be lent at once";

    // Followers.
    followers: Gauge, Gauge, "quipu_followers", "", [],
        "followers of logs and readers of the change feed, on all streams";
    follow_lag: Gauge, Gauge, "quipu_follow_lag", "", [],
        "events between the slowest follower of a log and the end of what it may be told";
    follow_events: Counter, Counter, "quipu_follow_events", "", [],
        "events that followers of logs took";
    follow_bytes: Counter, Counter, "quipu_follow_bytes", "bytes", [],
        "bytes of their data";
    follow_fallbacks: Counter, Counter, "quipu_follow_fallbacks", "", [],
        "times that a follower was too slow for memory and was moved back to the store";
    feed_changes: Counter, Counter, "quipu_feed_changes", "", [],
        "changes that readers of the change feed took";

    // Commits.
    commit_duration: Histogram, Seconds, "quipu_commit_duration_seconds", "seconds", [],
        "time to store one group: write, sync, index in memory";
    sync_duration: Histogram, Seconds, "quipu_sync_duration_seconds", "seconds", [],
        "time of one write with its sync to the journal";
    commit_changes: Histogram, Counts, "quipu_commit_changes", "", [],
        "changes in one group";
    commit_failures: Counter, Counter, "quipu_commit_failures", "", [],
        "groups that could not be stored; the first one makes the node read-only";
    commit_queue: Gauge, Gauge, "quipu_commit_queue", "", [],
        "changes that wait for a group";
    commit_age: Gauge, Gauge, "quipu_commit_age_seconds", "seconds", [],
        "how long the running commit has been waiting for the disk; 0 when none runs";
    journal_bytes: Counter, Counter, "quipu_journal_written_bytes", "bytes", [],
        "bytes written to the journal, padding included";

    // Sessions.
    sessions_in_memory: Gauge, Gauge, "quipu_sessions_in_memory", "", [],
        "session names that are held in memory";
    sessions_created: Counter, Counter, "quipu_sessions_created", "", [],
        "sessions that were created";
    sessions_deleted: Counter, Counter, "quipu_sessions_deleted", "", [],
        "sessions that were deleted";

    // The store.
    index_rebuilds: Counter, Counter, "quipu_index_rebuilds", "", [],
        "times that the index was built anew from the journal";
    checkpoint_duration: Histogram, Seconds, "quipu_checkpoint_duration_seconds", "seconds", [],
        "time to write the index behind the journal";
    open_duration: Gauge, Gauge, "quipu_open_duration_seconds", "seconds", [],
        "time that opening the store took";
    replayed: Counter, Counter, "quipu_recovery_replayed", "", [],
        "changes that opening replayed from the journal";
    torn_bytes: Counter, Counter, "quipu_recovery_torn_bytes", "bytes", [],
        "bytes of torn ends that opening cut from the journal";
    damaged_places: Counter, Counter, "quipu_recovery_damaged_places", "", [],
        "damaged places that opening met in the journal";
    quarantined: Gauge, Gauge, "quipu_quarantined", "", [],
        "things in the quarantine directory: torn ends, unusable indexes";

    // The disk.
    disk_free: Gauge, Gauge, "quipu_disk_free_bytes", "bytes", [],
        "free space of the volume that holds the data directory";
    disk_size: Gauge, Gauge, "quipu_disk_size_bytes", "bytes", [],
        "size of that volume";
    data_bytes: Family<Gauge>, Gauge, "quipu_data_bytes", "bytes", ["part"],
        "size of the data directory, by the directories in it";

    // The node.
    state: Family<Gauge>, Gauge, "quipu_state", "", ["state"],
        "1 for what the node is doing: waiting, starting, serving, full, read_only, stalled, draining";
    ready: Gauge, Gauge, "quipu_ready", "", [],
        "1 when the node takes appends and reads";
    disk_low: Gauge, Gauge, "quipu_disk_low", "", [],
        "1 when less than disk_free_warn is free";
    lock_wait: Gauge, Gauge, "quipu_lock_wait_seconds", "seconds", [],
        "how long the node has been waiting for another one to let go of the data directory; 0 when it holds it";
    export_failures: Family<Counter>, Counter, "quipu_export_failures", "", ["signal"],
        "metrics and traces that could not be sent to the OTLP endpoint";
    build: Family<Gauge>, Gauge, "quipu_build_info", "", ["version"],
        "1, for the version that runs";

    // The process.
    start_time: Gauge, Gauge, "process_start_time_seconds", "seconds", [],
        "when the process started, in seconds since 1970";
    resident: Gauge, Gauge, "process_resident_memory_bytes", "bytes", [],
        "memory of the process";
    cpu: Gauge, Counter, "process_cpu_seconds", "seconds", [],
        "processor time of the process so far";
    open_fds: Gauge, Gauge, "process_open_fds", "", [],
        "open file descriptors";
    threads: Gauge, Gauge, "process_threads", "", [],
        "threads of the process";
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_that_ends_with_its_unit() {
        let mut seen = std::collections::HashSet::new();
        for entry in CATALOG {
            assert!(seen.insert(entry.name), "{} twice", entry.name);
            assert!(entry.unit.is_empty() || entry.name.ends_with(&format!("_{}", entry.unit)), "{}", entry.name);
            assert!(!entry.name.ends_with("_total") && !entry.help.is_empty() && !entry.help.ends_with('.'));
            assert!(entry.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{}", entry.name);
        }
        let collected = Metrics::new().collect();
        assert_eq!(collected.len(), CATALOG.len());
        assert!(collected.iter().all(|(entry, samples)| samples.is_empty() != entry.labels.is_empty()));
    }
}
