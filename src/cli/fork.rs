//! `quipu fork` and `quipu detach`.

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::Target;
use super::command::{connect, labels, print_session, refusal};
use super::gauge::Gauge;
use super::text::{hex, shown};
use crate::rpc::pb;

#[derive(Args)]
pub(super) struct ForkArgs {
    /// The parent.
    id: String,
    /// The child's id; without it the server makes one, and a repetition makes another child.
    child: Option<String>,
    /// End after this event, which must not be in an open turn.
    #[arg(long, value_name = "SEQ", group = "boundary")]
    at: Option<u64>,
    /// End after the turn that holds this event, with what follows it up to the next turn.
    #[arg(long, value_name = "SEQ", group = "boundary")]
    anchor: Option<u64>,
    /// End after the last completed turn, with what follows it; without a boundary, at the end of the log.
    #[arg(long, group = "boundary")]
    last_turn: bool,
    /// The child's working directory instead of the parent's.
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    /// A label of the child; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// The child's agent preset.
    #[arg(long, value_name = "NAME", conflicts_with = "keep_preset")]
    preset: Option<String>,
    /// Go on with the preset that the parent uses.
    #[arg(long)]
    keep_preset: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct DetachArgs {
    /// The session.
    id: String,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn fork(args: ForkArgs) -> anyhow::Result<()> {
    let boundary = match (args.at, args.anchor, args.last_turn) {
        (Some(_), _, _) => pb::Boundary::Inclusive,
        (_, Some(_), _) => pb::Boundary::Anchor,
        (_, _, true) => pb::Boundary::LastTurn,
        _ => pb::Boundary::Head,
    };
    let request = pb::ForkRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id,
        boundary: Some(boundary.into()),
        boundary_seq: args.at.or(args.anchor),
        child_id: args.child,
        cwd: args.cwd,
        labels: labels(&args.labels)?,
        agent_preset: args.preset,
        keep_agent_preset: args.keep_preset,
        ..pb::ForkRequest::default()
    };
    let answer = connect(&args.target).await?.forks.fork(request).await;
    let answer = answer.map_err(|status| refusal(&status))?.into_inner();
    let session = answer.session.context("no session in the answer")?;
    if !args.target.json {
        let was_there = if answer.already_existed { " (it was there)" } else { "" };
        say!("inherited    {} events, chain {}{was_there}", answer.seed_length, hex(&answer.chain_at_boundary))?;
    }
    print_session(&session, args.target.json)
}

pub(super) async fn detach(args: DetachArgs) -> anyhow::Result<()> {
    let request = pb::DetachRequest {
        namespace: args.target.namespace.clone(),
        session_id: args.id.clone(),
        ..pb::DetachRequest::default()
    };
    let answer = connect(&args.target).await?.forks.detach(request).await;
    let mut steps = answer.map_err(|status| refusal(&status))?.into_inner();
    let gauge = Gauge::new("events copied");
    while let Some(step) = steps.message().await.map_err(|status| refusal(&status))? {
        gauge.set(step.events, Some(step.events_total));
        if !step.done {
            continue;
        }
        gauge.end();
        return if args.target.json {
            Ok(say!("{}", json!({"detached": args.id, "events": step.events_total}))?)
        } else {
            Ok(say!("{} stands alone, {} events copied", shown(&args.id), step.events_total)?)
        };
    }
    bail!("the copying stopped early; repeat the command, it goes on from there")
}
