//! `quipu status` and `quipu top`: what a node is doing, from its port of probes and metrics.

mod page;
mod status;
mod top;

use clap::Args;

pub(super) use self::status::status;
pub(super) use self::top::top;

/// Which node is looked at.
#[derive(Args)]
pub(super) struct StatusArgs {
    /// The node's port of probes and metrics (its metrics_listen).
    #[arg(long, value_name = "ADDRESS:PORT", env = "QUIPU_PROBES", default_value = "127.0.0.1:9777")]
    probes: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Which node is looked at, and how often.
#[derive(Args)]
pub(super) struct TopArgs {
    /// The node's port of probes and metrics (its metrics_listen).
    #[arg(long, value_name = "ADDRESS:PORT", env = "QUIPU_PROBES", default_value = "127.0.0.1:9777")]
    probes: String,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Print so many looks as JSON, one a line, instead of drawing; 0 for the screen.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    json: u64,
}

/// A bound of a time for people.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if !seconds.is_finite() => "> 60 s".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// Names with counts, the first few.
fn listed(found: &[(String, f64)]) -> String {
    let shown: Vec<_> = found.iter().take(6).map(|(name, count)| format!("{name} {count:.0}")).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}
