//! The layer that every call passes: how long it took, how it ended, and its place in a trace.
//!
//! It sees calls from outside, so that no adapter counts by itself and no method can be forgotten: methods come from
//! the schema, the outcome from the status that travels. A stream ends with its last frame, or, when its reader goes
//! away, with `CANCELLED`.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::{Layer, Service};

use super::pb;
use crate::metrics::{Histogram, Metrics, SpanRef};

/// Decides which calls are traced. It stands on the way of every call.
pub trait Tracer: Send + Sync {
    /// A call begins; `None` when it is not traced.
    fn begin(&self, method: &str, headers: &HeaderMap) -> Option<Box<dyn CallSpan>>;
}

/// The span of one call.
pub trait CallSpan: Send + Sync {
    /// Its place.
    fn place(&self) -> SpanRef;
    /// The call has ended. `reason` is that of the error table.
    fn end(self: Box<Self>, code: Code, reason: Option<&str>);
}

/// Names of the services of the schema.
pub fn services() -> Vec<String> {
    described(&[pb::DESCRIPTOR]).into_iter().map(|(service, _)| service).collect()
}

/// Services and their methods.
fn described(sets: &[&[u8]]) -> Vec<(String, Vec<String>)> {
    let files = sets.iter().filter_map(|set| FileDescriptorSet::decode(*set).ok()).flat_map(|set| set.file);
    let services = files.flat_map(|file| {
        let package = file.package.clone().unwrap_or_default();
        file.service.into_iter().map(move |service| {
            let methods = service.method.iter().map(|method| method.name().to_owned()).collect();
            (format!("{package}.{}", service.name()), methods)
        })
    });
    services.collect()
}

/// gRPC status codes by number, as their specification spells them.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// A refusal by the transport, which has no reason of ours.
const NO_REASON: &str = "NONE";

/// One method and its series, looked up once.
struct Method {
    name: String,
    durations: [OnceLock<Arc<Histogram>>; CODES.len()],
}

impl Method {
    fn new(name: String) -> Self {
        Self { name, durations: Default::default() }
    }
}

/// The layer.
#[derive(Clone)]
pub struct Observe {
    shared: Arc<Shared>,
}

struct Shared {
    metrics: Arc<Metrics>,
    tracer: Option<Arc<dyn Tracer>>,
    methods: HashMap<String, Arc<Method>>,
    /// Whatever is not in the schema.
    other: Arc<Method>,
}

impl Observe {
    /// Counts into `metrics`, and traces what the tracer wants.
    pub fn new(metrics: Arc<Metrics>, tracer: Option<Arc<dyn Tracer>>) -> Self {
        let sets = [pb::DESCRIPTOR, tonic_health::pb::FILE_DESCRIPTOR_SET];
        let method = |service: &str, name: &str| {
            (format!("/{service}/{name}"), Arc::new(Method::new(format!("{service}/{name}"))))
        };
        let methods = described(&sets);
        let methods = methods.iter().flat_map(|(service, names)| names.iter().map(move |name| method(service, name)));
        let (methods, other) = (methods.collect(), Arc::new(Method::new("other".to_owned())));
        Self { shared: Arc::new(Shared { metrics, tracer, methods, other }) }
    }
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, shared: self.shared.clone() }
    }
}

/// A service whose calls are seen.
#[derive(Clone)]
pub struct Observed<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Unpin,
{
    type Response = Response<Watched>;
    type Error = S::Error;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = Call::begin(&self.shared, &request);
        Answer { answer: self.inner.call(request), call: Some(call) }
    }
}

/// An answer that is being made. Spelled out, since a box for each call would cost as much as all the counting.
pub struct Answer<F> {
    answer: F,
    /// Until the answer is there.
    call: Option<Call>,
}

impl<F, E> Future for Answer<F>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = Result<Response<Watched>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let place = self.call.as_ref().and_then(|call| call.span.as_ref()).map(|span| span.place());
        let _entered = place.map(SpanRef::enter);
        let (head, body) = ready!(Pin::new(&mut self.answer).poll(cx))?.into_parts();
        let mut call = self.call.take();
        if let Some(call) = &mut call {
            // A refusal without a body has its status here, everything else behind the body.
            call.note(&head.headers);
        }
        Poll::Ready(Ok(Response::from_parts(head, Watched { body, call })))
    }
}

/// A call that goes on. Its end is the end of this.
struct Call {
    shared: Arc<Shared>,
    method: Arc<Method>,
    began: Instant,
    ended: Option<Ended>,
    span: Option<Box<dyn CallSpan>>,
}

/// How a call ended, if it did. Most do well, which needs no look at the details.
enum Ended {
    Well,
    Refused(Status),
}

impl Call {
    fn begin(shared: &Arc<Shared>, request: &Request<Body>) -> Self {
        let method = shared.methods.get(request.uri().path()).unwrap_or(&shared.other).clone();
        shared.metrics.calls_running.inc();
        let span = shared.tracer.as_ref().and_then(|tracer| tracer.begin(&method.name, request.headers()));
        Self { shared: shared.clone(), method, began: Instant::now(), ended: None, span }
    }

    fn note(&mut self, headers: &HeaderMap) {
        let Some(code) = headers.get("grpc-status") else { return };
        self.ended = if code.as_bytes() == b"0" {
            Some(Ended::Well)
        } else {
            Status::from_header_map(headers).map(Ended::Refused)
        };
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let code = match &self.ended {
            Some(Ended::Well) => Code::Ok,
            Some(Ended::Refused(status)) => status.code(),
            None => Code::Cancelled,
        };
        let metrics = &self.shared.metrics;
        metrics.calls_running.dec();
        let at = code as usize;
        if let (Some(duration), Some(name)) = (self.method.durations.get(at), CODES.get(at)) {
            let duration = duration.get_or_init(|| metrics.call_duration.with(&[&self.method.name, name]));
            duration.record(self.began.elapsed());
        }
        let mut reason = None;
        if let Some(Ended::Refused(status)) = &self.ended {
            reason = status.get_error_details().error_info().map(|info| info.reason.clone());
            metrics.refusals.with(&[reason.as_deref().unwrap_or(NO_REASON)]).inc();
        }
        if let Some(span) = self.span.take() {
            span.end(code, reason.as_deref());
        }
    }
}

/// The body of an answer, and the call that ends with it.
pub struct Watched {
    body: Body,
    call: Option<Call>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
            && let Some(mut call) = self.call.take()
        {
            // The last frame: the call ends with it, whenever the connection gets to let go of the body.
            call.note(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_names_its_services_and_their_methods() {
        assert!(services().contains(&"quipu.v1.LogService".to_owned()));
        let observe = Observe::new(Arc::default(), None);
        for path in ["/quipu.v1.LogService/Append", "/quipu.v1.LogService/ReadFrom", "/grpc.health.v1.Health/Check"] {
            assert_eq!(observe.shared.methods[path].name, path[1..]);
        }
    }

    #[test]
    fn codes_are_spelled_in_the_order_of_their_numbers() {
        for (number, name) in (0..).zip(CODES) {
            let spelled = format!("{:?}", Code::from(number)).to_uppercase();
            assert_eq!(spelled, name.replace('_', "").replace("CANCELED", "CANCELLED"));
        }
    }
}
