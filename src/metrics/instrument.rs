//! The instruments: counter, gauge, histogram, and families of them by label.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

/// What an instrument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts values by size.
    Histogram(Bounds),
}

/// The upper bounds of a histogram's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// From 50 microseconds to a minute.
    Seconds,
    /// From 1 to 4096.
    Counts,
}

const SECONDS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];
const COUNTS: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

impl Bounds {
    /// The bounds in ascending order; one more bucket holds what is larger.
    pub fn values(self) -> &'static [f64] {
        match self {
            Self::Seconds => &SECONDS,
            Self::Counts => &COUNTS,
        }
    }
}

/// One row of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the suffixes that a format adds (`_total`, `_bucket`).
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// `seconds`, `bytes`, or empty for a plain count; the name ends with it.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

/// A value that is read out.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Distribution(Distribution),
}

/// What a histogram counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// See [`Bounds::values`].
    pub bounds: &'static [f64],
    /// How many values fell into each bucket; one more than there are bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: f64,
}

/// One series of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Values of the labels, in the order of the entry.
    pub labels: Vec<String>,
    /// The value.
    pub value: Value,
}

/// Makes and reads an instrument.
pub trait Instrument: Sized {
    /// A new one.
    fn make(kind: Kind) -> Self;
    /// Its value now.
    fn read(&self) -> Value;
}

/// Counts what happens.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Once more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes over a total that is counted elsewhere.
    pub fn set(&self, total: u64) {
        self.0.store(total, Ordering::Relaxed);
    }
}

impl Instrument for Counter {
    fn make(_: Kind) -> Self {
        Self::default()
    }

    fn read(&self) -> Value {
        Value::Number(self.get() as f64)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// It is this now.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// What it is.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl Instrument for Gauge {
    fn make(_: Kind) -> Self {
        Self::default()
    }

    fn read(&self) -> Value {
        Value::Number(self.get())
    }
}

/// How many there are of something that comes and goes.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// One came.
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One went.
    pub fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Instrument for Level {
    fn make(_: Kind) -> Self {
        Self::default()
    }

    fn read(&self) -> Value {
        Value::Number(self.0.load(Ordering::Relaxed) as f64)
    }
}

/// Counts values by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    /// In billionths, so that an addition is one instruction.
    sum_nanos: AtomicU64,
}

impl Histogram {
    /// A time.
    pub fn record(&self, took: Duration) {
        self.put(took.as_secs_f64(), took.as_nanos() as u64);
    }

    /// A number.
    pub fn count(&self, n: u64) {
        self.put(n as f64, n.saturating_mul(1_000_000_000));
    }

    fn put(&self, value: f64, nanos: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Instrument for Histogram {
    fn make(kind: Kind) -> Self {
        let bounds = match kind {
            Kind::Histogram(bounds) => bounds,
            Kind::Counter | Kind::Gauge => Bounds::Seconds,
        };
        let bounds = bounds.values();
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum_nanos: AtomicU64::new(0) }
    }

    fn read(&self) -> Value {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum = self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9;
        Value::Distribution(Distribution { bounds: self.bounds, counts, sum })
    }
}

/// Series of one family; more than these share the last one, so that no caller can make a node grow.
const SERIES_MAX: usize = 1000;

/// Instruments of one name, told apart by the values of their labels.
#[derive(Debug)]
pub struct Family<T> {
    kind: Kind,
    labels: usize,
    series: RwLock<BTreeMap<Vec<String>, Arc<T>>>,
}

impl<T: Instrument> Family<T> {
    /// The series with these values, made at the first use. Keep it where it is used often: this looks it up.
    pub fn with(&self, values: &[&str]) -> Arc<T> {
        debug_assert_eq!(values.len(), self.labels, "a value for each label");
        let key: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        if let Some(found) = self.series.read().get(&key) {
            return found.clone();
        }
        let mut series = self.series.write();
        let key = if series.len() < SERIES_MAX { key } else { vec!["other".to_owned(); self.labels] };
        series.entry(key).or_insert_with(|| Arc::new(T::make(self.kind))).clone()
    }

    pub(super) fn new(entry: &Entry) -> Self {
        Self { kind: entry.kind, labels: entry.labels.len(), series: RwLock::default() }
    }

    pub(super) fn read(&self) -> Vec<Sample> {
        let series = self.series.read();
        series.iter().map(|(labels, one)| Sample { labels: labels.clone(), value: one.read() }).collect()
    }
}

/// What stands in a field of the catalogue: an instrument, or a family.
pub(super) trait Field {
    fn new(entry: &Entry) -> Self;
    fn samples(&self) -> Vec<Sample>;
}

impl<T: Instrument> Field for Family<T> {
    fn new(entry: &Entry) -> Self {
        Family::new(entry)
    }

    fn samples(&self) -> Vec<Sample> {
        self.read()
    }
}

/// A field without labels.
macro_rules! plain {
    ($($instrument:ty),*) => {$(
        impl Field for $instrument {
            fn new(entry: &Entry) -> Self {
                <$instrument as Instrument>::make(entry.kind)
            }

            fn samples(&self) -> Vec<Sample> {
                vec![Sample { labels: Vec::new(), value: Instrument::read(self) }]
            }
        }
    )*};
}

plain!(Counter, Gauge, Level, Histogram);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::make(Kind::Histogram(Bounds::Counts));
        [1, 2, 3, 4096, 4097].into_iter().for_each(|n| histogram.count(n));
        let Value::Distribution(found) = histogram.read() else { panic!("a distribution") };
        assert_eq!((found.counts[0], found.counts[1], found.counts[2]), (1, 1, 1));
        assert_eq!((found.counts[12], found.counts[13]), (1, 1));
        assert!((found.sum - 8199.0).abs() < 1e-6);
    }

    #[test]
    fn a_family_never_has_more_series_than_its_bound() {
        let entry = Entry { name: "n", kind: Kind::Counter, unit: "", labels: &["l"], help: "" };
        let family: Family<Counter> = Family::new(&entry);
        (0..2 * SERIES_MAX).for_each(|n| family.with(&[&n.to_string()]).inc());
        let read = family.read();
        assert_eq!(read.len(), SERIES_MAX + 1);
        let total: f64 = read.iter().map(|sample| if let Value::Number(n) = sample.value { n } else { 0.0 }).sum();
        assert!((total - 2.0 * SERIES_MAX as f64).abs() < 0.5);
    }
}
