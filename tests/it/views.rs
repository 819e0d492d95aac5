//! Views and the door, over gRPC and on the command line, on imported samples.

use std::process::{Command, Output};
use std::sync::Arc;

use prost::Message as _;
use quipu::cli::config::Config;
use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::rpc::server::Wire;
use quipu::service::{Options, Service};
use quipu::store::Store;
use quipu::store::fault::{FaultStore, Plan};
use quipu::store::memory::MemoryStore;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::support::python::{self, file};

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}

struct Node {
    address: String,
    client: Client,
    end: CancellationToken,
}

impl Node {
    async fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new()), Options::default()).await
    }

    async fn over(store: Arc<dyn Store>, options: Options) -> Self {
        let config = Config { service: options.clone(), ..Config::default() };
        let wire = Wire::new(config.wire()).await;
        let router = wire.router(Service::new(store, options)).unwrap();
        let listener = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let end = CancellationToken::new();
        let ended = end.clone();
        let shutdown = async move {
            ended.cancelled().await;
            wire.stop.cancel();
        };
        tokio::spawn(router.serve_with_incoming_shutdown(listener, shutdown));
        Self { client: Client::connect(&address).await.unwrap(), address, end }
    }

    /// Runs the command line against this node.
    async fn quipu(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quipu"));
        command.args(args).env("QUIPU_ADDRESS", &self.address);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    async fn text(&self, args: &[&str]) -> String {
        let output = self.quipu(args).await;
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn import(&self, sample: &str, id: &str) {
        let path = format!("{}/tests/data/samples/dsh-v0-{sample}.jsonl", env!("CARGO_MANIFEST_DIR"));
        self.text(&["import", &path, "--id", id, "--cwd", "/w"]).await;
    }

    async fn create(&mut self, id: &str, profile: pb::Profile) {
        let header = pb::Header { id: id.to_owned(), ..Default::default() };
        let request =
            pb::CreateSessionRequest { header: Some(header), profile: Some(profile.into()), ..Default::default() };
        self.client.sessions.create_session(request).await.unwrap();
    }

    async fn append(&mut self, id: &str, at: u64, events: Vec<pb::NewEvent>) -> Result<pb::AppendResponse, Status> {
        let request =
            pb::AppendRequest { session_id: id.to_owned(), first_seq: Some(at), events, ..Default::default() };
        self.client.log.append(request).await.map(tonic::Response::into_inner)
    }

    async fn head(&mut self, id: &str) -> pb::Head {
        let request = pb::GetSessionRequest { session_id: id.to_owned(), ..Default::default() };
        self.client.sessions.get_session(request).await.unwrap().into_inner().session.unwrap().head.unwrap()
    }

    async fn messages(&mut self, log: pb::LogView) -> Result<(pb::DeriveMessagesStart, Vec<pb::Message>), Status> {
        use pb::derive_messages_response::Frame;
        let mut frames =
            self.client.views.derive_messages(pb::DeriveMessagesRequest { log: Some(log) }).await?.into_inner();
        let (mut start, mut messages) = (None, Vec::new());
        while let Some(frame) = frames.message().await? {
            match frame.frame.unwrap() {
                Frame::Start(frame) => assert!(start.replace(frame).is_none()),
                Frame::Messages(frame) => messages.extend(frame.messages),
            }
        }
        Ok((start.unwrap(), messages))
    }

    async fn request(
        &mut self,
        log: pb::LogView,
        dispatch: Option<u64>,
    ) -> Result<(pb::ReconstructRequestStart, Vec<pb::Message>), Status> {
        use pb::reconstruct_request_response::Frame;
        let request = pb::ReconstructRequestRequest { log: Some(log), dispatch };
        let mut frames = self.client.views.reconstruct_request(request).await?.into_inner();
        let (mut start, mut messages) = (None, Vec::new());
        while let Some(frame) = frames.message().await? {
            match frame.frame.unwrap() {
                Frame::Start(frame) => assert!(start.replace(frame).is_none()),
                Frame::Messages(frame) => messages.extend(frame.messages),
            }
        }
        Ok((start.unwrap(), messages))
    }

    async fn history(
        &mut self,
        request: pb::ReadHistoryRequest,
    ) -> Result<(pb::ReadHistoryStart, Vec<pb::Event>), Status> {
        use pb::read_history_response::Frame;
        let mut frames = self.client.views.read_history(request).await?.into_inner();
        let (mut start, mut events) = (None, Vec::new());
        while let Some(frame) = frames.message().await? {
            match frame.frame.unwrap() {
                Frame::Start(frame) => assert!(start.replace(frame).is_none()),
                Frame::Events(frame) => events.extend(frame.events),
            }
        }
        Ok((start.unwrap(), events))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn log(id: &str) -> pb::LogView {
    pb::LogView { session_id: id.to_owned(), ..Default::default() }
}

fn balanced(id: &str) -> pb::LogView {
    pb::LogView { balance: Some(pb::Balance::Balanced.into()), ..log(id) }
}

fn before(id: &str, seq: u64) -> pb::LogView {
    pb::LogView { before_seq: Some(seq), ..log(id) }
}

fn event(kind: &str, data: &str) -> pb::NewEvent {
    let surface = matches!(kind, "user/message" | "assistant/message" | "tool/result");
    let surface_op = surface.then_some(pb::SurfaceOp { op: Some(pb::surface_op::Op::Append(pb::SurfaceAppend {})) });
    let data = data.to_owned().into_bytes().into();
    pb::NewEvent { time_ms: 5, r#type: kind.to_owned(), data, surface_op, ..Default::default() }
}

fn user(id: &str, text: &str) -> pb::NewEvent {
    let data = format!(
        r#"{{"id":"{id}","role":"user","source":{{"kind":"user"}},"content":[{{"type":"text","text":"{text}"}}]}}"#
    );
    event("user/message", &data)
}

fn calling(id: &str) -> pb::NewEvent {
    let data = format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"a-{id}","role":"assistant","source":{{"kind":"model","provider":"p","model":"m"}},"content":[{{"type":"tool-call","id":"{id}","name":"n","arguments":"{{}}"}}]}}}}"#
    );
    event("assistant/message", &data)
}

fn result(id: &str) -> pb::NewEvent {
    let data = format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"r-{id}","role":"user","source":{{"kind":"tool","callId":"{id}"}},"content":[{{"type":"tool-result","toolCallId":"{id}","content":[]}}]}}}}"#
    );
    event("tool/result", &data)
}

fn start() -> Vec<pb::NewEvent> {
    vec![event("turn/start", r#"{"turn":1}"#), event("step/start", r#"{"turn":1,"step":1}"#)]
}

/// Code, reason, and metadata by name.
fn refusal(status: &Status, names: &[&str]) -> (Code, String, Vec<String>) {
    let details = status.get_error_details();
    let info = details.error_info().unwrap_or_else(|| panic!("{status:?}"));
    let facts = names.iter().map(|name| info.metadata.get(*name).cloned().unwrap_or_default());
    (status.code(), info.reason.clone(), facts.collect())
}

fn json(text: &[u8]) -> serde_json::Value {
    serde_json::from_slice(text).unwrap()
}

#[test]
fn messages_requests_and_the_surface_of_an_imported_session_agree() {
    run(async {
        let mut node = Node::new().await;
        node.import("compaction-recovery", "c").await;
        let (start, messages) = node.messages(log("c")).await.unwrap();
        let basis = start.basis.unwrap();
        assert_eq!((basis.next_seq, basis.closers, basis.incarnation.len()), (31, 0, 16));
        let seqs: Vec<u64> = messages.iter().map(|message| message.seq).collect();
        assert_eq!(seqs, [21, 13, 15, 28], "a replacement stands where the range stood");
        assert_eq!((start.message_count, start.pairing.unwrap().is_balanced), (4, true));
        assert_eq!(json(&messages[1].message)["role"], "assistant");
        let surface = pb::GetSurfaceRequest { log: Some(log("c")), from_position: 1, page_size: 2 };
        let surface = node.client.views.get_surface(surface).await.unwrap().into_inner();
        assert_eq!((surface.nodes, surface.node_count, surface.replace_generation), (vec![13, 15], 4, 1));
        // Before the replacement, by a pass over the prefix.
        let (start, messages) = node.messages(before("c", 21)).await.unwrap();
        let seqs: Vec<u64> = messages.iter().map(|message| message.seq).collect();
        assert_eq!((start.basis.unwrap().next_seq, seqs), (21, vec![4, 13, 15]));
        // The first dispatch, by number and by boundary.
        let (start, messages) = node.request(log("c"), Some(0)).await.unwrap();
        let seqs: Vec<u64> = messages.iter().map(|message| message.seq).collect();
        assert_eq!((start.basis.as_ref().unwrap().next_seq, seqs), (8, vec![4]));
        assert_eq!(start.header_seq, Some(6));
        assert!(json(&start.header.unwrap())["config"]["model"].is_string());
        let attempt = start.attempt.clone().unwrap();
        assert_eq!((attempt.first_chunk_seq, attempt.message_seq, attempt.number), (Some(8), Some(13), 1));
        assert_eq!(node.request(before("c", 8), None).await.unwrap().0.attempt, start.attempt);
        // At the head: from the checkpoint, and no attempt begins there.
        let (start, messages) = node.request(log("c"), None).await.unwrap();
        assert_eq!((start.attempt, start.header_seq, messages.len()), (None, Some(6), 4));
        let none = node.request(log("c"), Some(99)).await.unwrap_err();
        assert_eq!(refusal(&none, &[]).1, "EVENT_NOT_FOUND");
        let beyond = node.messages(before("c", 32)).await.unwrap_err();
        assert_eq!(
            refusal(&beyond, &["field"]),
            (Code::OutOfRange, "BEYOND_HEAD".into(), vec!["log.before_seq".into()])
        );
    });
}

#[test]
fn attempts_are_listed_with_their_outcome_and_assembled_to_what_was_committed() {
    run(async {
        let mut node = Node::new().await;
        node.import("parallel-tool-calls", "p").await;
        let request = pb::ListAttemptsRequest { log: Some(log("p")), page_size: 1, ..Default::default() };
        let page = node.client.views.list_attempts(request.clone()).await.unwrap().into_inner();
        assert_eq!((page.attempts.len(), page.next_from_seq), (1, Some(24)));
        let request = pb::ListAttemptsRequest { from_seq: 24, ..request };
        let page = node.client.views.list_attempts(request).await.unwrap().into_inner();
        assert_eq!((page.attempts.len(), page.next_from_seq), (1, None));
        assert_eq!(page.attempts[0].outcome(), pb::AttemptOutcome::Committed);
        let request = pb::AssembleAttemptRequest { log: Some(log("p")), seq: 12 };
        let assembled = node.client.views.assemble_attempt(request).await.unwrap().into_inner();
        let (_, messages) = node.messages(log("p")).await.unwrap();
        let committed = messages.iter().find(|message| message.seq == 17).unwrap();
        let blocks: Vec<_> = assembled.blocks.iter().map(|block| json(block)).collect();
        assert_eq!(json(&committed.message)["content"], serde_json::Value::Array(blocks));
        assert_eq!((assembled.problem.as_str(), assembled.attempt.unwrap().last_seq), ("", 17));
        let none = pb::AssembleAttemptRequest { log: Some(log("p")), seq: 1 };
        let none = node.client.views.assemble_attempt(none).await.unwrap_err();
        assert_eq!((none.code(), refusal(&none, &[]).1), (Code::NotFound, "EVENT_NOT_FOUND".to_owned()));
    });
}

#[test]
fn history_pages_tile_the_log_and_say_what_they_were_cut_from() {
    run(async {
        let mut node = Node::new().await;
        node.import("fork-parent", "h").await;
        let whole = node.head("h").await.next_seq;
        for max_bytes in [0, 700] {
            let (mut before_seq, mut seen, mut pages) = (None, whole, 0);
            loop {
                let request = pb::ReadHistoryRequest {
                    log: Some(log("h")),
                    before_seq,
                    max_messages: 2,
                    max_bytes,
                    ..Default::default()
                };
                let (start, events) = node.history(request).await.unwrap();
                assert_eq!(start.basis.as_ref().unwrap().next_seq, whole);
                let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
                assert_eq!(seqs, (start.first_seq.unwrap()..seen).collect::<Vec<_>>());
                assert_eq!(start.next_seq, seen);
                pages += 1;
                seen = start.first_seq.unwrap();
                before_seq = Some(seen);
                if !start.has_more {
                    break;
                }
            }
            assert_eq!(seen, 0);
            assert!(pages >= 3, "{pages}");
        }
        let empty = pb::ReadHistoryRequest { log: Some(log("h")), before_seq: Some(0), ..Default::default() };
        let (start, events) = node.history(empty).await.unwrap();
        assert_eq!((start.first_seq, start.has_more, events.len()), (None, false, 0));
    });
}

#[test]
fn balanced_views_close_an_open_turn_and_write_nothing() {
    run(async {
        let mut node = Node::new().await;
        node.create("o", pb::Profile::Dsh).await;
        let mut events = start();
        events.extend([user("u", "hi"), calling("k")]);
        let appended = node.append("o", 0, events).await.unwrap();
        assert!(appended.reports.is_empty());
        let open = appended.head.unwrap().tail.unwrap().open_turn.unwrap();
        assert_eq!((open.turn, open.since_seq), (Some(1), 0));
        let revision = node.head("o").await.revision;
        let (physical, messages) = node.messages(log("o")).await.unwrap();
        assert_eq!((messages.len(), physical.pairing.unwrap().is_balanced), (2, false));
        let (start, messages) = node.messages(balanced("o")).await.unwrap();
        let basis = start.basis.unwrap();
        assert_eq!((basis.next_seq, basis.closers, messages.len()), (4, 3, 3));
        assert!(start.pairing.unwrap().is_balanced);
        assert_eq!(json(&messages[2].message)["content"][0]["isError"], true);
        let request = pb::ReadHistoryRequest { log: Some(balanced("o")), max_messages: 1, ..Default::default() };
        let (_, events) = node.history(request).await.unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.r#type.as_str()).collect();
        assert_eq!(kinds, ["assistant/message", "tool/result", "step/end", "turn/end"]);
        let stats = pb::GetSessionStatsRequest { log: Some(balanced("o")) };
        assert_eq!(node.client.views.get_session_stats(stats).await.unwrap().into_inner().steps, 1);
        // The same from a prefix, whose tail is read from the log.
        let prefix = pb::LogView { before_seq: Some(3), ..balanced("o") };
        let (start, _) = node.messages(prefix).await.unwrap();
        assert_eq!((start.basis.unwrap().closers, start.pairing.unwrap().is_balanced), (2, true));
        assert_eq!(node.head("o").await.revision, revision);
    });
}

#[test]
fn records_traces_and_figures_of_an_imported_session() {
    run(async {
        let mut node = Node::new().await;
        node.import("compaction-recovery", "r").await;
        let request = pb::ListEventRecordsRequest {
            log: Some(log("r")),
            types: vec!["user/message".to_owned(), "step/end".to_owned()],
            page_size: 2,
            ..Default::default()
        };
        let page = node.client.views.list_event_records(request.clone()).await.unwrap().into_inner();
        let statuses: Vec<_> = page.records.iter().map(|record| (record.seq, record.status())).collect();
        assert_eq!(statuses, [(4, pb::EventStatus::Shadowed), (16, pb::EventStatus::LogOnly)]);
        let request = pb::ListEventRecordsRequest { from_seq: page.next_from_seq.unwrap(), ..request };
        let page = node.client.views.list_event_records(request).await.unwrap().into_inner();
        let statuses: Vec<_> = page.records.iter().map(|record| (record.seq, record.status())).collect();
        assert_eq!(statuses, [(21, pb::EventStatus::Current), (29, pb::EventStatus::LogOnly)]);
        let request = pb::ListEventRecordsRequest {
            log: Some(log("r")),
            text: Some("ALPHA  marker".to_owned()),
            statuses: vec![pb::EventStatus::Shadowed.into()],
            ..Default::default()
        };
        let page = node.client.views.list_event_records(request).await.unwrap().into_inner();
        assert_eq!(page.records.iter().map(|record| record.seq).collect::<Vec<_>>(), [4]);
        let trace = pb::TraceEventRequest { log: Some(log("r")), seq: 4 };
        let trace = node.client.views.trace_event(trace).await.unwrap().into_inner();
        assert_eq!((trace.replacement_chain, trace.target.unwrap().status()), (vec![21], pb::EventStatus::Shadowed));
        assert!(trace.derived.contains(&21));
        let trace = pb::TraceEventRequest { log: Some(log("r")), seq: 21 };
        let trace = node.client.views.trace_event(trace).await.unwrap().into_inner();
        assert_eq!(trace.replaced, [4]);
        let none = pb::TraceEventRequest { log: Some(log("r")), seq: 31 };
        let none = node.client.views.trace_event(none).await.unwrap_err();
        assert_eq!(refusal(&none, &[]).1, "EVENT_NOT_FOUND");
        let stats = pb::GetSessionStatsRequest { log: Some(log("r")) };
        let stats = node.client.views.get_session_stats(stats).await.unwrap().into_inner();
        let attempts = stats.attempts.unwrap();
        assert_eq!((stats.turns, stats.steps), (1, 2));
        assert_eq!(attempts.committed, 2);
        assert_eq!(stats.committed, stats.own_committed);
    });
}

#[test]
fn a_family_is_traced_through_headers_and_says_what_is_missing() {
    run(async {
        let mut node = Node::new().await;
        for (id, parent) in [("root", None), ("mid", Some("root")), ("leaf", Some("mid")), ("lost", Some("gone"))] {
            let header = pb::Header {
                id: id.to_owned(),
                parent_session: parent.map(str::to_owned),
                created_at_ms: Some(1),
                ..Default::default()
            };
            let request = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
            node.client.sessions.create_session(request).await.unwrap();
        }
        let request = pb::TraceSessionRequest { session_id: "mid".to_owned(), ..Default::default() };
        let family = node.client.views.trace_session(request).await.unwrap().into_inner();
        let ids = |list: &[pb::Relative]| list.iter().map(|one| one.session_id.clone()).collect::<Vec<_>>();
        assert_eq!((ids(&family.ancestors), ids(&family.descendants)), (vec!["root".into()], vec!["leaf".into()]));
        assert!(family.is_complete && !family.is_truncated);
        let request = pb::TraceSessionRequest { session_id: "lost".to_owned(), ..Default::default() };
        let family = node.client.views.trace_session(request).await.unwrap().into_inner();
        assert_eq!((family.is_complete, family.missing_parent.as_deref()), (false, Some("gone")));
        let request = pb::TraceSessionRequest { session_id: "nobody".to_owned(), ..Default::default() };
        let none = node.client.views.trace_session(request).await.unwrap_err();
        assert_eq!(refusal(&none, &[]).1, "SESSION_NOT_FOUND");
        let tree = node.text(&["lineage", "leaf"]).await;
        assert!(tree.contains("root") && tree.contains("mid") && tree.contains("leaf"), "{tree}");
    });
}

#[test]
fn dsh_refuses_what_no_reader_would_open_and_changes_nothing() {
    run(async {
        let mut node = Node::new().await;
        node.create("d", pb::Profile::Dsh).await;
        node.append("d", 0, start()).await.unwrap();
        let head = node.head("d").await;
        let replace =
            |start, end| pb::SurfaceOp { op: Some(pb::surface_op::Op::Replace(pb::SurfaceReplace { start, end })) };
        let cases = [
            (event("user/message", r#"{"id":"x"}"#), "message-shape", "events[1].data.role"),
            (pb::NewEvent { surface_op: Some(replace(0, 0)), ..user("u", "x") }, "surface", "events[1].surface_op"),
            (
                pb::NewEvent { source_event_seqs: Some(pb::SourceEventSeqs { seqs: vec![9] }), ..user("u", "x") },
                "sources",
                "events[1].source_event_seqs",
            ),
            (event("turn/end", r#"{"turn":1}"#), "turn-bracket", "events[1].data"),
            (event("request/header", r#"{"header":{}}"#), "header-shape", "events[1].data.header.config"),
            (event("mode/set", "{}"), "retired-vocabulary", "events[1].type"),
        ];
        for (bad, rule, field) in cases {
            let refused = node.append("d", 2, vec![user("ok", "ok"), bad]).await.unwrap_err();
            let expected = ["3", field, rule].map(str::to_owned).to_vec();
            let found = refusal(&refused, &["seq", "field", "rule"]);
            assert_eq!(found, (Code::InvalidArgument, "INVALID_EVENT".to_owned(), expected), "{refused:?}");
            assert_eq!(node.head("d").await, head, "{rule}");
        }
        node.append("d", 2, vec![user("ok", "ok")]).await.unwrap();
        node.create("raw", pb::Profile::Raw).await;
        node.append("raw", 0, vec![event("user/message", r#"{"id":"x"}"#)]).await.unwrap();
    });
}

#[test]
fn broken_nesting_is_reported_and_counted_or_refused_by_the_strict_profile() {
    run(async {
        let mut node = Node::new().await;
        node.create("d", pb::Profile::Dsh).await;
        node.append("d", 0, start()).await.unwrap();
        let appended = node.append("d", 2, vec![result("nobody"), event("step/end", r#"{"turn":2,"step":1}"#)]).await;
        let appended = appended.unwrap();
        let reports: Vec<_> = appended.reports.iter().map(|r| (r.seq, r.rule.as_str(), r.field.as_str())).collect();
        assert_eq!(
            reports,
            [(2, "orphan-result", "data.message.source.callId"), (3, "bracket-mismatch", "data.turn"),]
        );
        assert_eq!(appended.head.unwrap().tail.unwrap().breaches, 2);
        let again = node.append("d", 2, vec![result("nobody"), event("step/end", r#"{"turn":2,"step":1}"#)]).await;
        let again = again.unwrap();
        assert!(again.deduplicated && again.reports.is_empty());
        // However much is wrong, the answer stays one that can be sent: the events are stored.
        let blocks = vec![r#"{"type":"tool-call"}"#; 5000].join(",");
        let data = String::from_utf8_lossy(&calling(&"k".repeat(100_000)).data)
            .replace(r#""content":["#, &format!(r#""content":[{blocks},"#));
        let appended = node.append("d", 4, vec![event("assistant/message", &data), result(&"x".repeat(100_000))]).await;
        let appended = appended.unwrap();
        assert_eq!(appended.reports.len(), 1000);
        assert!(appended.encoded_len() < 100_000);
        assert!(appended.head.unwrap().tail.unwrap().breaches > 5000);
        node.create("s", pb::Profile::DshStrict).await;
        node.append("s", 0, start()).await.unwrap();
        let head = node.head("s").await;
        let refused = node.append("s", 2, vec![user("u", "x"), result("nobody")]).await.unwrap_err();
        let expected = ["3", "events[1].data.message.source.callId", "orphan-result"].map(str::to_owned).to_vec();
        let found = refusal(&refused, &["seq", "field", "rule"]);
        assert_eq!(found, (Code::InvalidArgument, "BRACKET_VIOLATION".to_owned(), expected));
        assert_eq!(node.head("s").await, head);
        let calls =
            vec![calling("k"), event("tool/call", r#"{"turn":1,"step":1,"callId":"k","name":"n"}"#), result("k")];
        node.append("s", 2, calls).await.unwrap();
    });
}

#[test]
fn a_session_that_was_loaded_again_is_held_to_its_whole_log() {
    run(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut first = Node::over(store.clone(), Options::default()).await;
        first.create("s", pb::Profile::DshStrict).await;
        first.append("s", 0, start()).await.unwrap();
        first.append("s", 2, vec![calling("k")]).await.unwrap();
        let call = event("tool/call", r#"{"turn":1,"step":1,"callId":"k","name":"n"}"#);
        first.append("s", 3, vec![call, result("k")]).await.unwrap();
        let tail = first.head("s").await.tail;
        // Another service over the same store knows nothing but the log.
        let mut second = Node::over(store, Options::default()).await;
        assert_eq!(second.head("s").await.tail, None, "a look at the head reads no events");
        let refused = second.append("s", 5, vec![result("k")]).await.unwrap_err();
        assert_eq!(refusal(&refused, &["rule"]).2, ["orphan-result"]);
        assert_eq!(second.head("s").await.tail, tail);
        // A rewrite is compared with the event that it rewrites, which is in the store.
        let op = pb::SurfaceOp { op: Some(pb::surface_op::Op::Replace(pb::SurfaceReplace { start: 4, end: 4 })) };
        let sources = Some(pb::SourceEventSeqs { seqs: vec![4] });
        let rewrite = |mut event: pb::NewEvent| {
            (event.surface_op, event.source_event_seqs) = (Some(op), sources.clone());
            event
        };
        let refused = second.append("s", 5, vec![rewrite(result("other"))]).await.unwrap_err();
        assert_eq!(refusal(&refused, &["rule"]).2, ["surface"]);
        second.append("s", 5, vec![rewrite(result("k"))]).await.unwrap();
        let (_, messages) = second.messages(log("s")).await.unwrap();
        assert_eq!(messages.iter().map(|message| message.seq).collect::<Vec<_>>(), [2, 5]);
    });
}

#[test]
fn unknown_types_refuse_derived_views_by_name_unless_they_are_known_to_be_log_only() {
    run(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut node = Node::over(store.clone(), Options::default()).await;
        for (id, profile) in [("d", pb::Profile::Dsh), ("raw", pb::Profile::Raw)] {
            node.create(id, profile).await;
            let ignorable = pb::NewEvent { ignorable: true, ..event("plugin/y", "{}") };
            let events = vec![user("a", "a"), ignorable, event("plugin/x", "{}"), user("b", "b")];
            node.append(id, 0, events).await.unwrap();
            let expected = (
                Code::FailedPrecondition,
                "FORMAT_UNSUPPORTED".to_owned(),
                vec!["plugin/x".to_owned(), "2".to_owned()],
            );
            let facts = ["type", "seq"];
            assert_eq!(refusal(&node.messages(log(id)).await.unwrap_err(), &facts), expected);
            assert_eq!(refusal(&node.request(before(id, 4), None).await.unwrap_err(), &facts), expected);
            let stats = pb::GetSessionStatsRequest { log: Some(log(id)) };
            assert_eq!(refusal(&node.client.views.get_session_stats(stats).await.unwrap_err(), &facts), expected);
            // What is before it is readable, and so is a page without it.
            assert_eq!(node.messages(before(id, 2)).await.unwrap().1.len(), 1);
            let page = pb::ReadHistoryRequest { log: Some(log(id)), max_messages: 1, ..Default::default() };
            assert_eq!(node.history(page).await.unwrap().1.len(), 1);
            let page = pb::ReadHistoryRequest { log: Some(log(id)), ..Default::default() };
            assert_eq!(refusal(&node.history(page).await.unwrap_err(), &facts), expected);
        }
        let options = Options { log_only_types: vec!["plugin/x".to_owned()], ..Options::default() };
        let mut tolerant = Node::over(store, options).await;
        assert_eq!(tolerant.messages(log("d")).await.unwrap().1.len(), 2);
        assert_eq!(tolerant.messages(log("raw")).await.unwrap().1.len(), 2);
    });
}

#[test]
fn a_raw_log_is_viewed_as_far_as_it_folds() {
    run(async {
        let mut node = Node::new().await;
        node.create("w", pb::Profile::Raw).await;
        node.append("w", 0, vec![user("a", "a")]).await.unwrap();
        assert_eq!(node.messages(log("w")).await.unwrap().1.len(), 1);
        // The checkpoint of a raw log catches up with each view.
        let request = pb::AppendRequest {
            session_id: "w".to_owned(),
            first_seq: Some(1),
            events: vec![user("b", "b")],
            ack_level: Some(pb::AckLevel::Accepted.into()),
            ..Default::default()
        };
        node.client.log.append(request).await.unwrap();
        assert_eq!(node.messages(log("w")).await.unwrap().1.len(), 2, "a view sees what was accepted before it");
        let lost = pb::NewEvent { surface_op: None, ..user("c", "c") };
        node.append("w", 2, vec![lost]).await.unwrap();
        let refused = node.messages(log("w")).await.unwrap_err();
        assert_eq!(refusal(&refused, &["seq"]).2, ["2"]);
        assert_eq!(node.messages(before("w", 2)).await.unwrap().1.len(), 2);
    });
}

#[test]
fn the_commands_show_views_to_people_and_to_programs() {
    run(async {
        let node = Node::new().await;
        node.import("compaction-recovery", "c").await;
        let lines = |text: &str| text.lines().map(|line| json(line.as_bytes())).collect::<Vec<_>>();
        let messages = lines(&node.text(&["messages", "c", "--json"]).await);
        assert_eq!(messages.len(), 5);
        assert_eq!((&messages[0]["next_seq"], &messages[1]["seq"]), (&31.into(), &21.into()));
        assert_eq!(messages[2]["message"]["role"], "assistant");
        assert!(node.text(&["messages", "c"]).await.contains("COMPACTION RECOVERED"));
        let request = lines(&node.text(&["request", "c", "--dispatch", "1", "--json"]).await);
        assert!(request[0]["header"]["config"]["model"].is_string());
        assert!(node.text(&["request", "c", "--before", "8"]).await.contains("user"));
        let attempts = lines(&node.text(&["attempts", "c", "--json"]).await);
        assert_eq!(attempts.last().unwrap()["outcome"], "committed");
        assert!(node.text(&["attempts", "c", "--seq", "9"]).await.contains("tool-call"));
        let history = lines(&node.text(&["history", "c", "--messages", "1", "--json"]).await);
        assert_eq!(history.last().unwrap()["type"], "turn/end");
        assert!(node.text(&["history", "c"]).await.contains("compaction/start"));
        let trace = lines(&node.text(&["trace", "c", "4", "--json"]).await);
        assert_eq!(trace[0]["replacement_chain"][0], 21);
        assert!(node.text(&["trace", "c", "4"]).await.contains("shadowed"));
        let stats = lines(&node.text(&["stats", "c", "--json"]).await);
        assert_eq!(stats[0]["steps"], 2);
        assert!(node.text(&["stats", "c"]).await.contains("steps"));
        let family = lines(&node.text(&["lineage", "c", "--json"]).await);
        assert_eq!(family[0]["is_complete"], true);
        let refused = node.quipu(&["trace", "c", "99"]).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("EVENT_NOT_FOUND"));
    });
}

#[test]
fn the_schema_serves_the_views_by_reflection() {
    let set = prost_types::FileDescriptorSet::decode(pb::DESCRIPTOR).unwrap();
    let names: Vec<_> = set.file.iter().flat_map(|file| &file.service).map(|service| service.name()).collect();
    assert!(names.contains(&"ViewService"), "{names:?}");
}

#[test]
fn a_view_is_of_one_moment_while_the_log_grows() {
    run(async {
        for profile in [pb::Profile::Dsh, pb::Profile::Raw] {
            let mut node = Node::new().await;
            node.create("g", profile).await;
            let mut log_client = node.client.log.clone();
            let writer = tokio::spawn(async move {
                for seq in 0..300 {
                    let events = vec![user(&format!("u{seq}"), "x")];
                    let level = if seq % 3 == 0 { pb::AckLevel::Accepted } else { pb::AckLevel::Durable };
                    let request = pb::AppendRequest {
                        session_id: "g".to_owned(),
                        first_seq: Some(seq),
                        events,
                        ack_level: Some(level.into()),
                        ..Default::default()
                    };
                    log_client.append(request).await.unwrap();
                }
            });
            let mut last = 0;
            while last < 300 {
                let (start, messages) = node.messages(log("g")).await.unwrap();
                let next_seq = start.basis.unwrap().next_seq;
                assert_eq!((start.message_count, messages.len() as u64), (next_seq, next_seq));
                assert!(next_seq >= last, "{next_seq} after {last}");
                last = next_seq;
            }
            writer.await.unwrap();
        }
    });
}

#[test]
fn a_store_that_takes_no_more_writes_is_viewed_as_far_as_it_is_durable() {
    run(async {
        let store = FaultStore::new(Plan { fail_at: Some(3), ..Plan::default() });
        let mut node = Node::over(Arc::new(store), Options::default()).await;
        node.create("f", pb::Profile::Dsh).await;
        node.append("f", 0, vec![user("a", "a")]).await.unwrap();
        let refused = node.append("f", 1, vec![user("b", "b")]).await.unwrap_err();
        assert_eq!(refusal(&refused, &[]).1, "SYNC_FAILED");
        let (start, messages) = node.messages(log("f")).await.unwrap();
        assert_eq!((start.basis.unwrap().next_seq, messages.len()), (1, 1));
    });
}

#[test]
fn a_python_client_with_generated_stubs_sees_what_an_imported_session_means() {
    let Some(python) = python::with_modules("grpc, grpc_tools") else { return };
    run(async {
        let node = Node::new().await;
        node.import("compaction-recovery", "c").await;
        node.import("fork-parent", "96cf59c9-b347-48b9-b234-a5200913ad05").await;
        node.import("fork-child", "child").await;
        let stubs = tempfile::tempdir().unwrap();
        let mut client = Command::new(python);
        let address = node.address.trim_start_matches("http://");
        client.arg(file("tests/clients/python_views.py")).arg(address).arg(file("proto")).arg(stubs.path());
        let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("all good\n"));
    });
}
