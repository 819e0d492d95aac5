//! What the tests share: servers, calls in one line, refusals taken apart.

#[macro_use]
mod pass_on;

pub mod counting;
pub mod gate;
pub mod host;
pub mod load;
pub mod process;
pub mod python;
pub mod volume;
pub mod watched;

use std::sync::Arc;

use quipu::cli::config::Config;
use quipu::codec::{Chain, event};
use quipu::rpc::client::{self, Client};
use quipu::rpc::pb;
use quipu::rpc::server::Wire;
use quipu::service::{Options, Service};
use quipu::store::Store;
use quipu::store::memory::MemoryStore;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Runs a test on a runtime of its own, with the two workers that the committer needs. A test that hangs fails.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    run_long(async { tokio::time::timeout(std::time::Duration::from_secs(180), test).await.expect("the test hangs") })
}

/// The same without a limit, for tests with a long form.
pub fn run_long<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    Background(Some(runtime)).0.as_ref().unwrap().block_on(test)
}

/// Ends without waiting for its workers: a failed test may leave one blocked in a commit.
struct Background(Option<tokio::runtime::Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

/// Says that a test did not run; fails instead where everything must.
pub fn skipped(why: &str) {
    assert!(std::env::var_os("QUIPU_REQUIRE_ALL").is_none_or(|value| value != "1"), "cannot be skipped: {why}");
    println!("SKIPPED: {why}");
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Numbers that look random; the seed is printed, so that a failure can be repeated.
pub struct Random(u64);

impl Random {
    /// From `variable`, or from the clock.
    pub fn new(variable: &str) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = setting(variable, now.as_nanos() as u64);
        println!("{variable}={seed}");
        Self(seed)
    }

    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A server in this process, on a free port.
pub struct Node {
    pub address: String,
    pub service: Service,
    end: CancellationToken,
}

impl Node {
    pub async fn memory() -> Self {
        Self::over(Arc::new(MemoryStore::new()), Options::default()).await
    }

    pub async fn over(store: Arc<dyn Store>, options: Options) -> Self {
        let config = Config { service: options.clone(), ..Config::default() };
        let service = Service::new(store, options);
        let wire = Wire::new(config.wire()).await;
        let router = wire.router(service.clone()).unwrap();
        let listener = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
        let address = format!("http://{}", listener.local_addr().unwrap());
        let end = CancellationToken::new();
        let (ended, stop) = (end.clone(), wire.stop.clone());
        let shutdown = async move {
            ended.cancelled().await;
            stop.cancel();
        };
        tokio::spawn(router.serve_with_incoming_shutdown(listener, shutdown));
        Self { address, service, end }
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.address).await.unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// A copy of a store that was closed, without its index: what the journal alone says.
pub fn journal_alone(dir: &std::path::Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("journal")).unwrap();
    std::fs::copy(dir.join("FORMAT"), copy.path().join("FORMAT")).unwrap();
    for entry in std::fs::read_dir(dir.join("journal")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().extension().is_some_and(|name| name == "qj") {
            std::fs::copy(entry.path(), copy.path().join("journal").join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// An event of type `note`.
pub fn note(data: impl Into<Vec<u8>>) -> pb::NewEvent {
    let data: Vec<u8> = data.into();
    pb::NewEvent { time_ms: 1_700_000_000_000, r#type: "note".to_owned(), data: data.into(), ..Default::default() }
}

/// `count` small events, different from each other and from those with another `salt`.
pub fn notes(salt: &str, count: usize) -> Vec<pb::NewEvent> {
    (0..count).map(|n| note(format!("{{\"n\":{n},\"salt\":\"{salt}\"}}"))).collect()
}

/// An append in the default form, to be changed by the caller.
pub fn batch(id: &str, first_seq: u64, events: Vec<pb::NewEvent>) -> pb::AppendRequest {
    pb::AppendRequest { session_id: id.to_owned(), first_seq: Some(first_seq), events, ..Default::default() }
}

/// A read of everything, to be changed by the caller.
pub fn all_of(id: &str) -> pb::ReadFromRequest {
    pb::ReadFromRequest { session_id: id.to_owned(), ..Default::default() }
}

/// What a read gave.
#[derive(Debug, Default)]
pub struct Read {
    pub start: pb::ReadStart,
    pub frames: Vec<Vec<pb::Event>>,
    pub end: Option<pb::ReadEnd>,
    pub refusal: Option<Status>,
}

impl Read {
    pub fn events(&self) -> Vec<pb::Event> {
        self.frames.concat()
    }

    pub fn seqs(&self) -> Vec<u64> {
        self.frames.iter().flatten().map(|event| event.seq).collect()
    }

    pub fn reason(&self) -> pb::ReadEndReason {
        self.end.as_ref().map_or(pb::ReadEndReason::Unspecified, pb::ReadEnd::reason)
    }

    /// Takes the frames of a stream, in the order that the contract gives them.
    pub async fn of(mut stream: tonic::Streaming<pb::ReadFromResponse>) -> Self {
        let mut read = Self::default();
        let mut is_first = true;
        loop {
            match stream.message().await {
                Ok(None) => return read,
                Err(status) => {
                    read.refusal = Some(status);
                    return read;
                }
                Ok(Some(frame)) => {
                    assert!(read.end.is_none(), "a frame after the end");
                    match frame.frame.expect("a frame is something") {
                        pb::read_from_response::Frame::Start(start) => {
                            assert!(is_first, "start comes first, once");
                            read.start = start;
                        }
                        pb::read_from_response::Frame::Events(events) => {
                            assert!(!is_first && !events.events.is_empty(), "start comes first; frames hold events");
                            read.frames.push(events.events);
                        }
                        pb::read_from_response::Frame::End(end) => read.end = Some(end),
                        other => panic!("not for a read that ends: {other:?}"),
                    }
                    is_first = false;
                }
            }
        }
    }
}

/// The calls that most tests make.
pub trait Calls {
    async fn make(&mut self, id: &str) -> pb::Session;
    async fn get(&mut self, id: &str) -> Result<pb::Session, Status>;
    async fn append(&mut self, request: pb::AppendRequest) -> Result<pb::AppendResponse, Status>;
    async fn flush(&mut self, id: &str) -> Result<pb::Head, Status>;
    async fn remove(&mut self, id: &str) -> Result<pb::Head, Status>;
    async fn read(&mut self, request: pb::ReadFromRequest) -> Result<Read, Status>;
    async fn head(&mut self, id: &str) -> pb::Head;
}

impl Calls for Client {
    async fn make(&mut self, id: &str) -> pb::Session {
        let header = pb::Header { id: id.to_owned(), ..Default::default() };
        let request = pb::CreateSessionRequest {
            header: Some(header),
            profile: Some(pb::Profile::Raw.into()),
            ..Default::default()
        };
        self.sessions.create_session(request).await.unwrap().into_inner().session.unwrap()
    }

    async fn get(&mut self, id: &str) -> Result<pb::Session, Status> {
        let request = pb::GetSessionRequest { session_id: id.to_owned(), ..Default::default() };
        Ok(self.sessions.get_session(request).await?.into_inner().session.unwrap())
    }

    async fn append(&mut self, request: pb::AppendRequest) -> Result<pb::AppendResponse, Status> {
        Ok(self.log.append(request).await?.into_inner())
    }

    async fn flush(&mut self, id: &str) -> Result<pb::Head, Status> {
        let request = pb::FlushRequest { session_id: id.to_owned(), ..Default::default() };
        Ok(self.log.flush(request).await?.into_inner().head.unwrap())
    }

    async fn remove(&mut self, id: &str) -> Result<pb::Head, Status> {
        let request = pb::DeleteSessionRequest { session_id: id.to_owned(), ..Default::default() };
        Ok(self.sessions.delete_session(request).await?.into_inner().head.unwrap())
    }

    async fn read(&mut self, request: pb::ReadFromRequest) -> Result<Read, Status> {
        Ok(Read::of(self.log.read_from(request).await?.into_inner()).await)
    }

    async fn head(&mut self, id: &str) -> pb::Head {
        self.get(id).await.unwrap().head.unwrap()
    }
}

/// The reason of a refusal, and the facts that go with it.
pub struct Refusal {
    pub code: Code,
    pub reason: String,
    status: Status,
}

impl Refusal {
    pub fn fact(&self, key: &str) -> String {
        let details = self.status.get_error_details();
        let facts = &details.error_info().unwrap().metadata;
        facts.get(key).unwrap_or_else(|| panic!("no `{key}` in {facts:?}")).clone()
    }

    pub fn delay(&self) -> Option<std::time::Duration> {
        self.status.get_error_details().retry_info().and_then(|retry| retry.retry_delay)
    }

    fn detail<T: prost::Message + Default>(&self, name: &str) -> T {
        let whole: tonic_types::pb::Status = prost::Message::decode(self.status.details()).unwrap();
        let url = format!("type.googleapis.com/quipu.v1.{name}");
        let found = whole.details.iter().find(|detail| detail.type_url == url);
        T::decode(&found.unwrap_or_else(|| panic!("no {name} in {:?}", self.status)).value[..]).unwrap()
    }

    pub fn conflict(&self) -> pb::ConflictDetail {
        self.detail("ConflictDetail")
    }

    pub fn limit(&self) -> pb::LimitDetail {
        self.detail("LimitDetail")
    }

    pub fn fenced(&self) -> pb::FencedDetail {
        self.detail("FencedDetail")
    }

    pub fn owner(&self) -> pb::Owner {
        self.detail::<pb::OwnerDetail>("OwnerDetail").owner.unwrap()
    }

    pub fn corrupt(&self) -> pb::CorruptDetail {
        self.detail("CorruptDetail")
    }
}

/// Takes a refusal apart, whatever it is.
pub fn refusal(status: Status) -> Refusal {
    let details = status.get_error_details();
    let info = details.error_info().unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"));
    assert_eq!(info.domain, "quipu.v1");
    Refusal { code: status.code(), reason: info.reason.clone(), status }
}

/// The refusal that a call must have got.
pub fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, reason: &str) -> Refusal {
    let refusal = refusal(result.expect_err(reason));
    assert_eq!((refusal.code, refusal.reason.as_str()), (code, reason), "{:?}", refusal.status);
    refusal
}

/// What stored events must be.
pub fn stored(first_seq: u64, events: &[pb::NewEvent]) -> Vec<pb::Event> {
    let with_seq = |(index, event): (usize, &pb::NewEvent)| pb::Event {
        seq: first_seq + index as u64,
        time_ms: event.time_ms,
        r#type: event.r#type.clone(),
        data: event.data.clone(),
        ignorable: event.ignorable,
        surface_op: event.surface_op,
        source_event_seqs: event.source_event_seqs.clone(),
    };
    events.iter().enumerate().map(with_seq).collect()
}

/// The chain after `events`, starting from `before`, by the documented rule.
pub fn chain_after(before: &[u8], events: &[pb::Event]) -> Vec<u8> {
    let mut chain = Chain(before.try_into().unwrap());
    for stored in events {
        let stored = client::event(stored.clone()).unwrap();
        let mut encoded = Vec::new();
        event::encode(stored.seq, &stored.body, &mut encoded);
        chain = chain.next(&encoded);
    }
    chain.0.to_vec()
}
