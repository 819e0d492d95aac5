//! `quipu purge`, `quipu retention` and `quipu du`: what is used, what may go, and making it go.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::command::{connect, refusal};
use super::gauge::Gauge;
use super::text::{clipped, hex, shown, size, time};
use super::{Target, rules};
use crate::rpc::client::Client;
use crate::rpc::pb;

#[derive(Args)]
pub(super) struct PurgeArgs {
    /// Tell what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct RetentionArgs {
    /// Time since the last change, like 12h or 30d; without it the configured rule of the namespace.
    #[arg(long, value_name = "TIME", value_parser = rules::age::parse)]
    keep: Option<Duration>,
    /// Delete; without it the command tells what would go.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct DuArgs {
    /// Ids that start with this.
    #[arg(default_value = "")]
    prefix: String,
    /// Only the sums.
    #[arg(long)]
    sum: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn purge(args: PurgeArgs) -> anyhow::Result<()> {
    let request = pb::PurgeRequest { namespace: args.target.namespace.clone(), dry_run: args.dry_run };
    let answer = connect(&args.target).await?.admin.purge(request).await;
    let mut steps = answer.map_err(|status| refusal(&status))?.into_inner();
    let (mut sums, gauge) = ((0, 0, 0), Gauge::new("sessions purged"));
    while let Some(step) = steps.message().await.map_err(|status| refusal(&status))? {
        for receipt in &step.receipts {
            sums = (sums.0 + 1, sums.1 + receipt.events, sums.2 + receipt.bytes);
            gauge.set(sums.0, None);
            print_receipt(receipt, args.target.json)?;
        }
        if step.done {
            gauge.end();
            let (sessions, events, bytes) = sums;
            return if args.target.json {
                let sums = json!({"sessions": sessions, "events": events, "bytes": bytes, "dry_run": args.dry_run});
                Ok(say!("{sums}")?)
            } else {
                let verb = if args.dry_run { "would free" } else { "freed" };
                Ok(say!("{verb} {} in {events} events of {sessions} deleted sessions", size(bytes as f64))?)
            };
        }
    }
    bail!("the purge stopped early; what is printed is gone, repeat the command for the rest")
}

fn print_receipt(receipt: &pb::PurgeReceipt, as_json: bool) -> std::io::Result<()> {
    let pb::PurgeReceipt { session_id, incarnation, from_seq, events, bytes, chain, shared } = receipt;
    if as_json {
        let receipt = json!({
            "session_id": session_id, "incarnation": hex(incarnation), "from_seq": from_seq, "events": events,
            "bytes": bytes, "chain": hex(chain), "shared": shared,
        });
        return say!("{receipt}");
    }
    let rest = if *shared { format!("; forks keep the first {from_seq}") } else { String::new() };
    say!("{:>10}  {:>9} events  {}{rest}", size(*bytes as f64), events, shown(session_id))
}

pub(super) async fn retention(args: RetentionArgs) -> anyhow::Result<()> {
    let request = pb::RetainRequest {
        namespace: args.target.namespace.clone(),
        keep_ms: args.keep.map(|keep| keep.as_millis() as u64),
        apply: args.apply,
    };
    let answer = connect(&args.target).await?.admin.retain(request).await;
    let mut steps = answer.map_err(|status| refusal(&status))?.into_inner();
    let ((mut gone, mut kept, mut bytes), gauge) = ((0, 0, 0), Gauge::new("sessions looked at"));
    while let Some(step) = steps.message().await.map_err(|status| refusal(&status))? {
        for aged in &step.sessions {
            let session = aged.session.clone().unwrap_or_default();
            if aged.kept.is_none() {
                (gone, bytes) = (gone + 1, bytes + session.bytes);
            } else {
                kept += 1;
            }
            gauge.set(gone + kept, None);
            print_aged((aged, &session), &args)?;
        }
        if step.done {
            gauge.end();
            return if args.target.json {
                Ok(say!("{}", json!({"deleted": gone, "kept": kept, "bytes": bytes, "dry_run": !args.apply}))?)
            } else if args.apply {
                Ok(say!("deleted {gone} sessions, kept {kept}; quipu purge frees {}", size(bytes as f64))?)
            } else {
                Ok(say!("would delete {gone} sessions of {}, keep {kept}; --apply does it", size(bytes as f64))?)
            };
        }
    }
    bail!("retention stopped early; repeat the command for the rest")
}

fn print_aged((aged, session): (&pb::AgedSession, &pb::Session), args: &RetentionArgs) -> std::io::Result<()> {
    let kept = aged.kept.map(|_| match aged.kept() {
        pb::KeptReason::OpenTurn => "open-turn",
        pb::KeptReason::Owned => "owned",
        pb::KeptReason::Changed | pb::KeptReason::Unspecified => "changed",
    });
    let id = session.header.as_ref().map_or("", |header| &header.id);
    let updated_ms = session.head.as_ref().map_or(0, |head| head.updated_at_ms);
    if args.target.json {
        let row = json!({
            "session_id": id, "updated_at_ms": updated_ms, "events": session.events, "bytes": session.bytes, "kept": kept,
        });
        return say!("{row}");
    }
    let fate =
        kept.map_or_else(|| if args.apply { "deleted".into() } else { "goes".into() }, |kept| format!("kept: {kept}"));
    say!("{}  {:>10}  {:<38}  {fate}", time(updated_ms as i64), size(session.bytes as f64), shown(id))
}

pub(super) async fn du(args: DuArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    let namespace = args.target.namespace.clone();
    if !args.sum {
        print_sizes(&mut client, &args).await?;
    }
    let usage = client.admin.get_usage(pb::GetUsageRequest { namespace }).await;
    let usage = usage.map_err(|status| refusal(&status))?.into_inner();
    if args.target.json {
        let usage = json!({
            "sessions": usage.sessions, "events": usage.events, "shared_events": usage.shared_events,
            "bytes": usage.bytes, "deleted_sessions": usage.deleted_sessions, "deleted_bytes": usage.deleted_bytes,
            "purgeable_bytes": usage.purgeable_bytes,
        });
        return Ok(say!("{usage}")?);
    }
    let (sessions, deleted) = (usage.sessions, usage.deleted_sessions);
    say!("{:>10}  in {} events of {sessions} sessions", size(usage.bytes as f64), usage.events - usage.shared_events)?;
    say!("{:>10}  in {deleted} deleted sessions", size(usage.deleted_bytes as f64))?;
    say!("{:>10}  of it quipu purge frees", size(usage.purgeable_bytes as f64))?;
    Ok(())
}

async fn print_sizes(client: &mut Client, args: &DuArgs) -> anyhow::Result<()> {
    let mut request = pb::ListSessionsRequest {
        namespace: args.target.namespace.clone(),
        id_prefix: args.prefix.clone(),
        page_size: 1000,
        ..pb::ListSessionsRequest::default()
    };
    loop {
        let page = client.sessions.list_sessions(request.clone()).await.map_err(|status| refusal(&status))?;
        let page = page.into_inner();
        page.sessions.iter().try_for_each(|session| print_size(session, args.target.json))?;
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}

fn print_size(session: &pb::Session, as_json: bool) -> std::io::Result<()> {
    let id = session.header.as_ref().map_or("", |header| &header.id);
    if as_json {
        let row = json!({
            "session_id": id, "bytes": session.bytes, "events": session.events,
            "shared_events": session.shared_events, "forks": session.forks,
        });
        return say!("{row}");
    }
    let shared = if session.shared_events == 0 { String::new() } else { format!(", {} shared", session.shared_events) };
    say!("{:>10}  {:<38}  {} events{shared}", size(session.bytes as f64), shown(id), session.events)
}

/// What a list knows of a session besides its header, for people.
pub(super) fn print_facts(session: &pb::Session) -> std::io::Result<()> {
    if let Some(title) = &session.title {
        say!("title        {}", clipped(title, 100))?;
    }
    let shared = match session.shared_events {
        0 => String::new(),
        shared => format!(", the first {shared} shared"),
    };
    let forks = match session.forks {
        None | Some(0) => String::new(),
        Some(forks) => format!(", {forks} sessions share events of it"),
    };
    say!("events       {}{shared}, {} of its own{forks}", session.events, size(session.bytes as f64))
}
