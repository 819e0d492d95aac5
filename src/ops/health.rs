//! What a node is doing, in one word: the same for probes, gRPC health, metrics and logs.
//!
//! **Live** is a process that answers; a stalled disk, a full one and a failed sync are no reason to restart it, since
//! a restart would not help and reads go on. **Started** is a node that has opened its store once. **Ready** is one
//! that takes appends and reads now.

use std::time::Duration;

use parking_lot::RwLock;

use crate::metrics::Metrics;
use crate::service::Service;
use crate::store;

/// What a node is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It reads its configuration, or opens its store.
    #[default]
    Starting,
    /// Another process has the data directory.
    Waiting,
    /// All is well.
    Serving,
    /// There is no room; it takes appends again when there is.
    Full,
    /// A write or sync failed; it takes no appends until it is started again.
    ReadOnly,
    /// The disk has not answered for long.
    Stalled,
    /// It is being shut down.
    Draining,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Waiting, Self::Starting, Self::Serving, Self::Full, Self::ReadOnly, Self::Stalled, Self::Draining];

    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Serving => "serving",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Stalled => "stalled",
            Self::Draining => "draining",
        }
    }

    /// Whether it takes appends and reads.
    pub fn is_ready(self) -> bool {
        self == Self::Serving
    }

    /// Whether its store was opened.
    pub fn is_started(self) -> bool {
        !matches!(self, Self::Starting | Self::Waiting)
    }
}

/// A disk that takes longer for one commit is stalled.
const STALL: Duration = Duration::from_secs(5);

/// What a service is doing, and why.
pub fn judge(service: &Service, commit_timeout: Duration) -> (State, String) {
    let stall = STALL.min(commit_timeout / 2);
    match service.health() {
        _ if service.is_draining() => (State::Draining, "it is being shut down".to_owned()),
        store::Health::Poisoned(why) => (State::ReadOnly, why.to_string()),
        store::Health::Full(why) => (State::Full, why.to_string()),
        store::Health::Writable => match service.commit_age().filter(|age| *age > stall) {
            Some(age) => (State::Stalled, format!("the disk has not answered for {} s", age.as_secs_f32())),
            None => (State::Serving, String::new()),
        },
    }
}

/// The state of a node; shared by all who show it.
#[derive(Debug, Default)]
pub struct Health {
    now: RwLock<(State, String)>,
}

impl Health {
    /// What the node is doing, and why.
    pub fn now(&self) -> (State, String) {
        self.now.read().clone()
    }

    /// It does this from now on; `true` when that is news. Who drains never does anything else.
    pub fn set(&self, state: State, why: String) -> bool {
        let mut now = self.now.write();
        if now.0 == State::Draining {
            return false;
        }
        let is_news = now.0 != state;
        *now = (state, why);
        is_news
    }

    /// Shows the state as metrics.
    pub fn show(&self, metrics: &Metrics) {
        let (now, _) = self.now();
        for state in State::ALL {
            metrics.state.with(&[state.name()]).set(f64::from(u8::from(state == now)));
        }
        metrics.ready.set(f64::from(u8::from(now.is_ready())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_drains_is_never_ready_again_and_only_serving_is_ready() {
        let health = Health::default();
        assert!(!health.now().0.is_ready() && !health.now().0.is_started());
        assert!(health.set(State::Serving, String::new()) && !health.set(State::Serving, String::new()));
        assert!(health.set(State::Draining, String::new()));
        assert!(!health.set(State::Serving, String::new()));
        assert_eq!(health.now().0, State::Draining);
        let ready: Vec<_> = State::ALL.into_iter().filter(|state| state.is_ready()).collect();
        assert_eq!(ready, [State::Serving]);
    }
}
