//! The port of probes and metrics: plain HTTP, on a thread of its own.
//!
//! It is served from before the store is opened until the process ends, whatever the serving loops and the disk are
//! doing. Whoever reaches it learns figures and states, never anything of a session.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::health::State;
use super::{Node, page};

/// Starts to serve, and gives the address.
pub fn start(address: SocketAddr, node: Arc<Node>) -> io::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    let serve = move || {
        if let Err(error) = runtime.block_on(axum::serve(listener, routes(node)).into_future()) {
            tracing::error!(%error, "probes and metrics are not served any more");
        }
    };
    // It ends with the process: who asks how a node ends must get an answer until then.
    std::thread::Builder::new().name("quipu-probes".to_owned()).spawn(serve)?;
    Ok(address)
}

fn routes(node: Arc<Node>) -> Router {
    let (started, ready, metrics) = (node.clone(), node.clone(), node);
    Router::new()
        .route("/livez", get(|| async { "live\n" }))
        .route("/startedz", get(move || async move { answer(&started, State::is_started) }))
        .route("/readyz", get(move || async move { answer(&ready, State::is_ready) }))
        .route("/metrics", get(move || async move { show(&metrics) }))
}

fn answer(node: &Node, is_good: fn(State) -> bool) -> Response {
    let (state, why) = node.health.now();
    let code = if is_good(state) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let text = if why.is_empty() { format!("{}\n", state.name()) } else { format!("{}: {why}\n", state.name()) };
    (code, text).into_response()
}

fn show(node: &Node) -> Response {
    node.measure();
    ([(CONTENT_TYPE, page::CONTENT_TYPE)], page::page(&node.metrics)).into_response()
}
