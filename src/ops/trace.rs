//! Spans: one per traced call, one per commit group that carried traced calls.
//!
//! A caller who says by W3C trace context whether its trace is sampled decides; of the other calls a configured share
//! is traced. A call that is not traced costs a look at its headers and a multiplication. Names, ids and methods go into
//! a span; nothing of a session's content does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Link, Span, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use tonic::Code;
use tonic::codegen::http::HeaderMap;

use crate::metrics::{GroupSpan, SpanRef};
use crate::rpc::observe::{CallSpan, Tracer};

/// Traces a share of the calls.
pub(super) struct Share {
    tracer: SdkTracer,
    context: TraceContextPropagator,
    /// The share, of 2^64.
    of_all: u64,
    drawn: AtomicU64,
}

impl Share {
    pub(super) fn new(tracer: SdkTracer, share: f64) -> Self {
        // Saturates: all is a little less than all, by one call in 2^64.
        let of_all = (share * u64::MAX as f64) as u64;
        let drawn = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Self { tracer, context: TraceContextPropagator::new(), of_all, drawn: drawn.into() }
    }

    /// Draws whether a call is in the share.
    fn is_drawn(&self) -> bool {
        let mut z = self.drawn.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) < self.of_all
    }

    /// The trace that a call belongs to, or an empty context for one that starts its own; `None` when it is not traced.
    fn parent(&self, headers: &HeaderMap) -> Option<Context> {
        if headers.contains_key("traceparent") {
            let context = self.context.extract_with_context(&Context::new(), &Headers(headers));
            let parent = context.span().span_context().clone();
            if parent.is_valid() {
                return parent.is_sampled().then_some(context);
            }
        }
        self.is_drawn().then(Context::new)
    }
}

struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(tonic::codegen::http::HeaderName::as_str).collect()
    }
}

impl Tracer for Share {
    fn begin(&self, method: &str, headers: &HeaderMap) -> Option<Box<dyn CallSpan>> {
        let parent = self.parent(headers)?;
        let (service, name) = method.rsplit_once('/').unwrap_or(("", method));
        let attributes = [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", name)];
        let span = SpanBuilder::from_name(method.to_owned())
            .with_kind(SpanKind::Server)
            .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value.to_owned())))
            .start_with_context(&self.tracer, &parent);
        Some(Box::new(Traced(span)))
    }
}

struct Traced(opentelemetry_sdk::trace::Span);

impl CallSpan for Traced {
    fn place(&self) -> SpanRef {
        let context = self.0.span_context();
        SpanRef { trace: context.trace_id().to_bytes(), span: context.span_id().to_bytes() }
    }

    fn end(mut self: Box<Self>, code: Code, reason: Option<&str>) {
        self.0.set_attribute(KeyValue::new("rpc.grpc.status_code", code as i64));
        if let Some(reason) = reason {
            self.0.set_attribute(KeyValue::new("quipu.reason", reason.to_owned()));
        }
        // A caller's mistake is no error of the server's.
        if matches!(code, Code::Unknown | Code::Internal | Code::Unavailable | Code::DataLoss | Code::Unimplemented) {
            self.0.set_status(Status::error(reason.unwrap_or_default().to_owned()));
        }
        self.0.end();
    }
}

/// A span of a group: a child of the first call that it carried, linked to all of them.
pub(super) fn group(tracer: &SdkTracer, group: &GroupSpan) {
    let links: Vec<_> = group.links.iter().map(|call| remote(*call)).collect();
    let parent = links.first().map_or_else(Context::new, |call| Context::new().with_remote_span_context(call.clone()));
    let attributes = [
        KeyValue::new("quipu.changes", group.changes as i64),
        KeyValue::new("quipu.bytes", group.bytes as i64),
        KeyValue::new("quipu.stored", group.is_stored),
    ];
    let mut span = SpanBuilder::from_name("commit group")
        .with_kind(SpanKind::Internal)
        .with_start_time(group.began)
        .with_attributes(attributes)
        .with_links(links.into_iter().map(|call| Link::new(call, Vec::new(), 0)).collect())
        .start_with_context(tracer, &parent);
    if !group.is_stored {
        span.set_status(Status::error("not stored"));
    }
    span.end_with_timestamp(group.began + group.took);
}

fn remote(call: SpanRef) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(call.trace), SpanId::from_bytes(call.span));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default())
}
