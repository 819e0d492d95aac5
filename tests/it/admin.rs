//! Space: purges with receipts, retention, usage.

use std::sync::Arc;
use std::time::Duration;

use quipu::model::Namespace;
use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::service::{Options, Retention};
use quipu::store::Store;
use quipu::store::local::{self, LocalStore};
use quipu::store::memory::MemoryStore;
use tonic::Code;

use super::forks::{fork, fork_of};
use crate::support::process::Process;
use crate::support::{
    Calls, Node, all_of, batch, chain_after, journal_alone, note, notes, refused, run, run_long, setting,
};

/// All receipts of a purge.
pub async fn purge(client: &mut Client, dry_run: bool) -> Vec<pb::PurgeReceipt> {
    let request = pb::PurgeRequest { dry_run, ..Default::default() };
    let mut stream = client.admin.purge(request).await.unwrap().into_inner();
    let (mut receipts, mut is_done) = (Vec::new(), false);
    while let Some(step) = stream.message().await.unwrap() {
        receipts.extend(step.receipts);
        is_done = step.done;
    }
    assert!(is_done);
    receipts
}

async fn usage(client: &mut Client) -> pb::GetUsageResponse {
    client.admin.get_usage(pb::GetUsageRequest::default()).await.unwrap().into_inner()
}

async fn retain(client: &mut Client, request: pb::RetainRequest) -> Vec<(String, Option<pb::KeptReason>)> {
    let mut stream = client.admin.retain(request).await.unwrap().into_inner();
    let mut aged = Vec::new();
    while let Some(step) = stream.message().await.unwrap() {
        aged.extend(step.sessions.into_iter().map(|one| {
            let kept = one.kept.map(|kept| pb::KeptReason::try_from(kept).unwrap());
            (one.session.unwrap().header.unwrap().id, kept)
        }));
    }
    aged.sort();
    aged
}

async fn receipts_add_up(store: Arc<dyn Store>) {
    let node = Node::over(store, Options::default()).await;
    let mut client = node.client().await;
    for id in ["a", "b", "c", "d"] {
        client.make(id).await;
        for n in 0..5 {
            client.append(batch(id, n * 20, notes(id, 20))).await.unwrap();
        }
    }
    let at = pb::ForkRequest {
        boundary: Some(pb::Boundary::Inclusive.into()),
        boundary_seq: Some(49),
        ..fork_of("b", "child")
    };
    fork(&mut client, at).await.unwrap();
    let prefix = client.read(all_of("b")).await.unwrap().events()[..50].to_vec();
    assert!(purge(&mut client, false).await.is_empty(), "nothing was deleted");
    for id in ["a", "b", "c"] {
        client.remove(id).await.unwrap();
    }
    let before = usage(&mut client).await;
    assert_eq!((before.sessions, before.events, before.shared_events, before.deleted_sessions), (2, 151, 50, 3));
    let dry = purge(&mut client, true).await;
    assert_eq!(usage(&mut client).await, before, "a dry run removes nothing");
    let receipts = purge(&mut client, false).await;
    assert_eq!(receipts, dry);
    let mut told: Vec<_> =
        receipts.iter().map(|one| (one.session_id.as_str(), one.from_seq, one.events, one.shared)).collect();
    told.sort_unstable();
    // Exactly what the child does not share goes.
    assert_eq!(told, [("a", 0, 100, false), ("b", 50, 50, true), ("c", 0, 100, false)]);
    assert_eq!(receipts.iter().map(|one| one.bytes).sum::<u64>(), before.purgeable_bytes);
    let after = usage(&mut client).await;
    // A run that is shared in part is held as it is.
    let left = before.deleted_bytes - before.purgeable_bytes;
    assert!((left..left + before.deleted_bytes / 10).contains(&after.deleted_bytes), "{after:?} of {before:?}");
    assert_eq!((after.deleted_sessions, after.purgeable_bytes), (1, 0));
    assert!(purge(&mut client, false).await.is_empty(), "once is enough");
    let child = client.read(all_of("child")).await.unwrap();
    assert!(child.refusal.is_none());
    assert_eq!(child.events()[..50], prefix);
    assert_eq!(chain_after(&child.start.chain_before, &child.events()), client.head("child").await.chain);
    client.remove("child").await.unwrap();
    let receipts = purge(&mut client, false).await;
    assert_eq!(receipts.iter().map(|one| (one.events, one.shared)).collect::<Vec<_>>(), [(50, false), (1, false)]);
    let end = usage(&mut client).await;
    assert_eq!((end.deleted_sessions, end.deleted_bytes, end.sessions, end.events), (0, 0, 1, 100));
    assert_eq!(client.read(all_of("d")).await.unwrap().events().len(), 100);
}

#[test]
fn receipts_of_a_purge_add_up_and_children_are_untouched() {
    run(async {
        receipts_add_up(Arc::new(MemoryStore::new())).await;
        let dir = tempfile::tempdir().unwrap();
        let options = local::Options { segment_bytes: 64 << 20, ..Default::default() };
        receipts_add_up(Arc::new(LocalStore::open(dir.path(), options).unwrap())).await;
    });
}

#[test]
fn a_purge_is_of_one_namespace() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("a").await;
        client.append(batch("a", 0, notes("a", 3))).await.unwrap();
        client.remove("a").await.unwrap();
        let request = pb::PurgeRequest { namespace: "other".to_owned(), ..Default::default() };
        let mut stream = client.admin.purge(request).await.unwrap().into_inner();
        while let Some(step) = stream.message().await.unwrap() {
            assert!(step.receipts.is_empty());
        }
        assert_eq!(purge(&mut client, false).await.len(), 1);
        let bad = pb::PurgeRequest { namespace: "NO".to_owned(), ..Default::default() };
        refused(client.admin.purge(bad).await.map(drop), Code::InvalidArgument, "INVALID_ID");
    });
}

#[test]
fn retention_takes_what_is_old_and_never_what_is_at_work() {
    run(async {
        let rule = Retention { namespace: Namespace::new("default").unwrap(), keep: Duration::from_secs(3600) };
        let options = Options { retention: vec![rule], accept_window: Duration::from_secs(60), ..Options::default() };
        let node = Node::over(Arc::new(MemoryStore::new()), options).await;
        let mut client = node.client().await;
        for id in ["idle", "open", "closed", "busy"] {
            client.make(id).await;
        }
        let turn = |kind: &str| vec![pb::NewEvent { r#type: kind.to_owned(), ..note("{\"turn\":1}") }];
        client.append(batch("open", 0, turn("turn/start"))).await.unwrap();
        client.append(batch("closed", 0, [turn("turn/start"), turn("turn/end")].concat())).await.unwrap();
        assert_eq!(retain(&mut client, pb::RetainRequest::default()).await, [], "the rule says an hour");
        // Older than the present moment: wait until the clock has moved.
        let head = client.head("closed").await.updated_at_ms;
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        while now() <= head {
            tokio::task::yield_now().await;
        }
        let request = batch("busy", 0, notes("x", 1));
        client.append(pb::AppendRequest { ack_level: Some(pb::AckLevel::Accepted.into()), ..request }).await.unwrap();
        let all = pb::RetainRequest { keep_ms: Some(0), ..Default::default() };
        let name = |id: &str| (id.to_owned(), None);
        let kept = |id: &str, reason| (id.to_owned(), Some(reason));
        let expected = [
            kept("busy", pb::KeptReason::Changed),
            name("closed"),
            name("idle"),
            kept("open", pb::KeptReason::OpenTurn),
        ];
        assert_eq!(retain(&mut client, all.clone()).await, expected);
        client.get("idle").await.expect("a dry run deletes nothing");
        assert_eq!(retain(&mut client, pb::RetainRequest { apply: true, ..all.clone() }).await, expected);
        for (id, is_there) in [("busy", true), ("closed", false), ("idle", false), ("open", true)] {
            assert_eq!(client.get(id).await.is_ok(), is_there, "{id}");
        }
        let other = pb::RetainRequest { namespace: "other".to_owned(), ..Default::default() };
        let refusal = refused(client.admin.retain(other).await.map(drop), Code::InvalidArgument, "INVALID_REQUEST");
        assert_eq!(refusal.fact("field"), "keep_ms");
    });
}

#[test]
fn the_command_line_forks_detaches_deletes_retains_and_purges() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--retention", "default=1d", "--reserve-bytes", "0"]);
        let json = |args: &[&str]| server.json(args, b"");
        json(&["create", "p", "--cwd", "/w"]);
        let lines = r#"{"type":"session/title","data":{"title":"On knots"}}
{"type":"note","data":1}
"#;
        server.json(&["append", "p"], lines.as_bytes());
        let forked = json(&["fork", "p", "c", "--at", "0", "--label", "k=v"]).remove(0);
        assert_eq!((&forked["title"], &forked["header"]["seed_length"]), (&"On knots".into(), &1.into()));
        assert_eq!((&forked["events"], &forked["shared_events"]), (&2.into(), &1.into()));
        let again = json(&["fork", "p", "c", "--at", "0", "--label", "k=v"]).remove(0);
        assert_eq!(again["head"], forked["head"]);
        assert_eq!(json(&["stat", "p"])[0]["forks"], 1);
        let text = |args: &[&str]| String::from_utf8(server.command(args).stdout).unwrap();
        assert!(text(&["ls"]).contains("On knots"));
        assert!(text(&["stat", "c"]).contains("the first 1 shared"), "{}", text(&["stat", "c"]));
        assert_eq!(json(&["detach", "c"])[0]["events"], 1);
        assert!(text(&["du"]).contains("quipu purge frees"));
        assert_eq!(json(&["retention"])[0]["deleted"], 0, "nothing is a day old");
        json(&["rm", "p"]);
        let used = json(&["du", "--sum"]).remove(0);
        let dry = json(&["purge", "--dry-run"]);
        assert_eq!(dry[0]["bytes"], used["purgeable_bytes"]);
        let purged = json(&["purge"]);
        assert_eq!(
            (&purged[0]["events"], &purged[1]["events"], &purged[1]["dry_run"]),
            (&2.into(), &2.into(), &false.into())
        );
        assert_eq!(json(&["du", "--sum"])[0]["deleted_bytes"], 0);
        let gone = json(&["retention", "--keep", "0s", "--apply"]);
        assert_eq!((&gone[0]["session_id"], &gone[1]["deleted"]), (&"c".into(), &1.into()));
        let refused = server.command(&["fork", "p", "x"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("SESSION_NOT_FOUND"));
        server.end();
    });
}

#[test]
fn half_of_many_events_is_purged_and_the_rest_is_as_it_was() {
    run_long(async {
        let total = setting("QUIPU_PURGE_EVENTS", 20_000);
        let (sessions, per_session) = (10, total / 10);
        let dir = tempfile::tempdir().unwrap();
        let options = local::Options { segment_bytes: 64 << 20, ..Default::default() };
        let store: Arc<dyn Store> = Arc::new(LocalStore::open(dir.path(), options.clone()).unwrap());
        let node = Node::over(store.clone(), Options::default()).await;
        let mut client = node.client().await;
        let mut children = Vec::new();
        for n in 0..sessions {
            let id = format!("s{n}");
            client.make(&id).await;
            for at in (0..per_session).step_by(1000) {
                let count = 1000.min(per_session - at) as usize;
                client.append(batch(&id, at, notes(&format!("{id}.{at}"), count))).await.unwrap();
            }
            if n % 5 == 0 {
                // A child of the first half of one that stays and of one that goes.
                let boundary = Some(pb::Boundary::Inclusive.into());
                let boundary_seq = Some(per_session / 2 - 1);
                let request = pb::ForkRequest { boundary, boundary_seq, ..fork_of(&id, &format!("child-of-{n}")) };
                children.push(fork(&mut client, request).await.unwrap().session.unwrap());
            }
        }
        let before = usage(&mut client).await;
        for n in 0..sessions / 2 {
            client.remove(&format!("s{n}")).await.unwrap();
        }
        let deleted = usage(&mut client).await;
        let start = std::time::Instant::now();
        let receipts = purge(&mut client, false).await;
        println!("{total} events, half of them deleted, purged in {:?}", start.elapsed());
        let (gone, kept): (Vec<_>, Vec<_>) = receipts.iter().partition(|receipt| !receipt.shared);
        assert_eq!((gone.len(), kept.len()), (4, 1));
        let events: u64 = receipts.iter().map(|receipt| receipt.events).sum();
        assert_eq!(events + kept[0].from_seq, total / 2, "what went and what is kept is what was deleted");
        let after = usage(&mut client).await;
        let bytes: u64 = receipts.iter().map(|receipt| receipt.bytes).sum();
        assert_eq!((deleted.deleted_bytes - bytes, deleted.purgeable_bytes), (after.deleted_bytes, bytes));
        assert!(after.bytes < before.bytes && after.sessions == before.sessions - sessions / 2);
        let check = async |client: &mut Client| {
            for child in &children {
                let id = &child.header.as_ref().unwrap().id;
                let read = client.read(all_of(id)).await.unwrap();
                assert!(read.refusal.is_none());
                assert_eq!(chain_after(&read.start.chain_before, &read.events()), child.head.as_ref().unwrap().chain);
            }
        };
        check(&mut client).await;
        store.close();
        let copy = journal_alone(dir.path());
        let store = Arc::new(LocalStore::open(copy.path(), options).unwrap());
        let node = Node::over(store, Options::default()).await;
        let mut client = node.client().await;
        check(&mut client).await;
        assert_eq!(usage(&mut client).await, after, "the journal says the same");
    });
}
