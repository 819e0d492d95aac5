//! A session that comes back to memory costs its tail, not its log; and whatever became of its note, it is the same.

use std::path::Path;
use std::sync::Arc;

use quipu::model::{Header, NewEvent, Profile, Seq, SessionKey, SurfaceOp};
use quipu::replay::fork::ForkAt;
use quipu::replay::history::PageRequest;
use quipu::service::{AckLevel, Append, Ask, Options, Service};
use quipu::store::local::{LocalStore, Options as StoreOptions};
use quipu::store::{Note, Store};

use crate::support::counting::CountingStore;
use crate::support::run;

/// Events of one turn of the log.
const TURN: usize = 100;

fn event(kind: &str, data: String) -> NewEvent {
    let is_node = matches!(kind, "user/message" | "assistant/message" | "tool/result");
    NewEvent {
        time_ms: 1,
        kind: kind.into(),
        data: data.into(),
        ignorable: false,
        surface_op: is_node.then_some(SurfaceOp::Append),
        source_event_seqs: None,
    }
}

/// One turn; the last one of a log is left open, its call unanswered.
fn turn(number: usize, is_open: bool) -> Vec<NewEvent> {
    let place = format!(r#""turn":{number},"step":1"#);
    let mut events = vec![
        event("turn/start", format!(r#"{{"turn":{number}}}"#)),
        event("step/start", format!("{{{place}}}")),
        event(
            "user/message",
            r#"{"id":"u","role":"user","source":{"kind":"user"},"content":[{"type":"text","text":"x"}]}"#.into(),
        ),
    ];
    if number == 1 {
        let header = r#"{"reason":"initial","header":{"config":{"provider":"p","model":"m"},"system":"S","tools":[]}}"#;
        events.push(event("request/header", header.to_owned()));
    }
    let rest = TURN - events.len() - 5;
    for _ in 0..rest {
        let chunk = format!(r#"{{{place},"chunk":{{"type":"text-delta","index":0,"text":"word "}}}}"#);
        events.push(event("assistant/chunk", chunk));
    }
    let call = r#"{"type":"tool-call","id":"c","name":"bash","arguments":"{}"}"#;
    let message = format!(
        r#"{{{place},"message":{{"id":"a","role":"assistant","source":{{"kind":"model","provider":"p","model":"m"}},"content":[{call}]}}}}"#
    );
    events.push(event("assistant/message", message));
    events.push(event("tool/call", format!(r#"{{{place},"callId":"c","name":"bash","arguments":"{{}}"}}"#)));
    if !is_open {
        let result = r#""message":{"id":"r","role":"user","source":{"kind":"tool","callId":"c"},"content":[{"type":"tool-result","toolCallId":"c","content":[]}]}"#;
        events.push(event("tool/result", format!("{{{place},{result}}}")));
        events.push(event("step/end", format!("{{{place}}}")));
        events.push(event("turn/end", format!(r#"{{"turn":{number},"reason":{{"kind":"completed"}}}}"#)));
    }
    events
}

fn key() -> SessionKey {
    SessionKey::new("default", "s").unwrap()
}

fn ask() -> Ask {
    Ask { key: key(), incarnation: None, before: None, is_balanced: false }
}

fn append(first_seq: u64, events: Vec<NewEvent>) -> Append {
    let first_seq = Seq::new(first_seq).unwrap();
    Append { key: key(), first_seq, events, level: AckLevel::Accepted, strict: false, incarnation: None, epoch: None }
}

/// A store and a service over it that starts with nothing in memory.
fn serve(dir: &Path, log_only_types: &[&str], idle_sessions_max: usize) -> (Arc<CountingStore>, Service) {
    let store = LocalStore::open(dir, StoreOptions::default()).unwrap();
    let store = Arc::new(CountingStore::over(Arc::new(store)));
    let log_only_types = log_only_types.iter().map(|&kind| kind.to_owned()).collect();
    let options = Options { log_only_types, idle_sessions_max, ..Options::default() };
    let service = Service::new(store.clone(), options);
    (store, service)
}

/// Ends a service; whoever holds its store lets go.
async fn stop((store, service): (Arc<CountingStore>, Service)) {
    service.close().await;
    drop((store, service));
}

/// Ends a service that had no time to say good-bye.
async fn kill((store, service): (Arc<CountingStore>, Service)) {
    store.close();
    let inner = store.inner();
    drop((store, service));
    // Tasks of the service may still be on their way out; the last to let go of the directory is this one.
    while Arc::strong_count(&inner) > 1 {
        tokio::task::yield_now().await;
    }
}

/// A log of that many turns, the last one open.
async fn fill(service: &Service, turns: usize) -> u64 {
    service.create(key(), (Header::default(), Profile::Dsh, false), None).await.unwrap();
    let mut next = 0;
    for number in 1..=turns {
        let events = turn(number, number == turns);
        next = service.append(append(next, events)).await.unwrap().head.next_seq.get();
    }
    service.flush(&key(), None).await.unwrap();
    next
}

/// What a session says of itself, as text.
async fn account(service: &Service) -> String {
    let head = service.append(append(0, turn(1, false))).await.unwrap().head;
    let (_, closers) = service.closers(&ask()).await.unwrap();
    let (_, header) = service.latest_header(&ask()).await.unwrap();
    let (_, surface, counts) = service.surface(&ask(), (0, usize::MAX)).await.unwrap();
    let mut cuts = Vec::new();
    for at in [ForkAt::Head, ForkAt::LastTurn, ForkAt::Anchor(Seq::ZERO), ForkAt::Inclusive(Seq::new(7).unwrap())] {
        cuts.push(service.cut(&key(), at).await.map_err(|error| (error.reason, error.message)));
    }
    format!("{:?} {closers:?} {header:?} {surface:?} {counts:?} {cuts:?}", (head.next_seq, head.chain))
}

#[test]
fn after_a_restart_everything_at_the_end_costs_the_tail() {
    run(async {
        for turns in [20, 150] {
            let dir = tempfile::tempdir().unwrap();
            let (store, service) = serve(dir.path(), &[], 100);
            let next = fill(&service, turns).await;
            let before = account(&service).await;
            stop((store, service)).await;
            for what in ["all", "closers", "header", "fork", "history"] {
                let (store, service) = serve(dir.path(), &[], 100);
                match what {
                    // Broken nesting, which only a log that was folded can tell.
                    "closers" => assert_eq!(service.closers(&ask()).await.unwrap().1.len(), 3),
                    "all" => {
                        assert_eq!(account(&service).await, before);
                        stop((store, service)).await;
                        continue;
                    }
                    "header" => assert!(service.latest_header(&ask()).await.unwrap().1.is_some()),
                    "fork" => drop(service.cut(&key(), ForkAt::LastTurn).await.unwrap()),
                    _ => {
                        let mut page = service.history(&ask(), PageRequest::default()).await.unwrap();
                        while !page.next(1 << 20).await.unwrap().is_empty() {}
                    }
                }
                let read = store.take();
                let page = 50 / 2 * TURN as u64;
                let most = if what == "history" { 5 * page } else { 800 };
                assert!(read <= most, "{what} of {next} events reads {read}");
                stop((store, service)).await;
            }
        }
    });
}

#[test]
fn the_first_append_after_a_restart_does_not_read_the_log() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, service) = serve(dir.path(), &[], 100);
        let next = fill(&service, 200).await;
        stop((store, service)).await;
        let (store, service) = serve(dir.path(), &[], 100);
        let end = vec![event("step/end", r#"{"turn":200,"step":1}"#.into())];
        let appended = service.append(append(next, end)).await.unwrap();
        assert_eq!(appended.reports.len(), 1, "the call that is unanswered is known: {:?}", appended.reports);
        assert!(store.take() < 100, "the note says all");
        stop((store, service)).await;
    });
}

#[test]
fn a_killed_server_leaves_at_most_one_interval_to_be_folded() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, service) = serve(dir.path(), &[], 100);
        let next = fill(&service, 200).await;
        // The service had no time to say good-bye; what it noted on the way is in the index by the last checkpoint.
        kill((store, service)).await;
        let (store, service) = serve(dir.path(), &[], 100);
        service.latest_header(&ask()).await.unwrap();
        let read = store.take();
        assert!(next > 19_000 && read < 9000, "{read} of {next} events were read");
        stop((store, service)).await;
    });
}

#[test]
fn a_session_that_left_memory_resumes_from_its_note() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, service) = serve(dir.path(), &[], 1);
        fill(&service, 30).await;
        let before = account(&service).await;
        for other in ["a", "b"] {
            let key = SessionKey::new("default", other).unwrap();
            service.create(key, (Header::default(), Profile::Dsh, false), None).await.unwrap();
        }
        store.take();
        service.latest_header(&ask()).await.unwrap();
        assert!(store.take() < 800, "the header, and what lies around it");
        assert_eq!(account(&service).await, before);
        stop((store, service)).await;
    });
}

#[test]
fn a_note_that_is_not_about_the_log_is_passed_over() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, service) = serve(dir.path(), &[], 100);
        let next = fill(&service, 30).await;
        let before = account(&service).await;
        stop((store, service)).await;
        let (store, service) = serve(dir.path(), &[], 100);
        let log = store.find(&key()).unwrap().unwrap().session.log;
        let good = store.noted(log).expect("the service left one");
        kill((store, service)).await;
        let other_chain = quipu::codec::Chain([7; 32]);
        let seq = |n| Seq::new(n).unwrap();
        let bad = [
            Note { chain: other_chain, ..good.clone() },
            Note { next_seq: seq(next + 1), ..good.clone() },
            Note { next_seq: seq(next - 7), ..good.clone() },
            Note { next_seq: seq(next - 7), chain: other_chain, ..good.clone() },
            Note { bytes: good.bytes.slice(..good.bytes.len() - 1), ..good.clone() },
            Note { bytes: "nonsense".into(), ..good.clone() },
            Note { bytes: "".into(), ..good.clone() },
        ];
        for note in bad {
            let (store, service) = serve(dir.path(), &[], 100);
            store.note(log, note.clone());
            let (_, header) = service.latest_header(&ask()).await.unwrap();
            assert!(header.is_some() && store.take() >= next, "folded from the start: {:?}", note.next_seq);
            assert_eq!(account(&service).await, before);
            stop((store, service)).await;
        }
    });
}

#[test]
fn the_types_that_mean_nothing_may_change_between_two_lives_of_a_server() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, service) = serve(dir.path(), &["plugin/a"], 100);
        let next = fill(&service, 2).await;
        let unknown =
            vec![event("plugin/a", "{}".into()), event("plugin/b", "{}".into()), event("plugin/c", "{}".into())];
        service.append(append(next, unknown)).await.unwrap();
        stop((store, service)).await;
        for (log_only, blamed) in [
            (&["plugin/a"][..], Some("plugin/b")),
            (&[], Some("plugin/a")),
            (&["plugin/b"], Some("plugin/a")),
            (&["plugin/b", "plugin/a"], Some("plugin/c")),
            (&["plugin/b", "plugin/a", "plugin/c"], None),
            (&["plugin/a"], Some("plugin/b")),
        ] {
            let (store, service) = serve(dir.path(), log_only, 100);
            match (service.latest_header(&ask()).await, blamed) {
                (Err(error), Some(kind)) => assert!(error.to_string().contains(kind), "{log_only:?}: {error}"),
                (Ok(_), None) => {}
                (outcome, _) => panic!("{log_only:?}: {outcome:?}"),
            }
            stop((store, service)).await;
        }
    });
}
