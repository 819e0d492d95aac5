//! Serving loops: single-threaded runtimes, each with connections of its own.
//!
//! A connection lives on one loop, so that a call crosses no thread on its way from the socket to the group commit and
//! back; on two cores that is worth half of the server's time per unary call against a work-stealing runtime
//! (measured; README, "Performance"). The loop that leads a commit also waits for the disk. While such a wait is
//! long, new connections are placed on a standby loop, which never leads one, so that health checks and reads are
//! served by a node whose disk stalls.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::connection::{Addresses, Arrivals, Seat};
use super::server::Wire;
use crate::service::Service;

/// The loops of a node.
pub struct Loops {
    serving: Vec<Loop>,
    standby: Loop,
    addresses: Arc<Addresses>,
    /// Ends the acceptance of calls; open ones go on.
    end: CancellationToken,
    /// Ends the loops themselves, once nothing is left to do on them.
    finish: CancellationToken,
}

struct Loop {
    connections: mpsc::UnboundedSender<(std::net::TcpStream, Seat)>,
    count: Arc<AtomicUsize>,
    handle: Handle,
    thread: JoinHandle<()>,
    served: tokio::sync::oneshot::Receiver<()>,
}

impl Loops {
    /// Starts `count` loops over the service, and the standby.
    pub fn start(count: usize, wire: &Arc<Wire>, service: &Service) -> io::Result<Self> {
        let (end, finish) = (CancellationToken::new(), CancellationToken::new());
        let start = |name: String, leader: Option<&Handle>| {
            Loop::start(name, (wire.clone(), service.clone(), leader.cloned()), (end.clone(), finish.clone()))
        };
        let serving = (0..count.max(1)).map(|n| start(format!("quipu-loop-{n}"), None));
        let serving = serving.collect::<io::Result<Vec<_>>>()?;
        let standby = start("quipu-standby".to_owned(), serving.first().map(|first| &first.handle))?;
        let addresses = Addresses::new(wire.options.connections_per_address);
        Ok(Self { serving, standby, addresses, end, finish })
    }

    /// Accepts connections until the acceptance of calls ends; at most `connections_max` at once.
    pub async fn accept(&self, listener: TcpListener, connections_max: usize, service: &Service) {
        let seats = Arc::new(Semaphore::new(connections_max));
        loop {
            let accepted = tokio::select! {
                () = self.end.cancelled() => return,
                accepted = async {
                    // Waits for a seat first: what cannot be served waits in the kernel's queue.
                    let permit = seats.clone().acquire_owned().await;
                    (permit, listener.accept().await)
                } => accepted,
            };
            match accepted {
                (Ok(permit), Ok((stream, from))) => self.place((stream, from.ip()), permit, service),
                (_, Err(error)) => {
                    // Out of descriptors, or the peer was gone already. Neither ends the server.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                (Err(_), _) => return,
            }
        }
    }

    fn place(&self, (stream, from): (TcpStream, IpAddr), permit: OwnedSemaphorePermit, service: &Service) {
        let metrics = service.metrics().clone();
        let Some(address) = self.addresses.take(from) else {
            return metrics.connections_refused.with(&["address"]).inc();
        };
        let least = self.serving.iter().min_by_key(|serving| serving.count.load(Ordering::Relaxed));
        let target = least.filter(|_| !service.is_stalled()).unwrap_or(&self.standby);
        let seat = Seat::take(target.count.clone(), metrics, (address, permit));
        // Answers must not wait for more of them. A socket that refuses is on its way out anyway.
        let stream = stream.set_nodelay(true).and_then(|()| stream.into_std());
        let placed = stream.map(|stream| target.connections.send((stream, seat)));
        if let Err(error) = placed {
            tracing::debug!(%error, "a connection was gone before it was served");
        }
    }

    /// Lets open calls end and takes no new ones; returns when the last has ended.
    pub async fn drain(&mut self) {
        self.end.cancel();
        for serving in self.serving.iter_mut().chain([&mut self.standby]) {
            // A loop that is gone has nothing left to serve.
            let _ = (&mut serving.served).await;
        }
    }

    /// Ends the threads.
    pub fn finish(self) {
        self.finish.cancel();
        for ended in self.serving.into_iter().chain([self.standby]) {
            if ended.thread.join().is_err() {
                tracing::error!("a serving loop panicked");
            }
        }
    }
}

impl Loop {
    fn start(
        name: String,
        (wire, service, leader): (Arc<Wire>, Service, Option<Handle>),
        (end, finish): (CancellationToken, CancellationToken),
    ) -> io::Result<Self> {
        let (connections, incoming) = mpsc::unbounded_channel();
        let (done, served) = tokio::sync::oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
        let handle = runtime.handle().clone();
        let service = service.led_by(leader.unwrap_or_else(|| handle.clone()));
        let serve = async move {
            let incoming = Arrivals::new(incoming, wire.tls.clone(), (wire.options.ages(), end.clone()));
            let router = match wire.router(service) {
                Ok(router) => router,
                Err(error) => return tracing::error!(%error, "the services cannot be described"),
            };
            tokio::select! {
                served = router.serve_with_incoming_shutdown(incoming, end.cancelled_owned()) => {
                    if let Err(error) = served {
                        tracing::error!(%error, "a serving loop failed");
                    }
                    let _ = done.send(());
                    finish.cancelled().await;
                }
                // Calls that did not end in time end with their loop.
                () = finish.cancelled() => {}
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            runtime.block_on(serve);
            runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        })?;
        Ok(Self { connections, count: Arc::default(), handle, thread, served })
    }
}

/// Binds the listener.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}
