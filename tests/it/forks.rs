//! Forks: where they end, what they share, what reaches whom, over gRPC and through kills.

use std::sync::Arc;

use quipu::model::json;
use quipu::replay::repair;
use quipu::rpc::client::{self, Client};
use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::Store;
use quipu::store::local::{self, LocalStore};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::support::gate::GateStore;
use crate::support::process::Process;
use crate::support::{
    Calls, Node, Random, all_of, batch, chain_after, journal_alone, note, notes, refusal, refused, run, run_long,
    setting, stored,
};

/// A fork at the head, to be changed by the caller.
pub fn fork_of(parent: &str, child: &str) -> pb::ForkRequest {
    pb::ForkRequest { session_id: parent.to_owned(), child_id: Some(child.to_owned()), ..Default::default() }
}

fn inclusive(parent: &str, child: &str, seq: u64) -> pb::ForkRequest {
    pb::ForkRequest {
        boundary: Some(pb::Boundary::Inclusive.into()),
        boundary_seq: Some(seq),
        ..fork_of(parent, child)
    }
}

pub async fn fork(client: &mut Client, request: pb::ForkRequest) -> Result<pb::ForkResponse, Status> {
    Ok(client.forks.fork(request).await?.into_inner())
}

async fn events_of(client: &mut Client, id: &str) -> Vec<pb::Event> {
    let read = client.read(all_of(id)).await.unwrap();
    assert!(read.refusal.is_none(), "{id}: {:?}", read.refusal);
    assert_eq!(chain_after(&read.start.chain_before, &read.events()), client.head(id).await.chain);
    read.events()
}

/// All messages of a detaching.
async fn detach(client: &mut Client, id: &str) -> Vec<pb::DetachResponse> {
    let request = pb::DetachRequest { session_id: id.to_owned(), ..Default::default() };
    let mut stream = client.forks.detach(request).await.unwrap().into_inner();
    let mut steps = Vec::new();
    while let Some(step) = stream.message().await.unwrap() {
        steps.push(step);
    }
    steps
}

fn event(kind: &str, data: &str) -> pb::NewEvent {
    pb::NewEvent { r#type: kind.to_owned(), ..note(data) }
}

fn turn(n: u64) -> Vec<pb::NewEvent> {
    let data = format!("{{\"turn\":{n}}}");
    let end = format!("{{\"turn\":{n},\"reason\":{{\"kind\":\"completed\"}}}}");
    vec![event("turn/start", &data), note(data), event("turn/end", &end)]
}

fn vectors(file: &str) -> Vec<Value> {
    let dir = std::env::var_os("QUIPU_VECTORS").map(std::path::PathBuf::from);
    let dir = dir.unwrap_or_else(|| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors"));
    let mut whole: Value = serde_json::from_str(&std::fs::read_to_string(dir.join(file)).unwrap()).unwrap();
    whole["cases"].as_array_mut().map(std::mem::take).unwrap()
}

fn new_event(value: &Value) -> pb::NewEvent {
    let surface = |op: &Value| pb::SurfaceOp {
        op: Some(match op.get("start") {
            None => pb::surface_op::Op::Append(pb::SurfaceAppend {}),
            Some(start) => pb::surface_op::Op::Replace(pb::SurfaceReplace {
                start: start.as_u64().unwrap(),
                end: op["end"].as_u64().unwrap(),
            }),
        }),
    };
    let seqs = |seqs: &Value| pb::SourceEventSeqs {
        seqs: seqs.as_array().unwrap().iter().map(|seq| seq.as_u64().unwrap()).collect(),
    };
    pb::NewEvent {
        time_ms: value["time"].as_i64().unwrap(),
        r#type: value["type"].as_str().unwrap().to_owned(),
        data: value["data"].to_string().into_bytes().into(),
        ignorable: value["ignorable"] == true,
        surface_op: value.get("surfaceOp").map(surface),
        source_event_seqs: value.get("sourceEventSeqs").map(seqs),
    }
}

/// Makes the parent of a case, under a name of its own; gives its events.
async fn parent(client: &mut Client, id: &str, (case, events): (&Value, Vec<pb::NewEvent>)) {
    let meta = &case["input"]["meta"];
    let text = |name: &str| meta[name].as_str().map(str::to_owned);
    let header = pb::Header {
        id: id.to_owned(),
        cwd: text("cwd"),
        parent_session: text("parentSession"),
        seed_length: meta["seedLength"].as_u64(),
        origin: text("origin").map(|_| pb::Origin::Subagent.into()),
        delegation_depth: meta["delegationDepth"].as_u64(),
        agent_preset: text("agentPreset"),
        ..Default::default()
    };
    let profile = Some(pb::Profile::Raw.into());
    let request = pb::CreateSessionRequest { header: Some(header), profile, ..Default::default() };
    client.sessions.create_session(request).await.unwrap();
    // What was only accepted belongs to the fork too, so that most cases leave a part of it there.
    let split = events.len() / 2;
    let (durable, accepted) = events.split_at(split);
    for (at, events, level) in [(0, durable, pb::AckLevel::Durable), (split, accepted, pb::AckLevel::Accepted)] {
        if !events.is_empty() {
            let request = batch(id, at as u64, events.to_vec());
            client.append(pb::AppendRequest { ack_level: Some(level.into()), ..request }).await.unwrap();
        }
    }
}

/// The header of a child in the words of the vectors.
fn header_of(session: &pb::Session) -> Value {
    let header = session.header.clone().unwrap();
    let mut value = json!({"version": 0, "id": "CHILD", "parentSession": "SOURCE", "seedLength": header.seed_length});
    if let Some(cwd) = header.cwd {
        value["cwd"] = json!(cwd);
    }
    assert!(header.origin.is_none() && header.delegation_depth.is_none() && header.agent_preset.is_none());
    value
}

/// The child is what the answer says, and its prefix is the parent's.
async fn check_child(client: &mut Client, (parent, child): (&str, &str), answer: &pb::ForkResponse) -> Vec<pb::Event> {
    let (of_parent, of_child) = (events_of(client, parent).await, events_of(client, child).await);
    let seed = answer.seed_length as usize;
    assert_eq!(of_child[..seed], of_parent[..seed], "{child}");
    let start = quipu::codec::Chain::START.0;
    assert_eq!(chain_after(&start, &of_parent[..seed]), answer.chain_at_boundary);
    assert_eq!(answer.session.as_ref().unwrap().header.as_ref().unwrap().parent_session.as_deref(), Some(parent));
    of_child
}

#[test]
fn core_fork_vectors_hold_over_the_wire() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let (cases, mut unsayable) = (vectors("fork_core.json"), 0);
        for (n, case) in cases.iter().enumerate() {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let (id, child) = (format!("source-{n}"), format!("child-{n}"));
            let events: Vec<_> = input["events"].as_array().unwrap().iter().map(new_event).collect();
            if input["source"] != "missing-id" {
                parent(&mut client, &id, (case, events)).await;
            }
            let mut request = fork_of(&id, &child);
            for taken in input["existing"].as_array().into_iter().flatten() {
                client.make(taken.as_str().unwrap()).await;
                request.child_id = input["childId"].as_str().map(str::to_owned);
            }
            match input["source"].as_str() {
                // An object that is not live any more, and one that another took the name of.
                Some("detached") => drop(client.remove(&id).await.unwrap()),
                Some("stale-object") => request.incarnation = Some(vec![7; 16].into()),
                _ => {}
            }
            if let Some(boundary) = input.get("boundary") {
                match boundary.as_u64() {
                    Some(boundary) => {
                        request = pb::ForkRequest {
                            child_id: request.child_id,
                            incarnation: request.incarnation,
                            ..inclusive(&id, "", boundary)
                        }
                    }
                    // What is no seq cannot be said on this wire.
                    None => {
                        unsayable += 1;
                        assert_ne!(expected["ok"], true);
                        continue;
                    }
                }
            }
            let answer = fork(&mut client, request).await;
            let refusal = match answer {
                Ok(answer) => {
                    let events = check_child(&mut client, (&id, &child), &answer).await;
                    let found = json!({
                        "ok": true, "boundary": answer.boundary_seq, "seedLength": answer.seed_length,
                        "childLength": events.len(), "endSeedAppended": events.len() as u64 > answer.seed_length,
                        "lastType": events.last().unwrap().r#type, "prefixEqual": true,
                        "header": header_of(&answer.session.unwrap()),
                    });
                    assert_eq!(&found, expected, "{name}");
                    continue;
                }
                Err(status) => refusal(status),
            };
            assert_eq!(expected["ok"], false, "{name}: {}", refusal.reason);
            let wanted = match expected["code"].as_str().unwrap() {
                "INVALID_BOUNDARY" => ("FORK_BOUNDARY", Some("missing")),
                "OPEN_TURN" => ("FORK_BOUNDARY", Some("open-turn")),
                "SESSION_NOT_FOUND" => ("SESSION_NOT_FOUND", None),
                "SESSION_NOT_LIVE" => ("INCARNATION_MISMATCH", None),
                "SESSION_ALREADY_EXISTS" => ("SESSION_EXISTS", None),
                other => panic!("{name}: {other}"),
            };
            let rule = wanted.1.map(|_| refusal.fact("rule"));
            assert_eq!((refusal.reason.as_str(), rule.as_deref()), wanted, "{name}");
            if wanted.1 == Some("open-turn") {
                let message = expected["message"].as_str().unwrap();
                assert!(message.ends_with(&format!("open turn {}", refusal.fact("turn"))), "{name}: {message}");
            }
        }
        println!("fork_core.json: {} cases, {unsayable} of them no request of this wire", cases.len());
        assert!(unsayable < 8);
    });
}

#[test]
fn host_fork_vectors_hold_over_the_wire() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let cases = vectors("fork_host.json");
        for (n, case) in cases.iter().enumerate() {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let (id, child) = (format!("source-{n}"), format!("child-{n}"));
            let mut events: Vec<_> = input["events"].as_array().unwrap().iter().map(new_event).collect();
            if input["source"] == "cold" {
                // Whoever takes a session over closes its open turn first.
                let stored = stored(0, &events).into_iter().map(|event| client::event(event).unwrap());
                let closers = repair::closers(&stored.collect::<Vec<_>>());
                events.extend(closers.into_iter().map(|event| client::new_event(event.body)));
            }
            let mut of_parent = case.clone();
            of_parent["input"]["meta"]["cwd"] = json!("/proj");
            let is_there = expected["code"] != "session-not-found";
            if is_there {
                parent(&mut client, &id, (&of_parent, events)).await;
            }
            let at = input["atSeq"].as_u64();
            let kind = if at.is_some() { pb::Boundary::Anchor } else { pb::Boundary::LastTurn };
            let request = pb::ForkRequest { boundary: Some(kind.into()), boundary_seq: at, ..fork_of(&id, &child) };
            let answer = match fork(&mut client, request).await {
                Ok(answer) => answer,
                Err(status) => {
                    let refusal = refusal(status);
                    let code = expected["code"].as_str().unwrap();
                    let message = expected["message"].as_str().unwrap();
                    match code {
                        "session-not-found" => assert_eq!(refusal.reason, "SESSION_NOT_FOUND", "{name}"),
                        "fork-unavailable" => {
                            assert_eq!(refusal.reason, "FORK_BOUNDARY", "{name}");
                            let is_late = message.contains("has not completed the turn");
                            let rule = if is_late { "incomplete-turn" } else { "no-completed-turn" };
                            assert_eq!(refusal.fact("rule"), rule, "{name}");
                        }
                        other => panic!("{name}: {other}"),
                    }
                    continue;
                }
            };
            let events = check_child(&mut client, (&id, &child), &answer).await;
            if expected["code"] == "workspace-attach-failed" {
                // The fork is there; workspaces are the host's.
                assert_eq!(expected["childPublished"], true);
                continue;
            }
            let seed = &events[..answer.seed_length as usize];
            let tail: Vec<_> = seed.iter().skip(seed.len().saturating_sub(3)).map(|event| &event.r#type).collect();
            let found = json!({
                "ok": true, "boundary": answer.boundary_seq, "seedLength": answer.seed_length,
                "childLength": events.len(), "seedTail": tail, "header": header_of(&answer.session.unwrap()),
            });
            assert_eq!(&found, expected, "{name}");
        }
        println!("fork_host.json: {} cases", cases.len());
    });
}

#[test]
fn a_fork_request_is_repeatable_and_another_one_for_the_same_child_is_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("p").await;
        let title = event("session/title", r#"{"title":"T"}"#);
        let preset = event("agent-preset/selected", r#"{"agentPreset":"coder"}"#);
        client.append(batch("p", 0, [turn(1), vec![title, preset]].concat())).await.unwrap();
        let revision = client.head("p").await.revision;
        let request = pb::ForkRequest {
            expected_parent_revision: Some(revision.clone()),
            cwd: Some("/elsewhere".to_owned()),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            keep_agent_preset: true,
            ..fork_of("p", "c")
        };
        let first = fork(&mut client, request.clone()).await.unwrap();
        assert!(!first.already_existed);
        let session = first.session.clone().unwrap();
        let header = session.header.clone().unwrap();
        assert_eq!((header.cwd.as_deref(), header.agent_preset.as_deref()), (Some("/elsewhere"), Some("coder")));
        assert_eq!(header.labels["k"], "v");
        assert_eq!((session.title.as_deref(), session.events, session.shared_events), (Some("T"), 6, 5));
        assert_eq!(client.get("p").await.unwrap().forks, Some(1));
        // The parent moves on, and goes.
        client.append(batch("p", 5, notes("later", 3))).await.unwrap();
        for _ in 0..2 {
            let again = fork(&mut client, request.clone()).await.unwrap();
            assert!(again.already_existed);
            assert_eq!((again.seed_length, again.chain_at_boundary), (5, first.chain_at_boundary.clone()));
            let _ = client.remove("p").await;
        }
        client.append(batch("c", 6, notes("own", 1))).await.unwrap();
        assert!(fork(&mut client, request.clone()).await.unwrap().already_existed);
        for other in [
            pb::ForkRequest { cwd: None, ..request.clone() },
            pb::ForkRequest { keep_agent_preset: false, ..request.clone() },
            pb::ForkRequest { labels: Default::default(), ..request.clone() },
            pb::ForkRequest { expected_parent_revision: None, ..request.clone() },
            inclusive("p", "c", 4),
            fork_of("c", "c"),
        ] {
            refused(fork(&mut client, other).await, Code::AlreadyExists, "SESSION_EXISTS");
        }
        let gone = pb::ForkRequest { child_id: Some("d".to_owned()), ..request.clone() };
        refused(fork(&mut client, gone).await, Code::NotFound, "SESSION_NOT_FOUND");
        let stale = pb::ForkRequest { session_id: "c".to_owned(), child_id: None, ..request };
        let refusal = refused(fork(&mut client, stale).await, Code::Aborted, "REVISION_CONFLICT");
        assert_eq!(refusal.conflict().head.unwrap().next_seq, 7);
        let named = fork(&mut client, pb::ForkRequest { child_id: None, ..fork_of("c", "") }).await.unwrap();
        assert!(named.session.unwrap().header.unwrap().id.starts_with("session-"));
        refused(fork(&mut client, fork_of("e", "e")).await, Code::NotFound, "SESSION_NOT_FOUND");
    });
}

#[test]
fn a_wrong_fork_request_names_its_field() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("p").await;
        let anchor = Some(pb::Boundary::Anchor.into());
        for (request, field) in [
            (pb::ForkRequest { boundary: Some(0), ..fork_of("p", "c") }, "boundary"),
            (pb::ForkRequest { boundary: Some(9), ..fork_of("p", "c") }, "boundary"),
            (pb::ForkRequest { boundary: anchor, ..fork_of("p", "c") }, "boundary_seq"),
            (pb::ForkRequest { boundary_seq: Some(1), ..fork_of("p", "c") }, "boundary_seq"),
            (pb::ForkRequest { boundary_seq: Some(1 << 60), boundary: anchor, ..fork_of("p", "c") }, "boundary_seq"),
            (pb::ForkRequest { cwd: Some("relative".to_owned()), ..fork_of("p", "c") }, "header"),
            (
                pb::ForkRequest { agent_preset: Some("a".to_owned()), keep_agent_preset: true, ..fork_of("p", "c") },
                "keep_agent_preset",
            ),
            (pb::ForkRequest { incarnation: Some(vec![1].into()), ..fork_of("p", "c") }, "incarnation"),
        ] {
            let refusal = refused(fork(&mut client, request).await, Code::InvalidArgument, "INVALID_REQUEST");
            assert_eq!(refusal.fact("field"), field);
        }
        refused(fork(&mut client, fork_of("p", "a\n")).await, Code::InvalidArgument, "INVALID_ID");
        refused(client.get("c").await, Code::NotFound, "SESSION_NOT_FOUND");
    });
}

#[test]
fn a_fork_is_one_commit_with_what_its_parent_had_accepted() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let node = Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        let header = pb::Header { id: "p".to_owned(), ..Default::default() };
        let request = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
        client.sessions.create_session(request).await.unwrap();
        gate.shut();
        let accepted = Some(pb::AckLevel::Accepted.into());
        for n in 0..3 {
            let request = pb::AppendRequest { ack_level: accepted, ..batch("p", n * 3, turn(n + 1)) };
            client.append(request).await.unwrap();
        }
        let before = gate.position();
        let mut other = node.client().await;
        let forked = tokio::spawn(async move { fork(&mut other, inclusive("p", "c", 5)).await });
        gate.reached().await;
        // Before it is durable nobody sees it; whoever writes to it waits.
        let appended = {
            let mut client = node.client().await;
            tokio::spawn(async move { client.append(batch("c", 7, notes("own", 1))).await })
        };
        let repeated = {
            let mut client = node.client().await;
            let marker = pb::NewEvent { time_ms: 0, ..event("session/end-seed", "{}") };
            tokio::spawn(async move { client.append(batch("c", 6, vec![marker])).await })
        };
        assert_eq!(gate.position(), before);
        gate.open();
        let answer = forked.await.unwrap().unwrap();
        assert_eq!(answer.seed_length, 6);
        appended.await.unwrap().unwrap();
        refused(repeated.await.unwrap(), Code::Aborted, "SEQ_CONFLICT");
        let events = check_child(&mut client, ("p", "c"), &answer).await;
        assert_eq!((events.len(), client.head("p").await.durable_next_seq), (8, 9));
    });
}

#[test]
fn a_late_result_does_not_reach_the_child_c37() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let header = pb::Header { id: "p".to_owned(), ..Default::default() };
        let request = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
        client.sessions.create_session(request).await.unwrap();
        client.append(batch("p", 0, [turn(1), turn(2)[..1].to_vec()].concat())).await.unwrap();
        refused(fork(&mut client, fork_of("p", "x")).await, Code::FailedPrecondition, "FORK_BOUNDARY");
        refused(fork(&mut client, inclusive("p", "x", 3)).await, Code::FailedPrecondition, "FORK_BOUNDARY");
        fork(&mut client, inclusive("p", "c", 2)).await.unwrap();
        let result = r#"{"turn":2,"step":1,"message":{"id":"r","role":"user","source":{"kind":"tool","callId":"ca"},
            "content":[{"type":"tool-result","toolCallId":"ca","content":[]}]}}"#;
        let append = Some(pb::SurfaceOp { op: Some(pb::surface_op::Op::Append(pb::SurfaceAppend {})) });
        let late = pb::NewEvent { surface_op: append, ..event("tool/result", result) };
        client.append(batch("p", 4, vec![late.clone()])).await.unwrap();
        assert_eq!(events_of(&mut client, "c").await.len(), 4);
        // To the child it is a stranger, and the answer says so.
        let reports = client.append(batch("c", 4, vec![late])).await.unwrap().reports;
        assert!(reports.iter().any(|report| report.rule == "orphan-result"), "{reports:?}");
        assert_eq!(events_of(&mut client, "p").await.len(), 5);
    });
}

#[test]
fn a_child_has_every_event_of_the_prefix_and_counts_its_own_work_c39_c43_c105() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path(), local::Options { segment_bytes: 64 << 20, ..Default::default() });
        let node = Node::over(Arc::new(store.unwrap()), Options::default()).await;
        let mut client = node.client().await;
        client.make("p").await;
        let mut sent = Vec::new();
        while sent.len() < 5000 {
            let large = if sent.len() == 1000 { "x".repeat(3 << 20) } else { String::new() };
            let events: Vec<_> = (0..500)
                .map(|n| pb::NewEvent {
                    ignorable: n % 3 == 0,
                    ..event("plugin/any", &format!("{{\"n\":{n},\"x\":\"{large}\"}}"))
                })
                .take(if large.is_empty() { 500 } else { 1 })
                .collect();
            client.append(batch("p", sent.len() as u64, events.clone())).await.unwrap();
            sent.extend(events);
        }
        let end = sent.len() as u64;
        for (name, seq) in [("a", end - 1), ("b", 2500), ("c", 0)] {
            let answer = fork(&mut client, inclusive("p", name, seq)).await.unwrap();
            assert_eq!((answer.seed_length, answer.boundary_seq), (seq + 1, Some(seq)));
            let events = events_of(&mut client, name).await;
            assert_eq!(events[..=seq as usize], stored(0, &sent)[..=seq as usize]);
            client.append(batch(name, seq + 2, notes(name, 10))).await.unwrap();
        }
        // Every event is somebody's own exactly once.
        let request = pb::ListSessionsRequest::default();
        let sessions = client.sessions.list_sessions(request).await.unwrap().into_inner().sessions;
        let own: u64 = sessions.iter().map(|session| session.events - session.shared_events).sum();
        assert_eq!(own, end + 3 * 11);
        let parent = sessions.iter().find(|session| session.header.as_ref().unwrap().id == "p").unwrap();
        assert_eq!(parent.forks, Some(3));
        assert!(parent.bytes > 3 << 20 && sessions.iter().all(|one| one.bytes < 2000 || one.shared_events == 0));
    });
}

#[test]
fn a_fork_that_was_answered_survives_a_kill_together_with_what_it_shares_c41() {
    run_long(async {
        let mut random = Random::new("QUIPU_FORK_KILL_SEED");
        let dir = tempfile::tempdir().unwrap();
        let args = ["--segment-bytes", "24MiB", "--spare-segments", "1", "--accept-window", "10s"];
        let mut answered: Vec<(String, u64)> = Vec::new();
        for round in 0..setting("QUIPU_FORK_KILLS", 8) {
            let mut server = Process::start(dir.path(), &args);
            let mut client = server.client().await;
            for (name, seed_length) in &answered {
                let events = events_of(&mut client, name).await;
                assert_eq!(events.len() as u64, seed_length + 1, "{name}");
            }
            let (parent, child) = (format!("p{round}"), format!("c{round}"));
            client.make(&parent).await;
            let accepted = Some(pb::AckLevel::Accepted.into());
            client.append(pb::AppendRequest { ack_level: accepted, ..batch(&parent, 0, turn(1)) }).await.unwrap();
            client.append(pb::AppendRequest { ack_level: accepted, ..batch(&parent, 3, turn(2)) }).await.unwrap();
            let forked = fork(&mut client, fork_of(&parent, &child));
            if round % 2 == 0 {
                assert_eq!(forked.await.unwrap().seed_length, 6);
                server.kill();
                answered.push((child, 6));
            } else {
                let killed = async {
                    tokio::time::sleep(std::time::Duration::from_micros(random.below(3000))).await;
                    server.kill();
                };
                if let (Ok(answer), ()) = tokio::join!(forked, killed) {
                    answered.push((child, answer.seed_length));
                } else {
                    let server = Process::start(dir.path(), &args);
                    let mut client = server.client().await;
                    // Whole or absent.
                    if client.get(&child).await.is_ok() {
                        assert_eq!(events_of(&mut client, &child).await.len(), 7);
                        assert_eq!(events_of(&mut client, &parent).await.len(), 6);
                    }
                    server.end();
                }
            }
        }
    });
}

#[test]
fn a_detached_child_stands_alone_and_tells_how_far_it_is() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let options = local::Options { segment_bytes: 64 << 20, ..Default::default() };
        let store: Arc<dyn Store> = Arc::new(LocalStore::open(dir.path(), options.clone()).unwrap());
        let node = Node::over(store.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("p").await;
        for n in 0..30 {
            client
                .append(batch("p", n * 100, (0..100).map(|_| note(format!("\"{}\"", "x".repeat(1500)))).collect()))
                .await
                .unwrap();
        }
        fork(&mut client, inclusive("p", "c", 2549)).await.unwrap();
        fork(&mut client, inclusive("c", "d", 2550)).await.unwrap();
        let before = events_of(&mut client, "c").await;
        let head = client.head("c").await;
        // A client that goes away after the first message; the next one goes on.
        {
            let request = pb::DetachRequest { session_id: "c".to_owned(), ..Default::default() };
            let mut stream = client.forks.detach(request).await.unwrap().into_inner();
            let first = stream.message().await.unwrap().unwrap();
            assert!(first.events > 0 && first.events < 2550 && !first.done);
        }
        let steps = detach(&mut client, "c").await;
        assert!(steps.windows(2).all(|pair| pair[0].events <= pair[1].events));
        let last = steps.last().unwrap();
        assert!(last.done && last.events == 2550 && last.events_total == 2550, "{last:?}");
        let session = client.get("c").await.unwrap();
        assert_eq!((session.shared_events, session.head.unwrap().chain), (0, head.chain));
        assert!(detach(&mut client, "c").await.iter().all(|step| step.done), "nothing is left to do");
        client.remove("p").await.unwrap();
        client.remove("d").await.unwrap();
        let receipts = super::admin::purge(&mut client, false).await;
        // The other child had no event of its own.
        assert_eq!(receipts.iter().map(|receipt| receipt.events).sum::<u64>(), 3000);
        assert_eq!(events_of(&mut client, "c").await, before);
        // Also with another index.
        store.close();
        let copy = journal_alone(dir.path());
        let node = Node::over(Arc::new(LocalStore::open(copy.path(), options).unwrap()), Options::default()).await;
        let mut client = node.client().await;
        assert_eq!(events_of(&mut client, "c").await, before);
        assert_eq!(client.get("c").await.unwrap().shared_events, 0);
    });
}

/// The boundary search looks at the turns next to the boundary; this holds it to the rule that looks at everything.
#[test]
fn every_boundary_of_random_logs_is_that_of_the_whole_log() {
    use quipu::model::Seq;
    use quipu::replay::fork::{ForkAt, cut};
    run(async {
        let mut random = Random::new("QUIPU_BOUNDARY_SEED");
        let node = Node::memory().await;
        let mut client = node.client().await;
        let mut forks = 0;
        for round in 0..60 {
            let id = format!("p{round}");
            client.make(&id).await;
            let kinds = ["turn/start", "turn/end", "note", "session/end-seed", "session/title", "note"];
            let length = random.below(40);
            let events: Vec<_> = (0..length)
                .map(|n| event(kinds[random.below(6) as usize], &format!("{{\"turn\":{n},\"title\":\"{n}\"}}")))
                .collect();
            let level = if round % 2 == 0 { pb::AckLevel::Accepted } else { pb::AckLevel::Durable };
            for (at, piece) in (0..).step_by(3).zip(events.chunks(3)) {
                let request = batch(&id, at, piece.to_vec());
                client.append(pb::AppendRequest { ack_level: Some(level.into()), ..request }).await.unwrap();
            }
            let whole: Vec<_> = stored(0, &events).into_iter().map(|event| client::event(event).unwrap()).collect();
            for n in 0..length + 3 {
                let seq = Seq::new(n).unwrap();
                let asks = [
                    (ForkAt::Head, pb::Boundary::Head, None),
                    (ForkAt::LastTurn, pb::Boundary::LastTurn, None),
                    (ForkAt::Inclusive(seq), pb::Boundary::Inclusive, Some(n)),
                    (ForkAt::Anchor(seq), pb::Boundary::Anchor, Some(n)),
                ];
                for (at, boundary, boundary_seq) in asks {
                    let boundary = Some(boundary.into());
                    let request = pb::ForkRequest { boundary, boundary_seq, child_id: None, ..fork_of(&id, "") };
                    match (cut(&whole, at), fork(&mut client, request).await) {
                        (Ok(cut), Ok(answer)) => {
                            let child = answer.session.unwrap();
                            let is_marked = child.events == answer.seed_length;
                            assert_eq!(
                                (answer.seed_length, is_marked),
                                (cut.seed_length.get(), cut.is_marked),
                                "{at:?} of {whole:?}"
                            );
                            let title =
                                whole[..answer.seed_length as usize].iter().rfind(|e| &*e.body.kind == "session/title");
                            let title = title.map(|event| {
                                json::parse(&event.body.data).unwrap().root().get("title").unwrap().to_text().unwrap()
                            });
                            assert_eq!(child.title, title);
                            assert!(!child.turn_open);
                            forks += 1;
                        }
                        (Err(error), Err(status)) => assert_eq!(status.message(), error.to_string()),
                        (cut, answer) => panic!("{at:?}: {cut:?} {answer:?} of {whole:?}"),
                    }
                }
            }
        }
        println!("{forks} forks");
    });
}

#[test]
fn ten_thousand_forks_of_one_parent_take_little_and_list_fast() {
    run_long(async {
        let count = setting("QUIPU_FORKS", 500);
        let dir = tempfile::tempdir().unwrap();
        let options = local::Options { segment_bytes: 64 << 20, ..Default::default() };
        let store = Arc::new(LocalStore::open(dir.path(), options).unwrap());
        let node = Node::over(store.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("p").await;
        for n in 0..10 {
            client.append(batch("p", n * 1000, notes("p", 1000))).await.unwrap();
        }
        store.checkpoint();
        let used = |what: &str| {
            let files =
                std::fs::read_dir(dir.path().join(what)).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
            files.map(|meta| std::os::unix::fs::MetadataExt::blocks(&meta) * 512).sum::<u64>()
        };
        let before = used("index");
        let mut running = tokio::task::JoinSet::new();
        for worker in 0..8 {
            let mut client = client.clone();
            running.spawn(async move {
                for n in (worker..count).step_by(8) {
                    fork(&mut client, fork_of("p", &format!("c{n}"))).await.unwrap();
                }
            });
        }
        running.join_all().await;
        store.checkpoint();
        // A fork is one record in a group of whole sectors.
        let index = used("index").saturating_sub(before);
        println!("{count} forks: {} KiB more of index", index >> 10);
        assert!(index < count * 5000 + (8 << 20));
        let start = std::time::Instant::now();
        let request = pb::ListSessionsRequest { page_size: 1000, ..Default::default() };
        let page = client.sessions.list_sessions(request).await.unwrap().into_inner();
        println!("a page of {} took {:?}", page.sessions.len(), start.elapsed());
        assert_eq!(client.get("p").await.unwrap().forks, Some(count));
        let last = format!("c{}", count - 1);
        assert_eq!(events_of(&mut client, &last).await.len(), 10_001);
        let request = pb::TraceSessionRequest { session_id: last, ..Default::default() };
        client.views.trace_session(request).await.unwrap();
    });
}

#[test]
fn a_fork_costs_the_same_for_a_parent_of_ten_events_and_of_many() {
    run_long(async {
        let largest = setting("QUIPU_FORK_PARENT", 30_000);
        let dir = tempfile::tempdir().unwrap();
        let options = local::Options { segment_bytes: 64 << 20, ..Default::default() };
        let local = Arc::new(LocalStore::open(dir.path(), options).unwrap());
        let gate = Arc::new(GateStore::over(local.clone()));
        let node = Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        let mut costs = Vec::new();
        for size in [10, 3000, largest] {
            let id = format!("p{size}");
            client.make(&id).await;
            let events: Vec<_> = (0..size / 10 + 1).flat_map(|n| [turn(n + 1), notes("x", 7)].concat()).collect();
            for (n, piece) in (0..).zip(events.chunks(1000)) {
                client.append(batch(&id, n * 1000, piece.to_vec())).await.unwrap();
            }
            local.checkpoint();
            let end = events.len() as u64;
            // An open turn at the end, so that the search has something to do.
            client.append(batch(&id, end, turn(0)[..2].to_vec())).await.unwrap();
            let (mut work, mut times) = (Vec::new(), Vec::new());
            for (name, boundary, seq) in [
                ("last", pb::Boundary::LastTurn, None),
                ("anchor", pb::Boundary::Anchor, Some(end - 9)),
                ("inclusive", pb::Boundary::Inclusive, Some(end - 1)),
            ] {
                for n in 0..20 {
                    let boundary = Some(boundary.into());
                    let request =
                        pb::ForkRequest { boundary, boundary_seq: seq, ..fork_of(&id, &format!("{id}{name}{n}")) };
                    gate.work();
                    let start = std::time::Instant::now();
                    let answer = fork(&mut client, request).await.unwrap();
                    times.push(start.elapsed());
                    assert_eq!(answer.seed_length, end);
                    work.push(gate.work());
                }
            }
            times.sort();
            println!(
                "a parent of {size}: {:?} at best, {:?} at the median, {:?}",
                times[0],
                times[times.len() / 2],
                work[0]
            );
            assert!(work.iter().all(|work| work.commits == 1), "one sync: {work:?}");
            costs.push(work.iter().map(|work| work.reads).max().unwrap());
        }
        println!("reads for a fork: {costs:?}");
        assert!(costs[2] <= costs[0].max(4), "{costs:?}");
    });
}

#[test]
fn an_owned_parent_is_forked_by_anybody_or_under_its_current_epoch_and_nobody_owns_the_child() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("p").await;
        client.append(batch("p", 0, turn(1))).await.unwrap();
        let epoch = {
            let request =
                pb::PrepareRequest { session_id: "p".to_owned(), holder: "host".to_owned(), ..Default::default() };
            let mut frames = client.owners.prepare(request).await.unwrap().into_inner();
            while frames.message().await.unwrap().is_some() {}
            client.head("p").await.owner.unwrap().epoch
        };
        let publish = pb::PublishRequest { session_id: "p".to_owned(), epoch, ..Default::default() };
        client.owners.publish(publish).await.unwrap();
        fork(&mut client, fork_of("p", "stranger")).await.unwrap();
        fork(&mut client, pb::ForkRequest { epoch: Some(epoch), ..fork_of("p", "own") }).await.unwrap();
        let late = pb::ForkRequest { epoch: Some(epoch + 1), ..fork_of("p", "late") };
        refused(fork(&mut client, late).await, Code::FailedPrecondition, "FENCED");
        refused(client.get("late").await, Code::NotFound, "SESSION_NOT_FOUND");
        // The same request under another epoch is the same request.
        assert!(fork(&mut client, fork_of("p", "own")).await.unwrap().already_existed);
        assert_eq!(client.head("own").await.owner, None);
        client.append(batch("own", 4, notes("x", 1))).await.unwrap();
        // What an owner works on is never too old.
        let request = pb::RetainRequest { keep_ms: Some(0), ..Default::default() };
        let mut stream = client.admin.retain(request).await.unwrap().into_inner();
        let mut kept = None;
        while let Some(step) = stream.message().await.unwrap() {
            let of_parent = |one: &&pb::AgedSession| one.session.as_ref().unwrap().header.as_ref().unwrap().id == "p";
            kept = step.sessions.iter().find(of_parent).map(|one| one.kept()).or(kept);
        }
        assert_eq!(kept, Some(pb::KeptReason::Owned));
    });
}
