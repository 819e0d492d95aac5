//! The change feed: everything that was committed, once, in order, without holes.

use std::collections::{HashMap, HashSet};

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::rpc::pb::changes_response::Frame;
use tonic::{Code, Status, Streaming};

use crate::support::process::Process;
use crate::support::{Calls, Node, Random, all_of, batch, journal_alone, note, notes, refused, run, run_long, setting};

/// A reader that holds the feed to its contract.
struct Reader {
    frames: Streaming<pb::ChangesResponse>,
    start: pb::ChangesStart,
    /// The next position.
    next: u64,
    changes: Vec<pb::Change>,
    states: Vec<pb::SessionState>,
    caught_up: bool,
    end: Option<pb::ChangesEndReason>,
}

impl Reader {
    async fn start(client: &mut Client, request: pb::ChangesRequest) -> Result<Self, Status> {
        let mut frames = client.feed.changes(request.clone()).await?.into_inner();
        let Some(Frame::Start(start)) = frames.message().await?.unwrap().frame else { panic!("start comes first") };
        let (changes, states) = (Vec::new(), Vec::new());
        let next = request.from_position.max(1);
        Ok(Self { frames, start, next, changes, states, caught_up: false, end: None })
    }

    async fn step(&mut self) -> bool {
        let Some(frame) = self.frames.message().await.unwrap() else {
            assert!(self.end.is_some(), "no reason for the end");
            return false;
        };
        match frame.frame.unwrap() {
            Frame::Changes(frame) => {
                for change in frame.changes {
                    assert_eq!(change.position, self.next, "a hole or a repetition");
                    self.next += u64::from(!change.is_partial);
                    self.changes.push(change);
                }
            }
            Frame::States(states) => self.states.extend(states.sessions),
            Frame::StatesEnd(end) => self.next = end.position + 1,
            Frame::CaughtUp(mark) => {
                self.caught_up = true;
                assert_eq!(mark.position + 1, self.next);
            }
            Frame::Heartbeat(_) => {}
            Frame::End(end) => self.end = Some(end.reason()),
            Frame::Start(_) => panic!("start comes once"),
        }
        true
    }

    async fn all(mut self) -> Self {
        while self.step().await {}
        self
    }
}

fn from(from_position: u64) -> pb::ChangesRequest {
    pb::ChangesRequest { from_position, with_events: true, ..Default::default() }
}

/// cases.md C84: the union of the feed is the union of all logs, whoever committed late.
#[test]
fn the_feed_is_the_union_of_all_logs_in_commit_order() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--segment-bytes", "24MiB", "--checkpoint-interval", "100ms"]);
        let mut client = server.client().await;
        let live = pb::ChangesRequest { follow: true, ..from(1) };
        let mut live = Reader::start(&mut client, live).await.unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for n in 0..20_u64 {
            let mut client = server.client().await;
            writers.spawn(async move {
                let id = format!("s{n}");
                client.make(&id).await;
                for first in 0..20 {
                    let event = note(format!("\"{}\"", "x".repeat(((n * first) % 7 * 30_000) as usize)));
                    client.append(batch(&id, first, vec![event])).await.unwrap();
                }
                if n % 5 == 0 {
                    client.remove(&id).await.unwrap();
                }
            });
        }
        writers.join_all().await;
        let total = 20 * 21 + 4;
        while live.next <= total {
            assert!(live.step().await);
        }
        let again = Reader::start(&mut client, from(1)).await.unwrap().all().await;
        assert_eq!(again.end, Some(pb::ChangesEndReason::EndOfFeed));
        assert_eq!(again.changes, live.changes, "history is what was live");
        let mut logs: HashMap<String, Vec<pb::Event>> = HashMap::new();
        for change in &again.changes {
            assert!(!change.session_id.is_empty() && change.incarnation.len() == 16);
            let log = logs.entry(change.session_id.clone()).or_default();
            assert_eq!(change.first_seq, log.len() as u64);
            log.extend(change.events.iter().cloned());
            assert_eq!(change.next_seq, log.len() as u64);
        }
        for n in (0..20).filter(|n| n % 5 != 0) {
            let id = format!("s{n}");
            assert_eq!(logs[&id], client.read(all_of(&id)).await.unwrap().events());
        }
        let ended = tokio::task::spawn_blocking(move || server.end());
        assert_eq!(live.all().await.end, Some(pb::ChangesEndReason::Draining));
        ended.await.unwrap();
    });
}

/// Long form: QUIPU_FOLLOW_CUTS=10000.
#[test]
fn a_reader_of_the_feed_that_is_cut_at_random_sees_every_position_once_also_over_kills() {
    run_long(async {
        let cuts = setting("QUIPU_FOLLOW_CUTS", 500) / 2;
        let mut random = Random::new("QUIPU_FOLLOW_SEED");
        let dir = tempfile::tempdir().unwrap();
        let args = ["--segment-bytes", "24MiB", "--checkpoint-interval", "100ms"];
        let mut server = Process::start(dir.path(), &args);
        let mut client = server.client().await;
        let (mut seen, mut ends) = (1, [0_u64; 5]);
        for n in 0..5 {
            client.make(&format!("s{n}")).await;
        }
        for cut in 0..cuts {
            if cut % 50 == 49 {
                server.kill();
                server = Process::start(dir.path(), &args);
                client = server.client().await;
            }
            for _ in 0..random.below(5) {
                let at = random.below(5) as usize;
                client.append(batch(&format!("s{at}"), ends[at], notes("x", 1))).await.unwrap();
                ends[at] += 1;
            }
            let request = pb::ChangesRequest { follow: true, ..from(seen) };
            let mut reader = Reader::start(&mut client, request).await.unwrap();
            for _ in 0..random.below(3) {
                if reader.caught_up {
                    break;
                }
                reader.step().await;
            }
            seen = reader.next;
        }
        let rest = Reader::start(&mut client, from(seen)).await.unwrap().all().await;
        assert_eq!(rest.next, 6 + ends.iter().sum::<u64>());
        server.end();
    });
}

#[test]
fn a_new_reader_starts_with_the_state_of_all_sessions() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        for n in 0..450 {
            client.make(&format!("s{n}")).await;
        }
        client.append(batch("s3", 0, notes("a", 4))).await.unwrap();
        client.remove("s5").await.unwrap();
        let request = pb::ChangesRequest { with_states: true, follow: true, ..from(0) };
        let mut reader = Reader::start(&mut client, request).await.unwrap();
        while !reader.caught_up {
            reader.step().await;
        }
        let ids: HashSet<_> = reader.states.iter().map(|s| s.session.clone().unwrap().header.unwrap().id).collect();
        assert_eq!((ids.len(), reader.states.len(), ids.contains("s5")), (449, 449, false));
        let third = reader.states.iter().find(|s| s.position == 451).unwrap();
        assert_eq!(third.session.clone().unwrap().head.unwrap().durable_next_seq, 4);
        assert!(reader.changes.is_empty());
        client.append(batch("s9", 0, notes("a", 1))).await.unwrap();
        while reader.changes.is_empty() {
            reader.step().await;
        }
        assert_eq!((reader.changes[0].position, reader.changes[0].session_id.as_str()), (453, "s9"));
        drop(reader);
        server.end();
    });
}

#[test]
fn filters_choose_and_positions_of_elsewhere_are_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("a").await;
        client.append(batch("a", 0, notes("a", 3))).await.unwrap();
        let header = pb::Header { id: "b".to_owned(), ..Default::default() };
        let namespace = "other".to_owned();
        let create = pb::CreateSessionRequest { header: Some(header), namespace, ..Default::default() };
        client.sessions.create_session(create).await.unwrap();
        client.remove("a").await.unwrap();
        let whole = Reader::start(&mut client, from(1)).await.unwrap().all().await;
        let kinds: Vec<_> = whole.changes.iter().map(|change| change.kind.as_str()).collect();
        assert_eq!(kinds, ["create", "append", "create", "delete"]);
        assert_eq!(whole.changes[0].header.as_ref().unwrap().id, "a");
        for (request, positions) in [
            (pb::ChangesRequest { kinds: vec!["create".to_owned()], ..from(1) }, vec![1, 3]),
            (pb::ChangesRequest { namespace: Some("other".to_owned()), ..from(1) }, vec![3]),
            (pb::ChangesRequest { with_events: false, ..from(2) }, vec![2, 3, 4]),
        ] {
            let mut frames = client.feed.changes(request.clone()).await.unwrap().into_inner();
            let mut found = Vec::new();
            while let Some(frame) = frames.message().await.unwrap() {
                if let Some(Frame::Changes(frame)) = frame.frame {
                    assert!(request.with_events || frame.changes.iter().all(|change| change.events.is_empty()));
                    found.extend(frame.changes.into_iter().map(|change| change.position));
                }
            }
            assert_eq!(found, positions);
        }
        let beyond = client.feed.changes(from(6)).await;
        assert_eq!(refused(beyond, Code::OutOfRange, "BEYOND_HEAD").fact("position"), "4");
        let other = pb::ChangesRequest { store_id: Some(vec![1; 16].into()), ..from(1) };
        refused(client.feed.changes(other).await, Code::FailedPrecondition, "INCARNATION_MISMATCH");
        let ours = pb::ChangesRequest { store_id: Some(whole.start.store_id), ..from(5) };
        assert!(Reader::start(&mut client, ours).await.unwrap().all().await.changes.is_empty());
    });
}

#[test]
fn a_change_with_more_events_than_a_frame_comes_in_parts() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let events: Vec<_> = (0..10).map(|_| note(format!("\"{}\"", "x".repeat(100_000)))).collect();
        client.append(batch("s", 0, events)).await.unwrap();
        let reader = Reader::start(&mut client, from(2)).await.unwrap().all().await;
        let seqs: Vec<_> = reader.changes.iter().flat_map(|change| &change.events).map(|event| event.seq).collect();
        assert_eq!(seqs, (0..10).collect::<Vec<_>>());
        let partial: Vec<_> = reader.changes.iter().map(|change| change.is_partial).collect();
        assert!(
            partial.len() > 3 && partial.iter().rev().skip(1).all(|partial| *partial) && !partial[partial.len() - 1]
        );
        assert_eq!(reader.changes.last().unwrap().chain, client.head("s").await.chain);
    });
}

/// Does everything that can be committed.
async fn act(client: &mut Client) {
    let header = pb::Header { id: "p".to_owned(), ..Default::default() };
    let create =
        pb::CreateSessionRequest { header: Some(header), profile: Some(pb::Profile::Raw.into()), ..Default::default() };
    client.sessions.create_session(create).await.unwrap();
    client.append(batch("p", 0, notes("a", 3))).await.unwrap();
    let open_turn = pb::NewEvent { r#type: "turn/start".to_owned(), ..note(r#"{"turn":1}"#) };
    client.append(batch("p", 3, vec![open_turn])).await.unwrap();
    let prepare = pb::PrepareRequest { session_id: "p".to_owned(), holder: "host".to_owned(), ..Default::default() };
    let mut frames = client.owners.prepare(prepare).await.unwrap().into_inner();
    while frames.message().await.unwrap().is_some() {}
    let child = |seq| pb::ForkRequest {
        session_id: "p".to_owned(),
        child_id: Some("c".to_owned()),
        boundary: Some(pb::Boundary::Inclusive.into()),
        boundary_seq: Some(seq),
        ..Default::default()
    };
    client.forks.fork(child(1)).await.unwrap();
    let detach = pb::DetachRequest { session_id: "c".to_owned(), ..Default::default() };
    let mut steps = client.forks.detach(detach).await.unwrap().into_inner();
    while steps.message().await.unwrap().is_some() {}
    let delete = pb::DeleteSessionRequest { session_id: "p".to_owned(), epoch: Some(1), ..Default::default() };
    client.sessions.delete_session(delete).await.unwrap();
    let mut steps = client.admin.purge(pb::PurgeRequest::default()).await.unwrap().into_inner();
    while steps.message().await.unwrap().is_some() {}
}

/// What the feed tells of it.
async fn told(client: &mut Client) -> Vec<pb::Change> {
    let changes = Reader::start(client, from(1)).await.unwrap().all().await.changes;
    let of = |kind: &str| -> Vec<_> { changes.iter().filter(|change| change.kind == kind).cloned().collect() };
    let mut kinds: Vec<_> = changes.iter().map(|change| change.kind.as_str()).collect();
    kinds.dedup();
    assert_eq!(kinds, ["create", "append", "repair", "owner", "fork", "detach", "delete", "purge"]);
    assert!(changes.iter().all(|change| !change.session_id.is_empty() && change.incarnation.len() == 16));
    let repair = &of("repair")[0];
    assert_eq!((repair.first_seq, repair.next_seq, repair.events.len()), (4, 5, 1));
    assert_eq!(repair.events[0].r#type, "turn/end");
    let owner = of("owner")[0].owner.clone().unwrap();
    assert_eq!((owner.epoch, owner.holder.as_str(), owner.state()), (1, "host", pb::OwnerState::Reserved));
    let fork = &of("fork")[0];
    let header = fork.header.as_ref().unwrap();
    assert_eq!(
        (header.id.as_str(), header.parent_session.as_deref(), fork.profile()),
        ("c", Some("p"), pb::Profile::Raw)
    );
    let [shared] = fork.inherited.as_slice() else { panic!("{:?}", fork.inherited) };
    assert_eq!((shared.session_id.as_str(), shared.until_seq, fork.first_seq), ("p", 2, 2));
    assert_eq!(shared.incarnation, changes[0].incarnation);
    assert_eq!((fork.next_seq, fork.events.len()), (3, 1), "the marker");
    assert_eq!(of("detach").last().unwrap().first_seq, 0, "the log stands alone");
    assert_eq!((of("delete")[0].first_seq, of("purge")[0].first_seq), (5, 0));
    changes
}

#[test]
fn each_kind_of_change_says_what_changed_also_after_a_restart_and_without_an_index() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        act(&mut client).await;
        told(&mut client).await;

        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        act(&mut client).await;
        let before = told(&mut client).await;
        server.end();
        let alone = journal_alone(dir.path());
        for dir in [dir.path(), alone.path()] {
            let server = Process::start(dir, &[]);
            let mut client = server.client().await;
            assert_eq!(told(&mut client).await, before);
            server.end();
        }
    });
}
