//! Ownership: one writer per session, and what everybody else hears.

use std::sync::Arc;

use quipu::model::{Profile, Tenure};
use quipu::replay::repair::closers;
use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::service::{Claim, Fact, FirstClaim, Reason};
use quipu::store::local::{LocalStore, Options as Local};
use quipu::store::memory::MemoryStore;
use tonic::{Code, Status};

use crate::support::gate::GateStore;
use crate::support::host::*;
use crate::support::process::Process;
use crate::support::{Calls, Node, Random, batch, notes, refused, run};

async fn prepare(
    client: &mut Client,
    request: pb::PrepareRequest,
) -> Result<(pb::PrepareStart, Vec<pb::Event>), Status> {
    let mut stream = client.owners.prepare(request).await?.into_inner();
    let (mut start, mut events, mut end) = (None, Vec::new(), None);
    while let Some(frame) = stream.message().await? {
        match frame.frame.unwrap() {
            pb::prepare_response::Frame::Start(found) => start = Some(found),
            pb::prepare_response::Frame::Events(found) => events.extend(found.events),
            pb::prepare_response::Frame::End(found) => end = Some(found),
        }
    }
    assert_eq!(end.unwrap().reason(), pb::ReadEndReason::EndOfLog);
    Ok((start.unwrap(), events))
}

fn by(holder: &str) -> pb::PrepareRequest {
    pb::PrepareRequest { session_id: "s".to_owned(), holder: holder.to_owned(), ..Default::default() }
}

fn with(epoch: u64, request: pb::AppendRequest) -> pb::AppendRequest {
    pb::AppendRequest { epoch: Some(epoch), ..request }
}

/// C54: two hosts open one session; the buffered event of the first comes when the second has it.
#[test]
fn a_take_over_fences_the_host_before_and_tells_it_what_became_of_its_batch() {
    run(async {
        let node = Node::memory().await;
        let (mut a, mut b) = (node.client().await, node.client().await);
        a.make("s").await;
        let epoch = prepare(&mut a, by("a")).await.unwrap().0.epoch;
        let publish = pb::PublishRequest { session_id: "s".to_owned(), epoch, ..Default::default() };
        a.owners.publish(publish.clone()).await.unwrap();
        a.append(with(epoch, batch("s", 0, notes("a", 3)))).await.unwrap();

        let live = refused(prepare(&mut b, by("b")).await, Code::FailedPrecondition, "SESSION_LIVE");
        let owner = live.owner();
        assert_eq!((owner.epoch, owner.holder.as_str(), owner.state()), (epoch, "a", pb::OwnerState::Live));
        assert!(owner.expires_in_ms.unwrap() > 0);

        let take_over = Some(pb::TakeOverClaim { reason: "a does not answer".to_owned() });
        let (start, _) = prepare(&mut b, pb::PrepareRequest { take_over, ..by("b") }).await.unwrap();
        assert!(start.epoch > epoch);

        // Nothing of the old epoch gets in, whatever it is, and each refusal says who has the session.
        let late =
            refused(a.append(with(epoch, batch("s", 3, notes("late", 1)))).await, Code::FailedPrecondition, "FENCED");
        let fenced = late.fenced();
        let owner = fenced.owner.unwrap();
        assert_eq!((owner.epoch, owner.holder.as_str(), fenced.committed), (start.epoch, "b", Some(false)));
        assert_eq!(owner.state(), pb::OwnerState::Reserved);
        let stored =
            refused(a.append(with(epoch, batch("s", 0, notes("a", 3)))).await, Code::FailedPrecondition, "FENCED");
        assert_eq!(stored.fenced().committed, Some(true), "the batch that was in doubt is there");
        let partly =
            refused(a.append(with(epoch, batch("s", 1, notes("x", 2)))).await, Code::FailedPrecondition, "FENCED");
        assert_eq!(partly.fenced().committed, Some(false));
        let flush = pb::FlushRequest { session_id: "s".to_owned(), epoch: Some(epoch), ..Default::default() };
        refused(a.log.flush(flush).await, Code::FailedPrecondition, "FENCED");
        refused(a.owners.publish(publish).await, Code::FailedPrecondition, "FENCED");
        let delete = pb::DeleteSessionRequest { session_id: "s".to_owned(), epoch: Some(epoch), ..Default::default() };
        refused(a.sessions.delete_session(delete).await, Code::FailedPrecondition, "FENCED");
        let release = pb::ReleaseRequest { session_id: "s".to_owned(), epoch, ..Default::default() };
        refused(a.owners.release(release).await, Code::FailedPrecondition, "FENCED");

        let publish = pb::PublishRequest { session_id: "s".to_owned(), epoch: start.epoch, ..Default::default() };
        b.owners.publish(publish).await.unwrap();
        b.append(with(start.epoch, batch("s", 3, notes("b", 1)))).await.unwrap();
        let session = b.get("s").await.unwrap();
        let trail = &session.take_overs[0];
        assert_eq!((trail.epoch, trail.holder.as_str(), trail.from_holder.as_str()), (start.epoch, "b", "a"));
        assert_eq!((trail.reason.as_str(), session.take_overs.len()), ("a does not answer", 1));
        assert_eq!(session.head.unwrap().next_seq, 4);
    });
}

#[test]
fn an_owned_session_takes_nothing_without_its_epoch_and_a_reserved_one_no_append_at_all() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 2))).await.unwrap();
        refused(client.append(with(1, batch("s", 2, notes("a", 1)))).await, Code::FailedPrecondition, "FENCED");
        let request = pb::PrepareRequest { with_events: true, from_seq: 1, ..by("a") };
        let (start, events) = prepare(&mut client, request).await.unwrap();
        assert_eq!((start.epoch, start.repaired, events.len()), (1, 0, 1));
        let head = start.session.unwrap().head.unwrap();
        assert_eq!(head.owner.unwrap().state(), pb::OwnerState::Reserved);
        refused(client.append(with(1, batch("s", 2, notes("a", 1)))).await, Code::FailedPrecondition, "NOT_PUBLISHED");
        let none =
            refused(client.append(batch("s", 2, notes("a", 1))).await, Code::FailedPrecondition, "OWNER_REQUIRED");
        assert_eq!(none.owner().holder, "a");
        refused(client.remove("s").await, Code::FailedPrecondition, "OWNER_REQUIRED");
        client.flush("s").await.unwrap();
        refused(prepare(&mut client, by("b")).await, Code::FailedPrecondition, "LEASE_HELD");
        let publish = pb::PublishRequest { session_id: "s".to_owned(), epoch: 1, ..Default::default() };
        for _ in 0..2 {
            let head = client.owners.publish(publish.clone()).await.unwrap().into_inner().head.unwrap();
            assert_eq!(head.owner.unwrap().state(), pb::OwnerState::Live);
        }
        client.append(with(1, batch("s", 2, notes("a", 1)))).await.unwrap();
        let renew =
            pb::RenewRequest { session_id: "s".to_owned(), epoch: 1, ttl_ms: Some(86_400_000), ..Default::default() };
        let head = client.owners.renew(renew).await.unwrap().into_inner().head.unwrap();
        assert!(head.owner.unwrap().expires_in_ms.unwrap() > 80_000_000);
        let release = pb::ReleaseRequest { session_id: "s".to_owned(), epoch: 1, ..Default::default() };
        for _ in 0..2 {
            let head = client.owners.release(release.clone()).await.unwrap().into_inner().head.unwrap();
            assert_eq!(head.owner, None);
        }
        let over =
            refused(client.append(with(1, batch("s", 3, notes("a", 1)))).await, Code::FailedPrecondition, "FENCED");
        assert_eq!(over.fenced().owner.unwrap().state(), pb::OwnerState::Released);
        client.append(batch("s", 3, notes("a", 1))).await.unwrap();
        assert_eq!(prepare(&mut client, by("b")).await.unwrap().0.epoch, 2, "an epoch is never handed out twice");
        for (holder, ttl_ms) in
            [("", None), ("a\u{1}", None), (&*"x".repeat(129), None), ("a", Some(0)), ("a", Some(86_400_001))]
        {
            let request = pb::PrepareRequest { ttl_ms, ..by(holder) };
            refused(prepare(&mut client, request).await, Code::InvalidArgument, "INVALID_REQUEST");
        }
    });
}

#[test]
fn a_lease_that_ran_out_lets_the_next_host_through_and_fences_nobody_before() {
    run(async {
        let host = Host::over(Arc::new(MemoryStore::new()));
        host.create("s", Profile::Dsh).await;
        let first = host.prepare("s", claim("a", 1, None)).await.unwrap().epoch;
        host.service.publish(&key("s"), first).await.unwrap();
        let ran_out = async || {
            while !host.head("s").await.owner.unwrap().expires_in.unwrap().is_zero() {
                tokio::task::yield_now().await;
            }
        };
        ran_out().await;
        host.append("s", 0, &open()[..6], Some(first)).await.unwrap();
        ran_out().await;
        host.append("s", 6, &open()[6..], Some(first)).await.unwrap();
        ran_out().await;
        // Its turn is open and it may come back, so that only a new owner closes it.
        assert_eq!(reason(host.load("s").await), Reason::TurnOpen);
        assert_eq!(host.inspect("s").await.unwrap().closers.len(), 4, "what the next owner would find");
        let second = host.prepare("s", claim("b", 60_000, None)).await.unwrap();
        assert_eq!((second.epoch, second.repaired), (first + 1, 4));
        let late = host.append("s", 11, &events_from(11, &[("note", "{}".to_owned())]), Some(first)).await;
        assert_eq!(reason(late), Reason::Fenced);
        assert!(
            host.service.get(&key("s")).await.unwrap().owner.unwrap().take_overs.is_empty(),
            "nobody was displaced"
        );
    });
}

#[test]
fn owners_outlive_the_server_with_their_epoch_their_trail_and_a_full_lease() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let options = Local { segment_bytes: 1 << 20, ..Local::default() };
        for round in 0..4 {
            let host = Host::over(Arc::new(LocalStore::open(dir.path(), options.clone()).unwrap()));
            if round == 0 {
                host.create("s", Profile::Dsh).await;
            } else {
                let session = host.service.get(&key("s")).await.unwrap();
                let owner = session.owner.unwrap();
                assert_eq!(
                    (owner.epoch, owner.tenure, owner.take_overs.len()),
                    (round, Tenure::Live, round as usize - 1)
                );
                assert!(session.head.owner.unwrap().expires_in.unwrap().as_millis() > 10_000);
                assert_eq!(reason(host.prepare("s", claim("next", 20_000, None)).await), Reason::SessionLive);
                let other = host.append("s", 0, &open()[..1], Some(round - 1)).await;
                assert_eq!(reason(other), Reason::Fenced);
            }
            let why = format!("restart {round}");
            let prepared = host.prepare("s", claim("h", 20_000, Some(&why))).await.unwrap();
            assert_eq!(prepared.epoch, round + 1);
            host.service.publish(&key("s"), prepared.epoch).await.unwrap();
            if round == 2 {
                // The index is lost; the journal knows.
                host.service.close().await;
                drop(host);
                std::fs::remove_dir_all(dir.path().join("index")).unwrap();
            } else {
                host.service.close().await;
            }
        }
    });
}

/// Racing hosts found it: a load of a balanced log had nothing to wait for, and told of an epoch that a crash at that
/// moment would have taken back.
#[test]
fn no_face_tells_of_an_owner_before_its_epoch_is_durable() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let host = Arc::new(Host::over(gate.clone()));
        host.create("s", Profile::Raw).await;
        gate.shut();
        let preparing = tokio::spawn({
            let host = host.clone();
            async move { host.prepare("s", claim("a", 60_000, None)).await.map(|prepared| prepared.epoch) }
        });
        gate.reached().await;
        assert_eq!(host.head("s").await.owner, None);
        assert_eq!(host.inspect("s").await.unwrap().session.head.owner, None);
        let loading = tokio::spawn({
            let host = host.clone();
            async move { host.load("s").await.unwrap().session.head.owner.map(|holding| holding.owner.epoch) }
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!loading.is_finished(), "it told of an owner that was not durable");
        // The refusals that name an owner wait as well; of a fork it was forgotten once.
        let forking = tokio::spawn({
            let host = host.clone();
            async move { host.fork("s", "child", Some(7)).await }
        });
        let flushing = tokio::spawn({
            let host = host.clone();
            async move { host.service.flush(&key("s"), Some(7)).await.map(drop) }
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!forking.is_finished() && !flushing.is_finished(), "a refusal told of an owner that was not durable");
        gate.open();
        assert_eq!(reason(forking.await.unwrap()), Reason::Fenced);
        assert_eq!(reason(flushing.await.unwrap()), Reason::Fenced);
        assert_eq!((preparing.await.unwrap().unwrap(), loading.await.unwrap()), (1, Some(1)));
    });
}

#[test]
fn a_session_may_belong_to_its_creator_from_the_first_moment() {
    run(async {
        let host = Host::over(Arc::new(MemoryStore::new()));
        let what = (quipu::model::Header::default(), Profile::Dsh, true);
        let first = |holder| Some(FirstClaim { claim: Claim::new(holder, None, None).unwrap(), publish: true });
        let (session, existed) = host.service.create(key("s"), what.clone(), first("a")).await.unwrap();
        let owner = session.head.owner.unwrap().owner;
        assert_eq!((existed, owner.epoch, owner.tenure), (false, 1, Tenure::Live));
        host.append("s", 0, &open(), Some(1)).await.unwrap();
        let (session, existed) = host.service.create(key("s"), what, first("b")).await.unwrap();
        assert!(existed && &*session.head.owner.unwrap().owner.holder == "a", "the second creator sees who has it");
    });
}

/// C56: a stale writer reloads and goes on inside the turn of the other.
#[test]
fn a_writer_that_was_overtaken_is_refused_and_nothing_is_rebased() {
    run(async {
        let host = Host::over(Arc::new(MemoryStore::new()));
        host.create("s", Profile::DshStrict).await;
        host.append("s", 0, &open()[..6], None).await.unwrap();
        host.append("s", 6, &open()[6..8], None).await.unwrap();
        let turn = events_from(6, &[turn_start(2), step("step/start", 2, 2)]);
        assert_eq!(reason(host.append("s", 6, &turn, None).await), Reason::SeqConflict);
        assert_eq!(reason(host.append("s", 8, &turn, None).await), Reason::BracketViolation);
        assert_eq!(host.read("s").await, open()[..8]);
    });
}

/// C58: a program starts again from its own numbering.
#[test]
fn a_writer_that_starts_again_from_zero_is_refused_with_the_head() {
    run(async {
        let host = Host::over(Arc::new(MemoryStore::new()));
        host.create("s", Profile::Raw).await;
        let many: Vec<_> = (0..900).map(|n| ("note", n.to_string())).collect();
        host.append("s", 0, &events_from(0, &many), None).await.unwrap();
        let few: Vec<_> = (0..5).map(|n| ("note", format!("\"{n}\""))).collect();
        for (first, wanted) in [(3, Reason::SeqConflict), (0, Reason::SeqConflict), (901, Reason::SeqGap)] {
            let refused = host.append("s", first, &events_from(first, &few), None).await.unwrap_err();
            assert_eq!(refused.reason, wanted);
            let Fact::Conflict { head, .. } = refused.fact else { panic!("no head") };
            assert_eq!(head.next_seq.get(), 900);
        }
        let header = quipu::model::Header { cwd: Some("/x".to_owned()), ..Default::default() };
        let again = host.service.create(key("s"), (header, Profile::Raw, true), None).await;
        assert_eq!(reason(again), Reason::SessionExists);
    });
}

/// Eight hosts race for one session: an epoch has one holder, and no event of an old one follows one of a new one.
#[test]
fn racing_hosts_never_mix_their_epochs() {
    run(async {
        let host = Arc::new(Host::over(Arc::new(MemoryStore::new())));
        host.create("s", Profile::Raw).await;
        let mut racing = tokio::task::JoinSet::new();
        for name in 0..8 {
            let host = host.clone();
            racing.spawn(async move {
                let mut epochs = Vec::new();
                for round in 0..40 {
                    let why = (round % 3 == 0).then_some("a race");
                    let Ok(prepared) = host.prepare("s", claim(&format!("h{name}"), 1, why)).await else { continue };
                    epochs.push(prepared.epoch);
                    if host.service.publish(&key("s"), prepared.epoch).await.is_err() {
                        continue;
                    }
                    let mut next = prepared.session.head.next_seq.get();
                    for _ in 0..3 {
                        let note = events_from(next, &[("note", prepared.epoch.to_string())]);
                        match host.append("s", next, &note, Some(prepared.epoch)).await {
                            Ok(_) => next += 1,
                            Err(refused) => {
                                assert_eq!(refused.reason, Reason::Fenced, "{refused}");
                                let Fact::Fenced { committed, .. } = refused.fact else { panic!() };
                                assert_eq!(committed, Some(false));
                                break;
                            }
                        }
                    }
                }
                epochs
            });
        }
        let mut epochs = racing.join_all().await.concat();
        epochs.sort_unstable();
        assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "an epoch was handed out twice");
        let written = host.read("s").await;
        let epoch =
            |event: &quipu::model::Event| std::str::from_utf8(&event.body.data).unwrap().parse::<u64>().unwrap();
        assert!(written.windows(2).all(|pair| epoch(&pair[0]) <= epoch(&pair[1])), "an old epoch after a new one");
        println!("{} epochs, {} events", epochs.len(), written.len());
        assert!(!written.is_empty(), "nobody had it long enough to write");
    });
}

#[test]
fn the_commands_show_take_and_heal_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    server.json(&["create", "s"], b"");
    let lines: Vec<String> = open()
        .iter()
        .map(|event| {
            let data = std::str::from_utf8(&event.body.data).unwrap();
            let surface = if event.body.surface_op.is_some() { r#","surfaceOp":"append""# } else { "" };
            format!(r#"{{"type":"{}","time":{},"data":{data}{surface}}}"#, event.body.kind, event.body.time_ms)
        })
        .collect();
    server.json(&["append", "s"], lines.join("\n").as_bytes());
    let seen = server.json(&["inspect", "s"], b"").remove(0);
    assert_eq!((&seen["closers"], &seen["live"], &seen["head"]["next_seq"]), (&4.into(), &false.into(), &11.into()));
    assert_eq!(server.json(&["inspect", "s", "--events"], b"").len(), 15);
    let dry = server.json(&["repair", "s", "--dry-run"], b"").remove(0);
    assert_eq!((&dry["committed"], dry["closers"].as_array().unwrap().len()), (&false.into(), 4));
    let taken = server.json(&["take-over", "s", "--reason", "to look at it", "--ttl-ms", "60000"], b"").remove(0);
    assert_eq!((&taken["epoch"], &taken["repaired"]), (&1.into(), &4.into()));
    assert_eq!(server.json(&["owner", "s"], b"")[0]["owner"]["holder"], "operator");
    let refused = server.command(&["append", "s", "--first-seq", "15"]);
    assert_eq!(refused.status.code(), Some(0), "no events, no refusal");
    let taken = ["take-over", "s", "--reason", "done", "--holder", "next", "--release"];
    assert_eq!(server.json(&taken, b"")[0]["epoch"], 2);
    let owner = server.json(&["owner", "s"], b"").remove(0);
    assert!(owner["owner"].is_null());
    assert_eq!(
        (&owner["take_overs"][0]["reason"], &owner["take_overs"][0]["from_holder"]),
        (&"done".into(), &"operator".into())
    );
    assert_eq!(server.json(&["load", "s"], b"")[0]["repaired"], 0);
    assert_eq!(server.json(&["load", "s", "--events"], b"").len(), 15);
    let revision = "00".repeat(16);
    let refused = server.command(&["repair", "s", "--revision", &revision]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("REVISION_CONFLICT"));
    let text = server.command(&["owner", "s"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("nobody owns"));
    server.end();
}

/// C97: a call that is given up at any moment leaves all of its work or nothing, and no lock.
#[test]
fn a_call_that_is_cancelled_leaves_all_or_nothing_and_no_lock() {
    run(async {
        let mut random = Random::new("QUIPU_CANCEL_SEED");
        let healed = [open(), closers(&open())].concat();
        for round in 0..200 {
            let host = Arc::new(Host::over(Arc::new(MemoryStore::new())));
            host.with("s", &open()).await;
            let revision = host.head("s").await.revision;
            let (at_work, polls) = (host.clone(), random.below(12));
            let call = tokio::spawn(async move {
                match round % 4 {
                    0 => at_work.load("s").await.is_ok(),
                    1 => at_work.prepare("s", claim("a", 1, None)).await.is_ok(),
                    2 => at_work.commit(&Host::repair("s", revision)).await.is_ok(),
                    _ => at_work.append("s", 11, &closers(&open()), None).await.is_ok(),
                }
            });
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            call.abort();
            let told = call.await.unwrap_or(false);
            // The next caller gets through, and finds the one or the other.
            host.service.flush(&key("s"), None).await.unwrap();
            let found = host.read("s").await;
            assert!(found == healed || (found == open() && !told), "round {round}");
            let prepared = host.prepare("s", claim("b", 1000, Some("after a cancelled call"))).await.unwrap();
            host.service.publish(&key("s"), prepared.epoch).await.unwrap();
            let note = events_from(15, &[("feedback/record", r#"{"text":"x"}"#.to_owned())]);
            host.append("s", 15, &note, Some(prepared.epoch)).await.unwrap();
            assert_eq!(host.read("s").await[..15], healed, "round {round}");
        }
    });
}

/// C98: what belongs together is durable in the order of the log, whoever sent it and at once.
#[test]
fn parallel_appends_of_one_owner_are_ordered_or_refused() {
    run(async {
        for _ in 0..100 {
            let host = Arc::new(Host::over(Arc::new(MemoryStore::new())));
            host.create("s", Profile::Dsh).await;
            let epoch = host.prepare("s", claim("a", 60_000, None)).await.unwrap().epoch;
            host.service.publish(&key("s"), epoch).await.unwrap();
            let mut sending = tokio::task::JoinSet::new();
            for seq in 0..6 {
                let host = host.clone();
                sending.spawn(
                    async move { host.append("s", seq, &open()[seq as usize..=seq as usize], Some(epoch)).await },
                );
            }
            for refused in sending.join_all().await.into_iter().filter_map(Result::err) {
                assert_eq!(refused.reason, Reason::SeqGap);
            }
            let found = host.read("s").await;
            assert_eq!(found, open()[..found.len()], "the log is a prefix");
        }
    });
}
