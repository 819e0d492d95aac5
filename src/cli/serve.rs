//! `quipu serve`: builds the node from its configuration, runs it, and takes it down in phases.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::config::{self, Config, LogFormat, SETTINGS, Sources};
use super::guard::Guard;
use super::keep::Keeper;
use super::{ServeArgs, USAGE, opening, text};
use crate::ops::health::State;
use crate::ops::otlp::Otlp;
use crate::ops::{Node, probes};
use crate::rpc::loops::{self, Loops};
use crate::rpc::observe::Tracer;
use crate::rpc::server::{self, Wire};
use crate::service::{Error, Retention, Service};
use crate::store::Store as _;
use crate::store::local::{LocalStore, OpenError};

const CANNOT_OPEN: u8 = 3;
const INTERRUPTED: i32 = 130;

/// Adds a flag for each setting.
pub(super) fn with_settings(definition: clap::Command) -> clap::Command {
    let defaults = Config::default();
    definition.mut_subcommand("serve", |serve| {
        serve.args(SETTINGS.iter().map(|setting| {
            let help = format!("{} [{}, default {}]", setting.help, setting.variable(), setting.show(&defaults));
            let arg = Arg::new(setting.name).long(setting.flag()).value_name(setting.value).help(help);
            if setting.is_switch() { arg.num_args(0..=1).default_missing_value("true") } else { arg }
        }))
    })
}

pub(super) fn serve(args: &ServeArgs, flags: &ArgMatches) -> ExitCode {
    let config = match configuration(args, flags) {
        Ok(config) => config,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("quipu: {}", text::shown(problem)));
            return ExitCode::from(USAGE);
        }
    };
    if args.print_config {
        drop(say!("{}", config::print(&config).trim_end()));
        return ExitCode::SUCCESS;
    }
    if args.check_config {
        drop(say!("the configuration is good"));
        return ExitCode::SUCCESS;
    }
    if let Err(problem) = start_logging(&config) {
        eprintln!("quipu: log = {:?}: {problem}", config.log);
        return ExitCode::from(USAGE);
    }
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<OpenError>() => {
            tracing::error!(error = format!("{error:#}"), dir = %config.data_dir.display(), "the store cannot be opened");
            ExitCode::from(CANNOT_OPEN)
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the server failed");
            ExitCode::from(super::REFUSED)
        }
    }
}

fn configuration(args: &ServeArgs, flags: &ArgMatches) -> Result<Config, Vec<String>> {
    let text =
        |path: &std::path::PathBuf| std::fs::read_to_string(path).map_err(|e| vec![format!("{}: {e}", path.display())]);
    let file = args.config.as_ref().map(|path| text(path).map(|text| (path.as_path(), text))).transpose()?;
    let given = SETTINGS.iter().filter_map(|setting| {
        let value = flags.get_one::<String>(setting.name)?;
        Some((setting.name, value.clone()))
    });
    let flags: BTreeMap<_, _> = given.collect();
    config::load(&Sources { flags, environment: std::env::vars().collect(), file })
}

fn start_logging(config: &Config) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = EnvFilter::builder().parse(&config.log)?;
    let is_text = match config.log_format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if is_text {
        logs.init();
    } else {
        logs.json().flatten_event(true).init();
    }
    Ok(())
}

fn run(config: &Config) -> anyhow::Result<()> {
    let node = Arc::new(Node::default());
    if let Some(listen) = config.metrics_listen {
        let address = probes::start(listen, node.clone()).with_context(|| format!("metrics_listen = {listen}"))?;
        tracing::info!(%address, "probes and metrics");
    }
    // The control runtime: accepts, keeps house, listens to signals. Calls are served by the loops.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(watched(config, &node));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Runs a node, traced if that is asked for. What it did last is sent, too.
async fn watched(config: &Config, node: &Arc<Node>) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let Some(store) = opening::open(config, node, &mut signals).await? else { return Ok(()) };
    let otlp = (!config.otlp_endpoint.is_empty()).then(|| Otlp::start(config.otlp(), node)).transpose();
    let otlp = otlp.map_err(|error| anyhow::anyhow!("otlp_endpoint = {}: {error}", config.otlp_endpoint))?;
    let served = serve_until_told((config, node), store, otlp.as_ref().map(Otlp::tracer), &mut signals).await;
    if let Some(otlp) = otlp {
        otlp.finish();
    }
    served
}

async fn serve_until_told(
    (config, node): (&Config, &Arc<Node>),
    store: Arc<LocalStore>,
    tracer: Option<Arc<dyn Tracer>>,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    announce(config, &store);
    let service = Service::metered(store.clone(), config.service.clone(), node.metrics.clone());
    // Set once, here.
    drop(node.service.set(service.clone()));
    let mut wire = Wire::new(config.wire()).await;
    wire.tracer = tracer;
    let guard = Guard::open(config, &node.metrics)?;
    wire.tls = guard.tls();
    let wire = Arc::new(wire);
    let listener = loops::bind(config.listen).await.with_context(|| format!("listen = {}", config.listen))?;
    let address = listener.local_addr()?;
    // Half of the cores: a loop that leads a commit is often in the disk, and readers of the store need some.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = if config.serving_loops == 0 { cores / 2 } else { config.serving_loops };
    let mut loops = Loops::start(count, &wire, &service)?;
    let end = CancellationToken::new();
    let keeper = Keeper::new(config, (node.clone(), service.clone(), wire.health.clone()));
    let keeper = tokio::spawn(keeper.keep(end.clone()));
    let retention = tokio::spawn(retain(service.clone(), config.retention_interval, end.clone()));
    let guard = tokio::spawn(guard.keep(end.clone()));
    tracing::info!(%address, "serving");
    tokio::select! {
        () = signals.next() => {}
        () = loops.accept(listener, config.connections_max, &service) => anyhow::bail!("nothing is accepted any more"),
    }
    tracing::info!("shutting down; a second signal ends at once");
    let durable = store.position();
    node.health.set(State::Draining, "it is being shut down".to_owned());
    let down = async {
        // 1: say so, and refuse what would write. 2: end streams and wait for calls. 3: commit and close.
        server::serve_or_not(&wire.health, false).await;
        service.refuse_writes();
        wire.stop.cancel();
        wire.tasks.close();
        wire.tasks.wait().await;
        loops.drain().await;
    };
    tokio::select! {
        done = tokio::time::timeout(config.drain_timeout, down) => {
            if done.is_err() {
                tracing::warn!("open calls did not end in time");
            }
        }
        () = signals.next() => std::process::exit(INTERRUPTED),
    }
    end.cancel();
    tokio::select! {
        closed = tokio::time::timeout(config.drain_timeout, service.close()) => {
            // A disk that does not answer keeps its threads; what it was asked to store has an unknown outcome.
            if closed.is_err() {
                tracing::error!("the store did not close in time");
                std::process::exit(i32::from(super::REFUSED));
            }
        }
        () = signals.next() => std::process::exit(INTERRUPTED),
    }
    // It was asked to end; how it did changes nothing any more.
    drop((keeper.await, retention.await, guard.await));
    loops.finish();
    let position = store.position().0;
    tracing::info!(position, flushed = position - durable.0, "closed");
    Ok(())
}

fn announce(config: &Config, store: &LocalStore) {
    let recovery = store.recovery();
    tracing::info!(
        replayed = recovery.replayed,
        torn_bytes = recovery.torn_bytes,
        damaged_places = recovery.damaged_places,
        rebuilt = recovery.rebuilt.as_deref().unwrap_or("no"),
        dir = %config.data_dir.display(),
        "the store is open"
    );
}

/// Applies the rules of retention now and then.
async fn retain(service: Service, every: Option<Duration>, end: CancellationToken) {
    let Some(every) = every else { return };
    let mut turn = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            _ = turn.tick() => {}
        }
        for rule in service.retention().to_vec() {
            let namespace = rule.namespace.clone();
            match tokio::select! { () = end.cancelled() => return, deleted = retain_once(&service, rule) => deleted } {
                Ok(deleted) => tracing::info!(%namespace, deleted, "retention"),
                Err(error) => tracing::warn!(%namespace, %error, "retention stopped early"),
            }
        }
    }
}

async fn retain_once(service: &Service, rule: Retention) -> Result<usize, Error> {
    let (mut retaining, mut deleted) = (service.retain(rule.namespace, Some(rule.keep), false)?, 0);
    while let Some(aged) = retaining.step().await? {
        deleted += aged.iter().filter(|aged| aged.kept.is_none()).count();
    }
    Ok(deleted)
}

pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
