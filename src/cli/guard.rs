//! Watches the files that say who may come in: certificates, authorities, tokens.
//!
//! They are looked at every `reload_interval` and on SIGHUP. What cannot be used leaves the old in force and is told:
//! once in the log, and in `quipu_reload_failing` for as long as it lasts. Open streams notice nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::config::Config;
use crate::metrics::Metrics;
use crate::rpc::tls::Tls;

/// A certificate that ends sooner is told of, every day.
const EXPIRY_NEAR: Duration = Duration::from_secs(14 * 86_400);
const DAY: Duration = Duration::from_secs(86_400);

/// See the module.
pub(super) struct Guard {
    tls: Option<Arc<Tls>>,
    metrics: Arc<Metrics>,
    interval: Duration,
    hangup: Signal,
    /// What was last said about each kind of file.
    said: [String; 2],
}

impl Guard {
    /// Reads the files; at the start none may be wrong.
    pub(super) fn open(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let security = &config.security;
        let tls = security.tls().map(Tls::open).transpose().context("tls")?.map(Arc::new);
        let lacks = security.lacks();
        let is_insecure = !config.listen.ip().is_loopback() && !lacks.is_empty();
        metrics.is_insecure.set(f64::from(u8::from(is_insecure)));
        if is_insecure {
            let lacks = lacks.join(" and ");
            tracing::warn!(listen = %config.listen, lacks, "insecure: whoever reaches this address gets in");
        }
        let (interval, hangup) = (security.reload_interval, signal(SignalKind::hangup())?);
        let guard = Self { tls, metrics: metrics.clone(), interval, hangup, said: Default::default() };
        guard.measure();
        Ok(guard)
    }

    /// The TLS of the listener.
    pub(super) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.clone()
    }

    pub(super) async fn keep(mut self, end: CancellationToken) {
        let (mut look, mut remind) = (tokio::time::interval(self.interval), tokio::time::interval(DAY));
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                _ = look.tick() => self.reload(),
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: files are read again");
                    self.reload();
                }
                _ = remind.tick() => self.remind(),
            }
        }
    }

    fn reload(&mut self) {
        if let Some(tls) = self.tls.clone() {
            self.note(("tls", 0), tls.reload().map_err(|problem| problem.to_string()));
        }
        self.measure();
    }

    /// Tells what came of a look at files.
    fn note(&mut self, (what, at): (&str, usize), outcome: Result<bool, String>) {
        let failing = self.metrics.reload_failing.with(&[what]);
        let said = self.said.get_mut(at);
        match outcome {
            // As it was, good or bad.
            Ok(false) => {}
            Ok(true) => {
                failing.set(0.0);
                self.metrics.reloads.with(&[what]).inc();
                if let Some(said) = said {
                    said.clear();
                }
                tracing::info!(what, "changed files are in force");
            }
            Err(problem) => {
                failing.set(1.0);
                if let Some(said) = said.filter(|said| **said != problem) {
                    tracing::error!(what, problem, "changed files cannot be used; the old ones stay in force");
                    *said = problem;
                }
            }
        }
    }

    fn measure(&self) {
        let expires_at = self.tls.as_ref().map_or(0, |tls| tls.expires_at());
        self.metrics.certificate_expiry.set(expires_at as f64);
    }

    fn remind(&self) {
        let Some(tls) = &self.tls else { return };
        let left = tls.expires_at() - jiff::Timestamp::now().as_second();
        if left < EXPIRY_NEAR.as_secs() as i64 {
            tracing::error!(days_left = left / 86_400, "the certificate of the listener ends soon");
        }
    }
}
