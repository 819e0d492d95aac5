//! `quipu read`: the events of a log, once.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use clap::Args;

use super::command::{connect, refusal};
use super::text::{clipped, shown, time};
use super::{Target, lines};
use crate::rpc::{client, pb};

#[derive(Args)]
pub(super) struct ReadArgs {
    /// The session.
    id: String,
    /// First seq.
    #[arg(long, default_value_t = 0, value_name = "SEQ")]
    from: u64,
    /// Most events; 0 is no limit.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    limit: u64,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn read(args: ReadArgs) -> anyhow::Result<()> {
    let request = pb::ReadFromRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id,
        from_seq: args.from,
        limit_events: args.limit,
        ..pb::ReadFromRequest::default()
    };
    let answer = connect(&args.target).await?.log.read_from(request).await;
    let mut frames = answer.map_err(|status| refusal(&status))?.into_inner();
    let mut out = std::io::stdout().lock();
    let mut end = None;
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        let events = match frame.frame {
            Some(pb::read_from_response::Frame::Events(events)) => events,
            Some(pb::read_from_response::Frame::End(found)) => {
                end = Some(found);
                continue;
            }
            // What only followers get is none of it.
            _ => continue,
        };
        for event in events.events {
            let event = client::event(event).context("the server sent an event that breaks the contract")?;
            let line = if args.target.json { lines::write(&event) } else { row(&event).into_bytes() };
            match out.write_all(&line).and_then(|()| out.write_all(b"\n")) {
                // The reader of a pipe had enough.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
    }
    let end = end.context("the connection ended before the log did")?;
    match end.reason() {
        pb::ReadEndReason::EndOfLog | pb::ReadEndReason::Limit => Ok(()),
        _ => bail!("the server is shutting down; the read goes on with --from {}", end.next_seq),
    }
}

/// An event as a line for people.
pub(super) fn row(event: &crate::model::Event) -> String {
    let data = clipped(&String::from_utf8_lossy(&event.body.data), 100);
    format!("{:>6}  {}  {:<20}  {data}", event.seq, time(event.body.time_ms), shown(&event.body.kind))
}
