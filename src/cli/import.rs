//! `quipu import`: session files of the reference harness and transcripts of others, into a server.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Target;
use super::command::{Batch, connect, head, refusal};
use super::gauge::Gauge;
use super::text::shown;
use crate::codec::Chain;
use crate::model::{Event, Header, SessionId};
use crate::portable::dsh::{self, ReadOptions};
use crate::portable::foreign::{self, Fate, Harness, Mapped};
use crate::rpc::client::{self, Client};
use crate::rpc::pb;

#[derive(Args)]
pub(super) struct ImportArgs {
    /// Session files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Which harness wrote them.
    #[arg(long, value_name = "HARNESS", value_enum, default_value = "dsh")]
    from: From,
    /// Give the session this id instead of the file's own; one file only.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Working directory to use instead of the file's own.
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    /// Import a transcript although lines of it are damaged: without what they said.
    #[arg(long)]
    skip_damaged: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Clone, Copy, ValueEnum)]
enum From {
    /// The reference harness.
    Dsh,
    /// claude-code.
    ClaudeCode,
    /// codex.
    Codex,
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
        let source = match args.from {
            From::Dsh => Source::dsh(path, &options),
            From::ClaudeCode => Source::foreign(path, Harness::ClaudeCode, &options, args.skip_damaged),
            From::Codex => Source::foreign(path, Harness::Codex, &options, args.skip_damaged),
        };
        let imported = match source {
            Ok(source) => import_file(source, &mut client, &args.target.namespace).await,
            Err(error) => Err(error),
        };
        match imported {
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

/// A file that was judged as a whole, and its events from a second pass.
pub(super) struct Source {
    pub(super) id: SessionId,
    pub(super) header: Header,
    /// How many events.
    pub(super) events: u64,
    /// What an operator should know.
    pub(super) notes: Vec<String>,
    /// The same, of single records.
    records: Vec<foreign::Entry>,
    pub(super) stream: Box<dyn Iterator<Item = anyhow::Result<Event>>>,
}

fn open(path: &Path) -> anyhow::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 20, File::open(path)?))
}

impl Source {
    pub(super) fn dsh(path: &Path, options: &ReadOptions) -> anyhow::Result<Self> {
        let scan = dsh::scan(dsh::open(open(path)?, options)?, options)?;
        let stream = dsh::events(dsh::open(open(path)?, options)?, &scan);
        Ok(Self {
            id: scan.id,
            header: scan.header,
            events: scan.events,
            notes: scan.notes.iter().map(ToString::to_string).collect(),
            records: Vec::new(),
            stream: Box::new(stream.map(|event| Ok(event?))),
        })
    }

    fn foreign(path: &Path, harness: Harness, options: &ReadOptions, skip_damaged: bool) -> anyhow::Result<Self> {
        let mut records = foreign::records(open(path)?, harness);
        records.by_ref().try_for_each(|event| event.map(drop))?;
        let Mapped { id, id_problem, mut header, events, report } = records.mapped();
        if !skip_damaged && report.damaged().next().is_some() {
            let lines: Vec<_> = report.damaged().map(ToString::to_string).collect();
            bail!("{}; nothing was imported; --skip-damaged goes on without them", lines.join("; "));
        }
        let id = match (&options.id, id, id_problem) {
            (Some(id), ..) => id.clone(),
            (None, Some(id), _) => id,
            (None, None, Some(problem)) => return Err(problem).context("give it another id with --id"),
            (None, None, None) => bail!("no record names a session; give it an id with --id"),
        };
        header.cwd = options.cwd.clone().or(header.cwd);
        header.check()?;
        let stream = foreign::records(open(path)?, harness);
        Ok(Self {
            id,
            header,
            events,
            notes: vec![format!("{} records", report.records)],
            records: report.entries,
            stream: Box::new(stream.map(|event| Ok(event?))),
        })
    }
}

struct Report {
    id: String,
    events: u64,
    stored: u64,
    notes: Vec<String>,
    records: Vec<foreign::Entry>,
    head: pb::Head,
}

impl Report {
    fn print(&self, path: &Path, as_json: bool) -> std::io::Result<()> {
        let (path, id, events) = (path.display().to_string(), &self.id, self.events);
        if as_json {
            let chain = super::text::hex(&self.head.chain);
            let records: Vec<_> = self.records.iter().map(entry_json).collect();
            return say!(
                "{}",
                json!({"file": path, "session_id": id, "events": events, "appended": self.stored, "chain": chain,
                    "notes": self.notes, "records": records})
            );
        }
        let present = events - self.stored;
        say!("{}: {} events as session {} ({present} were there)", shown(&path), events, shown(id))?;
        self.notes.iter().try_for_each(|note| say!("  note: {}", shown(note)))?;
        self.records.iter().try_for_each(|entry| say!("  {}", shown(&entry.to_string())))
    }
}

fn entry_json(entry: &foreign::Entry) -> serde_json::Value {
    let why = match &entry.fate {
        Fate::NoPlace(why) | Fate::Repeated(why) | Fate::Part(_, why) | Fate::Damaged(why) => why.as_str(),
        Fate::Torn => "",
    };
    json!({"line": entry.line, "record": entry.record, "fate": entry.fate.name(), "why": why})
}

async fn import_file(source: Source, client: &mut Client, namespace: &str) -> anyhow::Result<Report> {
    let Source { id, header, events, notes, records, stream } = source;
    let request = pb::CreateSessionRequest {
        namespace: namespace.to_owned(),
        header: Some(client::header(id.as_str(), header)),
        profile: None,
        claim: None,
    };
    client.sessions.create_session(request).await.map_err(|status| refusal(&status))?;
    let present = head(client, namespace, id.as_str()).await?;
    let mut import = Import { present, chain: Chain::START, next_seq: 0, gauge: Gauge::of_events(events) };
    let mut batch = Batch {
        namespace: namespace.to_owned(),
        session_id: id.as_str().to_owned(),
        ack_level: pb::AckLevel::Durable,
        events: Vec::new(),
        bytes: 0,
        stored: 0,
    };
    for event in stream {
        import.take(event?, client, &mut batch).await?;
    }
    batch.send(client, &mut import.next_seq).await?;
    import.gauge.end();
    if import.present.next_seq > events {
        bail!("the session has {} events, the file {events}", import.present.next_seq);
    }
    let head = head(client, namespace, id.as_str()).await?;
    Ok(Report { id: id.as_str().to_owned(), events, stored: batch.stored, notes, records, head })
}

struct Import {
    /// What the server had when the import began.
    present: pb::Head,
    chain: Chain,
    next_seq: u64,
    gauge: Gauge,
}

impl Import {
    /// Passes over an event that the server has, comparing by the chain, or sends it.
    async fn take(&mut self, event: Event, client: &mut Client, batch: &mut Batch) -> anyhow::Result<()> {
        self.gauge.step();
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
