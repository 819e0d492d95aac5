//! The rules of the house, as a test: floors, files, words.
#![allow(clippy::unwrap_used, missing_docs, reason = "test code")]

use std::fs;
use std::path::{Path, PathBuf};

/// Each floor: what it may name of this crate, and which foreign crates only it may name.
const FLOORS: [(&str, &[&str]); 11] = [
    // Atomics and their names: what any floor that does something may count into, without knowing who reads it.
    ("metrics", &[]),
    ("model", &[]),
    ("codec", &["model"]),
    ("replay", &["model"]),
    ("store", &["metrics", "model", "codec"]),
    ("service", &["metrics", "model", "codec", "replay", "store"]),
    ("portable", &["metrics", "model", "codec", "replay", "store", "service"]),
    ("rpc", &["metrics", "model", "codec", "replay", "store", "service", "portable"]),
    // What an operator sees of a node: it looks at all of them, and none of them knows it.
    ("ops", &["metrics", "model", "store", "service", "rpc"]),
    // What a host links: it speaks to a server over the wire, and is used by none of the others.
    ("client", &["model", "codec", "replay", "service", "rpc"]),
    ("cli", &["metrics", "model", "codec", "replay", "store", "service", "portable", "rpc", "ops"]),
];

/// Foreign crates and the only places that may name them.
const CRATES: [(&str, &[&str]); 13] = [
    ("sled", &["store/local/index.rs"]),
    ("tonic", &["rpc/", "ops/", "client/", "cli/"]),
    ("prost", &["rpc/", "client/error.rs"]),
    ("axum", &["ops/"]),
    ("ratatui", &["cli/watch/"]),
    ("opentelemetry", &["ops/"]),
    ("opentelemetry_sdk", &["ops/"]),
    ("opentelemetry_proto", &["ops/"]),
    ("clap", &["cli/"]),
    ("anyhow", &["cli/"]),
    ("toml", &["cli/config.rs"]),
    ("zstd", &["portable/", "codec/segment/"]),
    ("serde_json", &["cli/"]),
];

/// Words that say nothing.
const EMPTY_NAMES: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "manager", "misc"];

const LINES_MAX: usize = 450;

fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, out) } else { out.push(path) }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    let sources: Vec<_> = paths.iter().map(|path| (relative(path), fs::read_to_string(path).unwrap())).collect();
    assert!(sources.len() > 30, "the sources were not found");
    sources
}

/// The code of a line, without what stands in a comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn is_test(name: &str) -> bool {
    name.contains("/tests") || name.contains("/contract")
}

#[test]
fn a_floor_names_only_floors_below_it() {
    for (name, text) in sources() {
        let Some((floor, may)) = FLOORS.iter().find(|(floor, _)| name.starts_with(&format!("{floor}/"))) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for part in code(line).split("crate::").skip(1) {
                let named: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let known = FLOORS.iter().any(|(other, _)| *other == named);
                let allowed = named == *floor || may.contains(&named.as_str());
                assert!(!known || allowed, "src/{name}:{} names crate::{named}", number + 1);
            }
        }
    }
}

#[test]
fn each_foreign_crate_stays_where_it_belongs() {
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            for (foreign, places) in CRATES {
                let names =
                    code(line).contains(&format!("{foreign}::")) && !code(line).contains(&format!("_{foreign}::"));
                let allowed = places.iter().any(|place| name.starts_with(place));
                assert!(!names || allowed || is_test(&name), "src/{name}:{} names {foreign}", number + 1);
            }
        }
    }
}

#[test]
fn every_task_has_an_owner_and_no_floor_below_the_shell_waits() {
    for (name, text) in sources() {
        let is_core = ["model/", "codec/", "replay/"].iter().any(|floor| name.starts_with(floor));
        for (number, line) in text.lines().enumerate() {
            let line = code(line);
            let place = format!("src/{name}:{}", number + 1);
            assert!(!line.contains("tokio::spawn(") || name == "cli/serve.rs", "{place} spawns a task nobody joins");
            assert!(!is_core || (!line.contains("async ") && !line.contains("tokio")), "{place} waits in the core");
            assert!(!is_core || !line.contains("tracing::"), "{place} logs in the core");
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_readable() {
    for (name, text) in sources() {
        if !is_test(&name) {
            assert!(text.starts_with("//!"), "src/{name} has no header");
        }
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "src/{name} has {lines} lines; {LINES_MAX} are allowed");
        let stem = Path::new(&name).file_stem().unwrap().to_str().unwrap();
        assert!(!EMPTY_NAMES.contains(&stem), "src/{name} is a drawer");
        let stale = ["TODO:", "TODO(", "FIXME", "XXX", "HACK"].iter().find(|word| text.contains(**word));
        assert!(stale.is_none(), "src/{name} has a {stale:?}");
        assert!(!Path::new(&name).with_extension("").is_dir(), "src/{name} stands beside a folder of its name");
    }
}

#[test]
fn the_readme_lists_every_setting_with_its_default() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let defaults = quipu::cli::config::Config::default();
    for setting in &quipu::cli::config::SETTINGS {
        let row = format!("| `{}` | `{}` | {} |", setting.name, setting.show(&defaults), setting.help);
        assert!(readme.contains(&row), "README.md lacks the row\n{row}");
    }
}

/// The rows of a table of a document, by their first column.
fn rows(path: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    text.lines().filter(|line| line.starts_with("| `")).map(str::to_owned).collect()
}

#[test]
fn the_documentation_lists_every_metric_and_no_other() {
    use quipu::metrics::{CATALOG, Entry, Kind};
    let row = |entry: &Entry| {
        let kind = match entry.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        let labels: Vec<_> = entry.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {kind} | {} | {} | {} |", entry.name, entry.unit, labels.join(", "), entry.help)
    };
    let wanted: Vec<String> = CATALOG.iter().map(row).collect();
    assert_eq!(rows("docs/metrics.md"), wanted, "write this:\n{}", wanted.join("\n"));
}

/// Series names as a query names them.
fn series() -> Vec<String> {
    use quipu::metrics::{CATALOG, Kind};
    let names = CATALOG.iter().flat_map(|entry| {
        let suffixes: &[&str] = match entry.kind {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram(_) => &["_bucket", "_count", "_sum"],
        };
        suffixes.iter().map(move |suffix| format!("{}{suffix}", entry.name))
    });
    names.collect()
}

#[test]
fn dashboard_and_alerts_and_runbooks_name_only_series_that_exist() {
    let series = series();
    for path in ["deploy/chart/files/dashboard.json", "deploy/chart/files/alerts.yaml", "docs/runbooks.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: Vec<_> = words.filter(|word| word.starts_with("quipu_") || word.starts_with("process_")).collect();
        assert!(named.len() > 5, "{path}");
        for word in named {
            // Prose may name a family of histograms.
            let is_family = path.starts_with("docs/") && series.contains(&format!("{word}_count"));
            assert!(is_family || series.iter().any(|name| name == word), "{path} names {word}");
        }
    }
}

#[test]
fn every_alert_has_its_runbook_and_every_runbook_its_alert() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (alerts, runbooks) = (read("deploy/chart/files/alerts.yaml"), read("docs/runbooks.md"));
    let alerts: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let runbooks: Vec<_> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(alerts, runbooks);
}
