//! The listening socket: accepts connections while there is a place for them.
//!
//! A client beyond the limit waits in the backlog of the operating system until another one goes. Nothing here knows
//! what is spoken on a connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tokio_util::sync::PollSemaphore;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// A listener whose connections are bounded in number.
pub(super) struct Bounded {
    listener: TcpIncoming,
    places: PollSemaphore,
    /// The place of the next connection.
    place: Option<OwnedSemaphorePermit>,
}

impl Bounded {
    pub(super) fn new(listener: TcpIncoming, connections_max: usize) -> Self {
        let places = PollSemaphore::new(Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))));
        Self { listener, places, place: None }
    }
}

impl Stream for Bounded {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.place.is_none() {
            this.place = ready!(this.places.poll_acquire(context));
        }
        let accepted = ready!(Pin::new(&mut this.listener).poll_next(context));
        Poll::Ready(accepted.map(|socket| socket.map(|socket| Connection { socket, _place: this.place.take() })))
    }
}

/// A connection with its place, which becomes free when it ends.
pub(super) struct Connection {
    socket: TcpStream,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.socket.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
