//! The metrics as OpenMetrics text.

use std::fmt::Write as _;

use crate::metrics::{Entry, Kind, Metrics, Sample, Value};

/// What the page is, in HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics, as they stand.
pub fn page(metrics: &Metrics) -> String {
    let mut page = String::with_capacity(32 << 10);
    for (entry, samples) in metrics.collect() {
        family(entry, &samples, &mut page);
    }
    page.push_str("# EOF\n");
    page
}

fn family(entry: &Entry, samples: &[Sample], page: &mut String) {
    let Entry { name, kind, unit, help, .. } = entry;
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    put(page, format_args!("# TYPE {name} {kind}\n"));
    if !unit.is_empty() {
        put(page, format_args!("# UNIT {name} {unit}\n"));
    }
    put(page, format_args!("# HELP {name} {help}\n"));
    let suffix = if entry.kind == Kind::Counter { "_total" } else { "" };
    for sample in samples {
        let labels = labels(entry, sample);
        match &sample.value {
            Value::Number(number) => put(page, format_args!("{name}{suffix}{} {number}\n", braced(&labels, None))),
            Value::Distribution(found) => {
                let bounds = found.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                let mut count = 0;
                for (bound, more) in bounds.zip(&found.counts) {
                    count += more;
                    put(page, format_args!("{name}_bucket{} {count}\n", braced(&labels, Some(&bound))));
                }
                put(page, format_args!("{name}_count{} {count}\n", braced(&labels, None)));
                put(page, format_args!("{name}_sum{} {}\n", braced(&labels, None), found.sum));
            }
        }
    }
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = page.write_fmt(text);
}

fn labels(entry: &Entry, sample: &Sample) -> Vec<String> {
    let pairs = entry.labels.iter().zip(&sample.labels);
    pairs.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn braced(labels: &[String], bound: Option<&str>) -> String {
    let bound = bound.map(|bound| format!("le=\"{}\"", spelled(bound)));
    let all: Vec<&str> = labels.iter().chain(&bound).map(String::as_str).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

/// A bound with a point, as the format wants a canonical number.
fn spelled(bound: &str) -> String {
    if bound.contains(['.', 'I']) { bound.to_owned() } else { format!("{bound}.0") }
}
