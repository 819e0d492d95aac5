//! Load, Inspect and CommitRepair: a log heals the same way every time, and never halfway.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quipu::model::{Event, Profile};
use quipu::replay::repair::closers;
use quipu::rpc::{client, pb};
use quipu::service::{Ask, Fact, Reason, Repair};
use quipu::store::fault::{FaultStore, Plan};
use quipu::store::local::{LocalStore, Options as Local};
use quipu::store::memory::MemoryStore;
use quipu::store::{Damage, StoreError};

use crate::samples;
use crate::support::host::*;
use crate::support::process::Process;
use crate::support::watched::Watched;
use crate::support::{Calls, Random, run};

fn memory() -> Host {
    Host::over(Arc::new(MemoryStore::new()))
}

/// A provider takes the messages: each call has exactly one result, and before the next message of the model.
async fn check_messages(host: &Host, id: &str, what: &str) {
    let ask = Ask { key: key(id), incarnation: None, before: None, is_balanced: false };
    let conversation = host.service.messages(&ask).await.unwrap();
    assert_eq!(conversation.pairing, Ok(true), "{what}");
    let mut open: HashMap<String, usize> = HashMap::new();
    for (seq, _, text) in &conversation.messages {
        let message: serde_json::Value = serde_json::from_slice(text).unwrap();
        if message["role"] == "assistant" {
            assert!(open.values().all(|count| *count == 0), "{what}: a call without a result before seq {seq}");
        }
        for block in message["content"].as_array().unwrap() {
            match block["type"].as_str() {
                Some("tool-call") => *open.entry(block["id"].to_string()).or_default() += 1,
                Some("tool-result") => {
                    let open = open.get_mut(&block["toolCallId"].to_string());
                    let open = open.filter(|open| **open > 0);
                    *open.unwrap_or_else(|| panic!("{what}: a second result at seq {seq}")) -= 1;
                }
                _ => {}
            }
        }
    }
    assert!(open.values().all(|count| *count == 0), "{what}: a call without a result at the end");
}

/// A log that was cut behind these events heals, once.
async fn check_cut(host: &Host, id: &str, stored: &[Event], what: &str) {
    host.with(id, stored).await;
    let expected = closers(stored);
    let before = host.head(id).await;
    let seen = host.inspect(id).await.unwrap();
    assert_eq!((&seen.closers, seen.is_live), (&expected, false), "{what}");
    assert_eq!(seen.session.head, before, "{what}");
    assert_eq!(host.head(id).await, before, "{what}: inspection changes nothing");
    assert_eq!(host.read(id).await, stored, "{what}: what is stored shows the open turn");
    let loaded = host.load(id).await.unwrap();
    assert_eq!(loaded.repaired as usize, expected.len(), "{what}");
    assert_eq!(loaded.session.head.revision != before.revision, !expected.is_empty(), "{what}");
    let whole = [stored, &expected].concat();
    assert_eq!(host.read(id).await, whole, "{what}");
    let again = host.load(id).await.unwrap();
    assert_eq!((again.repaired, &again.session.head), (0, &host.head(id).await), "{what}");
    assert_eq!(again.session.head.revision, loaded.session.head.revision, "{what}: a second load changes nothing");
    assert!(host.inspect(id).await.unwrap().closers.is_empty(), "{what}");
    check_messages(host, id, what).await;
}

#[test]
fn a_turn_cut_at_every_event_of_the_recorded_sessions_heals_once() {
    run(async {
        let host = memory();
        let mut cuts = 0;
        for path in samples::samples() {
            let events = samples::events(&path);
            for end in 0..=events.len() {
                let what = format!("{} cut at {end}", path.display());
                check_cut(&host, &format!("s{cuts}"), &events[..end], &what).await;
                cuts += 1;
            }
        }
        println!("{cuts} cuts of recorded sessions");
    });
}

#[test]
fn a_turn_cut_at_every_event_of_500_random_logs_heals_once() {
    run(async {
        let mut random = Random::new("QUIPU_CUT_SEED");
        let mut cuts = 0;
        for n in 0..500 {
            // A store of its own, so that nothing piles up.
            let host = memory();
            let events = random_log(&mut random);
            for end in 0..=events.len() {
                check_cut(&host, &format!("s{end}"), &events[..end], &format!("log {n} cut at {end}")).await;
                cuts += 1;
            }
        }
        println!("{cuts} cuts of random logs");
    });
}

#[test]
fn a_log_heals_to_the_same_bytes_on_every_node_and_at_every_time() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut chains = Vec::new();
        for round in 0..3 {
            let path = dir.path().join(round.to_string());
            let local = LocalStore::open(&path, Local { segment_bytes: 1 << 20, ..Local::default() }).unwrap();
            let host = Host::over(Arc::new(local));
            host.with("s", &open()).await;
            let (revision, chain) = match round {
                0 => host.load("s").await.map(|loaded| (loaded.session.head.revision, loaded.session.head.chain)),
                1 => host
                    .prepare("s", claim("a", 1000, None))
                    .await
                    .map(|prepared| (prepared.session.head.revision, prepared.session.head.chain)),
                _ => {
                    let head = host.head("s").await;
                    let repaired = host.commit(&Host::repair("s", head.revision)).await;
                    repaired.map(|repaired| (repaired.head.revision, repaired.head.chain))
                }
            }
            .unwrap();
            assert_eq!(host.head("s").await.revision, revision);
            assert_eq!(host.read("s").await, [open(), closers(&open())].concat());
            chains.push(chain);
            host.service.close().await;
        }
        assert!(chains.windows(2).all(|pair| pair[0] == pair[1]));
    });
}

#[test]
fn a_repair_is_committed_for_the_revision_that_was_seen_and_only_once() {
    run(async {
        let host = memory();
        host.with("s", &open()).await;
        let seen = host.head("s").await;
        let repair = Host::repair("s", seen.revision);
        let dry = host.commit(&Repair { validate_only: true, ..repair.clone() }).await.unwrap();
        assert_eq!((dry.committed, dry.head.revision, &dry.closers), (false, seen.revision, &closers(&open())));
        assert_eq!(host.head("s").await, seen, "a validation changes nothing");

        // Somebody appends between inspection and commit.
        host.append("s", 11, &events_from(11, &[("note", "{}".to_owned())]), None).await.unwrap();
        let refused = host.commit(&repair).await.unwrap_err();
        assert_eq!(refused.reason, Reason::RevisionConflict);
        let Fact::Conflict { head, .. } = refused.fact else { panic!("no head") };
        assert_eq!(*head, host.head("s").await, "the refusal says where the log stands");
        assert_eq!(host.read("s").await.len(), 12, "nothing was appended");

        // Two repairers, both for what is there now: one commits, the other hears that the log moved.
        let repair = Host::repair("s", head.revision);
        let (first, second) = tokio::join!(host.commit(&repair), host.commit(&repair));
        let (done, lost) = if first.is_ok() { (first, second) } else { (second, first) };
        let done = done.unwrap();
        assert!(done.committed);
        assert_eq!(reason(lost), Reason::RevisionConflict);
        let healed = host.read("s").await;
        assert_eq!(healed.len(), 16);
        // The same call again, and the call for the healed log: both change nothing.
        assert_eq!(reason(host.commit(&repair).await), Reason::RevisionConflict);
        let again = host.commit(&Host::repair("s", done.head.revision)).await.unwrap();
        assert_eq!((again.committed, again.closers.len(), again.head), (false, 0, host.head("s").await));
        assert_eq!(host.read("s").await, healed);
    });
}

#[test]
fn closers_of_the_caller_close_what_the_computed_ones_close_or_are_refused() {
    run(async {
        for profile in [Profile::Dsh, Profile::DshStrict, Profile::Raw] {
            let host = memory();
            host.create("s", profile).await;
            host.append("s", 0, &open(), None).await.unwrap();
            let revision = host.head("s").await.revision;
            let computed = closers(&open());
            let with = |closers: Vec<Event>| Repair { closers, ..Host::repair("s", revision) };
            let change = |index: usize, change: &dyn Fn(&mut Event)| {
                let mut own = computed.clone();
                change(&mut own[index]);
                own
            };
            let (one, two) = (computed[0].seq, computed[1].seq);
            let wrong = [
                ("a gap", change(1, &|event| event.seq = one)),
                ("one is missing", computed[..3].to_vec()),
                ("one too many", [&computed[..], &computed[3..]].concat()),
                ("another call", change(0, &|event| event.body.data = computed[1].body.data.clone())),
                ("no citation", change(0, &|event| event.body.source_event_seqs = None)),
                ("another turn", change(3, &|event| event.body.data = turn_end(9).1.into())),
                ("another type", change(2, &|event| event.body.kind = "note".into())),
                ("another step", change(2, &|event| event.body.data = step("step/end", 2, 7).1.into())),
            ];
            for (what, own) in wrong {
                let refused = host.commit(&with(own)).await.unwrap_err();
                assert_eq!(refused.reason, Reason::InvalidEvent, "{what}: {refused}");
                assert!(refused.message.contains("closers["), "{what}: {refused}");
                assert_eq!(host.head("s").await.revision, revision, "{what}");
            }
            // Results in another order, at another time, with another content.
            let mut own = computed.clone();
            own.swap(0, 1);
            (own[0].seq, own[1].seq) = (one, two);
            own[1].body.data = result((2, 1), "ca").1.into();
            own.iter_mut().for_each(|event| event.body.time_ms += 60_000);
            let dry = host.commit(&Repair { validate_only: true, ..with(own.clone()) }).await.unwrap();
            assert!(!dry.committed);
            assert!(host.commit(&with(own.clone())).await.unwrap().committed);
            assert_eq!(host.read("s").await, [open(), own].concat());
            check_messages(&host, "s", "closers of the caller").await;
        }
    });
}

#[test]
fn a_live_session_is_shown_as_it_stands_and_closed_by_its_owner_only() {
    run(async {
        let host = memory();
        host.create("s", Profile::Dsh).await;
        let epoch = host.prepare("s", claim("a", 60_000, None)).await.unwrap().epoch;
        host.service.publish(&key("s"), epoch).await.unwrap();
        host.append("s", 0, &open(), Some(epoch)).await.unwrap();
        let before = host.head("s").await;
        let seen = host.inspect("s").await.unwrap();
        assert_eq!((seen.is_live, seen.closers.len(), &seen.session.head.revision), (true, 0, &before.revision));
        let refused = host.load("s").await.unwrap_err();
        assert_eq!(refused.reason, Reason::TurnOpen);
        assert!(matches!(&refused.fact, Fact::Owner(holding) if &*holding.owner.holder == "a"));
        let repair = Host::repair("s", before.revision);
        assert_eq!(reason(host.commit(&repair).await), Reason::SessionLive);
        assert_eq!(reason(host.commit(&Repair { epoch: Some(epoch + 1), ..repair.clone() }).await), Reason::Fenced);
        assert_eq!(host.head("s").await.revision, before.revision);
        assert!(host.commit(&Repair { epoch: Some(epoch), ..repair }).await.unwrap().committed);
        let loaded = host.load("s").await.unwrap();
        assert_eq!((loaded.repaired, loaded.session.head.owner.unwrap().owner.epoch), (0, epoch));
    });
}

#[test]
fn a_crash_at_any_commit_of_a_repair_leaves_all_of_it_or_nothing() {
    run(async {
        // Commits: create, append, then the one of the repair.
        for (face, survives) in [
            ("load", false),
            ("load", true),
            ("commit", false),
            ("commit", true),
            ("prepare", false),
            ("prepare", true),
        ] {
            for fail_at in 1..=4 {
                let plan = Plan { fail_at: Some(fail_at), failed_survives: survives, ..Plan::default() };
                let store = Arc::new(FaultStore::new(plan));
                let host = Host::over(store.clone());
                let what = format!("{face} with a failure at {fail_at}, survives: {survives}");
                let acknowledged = script(&host, face).await;
                let after = Host::over(Arc::new(store.after_power_cut().unwrap()));
                let Ok(session) = after.service.get(&key("s")).await else {
                    assert!(fail_at == 1 && !survives, "{what}");
                    continue;
                };
                let (stored, open, owner) = (after.read("s").await, open(), session.owner);
                let healed = [open.clone(), closers(&open)].concat();
                assert!(stored.is_empty() || stored == open || stored == healed, "{what}: {}", stored.len());
                assert!(!acknowledged || stored == healed, "{what}: what was told is there");
                assert!(owner.is_none() || stored == healed, "{what}: an epoch stands behind the repair");
                // Whoever comes next heals it to the same bytes.
                after.append("s", 0, &open, None).await.ok();
                after.load("s").await.unwrap();
                assert_eq!(after.read("s").await, healed, "{what}");
            }
        }
    });
}

async fn script(host: &Host, face: &str) -> bool {
    let created = host.service.create(key("s"), (quipu::model::Header::default(), Profile::Dsh, true), None).await;
    if created.is_err() || host.append("s", 0, &open(), None).await.is_err() {
        return false;
    }
    match face {
        "load" => host.load("s").await.is_ok(),
        "prepare" => host.prepare("s", claim("a", 1000, None)).await.is_ok(),
        _ => {
            let revision = host.head("s").await.revision;
            host.commit(&Host::repair("s", revision)).await.is_ok()
        }
    }
}

#[test]
fn kill_9_around_a_repair_leaves_all_of_it_or_nothing_and_the_same_bytes() {
    run(async {
        let mut random = Random::new("QUIPU_REPAIR_SEED");
        let dir = tempfile::tempdir().unwrap();
        let healed = [open(), closers(&open())].concat();
        let mut whole = 0;
        for round in 0..9 {
            let id = format!("s{round}");
            let mut server = Process::start(dir.path(), &[]);
            let mut client = server.client().await;
            let header = pb::Header { id: id.clone(), ..Default::default() };
            let create = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
            client.sessions.create_session(create).await.unwrap();
            let events = open().into_iter().map(|event| client::new_event(event.body)).collect();
            client.append(crate::support::batch(&id, 0, events)).await.unwrap();
            let (mut faces, mut owners) = (client.faces.clone(), client.owners.clone());
            let revision = client.head(&id).await.revision;
            let session_id = id.clone();
            let repairing = tokio::spawn(async move {
                match round % 3 {
                    0 => faces.load(pb::LoadRequest { session_id, ..Default::default() }).await.map(drop),
                    1 => {
                        let expected_revision = revision;
                        let repair = pb::CommitRepairRequest { session_id, expected_revision, ..Default::default() };
                        faces.commit_repair(repair).await.map(drop)
                    }
                    _ => {
                        let (holder, ttl_ms) = ("a".to_owned(), Some(1));
                        let prepare = pb::PrepareRequest { session_id, holder, ttl_ms, ..Default::default() };
                        owners.prepare(prepare).await.map(drop)
                    }
                }
                .is_ok()
            });
            // A moment at random: that is what a crash chooses.
            tokio::time::sleep(std::time::Duration::from_micros(random.below(1500))).await;
            server.kill();
            let told = repairing.await.unwrap();
            let server = Process::start(dir.path(), &[]);
            let mut client = server.client().await;
            let read = async |client: &mut client::Client| {
                let read = client.read(crate::support::all_of(&id)).await.unwrap().events();
                read.into_iter().map(|event| client::event(event).unwrap()).collect::<Vec<_>>()
            };
            let found = read(&mut client).await;
            assert!(
                found == healed || (found == open() && !told),
                "round {round}: {} events, told: {told}",
                found.len()
            );
            whole += usize::from(found == healed);
            // A reservation may have outlived the kill: whoever takes the session over finds it healed, or heals it.
            let take_over = Some(pb::TakeOverClaim { reason: "it was killed".to_owned() });
            let (session_id, holder) = (id.clone(), "b".to_owned());
            let prepare = pb::PrepareRequest { session_id, holder, take_over, ..Default::default() };
            let mut stream = client.owners.prepare(prepare).await.unwrap().into_inner();
            while stream.message().await.unwrap().is_some() {}
            assert_eq!(read(&mut client).await, healed, "round {round}");
            server.end();
        }
        println!("{whole} of 9 repairs were whole when the server was killed");
    });
}

#[test]
fn a_log_that_cannot_be_read_is_not_repaired_and_says_why() {
    run(async {
        let store = Arc::new(Watched::default());
        Host::over(store.clone()).with("s", &open()).await;
        let revision = Host::over(store.clone()).head("s").await.revision;
        let io = || StoreError::Io(Arc::new(std::io::Error::from_raw_os_error(5)));
        let damaged = || StoreError::Damaged {
            damage: Damage { good_next_seq: quipu::model::Seq::new(6).unwrap() },
            reason: "a test".to_owned(),
        };
        for (error, wanted) in [(io(), Reason::Internal), (damaged(), Reason::CorruptRange)] {
            // Nobody has read the log in this process yet.
            let host = Host::over(store.clone());
            let changes = store.changes.load(Ordering::SeqCst);
            *store.fails.lock().unwrap() = Some(error);
            assert_eq!(reason(host.inspect("s").await), wanted);
            assert_eq!(reason(host.load("s").await), wanted);
            assert_eq!(reason(host.prepare("s", claim("a", 1000, None)).await), wanted);
            let dry = Repair { validate_only: true, ..Host::repair("s", revision) };
            assert_eq!(reason(host.commit(&dry).await), wanted);
            assert_eq!(reason(host.commit(&Host::repair("s", revision)).await), wanted);
            assert_eq!(store.changes.load(Ordering::SeqCst), changes, "nothing was stored");
            *store.fails.lock().unwrap() = None;
        }
        let host = Host::over(store.clone());
        assert_eq!(host.load("s").await.unwrap().repaired, 4);
        assert_eq!(host.read("s").await, [open(), closers(&open())].concat());
    });
}

/// A scan of many reads fails at each of them in turn, once for good and once for a moment.
#[test]
fn a_scan_that_fails_at_any_of_its_reads_repairs_nothing() {
    run(async {
        let store = Arc::new(Watched::default());
        // An open turn that is long enough for several reads.
        let chunk = |n: u64| {
            let text = format!("{n}{}", "x".repeat(2000));
            let data = format!(r#"{{"turn":3,"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{text}"}}}}"#);
            ("assistant/chunk", data)
        };
        let list = [vec![turn_start(3), step("step/start", 3, 1)], (0..2500).map(chunk).collect()].concat();
        let events = [open(), closers(&open()), events_from(15, &list)].concat();
        let first = Host::over(store.clone());
        first.create("s", Profile::Raw).await;
        for batch in events.chunks(500) {
            first.append("s", batch[0].seq.get(), batch, None).await.unwrap();
        }
        let revision = first.head("s").await.revision;
        let before = store.reads.load(Ordering::SeqCst);
        Host::over(store.clone()).inspect("s").await.unwrap();
        let reads = store.reads.load(Ordering::SeqCst) - before;
        let changes = store.changes.load(Ordering::SeqCst);
        for spared in 0..reads {
            let error = StoreError::Io(Arc::new(std::io::Error::from_raw_os_error(5)));
            *store.fails.lock().unwrap() = Some(error);
            let fresh = || {
                store.spared.store(spared, Ordering::SeqCst);
                // Nobody has read the log in this process yet.
                Host::over(store.clone())
            };
            assert_eq!(reason(fresh().inspect("s").await), Reason::Internal, "read {spared}");
            assert_eq!(reason(fresh().load("s").await), Reason::Internal, "read {spared}");
            assert_eq!(reason(fresh().prepare("s", claim("a", 1000, None)).await), Reason::Internal, "read {spared}");
            let host = fresh();
            assert_eq!(reason(host.commit(&Host::repair("s", revision)).await), Reason::Internal, "read {spared}");
            assert_eq!(store.changes.load(Ordering::SeqCst), changes, "read {spared}: nothing was stored");
            // The same service goes on when the disk does.
            *store.fails.lock().unwrap() = None;
            let dry = Repair { validate_only: true, ..Host::repair("s", revision) };
            assert_eq!(host.commit(&dry).await.unwrap().closers, closers(&events), "read {spared}");
        }
        println!("a scan of {reads} reads failed at each of them");
        assert!(reads > 1);
    });
}

#[test]
fn preparing_a_long_session_reads_its_last_turn_and_an_epoch_costs_no_commit() {
    run(async {
        let store = Arc::new(Watched::default());
        let host = Host::over(store.clone());
        let turns = |count: u64| -> Vec<Event> {
            let list: Vec<_> = (1..=count).flat_map(|turn| [turn_start(turn), turn_end(turn)]).collect();
            events_from(0, &list)
        };
        let mut read = Vec::new();
        for (id, count) in [("short", 500), ("long", 50_000)] {
            host.create(id, Profile::Raw).await;
            for batch in turns(count).chunks(500) {
                host.append(id, batch[0].seq.get(), batch, None).await.unwrap();
            }
            let open = events_from(count * 2, &[turn_start(count + 1), step("step/start", count + 1, 1)]);
            host.append(id, count * 2, &open, None).await.unwrap();
            // As after a restart.
            let host = Host::over(store.clone());
            let before = store.events.load(Ordering::SeqCst);
            let prepared = host.prepare(id, claim("a", 60_000, None)).await.unwrap();
            assert_eq!(prepared.repaired, 2);
            read.push(store.events.load(Ordering::SeqCst) - before);
        }
        println!("events read to prepare 1,002 and 100,002 events: {read:?}");
        assert!(read[1] <= read[0] && read[0] < 2000, "{read:?}");

        host.create("owned", Profile::Raw).await;
        let epoch = host.prepare("owned", claim("a", 60_000, None)).await.unwrap().epoch;
        host.service.publish(&key("owned"), epoch).await.unwrap();
        let before = store.commits.load(Ordering::SeqCst);
        for seq in 0..100 {
            let note = events_from(seq, &[("note", "{}".to_owned())]);
            host.append("owned", seq, &note, Some(epoch)).await.unwrap();
        }
        host.service.renew(&key("owned"), epoch, None).await.unwrap();
        assert_eq!(
            store.commits.load(Ordering::SeqCst) - before,
            100,
            "one commit for each append, none for the epoch"
        );
    });
}
