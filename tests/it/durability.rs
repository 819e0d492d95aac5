//! What holds when something goes wrong: clients that go away, full queues, disks that fail, bytes that rot.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quipu::model::{Header, Limits, Profile, SessionKey};
use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::fault::{FaultStore, Plan};
use quipu::store::local::{LocalStore, Options as StoreOptions};
use quipu::store::{Health, Store};
use tonic::Code;

use crate::support::gate::GateStore;
use crate::support::{Calls, Node, Random, all_of, batch, note, notes, refused, run, stored};

fn accepted(id: &str, first_seq: u64, events: Vec<pb::NewEvent>) -> pb::AppendRequest {
    pb::AppendRequest { ack_level: Some(pb::AckLevel::Accepted.into()), ..batch(id, first_seq, events) }
}

#[test]
fn an_append_whose_client_went_away_is_wholly_there_and_leaves_no_hole() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let node = Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.make("other").await;
        for round in 0..4_u64 {
            // In odd rounds the batch surely stands in the queue, behind another one, when its client goes.
            gate.shut();
            let mut before = node.client().await;
            let ahead = tokio::spawn(async move { before.append(batch("other", round, notes("o", 1))).await });
            if round % 2 == 1 {
                gate.reached().await;
            }
            let mut leaver = node.client().await;
            let going = tokio::spawn(async move { leaver.append(batch("s", round * 5, notes("a", 3))).await });
            while client.head("s").await.next_seq < round * 5 + 3 {
                tokio::task::yield_now().await;
            }
            gate.reached().await;
            going.abort();
            assert!(going.await.unwrap_err().is_cancelled());
            // One that stands behind it in the queue.
            let mut other = node.client().await;
            let behind = tokio::spawn(async move { other.append(batch("s", round * 5 + 3, notes("b", 2))).await });
            while client.head("s").await.next_seq < round * 5 + 5 {
                tokio::task::yield_now().await;
            }
            gate.open();
            assert_eq!(behind.await.unwrap().unwrap().head.unwrap().durable_next_seq, round * 5 + 5);
            ahead.await.unwrap().unwrap();
        }
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), (0..20).collect::<Vec<_>>());
        assert!(client.append(batch("s", 15, notes("a", 3))).await.unwrap().deduplicated);
    });
}

#[test]
fn appends_cut_short_at_any_moment_are_wholly_there_or_wholly_absent() {
    run(async {
        let mut random = Random::new("QUIPU_CANCEL_SEED");
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path(), small_store()).unwrap();
        let node = Node::over(Arc::new(store), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        let (mut wanted, mut cut) = (Vec::new(), 0);
        for round in 0..150 {
            let events = notes(&round.to_string(), 1 + random.below(20) as usize);
            let mut request = tonic::Request::new(batch("s", wanted.len() as u64, events.clone()));
            let deadline = Duration::from_micros(random.below(3000));
            let by_deadline = random.below(2) == 0;
            if by_deadline {
                request.set_timeout(deadline.max(Duration::from_micros(1)));
            }
            let mut log = client.log.clone();
            let append = log.append(request);
            let limit = if by_deadline { Duration::from_secs(60) } else { deadline };
            match tokio::time::timeout(limit, append).await {
                Ok(Ok(_)) => wanted.extend(events),
                Ok(Err(_)) | Err(_) => {
                    cut += 1;
                    // The request may still be on its way: whoever takes the seq first has it.
                    let end = wanted.len() as u64;
                    match client.append(batch("s", end, vec![note("\"settled\"")])).await {
                        Ok(_) => wanted.push(note("\"settled\"")),
                        Err(status) => {
                            refused::<()>(Err(status), Code::Aborted, "SEQ_CONFLICT");
                            wanted.extend(events);
                        }
                    }
                }
            }
            assert_eq!(client.flush("s").await.unwrap().next_seq as usize, wanted.len());
        }
        println!("{cut} of 150 appends were cut short");
        assert!(cut > 10, "the test must bite");
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!(read.events(), stored(0, &wanted));
    });
}

#[test]
fn a_full_queue_refuses_with_a_delay_and_takes_appends_again_when_it_empties() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let options = Options { append_budget_bytes: 1000, ..Options::default() };
        let node = Node::over(gate.clone(), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        gate.shut();
        let mut next_seq = 0;
        let status = loop {
            match client.append(accepted("s", next_seq, vec![note("1")])).await {
                Ok(_) => next_seq += 1,
                Err(status) => break status,
            }
            assert!(next_seq < 100, "the queue has an end");
        };
        let refusal = refused::<()>(Err(status), Code::ResourceExhausted, "RATE");
        assert!(refusal.delay().is_some_and(|delay| delay > Duration::ZERO));
        assert_eq!(client.head("s").await.next_seq, next_seq, "nothing of it was stored");
        gate.open();
        client.flush("s").await.unwrap();
        client.append(batch("s", next_seq, vec![note("1")])).await.unwrap();
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs().len() as u64, next_seq + 1);
    });
}

#[test]
fn too_many_reads_at_once_are_refused_with_a_delay() {
    run(async {
        let options = Options { reads_max: 2, ..Options::default() };
        let node = Node::over(Arc::new(quipu::store::memory::MemoryStore::new()), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        for seq in 0..40 {
            let data = format!("\"{}\"", "x".repeat(1 << 20));
            client.append(batch("s", seq, vec![note(data)])).await.unwrap();
        }
        // Two readers that do not read: their streams stay open.
        let mut idle = Vec::new();
        for _ in 0..2 {
            let mut reader = node.client().await;
            let stream = reader.log.read_from(all_of("s")).await.unwrap().into_inner();
            idle.push((reader, stream));
        }
        let refusal = refused(client.read(all_of("s")).await, Code::ResourceExhausted, "READER_BUDGET");
        assert!(refusal.delay().is_some());
        drop(idle);
        let free = async {
            while client.read(all_of("s")).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), free).await.expect("readers that left give their place back");
    });
}

#[test]
fn whatever_waits_at_once_fits_into_a_segment() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // What the configuration asks for with this batch limit: 8 MiB and two batches.
        let limits = Limits { event_bytes_max: 64 << 10, batch_bytes_max: 64 << 10, ..Limits::default() };
        let store = StoreOptions { segment_bytes: (8 << 20) + (128 << 10), ..small_store() };
        let gate = Arc::new(GateStore::over(Arc::new(LocalStore::open(dir.path(), store).unwrap())));
        let node = Node::over(gate.clone(), Options { limits, ..Options::default() }).await;
        node.client().await.make("s").await;
        gate.shut();
        let header = Header { cwd: Some(format!("/{}", "x".repeat(2900))), ..Header::default() };
        let create = |n: usize| {
            let (service, header) = (node.service.clone(), header.clone());
            async move {
                let key = SessionKey::new("", &n.to_string()).unwrap();
                service.create(key, (header, Profile::Raw, true), None).await
            }
        };
        let creates: Vec<_> = (0..4000).map(|n| tokio::spawn(create(n))).collect();
        // They stand in the queue once they can be looked at.
        for n in 0..4000 {
            while node.service.get(&SessionKey::new("", &n.to_string()).unwrap()).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
        gate.open();
        for create in creates {
            create.await.unwrap().unwrap();
        }
        assert_eq!(node.service.health(), Health::Writable);
    });
}

#[test]
fn a_disk_that_does_not_answer_gives_an_unknown_outcome_in_time() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let options = Options { commit_timeout: Duration::from_millis(50), ..Options::default() };
        let node = Node::over(gate.clone(), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        gate.shut();
        let refusal = refused(client.append(batch("s", 0, notes("a", 2))).await, Code::Unavailable, "SYNC_TIMEOUT");
        assert!(refusal.delay().is_some());
        let refusal = refused(client.flush("s").await, Code::Unavailable, "SYNC_TIMEOUT");
        assert!(refusal.delay().is_some());
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!((read.events(), read.reason()), (vec![], pb::ReadEndReason::EndOfLog), "reads go on");
        gate.open();
        // The same batch again settles it.
        assert!(client.append(batch("s", 0, notes("a", 2))).await.unwrap().deduplicated);
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), [0, 1]);
    });
}

#[test]
fn after_a_failed_commit_waiters_hear_it_writes_end_and_reads_go_on() {
    run(async {
        for failed_survives in [false, true] {
            // Commits: 1 create, 2 append, 3 fails.
            let store = Arc::new(FaultStore::new(Plan { fail_at: Some(3), failed_survives, ..Plan::default() }));
            let node = Node::over(store.clone(), Options::default()).await;
            let mut client = node.client().await;
            client.make("s").await;
            client.append(batch("s", 0, notes("a", 2))).await.unwrap();
            let failed = client.append(batch("s", 2, notes("b", 3))).await;
            refused(failed, Code::Unavailable, "SYNC_FAILED");
            assert!(matches!(node.service.health(), Health::Poisoned(_)));
            for _ in 0..2 {
                for request in
                    [batch("s", 2, notes("b", 3)), batch("s", 0, notes("a", 2)), accepted("s", 5, notes("c", 1))]
                {
                    refused(client.append(request).await, Code::ResourceExhausted, "STORAGE_READ_ONLY");
                }
                let create = pb::CreateSessionRequest {
                    header: Some(pb::Header { id: "t".to_owned(), ..Default::default() }),
                    ..Default::default()
                };
                let create = client.sessions.create_session(create).await;
                refused(create, Code::ResourceExhausted, "STORAGE_READ_ONLY");
                refused(client.remove("s").await, Code::ResourceExhausted, "STORAGE_READ_ONLY");
            }
            // Nothing that may be lost is called durable, and what was durable is read.
            let flush = client.flush("s").await;
            assert!(flush.is_err(), "a flush over a failed commit says {flush:?}");
            assert_eq!(client.head("s").await.durable_next_seq, 2);
            let read = client.read(all_of("s")).await.unwrap();
            assert_eq!((read.events(), read.reason()), (stored(0, &notes("a", 2)), pb::ReadEndReason::EndOfLog));

            // After the power cut the failed batch is wholly there or wholly absent.
            let node = Node::over(Arc::new(store.after_power_cut().unwrap()), Options::default()).await;
            let mut client = node.client().await;
            let count = if failed_survives { 5 } else { 2 };
            assert_eq!(client.read(all_of("s")).await.unwrap().seqs().len(), count);
            let again = client.append(batch("s", 2, notes("b", 3))).await.unwrap();
            assert_eq!(again.deduplicated, failed_survives);
        }
    });
}

#[test]
fn a_flush_after_accepted_events_were_lost_does_not_call_them_durable() {
    run(async {
        let store = Arc::new(FaultStore::new(Plan { fail_at: Some(2), ..Plan::default() }));
        let options = Options { accept_window: Duration::from_millis(1), ..Options::default() };
        let node = Node::over(store.clone(), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(accepted("s", 0, notes("a", 2))).await.unwrap();
        while node.service.health() == Health::Writable {
            tokio::task::yield_now().await;
        }
        refused(client.flush("s").await, Code::Unavailable, "SYNC_FAILED");
        assert_eq!(client.head("s").await.durable_next_seq, 0);
    });
}

#[test]
fn an_engine_that_panics_fails_its_callers_and_nobody_waits_for_ever() {
    run(async {
        let gate = Arc::new(GateStore::default());
        let node = Node::over(gate.clone(), Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 2))).await.unwrap();
        gate.break_down();
        let calls = async {
            refused(client.append(batch("s", 2, notes("b", 1))).await, Code::Unavailable, "SYNC_FAILED");
            let next = client.append(batch("s", 3, notes("c", 1))).await;
            refused(next, Code::ResourceExhausted, "STORAGE_READ_ONLY");
            assert!(client.flush("s").await.is_err());
            assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), [0, 1]);
        };
        tokio::time::timeout(Duration::from_secs(10), calls).await.expect("everybody is answered at once");
        assert!(matches!(node.service.health(), Health::Poisoned(_)));
    });
}

#[test]
fn nothing_that_was_answered_durable_is_lost_when_the_disk_lies_later() {
    run(async {
        for freeze_at in 2..12 {
            let store = Arc::new(FaultStore::new(Plan { freeze_at: Some(freeze_at), ..Plan::default() }));
            let node = Node::over(store.clone(), Options::default()).await;
            let mut client = node.client().await;
            client.make("s").await;
            let mut durable = 0;
            for round in 0..12 {
                let before = store.commits() < freeze_at - 1;
                client.append(batch("s", round * 3, notes(&round.to_string(), 3))).await.unwrap();
                if before {
                    durable = round * 3 + 3;
                }
            }
            let node = Node::over(Arc::new(store.after_power_cut().unwrap()), Options::default()).await;
            let read = node.client().await.read(all_of("s")).await.unwrap();
            assert_eq!(read.seqs(), (0..durable).collect::<Vec<_>>(), "frozen at {freeze_at}");
        }
    });
}

fn small_store() -> StoreOptions {
    StoreOptions {
        segment_bytes: 4 << 20,
        spare_segments: 1,
        reserve_bytes: 0,
        checkpoint_interval: Duration::from_secs(3600),
        ..StoreOptions::default()
    }
}

/// Flips one bit in the middle of the only place in the journal that holds `text`.
fn damage(dir: &Path, text: &[u8]) {
    let mut found = 0;
    for entry in std::fs::read_dir(dir.join("journal")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let places: Vec<_> = bytes.windows(text.len()).enumerate().filter(|(_, window)| *window == text).collect();
        if let Some(&(at, _)) = places.first() {
            found += places.len();
            bytes[at + text.len() / 2] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    assert_eq!(found, 1);
}

#[test]
fn damage_ends_a_read_after_the_good_prefix_and_never_as_the_end_of_the_log() {
    run(async {
        for rebuild in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store: Arc<dyn Store> = Arc::new(LocalStore::open(dir.path(), small_store()).unwrap());
            {
                let node = Node::over(store, Options::default()).await;
                let mut client = node.client().await;
                for id in ["bad", "good"] {
                    client.make(id).await;
                    client.append(batch(id, 0, notes("a", 4))).await.unwrap();
                    client.append(batch(id, 4, vec![note(format!("\"marker-of-{id}\""))])).await.unwrap();
                    client.append(batch(id, 5, notes("c", 3))).await.unwrap();
                }
                node.service.close().await;
            }
            damage(dir.path(), b"marker-of-bad");
            if rebuild {
                std::fs::remove_dir_all(dir.path().join("index")).unwrap();
            }
            let store: Arc<dyn Store> = Arc::new(reopen(dir.path()).await);
            let node = Node::over(store, Options::default()).await;
            let mut client = node.client().await;
            for from_seq in 0..4 {
                let read = client.read(pb::ReadFromRequest { from_seq, ..all_of("bad") }).await.unwrap();
                assert_eq!(read.seqs(), (from_seq..4).collect::<Vec<_>>());
                assert!(read.end.is_none(), "never the end of the log");
                let refusal = refused::<()>(Err(read.refusal.unwrap()), Code::DataLoss, "CORRUPT_RANGE");
                assert_eq!((refusal.corrupt().good_next_seq, refusal.fact("good_next_seq").as_str()), (4, "4"));
            }
            let prefix = pb::ReadFromRequest { limit_events: 4, ..all_of("bad") };
            let read = client.read(prefix).await.unwrap();
            assert_eq!((read.events(), read.reason()), (stored(0, &notes("a", 4)), pb::ReadEndReason::Limit));
            for from_seq in 4..8 {
                let refusal = match client.read(pb::ReadFromRequest { from_seq, ..all_of("bad") }).await {
                    Ok(read) => {
                        assert!(read.end.is_none() && read.seqs().is_empty(), "from {from_seq}");
                        read.refusal.unwrap()
                    }
                    Err(status) => status,
                };
                refused::<()>(Err(refusal), Code::DataLoss, "CORRUPT_RANGE");
            }
            // Everybody else is served.
            assert_eq!(client.read(all_of("good")).await.unwrap().seqs().len(), 8);
            client.append(batch("good", 8, notes("d", 1))).await.unwrap();
        }
    });
}

/// Opens a store that the server before it may still be letting go of.
async fn reopen(dir: &Path) -> LocalStore {
    loop {
        match LocalStore::open(dir, small_store()) {
            Ok(store) => return store,
            Err(quipu::store::local::OpenError::Locked { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}
