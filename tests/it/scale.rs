//! Size and scale, after public cases: giant events, what can be written can be read, long logs, deep lineages.

use std::sync::Arc;

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::local::{self, LocalStore};
use tonic::{Code, Status};

use super::forks::{fork, fork_of};
use crate::support::process::Process;
use crate::support::{Calls, Node, all_of, batch, note, notes, refused, run, run_long, setting};

/// Resident memory of a process in bytes.
fn resident(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The events of a history page.
async fn history(client: &mut Client, id: &str, max_messages: u64, max_bytes: u64) -> Result<Vec<pb::Event>, Status> {
    let log = Some(pb::LogView { session_id: id.to_owned(), ..Default::default() });
    let request = pb::ReadHistoryRequest { log, max_messages, max_bytes, ..Default::default() };
    let mut frames = client.views.read_history(request).await?.into_inner();
    let mut events = Vec::new();
    while let Some(frame) = frames.message().await? {
        if let Some(pb::read_history_response::Frame::Events(frame)) = frame.frame {
            events.extend(frame.events);
        }
    }
    Ok(events)
}

fn user(n: u64, text: &str) -> pb::NewEvent {
    let data = format!(
        "{{\"id\":\"m{n}\",\"role\":\"user\",\"source\":{{\"kind\":\"user\"}},\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}}"
    );
    let append = pb::SurfaceOp { op: Some(pb::surface_op::Op::Append(pb::SurfaceAppend {})) };
    pb::NewEvent { r#type: "user/message".to_owned(), surface_op: Some(append), ..note(data) }
}

#[test]
fn a_tail_costs_the_memory_of_a_page_and_not_of_the_log_c30() {
    run_long(async {
        let events = setting("QUIPU_LARGE_EVENTS", 150);
        let dir = tempfile::tempdir().unwrap();
        let args = ["--spare-segments", "1", "--reserve-bytes", "0", "--index-cache-bytes", "8MiB"];
        let server = Process::start(dir.path(), &args);
        let mut client = server.client().await;
        client.make("big").await;
        client.make("small").await;
        client.append(batch("small", 0, notes("x", 10))).await.unwrap();
        let large = "x".repeat(1 << 20);
        for n in 0..events {
            client.append(batch("big", n, vec![user(n, &large)])).await.unwrap();
        }
        server.end();
        // Opened without reading what is in it; others are served while it is read.
        let server = Process::start(dir.path(), &args);
        let mut client = server.client().await;
        let before = resident(server.id());
        let tail = pb::ReadFromRequest { from_seq: events - 10, ..all_of("big") };
        let read = client.read(tail).await.unwrap();
        assert_eq!(read.events().len(), 10);
        assert_eq!(history(&mut client, "big", 5, 8 << 20).await.unwrap().len(), 5);
        fork(&mut client, fork_of("big", "child")).await.unwrap();
        let child = pb::ReadFromRequest { from_seq: events - 2, ..all_of("child") };
        assert_eq!(client.read(child).await.unwrap().events().len(), 3);
        let grown = resident(server.id()).saturating_sub(before);
        println!("{events} MiB in the log, {} MiB more in memory", grown >> 20);
        assert!(grown < 64 << 20, "{grown}");
        assert_eq!(client.read(all_of("small")).await.unwrap().events().len(), 10);
        server.end();
    });
}

#[test]
fn what_can_be_written_can_be_read_by_every_face_and_through_a_fork_c34() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("p").await;
        // The largest message that one event can hold.
        let largest = user(0, &"x".repeat((4 << 20) - user(0, "").data.len()));
        assert_eq!(largest.data.len(), 4 << 20);
        client.append(batch("p", 0, vec![largest.clone()])).await.unwrap();
        let over = user(1, &"x".repeat((4 << 20) - user(0, "").data.len() + 1));
        refused(client.append(batch("p", 1, vec![over])).await, Code::InvalidArgument, "EVENT_TOO_LARGE");
        fork(&mut client, fork_of("p", "c")).await.unwrap();
        for id in ["p", "c"] {
            let read = client.read(all_of(id)).await.unwrap();
            assert!(read.refusal.is_none() && read.events()[0].data == largest.data);
            assert_eq!(history(&mut client, id, 50, 0).await.unwrap()[0].data, largest.data);
            let log = Some(pb::LogView { session_id: id.to_owned(), ..Default::default() });
            let request = pb::DeriveMessagesRequest { log };
            let mut frames = client.views.derive_messages(request).await.unwrap().into_inner();
            let mut messages = 0;
            while let Some(frame) = frames.message().await.unwrap() {
                if let Some(pb::derive_messages_response::Frame::Messages(frame)) = frame.frame {
                    messages += frame.messages.len();
                }
            }
            assert_eq!(messages, 1);
        }
    });
}

#[test]
fn long_logs_deep_values_and_deep_lineages_cost_no_stack_c36() {
    run_long(async {
        let (turns, depth) = (setting("QUIPU_LONG_TURNS", 60), setting("QUIPU_DEEP_FORKS", 300));
        let dir = tempfile::tempdir().unwrap();
        let options = local::Options { segment_bytes: 64 << 20, ..Default::default() };
        let store = LocalStore::open(dir.path(), options).unwrap();
        let node = Node::over(Arc::new(store), Options::default()).await;
        let mut client = node.client().await;
        client.make("long").await;
        let chunk = |turn: u64| pb::NewEvent {
            r#type: "assistant/chunk".to_owned(),
            ..note(format!(
                "{{\"turn\":{turn},\"step\":1,\"chunk\":{{\"type\":\"text-delta\",\"index\":0,\"text\":\"a\"}}}}"
            ))
        };
        let bracket = |kind: &str, turn: u64| pb::NewEvent {
            r#type: format!("turn/{kind}"),
            ..note(format!("{{\"turn\":{turn},\"reason\":{{\"kind\":\"completed\"}}}}"))
        };
        for turn in 0..turns {
            let mut events = vec![bracket("start", turn + 1)];
            events.extend((0..998).map(|_| chunk(turn + 1)));
            events.push(bracket("end", turn + 1));
            client.append(batch("long", turn * 1000, events)).await.unwrap();
        }
        let nested = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        let deep = pb::NewEvent { ignorable: true, ..note(nested.clone()) };
        client.append(batch("long", turns * 1000, vec![deep])).await.unwrap();
        let start = std::time::Instant::now();
        let request = pb::GetSessionStatsRequest {
            log: Some(pb::LogView { session_id: "long".to_owned(), ..Default::default() }),
        };
        client.views.get_session_stats(request).await.unwrap();
        println!("{} events folded in {:?}", turns * 1000, start.elapsed());
        // Forks of forks: most of them at once, the last with events of their own in between.
        let mut parent = "long".to_owned();
        for n in 0..depth {
            let child = format!("f{n}");
            let answer = fork(&mut client, fork_of(&parent, &child)).await.unwrap();
            assert_eq!(answer.session.as_ref().unwrap().shared_events, answer.seed_length);
            if n + 100 >= depth {
                let next = answer.session.unwrap().head.unwrap().next_seq;
                client.append(batch(&child, next, notes("own", 1))).await.unwrap();
            }
            parent = child;
        }
        let read = client.read(pb::ReadFromRequest { from_seq: turns * 1000, ..all_of(&parent) }).await.unwrap();
        assert_eq!(read.events()[0].data, nested.as_bytes());
        let request = pb::TraceSessionRequest { session_id: parent, ..Default::default() };
        let family = client.views.trace_session(request).await.unwrap().into_inner();
        assert_eq!((family.ancestors.len() as u64, family.is_complete), (depth, true));
    });
}

#[test]
fn a_session_of_too_many_parts_is_detached_before_it_is_forked_again() {
    run_long(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("f0").await;
        client.append(batch("f0", 0, notes("x", 1))).await.unwrap();
        let mut n = 0_u64;
        let refusal = loop {
            let (parent, child) = (format!("f{n}"), format!("f{}", n + 1));
            match fork(&mut client, fork_of(&parent, &child)).await {
                Ok(answer) => {
                    let next = answer.session.unwrap().head.unwrap().next_seq;
                    client.append(batch(&child, next, notes("own", 1))).await.unwrap();
                }
                Err(status) => break status,
            }
            n += 1;
        };
        assert_eq!(n, 1024);
        refused(Err::<(), _>(refusal), Code::ResourceExhausted, "QUOTA");
        let parent = format!("f{n}");
        let request = pb::DetachRequest { session_id: parent.clone(), ..Default::default() };
        let mut steps = client.forks.detach(request).await.unwrap().into_inner();
        while steps.message().await.unwrap().is_some() {}
        let answer = fork(&mut client, fork_of(&parent, "after")).await.unwrap();
        let (old, new) = (client.read(all_of(&parent)).await.unwrap(), client.read(all_of("after")).await.unwrap());
        assert_eq!(new.events()[..answer.seed_length as usize], old.events()[..]);
    });
}
