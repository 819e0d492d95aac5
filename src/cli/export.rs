//! `quipu export`: sessions, out of a server, as files of the reference harness.
//!
//! What is written was verified: the chain of the events is recomputed and compared with the head's. A file appears
//! under its name when it is whole and on stable storage, or not at all.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Target;
use super::command::{connect, refusal};
use super::text::{hex, shown};
use crate::codec::Chain;
use crate::model::SessionId;
use crate::portable::dsh::{Omission, WriteOptions, Writer, file_name};
use crate::rpc::client::{self, Client};
use crate::rpc::pb;
use crate::rpc::pb::read_from_response::Frame;

#[derive(Args)]
pub(super) struct ExportArgs {
    /// The sessions.
    #[arg(required = true)]
    ids: Vec<String>,
    /// Directory for the files; it is made if need be. Without it one session goes to standard output.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Their descendants too.
    #[arg(long, requires = "to")]
    family: bool,
    /// Compress: zstd frames, as the reference writes them.
    #[arg(long)]
    zstd: bool,
    /// Write runs of stream deltas as packed rows.
    #[arg(long)]
    packed: bool,
    /// Replace files that are there.
    #[arg(long, requires = "to")]
    force: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn export(args: ExportArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    let Some(dir) = &args.to else {
        let [id] = &args.ids[..] else { bail!("several sessions need --to DIR") };
        if std::io::stdout().is_terminal() && args.zstd {
            bail!("compressed bytes are not for a terminal; use --to DIR");
        }
        let report = Export { client: &mut client, args: &args }.write(id, std::io::stdout()).await?;
        report.omissions.iter().for_each(|omission| eprintln!("note: {omission}"));
        return Ok(());
    };
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let (mut failed, ids) = (0, args.all_ids(&mut client).await?);
    for id in &ids {
        match (Export { client: &mut client, args: &args }).write_file(id, dir).await {
            Ok((path, report)) => report.print(id, &path, args.target.json)?,
            Err(error) => {
                failed += 1;
                eprintln!("{}: {}", shown(id), shown(&format!("{error:#}")));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} sessions were not exported; the others were", ids.len());
    }
    Ok(())
}

impl ExportArgs {
    /// The sessions asked for, each followed by its descendants if they are wanted, each once.
    async fn all_ids(&self, client: &mut Client) -> anyhow::Result<Vec<String>> {
        let mut ids: Vec<String> = Vec::new();
        for id in &self.ids {
            let mut found = vec![id.clone()];
            if self.family {
                let namespace = self.target.namespace.clone();
                let request = pb::TraceSessionRequest { namespace, session_id: id.clone() };
                let family = client.views.trace_session(request).await.map_err(|status| refusal(&status))?.into_inner();
                if family.is_truncated {
                    bail!("{} has more descendants than one answer holds; export them by name", shown(id));
                }
                found.extend(family.descendants.into_iter().map(|relative| relative.session_id));
            }
            found.retain(|id| !ids.contains(id));
            ids.extend(found);
        }
        Ok(ids)
    }
}

struct Report {
    events: u64,
    chain: Chain,
    omissions: Vec<Omission>,
}

impl Report {
    fn print(&self, id: &str, path: &Path, as_json: bool) -> std::io::Result<()> {
        let notes: Vec<_> = self.omissions.iter().map(ToString::to_string).collect();
        let path = path.display().to_string();
        if as_json {
            let chain = hex(&self.chain.0);
            return say!(
                "{}",
                json!({"session_id": id, "file": path, "events": self.events, "chain": chain, "notes": notes})
            );
        }
        say!("{}: {} events, {}", shown(id), self.events, shown(&path))?;
        notes.iter().try_for_each(|note| say!("  note: {note}"))
    }
}

struct Export<'a> {
    client: &'a mut Client,
    args: &'a ExportArgs,
}

impl Export<'_> {
    async fn write_file(&mut self, id: &str, dir: &Path) -> anyhow::Result<(PathBuf, Report)> {
        let suffix = if self.args.zstd { "jsonl.zstd" } else { "jsonl" };
        let path = dir.join(format!("{}.{suffix}", file_name(id)));
        if path.exists() && !self.args.force {
            bail!("{} is there; --force replaces it", path.display());
        }
        let part = dir.join(format!("{}.{suffix}.part", file_name(id)));
        let report = match self.write_part(id, &part).await {
            Ok(report) => report,
            Err(error) => {
                // Whether it can be removed or not, it does not have the name of an export.
                let _ = std::fs::remove_file(&part);
                return Err(error);
            }
        };
        std::fs::rename(&part, &path)?;
        File::open(dir)?.sync_all()?;
        Ok((path, report))
    }

    async fn write_part(&mut self, id: &str, part: &Path) -> anyhow::Result<Report> {
        let mut file = File::create(part).with_context(|| part.display().to_string())?;
        let report = self.write(id, &mut file).await?;
        file.sync_all()?;
        Ok(report)
    }

    async fn write(&mut self, id: &str, out: impl Write) -> anyhow::Result<Report> {
        let namespace = self.args.target.namespace.clone();
        let request = pb::ReadFromRequest { namespace, session_id: id.to_owned(), ..pb::ReadFromRequest::default() };
        let answer = self.client.log.read_from(request).await.map_err(|status| refusal(&status))?;
        let mut frames = answer.into_inner();
        let first = frames.message().await.map_err(|status| refusal(&status))?.and_then(|frame| frame.frame);
        let Some(Frame::Start(start)) = first else { bail!("the server did not say what it would send") };
        let session = start.session.context("the server did not say what it would send")?;
        let (header, head) = (session.header.unwrap_or_default(), session.head.unwrap_or_default());
        let header = client::header_of(header).context("the server sent a header that breaks the contract")?;
        let options = WriteOptions { is_compressed: self.args.zstd, is_packed: self.args.packed };
        let progress = progress(head.durable_next_seq);
        let mut writer = Writer::begin(BufWriter::new(out), &SessionId::new(id)?, &header, options)?;
        let (mut chain, mut events, mut end) = (Chain::START, 0, None);
        while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
            match frame.frame {
                Some(Frame::Events(frame)) => {
                    for event in frame.events {
                        let event = client::event(event);
                        let event = event.filter(|event| event.seq.get() == events);
                        let event = event.context("the server sent an event that breaks the contract")?;
                        chain = chain.after(&event);
                        writer.push(event)?;
                        events += 1;
                    }
                    progress.set_position(events);
                }
                Some(Frame::End(found)) => end = Some(found),
                _ => {}
            }
        }
        progress.finish_and_clear();
        if end.is_none_or(|end| end.reason() != pb::ReadEndReason::EndOfLog) {
            bail!("the stream ended before the log did; export again");
        }
        if events == head.next_seq && chain.0[..] != head.chain[..] {
            bail!("the chain of what was read is not the head's");
        }
        let (mut out, omissions) = writer.finish()?;
        out.flush()?;
        Ok(Report { events, chain, omissions })
    }
}

fn progress(events: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} events, {per_sec}, {eta} left");
    ProgressBar::new(events).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
