//! The commands about owners and repair.

use std::io::Write;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::command::{connect, head_json, refusal, session};
use super::read::row;
use super::text::{shown, time, unhex};
use super::{Target, lines};
use crate::rpc::client;
use crate::rpc::pb;

#[derive(Args)]
pub(super) struct FaceArgs {
    /// The session.
    id: String,
    /// Print all events, and the closers behind them.
    #[arg(long)]
    events: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct RepairArgs {
    /// The session.
    id: String,
    /// Show what would be appended, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Epoch of the owner, if there is one.
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
    /// Repair only the log that has this revision (hex, as stat shows it); without it the one that is there now.
    #[arg(long, value_name = "HEX")]
    revision: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct OwnerArgs {
    /// The session.
    id: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct TakeOverArgs {
    /// The session.
    id: String,
    /// Why, for the record of the session.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The name of the new owner.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    holder: String,
    /// Time to live of the reservation in milliseconds.
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
    /// Give the session back at once, so that any host may prepare it.
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    target: Target,
}

/// Events on their way to standard output.
fn print_event(event: pb::Event, as_json: bool) -> anyhow::Result<()> {
    let event = client::event(event).context("the server sent an event that breaks the contract")?;
    let mut line = if as_json { lines::write(&event) } else { row(&event).into_bytes() };
    line.push(b'\n');
    std::io::stdout().lock().write_all(&line)?;
    Ok(())
}

pub(super) async fn inspect(args: FaceArgs) -> anyhow::Result<()> {
    let request = pb::InspectRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id,
        with_events: args.events,
        ..Default::default()
    };
    let answer = connect(&args.target).await?.faces.inspect(request).await;
    let mut frames = answer.map_err(|status| refusal(&status))?.into_inner();
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        match frame.frame {
            Some(pb::inspect_response::Frame::Start(start)) if !args.events => {
                let head = start.session.and_then(|session| session.head).unwrap_or_default();
                if args.target.json {
                    let value = json!({"head": head_json(&head), "live": start.live, "closers": start.closers.len()});
                    say!("{value}")?;
                } else {
                    let state = if start.live { "live, shown as it stands" } else { "closed by" };
                    let closers = if start.live { String::new() } else { format!(" {} events", start.closers.len()) };
                    say!("next seq     {} ({state}{closers})", head.next_seq)?;
                }
                let shown = start.closers.into_iter().filter(|_| !args.target.json);
                shown.into_iter().try_for_each(|event| print_event(event, false))?;
            }
            Some(pb::inspect_response::Frame::Events(events)) => {
                events.events.into_iter().try_for_each(|event| print_event(event, args.target.json))?;
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) async fn load(args: FaceArgs) -> anyhow::Result<()> {
    let request = pb::LoadRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id,
        with_events: args.events,
        ..Default::default()
    };
    let answer = connect(&args.target).await?.faces.load(request).await;
    let mut frames = answer.map_err(|status| refusal(&status))?.into_inner();
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        match frame.frame {
            Some(pb::load_response::Frame::Start(start)) if !args.events => {
                let head = start.session.and_then(|session| session.head).unwrap_or_default();
                if args.target.json {
                    say!("{}", json!({"head": head_json(&head), "repaired": start.repaired}))?;
                } else {
                    say!("next seq     {} ({} events appended to close the turn)", head.next_seq, start.repaired)?;
                }
            }
            Some(pb::load_response::Frame::Events(events)) => {
                events.events.into_iter().try_for_each(|event| print_event(event, args.target.json))?;
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) async fn repair(args: RepairArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    let revision = match &args.revision {
        Some(text) => unhex(text).with_context(|| format!("--revision {text} is not hex"))?,
        None => {
            session(&mut client, &args.target.namespace, &args.id).await?.head.unwrap_or_default().revision.to_vec()
        }
    };
    let request = pb::CommitRepairRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id,
        expected_revision: revision.into(),
        validate_only: args.dry_run,
        epoch: args.epoch,
        closers: Vec::new(),
    };
    let answer = client.faces.commit_repair(request).await.map_err(|status| refusal(&status))?.into_inner();
    let head = answer.head.unwrap_or_default();
    if args.target.json {
        let closers: Vec<_> =
            answer.closers.iter().map(|event| json!({"seq": event.seq, "type": event.r#type})).collect();
        let value = json!({"head": head_json(&head), "committed": answer.committed, "closers": closers});
        say!("{value}")?;
        return Ok(());
    }
    match (answer.closers.len(), answer.committed) {
        (0, _) => say!("nothing to repair: no turn is open")?,
        (count, true) => say!("{count} events appended, next seq {}", head.next_seq)?,
        (count, false) => say!("{count} events would be appended")?,
    }
    answer.closers.into_iter().try_for_each(|event| print_event(event, false))
}

pub(super) async fn owner(args: OwnerArgs) -> anyhow::Result<()> {
    let session = session(&mut connect(&args.target).await?, &args.target.namespace, &args.id).await?;
    let owner = session.head.unwrap_or_default().owner;
    if args.target.json {
        let trail: Vec<_> = session.take_overs.iter().map(take_over_json).collect();
        say!("{}", json!({"owner": owner.as_ref().map(owner_json), "take_overs": trail}))?;
        return Ok(());
    }
    match owner {
        None => say!("nobody owns the session")?,
        Some(owner) => print_owner(&owner)?,
    }
    for take_over in session.take_overs {
        let pb::TakeOver { epoch, at_ms, holder, from_holder, reason } = take_over;
        let (holder, from, reason) = (shown(&holder), shown(&from_holder), shown(&reason));
        say!("taken over   {}  {holder} from {from}, epoch {epoch}: {reason}", time(at_ms as i64))?;
    }
    Ok(())
}

pub(super) async fn take_over(args: TakeOverArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    let request = pb::PrepareRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id.clone(),
        holder: args.holder,
        ttl_ms: args.ttl_ms,
        take_over: Some(pb::TakeOverClaim { reason: args.reason }),
        ..Default::default()
    };
    let mut frames = client.owners.prepare(request).await.map_err(|status| refusal(&status))?.into_inner();
    let mut start = None;
    while let Some(frame) = frames.message().await.map_err(|status| refusal(&status))? {
        if let Some(pb::prepare_response::Frame::Start(found)) = frame.frame {
            start = Some(found);
        }
    }
    let pb::PrepareStart { session, epoch, repaired, .. } = start.context("the connection ended before the answer")?;
    let mut head = session.and_then(|session| session.head).unwrap_or_default();
    if args.release {
        let request = pb::ReleaseRequest { namespace: args.target.namespace.clone(), session_id: args.id, epoch };
        let released = client.owners.release(request).await.map_err(|status| refusal(&status))?;
        head = released.into_inner().head.unwrap_or_default();
    }
    if args.target.json {
        let owner = head.owner.as_ref().map(owner_json);
        let value = json!({"epoch": epoch, "repaired": repaired, "owner": owner, "head": head_json(&head)});
        say!("{value}")?;
        return Ok(());
    }
    say!("epoch        {epoch} ({repaired} events appended to close the turn)")?;
    match head.owner {
        None => say!("released     any host may prepare the session")?,
        Some(owner) => print_owner(&owner)?,
    }
    Ok(())
}

fn state(owner: &pb::Owner) -> String {
    owner.state().as_str_name().trim_start_matches("OWNER_STATE_").to_lowercase()
}

fn print_owner(owner: &pb::Owner) -> anyhow::Result<()> {
    say!("owner        {} ({}, epoch {})", shown(&owner.holder), state(owner), owner.epoch)?;
    say!("since        {}", time(owner.since_ms as i64))?;
    match owner.expires_in_ms {
        Some(0) => say!("lease        ran out; the next host that prepares gets the session")?,
        Some(left) => say!("lease        runs for {left} ms without a sign of life")?,
        None => {}
    }
    Ok(())
}

fn owner_json(owner: &pb::Owner) -> serde_json::Value {
    json!({
        "epoch": owner.epoch, "holder": owner.holder, "state": state(owner), "since_ms": owner.since_ms,
        "expires_in_ms": owner.expires_in_ms,
    })
}

fn take_over_json(take_over: &pb::TakeOver) -> serde_json::Value {
    json!({
        "epoch": take_over.epoch, "at_ms": take_over.at_ms, "holder": take_over.holder,
        "from_holder": take_over.from_holder, "reason": take_over.reason,
    })
}
