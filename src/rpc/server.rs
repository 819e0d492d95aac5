//! The listening side: services, limits of HTTP/2, health, reflection.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthReporter;
use tonic_web::GrpcWebLayer;
use tower::layer::util::{Identity, Stack};
use tower::util::{Either, option_layer};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::admin::Admin;
use super::changes::Feeds;
use super::connection::Ages;
use super::faces::Faces;
use super::forks::Forks;
use super::log::Log;
use super::observe::{Observe, Tracer, services};
use super::owners::Owners;
use super::pb;
use super::pb::admin_service_server::AdminServiceServer;
use super::pb::face_service_server::FaceServiceServer;
use super::pb::feed_service_server::FeedServiceServer;
use super::pb::fork_service_server::ForkServiceServer;
use super::pb::log_service_server::LogServiceServer;
use super::pb::owner_service_server::OwnerServiceServer;
use super::pb::session_service_server::SessionServiceServer;
use super::pb::view_service_server::ViewServiceServer;
use super::sessions::Sessions;
use super::tls::Tls;
use super::views::Views;
use crate::service::Service;

/// Limits of a connection. tonic sets none of them by itself.
#[derive(Clone, Debug)]
pub struct Options {
    /// Largest request message in bytes.
    pub request_bytes_max: usize,
    /// Largest response message in bytes: the largest event with its envelope.
    pub response_bytes_max: usize,
    /// Calls at once on one connection.
    pub streams_max: u32,
    /// Idle time after which a connection is probed.
    pub keepalive: Duration,
    /// Whether clients may ask what services there are.
    pub reflection: bool,
    /// Pages that may call over gRPC-web, by their origin; `*` for any. Without one, no page may.
    pub web_origins: Vec<String>,
    /// Time until a new connection must speak HTTP/2.
    pub preface_timeout: Duration,
    /// Connections of one address at once; 0 for as many as there are.
    pub connections_per_address: usize,
    /// Age at which a connection takes no more calls.
    pub age_max: Option<Duration>,
    /// Time that its open calls then have.
    pub age_grace: Duration,
}

impl Options {
    pub(super) fn ages(&self) -> Ages {
        Ages { preface: self.preface_timeout, end: self.age_max.map(|age| age.saturating_add(self.age_grace)) }
    }
}

/// What stands before the services: gRPC-web and its rules, if pages may call.
type Web = Either<Stack<GrpcWebLayer, CorsLayer>, Identity>;

/// What the connections of a node share, and the handles to end it.
pub struct Wire {
    pub(super) options: Options,
    health_service: HealthServer<tonic_health::server::HealthService>,
    /// Ends open streams.
    pub stop: CancellationToken,
    /// Tasks that feed streams.
    pub tasks: TaskTracker,
    /// Says whether this node serves.
    pub health: HealthReporter,
    /// Traces calls, if anybody wants to know.
    pub tracer: Option<Arc<dyn Tracer>>,
    /// Encrypts connections, if anything does.
    pub tls: Option<Arc<Tls>>,
}

/// A router whose calls are all seen.
pub type Seen = Router<Stack<Web, Stack<Observe, Identity>>>;

impl Wire {
    /// A wire that says it serves.
    pub async fn new(options: Options) -> Self {
        let (health, _) = tonic_health::server::health_reporter();
        serve_or_not(&health, true).await;
        let health_service =
            HealthServer::new(tonic_health::server::HealthService::from_health_reporter(health.clone()));
        Self {
            options,
            health_service,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            health,
            tracer: None,
            tls: None,
        }
    }

    /// All services over one service. `Err` only for a broken descriptor, which is a defect of the build.
    pub fn router(&self, service: Service) -> Result<Seen, tonic_reflection::server::Error> {
        let observe = Observe::new(service.metrics().clone(), self.tracer.clone());
        let options = &self.options;
        let log = Log { service: service.clone(), stop: self.stop.clone(), tasks: self.tasks.clone() };
        let log = LogServiceServer::new(log)
            .max_decoding_message_size(options.request_bytes_max)
            .max_encoding_message_size(options.response_bytes_max);
        let views = Views {
            service: service.clone(),
            stop: self.stop.clone(),
            tasks: self.tasks.clone(),
            answer_bytes_max: options.response_bytes_max.saturating_sub(1 << 20),
        };
        let views = ViewServiceServer::new(views)
            .max_decoding_message_size(options.request_bytes_max)
            .max_encoding_message_size(options.response_bytes_max);
        let forks = Forks { service: service.clone(), stop: self.stop.clone(), tasks: self.tasks.clone() };
        let admin = Admin { service: service.clone(), stop: self.stop.clone(), tasks: self.tasks.clone() };
        let (stop, tasks) = (self.stop.clone(), self.tasks.clone());
        let owners = OwnerServiceServer::new(Owners { service: service.clone(), stop, tasks })
            .max_decoding_message_size(options.request_bytes_max)
            .max_encoding_message_size(options.response_bytes_max);
        let (stop, tasks) = (self.stop.clone(), self.tasks.clone());
        let feeds = FeedServiceServer::new(Feeds { service: service.clone(), stop: self.stop.clone() })
            .max_decoding_message_size(options.request_bytes_max)
            .max_encoding_message_size(options.response_bytes_max);
        let faces = FaceServiceServer::new(Faces { service: service.clone(), stop, tasks })
            .max_decoding_message_size(options.request_bytes_max)
            .max_encoding_message_size(options.response_bytes_max);
        let sessions = SessionServiceServer::new(Sessions { service })
            .max_decoding_message_size(options.request_bytes_max)
            .max_encoding_message_size(options.response_bytes_max);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(pb::DESCRIPTOR)
                .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // Older clients ask for v1alpha only.
        let (v1, v1alpha) = if options.reflection {
            (Some(reflection().build_v1()?), Some(reflection().build_v1alpha()?))
        } else {
            (None, None)
        };
        let web = web(&options.web_origins);
        let mut router = server(options).accept_http1(!options.web_origins.is_empty()).layer(observe).layer(web);
        let router = router.add_service(log).add_service(sessions).add_service(views).add_service(feeds);
        let router = router.add_service(ForkServiceServer::new(forks)).add_service(AdminServiceServer::new(admin));
        let router = router.add_service(owners).add_service(faces).add_service(self.health_service.clone());
        Ok(router.add_optional_service(v1).add_optional_service(v1alpha))
    }
}

fn web(origins: &[String]) -> Web {
    let cors = (!origins.is_empty()).then(|| {
        let allowed = if origins.iter().any(|origin| origin == "*") {
            AllowOrigin::any()
        } else {
            AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok()))
        };
        let exposed = ["grpc-status", "grpc-message", "grpc-status-details-bin"];
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([tonic::codegen::http::Method::POST])
            .allow_headers(tower_http::cors::AllowHeaders::mirror_request())
            .expose_headers(exposed.map(tonic::codegen::http::HeaderName::from_static))
            .max_age(Duration::from_secs(3600))
    });
    option_layer(cors.map(|cors| Stack::new(GrpcWebLayer::new(), cors)))
}

fn server(options: &Options) -> Server {
    let server = Server::builder()
        .max_concurrent_streams(options.streams_max)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .max_frame_size(64 << 10)
        .http2_keepalive_interval(Some(options.keepalive))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .http2_max_header_list_size(16 << 10)
        .http2_max_pending_accept_reset_streams(Some(20))
        .http2_max_local_error_reset_streams(Some(256));
    // Without a grace of tonic's, which would leave out the word to the client that it should connect anew.
    match options.age_max {
        Some(age) => server.max_connection_age(age),
        None => server,
    }
}

/// Sets the health of the whole node and of its services.
pub async fn serve_or_not(health: &HealthReporter, serves: bool) {
    let status = if serves { tonic_health::ServingStatus::Serving } else { tonic_health::ServingStatus::NotServing };
    health.set_service_status("", status).await;
    for name in services() {
        health.set_service_status(name, status).await;
    }
}
