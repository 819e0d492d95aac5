//! The recorded sessions, imported through gRPC and read back equal, with a chain that Python agrees with.

use std::path::{Path, PathBuf};

use quipu::portable::dsh::{self, ReadOptions};
use quipu::rpc::client;

use crate::support::process::{Process, run_with};
use crate::support::python::{self, file};
use crate::support::{Calls, all_of, run};

pub fn samples() -> Vec<PathBuf> {
    let dir = std::env::var_os("QUIPU_SAMPLES").map_or_else(|| file("tests/data/samples"), PathBuf::from);
    let paths = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = paths.map(|entry| entry.unwrap().path()).collect();
    let is_sample = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "jsonl")
            && path.file_stem().unwrap().to_string_lossy().starts_with("dsh-")
    };
    paths.retain(is_sample);
    paths.sort();
    assert!(paths.len() >= 4, "{} holds {paths:?}", dir.display());
    paths
}

/// The events of a file, by the reader that `tests/core` holds to the vectors.
pub fn events(path: &PathBuf) -> Vec<quipu::model::Event> {
    let options = ReadOptions { cwd: Some("/work".to_owned()), ..ReadOptions::default() };
    let open = || dsh::open(std::io::BufReader::new(std::fs::File::open(path).unwrap()), &options).unwrap();
    let scan = dsh::scan(open(), &options).unwrap();
    dsh::events(open(), &scan).map(Result::unwrap).collect()
}

#[test]
fn every_recorded_session_is_imported_and_read_back_equal() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Process::start(dir.path(), &[]);
        let python = python::with_modules("blake3");
        let mut imported = Vec::new();
        for (n, path) in samples().into_iter().enumerate() {
            let id = format!("sample-{n}");
            let args = ["import", path.to_str().unwrap(), "--id", &id, "--cwd", "/work"];
            let report = server.json(&args, b"").remove(0);
            imported.push((id, path, report["chain"].as_str().unwrap().to_owned()));
        }
        for restarted in [false, true] {
            if restarted {
                server.kill();
                server = Process::start(dir.path(), &[]);
            }
            let mut client = server.client().await;
            for (id, path, chain) in &imported {
                let read = client.read(all_of(id)).await.unwrap();
                let found: Vec<_> = read.events().into_iter().map(|event| client::event(event).unwrap()).collect();
                assert_eq!(found, events(path), "{}", path.display());
                if let Some(python) = &python {
                    verify(python, &server, (id, chain));
                }
            }
        }
        server.end();
    });
}

/// Lets Python recompute the chain of what `quipu read --json` prints.
pub fn verify(python: &Path, server: &Process, (id, chain): (&str, &str)) {
    let export = server.command(&["read", id, "--json"]);
    assert!(export.status.success());
    let mut verifier = std::process::Command::new(python);
    let output = run_with(verifier.arg(file("tests/verify_chain.py")).arg(chain), &export.stdout);
    assert!(output.status.success(), "{id}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_verifier_sees_a_changed_a_missing_and_a_moved_event() {
    let Some(python) = python::with_modules("blake3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path(), &[]);
    server.json(&["create", "s", "--profile", "raw"], b"");
    let input = "{\"type\":\"a\",\"time\":1,\"data\":[1,\n2]}".replace(",\n", ",\\n"); // not JSON: refused
    assert!(!server.command_with(&["append", "s"], input.as_bytes()).status.success());
    let input = concat!(
        "{\"type\":\"a\",\"time\":1,\"data\":{\"x\":1,\"ignorable\":true}}\n",
        "{\"type\":\"b \\\"\\\\ \\u00e9\",\"time\":-1,\"data\":\"},\\\"ignorable\\\":true}\",\"sourceEventSeqs\":[0]}\n",
        "{\"type\":\"dataHex\",\"time\":3,\"dataHex\":\"5b0a5d\",\"surfaceOp\":\"append\"}\n",
        "{\"type\":\"d\",\"time\":4,\"data\":[[],\"\\ud83c\"],\"surfaceOp\":{\"op\":\"replace\",\"start\":2,\"end\":2},\
         \"sourceEventSeqs\":[],\"ignorable\":true}\n",
    );
    server.json(&["append", "s"], input.as_bytes());
    let chain = server.json(&["stat", "s"], b"")[0]["head"]["chain"].as_str().unwrap().to_owned();
    let export = server.command(&["read", "s", "--json"]).stdout;
    let check = |export: &[u8]| {
        let mut verifier = std::process::Command::new(&python);
        run_with(verifier.arg(file("tests/verify_chain.py")).arg(&chain), export).status.success()
    };
    assert!(check(&export));
    let text = String::from_utf8(export).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    for changed in [
        text.replace("\"x\":1", "\"x\": 1"),
        text.replace("\"time\":-1", "\"time\":1"),
        text.replace("5b0a5d", "5b0d5d"),
        text.replace("\"sourceEventSeqs\":[],", ""),
        lines[..3].join("\n"),
        [lines[0], lines[2], lines[1], lines[3]].join("\n"),
    ] {
        assert!(!check(changed.as_bytes()), "{changed}");
    }
}
