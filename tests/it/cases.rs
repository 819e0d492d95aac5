//! Failure cases that others have lived through, as calls to a server; the list of all is in tests/core.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use quipu::model::{Profile, Seq};
use quipu::replay::repair::closers;
use quipu::rpc::pb;
use quipu::service::{Ask, Options, Reason};
use quipu::store::memory::MemoryStore;
use quipu::store::{Change, LogId, Run, Store, StoreError};
use tonic::Code;

use crate::support::host::*;
use crate::support::process::Process;
use crate::support::{Calls, Node, all_of, batch, note, notes, refused, run, skipped};

/// Every file and directory below a directory.
fn tree(dir: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        names.insert(path.display().to_string());
        if path.is_dir() && !path.is_symlink() {
            names.extend(tree(&path));
        }
    }
    names
}

#[test]
fn a_second_server_is_refused_by_every_path_and_while_the_first_is_stopped_c55() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        let mut first = Process::start(&dir, &[]);
        let mut client = first.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 2))).await.unwrap();
        let link = home.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        let bound = Bound::new(&dir, home.path().join("bound"));
        let mut paths = vec![dir.clone(), link, dir.join(".")];
        paths.extend(bound.as_ref().map(|bound| bound.0.clone()));
        for is_stopped in [false, true] {
            if is_stopped {
                first.signal("STOP");
            }
            for path in &paths {
                let mut second = Process::spawn(path, &["--lock-wait", "0s"]);
                assert_eq!(second.wait().code(), Some(3), "{}: {}", path.display(), second.log());
                let log = second.log();
                assert!(log.contains(&first.id().to_string()), "the holder is not named: {log}");
            }
        }
        first.signal("CONT");
        client.append(batch("s", 2, notes("b", 1))).await.unwrap();
        // Its lock goes with it, at once and whatever it left behind.
        first.kill();
        let next = Process::start(&dir, &["--lock-wait", "0s"]);
        assert_eq!(next.client().await.head("s").await.next_seq, 3);
        next.end();
    });
}

/// A directory in another place, as long as this lives.
struct Bound(std::path::PathBuf);

impl Bound {
    fn new(dir: &Path, place: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir(&place).unwrap();
        let mounted = Command::new("mount").arg("--bind").args([dir, &place]).output();
        if mounted.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(Self(place));
        }
        skipped(&format!("a bind mount: {mounted:?}"));
        None
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn an_id_is_never_a_path_and_ids_differ_in_every_byte_c71() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let (dir, out) = (home.path().join("store"), home.path().join("out"));
        let server = Process::start(&dir, &[]);
        let mut client = server.client().await;
        let full = "x".repeat(128);
        let ids = [
            "../x",
            "..",
            ".",
            "/etc/x",
            "a/b",
            "a\\b",
            "C:x",
            "%2e%2e%2f",
            "CON",
            " a ",
            "a",
            "A",
            "a ",
            "\u{e9}",
            "e\u{301}",
            &full,
        ];
        for (at, id) in ids.iter().enumerate() {
            client.make(id).await;
            client.append(batch(id, 0, vec![note(format!("{at}"))])).await.unwrap();
        }
        // Each is a session of its own, in every call.
        for (at, id) in ids.iter().enumerate() {
            let read = client.read(all_of(id)).await.unwrap();
            assert_eq!(read.events()[0].data, at.to_string(), "{id}");
            let child = format!("{at}/../child");
            let fork =
                pb::ForkRequest { session_id: (*id).to_owned(), child_id: Some(child.clone()), ..Default::default() };
            let forked = client.forks.fork(fork).await.unwrap().into_inner().session.unwrap();
            assert_eq!(forked.header.unwrap().parent_session.as_deref(), Some(*id));
            let done = server.json(&["export", "--to", out.to_str().unwrap(), &child], b"");
            let file = std::path::PathBuf::from(done[0]["file"].as_str().unwrap());
            assert_eq!(file.parent(), Some(&*out), "{child} is exported to {}", file.display());
        }
        for id in ["", "a\u{0}b", "a\nb", &"x".repeat(129), &"x".repeat(10_000)] {
            refused(client.get(id).await, Code::InvalidArgument, "INVALID_ID");
            refused(client.append(batch(id, 0, notes("a", 1))).await, Code::InvalidArgument, "INVALID_ID");
            let fork = pb::ForkRequest { child_id: Some(id.to_owned()), ..Default::default() };
            refused(
                client.forks.fork(pb::ForkRequest { session_id: "a".to_owned(), ..fork }).await,
                Code::InvalidArgument,
                "INVALID_ID",
            );
        }
        let own = [dir.display().to_string(), out.display().to_string()];
        let strangers: Vec<_> =
            tree(home.path()).into_iter().filter(|path| !own.iter().any(|own| path.starts_with(own))).collect();
        assert!(strangers.is_empty(), "{strangers:?}");
        let told = ["x", "etc", "child", "CON"];
        let names = tree(&dir);
        assert!(!names.iter().any(|path| told.iter().any(|name| path.ends_with(&format!("/{name}")))), "{names:?}");
        server.end();
    });
}

#[test]
fn limits_of_names_are_bytes_and_hold_before_anything_is_made_c73() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        let create = |id: String, cwd: Option<String>| pb::CreateSessionRequest {
            header: Some(pb::Header { id, cwd, ..Default::default() }),
            ..Default::default()
        };
        let (three, four) = ("\u{4e2d}", "\u{1f600}");
        for (letter, bytes) in [(three, 3), (four, 4), ("x", 1)] {
            for count in [32, 42, 43, 85, 86, 128, 129, 255, 300] {
                let id = letter.repeat(count);
                let made = client.sessions.create_session(create(id.clone(), None)).await;
                if bytes * count <= 128 {
                    made.unwrap();
                } else {
                    refused(made, Code::InvalidArgument, "INVALID_ID");
                    refused(client.get(&id).await, Code::InvalidArgument, "INVALID_ID");
                }
            }
        }
        for (at, letter) in [three, four].into_iter().enumerate() {
            for count in [85, 86, 255, 300] {
                let cwd = format!("/{}", letter.repeat(count));
                let id = format!("cwd-{at}-{count}");
                client.sessions.create_session(create(id.clone(), Some(cwd.clone()))).await.unwrap();
                assert_eq!(client.get(&id).await.unwrap().header.unwrap().cwd, Some(cwd));
            }
        }
        let long = create("long".to_owned(), Some(format!("/{}", three.repeat(1000))));
        refused(client.sessions.create_session(long).await, Code::InvalidArgument, "INVALID_REQUEST");
        refused(client.get("long").await, Code::NotFound, "SESSION_NOT_FOUND");
        server.end();
        let server = Process::start(dir.path(), &[]);
        let head = server.client().await.head(&four.repeat(32)).await;
        assert_eq!(head.next_seq, 0);
        server.end();
    });
}

/// A disk whose every sync takes its time: the fault, not a wait for something.
#[derive(Default)]
struct Slow {
    inner: MemoryStore,
}

impl Slow {
    const SYNC: Duration = Duration::from_millis(50);
}

impl Store for Slow {
    pass_on!();

    fn commit(&self, changes: &[Change], time_ms: u64) -> Result<(), StoreError> {
        std::thread::sleep(Self::SYNC);
        self.inner.commit(changes, time_ms)
    }

    fn read(&self, log: LogId, from: Seq, bytes_max: usize) -> Result<Vec<Run>, StoreError> {
        self.inner.read(log, from, bytes_max)
    }
}

#[test]
fn two_hundred_writers_at_a_slow_disk_wait_and_none_is_refused_c95() {
    run(async {
        let node = Node::over(Arc::new(Slow::default()), Options::default()).await;
        let mut client = node.client().await;
        client.make("large").await;
        let large: Vec<_> = (0..500).map(|n| note(format!("\"{n}{}\"", "x".repeat(10_000)))).collect();
        client.append(batch("large", 0, large)).await.unwrap();
        let mut writing = tokio::task::JoinSet::new();
        for number in 0..200 {
            let mut client = node.client().await;
            writing.spawn(async move {
                let id = format!("s{number}");
                client.make(&id).await;
                for round in 0..3 {
                    // A result and the message around it: both or none.
                    let pair = vec![note(format!("\"{round} result\"")), note(format!("\"{round} message\""))];
                    client.append(batch(&id, round * 2, pair)).await.unwrap();
                }
                let read = client.read(all_of(&id)).await.unwrap();
                assert_eq!(read.seqs(), (0..6).collect::<Vec<_>>());
            });
        }
        let mut exports = 0;
        while !writing.is_empty() {
            let read = client.read(all_of("large")).await.unwrap();
            assert!(read.refusal.is_none() && read.events().len() == 500);
            exports += 1;
            while let Some(done) = writing.try_join_next() {
                done.unwrap();
            }
        }
        println!("the large session was read {exports} times meanwhile");
    });
}

#[test]
fn what_is_balanced_has_a_result_for_each_call_or_is_said_to_be_broken_c08_c10() {
    run(async {
        let host = Host::over(Arc::new(MemoryStore::new()));
        let twice = ["d".to_owned(), "d".to_owned()];
        let start = [turn_start(1), step("step/start", 1, 1), user("m")];
        let broken = [
            ("an id announced twice", vec![assistant((1, 1), &twice), call((1, 1), "d"), result((1, 1), "d")]),
            ("a result without a call", vec![assistant((1, 1), &[]), result((1, 1), "zz")]),
            (
                "two results of a call",
                vec![assistant((1, 1), &twice[..1]), call((1, 1), "d"), result((1, 1), "d"), result((1, 1), "d")],
            ),
            ("a call that nobody announced", vec![assistant((1, 1), &[]), call((1, 1), "zz"), result((1, 1), "zz")]),
        ];
        for (at, (what, rest)) in broken.into_iter().enumerate() {
            let events = events_from(0, &[start.to_vec(), rest].concat());
            // The strict profile has no such log.
            let strict = format!("strict-{at}");
            host.create(&strict, Profile::DshStrict).await;
            assert_eq!(reason(host.append(&strict, 0, &events, None).await), Reason::BracketViolation, "{what}");
            assert_eq!(host.head(&strict).await.next_seq, Seq::ZERO, "{what}");
            // The plain one takes it, and says so: at once, in the head, and in the view.
            let id = format!("dsh-{at}");
            host.create(&id, Profile::Dsh).await;
            let appended = host.append(&id, 0, &events, None).await.unwrap();
            assert!(!appended.reports.is_empty(), "{what}");
            host.load(&id).await.unwrap();
            assert_eq!(host.read(&id).await, [&events[..], &closers(&events)].concat(), "{what}");
            let ask = Ask { key: key(&id), incarnation: None, before: None, is_balanced: false };
            let conversation = host.service.messages(&ask).await.unwrap();
            assert_ne!(conversation.pairing, Ok(true), "{what}: a provider would refuse it, and nothing says so");
            assert!(host.head(&id).await.tail.unwrap().breaches > 0, "{what}");
        }
    });
}
