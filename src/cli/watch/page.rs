//! The metrics page of a node, fetched and read back.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// Longest wait for the node.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest page that is read.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// What a node said at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    series: Vec<Series>,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Asks a node over plain HTTP; gives the status code and the text.
pub(super) fn ask(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let target = address.to_socket_addrs().with_context(|| format!("--probes {address}"))?.next();
    let target = target.with_context(|| format!("--probes {address} has no address"))?;
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)
        .with_context(|| format!("nothing at {address}; start the server with --metrics-listen {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(PAGE_BYTES_MAX).read_to_string(&mut text)?;
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    match (code, text.split_once("\r\n\r\n")) {
        (Some(code), Some((_, body))) => Ok((code, body.to_owned())),
        _ => bail!("{address} does not speak HTTP"),
    }
}

impl Page {
    /// Reads the text of a page; lines that are none are passed over.
    pub(super) fn parse(text: &str) -> Self {
        Self { series: text.lines().filter_map(Series::parse).collect() }
    }

    /// What the node says now.
    pub(super) fn fetch(address: &str) -> anyhow::Result<Self> {
        let (code, text) = ask(address, "/metrics")?;
        if code != 200 {
            bail!("{address}/metrics answers {code}");
        }
        Ok(Self::parse(&text))
    }

    fn matching<'p>(&'p self, name: &'p str, labels: &'p [(&str, &str)]) -> impl Iterator<Item = &'p Series> {
        let has = |series: &Series| {
            labels.iter().all(|(label, value)| series.labels.get(*label).is_some_and(|found| found == value))
        };
        self.series.iter().filter(move |series| series.name == name && has(series))
    }

    /// The sum of all series of that name with these labels; 0 when there is none.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|series| series.value).sum()
    }

    /// The same without labels.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.sum(name, &[])
    }

    /// Values by one label, the largest first; zeros are left out.
    pub(super) fn by(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let mut found = BTreeMap::new();
        for series in self.matching(name, &[]) {
            *found.entry(series.labels.get(label).cloned().unwrap_or_default()).or_insert(0.0) += series.value;
        }
        let mut found: Vec<_> = found.into_iter().filter(|(_, value)| *value > 0.0).collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found
    }

    /// The value that a share of what a histogram counted since `before` does not exceed; `None` when it counted nothing.
    pub(super) fn quantile(&self, before: &Self, name: &str, (labels, share): (&[(&str, &str)], f64)) -> Option<f64> {
        let bucket = format!("{name}_bucket");
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for (page, sign) in [(self, 1.0), (before, -1.0)] {
            for series in page.matching(&bucket, labels) {
                let bound = series.labels.get("le").and_then(|le| le.replace("+Inf", "inf").parse().ok());
                let Some(bound) = bound else { continue };
                match counts.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                    Some((_, count)) => *count += sign * series.value,
                    None => counts.push((bound, sign * series.value)),
                }
            }
        }
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wanted = counts.last().map(|(_, count)| count * share).filter(|wanted| *wanted > 0.0)?;
        counts.iter().find(|(_, count)| *count >= wanted).map(|(bound, _)| *bound)
    }
}

impl Series {
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}')?.split("\",").filter(|pair| !pair.is_empty());
        let labels = labels.filter_map(|pair| pair.trim_end_matches('"').split_once("=\""));
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { name: name.to_owned(), labels, value: value.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_reads_back_and_quantiles_count_only_what_is_new() {
        let metrics = crate::metrics::Metrics::new();
        metrics.sync_duration.record(Duration::from_secs(20));
        let before = Page::parse(&crate::ops::page::page(&metrics));
        (0..100).for_each(|_| metrics.sync_duration.record(Duration::from_micros(80)));
        metrics.refusals.with(&["RATE"]).add(3);
        metrics.refusals.with(&["SEQ_GAP"]).add(7);
        let page = Page::parse(&crate::ops::page::page(&metrics));
        assert!((page.value("quipu_sync_duration_seconds_count") - 101.0).abs() < 0.1);
        let by = page.by("quipu_rpc_refusals_total", "reason");
        assert_eq!(by, [("SEQ_GAP".to_owned(), 7.0), ("RATE".to_owned(), 3.0)]);
        let p = |before: &Page, share| page.quantile(before, "quipu_sync_duration_seconds", (&[], share));
        assert_eq!((p(&before, 0.99), p(&before, 1.0)), (Some(0.000_1), Some(0.000_1)));
        assert_eq!(p(&Page::default(), 1.0), Some(30.0));
        assert_eq!(p(&page, 0.5), None);
    }
}
