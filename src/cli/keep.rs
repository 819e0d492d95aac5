//! Keeping house: looks at the node and its disk now and then, and tells everybody what it sees.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

use super::config::Config;
use crate::ops::disk::{self, Marks, Room};
use crate::ops::{Node, health};
use crate::rpc::server;
use crate::service::Service;

/// How often unused sessions are looked for, and how large the store is.
const SWEEP: Duration = Duration::from_secs(10);
/// How often the health of the node is looked at.
const WATCH: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Keeper {
    node: Arc<Node>,
    service: Service,
    health: HealthReporter,
    commit_timeout: Duration,
    dir: PathBuf,
    marks: Marks,
}

impl Keeper {
    pub(super) fn new(config: &Config, (node, service, health): (Arc<Node>, Service, HealthReporter)) -> Self {
        let marks = Marks { warn_bytes: config.disk_free_warn, min_bytes: config.disk_free_min };
        let (dir, commit_timeout) = (config.data_dir.clone(), config.service.commit_timeout);
        Self { node, service, health, commit_timeout, dir, marks }
    }

    pub(super) async fn keep(self, end: CancellationToken) {
        let (mut sweep, mut watch) = (tokio::time::interval(SWEEP), tokio::time::interval(WATCH));
        let mut room = Room::default();
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                _ = sweep.tick() => {
                    self.service.sweep();
                    self.add_up();
                }
                _ = watch.tick() => {
                    room = self.look_at_the_disk(room).await;
                    self.look_at_the_node().await;
                }
            }
        }
    }

    async fn look_at_the_node(&self) {
        let (state, why) = health::judge(&self.service, self.commit_timeout);
        if self.node.health.set(state, why.clone()) {
            if state.is_ready() {
                tracing::info!(state = state.name(), "health changed");
            } else {
                tracing::warn!(state = state.name(), why, "health changed");
            }
            server::serve_or_not(&self.health, state.is_ready()).await;
        }
    }

    /// Asks for the free space, on another thread: a disk that stalls must not keep this from telling of it.
    async fn look_at_the_disk(&self, was: Room) -> Room {
        let (dir, metrics) = (self.dir.clone(), self.node.metrics.clone());
        let asked = tokio::task::spawn_blocking(move || disk::free(&dir, &metrics));
        let Ok(Ok(Ok(free))) = tokio::time::timeout(WATCH, asked).await else { return was };
        let room = was.after(free, self.marks);
        if room != was {
            let Room { is_low, is_crammed } = room;
            tracing::warn!(free, is_low, is_crammed, "the room on the volume changed");
        }
        self.node.metrics.disk_low.set(f64::from(u8::from(room.is_low)));
        self.service.set_crammed(room.is_crammed);
        room
    }

    fn add_up(&self) {
        let (dir, metrics) = (self.dir.clone(), self.node.metrics.clone());
        // Nobody waits for the figures.
        drop(tokio::task::spawn_blocking(move || disk::add_up(&dir, &metrics)));
    }
}
