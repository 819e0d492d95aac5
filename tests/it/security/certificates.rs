//! TLS: who is let in by certificates, and how they change under load.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quipu::rpc::client::Access;
use quipu::rpc::pb;

use super::{Pairs, command, enter};
use crate::support::process::{Process, quipu, run_with};
use crate::support::{Calls, Read, all_of, batch, note, notes, run, run_long, setting};

#[test]
fn only_who_trusts_the_authority_talks_to_a_server_with_tls() {
    run(async {
        let (dir, pairs, other) = (tempfile::tempdir().unwrap(), Pairs::new(), Pairs::new());
        let watched = pairs.serve(dir.path(), &[]);
        let address = watched.server.address.clone();
        let mut client = enter(&address, &pairs.access()).await.unwrap();
        client.make("s").await;
        client.append(batch("s", 0, notes("a", 3))).await.unwrap();
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs(), [0, 1, 2]);

        assert!(enter(&address, &other.access()).await.is_err(), "another authority");
        assert!(enter(&address, &Access::default()).await.is_err(), "no authority");
        let plain = enter(&address.replace("https:", "http:"), &Access::default()).await;
        if let Ok(mut plain) = plain {
            assert!(plain.get("s").await.is_err(), "without TLS");
        }
        let by_flag = command(&address, &["stat", "s", "--json", "--ca", &pairs.path("ca.pem")]);
        assert!(by_flag.status.success(), "{}", String::from_utf8_lossy(&by_flag.stderr));
        let without = command(&address, &["stat", "s"]);
        assert!(String::from_utf8_lossy(&without.stderr).contains("--ca"), "it says what is missing");
        watched.until("quipu_connections_refused_total{why=\"handshake\"}", 1.0);
        let left = watched.value("quipu_certificate_expiry_seconds") - jiff_now();
        assert!((364.0 * 86_400.0..366.0 * 86_400.0).contains(&left), "{left}");
    });
}

fn jiff_now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn a_required_certificate_keeps_everybody_else_out() {
    run(async {
        let (dir, pairs, other) = (tempfile::tempdir().unwrap(), Pairs::new(), Pairs::new());
        pairs.make(&["--client", "host-1"]);
        other.make(&["--client", "host-1"]);
        let ca = pairs.path("ca.pem");
        let watched = pairs.serve(dir.path(), &["--tls-client-ca", &ca, "--tls-client-auth", "required"]);
        let address = watched.server.address.clone();
        enter(&address, &pairs.access_of("host-1")).await.unwrap().make("s").await;
        // The handshake of TLS 1.3 ends for a client before the server has seen its certificate.
        let foreign = Access { ca: pairs.access().ca, identity: other.access_of("host-1").identity, token: None };
        for (access, who) in [(pairs.access(), "nobody"), (foreign, "a stranger")] {
            if let Ok(mut client) = enter(&address, &access).await {
                assert!(client.get("s").await.is_err(), "{who} got in");
            }
        }
        let (cert, key) = (pairs.path("host-1.pem"), pairs.path("host-1.key"));
        let output = command(&address, &["stat", "s", "--ca", &ca, "--cert", &cert, "--key", &key]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn an_open_address_needs_encryption_and_authentication_or_says_insecure_at_every_start() {
    let (dir, pairs) = (tempfile::tempdir().unwrap(), Pairs::new());
    let refused = |more: &[&str], lacks: &str| {
        let flags = [&["serve", "--listen", "0.0.0.0:0", "--check-config"], more].concat();
        let output = run_with(quipu().args(&flags), b"");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(lacks), "{text}");
    };
    refused(&[], "without encryption and authentication");
    let tls = pairs.flags();
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    refused(&tls, "without authentication");
    refused(&tls[..2], "go together");
    refused(&["--tls-client-auth", "required"], "needs tls_client_ca");
    for _ in 0..2 {
        let mut open = quipu();
        open.args(["serve", "--listen", "0.0.0.0:0", "--insecure", "--log-format", "json", "--data-dir"]);
        let mut open = open.arg(dir.path()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(open.stderr.take().unwrap()).lines().map_while(Result::ok);
        let until_it_serves: Vec<_> = lines.take_while(|line| !line.contains("\"message\":\"serving\"")).collect();
        open.kill().unwrap();
        open.wait().unwrap();
        let warned = until_it_serves.iter().any(|line| line.contains("WARN") && line.contains("insecure: whoever"));
        assert!(warned, "{until_it_serves:#?}");
    }
}

/// Hosts that append over connections of their own, each a few batches long.
async fn load(address: String, access: Access, stop: Arc<AtomicBool>, calls: Arc<AtomicU64>, host: usize) {
    let id = format!("load-{host}");
    enter(&address, &access).await.unwrap().make(&id).await;
    let mut next_seq = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut client = enter(&address, &access).await.expect("no connection is refused");
        for _ in 0..5 {
            client.append(batch(&id, next_seq, notes("x", 1))).await.expect("no call fails");
            next_seq += 1;
            calls.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut client = enter(&address, &access).await.unwrap();
    assert_eq!(client.head(&id).await.next_seq, next_seq);
}

/// Certificates and authorities are renewed again and again; QUIPU_ROTATIONS for how often.
#[test]
fn a_rotation_under_load_fails_no_call_and_ends_no_stream() {
    run_long(async {
        let (dir, pairs) = (tempfile::tempdir().unwrap(), Pairs::new());
        pairs.make(&["--client", "host"]);
        let ca = pairs.path("ca.pem");
        let mut watched = pairs.serve(dir.path(), &["--tls-client-ca", &ca, "--tls-client-auth", "required"]);
        let (address, access) = (watched.server.address.clone(), pairs.access_of("host"));
        let mut reader = enter(&address, &access).await.unwrap();
        reader.make("long").await;
        for at in 0..12 {
            let text = format!("\"{}\"", "x".repeat(1 << 20));
            reader.append(batch("long", at, vec![note(text)])).await.unwrap();
        }
        // A stream that is older than every rotation: nothing is taken of it until they are over.
        let stream = reader.log.read_from(all_of("long")).await.unwrap().into_inner();
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let host = |host| load(address.clone(), access.clone(), stop.clone(), calls.clone(), host);
        let hosts: Vec<_> = (0..3).map(host).map(tokio::spawn).collect();
        let rotations = setting("QUIPU_ROTATIONS", 8);
        for round in 0..rotations {
            let before = calls.load(Ordering::Relaxed);
            while calls.load(Ordering::Relaxed) < before + 10 {
                assert!(hosts.iter().all(|host| !host.is_finished()), "a host gave up");
                tokio::task::yield_now().await;
            }
            pairs.make(&["--renew", "--days", &(20 + round).to_string()]);
            watched.server.signal("HUP");
            watched = tokio::task::spawn_blocking(move || {
                watched.server.wait_for("changed files are in force").expect("it reloads");
                watched
            })
            .await
            .unwrap();
            let left = watched.value("quipu_certificate_expiry_seconds") - jiff_now();
            assert_eq!((left / 86_400.0).ceil() as u64, 20 + round, "the new one is in force");
        }
        stop.store(true, Ordering::Relaxed);
        for host in hosts {
            host.await.unwrap();
        }
        assert_eq!(watched.value("quipu_reloads_total{what=\"tls\"}"), rotations as f64);
        let read = Read::of(stream).await;
        assert_eq!((read.seqs().len(), read.reason()), (12, pb::ReadEndReason::EndOfLog), "{:?}", read.refusal);
        println!("{rotations} rotations under {} calls", calls.load(Ordering::Relaxed));
    });
}

/// A pair that was good in 2020.
fn expired() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2020, 12, 31));
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn a_bad_new_pair_keeps_the_old_and_raises_an_alarm_until_it_is_good() {
    run(async {
        let (dir, pairs, other) = (tempfile::tempdir().unwrap(), Pairs::new(), Pairs::new());
        let mut watched = pairs.serve(dir.path(), &["--tls-client-ca", &pairs.path("ca.pem")]);
        let address = watched.server.address.clone();
        let failing = "quipu_reload_failing{what=\"tls\"}";
        let good: Vec<_> = ["server.pem", "server.key", "ca.pem"].map(|name| (name, pairs.read(name))).into();
        let restore = || good.iter().for_each(|(name, bytes)| std::fs::write(pairs.path(name), bytes).unwrap());
        let (expired, expired_key) = expired();
        let bad: [&[(&str, &[u8])]; 6] = [
            &[("server.pem", b"no certificate")],
            &[("server.key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")],
            &[("server.key", &other.read("server.key"))],
            &[("server.pem", b"")],
            &[("ca.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")],
            &[("server.pem", expired.as_bytes()), ("server.key", expired_key.as_bytes())],
        ];
        let access = pairs.access();
        for files in bad {
            files.iter().for_each(|(name, bytes)| std::fs::write(pairs.path(name), bytes).unwrap());
            watched.server.signal("HUP");
            watched.server.wait_for("changed files cannot be used").expect("it says so");
            assert_eq!(watched.value(failing), 1.0);
            enter(&address, &access).await.expect("the old pair is in force");
            restore();
            watched.server.signal("HUP");
            watched.server.wait_for("changed files are in force").expect("it recovers");
            assert_eq!(watched.value(failing), 0.0);
        }
        enter(&address, &access).await.unwrap();
    });
}

#[test]
fn files_that_change_are_noticed_without_a_signal() {
    run(async {
        let (dir, pairs) = (tempfile::tempdir().unwrap(), Pairs::new());
        let mut watched = pairs.serve(dir.path(), &["--reload-interval", "100ms"]);
        pairs.make(&["--renew", "--days", "30"]);
        watched.server.wait_for("changed files are in force").expect("it looks by itself");
        enter(&watched.server.address.clone(), &pairs.access()).await.unwrap();
    });
}

#[test]
fn a_certificate_that_ends_soon_is_told_of() {
    let (dir, pairs) = (tempfile::tempdir().unwrap(), Pairs::new());
    pairs.make(&["--renew", "--days", "13"]);
    let flags = pairs.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = Process::start(dir.path(), &flags);
    server.wait_for("the certificate of the listener ends soon").expect("an alarm");
}
