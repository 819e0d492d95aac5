//! What an operator sees: probes, the metrics page, OTLP, and each fault from outside.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use quipu::metrics::CATALOG;
use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::fault::{FaultStore, Plan};
use serde_json::Value;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::gate::GateStore;
use crate::support::process::{Process, run_with};
use crate::support::python;
use crate::support::volume::Volume;
use crate::support::{Calls, all_of, batch, note, notes, refused, run, setting, stored};

/// A node with probes and metrics, and where they are.
struct Watched {
    server: Process,
    probes: String,
}

const PROBES: [&str; 2] = ["--metrics-listen", "127.0.0.1:0"];

impl Watched {
    fn spawn(dir: &std::path::Path, args: &[&str]) -> Self {
        let mut server = Process::spawn(dir, &[&PROBES[..], args].concat());
        let line = server.wait_for("probes and metrics").unwrap_or_else(|| panic!("{}", server.log()));
        let line: Value = serde_json::from_str(&line).unwrap();
        Self { server, probes: line["address"].as_str().unwrap().to_owned() }
    }

    fn start(dir: &std::path::Path, args: &[&str]) -> Self {
        let mut watched = Self::spawn(dir, args);
        watched.server.serving();
        watched.until("/readyz", 200);
        watched
    }

    fn get(&self, path: &str) -> (u16, String) {
        get(&self.probes, path)
    }

    /// Waits for an answer, and gives its text.
    fn until(&self, path: &str, code: u16) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let (found, text) = self.get(path);
            if found == code {
                return text;
            }
            assert!(Instant::now() < until, "{path} still answers {found}: {text}");
            std::thread::yield_now();
        }
    }

    fn value(&self, series: &str) -> f64 {
        value(&self.get("/metrics").1, series)
    }
}

fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Nothing but appends writes to the disk, once all segments are made.
const CALM: [&str; 4] = ["--checkpoint-interval", "10m", "--spare-segments", "1"];

/// Waits for the segments of a calm node: an append is to be the first that meets a fault.
fn spares_are_made(dir: &std::path::Path) {
    let segments = || std::fs::read_dir(dir.join("journal")).unwrap();
    while segments().filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == "qj").count() < 2 {
        std::thread::yield_now();
    }
}

/// A node on a volume of its own with one event of the session `s`; `None` where there are no volumes.
async fn on_a_volume() -> Option<(Volume, Watched, Client)> {
    let volume = Volume::new(512 << 20)?;
    let watched = Watched::start(&volume.dir(), &CALM);
    let mut client = watched.server.client().await;
    client.make("s").await;
    client.append(batch("s", 0, notes("a", 1))).await.unwrap();
    spares_are_made(&volume.dir());
    Some((volume, watched, client))
}

/// The value of a series of a page, by its name with labels.
fn value(page: &str, series: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

async fn grpc_health(address: &str, service: &str) -> ServingStatus {
    let channel = tonic::transport::Endpoint::new(address.to_owned()).unwrap().connect().await.unwrap();
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.unwrap().into_inner().status()
}

#[test]
fn probes_tell_live_started_and_ready_apart_and_the_page_parses() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let watched = Watched::start(dir.path(), &[]);
        for path in ["/livez", "/startedz", "/readyz"] {
            assert_eq!(watched.get(path).0, 200, "{path}");
        }
        assert_eq!(watched.get("/").0, 404);
        let mut client = watched.server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        assert!(client.append(batch("s", 0, notes("a", 5))).await.unwrap().deduplicated);
        refused(client.append(batch("s", 9, notes("a", 5))).await, Code::Aborted, "SEQ_GAP");
        client.read(all_of("s")).await.unwrap();
        refused(client.read(all_of("absent")).await, Code::NotFound, "SESSION_NOT_FOUND");
        let (code, page) = watched.get("/metrics");
        assert_eq!(code, 200);
        let append = |code: &str| {
            format!("quipu_rpc_duration_seconds_count{{method=\"quipu.v1.LogService/Append\",code=\"{code}\"}}")
        };
        assert_eq!((value(&page, &append("OK")), value(&page, &append("ABORTED"))), (2.0, 1.0));
        let read = "quipu_rpc_duration_seconds_count{method=\"quipu.v1.LogService/ReadFrom\",code=\"OK\"}";
        assert_eq!(value(&page, read), 1.0);
        for (series, wanted) in [
            ("quipu_rpc_refusals_total{reason=\"SEQ_GAP\"}", 1.0),
            ("quipu_rpc_refusals_total{reason=\"SESSION_NOT_FOUND\"}", 1.0),
            ("quipu_append_events_total", 5.0),
            ("quipu_append_repeated_total", 1.0),
            ("quipu_read_events_total", 5.0),
            ("quipu_sessions_created_total", 1.0),
            ("quipu_commit_changes_sum", 2.0),
            ("quipu_connections", 1.0),
            ("quipu_rpc_running", 0.0),
            ("quipu_ready", 1.0),
            ("quipu_state{state=\"serving\"}", 1.0),
            ("quipu_commit_failures_total", 0.0),
        ] {
            assert_eq!(value(&page, series), wanted, "{series}");
        }
        for series in ["quipu_sync_duration_seconds_count", "quipu_disk_free_bytes", "process_resident_memory_bytes"] {
            assert!(value(&page, series) > 0.0, "{series}");
        }
        for entry in CATALOG {
            assert!(page.contains(&format!("# TYPE {} ", entry.name)), "{} is not on the page", entry.name);
        }
        parse(&page);
        watched.server.end();
    });
}

/// Reads the page with somebody else's parser.
fn parse(page: &str) {
    let Some(python) = python::with_modules("prometheus_client") else { return };
    let script = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as p\n\
                  print(sum(len(f.samples) for f in p(sys.stdin.read())))";
    let output = run_with(std::process::Command::new(python).args(["-c", script]), page.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap() > 100);
}

#[test]
fn a_second_process_waits_for_the_directory_says_who_has_it_and_goes_on_when_it_is_free() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let first = Watched::start(dir.path(), &[]);
        let mut client = first.server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 3))).await.unwrap();
        let mut second = Watched::spawn(dir.path(), &["--lock-wait", "10m"]);
        let holder = format!("process {} on ", first.server.id());
        let line = second.server.wait_for("waiting for another process").unwrap();
        assert!(line.contains(&holder), "{line}");
        let text = second.until("/readyz", 503);
        assert!(text.starts_with("waiting: ") && text.contains(&holder), "{text}");
        assert_eq!((second.get("/livez").0, second.get("/startedz").0), (200, 503));
        assert_eq!(second.value("quipu_state{state=\"waiting\"}"), 1.0);
        // It takes over without being started again.
        first.server.end();
        second.server.serving();
        second.until("/readyz", 200);
        assert_eq!(second.server.client().await.head("s").await.next_seq, 3);
        assert_eq!(second.value("quipu_lock_wait_seconds"), 0.0);
        // One that is told to end while it waits does so in peace.
        let mut third = Watched::spawn(dir.path(), &["--lock-wait", "10m"]);
        third.server.wait_for("waiting for another process").unwrap();
        third.server.end();
        second.server.end();
    });
}

#[test]
fn a_full_volume_is_refused_at_the_mark_and_taken_again_without_a_restart() {
    run(async {
        let Some(volume) = Volume::new(512 << 20) else { return };
        let small = ["--segment-bytes", "32MiB", "--spare-segments", "1", "--reserve-bytes", "1MiB"];
        let marks = ["--disk-free-warn", "200MiB", "--disk-free-min", "100MiB"];
        let mut watched = Watched::start(&volume.dir(), &[&small[..], &marks].concat());
        let mut client = watched.server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 1))).await.unwrap();
        assert_eq!(watched.value("quipu_disk_low"), 0.0);
        let free = watched.value("quipu_disk_free_bytes") as u64;
        let ballast = volume.dir().parent().unwrap().join("ballast");
        let weigh = |bytes: u64| {
            let mut file = std::fs::File::create(&ballast).unwrap();
            std::io::copy(&mut std::io::repeat(1).take(bytes), &mut file).unwrap();
        };
        // Below the first mark: a person should look, all goes on.
        weigh(free - (150 << 20));
        watched.server.wait_for("the room on the volume changed").unwrap();
        assert_eq!(watched.value("quipu_disk_low"), 1.0);
        client.append(batch("s", 1, notes("b", 1))).await.unwrap();
        // Below the second: refused before the disk is full.
        weigh(free - (50 << 20));
        let text = watched.until("/readyz", 503);
        assert!(text.starts_with("full: ") && text.contains("disk_free_min"), "{text}");
        let refusal = client.append(batch("s", 2, notes("c", 1))).await;
        refused(refusal, Code::ResourceExhausted, "STORAGE_READ_ONLY");
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), [0, 1]);
        assert_eq!(grpc_health(&watched.server.address, "quipu.v1.LogService").await, ServingStatus::NotServing);
        assert_eq!(watched.get("/livez").0, 200, "a restart would not help");
        std::fs::remove_file(&ballast).unwrap();
        watched.until("/readyz", 200);
        client.append(batch("s", 2, notes("c", 1))).await.unwrap();
        assert_eq!(grpc_health(&watched.server.address, "").await, ServingStatus::Serving);
        assert_eq!(watched.value("quipu_disk_low"), 0.0);
        watched.server.end();
    });
}

#[test]
fn a_volume_that_dies_shows_in_readiness_and_metrics_while_the_node_stays_live() {
    run(async {
        let Some((volume, mut watched, mut client)) = on_a_volume().await else { return };
        volume.shut_down();
        refused(client.append(batch("s", 1, notes("b", 1))).await, Code::Unavailable, "SYNC_FAILED");
        let text = watched.until("/readyz", 503);
        assert!(text.starts_with("read_only: "), "{text}");
        assert_eq!((watched.get("/livez").0, watched.get("/startedz").0), (200, 200));
        let page = watched.get("/metrics").1;
        assert_eq!(value(&page, "quipu_commit_failures_total"), 1.0);
        assert_eq!(value(&page, "quipu_state{state=\"read_only\"}"), 1.0);
        assert_eq!(value(&page, "quipu_rpc_refusals_total{reason=\"SYNC_FAILED\"}"), 1.0);
        watched.server.wait_for("health changed").unwrap();
        watched.server.kill();
    });
}

#[test]
fn a_draining_node_says_so_until_it_ends() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut watched = Watched::start(dir.path(), &["--drain-timeout", "10m"]);
        let channel = tonic::transport::Endpoint::new(watched.server.address.clone()).unwrap().connect().await.unwrap();
        // A call that stays open keeps the node from ending.
        let request = HealthCheckRequest { service: String::new() };
        let watch = HealthClient::new(channel).watch(request).await.unwrap().into_inner();
        watched.server.signal("TERM");
        watched.server.wait_for("shutting down").unwrap();
        assert!(watched.until("/readyz", 503).starts_with("draining"));
        assert_eq!(watched.get("/livez").0, 200);
        drop(watch);
        assert_eq!(watched.server.wait().code(), Some(0));
    });
}

#[test]
fn a_stalled_disk_is_not_ready_and_recovers() {
    use quipu::ops::health::{State, judge};
    run(async {
        let gate = Arc::new(GateStore::default());
        let node = crate::support::Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        let timeout = Duration::from_millis(200);
        assert_eq!(judge(&node.service, timeout).0, State::Serving);
        gate.shut();
        let mut other = client.clone();
        let waiting = tokio::spawn(async move { other.append(batch("s", 0, notes("a", 1))).await });
        gate.reached().await;
        while judge(&node.service, timeout).0 != State::Stalled {
            tokio::task::yield_now().await;
        }
        node.service.measure();
        assert!(node.service.metrics().commit_age.get() >= 0.1);
        gate.open();
        waiting.await.unwrap().unwrap();
        while judge(&node.service, timeout).0 != State::Serving {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_failed_commit_is_counted_and_makes_the_node_read_only() {
    use quipu::ops::health::{State, judge};
    run(async {
        let store = FaultStore::new(Plan { fail_at: Some(2), ..Plan::default() });
        let node = crate::support::Node::over(Arc::new(store), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        refused(client.append(batch("s", 0, notes("a", 1))).await, Code::Unavailable, "SYNC_FAILED");
        let (state, why) = judge(&node.service, Duration::from_secs(30));
        assert_eq!((state, why.as_str()), (State::ReadOnly, "a planned failure"));
        assert_eq!(node.service.metrics().commit_failures.get(), 1);
    });
}

#[test]
fn breaches_of_nesting_are_counted_by_rule() {
    run(async {
        let node = crate::support::Node::memory().await;
        let mut client = node.client().await;
        let header = pb::Header { id: "s".to_owned(), ..Default::default() };
        client
            .sessions
            .create_session(pb::CreateSessionRequest { header: Some(header), ..Default::default() })
            .await
            .unwrap();
        let event = |kind: &str, data: &str| pb::NewEvent { r#type: kind.to_owned(), ..note(data) };
        let events = vec![
            event("turn/start", r#"{"turn":1}"#),
            event("step/start", r#"{"turn":1,"step":1}"#),
            event("step/end", r#"{"turn":2,"step":1}"#),
        ];
        let reports = client.append(batch("s", 0, events)).await.unwrap().reports;
        let counted: u64 =
            reports.iter().map(|report| node.service.metrics().breaches.with(&[&report.rule]).get()).sum();
        assert!(counted > 0 && counted == reports.len() as u64, "{reports:?}");
    });
}

/// What a collector got.
#[derive(Clone, Default)]
struct Sink {
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        self.spans.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Sink {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.metrics.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

impl Sink {
    async fn start() -> (Self, String) {
        let sink = Self::default();
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("http://{}", incoming.local_addr().unwrap());
        let router = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(sink.clone()))
            .add_service(MetricsServiceServer::new(sink.clone()));
        tokio::spawn(router.serve_with_incoming(incoming));
        (sink, address)
    }

    fn spans(&self, name: &str) -> Vec<Span> {
        self.spans.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn traced(request: pb::AppendRequest, flags: &str) -> Request<pb::AppendRequest> {
    let mut request = Request::new(request);
    request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{CALLER}-{flags}").parse().unwrap());
    request
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_traced_call_and_the_group_that_carried_it_reach_the_collector_and_so_do_metrics() {
    run(async {
        let (sink, address) = Sink::start().await;
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--otlp-endpoint", &address, "--trace-share", "0"]);
        let mut client = server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 1))).await.unwrap();
        client.log.append(traced(batch("s", 1, notes("b", 1)), "01")).await.unwrap();
        client.log.append(traced(batch("s", 2, notes("c", 1)), "00")).await.unwrap();
        client.log.append(traced(batch("s", 9, notes("d", 1)), "01")).await.unwrap_err();
        // What was seen last is sent, too.
        server.end();
        let calls = sink.spans("quipu.v1.LogService/Append");
        assert_eq!(calls.len(), 2, "sampled ones only: {:?}", sink.spans.lock().unwrap());
        for call in &calls {
            assert_eq!((hex(&call.trace_id), hex(&call.parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
        }
        let reason = |span: &Span| span.attributes.iter().any(|pair| pair.key == "quipu.reason");
        assert_eq!(calls.iter().filter(|span| reason(span)).count(), 1);
        let good = calls.iter().find(|span| !reason(span)).unwrap();
        let groups = sink.spans("commit group");
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!(hex(&groups[0].trace_id), TRACE);
        assert_eq!(groups[0].links.len(), 1);
        assert_eq!(groups[0].links[0].span_id, good.span_id);
        let pushed = sink.metrics.lock().unwrap();
        let metrics = &pushed.last().expect("metrics were pushed").resource_metrics[0].scope_metrics[0].metrics;
        let pushed: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        // Families without a series yet are not sent.
        for entry in CATALOG.iter().filter(|entry| entry.labels.is_empty()) {
            assert!(pushed.contains(&entry.name), "{} was not pushed", entry.name);
        }
    });
}

#[test]
fn a_share_of_the_calls_is_traced_and_a_collector_that_is_gone_costs_nothing() {
    run(async {
        let (sink, address) = Sink::start().await;
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--otlp-endpoint", &address, "--trace-share", "0.5"]);
        let mut client = server.client().await;
        client.make("s").await;
        for seq in 0..200 {
            client.append(batch("s", seq, notes("a", 1))).await.unwrap();
        }
        server.end();
        let traced = sink.spans("quipu.v1.LogService/Append").len();
        assert!((50..150).contains(&traced), "{traced} of 200");

        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server =
            Watched::start(dir.path(), &["--otlp-endpoint", &format!("http://{closed}"), "--trace-share", "1"]);
        let mut client = server.server.client().await;
        for seq in 200..300 {
            client.append(batch("s", seq, notes("a", 1))).await.unwrap();
        }
        server.server.end();
    });
}

#[test]
fn a_hostile_name_cannot_forge_a_line_of_the_log() {
    // A defect of an engine is logged with the text that came with it; the line stays one JSON object.
    let dir = tempfile::tempdir().unwrap();
    let hostile = dir.path().join("a\u{1b}[31m\nb");
    let mut server = Process::spawn(&hostile, &[]);
    server.serving();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let log = server.log();
    assert!(!log.contains('\u{1b}') && log.contains("\\n"), "{log}");
    for line in log.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    }
}

/// A host that appends without end and repeats what was not answered; tells the longest time without an answer.
async fn host(address: Arc<Mutex<String>>, end: Arc<std::sync::atomic::AtomicBool>, id: String) -> (u64, Duration) {
    let (mut seq, mut gap, mut since) = (0, Duration::ZERO, Instant::now());
    let mut client = None;
    while !end.load(std::sync::atomic::Ordering::Relaxed) {
        let target = address.lock().unwrap().clone();
        if client.is_none() {
            client = Client::connect(&target).await.ok();
        }
        let Some(connected) = &mut client else {
            // As a client backs off.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        match connected.append(batch(&id, seq, notes(&seq.to_string(), 1))).await {
            Ok(_) => {
                seq += 1;
                gap = gap.max(since.elapsed());
                since = Instant::now();
            }
            Err(status) => {
                let is_retryable = matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Unknown)
                    || std::error::Error::source(&status).is_some_and(|cause| cause.is::<tonic::transport::Error>());
                assert!(is_retryable, "{id} at {seq}: {status:?}");
                client = None;
            }
        }
    }
    (seq, gap)
}

/// cases.md C99: the next process is there before the lock is free, and waits; each update goes through.
#[test]
fn restarts_under_load_lose_nothing_and_hosts_see_only_what_they_can_retry() {
    let rounds = setting("QUIPU_RESTARTS", 20);
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // Small segments: a build without optimisation takes its time to read what is empty.
        let small = ["--event-bytes-max", "64KiB", "--batch-bytes-max", "64KiB", "--segment-bytes", "9MiB"];
        let args = [&small[..], &["--spare-segments", "1", "--lock-wait", "10m"]].concat();
        let mut server = Process::start(dir.path(), &args);
        let mut client = server.client().await;
        for n in 0..4 {
            client.make(&format!("s{n}")).await;
        }
        drop(client);
        let address = Arc::new(Mutex::new(server.address.clone()));
        let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let hosts: Vec<_> = (0..4).map(|n| tokio::spawn(host(address.clone(), end.clone(), format!("s{n}")))).collect();
        for _ in 0..rounds {
            // The next one is there before this one goes, as in an update that went wrong; it waits its turn.
            let mut next = Process::spawn(dir.path(), &args);
            next.wait_for("waiting for another process").unwrap();
            server.signal("TERM");
            let ended =
                tokio::task::spawn_blocking(move || assert_eq!(server.wait().code(), Some(0), "{}", server.log()));
            let next = tokio::task::spawn_blocking(move || {
                next.serving();
                next
            });
            server = next.await.unwrap();
            address.lock().unwrap().clone_from(&server.address);
            ended.await.unwrap();
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for (n, host) in hosts.into_iter().enumerate() {
            let (acknowledged, gap) = host.await.unwrap();
            longest = longest.max(gap);
            let read = server.client().await.read(all_of(&format!("s{n}"))).await.unwrap();
            let found = read.events();
            // One more may be there: stored, but its answer was lost.
            let count = found.len() as u64;
            assert!(count == acknowledged || count == acknowledged + 1, "{acknowledged} of s{n}, {count} found");
            let wanted: Vec<_> = (0..count).flat_map(|seq| stored(seq, &notes(&seq.to_string(), 1))).collect();
            assert_eq!(found, wanted);
        }
        println!("{rounds} restarts, longest time without an answer {longest:?}");
        assert!(longest < Duration::from_secs(10), "{longest:?}");
        server.end();
    });
}

#[test]
fn an_index_that_was_rebuilt_shows_in_log_and_metrics_and_the_node_is_ready() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let watched = Watched::start(dir.path(), &[]);
        let mut client = watched.server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 3))).await.unwrap();
        watched.server.end();
        std::fs::remove_dir_all(dir.path().join("index")).unwrap();
        let mut watched = Watched::spawn(dir.path(), &[]);
        watched.server.wait_for("the index is unusable").unwrap();
        watched.server.serving();
        watched.until("/readyz", 200);
        let page = watched.get("/metrics").1;
        assert_eq!(value(&page, "quipu_index_rebuilds_total"), 1.0);
        assert!(value(&page, "quipu_recovery_replayed_total") >= 2.0);
        assert_eq!(watched.server.client().await.head("s").await.next_seq, 3);
        watched.server.end();
    });
}

#[test]
fn a_damaged_session_shows_in_metrics_and_the_node_serves_the_others() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let watched = Watched::start(dir.path(), &[]);
        let mut client = watched.server.client().await;
        for id in ["s", "t"] {
            client.make(id).await;
        }
        client.append(batch("s", 0, vec![note("\"the place that rots\"")])).await.unwrap();
        client.append(batch("s", 1, notes("a", 1))).await.unwrap();
        client.append(batch("t", 0, notes("a", 1))).await.unwrap();
        watched.server.end();
        let journal = std::fs::read_dir(dir.path().join("journal")).unwrap();
        let mut segments: Vec<_> = journal.map(|entry| entry.unwrap().path()).collect();
        segments.sort();
        let mut bytes = std::fs::read(&segments[0]).unwrap();
        let needle = b"the place that rots";
        let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&segments[0], bytes).unwrap();
        // Without an index the journal is read from its start, which meets the damage.
        std::fs::remove_dir_all(dir.path().join("index")).unwrap();
        let watched = Watched::start(dir.path(), &[]);
        let mut client = watched.server.client().await;
        refused(client.append(batch("s", 2, notes("b", 1))).await, Code::DataLoss, "CORRUPT_RANGE");
        client.append(batch("t", 1, notes("b", 1))).await.unwrap();
        let page = watched.get("/metrics").1;
        assert!(value(&page, "quipu_recovery_damaged_places_total") >= 1.0);
        assert_eq!(value(&page, "quipu_rpc_refusals_total{reason=\"CORRUPT_RANGE\"}"), 1.0);
        assert_eq!(value(&page, "quipu_ready"), 1.0);
        watched.server.end();
    });
}

#[test]
fn a_file_system_that_turns_read_only_is_said_with_its_reason() {
    run(async {
        let Some((volume, mut watched, mut client)) = on_a_volume().await else { return };
        // What the kernel does after an error; files that are open for writing stay so, their writes fail.
        volume.turn_read_only();
        let refusal = client.append(batch("s", 1, notes("b", 1))).await.unwrap_err();
        assert!(matches!(refusal.code(), Code::Unavailable | Code::ResourceExhausted), "{refusal:?}");
        let text = watched.until("/readyz", 503);
        assert!(text.starts_with("read_only: "), "{text}");
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), [0]);
        assert_eq!(watched.get("/livez").0, 200);
        watched.server.wait_for("the store takes no more writes").unwrap();
        watched.server.kill();
    });
}

#[test]
fn status_and_top_show_a_node_and_fail_for_one_that_is_not_ready() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let watched = Watched::start(dir.path(), &[]);
        let mut client = watched.server.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        refused(client.append(batch("s", 9, notes("a", 5))).await, Code::Aborted, "SEQ_GAP");
        let command = |args: &[&str]| {
            run_with(crate::support::process::quipu().args(args).args(["--probes", &watched.probes]), b"")
        };
        let status = command(&["status", "--json"]);
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!((status["state"].as_str(), status["append_events"].as_f64()), (Some("serving"), Some(5.0)));
        assert_eq!(status["refusals"]["SEQ_GAP"], 1.0);
        assert_eq!(status["appends_by_code"]["OK"], 1.0);
        assert!(status["append_p99_seconds"].as_f64().unwrap() > 0.0);
        let text = String::from_utf8(command(&["status"]).stdout).unwrap();
        assert!(text.lines().count() < 24 && text.starts_with("state      serving"), "{text}");
        let top = command(&["top", "--json", "1"]);
        let top: Value = serde_json::from_slice(&top.stdout).unwrap();
        assert_eq!((top["state"].as_str(), top["events_per_second"].as_f64()), (Some("serving"), Some(0.0)));
        let screen = command(&["top"]);
        assert_eq!(screen.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&screen.stderr).contains("terminal"));
        // One that waits.
        let second = Watched::spawn(dir.path(), &["--lock-wait", "10m"]);
        second.until("/readyz", 503);
        let mut command = crate::support::process::quipu();
        let waiting = run_with(command.args(["status", "--json", "--probes", &second.probes]), b"");
        assert_eq!(waiting.status.code(), Some(1));
        let waiting: Value = serde_json::from_slice(&waiting.stdout).unwrap();
        assert!(waiting["state"] == "waiting" || waiting["state"] == "starting", "{waiting}");
        watched.server.end();
    });
}
