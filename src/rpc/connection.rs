//! Connections: bytes of a client, plain or through TLS, with the place that they take.
//!
//! A connection that does not come to speak HTTP/2 in time ends, and so does one that is older than it may be. What is
//! said on it is not known here.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::tls::{self, Tls};
use crate::metrics::Metrics;

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it calls from.
    pub address: Option<SocketAddr>,
    /// Names in the certificate that it proved to have the key of; see [`tls::names`].
    pub names: Arc<[String]>,
}

/// How long connections may take, and last.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// Time until the first bytes of HTTP/2 must be there.
    pub preface: Duration,
    /// Time after which a connection is closed, whatever goes on.
    pub end: Option<Duration>,
}

/// Connections of single addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    counts: Mutex<HashMap<IpAddr, usize>>,
    max: usize,
}

impl Addresses {
    /// At most so many of one address; 0 for as many as there are.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { counts: Mutex::default(), max })
    }

    /// A place of an address, if it has one left.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        if self.max > 0 {
            let mut counts = self.counts.lock();
            let count = counts.entry(address).or_default();
            if *count >= self.max {
                return None;
            }
            *count += 1;
        }
        Some(AddressPlace { of: self.clone(), address })
    }
}

/// One connection of an address.
pub(super) struct AddressPlace {
    of: Arc<Addresses>,
    address: IpAddr,
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        if self.of.max > 0 {
            let mut counts = self.of.counts.lock();
            if let Some(count) = counts.get_mut(&self.address) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&self.address);
                }
            }
        }
    }
}

/// The place that a connection takes: one of its loop's, one of its address's, and one of the node's.
pub(super) struct Seat {
    count: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    _address: AddressPlace,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    pub(super) fn take(
        count: Arc<AtomicUsize>,
        metrics: Arc<Metrics>,
        (address, permit): (AddressPlace, OwnedSemaphorePermit),
    ) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        metrics.connections_accepted.inc();
        metrics.connections.inc();
        Self { count, metrics, _address: address, _permit: permit }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.metrics.connections.dec();
    }
}

/// Connections that are ready to be served. Handshakes go on beside each other, and none waits for another.
pub(super) struct Arrivals {
    arriving: mpsc::UnboundedReceiver<(std::net::TcpStream, Seat)>,
    tls: Option<Arc<Tls>>,
    ages: Ages,
    /// The end of the server.
    end: CancellationToken,
    handshakes: JoinSet<Option<Connection>>,
}

impl Arrivals {
    pub(super) fn new(
        arriving: mpsc::UnboundedReceiver<(std::net::TcpStream, Seat)>,
        tls: Option<Arc<Tls>>,
        (ages, end): (Ages, CancellationToken),
    ) -> Self {
        Self { arriving, tls, ages, end, handshakes: JoinSet::new() }
    }
}

impl Stream for Arrivals {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let times = |this: &Self| (this.ages, this.end.clone());
        let mut is_closed = false;
        loop {
            match self.arriving.poll_recv(cx) {
                Poll::Ready(Some((stream, seat))) => match self.tls.clone() {
                    None => return Poll::Ready(Some(Connection::plain(stream, seat, times(&self)))),
                    Some(tls) => {
                        let shaken = Connection::shake_hands(stream, seat, (tls, times(&self)));
                        drop(self.handshakes.spawn(shaken));
                    }
                },
                Poll::Ready(None) => {
                    is_closed = true;
                    break;
                }
                Poll::Pending => break,
            }
        }
        loop {
            match self.handshakes.poll_join_next(cx) {
                Poll::Ready(Some(Ok(Some(connection)))) => return Poll::Ready(Some(Ok(connection))),
                // It failed, and is counted.
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) if is_closed => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The bytes.
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What is still due of a client's first bytes.
struct Preface {
    bytes: usize,
    late: Pin<Box<Sleep>>,
    /// The end of the server: no goodbye reaches a client that has said nothing yet, so it must not be waited for.
    end: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// When connections end, and the server does.
type Times = (Ages, CancellationToken);

/// A connection with its seat.
pub(super) struct Connection {
    io: Io,
    peer: Peer,
    /// Until the client has begun to speak HTTP/2.
    preface: Option<Preface>,
    /// Closes the connection.
    end: Option<Pin<Box<Sleep>>>,
    /// Runs once the sending side is closed.
    linger: Option<Pin<Box<Sleep>>>,
    seat: Seat,
}

/// How long a closed connection is still read from. Closing a socket with unread bytes (a window update is enough)
/// resets it, and the client loses what was on its way: the end of its stream, for one.
const LINGER: Duration = Duration::from_secs(1);

/// `PRI * HTTP/2.0`, and what follows it.
const PREFACE_BYTES: usize = 24;

impl Connection {
    fn plain(stream: std::net::TcpStream, seat: Seat, times: Times) -> io::Result<Self> {
        let stream = TcpStream::from_std(stream)?;
        let peer = Peer { address: stream.peer_addr().ok(), names: Arc::default() };
        Ok(Self::new((Io::Plain(stream), peer), seat, times))
    }

    fn new((io, peer): (Io, Peer), seat: Seat, (ages, end): Times) -> Self {
        let sleep = |time: Duration| Box::pin(tokio::time::sleep(time));
        let (late, gone) = (sleep(ages.preface), Box::pin(end.cancelled_owned()));
        let preface = Some(Preface { bytes: PREFACE_BYTES, late, end: gone });
        Self { io, peer, preface, end: ages.end.map(sleep), linger: None, seat }
    }

    /// Speaks TLS first.
    async fn shake_hands(stream: std::net::TcpStream, seat: Seat, (tls, times): (Arc<Tls>, Times)) -> Option<Self> {
        let metrics = seat.metrics.clone();
        let shaken = async {
            let stream = TcpStream::from_std(stream)?;
            let address = stream.peer_addr().ok();
            // Nobody closes the semaphore.
            let _turn = tls.handshakes.acquire().await;
            let stream = TlsAcceptor::from(tls.config()).accept(stream).await?;
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let names = certificate.map(|certificate| tls::names(certificate)).unwrap_or_default();
            io::Result::Ok((Io::Tls(Box::new(stream)), Peer { address, names: names.into() }))
        };
        let why = match tokio::time::timeout(tls.handshake_timeout(), shaken).await {
            Ok(Ok(shaken)) => return Some(Self::new(shaken, seat, times)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a handshake failed");
                "handshake"
            }
            Err(_) => "handshake_timeout",
        };
        metrics.connections_refused.with(&[why]).inc();
        None
    }

    fn tcp(&mut self) -> &mut TcpStream {
        match &mut self.io {
            Io::Plain(stream) => stream,
            Io::Tls(stream) => stream.get_mut().0,
        }
    }

    /// What ends a connection from this side.
    #[cold]
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let is_late = |sleep: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>| sleep.as_mut().poll(cx).is_ready();
        if let Some(preface) = &mut self.preface
            && is_late(&mut preface.late, cx)
        {
            self.seat.metrics.connections_refused.with(&["preface_timeout"]).inc();
            return Some(io::ErrorKind::TimedOut.into());
        }
        let is_over = self.end.as_mut().is_some_and(|end| is_late(end, cx));
        is_over.then(|| io::ErrorKind::TimedOut.into())
    }

    #[cold]
    fn note_preface(&mut self, bytes: usize) {
        if let Some(preface) = &mut self.preface {
            preface.bytes = preface.bytes.saturating_sub(bytes);
        }
        self.preface = self.preface.take().filter(|preface| preface.bytes > 0);
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if (self.preface.is_some() || self.end.is_some())
            && let Some(error) = self.poll_late(cx)
        {
            return Poll::Ready(Err(error));
        }
        let before = buf.filled().len();
        let polled = match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buf)?,
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buf)?,
        };
        if self.preface.is_some() {
            let bytes = buf.filled().len() - before;
            self.note_preface(bytes);
        }
        match &mut self.preface {
            // Nothing read is the end of what the client sends.
            Some(preface) if polled.is_pending() => preface.end.as_mut().poll(cx).map(Ok),
            _ => polled.map(Ok),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.end.is_some()
            && let Some(error) = self.poll_late(cx)
        {
            return Poll::Ready(Err(error));
        }
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.end.is_some()
            && let Some(error) = self.poll_late(cx)
        {
            return Poll::Ready(Err(error));
        }
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            match &mut self.io {
                Io::Plain(stream) => ready!(Pin::new(stream).poll_shutdown(cx))?,
                Io::Tls(stream) => ready!(Pin::new(stream).poll_shutdown(cx))?,
            }
            self.linger = Some(Box::pin(tokio::time::sleep(LINGER)));
        }
        loop {
            let mut bytes = [0; 1024];
            let mut unread = ReadBuf::new(&mut bytes);
            match Pin::new(self.tcp()).poll_read(cx, &mut unread) {
                Poll::Ready(Ok(())) if !unread.filled().is_empty() => {}
                // The client closed its side too, or is gone.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        self.linger.as_mut().map_or(Poll::Ready(Ok(())), |linger| linger.as_mut().poll(cx).map(Ok))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.end.is_some()
            && let Some(error) = self.poll_late(cx)
        {
            return Poll::Ready(Err(error));
        }
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
