//! `quipu status`: one screen, or one object.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::text;
use super::page::{Page, ask};
use super::{StatusArgs, listed, time};
use crate::cli::text::shown;

const APPEND: (&str, &str) = ("method", "quipu.v1.LogService/Append");

/// What is shown; all counts since the node started.
#[derive(serde::Serialize)]
struct Status {
    state: String,
    why: String,
    ready: bool,
    version: String,
    up_seconds: f64,
    connections: f64,
    sessions_in_memory: f64,
    calls_running: f64,
    append_events: f64,
    appends_by_code: BTreeMap<String, f64>,
    append_p50_seconds: Option<f64>,
    append_p99_seconds: Option<f64>,
    sync_p50_seconds: Option<f64>,
    sync_p99_seconds: Option<f64>,
    commit_age_seconds: f64,
    commit_queue: f64,
    refusals: BTreeMap<String, f64>,
    disk_free_bytes: f64,
    disk_size_bytes: f64,
    data_bytes: BTreeMap<String, f64>,
    damaged_places: f64,
    index_rebuilds: f64,
    quarantined: f64,
    resident_bytes: f64,
}

impl Status {
    fn of(page: &Page, ready: (u16, &str)) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let (state, why) = ready.1.trim().split_once(": ").unwrap_or_else(|| (ready.1.trim(), ""));
        let zero = Page::default();
        let append = |share| page.quantile(&zero, "quipu_rpc_duration_seconds", (&[APPEND, ("code", "OK")], share));
        let sync = |share| page.quantile(&zero, "quipu_sync_duration_seconds", (&[], share));
        let by = |name, label| page.by(name, label).into_iter().collect();
        let codes = page.by("quipu_rpc_duration_seconds_count", "code").into_iter();
        let appends = |code: &str| page.sum("quipu_rpc_duration_seconds_count", &[APPEND, ("code", code)]);
        Self {
            state: state.to_owned(),
            why: why.to_owned(),
            ready: ready.0 == 200,
            version: page.by("quipu_build_info", "version").into_iter().next().unwrap_or_default().0,
            up_seconds: (now - page.value("process_start_time_seconds")).max(0.0).round(),
            connections: page.value("quipu_connections"),
            sessions_in_memory: page.value("quipu_sessions_in_memory"),
            calls_running: page.value("quipu_rpc_running"),
            append_events: page.value("quipu_append_events_total"),
            appends_by_code: codes.map(|(code, _)| (code.clone(), appends(&code))).filter(|(_, n)| *n > 0.0).collect(),
            append_p50_seconds: append(0.5),
            append_p99_seconds: append(0.99),
            sync_p50_seconds: sync(0.5),
            sync_p99_seconds: sync(0.99),
            commit_age_seconds: page.value("quipu_commit_age_seconds"),
            commit_queue: page.value("quipu_commit_queue"),
            refusals: by("quipu_rpc_refusals_total", "reason"),
            disk_free_bytes: page.value("quipu_disk_free_bytes"),
            disk_size_bytes: page.value("quipu_disk_size_bytes"),
            data_bytes: by("quipu_data_bytes", "part"),
            damaged_places: page.value("quipu_recovery_damaged_places_total"),
            index_rebuilds: page.value("quipu_index_rebuilds_total"),
            quarantined: page.value("quipu_quarantined"),
            resident_bytes: page.value("process_resident_memory_bytes"),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let listed = |map: &BTreeMap<String, f64>| {
            let mut found: Vec<_> = map.iter().map(|(name, count)| (name.clone(), *count)).collect();
            found.sort_by(|a, b| b.1.total_cmp(&a.1));
            listed(&found)
        };
        let parts: Vec<_> =
            self.data_bytes.iter().map(|(part, size)| format!("{part} {}", text::size(*size))).collect();
        let why = if self.why.is_empty() { String::new() } else { format!(": {}", self.why) };
        vec![
            ("state", format!("{}{why}", self.state)),
            (
                "version",
                format!("{}, up {:.0} s, {} of memory", self.version, self.up_seconds, text::size(self.resident_bytes)),
            ),
            (
                "clients",
                format!(
                    "{} connections, {} calls running, {} sessions in memory",
                    self.connections, self.calls_running, self.sessions_in_memory
                ),
            ),
            ("appends", format!("{} events; by outcome: {}", self.append_events, listed(&self.appends_by_code))),
            ("latency", format!("append p50 {}, p99 {}", time(self.append_p50_seconds), time(self.append_p99_seconds))),
            (
                "disk",
                format!(
                    "sync p50 {}, p99 {}; {} waiting; running commit {:.1} s",
                    time(self.sync_p50_seconds),
                    time(self.sync_p99_seconds),
                    self.commit_queue,
                    self.commit_age_seconds
                ),
            ),
            (
                "space",
                format!(
                    "{} of {} free; {}",
                    text::size(self.disk_free_bytes),
                    text::size(self.disk_size_bytes),
                    parts.join(", ")
                ),
            ),
            ("refusals", listed(&self.refusals)),
            (
                "damage",
                format!(
                    "{} places, {} index rebuilds, {} things in quarantine",
                    self.damaged_places, self.index_rebuilds, self.quarantined
                ),
            ),
        ]
    }
}

/// Shows a node; one that is not ready is a failure, so that scripts can ask.
pub(in crate::cli) fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let (code, text) = ask(&args.probes, "/readyz")?;
    let status = Status::of(&Page::fetch(&args.probes)?, (code, &text));
    if args.json {
        say!("{}", serde_json::to_string(&status)?)?;
    } else {
        for (name, text) in status.lines() {
            say!("{name:<9}  {}", shown(&text))?;
        }
    }
    anyhow::ensure!(status.ready, "the node is not ready: {}", status.state);
    Ok(())
}
