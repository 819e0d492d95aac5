//! What a connection costs that never becomes one, and how long one lasts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use quipu::rpc::client::Access;

use super::{Pairs, Watched, enter};
use crate::support::{Calls, all_of, batch, note, run};

fn host(address: &str) -> &str {
    address.split_once("//").unwrap().1
}

/// How long the server keeps a connection that says `bytes` and then nothing.
fn kept(address: &str, bytes: &[u8]) -> Duration {
    let began = Instant::now();
    let mut stream = TcpStream::connect(host(address)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest);
    began.elapsed()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[test]
fn who_never_begins_to_speak_is_shown_out_in_time() {
    run(async {
        let (dir, other, pairs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Pairs::new());
        let soon = ["--handshake-timeout", "300ms"];
        let (plain, tls) = (Watched::start(dir.path(), &soon), pairs.serve(other.path(), &soon));
        for bytes in [&b""[..], &PREFACE[..23]] {
            let kept = kept(&plain.server.address, bytes);
            assert!((Duration::from_millis(250)..Duration::from_secs(30)).contains(&kept), "{kept:?}");
        }
        assert_eq!(plain.value("quipu_connections_refused_total{why=\"preface_timeout\"}"), 2.0);
        // A handshake that never ends: the first bytes of a ClientHello.
        let kept = kept(&tls.server.address, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
        assert!((Duration::from_millis(250)..Duration::from_secs(30)).contains(&kept), "{kept:?}");
        tls.until("quipu_connections_refused_total{why=\"handshake_timeout\"}", 1.0);
        // Who spoke in time stays.
        let mut client = enter(&plain.server.address.clone(), &Access::default()).await.unwrap();
        client.make("s").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        client.get("s").await.unwrap();
        assert_eq!(plain.value("quipu_connections_accepted_total"), 3.0);
    });
}

#[test]
fn one_address_cannot_take_all_connections() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let watched = Watched::start(dir.path(), &["--connections-per-address", "3"]);
        let address = watched.server.address.clone();
        let access = Access::default();
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(enter(&address, &access).await.unwrap());
        }
        let fourth = enter(&address, &access).await;
        if let Ok(mut fourth) = fourth {
            assert!(fourth.get("s").await.is_err(), "one too many");
        }
        watched.until("quipu_connections_refused_total{why=\"address\"}", 1.0);
        clients[0].make("s").await;
        clients.clear();
        loop {
            // The server notices that they are gone a little later.
            if let Ok(mut again) = enter(&address, &access).await
                && again.get("s").await.is_ok()
            {
                return;
            }
        }
    });
}

#[test]
fn an_old_connection_is_left_for_a_new_one_and_its_streams_have_their_time() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let ages = ["--connection-age-max", "300ms", "--connection-age-grace", "2s"];
        let watched = Watched::start(dir.path(), &ages);
        let mut client = enter(&watched.server.address.clone(), &Access::default()).await.unwrap();
        client.make("s").await;
        for at in 0..12 {
            let large = batch("s", at, vec![note(format!("\"{}\"", "x".repeat(1 << 20)))]);
            // One that meets the end of a connection is made again: it is stored once.
            while client.append(large.clone()).await.is_err() {}
        }
        let mut young = enter(&watched.server.address.clone(), &Access::default()).await.unwrap();
        let mut stream = young.log.read_from(all_of("s")).await.unwrap().into_inner();
        stream.message().await.unwrap();
        // Calls go on, on new connections. One that meets the end of a connection was never sent, and is made again.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1200) {
            if let Err(status) = client.get("s").await {
                let is_parting =
                    std::error::Error::source(&status).is_some() || status.code() == tonic::Code::Cancelled;
                assert!(is_parting, "a refusal of the server: {status:?}");
            }
        }
        assert!(watched.value("quipu_connections_accepted_total") >= 4.0);
        // Its connection is past its age and within its grace: the stream lives.
        stream.message().await.unwrap().expect("another frame");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut ended = false;
        while !ended {
            ended = !matches!(stream.message().await, Ok(Some(_)));
        }
        assert!(watched.value("quipu_connections") <= 2.0, "what took nothing was closed at the end of its grace");
    });
}
