//! What an operator sees of a node: its state, probes, the metrics page, OTLP.
//!
//! Floor 4. It looks at the node from outside, on threads of its own, so that it answers while the disk stalls and while
//! the store is being opened. What is absent: no call of a client passes here, and nothing here decides what the node
//! does; [`health`] only says it.

pub mod disk;
pub mod health;
pub mod otlp;
pub mod page;
pub mod probes;
pub mod process;
pub mod trace;

use std::sync::{Arc, OnceLock};

use self::health::Health;
use crate::metrics::Metrics;
use crate::service::Service;

/// What is watched of a node, from before its store is open until it is closed.
#[derive(Default)]
pub struct Node {
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What it is doing.
    pub health: Health,
    /// The service, once it is there.
    pub service: OnceLock<Service>,
}

impl Node {
    /// Brings the gauges up to date.
    pub fn measure(&self) {
        if let Some(service) = self.service.get() {
            service.measure();
        }
        self.health.show(&self.metrics);
        process::measure(&self.metrics);
    }
}
