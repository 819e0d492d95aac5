//! The operator's commands against a real server.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::process::{Process, quipu, run_with};
use crate::support::python::file;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn commands_with_json_go_round() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    let create = ["create", "s1", "--cwd", "/work", "--label", "team=a=b", "--preset", "p", "--profile", "raw"];
    let made = server.json(&create, b"");
    assert_eq!(made[0]["header"]["labels"], json!({"team": "a=b"}));
    assert_eq!((&made[0]["profile"], &made[0]["head"]["next_seq"]), (&json!("raw"), &json!(0)));
    assert_eq!(server.json(&create, b"")[0]["header"], made[0]["header"], "again is harmless");
    let other = server.command(&["create", "s1", "--profile", "raw"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("SESSION_EXISTS"), "{}", text(&other.stderr));

    // Lines as read prints them; the second in the form with everything, the third with line breaks in its data.
    let input = concat!(
        r#"{"type":"note","data":{"a": [1.0, "\ud83c"]},"time":5}"#,
        "\n\n",
        r#"{"type":"x","seq":1,"time":-7,"data":"\u001b[31m","surfaceOp":{"op":"replace","start":0,"end":0},"sourceEventSeqs":[],"ignorable":true}"#,
        "\n",
        r#"{"type":"dataHex","seq":2,"time":1,"dataHex":"5b0a0d315d"}"#,
        "\n",
    );
    let answer = server.json(&["append", "s1"], input.as_bytes());
    assert_eq!(answer, [json!({"session_id": "s1", "appended": 3, "next_seq": 3})]);
    let again = server.json(&["append", "s1", "--first-seq", "0"], input.as_bytes());
    assert_eq!(again[0]["next_seq"], 3, "with its first seq the command can be repeated");

    let read = server.command(&["read", "s1", "--json"]);
    let lines: Vec<_> = text(&read.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines[0], r#"{"type":"note","seq":0,"time":5,"data":{"a": [1.0, "\ud83c"]}}"#);
    assert_eq!(lines[1], input.lines().nth(2).unwrap());
    assert_eq!(lines[2], input.lines().nth(3).unwrap());
    // What read prints, append takes: into another session, byte for byte.
    server.json(&["create", "s2", "--profile", "raw"], b"");
    server.json(&["append", "s2", "--accepted", "--batch", "1"], &read.stdout);
    assert_eq!(server.command(&["read", "s2", "--json"]).stdout, read.stdout);
    let chain = |id: &str| server.json(&["stat", id], b"")[0]["head"]["chain"].clone();
    assert_eq!(chain("s1"), chain("s2"));
    assert_eq!(server.json(&["read", "s1", "--from", "1", "--limit", "1"], b"").len(), 1);

    let flushed = server.json(&["flush", "s2"], b"");
    assert_eq!((&flushed[0]["next_seq"], &flushed[0]["durable_next_seq"]), (&json!(3), &json!(3)));
    let listed = server.json(&["ls"], b"");
    let ids: Vec<_> = listed.iter().map(|session| session["header"]["id"].clone()).collect();
    assert_eq!(ids, ["s2", "s1"]);
    assert_eq!(server.json(&["ls", "--cwd", "/work"], b"").len(), 1);
    assert_eq!(server.json(&["ls", "--limit", "1"], b"").len(), 1);
    let removed = server.json(&["rm", "s1", "s2"], b"");
    assert_eq!(removed[1]["head"]["next_seq"], 3);
    assert!(server.json(&["ls"], b"").is_empty());
    let gone = server.command(&["stat", "s1"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("SESSION_NOT_FOUND"));
    server.end();
}

#[test]
fn lines_that_do_not_fit_are_named_and_nothing_after_them_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    server.json(&["create", "s", "--profile", "raw"], b"");
    for (input, word) in [
        ("{\"type\":\"a\",\"data\":1}\n{\"type\":\"a\"", "line 2"),
        ("{\"type\":\"a\",\"data\":1}\nnonsense\n", "line 2"),
        ("{\"type\":\"a\",\"seq\":5,\"time\":1,\"data\":1}\n", "line 1"),
        ("{\"type\":\"a\",\"time\":1,\"data\":-0}\n", "line 1"),
        ("{\"type\":\"a\",\"time\":1,\"dataHex\":\"0\"}\n", "line 1"),
        ("{\"type\":\"a\",\"time\":1,\"dataHex\":\"+1\"}\n", "line 1"),
    ] {
        let output = server.command_with(&["append", "s"], input.as_bytes());
        assert_eq!(output.status.code(), Some(1), "{input}");
        assert!(text(&output.stderr).contains(word), "{input}: {}", text(&output.stderr));
    }
    assert_eq!(server.json(&["stat", "s"], b"")[0]["head"]["next_seq"], 0);
}

#[test]
fn nothing_in_a_log_or_a_name_can_steer_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    let cwd = "/a\u{1b}]0;owned\u{7}\u{202e}b";
    server.json(&["create", "s\u{202e}x", "--cwd", cwd, "--label", "k=\u{1b}[2J", "--preset", "\u{9b}31m"], b"");
    // A raw DEL, C1 controls and direction marks are legal in JSON strings.
    let input = "{\"type\":\"t\u{9b}31m\u{202e}\",\"data\":\"a\u{9b}2J\u{7f}\u{202e}\u{2066}b\"}\n";
    server.json(&["append", "s\u{202e}x"], input.as_bytes());
    let outputs = [
        server.command(&["read", "s\u{202e}x"]),
        server.command(&["stat", "s\u{202e}x"]),
        server.command(&["ls"]),
        server.command(&["flush", "s\u{202e}x"]),
        server.command(&["read", "no\u{202e}\u{1b}[31msuch"]),
        server.command(&["stat", "no\u{202e}such"]),
        server.command(&["import", "/no/\u{1b}[31msuch"]),
        server.command(&["rm", "s\u{202e}x"]),
    ];
    for output in outputs {
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!said.is_empty());
        let steering =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        assert!(!said.contains(steering), "{said:?}");
    }
}

#[test]
fn an_import_can_be_repeated_and_names_what_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    let sample = file("tests/data/samples/dsh-v0-compaction-recovery.jsonl");
    let sample = sample.to_str().unwrap();
    let import = ["import", sample, "--id", "c", "--cwd", "/work"];
    let first: Value = server.json(&import, b"").remove(0);
    assert_eq!((&first["events"], &first["appended"]), (&json!(31), &json!(31)));
    let second = server.json(&import, b"").remove(0);
    assert_eq!((&second["appended"], &second["chain"]), (&json!(0), &first["chain"]));
    // A session of that name with other events is left alone.
    server.json(&["rm", "c"], b"");
    let output = server.command(&["import", "/does/not/exist", sample, "--cwd", "/work"]);
    assert_eq!(output.status.code(), Some(1));
    let broken = dir.path().join("broken.jsonl");
    let content = std::fs::read_to_string(sample).unwrap();
    std::fs::write(&broken, content.replacen("{\"type\":\"turn/start\"", "{\"type\":7", 1)).unwrap();
    let output = server.command(&["import", broken.to_str().unwrap(), "--id", "b", "--cwd", "/work"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("line 3") || text(&output.stderr).contains("line 2"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(server.command(&["stat", "b"]).status.code(), Some(1), "nothing of it was stored");
}

#[test]
fn an_export_of_an_import_of_an_export_is_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(&dir.path().join("store"), &[]);
    let (parent, child) = (file("tests/data/samples/dsh-v0-fork-parent.jsonl"), "dsh-v0-fork-child.jsonl");
    let child = parent.with_file_name(child);
    let imported = |path: &std::path::Path, more: &[&str]| {
        let path = path.to_str().unwrap();
        server.json(&[&["import", path], more].concat(), b"").remove(0)
    };
    let parent = imported(&parent, &["--cwd", "/work"])["session_id"].as_str().unwrap().to_owned();
    let child = imported(&child, &["--cwd", "/work"]);
    let out = dir.path().join("out");
    for form in [&["--zstd", "--packed"][..], &["--packed"], &["--zstd"], &[]] {
        let _ = std::fs::remove_dir_all(&out);
        let to = ["--to", out.to_str().unwrap()];
        let done = server.json(&[&["export", &parent, "--family"], &to[..], form].concat(), b"");
        assert_eq!(done.len(), 2, "the session and its child");
        assert_eq!((&done[1]["session_id"], &done[1]["chain"]), (&child["session_id"], &child["chain"]));
        let path = std::path::PathBuf::from(done[1]["file"].as_str().unwrap());
        let first = std::fs::read(&path).unwrap();
        let refused = server.command(&[&["export", &parent], &to[..], form].concat());
        assert_eq!(refused.status.code(), Some(1), "a file that is there stays");
        let again = imported(&path, &["--namespace", "other"]);
        assert_eq!(again["chain"], child["chain"]);
        let id = again["session_id"].as_str().unwrap();
        server.json(&[&["export", id, "--force", "--namespace", "other"], &to[..], form].concat(), b"");
        assert_eq!(std::fs::read(&path).unwrap(), first, "{form:?}");
        server.json(&["rm", id, "--namespace", "other"], b"");
        let names: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "nothing unfinished stays: {names:?}");
    }
    let plain = server.command(&["export", child["session_id"].as_str().unwrap()]);
    assert_eq!(plain.stdout, std::fs::read(server_file(&out, &child)).unwrap(), "to standard output");
    assert_eq!(server.command(&["export", "nobody", "--to", out.to_str().unwrap()]).status.code(), Some(1));
}

fn server_file(dir: &std::path::Path, session: &Value) -> std::path::PathBuf {
    dir.join(format!("{}.jsonl", session["session_id"].as_str().unwrap()))
}

#[test]
fn without_a_server_a_command_says_how_to_start_one() {
    let output = run_with(quipu().args(["ls", "--address", "http://127.0.0.1:1"]), b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("quipu serve"));
    let help = run_with(quipu().arg("--help"), b"");
    assert!(help.status.success() && text(&help.stdout).contains("Exit codes"));
    let script = run_with(quipu().args(["completions", "bash"]), b"");
    assert!(script.status.success() && text(&script.stdout).contains("quipu"));
}

#[test]
fn a_reader_who_had_enough_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    server.json(&["create", "s", "--profile", "raw"], b"");
    let events = "{\"type\":\"a\",\"data\":\"0123456789\"}\n".repeat(20_000);
    server.json(&["append", "s"], events.as_bytes());
    for args in
        [&["ls"][..], &["stat", "s"], &["read", "s"], &["flush", "s"], &["create", "t"], &["completions", "bash"]]
    {
        let mut command = quipu();
        command.args(args).env("QUIPU_ADDRESS", &server.address).stderr(Stdio::piped());
        // A pipe whose other end is closed already.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn tail_and_changes_go_on_by_themselves_over_a_restart_of_the_server() {
    use std::io::{BufRead, BufReader};

    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    let target = std::sync::Arc::new(std::sync::Mutex::new(server.address.clone()));
    let address = relay(target.clone());
    server.json(&["create", "demo", "--profile", "raw"], b"");
    let event =
        |turn: u64| format!("{{\"type\":\"note\",\"time\":1,\"ignorable\":true,\"data\":{{\"turn\":{turn}}}}}\n");
    server.json(&["append", "demo"], (event(1) + &event(2)).as_bytes());
    let tailed = server.json(&["tail", "demo", "--count", "1"], b"");
    assert_eq!(tailed.iter().map(|line| line["seq"].as_u64().unwrap()).collect::<Vec<_>>(), [1]);
    let filtered = server.json(&["tail", "demo", "--turn", "1", "--type", "no*"], b"");
    assert_eq!(filtered.iter().map(|line| line["seq"].as_u64().unwrap()).collect::<Vec<_>>(), [0]);
    let changes = server.json(&["changes"], b"");
    let kinds: Vec<_> = changes.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["create", "append"]);

    let follow = |args: &[&str]| {
        let mut command = quipu();
        command.args(args).args(["--json", "--address", &address]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    };
    let (mut tail, mut events) = follow(&["tail", "demo", "--follow", "--from", "0"]);
    let (mut display, mut shown) = follow(&["watch", "demo"]);
    let (mut feed, mut positions) = follow(&["changes", "--follow"]);
    let value =
        |line: Option<std::io::Result<String>>| -> Value { serde_json::from_str(&line.unwrap().unwrap()).unwrap() };
    (0..2).for_each(|seq| assert_eq!(value(events.next())["seq"], seq));
    (0..2).for_each(|seq| assert_eq!(value(shown.next())["seq"], seq));
    (1..3).for_each(|position| assert_eq!(value(positions.next())["position"], position));
    server.end();
    let server = Process::start(dir.path(), &[]);
    target.lock().unwrap().clone_from(&server.address);
    server.json(&["append", "demo"], event(3).as_bytes());
    assert_eq!(value(events.next())["seq"], 2);
    assert_eq!(value(shown.next())["seq"], 2);
    assert_eq!(value(positions.next())["position"], 3);
    for child in [&mut tail, &mut display, &mut feed] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    server.end();
}

/// One address for a server that comes back at another.
fn relay(target: std::sync::Arc<std::sync::Mutex<String>>) -> String {
    use std::net::{Shutdown, TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for inner in listener.incoming().map_while(Result::ok) {
            let to = target.lock().unwrap().trim_start_matches("http://").to_owned();
            let Ok(outer) = TcpStream::connect(to) else { continue };
            for (mut from, mut to) in [(inner.try_clone().unwrap(), outer.try_clone().unwrap()), (outer, inner)] {
                std::thread::spawn(move || {
                    // Either side may end it.
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}
