//! `quipu lineage`: a family as a tree.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::Target;
use crate::cli::command::{connect, refusal};
use crate::cli::text::{shown, time};
use crate::rpc::pb;

#[derive(Args)]
pub(in crate::cli) struct LineageArgs {
    /// The session.
    id: String,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn lineage(args: LineageArgs) -> anyhow::Result<()> {
    let request = pb::TraceSessionRequest { namespace: args.target.namespace.clone(), session_id: args.id };
    let answer = connect(&args.target).await?.views.trace_session(request).await;
    let family = answer.map_err(|status| refusal(&status))?.into_inner();
    if args.target.json {
        let relatives = |list: &[pb::Relative]| list.iter().map(relative).collect::<Vec<_>>();
        println!(
            "{}",
            json!({
                "target": family.target.as_ref().map(relative), "ancestors": relatives(&family.ancestors),
                "descendants": relatives(&family.descendants), "is_complete": family.is_complete,
                "missing_parent": family.missing_parent, "is_truncated": family.is_truncated,
            })
        );
    } else {
        for line in tree(&family) {
            println!("{line}");
        }
    }
    Ok(())
}

fn relative(relative: &pb::Relative) -> Value {
    json!({
        "session_id": relative.session_id, "parent_session": relative.parent_session,
        "created_at_ms": relative.created_at_ms, "seed_length": relative.seed_length, "depth": relative.depth,
        "next_seq": relative.next_seq,
    })
}

/// The lines of the tree: the oldest ancestor at its root, the session itself marked.
fn tree(family: &pb::TraceSessionResponse) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(parent) = &family.missing_parent {
        lines.push(format!("{} (missing)", shown(parent)));
    }
    let line = family.ancestors.iter().rev().chain(&family.target);
    let mut indent = lines.len();
    for relative in line {
        let branch = if indent == 0 { String::new() } else { format!("{}\u{2514}\u{2500} ", "   ".repeat(indent - 1)) };
        lines.push(format!("{branch}{}", row(relative)));
        indent += 1;
    }
    let base = "   ".repeat(indent.saturating_sub(1));
    // From the last line up, so that each line knows whether a sibling of its own, or of an ancestor, follows.
    let (mut below, mut follows): (Vec<String>, Vec<bool>) = (Vec::new(), Vec::new());
    for relative in family.descendants.iter().rev() {
        let depth = (relative.depth as usize).max(1);
        follows.resize(depth, false);
        let rails = follows.iter().take(depth - 1).map(|follows| if *follows { "\u{2502}  " } else { "   " });
        let rails: String = rails.collect();
        let branch = if follows[depth - 1] { "\u{251c}" } else { "\u{2514}" };
        below.push(format!("{base}{rails}{branch}\u{2500} {}", row(relative)));
        follows[depth - 1] = true;
    }
    lines.extend(below.into_iter().rev());
    if family.is_truncated {
        lines.push(format!("{base}... and more"));
    }
    lines
}

fn row(relative: &pb::Relative) -> String {
    let seed = relative.seed_length.map(|length| format!(", {length} inherited")).unwrap_or_default();
    let created = time(relative.created_at_ms as i64);
    let mark = if relative.depth == 0 { " *" } else { "" };
    format!("{}{mark}  ({created}, {} events{seed})", shown(&relative.session_id), relative.next_seq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_shows_who_is_whose_child() {
        let relative = |id: &str, depth| pb::Relative { session_id: id.to_owned(), depth, ..pb::Relative::default() };
        let family = pb::TraceSessionResponse {
            target: Some(relative("me", 0)),
            ancestors: vec![relative("parent", 1)],
            descendants: vec![relative("a", 1), relative("a1", 2), relative("b", 1), relative("b1", 2)],
            missing_parent: Some("gone".to_owned()),
            ..pb::TraceSessionResponse::default()
        };
        let lines = tree(&family);
        let lines: Vec<_> = lines.iter().map(|line| line.split("  (").next().unwrap()).collect();
        assert_eq!(
            lines,
            [
                "gone (missing)",
                "\u{2514}\u{2500} parent",
                "   \u{2514}\u{2500} me *",
                "      \u{251c}\u{2500} a",
                "      \u{2502}  \u{2514}\u{2500} a1",
                "      \u{2514}\u{2500} b",
                "         \u{2514}\u{2500} b1",
            ]
        );
    }
}
