//! `quipu import`: session files of the reference harness, into a server.

use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Target;
use super::command::{Batch, connect, head, refusal};
use super::text::shown;
use crate::codec::Chain;
use crate::model::SessionId;
use crate::portable::dsh::{self, ReadOptions, Scan};
use crate::rpc::client::{self, Client};
use crate::rpc::pb;

#[derive(Args)]
pub(super) struct ImportArgs {
    /// Session files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Give the session this id instead of the file's own; one file only.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Working directory to use instead of the file's own.
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn import(args: ImportArgs) -> anyhow::Result<()> {
    if args.id.is_some() && args.files.len() > 1 {
        bail!("--id goes with one file");
    }
    let id = args.id.as_deref().map(SessionId::new).transpose()?;
    let options = ReadOptions { id, cwd: args.cwd.clone(), ..ReadOptions::default() };
    let mut client = connect(&args.target).await?;
    let mut failed = 0;
    for path in &args.files {
        match import_file(path, &options, &mut client, &args.target.namespace).await {
            // The import goes on although nobody reads what it says.
            Ok(report) => drop(report.print(path, args.target.json)),
            Err(error) => {
                failed += 1;
                eprintln!("{}: {}", shown(&path.display().to_string()), shown(&format!("{error:#}")));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} files were not imported; the others were", args.files.len());
    }
    Ok(())
}

struct Report {
    scan: Scan,
    stored: u64,
    head: pb::Head,
}

impl Report {
    fn print(&self, path: &Path, as_json: bool) -> std::io::Result<()> {
        let notes: Vec<_> = self.scan.notes.iter().map(ToString::to_string).collect();
        let path = path.display().to_string();
        let (id, events) = (self.scan.id.as_str(), self.scan.events);
        if as_json {
            let chain = super::text::hex(&self.head.chain);
            return say!(
                "{}",
                json!({"file": path, "session_id": id, "events": events, "appended": self.stored, "chain": chain, "notes": notes})
            );
        }
        let present = events - self.stored;
        say!("{}: {} events as session {} ({present} were there)", shown(&path), events, shown(id))?;
        notes.iter().try_for_each(|note| say!("  note: {}", shown(note)))
    }
}

fn open(path: &Path, options: &ReadOptions) -> anyhow::Result<dsh::Input<BufReader<File>>> {
    let file = BufReader::with_capacity(1 << 20, File::open(path)?);
    Ok(dsh::open(file, options)?)
}

async fn import_file(
    path: &Path,
    options: &ReadOptions,
    client: &mut Client,
    namespace: &str,
) -> anyhow::Result<Report> {
    let scan = dsh::scan(open(path, options)?, options)?;
    let request = pb::CreateSessionRequest {
        namespace: namespace.to_owned(),
        header: Some(client::header(scan.id.as_str(), scan.header.clone())),
        profile: None,
    };
    client.sessions.create_session(request).await.map_err(|status| refusal(&status))?;
    let present = head(client, namespace, scan.id.as_str()).await?;
    let mut import = Import { present, chain: Chain::START, next_seq: 0, progress: progress(&scan) };
    let mut batch = Batch {
        namespace: namespace.to_owned(),
        session_id: scan.id.as_str().to_owned(),
        ack_level: pb::AckLevel::Durable,
        events: Vec::new(),
        bytes: 0,
        stored: 0,
    };
    for event in dsh::events(open(path, options)?, &scan) {
        import.take(event?, client, &mut batch).await?;
    }
    batch.send(client, &mut import.next_seq).await?;
    import.progress.finish_and_clear();
    if import.present.next_seq > scan.events {
        bail!("the session has {} events, the file {}", import.present.next_seq, scan.events);
    }
    let head = head(client, namespace, scan.id.as_str()).await?;
    Ok(Report { stored: batch.stored, head, scan })
}

struct Import {
    /// What the server had when the import began.
    present: pb::Head,
    chain: Chain,
    next_seq: u64,
    progress: ProgressBar,
}

impl Import {
    /// Passes over an event that the server has, comparing by the chain, or sends it.
    async fn take(&mut self, event: crate::model::Event, client: &mut Client, batch: &mut Batch) -> anyhow::Result<()> {
        self.progress.inc(1);
        if event.seq.get() >= self.present.next_seq {
            return batch.push(event.body, client, &mut self.next_seq, 500).await;
        }
        self.chain = self.chain.after(&event);
        self.next_seq += 1;
        let is_last = self.next_seq == self.present.next_seq;
        let differs = is_last && self.chain.0[..] != self.present.chain[..];
        if differs {
            Err(anyhow::anyhow!("the session exists with other events")).context("nothing was added")
        } else {
            Ok(())
        }
    }
}

fn progress(scan: &Scan) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} events, {per_sec}, {eta} left");
    ProgressBar::new(scan.events).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
