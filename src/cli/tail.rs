//! `quipu tail` and `quipu changes`: following from a terminal, over cuts and restarts of the server.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;
use tonic::{Code, Status};

use super::command::{connect, head, refusal};
use super::read::row;
use super::text::{hex, shown, time};
use super::{Target, lines};
use crate::model::{Event, json as text};
use crate::rpc::client;
use crate::rpc::pb;
use crate::rpc::pb::{changes_response, read_from_response};

#[derive(Args)]
pub(super) struct TailArgs {
    /// The session.
    id: String,
    /// Stay, and print what comes; goes on by itself after a cut or a restart of the server.
    #[arg(long, short)]
    follow: bool,
    /// Start this many events before the end.
    #[arg(long, short = 'c', default_value_t = 20, value_name = "COUNT")]
    count: u64,
    /// Start here instead.
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Only events of this type; a trailing * stands for anything. May be given several times.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Only events of this turn.
    #[arg(long, value_name = "TURN")]
    turn: Option<i64>,
    /// Also events that are not durable yet.
    #[arg(long, requires = "follow")]
    accepted: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct WatchArgs {
    /// The session.
    id: String,
    /// Messages on the page.
    #[arg(long, default_value_t = 50, value_name = "COUNT")]
    messages: u64,
    /// Also events that are not durable yet.
    #[arg(long)]
    accepted: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct ChangesArgs {
    /// First position.
    #[arg(long, default_value_t = 1, value_name = "POSITION")]
    from: u64,
    /// Stay, and print what comes; goes on by itself after a cut or a restart of the server.
    #[arg(long, short)]
    follow: bool,
    /// Only changes of this kind (create, append, delete, ...). May be given several times.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// Of all namespaces.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    target: Target,
}

/// Waits between attempts to go on.
const AGAIN: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3)];

/// How a stream ended.
enum Cut {
    /// There is nothing more.
    Done,
    /// Something was wrong on the way; going on may help.
    Broken(anyhow::Error),
}

/// Whether the same call may succeed later.
fn cut(status: &Status) -> anyhow::Result<Cut> {
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::ResourceExhausted => {
            Ok(Cut::Broken(refusal(status)))
        }
        _ => Err(refusal(status)),
    }
}

/// Tries until it is done. Progress starts the waits anew.
async fn again<S>(
    state: &mut S,
    is_patient: bool,
    mut attempt: impl AsyncFnMut(&mut S) -> anyhow::Result<(Cut, bool)>,
) -> anyhow::Result<()> {
    let mut vain = 0;
    loop {
        let (cut, progressed) = attempt(state).await?;
        let Cut::Broken(error) = cut else { return Ok(()) };
        if !is_patient {
            return Err(error);
        }
        vain = if progressed { 0 } else { vain + 1 };
        let wait = AGAIN[vain.min(AGAIN.len() - 1)];
        eprintln!("quipu: {}; going on in {wait:?}", shown(&format!("{error:#}")));
        tokio::time::sleep(wait).await;
    }
}

pub(super) async fn tail(args: TailArgs) -> anyhow::Result<()> {
    let from = if let Some(from) = args.from {
        from
    } else {
        let head = head(&mut connect(&args.target).await?, &args.target.namespace, &args.id).await?;
        head.durable_next_seq.saturating_sub(args.count)
    };
    let mut request = pb::ReadFromRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id.clone(),
        from_seq: from,
        follow: args.follow,
        accepted: args.accepted,
        ..pb::ReadFromRequest::default()
    };
    again(&mut request, args.follow, async |request| {
        let from = request.from_seq;
        let cut = tail_once(&args, request).await?;
        Ok((cut, request.from_seq > from))
    })
    .await
}

/// Prints until the stream ends; `request` then says where to go on.
async fn tail_once(args: &TailArgs, request: &mut pb::ReadFromRequest) -> anyhow::Result<Cut> {
    let mut client = match connect(&args.target).await {
        Ok(client) => client,
        Err(error) => return Ok(Cut::Broken(error)),
    };
    let mut frames = match client.log.read_from(request.clone()).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return cut(&status),
    };
    loop {
        let frame = match frames.message().await {
            Ok(Some(frame)) => frame.frame,
            Ok(None) => return Ok(Cut::Broken(anyhow::anyhow!("the connection ended before the log did"))),
            Err(status) => return cut(&status),
        };
        match frame {
            Some(read_from_response::Frame::Start(start)) => {
                // From now on this life of the name only.
                let head = start.session.and_then(|session| session.head);
                request.incarnation = head.map(|head| head.incarnation);
            }
            Some(read_from_response::Frame::Events(events)) => {
                for event in events.events {
                    let event = client::event(event).context("the server sent an event that breaks the contract")?;
                    request.from_seq = event.seq.get() + 1;
                    print(args, &event)?;
                }
            }
            Some(read_from_response::Frame::End(end)) => return ended(end.reason()),
            _ => {}
        }
    }
}

fn ended(reason: pb::ReadEndReason) -> anyhow::Result<Cut> {
    match reason {
        pb::ReadEndReason::EndOfLog | pb::ReadEndReason::Limit => Ok(Cut::Done),
        pb::ReadEndReason::Deleted => bail!("the session was deleted"),
        pb::ReadEndReason::Replaced => bail!("the session was deleted and created anew"),
        pb::ReadEndReason::Uncertain => bail!("the server's disk failed; accepted events may be lost"),
        _ => Ok(Cut::Broken(anyhow::anyhow!("the server is shutting down"))),
    }
}

fn print(args: &TailArgs, event: &Event) -> anyhow::Result<()> {
    let is_type = |wanted: &String| match wanted.strip_suffix('*') {
        Some(start) => event.body.kind.starts_with(start),
        None => *event.body.kind == **wanted,
    };
    let is_wanted = args.types.is_empty() || args.types.iter().any(is_type);
    if !is_wanted || (args.turn.is_some() && turn(event) != args.turn) {
        return Ok(());
    }
    print_event(event, args.target.json)
}

fn print_event(event: &Event, as_json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let line = if as_json {
        lines::write(event)
    } else if out.is_terminal() {
        format!("\x1b[{}m{}\x1b[0m", colour(&event.body.kind), row(event)).into_bytes()
    } else {
        row(event).into_bytes()
    };
    out.write_all(&line)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// The turn that an event says it is of.
fn turn(event: &Event) -> Option<i64> {
    let doc = text::parse_any(&event.body.data).ok()?;
    doc.root().get("turn").and_then(text::Value::as_int53)
}

/// A colour by what the event is about.
fn colour(kind: &str) -> &'static str {
    match kind.split('/').next().unwrap_or_default() {
        "user" => "36",
        "assistant" => "32",
        "tool" => "33",
        "turn" | "step" => "2",
        _ => "0",
    }
}

pub(super) async fn watch(args: WatchArgs) -> anyhow::Result<()> {
    let mut request = pb::WatchRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id.clone(),
        max_messages: args.messages,
        accepted: args.accepted,
        ..pb::WatchRequest::default()
    };
    again(&mut request, true, async |request| {
        let from = request.from_seq;
        let cut = watch_once(&args.target, request).await?;
        Ok((cut, request.from_seq > from))
    })
    .await
}

async fn watch_once(target: &Target, request: &mut pb::WatchRequest) -> anyhow::Result<Cut> {
    use pb::watch_response::Content;
    let mut client = match connect(target).await {
        Ok(client) => client,
        Err(error) => return Ok(Cut::Broken(error)),
    };
    let mut frames = match client.log.watch(request.clone()).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return cut(&status),
    };
    loop {
        let frame = match frames.message().await {
            Ok(Some(frame)) => frame.content,
            Ok(None) => return Ok(Cut::Broken(anyhow::anyhow!("the connection ended before the log did"))),
            Err(status) => return cut(&status),
        };
        let frame = match frame {
            Some(Content::Frame(frame)) => frame.frame,
            Some(Content::Page(page)) => {
                request.from_seq = Some(page.first_seq);
                None
            }
            None => None,
        };
        match frame {
            Some(read_from_response::Frame::Start(start)) => {
                request.incarnation = start.session.and_then(|session| session.head).map(|head| head.incarnation);
            }
            Some(read_from_response::Frame::Events(events)) => {
                for event in events.events {
                    let event = client::event(event).context("the server sent an event that breaks the contract")?;
                    request.from_seq = Some(event.seq.get() + 1);
                    print_event(&event, target.json)?;
                }
            }
            Some(read_from_response::Frame::End(end)) => return ended(end.reason()),
            _ => {}
        }
    }
}

pub(super) async fn changes(args: ChangesArgs) -> anyhow::Result<()> {
    let mut request = pb::ChangesRequest {
        from_position: args.from,
        follow: args.follow,
        namespace: (!args.all).then(|| args.target.namespace.clone()),
        kinds: args.kinds.clone(),
        ..pb::ChangesRequest::default()
    };
    again(&mut request, args.follow, async |request| {
        let from = request.from_position;
        let cut = changes_once(&args, request).await?;
        Ok((cut, request.from_position > from))
    })
    .await
}

async fn changes_once(args: &ChangesArgs, request: &mut pb::ChangesRequest) -> anyhow::Result<Cut> {
    use changes_response::Frame;
    let mut client = match connect(&args.target).await {
        Ok(client) => client,
        Err(error) => return Ok(Cut::Broken(error)),
    };
    let mut frames = match client.feed.changes(request.clone()).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return cut(&status),
    };
    loop {
        let frame = match frames.message().await {
            Ok(Some(frame)) => frame.frame,
            Ok(None) => return Ok(Cut::Broken(anyhow::anyhow!("the connection ended before the feed did"))),
            Err(status) => return cut(&status),
        };
        match frame {
            // From now on of this store only.
            Some(Frame::Start(start)) => request.store_id = Some(start.store_id),
            Some(Frame::Changes(frame)) => {
                for change in frame.changes {
                    print_change(&change, args.target.json)?;
                    request.from_position = change.through_position + 1;
                }
            }
            Some(Frame::States(states)) => {
                for state in states.sessions {
                    let id = state.session.and_then(|session| session.header).unwrap_or_default().id;
                    eprintln!("changes before this are not kept; {} stands at {}", shown(&id), state.position);
                }
            }
            Some(Frame::StatesEnd(mark)) => request.from_position = mark.position + 1,
            Some(Frame::CaughtUp(mark) | Frame::Heartbeat(mark)) => request.from_position = mark.position + 1,
            Some(Frame::End(end)) => {
                return Ok(match end.reason() {
                    pb::ChangesEndReason::EndOfFeed => Cut::Done,
                    _ => Cut::Broken(anyhow::anyhow!("the server is shutting down")),
                });
            }
            None => {}
        }
    }
}

fn print_change(change: &pb::Change, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let object = json!({
            "position": change.position,
            "through_position": change.through_position,
            "time_ms": change.time_ms,
            "kind": change.kind,
            "namespace": change.namespace,
            "session_id": change.session_id,
            "incarnation": hex(&change.incarnation),
            "first_seq": change.first_seq,
            "next_seq": change.next_seq,
            "chain": hex(&change.chain),
        });
        return Ok(say!("{object}")?);
    }
    let (at, name) = (time(change.time_ms as i64), shown(&change.session_id));
    let seqs = match change.next_seq - change.first_seq {
        0 => String::new(),
        _ => format!("{}..{}", change.first_seq, change.next_seq),
    };
    Ok(say!("{:>8}  {at}  {:<8}  {name}  {seqs}", change.position, shown(&change.kind))?)
}
