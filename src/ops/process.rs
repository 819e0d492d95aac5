//! The process as the kernel sees it. Where there is no `/proc`, its gauges stay at zero.

use std::fs;

use crate::metrics::Metrics;

/// Ticks of a second in `/proc`; the kernel's interface fixes them on all platforms that we run on.
const TICKS: f64 = 100.0;

/// Reads memory, processor time, threads, descriptors and the start.
pub fn measure(metrics: &Metrics) {
    metrics.build.with(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    metrics.open_fds.set(fs::read_dir("/proc/self/fd").map_or(0.0, |entries| entries.count() as f64));
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in brackets, may hold anything; what follows is counted from behind it.
    let Some((_, rest)) = stat.rsplit_once(')') else { return };
    let fields: Vec<f64> = rest.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0.0)).collect();
    let field = |number: usize| fields.get(number - 4).copied().unwrap_or(0.0);
    metrics.cpu.set((field(14) + field(15)) / TICKS);
    metrics.threads.set(field(20));
    metrics.resident.set(field(24) * rustix::param::page_size() as f64);
    let uptime = fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = uptime.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    metrics.start_time.set(boot.map_or(0.0, |boot| boot + field(22) / TICKS));
}
