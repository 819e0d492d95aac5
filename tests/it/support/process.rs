//! `quipu serve` and the client commands as processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quipu::rpc::client::Client;
use serde_json::Value;

/// The binary, with nothing of the caller's environment that could configure it.
pub fn quipu() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quipu"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("QUIPU_")) {
        command.env_remove(name);
    }
    command
}

/// A running server.
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    pub address: String,
}

/// Longest wait for something that should happen soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

impl Process {
    /// Starts a server and waits until it serves.
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        let mut server = Self::spawn(dir, args);
        let line = server.wait_for("serving").unwrap_or_else(|| panic!("it does not serve: {:#?}", server.seen));
        let line: Value = serde_json::from_str(&line).unwrap();
        server.address = format!("http://{}", line["address"].as_str().unwrap());
        server
    }

    /// Starts a server without waiting.
    pub fn spawn(dir: &Path, args: &[&str]) -> Self {
        let mut command = quipu();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--data-dir"]).arg(dir).args(args);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let pipe = BufReader::new(child.stderr.take().unwrap());
        // Ends with the process, which the drop ends.
        std::thread::spawn(move || pipe.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, seen: Vec::new(), address: String::new() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first log line from now on with that message; `None` when the process ended before.
    pub fn wait_for(&mut self, message: &str) -> Option<String> {
        let until = Instant::now() + PATIENCE;
        let wanted = format!("\"message\":\"{message}");
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(&wanted) {
                        return Some(line);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("no {message:?} in {:#?}", self.seen),
            }
        }
    }

    /// Everything that was logged, once the process has ended.
    pub fn log(&mut self) -> String {
        self.seen.extend(self.lines.iter());
        self.seen.join("\n")
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.address).await.unwrap()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            // There is no wait with a deadline in std, and a test that hangs says nothing.
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None if Instant::now() > until => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.wait();
    }

    /// Ends it as an operator does, and checks that it goes in peace.
    pub fn end(mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0), "{}", self.log());
    }

    /// A client command against this server.
    pub fn command(&self, args: &[&str]) -> Output {
        self.command_with(args, b"")
    }

    /// The same with standard input.
    pub fn command_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = quipu();
        command.args(args).args(["--address", &self.address]);
        run_with(&mut command, input)
    }

    /// A client command that must succeed; its lines as JSON.
    pub fn json(&self, args: &[&str], input: &[u8]) -> Vec<Value> {
        let output = self.command_with(&[args, &["--json"]].concat(), input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process of ours.
pub fn signal(id: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{name} {id}");
}

/// Runs a command with some standard input and takes what it says.
pub fn run_with(command: &mut Command, input: &[u8]) -> Output {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let (mut pipe, input) = (child.stdin.take().unwrap(), input.to_vec());
    let feed = std::thread::spawn(move || {
        // A command that refuses early reads no more.
        let _ = pipe.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    output
}
