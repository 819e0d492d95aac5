//! The commands that show what logs mean: views, for people and, with `--json`, for programs.
//!
//! JSON is one object a line. What a log holds is put into it as the log has it, so that nothing is lost on the way.

mod family;
mod show;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::Target;
use super::command::{connect, refusal};
use super::lines;
use crate::rpc::client;
use crate::rpc::pb;

pub(super) use family::{LineageArgs, lineage};

/// Which log, and how much of it.
#[derive(Args)]
struct LogArgs {
    /// The session.
    id: String,
    /// Look only at the events before this seq.
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
    /// Close an open turn, as a repair would; nothing is written.
    #[arg(long)]
    balanced: bool,
    #[command(flatten)]
    target: Target,
}

impl LogArgs {
    fn view(&self) -> pb::LogView {
        let balance = if self.balanced { pb::Balance::Balanced } else { pb::Balance::Physical };
        pb::LogView {
            namespace: self.target.namespace.clone(),
            session_id: self.id.clone(),
            before_seq: self.before,
            balance: Some(balance.into()),
            ..pb::LogView::default()
        }
    }
}

#[derive(Args)]
pub(super) struct MessagesArgs {
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Args)]
pub(super) struct RequestArgs {
    #[command(flatten)]
    log: LogArgs,
    /// The nth dispatch, counted from 0.
    #[arg(long, value_name = "N", conflicts_with = "before")]
    dispatch: Option<u64>,
}

#[derive(Args)]
pub(super) struct AttemptsArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Show the attempt that this event is part of, with its blocks.
    #[arg(long, value_name = "SEQ")]
    seq: Option<u64>,
}

#[derive(Args)]
pub(super) struct HistoryArgs {
    /// The session.
    id: String,
    /// The page ends before this seq.
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
    /// Messages on the page.
    #[arg(long, default_value_t = 50, value_name = "COUNT")]
    messages: u64,
    /// Most bytes of events on the page; 0 is no limit.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    bytes: u64,
    /// Never start between a message and the events that it was made from.
    #[arg(long)]
    whole: bool,
    /// Close an open turn, as a repair would; nothing is written.
    #[arg(long)]
    balanced: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct TraceArgs {
    #[command(flatten)]
    log: LogArgs,
    /// The event.
    seq: u64,
}

#[derive(Args)]
pub(super) struct StatsArgs {
    #[command(flatten)]
    log: LogArgs,
}

pub(super) async fn messages(args: MessagesArgs) -> anyhow::Result<()> {
    use pb::derive_messages_response::Frame;
    let request = pb::DeriveMessagesRequest { log: Some(args.log.view()) };
    let answer = connect(&args.log.target).await?.views.derive_messages(request).await;
    let mut frames = answer.map_err(|status| refusal(&status))?.into_inner();
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        match frame.frame {
            Some(Frame::Start(start)) if args.log.target.json => {
                let pairing = start.pairing.unwrap_or_default();
                let basis = basis(start.basis.as_ref());
                let about = json!({"messages": start.message_count, "is_balanced": pairing.is_balanced});
                println!("{}", show::joined(&basis, &about));
            }
            Some(Frame::Start(start)) => show::about(start.basis.as_ref(), start.pairing.as_ref()),
            Some(Frame::Messages(frame)) => show::messages(&frame.messages, args.log.target.json),
            None => {}
        }
    }
    Ok(())
}

pub(super) async fn request(args: RequestArgs) -> anyhow::Result<()> {
    use pb::reconstruct_request_response::Frame;
    let request = pb::ReconstructRequestRequest { log: Some(args.log.view()), dispatch: args.dispatch };
    let answer = connect(&args.log.target).await?.views.reconstruct_request(request).await;
    let mut frames = answer.map_err(|status| refusal(&status))?.into_inner();
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        match frame.frame {
            Some(Frame::Start(start)) => show::request(&start, args.log.target.json),
            Some(Frame::Messages(frame)) => show::messages(&frame.messages, args.log.target.json),
            None => {}
        }
    }
    Ok(())
}

pub(super) async fn attempts(args: AttemptsArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.log.target).await?;
    let as_json = args.log.target.json;
    if let Some(seq) = args.seq {
        let request = pb::AssembleAttemptRequest { log: Some(args.log.view()), seq };
        let answer = client.views.assemble_attempt(request).await;
        show::assembled(&answer.map_err(|status| refusal(&status))?.into_inner(), as_json);
        return Ok(());
    }
    let mut request =
        pb::ListAttemptsRequest { log: Some(args.log.view()), page_size: 1000, ..pb::ListAttemptsRequest::default() };
    loop {
        let answer = client.views.list_attempts(request.clone()).await;
        let page = answer.map_err(|status| refusal(&status))?.into_inner();
        page.attempts.iter().for_each(|attempt| show::attempt(attempt, as_json));
        match page.next_from_seq {
            Some(next) => request.from_seq = next,
            None => return Ok(()),
        }
    }
}

pub(super) async fn history(args: HistoryArgs) -> anyhow::Result<()> {
    use pb::read_history_response::Frame;
    let balance = if args.balanced { pb::Balance::Balanced } else { pb::Balance::Physical };
    let log = pb::LogView {
        namespace: args.target.namespace.clone(),
        session_id: args.id.clone(),
        balance: Some(balance.into()),
        ..pb::LogView::default()
    };
    let request = pb::ReadHistoryRequest {
        log: Some(log),
        before_seq: args.before,
        max_messages: args.messages,
        max_bytes: args.bytes,
        whole_messages: args.whole,
    };
    let answer = connect(&args.target).await?.views.read_history(request).await;
    let mut frames = answer.map_err(|status| refusal(&status))?.into_inner();
    let mut older = None;
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        match frame.frame {
            Some(Frame::Start(start)) => older = start.first_seq.filter(|_| start.has_more),
            Some(Frame::Events(frame)) => {
                for event in frame.events {
                    let event = client::event(event).context("the server sent an event that breaks the contract")?;
                    if args.target.json {
                        println!("{}", String::from_utf8_lossy(&lines::write(&event)));
                    } else {
                        println!("{}", super::read::row(&event));
                    }
                }
            }
            None => {}
        }
    }
    if let Some(first) = older.filter(|_| !args.target.json) {
        println!("older events: --before {first}");
    }
    Ok(())
}

pub(super) async fn trace(args: TraceArgs) -> anyhow::Result<()> {
    let request = pb::TraceEventRequest { log: Some(args.log.view()), seq: args.seq };
    let answer = connect(&args.log.target).await?.views.trace_event(request).await;
    show::trace(&answer.map_err(|status| refusal(&status))?.into_inner(), args.log.target.json);
    Ok(())
}

pub(super) async fn stats(args: StatsArgs) -> anyhow::Result<()> {
    let request = pb::GetSessionStatsRequest { log: Some(args.log.view()) };
    let answer = connect(&args.log.target).await?.views.get_session_stats(request).await;
    show::stats(&answer.map_err(|status| refusal(&status))?.into_inner(), args.log.target.json);
    Ok(())
}

fn basis(basis: Option<&pb::ViewBasis>) -> Value {
    let basis = basis.cloned().unwrap_or_default();
    json!({"next_seq": basis.next_seq, "closers": basis.closers, "incarnation": super::text::hex(&basis.incarnation)})
}
