//! Who may come in, and what a stranger may cost.

mod certificates;
mod doors;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use quipu::rpc::client::{Access, Client, Unreachable};

use crate::support::process::{Process, quipu, run_with};

/// A server and its port of metrics.
pub struct Watched {
    pub server: Process,
    probes: String,
}

impl Watched {
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        let mut server = Process::spawn(dir, &[&["--metrics-listen", "127.0.0.1:0"], args].concat());
        let line = server.wait_for("probes and metrics").expect("metrics are served");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        server.serving();
        Self { server, probes: line["address"].as_str().unwrap().to_owned() }
    }

    /// Waits until a series has reached a value.
    pub fn until(&self, series: &str, value: f64) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.value(series) < value {
            assert!(Instant::now() < until, "{series} is {}", self.value(series));
        }
    }

    /// The value of a series; 0 for one that nobody has counted into.
    pub fn value(&self, series: &str) -> f64 {
        let mut stream = TcpStream::connect(&self.probes).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// An authority with a pair for the server, in a directory of its own.
pub struct Pairs {
    pub dir: tempfile::TempDir,
}

impl Pairs {
    pub fn new() -> Self {
        let pairs = Self { dir: tempfile::tempdir().unwrap() };
        pairs.make(&[]);
        pairs
    }

    /// `quipu certs` with more arguments.
    pub fn make(&self, args: &[&str]) {
        let output = run_with(quipu().arg("certs").arg(self.dir.path()).args(args), b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// What a client needs that trusts this authority.
    pub fn access(&self) -> Access {
        Access { ca: Some(self.read("ca.pem")), ..Access::default() }
    }

    pub fn access_of(&self, name: &str) -> Access {
        let identity = Some((self.read(&format!("{name}.pem")), self.read(&format!("{name}.key"))));
        Access { identity, ..self.access() }
    }

    /// The flags of a server with the pair.
    pub fn flags(&self) -> [String; 4] {
        ["--tls-cert".to_owned(), self.path("server.pem"), "--tls-key".to_owned(), self.path("server.key")]
    }

    /// A watched server with TLS, its pair looked at only when it is told to.
    pub fn serve(&self, dir: &Path, more: &[&str]) -> Watched {
        let flags = self.flags();
        let mut args: Vec<&str> = flags.iter().map(String::as_str).collect();
        if !more.contains(&"--reload-interval") {
            args.extend(["--reload-interval", "60m"]);
        }
        args.extend(more);
        let mut watched = Watched::start(dir, &args);
        watched.server.address = watched.server.address.replace("http:", "https:");
        watched
    }
}

/// A client command against a server, with more flags.
fn command(address: &str, args: &[&str]) -> Output {
    run_with(quipu().args(args).args(["--address", address]), b"")
}

async fn enter(address: &str, access: &Access) -> Result<Client, Unreachable> {
    Client::connect_as(address, access).await
}
