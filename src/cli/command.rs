//! The client commands.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;
use tonic_types::StatusExt;

use super::text::{clipped, hex, shown, time};
use super::{Target, lines};
use crate::rpc::client::{self, Client};
use crate::rpc::pb;

#[derive(Args)]
pub(super) struct SessionArgs {
    /// The session.
    id: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct CreateArgs {
    /// The session id: 1 to 128 bytes without control characters.
    id: String,
    /// Working directory, an absolute path.
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    /// Parent session.
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Name of the agent preset.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// A label; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Rules for appends: dsh, dsh-strict or raw.
    #[arg(long, default_value = "dsh")]
    profile: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct AppendArgs {
    /// The session.
    id: String,
    /// File with one event a line; - is standard input.
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Seq of the first event; without it the end of the log, which makes a repetition append again.
    #[arg(long, value_name = "SEQ")]
    first_seq: Option<u64>,
    /// Answer as soon as the events are in memory; the last batch is flushed.
    #[arg(long)]
    accepted: bool,
    /// Events in one batch.
    #[arg(long, default_value_t = 500, value_name = "COUNT")]
    batch: usize,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct ListArgs {
    /// Ids that start with this.
    #[arg(default_value = "")]
    prefix: String,
    /// Only this working directory.
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,
    /// Only children of this session.
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Most sessions; 0 is no limit.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
pub(super) struct RemoveArgs {
    /// The sessions.
    #[arg(required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    target: Target,
}

/// Connects, or says how to start a server.
pub(super) async fn connect(target: &Target) -> anyhow::Result<Client> {
    target.connect().await
}

/// A status as an error with its reason and facts.
pub(super) fn refusal(status: &tonic::Status) -> anyhow::Error {
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| {
        let facts: Vec<_> = info.metadata.iter().map(|(key, value)| format!("{key} {value}")).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(", {}", facts.join(", ")) };
        format!(" ({}{facts})", info.reason)
    });
    anyhow::anyhow!("{}{}", status.message(), reason.unwrap_or_else(|| format!(" ({:?})", status.code())))
}

pub(super) async fn create(args: CreateArgs) -> anyhow::Result<()> {
    let profile = match args.profile.as_str() {
        "dsh" => pb::Profile::Dsh,
        "dsh-strict" => pb::Profile::DshStrict,
        "raw" => pb::Profile::Raw,
        other => bail!("--profile {other} is none of dsh, dsh-strict, raw"),
    };
    let header = pb::Header {
        id: args.id,
        cwd: args.cwd,
        parent_session: args.parent,
        agent_preset: args.preset,
        labels: labels(&args.labels)?,
        ..pb::Header::default()
    };
    let request = pb::CreateSessionRequest {
        namespace: args.target.namespace.clone(),
        header: Some(header),
        profile: Some(profile.into()),
        claim: None,
    };
    let answer = connect(&args.target).await?.sessions.create_session(request).await;
    let answer = answer.map_err(|status| refusal(&status))?.into_inner();
    print_session(&answer.session.context("no session in the answer")?, args.target.json)
}

/// The labels of flags.
pub(super) fn labels(given: &[String]) -> anyhow::Result<HashMap<String, String>> {
    let label = |label: &String| {
        let (key, value) = label.split_once('=').with_context(|| format!("--label {label} is not KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    given.iter().map(label).collect()
}

pub(super) async fn stat(args: SessionArgs) -> anyhow::Result<()> {
    let session = session(&mut connect(&args.target).await?, &args.target.namespace, &args.id).await?;
    print_session(&session, args.target.json)
}

pub(super) async fn flush(args: SessionArgs) -> anyhow::Result<()> {
    let request = pb::FlushRequest { namespace: args.target.namespace.clone(), session_id: args.id, epoch: None };
    let answer = connect(&args.target).await?.log.flush(request).await;
    let head = answer.map_err(|status| refusal(&status))?.into_inner().head.unwrap_or_default();
    print_head(&head, args.target.json)
}

pub(super) async fn remove(args: RemoveArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    for id in args.ids {
        let namespace = args.target.namespace.clone();
        let request = pb::DeleteSessionRequest { namespace, session_id: id.clone(), ..Default::default() };
        let answer = client.sessions.delete_session(request).await;
        let head = answer.map_err(|status| refusal(&status))?.into_inner().head.unwrap_or_default();
        if args.target.json {
            say!("{}", json!({"deleted": id, "head": head_json(&head)}))?;
        } else {
            say!("deleted {} ({} events)", shown(&id), head.next_seq)?;
        }
    }
    Ok(())
}

pub(super) async fn append(args: AppendArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    let namespace = args.target.namespace.clone();
    let mut next_seq = match args.first_seq {
        Some(seq) => seq,
        None => head(&mut client, &namespace, &args.id).await?.next_seq,
    };
    let input: Box<dyn BufRead> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(&args.file).with_context(|| args.file.display().to_string())?;
        Box::new(BufReader::new(file))
    };
    let ack_level = if args.accepted { pb::AckLevel::Accepted } else { pb::AckLevel::Durable };
    let mut batch =
        Batch { namespace, session_id: args.id.clone(), ack_level, events: Vec::new(), bytes: 0, stored: 0 };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    for (index, line) in input.split(b'\n').enumerate() {
        let line = line?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let (event, seq) = lines::read(&line, now_ms).with_context(|| format!("line {}", index + 1))?;
        let place = next_seq + batch.events.len() as u64;
        if seq.is_some_and(|seq| seq != place) {
            bail!("line {} has seq {}, but would become seq {place}", index + 1, seq.unwrap_or_default());
        }
        batch.push(event, &mut client, &mut next_seq, args.batch).await?;
    }
    batch.send(&mut client, &mut next_seq).await?;
    if args.accepted {
        let (namespace, session_id) = (batch.namespace.clone(), args.id.clone());
        let request = pb::FlushRequest { namespace, session_id, epoch: None };
        client.log.flush(request).await.map_err(|status| refusal(&status))?;
    }
    if args.target.json {
        say!("{}", json!({"session_id": args.id, "appended": batch.stored, "next_seq": next_seq}))?;
    } else {
        say!("{} events appended, next seq {next_seq}", batch.stored)?;
    }
    Ok(())
}

/// A session.
pub(super) async fn session(client: &mut Client, namespace: &str, id: &str) -> anyhow::Result<pb::Session> {
    let request = pb::GetSessionRequest { namespace: namespace.to_owned(), session_id: id.to_owned() };
    let answer = client.sessions.get_session(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.session.context("no session in the answer")
}

/// The head of a session.
pub(super) async fn head(client: &mut Client, namespace: &str, id: &str) -> anyhow::Result<pb::Head> {
    Ok(session(client, namespace, id).await?.head.unwrap_or_default())
}

/// Events on their way to a server.
pub(super) struct Batch {
    pub(super) namespace: String,
    pub(super) session_id: String,
    pub(super) ack_level: pb::AckLevel,
    pub(super) events: Vec<pb::NewEvent>,
    pub(super) bytes: usize,
    /// Events that were acknowledged.
    pub(super) stored: u64,
}

/// A batch is sent before its data grows beyond this.
const BATCH_BYTES: usize = 2 << 20;

impl Batch {
    pub(super) async fn push(
        &mut self,
        event: crate::model::NewEvent,
        client: &mut Client,
        next_seq: &mut u64,
        count_max: usize,
    ) -> anyhow::Result<()> {
        let bytes = event.weight();
        if self.events.len() >= count_max || self.bytes + bytes > BATCH_BYTES {
            self.send(client, next_seq).await?;
        }
        self.bytes += bytes;
        self.events.push(client::new_event(event));
        Ok(())
    }

    pub(super) async fn send(&mut self, client: &mut Client, next_seq: &mut u64) -> anyhow::Result<()> {
        if self.events.is_empty() {
            return Ok(());
        }
        let count = self.events.len() as u64;
        let request = pb::AppendRequest {
            namespace: self.namespace.clone(),
            session_id: self.session_id.clone(),
            first_seq: Some(*next_seq),
            events: std::mem::take(&mut self.events),
            ack_level: Some(self.ack_level.into()),
            ..pb::AppendRequest::default()
        };
        self.bytes = 0;
        let answer = client.log.append(request).await.map_err(|status| refusal(&status))?.into_inner();
        for report in answer.reports {
            eprintln!("stored, but seq {} breaks {}: {}", report.seq, shown(&report.rule), shown(&report.text));
        }
        *next_seq += count;
        self.stored += count;
        Ok(())
    }
}

pub(super) async fn list(args: ListArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.target).await?;
    let mut request = pb::ListSessionsRequest {
        namespace: args.target.namespace.clone(),
        id_prefix: args.prefix,
        cwd: args.cwd,
        parent_session: args.parent,
        ..pb::ListSessionsRequest::default()
    };
    let mut left = if args.limit == 0 { usize::MAX } else { args.limit };
    loop {
        request.page_size = left.min(1000) as u32;
        let page =
            client.sessions.list_sessions(request.clone()).await.map_err(|status| refusal(&status))?.into_inner();
        for session in &page.sessions {
            print_row(session, args.target.json)?;
        }
        left -= page.sessions.len();
        if page.next_page_token.is_empty() || left == 0 {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}

fn print_row(session: &pb::Session, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return print_session(session, true);
    }
    let header = session.header.clone().unwrap_or_default();
    let head = session.head.clone().unwrap_or_default();
    let what = session.title.clone().or(header.cwd).unwrap_or_default();
    let (updated, what) = (time(head.updated_at_ms as i64), clipped(&what, 60));
    say!("{updated}  {:>9}  {:<38}  {what}", head.next_seq, shown(&header.id))?;
    Ok(())
}

/// A head as `--json` prints it.
#[derive(serde::Serialize)]
pub(super) struct HeadJson {
    next_seq: u64,
    durable_next_seq: u64,
    revision: String,
    chain: String,
    incarnation: String,
    updated_at_ms: u64,
}

pub(super) fn head_json(head: &pb::Head) -> HeadJson {
    HeadJson {
        next_seq: head.next_seq,
        durable_next_seq: head.durable_next_seq,
        revision: hex(&head.revision),
        chain: hex(&head.chain),
        incarnation: hex(&head.incarnation),
        updated_at_ms: head.updated_at_ms,
    }
}

fn print_head(head: &pb::Head, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        say!("{}", serde_json::to_string(&head_json(head))?)?;
    } else {
        say!("next seq     {} ({} durable)", head.next_seq, head.durable_next_seq)?;
        say!("chain        {}", hex(&head.chain))?;
        say!("incarnation  {}", hex(&head.incarnation))?;
        say!("updated      {}", time(head.updated_at_ms as i64))?;
    }
    Ok(())
}

pub(super) fn print_session(session: &pb::Session, as_json: bool) -> anyhow::Result<()> {
    let header = session.header.clone().unwrap_or_default();
    let head = session.head.clone().unwrap_or_default();
    let profile = session.profile().as_str_name().trim_start_matches("PROFILE_").to_lowercase().replace('_', "-");
    if as_json {
        let origin = header.origin.map(|_| "subagent");
        let value = json!({
            "namespace": session.namespace,
            "profile": profile,
            "header": {
                "id": header.id, "created_at_ms": header.created_at_ms, "cwd": header.cwd,
                "parent_session": header.parent_session, "seed_length": header.seed_length, "origin": origin,
                "delegation_depth": header.delegation_depth, "agent_preset": header.agent_preset,
                "labels": header.labels,
            },
            "title": session.title, "bytes": session.bytes, "events": session.events,
            "shared_events": session.shared_events, "forks": session.forks, "turn_open": session.turn_open,
            "head": head_json(&head),
        });
        say!("{}", serde_json::to_string(&value)?)?;
        return Ok(());
    }
    say!("session      {} (namespace {}, profile {profile})", shown(&header.id), session.namespace)?;
    say!("created      {}", time(header.created_at_ms.unwrap_or_default() as i64))?;
    let texts = [("cwd", header.cwd), ("parent", header.parent_session), ("preset", header.agent_preset)];
    for (name, text) in texts {
        if let Some(text) = text {
            say!("{name:<11}  {}", shown(&text))?;
        }
    }
    let labels: std::collections::BTreeMap<_, _> = header.labels.into_iter().collect();
    for (name, value) in labels {
        say!("label        {}={}", shown(&name), shown(&value))?;
    }
    super::space::print_facts(session)?;
    print_head(&head, false)
}
