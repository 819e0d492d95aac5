//! A page in a real browser, with connect, over gRPC-web: it follows while another client appends, is cut, and goes on.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quipu::rpc::pb;
use serde_json::{Value, json};

use crate::support::process::{Process, run_with};
use crate::support::python::file;
use crate::support::{Calls, batch, note, run, skipped};

/// A program that answers when it is asked for its version.
fn program(variable: &str, names: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let candidates = named.into_iter().chain(names.iter().map(PathBuf::from));
    let works = |path: &PathBuf| Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success());
    let found = { candidates }.find(works);
    if found.is_none() {
        skipped(&format!("none of {names:?}, nor {variable}"));
    }
    found
}

/// What the page imports: given, or installed once where everything must run.
fn modules() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("QUIPU_NODE_MODULES") {
        return Some(given.into());
    }
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web");
    let modules = home.join("node_modules");
    let must_be = std::env::var_os("QUIPU_REQUIRE_ALL").is_some_and(|value| value == "1");
    if !modules.join("@connectrpc/connect-web").exists() && must_be {
        std::fs::create_dir_all(&home).unwrap();
        std::fs::copy(file("tests/clients/web/package.json"), home.join("package.json")).unwrap();
        let mut npm = Command::new("npm");
        npm.current_dir(&home).args(["install", "--no-audit", "--no-fund", "--ignore-scripts"]);
        let output = run_with(&mut npm, b"");
        println!("npm: {}", String::from_utf8_lossy(&output.stderr));
    }
    if modules.join("@connectrpc/connect-web").exists() {
        return Some(modules);
    }
    skipped("no node modules (npm install in tests/clients/web, and QUIPU_NODE_MODULES)");
    None
}

/// Any view takes it.
fn ignorable(n: u64) -> pb::NewEvent {
    pb::NewEvent { ignorable: true, ..note(n.to_string()) }
}

#[test]
fn a_page_in_chromium_follows_over_cuts_while_another_client_appends() {
    const EVENTS: u64 = 300;
    let Some(node) = program("QUIPU_NODE", &["node"]) else { return };
    let Some(chromium) = program("QUIPU_CHROMIUM", &["chromium", "chromium-browser", "google-chrome"]) else { return };
    let Some(modules) = modules() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (descriptors, profile) = (dir.path().join("descriptors"), dir.path().join("profile"));
    std::fs::write(&descriptors, pb::DESCRIPTOR).unwrap();
    let mut driver = Command::new(node);
    driver.arg(file("tests/clients/web/chromium.mjs")).args([&chromium, &modules, &descriptors, &profile]);
    let mut driver = driver.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(driver.stdout.take().unwrap()).lines();
    let origin = said.next().unwrap().unwrap();
    let server = Process::start(&dir.path().join("data"), &["--web-origins", &origin]);
    run(async {
        let mut client = server.client().await;
        client.make("web").await;
        client.append(batch("web", 0, (0..5).map(ignorable).collect())).await.unwrap();
        let settings = json!({"address": server.address, "session": "web", "until": EVENTS});
        writeln!(driver.stdin.take().unwrap(), "{settings}").unwrap();
        let result = tokio::task::spawn_blocking(move || said.next());
        for n in 5..EVENTS {
            client.append(batch("web", n, vec![ignorable(n)])).await.unwrap();
            if n % 10 == 0 {
                // The page is to meet a log that grows, not one that is there.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
        let result = result.await.unwrap().expect("a result").unwrap();
        let result: Value = serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}: {result}"));
        assert_eq!(result["error"], Value::Null, "{result}");
        let seen: Vec<u64> = serde_json::from_value(result["seen"].clone()).unwrap();
        assert_eq!(seen, (0..EVENTS).collect::<Vec<_>>());
        println!("{} cuts", result["cuts"]);
        assert!(result["cuts"].as_u64() > Some(0), "{}", result["cuts"]);
        let details = result["refusal"]["details"].to_string();
        assert!(result["refusal"]["code"] == "NotFound" && details.contains("ErrorInfo"), "{}", result["refusal"]);
    });
    driver.wait().unwrap();
    server.end();
}
