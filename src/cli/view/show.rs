//! How views look on a terminal, and as JSON.

use serde_json::{Value, json};

use super::basis;
use crate::cli::text::{clipped, shown, time};
use crate::model::json::{canonical, parse, quote};
use crate::model::{Event, NewEvent, Seq};
use crate::replay::text::semantic_text;
use crate::replay::vocabulary::USER_MESSAGE;
use crate::rpc::pb;

/// JSON text of a log, on one line.
fn embedded(text: &[u8]) -> String {
    let is_one_line = !text.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
    match parse(text) {
        Ok(doc) if !is_one_line => canonical(doc.root()),
        Ok(_) => String::from_utf8_lossy(text).into_owned(),
        Err(_) => quote(&String::from_utf8_lossy(text)),
    }
}

/// Two objects as one.
pub(super) fn joined(a: &Value, b: &Value) -> String {
    let (a, b) = (a.to_string(), b.to_string());
    format!("{},{}", a.trim_end_matches('}'), b.trim_start_matches('{'))
}

/// An object with a member of JSON text behind its own.
fn with(object: &Value, name: &str, text: &str) -> String {
    let object = object.to_string();
    format!("{},{}:{text}}}", object.strip_suffix('}').unwrap_or_default(), quote(name))
}

pub(super) fn about(basis: Option<&pb::ViewBasis>, pairing: Option<&pb::Pairing>) {
    let basis = basis.cloned().unwrap_or_default();
    let closers = if basis.closers > 0 { format!(", closed by {} events", basis.closers) } else { String::new() };
    println!("through {} events{closers}", basis.next_seq);
    if let Some(pairing) = pairing.filter(|pairing| !pairing.is_balanced) {
        println!("a model provider would refuse this: {}", shown(&pairing.problem));
    }
}

pub(super) fn messages(messages: &[pb::Message], as_json: bool) {
    for message in messages {
        if as_json {
            let about = json!({"seq": message.seq, "type": message.r#type});
            println!("{}", with(&about, "message", &embedded(&message.message)));
            continue;
        }
        println!("{:>6}  {}", message.seq, shown(&message.r#type));
        for line in said(message).lines() {
            println!("        {}", shown(line));
        }
    }
}

/// The text of a message.
fn said(message: &pb::Message) -> String {
    let is_bare = message.r#type == USER_MESSAGE;
    let wrapped = || [b"{\"message\":", &message.message[..], b"}"].concat().into();
    let body = NewEvent {
        time_ms: 0,
        kind: message.r#type.as_str().into(),
        data: if is_bare { message.message.clone() } else { wrapped() },
        ignorable: false,
        surface_op: None,
        source_event_seqs: None,
    };
    semantic_text(&Event { seq: Seq::ZERO, body }).unwrap_or_default()
}

pub(super) fn request(start: &pb::ReconstructRequestStart, as_json: bool) {
    let pairing = start.pairing.clone().unwrap_or_default();
    if as_json {
        let mut about = basis(start.basis.as_ref());
        about["messages"] = start.message_count.into();
        about["is_balanced"] = pairing.is_balanced.into();
        about["header_seq"] = start.header_seq.into();
        about["attempt"] = start.attempt.as_ref().map_or(Value::Null, attempt_json);
        let header = start.header.as_ref().map_or_else(|| "null".to_owned(), |header| embedded(header));
        return println!("{}", with(&about, "header", &header));
    }
    about(start.basis.as_ref(), Some(&pairing));
    match (&start.header, start.header_seq) {
        (Some(header), Some(seq)) => println!("{seq:>6}  header {}", clipped(&String::from_utf8_lossy(header), 100)),
        _ => println!("no header"),
    }
    if let Some(found) = &start.attempt {
        attempt(found, false);
    }
}

fn outcome(attempt: &pb::Attempt) -> String {
    attempt.outcome().as_str_name().trim_start_matches("ATTEMPT_OUTCOME_").to_lowercase()
}

fn usage_json(usage: Option<&pb::TokenUsage>) -> Value {
    usage.map_or(Value::Null, |usage| {
        json!({
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        })
    })
}

fn attempt_json(attempt: &pb::Attempt) -> Value {
    json!({
        "turn": attempt.turn, "step": attempt.step, "number": attempt.number,
        "first_seq": attempt.first_seq, "last_seq": attempt.last_seq,
        "first_chunk_seq": attempt.first_chunk_seq, "chunks": attempt.chunk_count, "outcome": outcome(attempt),
        "message_seq": attempt.message_seq, "finish": attempt.finish, "usage": usage_json(attempt.usage.as_ref()),
    })
}

pub(super) fn attempt(attempt: &pb::Attempt, as_json: bool) {
    if as_json {
        return println!("{}", attempt_json(attempt));
    }
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let place = format!("turn {} step {} #{}", number(attempt.turn), number(attempt.step), attempt.number);
    let usage = attempt.usage.unwrap_or_default();
    let finish = shown(attempt.finish.as_deref().unwrap_or("-"));
    println!(
        "{:>6}..{:<6}  {place:<22}  {:<11}  {:>5} chunks  {:>7} in  {:>7} out  {finish}",
        attempt.first_seq,
        attempt.last_seq,
        outcome(attempt),
        attempt.chunk_count,
        usage.input_tokens,
        usage.output_tokens,
    );
}

pub(super) fn assembled(assembled: &pb::AssembleAttemptResponse, as_json: bool) {
    let found = assembled.attempt.clone().unwrap_or_default();
    if as_json {
        let mut about = basis(assembled.basis.as_ref());
        about["attempt"] = attempt_json(&found);
        about["problem"] = assembled.problem.clone().into();
        let blocks: Vec<_> = assembled.blocks.iter().map(|block| embedded(block)).collect();
        return println!("{}", with(&about, "blocks", &format!("[{}]", blocks.join(","))));
    }
    attempt(&found, false);
    for block in &assembled.blocks {
        println!("        {}", clipped(&String::from_utf8_lossy(block), 400));
    }
    if !assembled.problem.is_empty() {
        println!("blocks are missing: {}", shown(&assembled.problem));
    }
}

fn status(record: &pb::EventRecord) -> String {
    record.status().as_str_name().trim_start_matches("EVENT_STATUS_").to_lowercase().replace('_', "-")
}

pub(super) fn trace(trace: &pb::TraceEventResponse, as_json: bool) {
    let target = trace.target.clone().unwrap_or_default();
    let lists = [
        ("replaced by", "replacement_chain", &trace.replacement_chain),
        ("replaces", "replaced", &trace.replaced),
        ("made from", "sources", &trace.sources),
        ("cited by", "derived", &trace.derived),
    ];
    if as_json {
        let mut about = basis(trace.basis.as_ref());
        about["seq"] = target.seq.into();
        about["type"] = target.r#type.clone().into();
        about["time"] = target.time_ms.into();
        about["status"] = status(&target).into();
        about["data_bytes"] = target.data_bytes.into();
        for (_, name, seqs) in lists {
            about[name] = seqs.clone().into();
        }
        return println!("{about}");
    }
    println!("{:>6}  {}  {}  {}", target.seq, time(target.time_ms), shown(&target.r#type), status(&target));
    for (name, _, seqs) in lists.into_iter().filter(|(_, _, seqs)| !seqs.is_empty()) {
        let seqs: Vec<_> = seqs.iter().map(u64::to_string).collect();
        println!("{name:<12}  {}", seqs.join(" "));
    }
}

pub(super) fn stats(stats: &pb::GetSessionStatsResponse, as_json: bool) {
    let attempts = stats.attempts.unwrap_or_default();
    let counts = [
        ("open", attempts.open),
        ("committed", attempts.committed),
        ("interrupted", attempts.interrupted),
        ("retried", attempts.retried),
        ("failed", attempts.failed),
    ];
    if as_json {
        let mut about = basis(stats.basis.as_ref());
        let figures = [
            ("turns", stats.turns),
            ("steps", stats.steps),
            ("llm_ms", stats.llm_ms),
            ("tool_ms", stats.tool_ms),
            ("ttft_ms", stats.ttft_ms),
            ("ttft_steps", stats.ttft_steps),
            ("decode_ms", stats.decode_ms),
        ];
        for (name, number) in figures {
            about[name] = number.into();
        }
        about["decode_tokens"] = stats.decode_tokens.into();
        for (name, number) in counts {
            about["attempts"][name] = number.into();
        }
        about["committed"] = usage_json(stats.committed.as_ref());
        about["uncommitted"] = usage_json(stats.uncommitted.as_ref());
        about["own_committed"] = usage_json(stats.own_committed.as_ref());
        about["own_uncommitted"] = usage_json(stats.own_uncommitted.as_ref());
        return println!("{about}");
    }
    about(stats.basis.as_ref(), None);
    println!("turns        {}, {} steps", stats.turns, stats.steps);
    println!("model        {} ms, {} ms to the first token in {} steps", stats.llm_ms, stats.ttft_ms, stats.ttft_steps);
    println!("tools        {} ms", stats.tool_ms);
    let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    let counts: Vec<_> = counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    println!("attempts     {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") });
    for (name, usage) in [("committed", stats.committed), ("uncommitted", stats.uncommitted)] {
        let usage = usage.unwrap_or_default();
        let cached = usage.cache_read_tokens;
        println!("{name:<11}  {} tokens in, {cached} from a cache, {} out", usage.input_tokens, usage.output_tokens);
    }
}
