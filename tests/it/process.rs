//! The server as a process: configuration, signals, the lock on its directory.

use std::process::{Command, Stdio};

use quipu::rpc::pb;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::follow::{Follower, following};
use crate::support::process::{Process, quipu, run_with};
use crate::support::{Calls, Read, all_of, batch, note, notes, refused, run, stored};

fn serve(args: &[&str]) -> (Option<i32>, String, String) {
    let output = run_with(quipu().arg("serve").args(args), b"");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn all_problems_of_a_configuration_are_said_at_once_with_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("quipu.toml");
    std::fs::write(&file, "reads_max = \"many\"\nno_such = 1\nsegment_bytes = \"1MiB\"\n").unwrap();
    for extra in [&["--check-config"][..], &[]] {
        let flags = ["--config", file.to_str().unwrap(), "--listen", "0.0.0.0:1", "--accept-window", "soon"];
        let flags = [&flags[..], &["--log", "quipu=loudly", "--spare-segments", "0"], extra].concat();
        let (code, out, problems) = serve(&flags);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        let wanted = ["reads_max", "no_such", "segment_bytes", "listen", "--accept-window", "log", "spare_segments"];
        for problem in wanted {
            assert!(problems.contains(problem), "{problem} is not in:\n{problems}");
        }
    }
    let (code, _, problem) = serve(&["--config", "/does/not/exist.toml"]);
    assert_eq!(code, Some(2));
    assert!(problem.contains("/does/not/exist.toml"), "{problem}");
    assert_eq!(serve(&["--no-such-flag"]).0, Some(2));
}

#[test]
fn a_good_configuration_is_checked_and_printed_without_touching_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap(), "--reads-max", "7", "--drain-timeout", "90s"];
    let (code, out, _) = serve(&[&flags[..], &["--check-config"]].concat());
    assert_eq!((code, out.trim()), (Some(0), "the configuration is good"));
    let (code, printed, _) = serve(&[&flags[..], &["--print-config"]].concat());
    assert_eq!(code, Some(0));
    assert!(printed.contains("reads_max = 7") && printed.contains("drain_timeout = \"90s\""), "{printed}");
    assert!(!data.exists());
    // What is printed is a file that means the same.
    let file = dir.path().join("printed.toml");
    std::fs::write(&file, &printed).unwrap();
    let (code, again, _) = serve(&["--config", file.to_str().unwrap(), "--print-config"]);
    assert_eq!((code, again), (Some(0), printed));
}

#[test]
fn the_term_signal_ends_streams_keeps_what_was_acknowledged_and_exits_with_0() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Process::start(dir.path(), &["--accept-window", "30s"]);
        let mut client = server.client().await;
        client.make("s").await;
        let big = |seq: u64| vec![note(format!("\"{seq}{}\"", "x".repeat(1 << 20)))];
        for seq in 0..30 {
            client.append(batch("s", seq, big(seq))).await.unwrap();
        }
        let accepted =
            pb::AppendRequest { ack_level: Some(pb::AckLevel::Accepted.into()), ..batch("s", 30, notes("a", 2)) };
        client.append(accepted).await.unwrap();
        // A stream that is open because nobody reads it; more than the windows of the connection hold.
        let stream = client.log.read_from(all_of("s")).await.unwrap().into_inner();
        let channel = tonic::transport::Endpoint::new(server.address.clone()).unwrap().connect().await.unwrap();
        let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
        let mut watch = HealthClient::new(channel).watch(request).await.unwrap().into_inner();
        let began = std::time::Instant::now();
        server.signal("TERM");
        while watch.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {}
        drop(watch);
        let read = Read::of(stream).await;
        let count = read.seqs().len() as u64;
        assert_eq!(read.seqs(), (0..count).collect::<Vec<_>>());
        let end = read.end.unwrap_or_else(|| panic!("a stream that is cut short says so: {:?}", read.refusal));
        assert_eq!((end.reason(), end.next_seq), (pb::ReadEndReason::Draining, count));
        assert!(count < 30, "the stream was still open");
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
        assert!(began.elapsed().as_secs() < 20, "the window of ACCEPTED does not hold up the end");

        let server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        let head = client.head("s").await;
        assert_eq!((head.next_seq, head.durable_next_seq), (32, 32));
        let read = client.read(pb::ReadFromRequest { from_seq: 29, ..all_of("s") }).await.unwrap();
        assert_eq!(read.events()[1..], stored(30, &notes("a", 2)));
        server.end();
    });
}

/// cases.md C101, C102: followers, a stream whose client never leaves, and an append that is not synced hold nobody up;
/// the last line of the log says what was flushed.
#[test]
fn clients_that_never_leave_do_not_hold_up_the_end() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Process::start(dir.path(), &["--accept-window", "30s", "--drain-timeout", "20s"]);
        let mut client = server.client().await;
        client.make("s").await;
        let accepted = |first| pb::AppendRequest {
            ack_level: Some(pb::AckLevel::Accepted.into()),
            ..batch("s", first, notes("a", 1))
        };
        client.append(accepted(0)).await.unwrap();
        let mut followers = Vec::new();
        for _ in 0..100 {
            followers.push(Follower::start(&mut client, following("s", 0)).await);
        }
        // Its request never ends, and it reads no answers.
        let frames = tokio_stream::pending::<pb::AppendStreamRequest>();
        let stubborn = client.log.append_stream(frames).await.unwrap();
        // Connected, and says nothing: no goodbye of the server reaches anybody.
        let silent = std::net::TcpStream::connect(server.address.trim_start_matches("http://")).unwrap();
        client.append(accepted(1)).await.unwrap();
        let began = std::time::Instant::now();
        server.signal("TERM");
        for follower in followers {
            assert_eq!(follower.ended().await, pb::ReadEndReason::Draining);
        }
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        let log = server.log();
        let last: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        // What waited for the window of ACCEPTED: two changes, in one group or in two.
        assert_eq!((&last["message"], &last["position"], &last["flushed"]), (&"closed".into(), &3.into(), &2.into()));
        drop((stubborn, silent));

        let server = Process::start(dir.path(), &[]);
        let head = server.client().await.head("s").await;
        assert_eq!((head.next_seq, head.durable_next_seq), (2, 2));
        server.end();
    });
}

#[test]
fn a_second_signal_ends_at_once() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // A call that never ends keeps the first phase busy: a request whose body stays open.
        let mut server = Process::start(dir.path(), &["--drain-timeout", "10m"]);
        let channel = tonic::transport::Endpoint::new(server.address.clone()).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel);
        let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
        let mut watch = health.watch(request).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        server.signal("TERM");
        server.wait_for("shutting down").unwrap();
        // It says so to whoever watches, before it goes.
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(130), "{}", server.log());
    });
}

#[test]
fn a_second_server_on_the_same_directory_is_refused_with_3_and_told_who_holds_it() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let first = Process::start(dir.path(), &[]);
        let mut second = Process::spawn(dir.path(), &["--lock-wait", "0s"]);
        assert_eq!(second.wait().code(), Some(3));
        let log = second.log();
        assert!(log.contains(&format!("process {}", first.id())), "{log}");
        let mut client = first.client().await;
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 1))).await.unwrap();
        first.end();
    });
}

#[test]
fn a_directory_that_is_no_store_is_refused_with_3() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("FORMAT"), "quipu store\nformat 99\n").unwrap();
    assert_eq!(Process::spawn(dir.path(), &[]).wait().code(), Some(3));
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(Process::spawn(&file, &[]).wait().code(), Some(3));
}

#[test]
fn a_stopped_server_leaves_no_reader_with_a_shorter_log() {
    // The CLI says with its exit code that a read did not reach the end.
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Process::start(dir.path(), &[]);
        let mut client = server.client().await;
        client.make("s").await;
        for seq in 0..40 {
            client.append(batch("s", seq, vec![note(format!("\"{}\"", "x".repeat(1 << 20)))])).await.unwrap();
        }
        let mut command = quipu();
        command.args(["read", "s", "--json", "--address", &server.address]);
        let mut reader = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It has begun to print, and waits for us to read the pipe.
        let mut first = [0; 1];
        std::io::Read::read_exact(reader.stdout.as_mut().unwrap(), &mut first).unwrap();
        server.signal("TERM");
        server.wait_for("shutting down").unwrap();
        let output = reader.wait_with_output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap().lines().count();
        assert!(lines < 40, "the read was cut short");
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(server.wait().code(), Some(0));
    });
}

#[test]
fn a_port_that_is_taken_is_a_clear_failure() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quipu"));
    command.args(["serve", "--listen", &address, "--data-dir"]).arg(dir.path());
    let output = run_with(&mut command, b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&address));
}

#[test]
fn the_server_refuses_writes_while_it_drains() {
    run(async {
        let node = crate::support::Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        node.service.refuse_writes();
        let refusal = refused(client.append(batch("s", 0, notes("a", 1))).await, Code::Unavailable, "DRAINING");
        assert!(refusal.delay().is_some());
        refused(client.remove("s").await, Code::Unavailable, "DRAINING");
        client.get("s").await.unwrap();
    });
}

#[test]
fn connections_beyond_the_limit_wait_for_a_place() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::start(dir.path(), &["--connections-max", "2"]);
        let (mut first, mut second) = (server.client().await, server.client().await);
        first.make("s").await;
        second.get("s").await.unwrap();
        // The operating system takes the connection, but nobody answers on it.
        let mut third = server.client().await;
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(300), third.get("s")).await;
        assert!(waiting.is_err(), "{waiting:?}");
        drop(first);
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), third.get("s")).await;
        answer.expect("a place became free").unwrap();
        server.end();
    });
}
