//! The configuration of `quipu serve`: one table of settings, four layers, all problems at once.
//!
//! A setting is a row: its name gives the flag (`--data-dir`), the variable (`QUIPU_DATA_DIR`) and the key in the TOML
//! file (`data_dir`). Flags win over the environment, that over the file, that over the defaults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kinds::{Bytes, address, file, format, list, path, plain, size, span, time, wide};
use super::rules::{self, repeat};
use super::security::Security;
use crate::model::Limits;
use crate::{ops, rpc, service, store};

/// Everything that `quipu serve` can be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where the store lives.
    pub data_dir: PathBuf,
    /// What is logged, as tracing's filter.
    pub log: String,
    /// How it is logged.
    pub log_format: LogFormat,
    /// Loops that serve; 0 for half as many as there are cores.
    pub serving_loops: usize,
    /// Time that a shutdown may take.
    pub drain_timeout: Duration,
    /// How long to wait for another process to let go of the data directory.
    pub lock_wait: Duration,
    /// Where probes and metrics are served, if anywhere.
    pub metrics_listen: Option<SocketAddr>,
    /// Where metrics and traces are sent; empty for nowhere.
    pub otlp_endpoint: String,
    /// Time between two pushes of metrics.
    pub otlp_interval: Duration,
    /// Share of the calls that are traced.
    pub trace_share: f64,
    /// Free space below which a person should look.
    pub disk_free_warn: u64,
    /// Free space below which nothing more is taken.
    pub disk_free_min: u64,
    /// The service.
    pub service: service::Options,
    /// The engine.
    pub store: store::local::Options,
    /// Who may come in.
    pub security: Security,
    /// Limits of a connection.
    pub streams_max: u32,
    /// Idle time after which a connection is probed.
    pub keepalive: Duration,
    /// Connections at once.
    pub connections_max: usize,
    /// Whether clients may ask what services there are.
    pub reflection: bool,
    /// How often the rules of retention are applied.
    pub retention_interval: Option<Duration>,
    /// Pages that may call over gRPC-web.
    pub web_origins: Vec<String>,
}

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7777)),
            data_dir: PathBuf::from("quipu-data"),
            log: "info".to_owned(),
            log_format: LogFormat::Auto,
            serving_loops: 0,
            drain_timeout: Duration::from_secs(20),
            lock_wait: Duration::from_secs(30),
            metrics_listen: None,
            otlp_endpoint: String::new(),
            otlp_interval: Duration::from_secs(15),
            trace_share: 0.01,
            disk_free_warn: 1 << 30,
            disk_free_min: 64 << 20,
            service: service::Options::default(),
            store: store::local::Options::default(),
            security: Security::default(),
            streams_max: 1024,
            keepalive: Duration::from_secs(30),
            connections_max: 10_000,
            reflection: true,
            retention_interval: None,
            web_origins: Vec::new(),
        }
    }
}

impl Config {
    /// Limits of the wire that follow from those of the service: a batch with room for its envelope, so that one that
    /// is too large gets its typed refusal, and the largest event.
    pub fn wire(&self) -> rpc::server::Options {
        rpc::server::Options {
            request_bytes_max: self.service.limits.batch_bytes_max.saturating_mul(2).max(1 << 20),
            response_bytes_max: self.service.limits.event_bytes_max.saturating_add(2 << 20),
            streams_max: self.streams_max,
            keepalive: self.keepalive,
            reflection: self.reflection,
            preface_timeout: self.security.handshake_timeout,
            connections_per_address: self.security.connections_per_address,
            age_max: self.security.connection_age_max,
            age_grace: self.security.connection_age_grace,
            web_origins: self.web_origins.clone(),
        }
    }

    /// What goes to the collector.
    pub fn otlp(&self) -> ops::otlp::Options {
        let (endpoint, interval) = (self.otlp_endpoint.clone(), self.otlp_interval);
        ops::otlp::Options { endpoint, interval, share: self.trace_share }
    }

    /// What does not go together.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Limits { event_bytes_max, batch_bytes_max, .. } = self.service.limits;
        let lacks = self.security.lacks();
        if !self.listen.ip().is_loopback() && !self.security.insecure && !lacks.is_empty() {
            problems.push(format!(
                "listen = {}: only loopback addresses are open without {}; \
                 set insecure = true if a network of your own protects this one",
                self.listen,
                lacks.join(" and ")
            ));
        }
        problems.extend(self.security.problems());
        if !(0.0..=1.0).contains(&self.trace_share) {
            problems.push("trace_share must be between 0 and 1".to_owned());
        }
        if !self.otlp_endpoint.is_empty() && !self.otlp_endpoint.starts_with("http://") {
            problems.push(format!("otlp_endpoint = {:?} is not like http://collector:4317", self.otlp_endpoint));
        }
        if self.disk_free_min > self.disk_free_warn {
            problems.push("disk_free_min must not be larger than disk_free_warn".to_owned());
        }
        if let Err(problem) = tracing_subscriber::EnvFilter::builder().parse(&self.log) {
            problems.push(format!("log = {:?}: {problem}", self.log));
        }
        let counts = [
            ("serving_loops", self.serving_loops, 0..=1024),
            ("stream_credit_bytes", self.service.stream_credit_bytes, 1..=1 << 30),
            ("followers_max", self.service.followers_max, 0..=10_000_000),
            ("reads_max", self.service.reads_max, 1..=1_000_000),
            ("batch_events_max", self.service.limits.batch_events_max, 1..=rpc::BATCH_EVENTS_MAX),
            ("event_bytes_max", event_bytes_max, 1..=64 << 20),
            ("connections_max", self.connections_max, 1..=1_000_000),
            ("streams_max", self.streams_max as usize, 1..=1_000_000),
            // Without one there is nothing to go on with when a segment is full.
            ("spare_segments", self.store.spare_segments, 1..=64),
        ];
        for (name, count, allowed) in counts {
            if !allowed.contains(&count) {
                problems.push(format!("{name} must be between {} and {}", allowed.start(), allowed.end()));
            }
        }
        if event_bytes_max > batch_bytes_max {
            problems.push("event_bytes_max must not be larger than batch_bytes_max".to_owned());
        }
        // A group is at most what was gathered plus one batch; a record repeats its envelope in a header.
        let group = (batch_bytes_max as u64).saturating_mul(2).saturating_add(8 << 20);
        if self.store.segment_bytes < group {
            problems.push(format!("segment_bytes must be at least {}, for batch_bytes_max", Bytes(group)));
        }
        if self.service.append_budget_bytes < batch_bytes_max {
            problems.push("append_budget_bytes must hold one batch (batch_bytes_max)".to_owned());
        }
        problems
    }
}

/// One row of the table.
pub struct Setting {
    /// Name in the file; flag and variable follow from it.
    pub name: &'static str,
    /// What the value looks like.
    pub value: &'static str,
    /// What it does.
    pub help: &'static str,
    get: fn(&Config) -> String,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

impl Setting {
    /// The flag without dashes.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("QUIPU_{}", self.name.to_uppercase())
    }

    /// The value in a configuration, as text.
    pub fn show(&self, config: &Config) -> String {
        (self.get)(config)
    }

    /// Whether the flag may stand without a value.
    pub fn is_switch(&self) -> bool {
        self.value == "true|false"
    }
}

macro_rules! setting {
    ($name:ident, $value:literal, $kind:ident, $($field:ident).+, $help:literal) => {
        Setting {
            name: stringify!($name),
            value: $value,
            help: $help,
            get: |config| $kind::show(&config.$($field).+),
            set: |config, text| $kind::parse(text).map(|value| config.$($field).+ = value),
        }
    };
}

/// All settings.
pub const SETTINGS: [Setting; 48] = [
    setting!(listen, "ADDRESS:PORT", plain, listen, "where clients connect; port 0 picks a free one"),
    setting!(data_dir, "DIR", path, data_dir, "where the store lives; made if missing"),
    setting!(insecure, "true|false", plain, security.insecure, "allow an open listen address that is not loopback"),
    setting!(
        tls_cert,
        "FILE",
        file,
        security.tls_cert,
        "PEM of the listener's certificate and its chain; empty for no TLS"
    ),
    setting!(tls_key, "FILE", file, security.tls_key, "PEM of its key"),
    setting!(tls_client_ca, "FILE", file, security.tls_client_ca, "PEM of the authorities of client certificates"),
    setting!(tls_client_auth, "optional|required", plain, security.tls_client_auth, "whether clients must have one"),
    setting!(
        reload_interval,
        "TIME",
        time,
        security.reload_interval,
        "how often certificates are looked at for changes"
    ),
    setting!(handshake_timeout, "TIME", time, security.handshake_timeout, "time that opening a connection may take"),
    setting!(handshakes_max, "COUNT", plain, security.handshakes_max, "TLS handshakes at once"),
    setting!(
        connections_per_address,
        "COUNT",
        plain,
        security.connections_per_address,
        "connections of one address at once; 0 for no limit"
    ),
    setting!(
        connection_age_max,
        "TIME|never",
        repeat,
        security.connection_age_max,
        "age at which a connection takes no more calls"
    ),
    setting!(
        connection_age_grace,
        "TIME",
        time,
        security.connection_age_grace,
        "time that the open calls of such a connection have"
    ),
    setting!(log, "FILTER", plain, log, "what is logged, e.g. info or quipu=debug"),
    setting!(log_format, "auto|text|json", format, log_format, "how; auto is text on a terminal, JSON elsewhere"),
    setting!(serving_loops, "COUNT", plain, serving_loops, "single-threaded loops that serve; 0 is half the cores"),
    setting!(drain_timeout, "TIME", time, drain_timeout, "time that a shutdown may take"),
    setting!(lock_wait, "TIME", span, lock_wait, "wait for another process to let go of data_dir; 0s refuses at once"),
    setting!(
        metrics_listen,
        "ADDRESS:PORT",
        address,
        metrics_listen,
        "where probes and metrics are served; empty for not"
    ),
    setting!(otlp_endpoint, "URL", plain, otlp_endpoint, "where metrics and traces are sent; empty for nowhere"),
    setting!(otlp_interval, "TIME", time, otlp_interval, "time between two pushes of metrics"),
    setting!(trace_share, "SHARE", plain, trace_share, "share of calls to trace, of those whose caller does not say"),
    setting!(disk_free_warn, "SIZE", wide, disk_free_warn, "free space below which quipu_disk_low is 1; 0 for never"),
    setting!(disk_free_min, "SIZE", wide, disk_free_min, "free space below which appends are refused; 0 for never"),
    setting!(event_bytes_max, "SIZE", size, service.limits.event_bytes_max, "largest data of one event, at most 64MiB"),
    setting!(batch_events_max, "COUNT", plain, service.limits.batch_events_max, "most events of one append"),
    setting!(batch_bytes_max, "SIZE", size, service.limits.batch_bytes_max, "most bytes of one append"),
    setting!(append_budget_bytes, "SIZE", size, service.append_budget_bytes, "bytes of appends that may wait at once"),
    setting!(stream_credit_bytes, "SIZE", size, service.stream_credit_bytes, "unanswered bytes of one AppendStream"),
    setting!(
        followers_max,
        "COUNT",
        plain,
        service.followers_max,
        "sessions followed at once, by all streams together"
    ),
    setting!(follow_budget_bytes, "SIZE", size, service.follow_budget_bytes, "memory for recent events of followers"),
    setting!(reads_max, "COUNT", plain, service.reads_max, "reads at once"),
    setting!(accept_window, "TIME", time, service.accept_window, "longest wait of an ACCEPTED append for its write"),
    setting!(commit_timeout, "TIME", time, service.commit_timeout, "wait for the disk before an outcome is unknown"),
    setting!(idle_sessions_max, "COUNT", plain, service.idle_sessions_max, "unused sessions kept in memory"),
    setting!(
        log_only_types,
        "TYPE,...",
        list,
        service.log_only_types,
        "unknown event types that mean nothing to any view"
    ),
    setting!(connections_max, "COUNT", plain, connections_max, "connections at once"),
    setting!(streams_max, "COUNT", plain, streams_max, "calls at once on one connection"),
    setting!(keepalive, "TIME", time, keepalive, "idle time after which a connection is probed"),
    setting!(reflection, "true|false", plain, reflection, "let clients ask what services there are"),
    setting!(web_origins, "ORIGIN,...", list, web_origins, "pages that may call over gRPC-web; * for any"),
    setting!(segment_bytes, "SIZE", wide, store.segment_bytes, "size of a journal segment"),
    setting!(spare_segments, "COUNT", plain, store.spare_segments, "empty journal segments kept ready"),
    setting!(index_cache_bytes, "SIZE", wide, store.index_cache_bytes, "memory for pages of the index"),
    setting!(checkpoint_interval, "TIME", time, store.checkpoint_interval, "time between checkpoints of the index"),
    setting!(
        retention,
        "NAMESPACE=TIME,...",
        rules,
        service.retention,
        "how long unchanged sessions are kept; without a rule for ever"
    ),
    setting!(retention_interval, "TIME|never", repeat, retention_interval, "how often the rules are applied by itself"),
    setting!(reserve_bytes, "SIZE", wide, store.reserve_bytes, "space kept back so that a full disk can be opened"),
];

/// Where values come from besides the defaults; tests pass their own.
#[derive(Debug, Default)]
pub struct Sources<'a> {
    /// Flags that were given, by setting name.
    pub flags: BTreeMap<&'static str, String>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// The TOML file: its path and content.
    pub file: Option<(&'a Path, String)>,
}

/// The configuration, or everything that is wrong with it.
pub fn load(sources: &Sources<'_>) -> Result<Config, Vec<String>> {
    let (mut config, mut problems) = (Config::default(), Vec::new());
    if let Some((path, text)) = &sources.file {
        apply_file(&mut config, path, text, &mut problems);
    }
    for setting in &SETTINGS {
        let variable = setting.variable();
        let flag = format!("--{}", setting.flag());
        let layers = [(&variable, sources.environment.get(&variable)), (&flag, sources.flags.get(setting.name))];
        for (origin, text) in layers {
            if let Some(text) = text
                && let Err(problem) = (setting.set)(&mut config, text)
            {
                problems.push(format!("{origin} = {text:?} {problem}"));
            }
        }
    }
    problems.extend(config.problems());
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn apply_file(config: &mut Config, path: &Path, text: &str, problems: &mut Vec<String>) {
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return problems.push(format!("{}: {error}", path.display())),
    };
    for (key, value) in table {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == key) else {
            problems.push(format!("{}: {key} is not a setting; see --print-config for all", path.display()));
            continue;
        };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if let Err(problem) = (setting.set)(config, &text) {
            problems.push(format!("{}: {key} = {value} {problem}", path.display()));
        }
    }
}

/// The configuration as a TOML file with comments.
pub fn print(config: &Config) -> String {
    let lines = SETTINGS.iter().map(|setting| {
        let text = setting.show(config);
        let is_bare = text.parse::<u64>().is_ok() || text.parse::<bool>().is_ok();
        let value = if is_bare { text } else { toml::Value::String(text).to_string() };
        format!("# {}: {}\n{} = {value}\n", setting.value, setting.help, setting.name)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(flags: &[(&'static str, &str)], environment: &[(&str, &str)], file: &'static str) -> Sources<'static> {
        Sources {
            flags: flags.iter().map(|(name, text)| (*name, (*text).to_owned())).collect(),
            environment: environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
            file: Some((Path::new("q.toml"), file.to_owned())),
        }
    }

    #[test]
    fn flags_win_over_the_environment_over_the_file_over_the_defaults() {
        let file = "reads_max = 1\nstreams_max = 1\nconnections_max = 1\n";
        let environment = [("QUIPU_READS_MAX", "2"), ("QUIPU_STREAMS_MAX", "2")];
        let config = load(&sources(&[("reads_max", "3")], &environment, file)).unwrap();
        assert_eq!((config.service.reads_max, config.streams_max, config.connections_max), (3, 2, 1));
        assert_eq!(config.service.limits.batch_events_max, 1000);
    }

    #[test]
    fn all_problems_are_reported_at_once_with_their_origin() {
        let environment = [("QUIPU_ACCEPT_WINDOW", "soon"), ("QUIPU_LISTEN", "0.0.0.0:1")];
        let problems = load(&sources(&[("event_bytes_max", "lots")], &environment, "colour = 1\n")).unwrap_err();
        let text = problems.join("\n");
        for part in ["q.toml: colour", "QUIPU_ACCEPT_WINDOW", "--event-bytes-max", "insecure = true"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(problems.len(), 4, "{text}");
    }

    #[test]
    fn a_printed_configuration_reads_back_the_same() {
        let printed = print(&Config::default());
        let again =
            load(&Sources { file: Some((Path::new("q.toml"), printed.clone())), ..Sources::default() }).unwrap();
        assert_eq!(print(&again), printed);
    }
}
