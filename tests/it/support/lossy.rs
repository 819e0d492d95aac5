//! A proxy between client and server that loses answers and breaks connections, as often as it is told to.
//!
//! It passes calls on as they are, whatever they are, and cuts after the server has answered: what was asked for has
//! happened, and nobody is told. The server behind it can be changed, as after a restart on another port.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tower::ServiceExt;

use super::Random;

type Request = axum::http::Request<tonic::body::Body>;
type Response = axum::http::Response<tonic::body::Body>;

/// What happened on the way.
#[derive(Debug, Default)]
pub struct Tally {
    /// Answers of unary calls that came from the server.
    pub answers: AtomicU64,
    /// Those that were lost.
    pub lost: AtomicU64,
    /// Messages of streams; each answers some batches.
    pub messages: AtomicU64,
    /// Those at which the stream broke: it and all that were behind it were lost.
    pub cut: AtomicU64,
    /// Calls that never reached the server.
    pub swallowed: AtomicU64,
}

/// What loses things.
pub struct Losses {
    random: Mutex<Random>,
    /// Of 1,000 answers to appends so many are lost.
    per_mille: AtomicU64,
    /// Calls of AppendStream are refused.
    pub refuses_streams: AtomicBool,
    pub tally: Tally,
}

impl Losses {
    fn hits(&self) -> bool {
        self.random.lock().below(1000) < self.per_mille.load(Ordering::Relaxed)
    }
}

pub struct Lossy {
    pub address: String,
    pub losses: Arc<Losses>,
    upstream: Arc<Mutex<Channel>>,
    end: CancellationToken,
}

impl Lossy {
    pub async fn before(server: &str, random: Random, per_mille: u64) -> Self {
        let losses = Arc::new(Losses {
            random: Mutex::new(random),
            per_mille: AtomicU64::new(per_mille),
            refuses_streams: AtomicBool::new(false),
            tally: Tally::default(),
        });
        let upstream = Arc::new(Mutex::new(channel(server)));
        let listener = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (pass, end) = ((upstream.clone(), losses.clone()), CancellationToken::new());
        let calls = tower::service_fn(move |request: axum::extract::Request| {
            let (upstream, losses) = (pass.0.lock().clone(), pass.1.clone());
            async move { Ok::<_, std::convert::Infallible>(pass_on(upstream, losses, request).await) }
        });
        let routes = tonic::service::Routes::from(axum::Router::new().fallback_service(calls));
        let ended = end.clone();
        let serving = Server::builder().add_routes(routes);
        tokio::spawn(serving.serve_with_incoming_shutdown(listener, async move { ended.cancelled().await }));
        Self { address, losses, upstream, end }
    }

    /// The server is there now.
    pub fn moved(&self, server: &str) {
        *self.upstream.lock() = channel(server);
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn channel(server: &str) -> Channel {
    Endpoint::new(server.to_owned()).unwrap().tcp_nodelay(true).connect_lazy()
}

fn refused(code: Code, text: &str) -> Response {
    Status::new(code, text).into_http()
}

async fn pass_on(upstream: Channel, losses: Arc<Losses>, request: axum::extract::Request) -> Response {
    let path = request.uri().path().to_owned();
    let is_stream = path.ends_with("/AppendStream");
    let is_lossy = is_stream || path.ends_with("/Append") || path.ends_with("/Flush");
    if is_stream && losses.refuses_streams.load(Ordering::Relaxed) {
        return refused(Code::Unimplemented, "no streams here");
    }
    // A tenth of what is lost is lost on the way there.
    if is_lossy && !is_stream && losses.hits() && losses.random.lock().below(10) == 0 {
        losses.tally.swallowed.fetch_add(1, Ordering::Relaxed);
        return refused(Code::Unavailable, "lost on the way there");
    }
    let request: Request = request.map(tonic::body::Body::new);
    let response = match upstream.oneshot(request).await {
        Ok(response) => response,
        Err(error) => return refused(Code::Unavailable, &format!("no server: {error}")),
    };
    if !is_lossy {
        return response;
    }
    if is_stream {
        return response.map(|inner| tonic::body::Body::new(Cut { inner, losses, is_first: true }));
    }
    losses.tally.answers.fetch_add(1, Ordering::Relaxed);
    if !losses.hits() {
        return response;
    }
    losses.tally.lost.fetch_add(1, Ordering::Relaxed);
    // The answer is read to its end: the server is done with it.
    drop(axum::body::to_bytes(axum::body::Body::new(response.into_body()), usize::MAX).await);
    match losses.random.lock().below(3) {
        0 => refused(Code::Unavailable, "the answer was lost"),
        1 => refused(Code::Unknown, "transport error"),
        _ => refused(Code::Cancelled, "the connection broke"),
    }
}

/// A stream of answers that breaks at one of them.
struct Cut {
    inner: tonic::body::Body,
    losses: Arc<Losses>,
    /// The first message says how much may be on its way; it answers nothing.
    is_first: bool,
}

impl Body for Cut {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        let Poll::Ready(Some(Ok(frame))) = &polled else { return polled };
        if !frame.is_data() || std::mem::take(&mut self.is_first) {
            return polled;
        }
        self.losses.tally.messages.fetch_add(1, Ordering::Relaxed);
        if self.losses.hits() {
            self.losses.tally.cut.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Some(Err(Status::unavailable("the connection broke"))));
        }
        polled
    }
}
