//! OTLP: metrics pushed from the same atomics as the page, spans in batches, over one thread of its own.
//!
//! A collector that is slow or gone costs spans and figures, never a call: queues are bounded, and what does not fit
//! is dropped and counted. Nothing is sent unless an endpoint is configured.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{WithExportConfig, WithTonicConfig};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue as Pair, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource as PbResource;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::Node;
use super::trace::{self, Share};
use crate::metrics::{Counter, Entry, Kind, Sample, Spans, Value};
use crate::rpc::observe::Tracer;

/// What is sent where.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://host:port` of a collector.
    pub endpoint: String,
    /// Time between two pushes of the metrics.
    pub interval: Duration,
    /// Share of the calls that are traced, if their caller does not say.
    pub share: f64,
}

/// Longest wait for the collector.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way to the collector.
pub struct Otlp {
    provider: SdkTracerProvider,
    tracer: Arc<Share>,
    end: CancellationToken,
    thread: JoinHandle<()>,
}

impl Otlp {
    /// Starts to send; from now on the node's groups are traced.
    pub fn start(options: Options, node: &Arc<Node>) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let channel = Endpoint::new(options.endpoint.clone())?.timeout(PATIENCE).connect_timeout(PATIENCE);
        let channel = channel.connect_lazy();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(channel.clone())
            .with_timeout(PATIENCE)
            .build()?;
        drop(entered);
        let exporter = Counted { exporter, failures: node.metrics.export_failures.with(&["traces"]) };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource())
            .build();
        let tracer = provider.tracer("quipu");
        let groups = tracer.clone();
        // Already set only if the node was given two exporters, of which the first one goes on.
        drop(node.metrics.spans.set(Spans::new(move |group| trace::group(&groups, &group))));
        let (end, node, interval) = (CancellationToken::new(), node.clone(), options.interval);
        let push = push_until((channel, end.clone()), node, interval);
        let thread = std::thread::Builder::new().name("quipu-otlp".to_owned()).spawn(move || {
            runtime.block_on(push);
            runtime.shutdown_timeout(Duration::from_secs(1));
        })?;
        Ok(Self { provider, tracer: Arc::new(Share::new(tracer, options.share)), end, thread })
    }

    /// What traces the calls.
    pub fn tracer(&self) -> Arc<dyn Tracer> {
        self.tracer.clone()
    }

    /// Sends what is there, and ends. Waits for the collector, within bounds.
    pub fn finish(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(PATIENCE) {
            tracing::warn!(%error, "the last spans were not sent");
        }
        self.end.cancel();
        if self.thread.join().is_err() {
            tracing::error!("the sender of metrics panicked");
        }
    }
}

/// An exporter whose failures are counted.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    failures: Arc<Counter>,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        sent.inspect_err(|error| {
            self.failures.inc();
            tracing::debug!(%error, "spans were not sent");
        })
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// What tells this node from others.
fn identity() -> [(&'static str, String); 3] {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    [
        ("service.name", "quipu".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", host),
    ]
}

fn resource() -> Resource {
    let attributes = identity().map(|(key, value)| KeyValue::new(key, value));
    Resource::builder_empty().with_attributes(attributes).build()
}

/// Pushes the metrics now and then, and once more at the end.
async fn push_until((channel, end): (Channel, CancellationToken), node: Arc<Node>, interval: Duration) {
    let began = SystemTime::now();
    let failures = node.metrics.export_failures.with(&["metrics"]);
    let mut client = MetricsServiceClient::new(channel);
    loop {
        let is_last = tokio::select! {
            () = end.cancelled() => true,
            () = tokio::time::sleep(interval) => false,
        };
        node.measure();
        let request = request(&node.metrics.collect(), (nanos(began), nanos(SystemTime::now())));
        if let Err(status) = client.export(request).await {
            failures.inc();
            tracing::debug!(%status, "metrics were not sent");
        }
        if is_last {
            return;
        }
    }
}

fn nanos(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// From and until when the figures count.
type Span = (u64, u64);

fn request(collected: &[(&'static Entry, Vec<Sample>)], span: Span) -> ExportMetricsServiceRequest {
    let attributes = identity().map(|(key, value)| pair(key, value)).to_vec();
    let metrics = collected.iter().filter(|(_, samples)| !samples.is_empty());
    let metrics = metrics.map(|(entry, samples)| metric(entry, samples, span)).collect();
    let scope = InstrumentationScope { name: "quipu".to_owned(), ..InstrumentationScope::default() };
    let scope = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
    let resource = PbResource { attributes, ..PbResource::default() };
    let metrics =
        ResourceMetrics { resource: Some(resource), scope_metrics: vec![scope], ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![metrics] }
}

fn pair(key: &str, value: String) -> Pair {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value)) };
    Pair { key: key.to_owned(), value: Some(value), ..Pair::default() }
}

fn metric(entry: &Entry, samples: &[Sample], span: Span) -> Metric {
    let temporality = AggregationTemporality::Cumulative.into();
    let numbers = || samples.iter().filter_map(|sample| number(entry, sample, span)).collect();
    let data = match entry.kind {
        Kind::Gauge => metric::Data::Gauge(Gauge { data_points: numbers() }),
        Kind::Counter => {
            metric::Data::Sum(Sum { data_points: numbers(), aggregation_temporality: temporality, is_monotonic: true })
        }
        Kind::Histogram(_) => metric::Data::Histogram(Histogram {
            data_points: samples.iter().filter_map(|sample| distribution(entry, sample, span)).collect(),
            aggregation_temporality: temporality,
        }),
    };
    let unit = match entry.unit {
        "seconds" => "s",
        "bytes" => "By",
        _ => "1",
    };
    let (name, description) = (entry.name.to_owned(), entry.help.to_owned());
    Metric { name, description, unit: unit.to_owned(), data: Some(data), ..Metric::default() }
}

fn labels(entry: &Entry, sample: &Sample) -> Vec<Pair> {
    entry.labels.iter().zip(&sample.labels).map(|(name, value)| pair(name, value.clone())).collect()
}

fn number(entry: &Entry, sample: &Sample, (from, until): Span) -> Option<NumberDataPoint> {
    let Value::Number(number) = sample.value else { return None };
    Some(NumberDataPoint {
        attributes: labels(entry, sample),
        start_time_unix_nano: from,
        time_unix_nano: until,
        value: Some(number_data_point::Value::AsDouble(number)),
        ..NumberDataPoint::default()
    })
}

fn distribution(entry: &Entry, sample: &Sample, (from, until): Span) -> Option<HistogramDataPoint> {
    let Value::Distribution(found) = &sample.value else { return None };
    Some(HistogramDataPoint {
        attributes: labels(entry, sample),
        start_time_unix_nano: from,
        time_unix_nano: until,
        count: found.counts.iter().sum(),
        sum: Some(found.sum),
        bucket_counts: found.counts.clone(),
        explicit_bounds: found.bounds.to_vec(),
        ..HistogramDataPoint::default()
    })
}
