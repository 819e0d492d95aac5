//! Rollouts of codex.
//!
//! What the user and the model said stands twice, as `event_msg` and as `response_item`: the second is the truth, the
//! first repeats it. Usage comes as running totals, repeated unchanged. A rollout names no responses: one ends where
//! results or token counts stand, and a user's message begins a turn when something was answered before it.

use super::block::{self, content, count, kind, literal, name, verbatim};
use super::report::Fate;
use super::response::{Answer, Call, Item, Response};
use super::turns::{Compaction, NoCall, Turns};
use super::{Session, time_of};
use crate::model::json::{Value, quote};

/// The state of the fold.
#[derive(Default)]
pub(super) struct Codex {
    pub(super) turns: Turns,
    has_meta: bool,
    provider: Option<String>,
    model: Option<String>,
    /// The last totals, to know a repetition.
    totals: Option<String>,
    /// What was said in `event_msg` and must come as `response_item`.
    echoes: Vec<Echo>,
    /// Of those the ones that came.
    matched: Vec<(u64, &'static str)>,
    /// What came as `response_item` and not yet as `event_msg`.
    said: Vec<(Role, Vec<u8>)>,
}

struct Echo {
    line: u64,
    record: &'static str,
    role: Role,
    text: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    User,
    Model,
    Reasoning,
}

/// One record in its place.
struct Record<'d, 't> {
    payload: Value<'d, 't>,
    line: u64,
    time_ms: i64,
}

/// How many texts are remembered, to know their repetitions by.
const SAID_MAX: usize = 64;

impl Codex {
    pub(super) fn apply(&mut self, root: Value<'_, '_>, line: u64, session: &mut Session) {
        let time_ms = time_of(root).unwrap_or_else(|| self.turns.last_ms());
        let (outer, payload) = (kind(root), root.get("payload").filter(|payload| payload.is_object()));
        let Some(payload) = payload else {
            return session.report.add(line, &outer, Fate::NoPlace("it has no payload".to_owned()));
        };
        let record = Record { payload, line, time_ms };
        let fate = match outer.as_str() {
            "session_meta" => self.meta(&record, session),
            "turn_context" => self.context(payload),
            "response_item" => self.item(&record),
            "event_msg" => self.event(&record),
            "compacted" => self.compacted(&record),
            _ => Some(no_place("the type is not known")),
        };
        if let Some(fate) = fate {
            let inner = kind(payload);
            let is_pair = matches!(outer.as_str(), "event_msg" | "response_item");
            let shown = if is_pair { format!("{outer} {inner}") } else { outer };
            session.report.add(line, &shown, fate);
        }
        for (line, shown) in self.matched.drain(..) {
            session.report.add(line, shown, repeated());
        }
        if self.echoes.len() > SAID_MAX {
            self.lose_echoes(session);
        }
    }

    pub(super) fn finish(&mut self, session: &mut Session) {
        self.lose_echoes(session);
    }

    fn lose_echoes(&mut self, session: &mut Session) {
        for Echo { line, record, .. } in std::mem::take(&mut self.echoes) {
            let why = "no response_item says the same".to_owned();
            session.report.add(line, record, Fate::NoPlace(why));
        }
    }

    fn meta(&mut self, record: &Record<'_, '_>, session: &mut Session) -> Option<Fate> {
        let payload = record.payload;
        if std::mem::replace(&mut self.has_meta, true) {
            return Some(no_place("a second header: that of the session that this one was forked from"));
        }
        session.note_place(payload.get("id"), payload.get("cwd"), record.line);
        self.provider = name(payload, "model_provider").map(str::to_owned);
        session.header.parent_session = payload.get("forked_from_id").and_then(Value::to_text);
        None
    }

    fn context(&mut self, payload: Value<'_, '_>) -> Option<Fate> {
        match name(payload, "model") {
            Some(model) => {
                self.model = Some(model.to_owned());
                None
            }
            None => Some(no_place("it names no model")),
        }
    }

    fn item(&mut self, record: &Record<'_, '_>) -> Option<Fate> {
        let payload = record.payload;
        match kind(payload).as_str() {
            "message" => self.message(record),
            "reasoning" => self.reasoning(record),
            "function_call" => self.call(record, "name", "arguments"),
            "custom_tool_call" => self.call(record, "name", "input"),
            "local_shell_call" => self.call(record, "type", "action"),
            "function_call_output" | "custom_tool_call_output" => self.output(record),
            other => Some(no_place(&format!("items of type {other:?} are not known"))),
        }
    }

    fn message(&mut self, record: &Record<'_, '_>) -> Option<Fate> {
        let body = record.payload.get("content").filter(|body| body.is_array() || body.as_text().is_some());
        let Some(body) = body else { return Some(no_place("it has no content")) };
        let (blocks, lost) = content(body, read);
        let role = record.payload.get("role").and_then(Value::to_text).unwrap_or_default();
        match role.as_str() {
            "assistant" => {
                let response = self.respond(record.time_ms);
                response.id = record.id();
                response.blocks.extend(blocks);
                self.note_said(Role::Model, body);
            }
            "user" => {
                let item = record.said(&blocks, "{\"kind\":\"user\"}");
                if self.turns.is_answered() {
                    self.turns.prompt(item, None);
                } else {
                    self.turns.message(item);
                }
                self.note_said(Role::User, body);
            }
            "developer" | "system" => {
                let source = "{\"kind\":\"plugin\",\"plugin\":\"codex\",\"form\":\"instructions\"}";
                self.turns.close_response();
                self.turns.message(record.said(&blocks, source));
            }
            other => return Some(no_place(&format!("messages of the role {other:?} are not known"))),
        }
        (!lost.is_empty()).then(|| Fate::Part("payload.content".to_owned(), lost.join("; ")))
    }

    /// The response that goes on.
    fn respond(&mut self, time_ms: i64) -> &mut Response {
        let unknown = || "\"unknown\"".to_owned();
        let (provider, model) = (self.provider.clone(), self.model.clone());
        let response = self.turns.response(time_ms, |_| true);
        response.time_ms = time_ms;
        (response.provider, response.model) = (provider.unwrap_or_else(unknown), model.unwrap_or_else(unknown));
        response
    }

    fn reasoning(&mut self, record: &Record<'_, '_>) -> Option<Fate> {
        let payload = record.payload;
        let part = |key: &str| payload.get(key).into_iter().flat_map(Value::items);
        let texts: Vec<_> = part("summary").chain(part("content")).filter_map(|item| item.get("text")).collect();
        let secret = literal(payload, "encrypted_content").map(|it| format!(",\"encryptedContent\":{it}"));
        let literals: Vec<_> = texts.iter().filter(|text| text.as_text().is_some()).map(|text| text.raw()).collect();
        let literals = if literals.is_empty() { vec!["\"\""] } else { literals };
        let last = literals.len() - 1;
        let block = |(index, literal): (usize, &&str)| {
            let secret = secret.as_deref().filter(|_| index == last).unwrap_or_default();
            format!("{{\"type\":\"reasoning\",\"text\":{literal}{secret}}}")
        };
        let blocks: Vec<_> = literals.iter().enumerate().map(block).collect();
        let response = self.respond(record.time_ms);
        response.blocks.extend(blocks);
        if response.id.is_empty() {
            response.id = record.id();
        }
        texts.iter().for_each(|text| self.note_text(Role::Reasoning, *text));
        None
    }

    fn call(&mut self, record: &Record<'_, '_>, tool: &str, input: &str) -> Option<Fate> {
        let payload = record.payload;
        let Some((id, tool)) = name(payload, "call_id").zip(name(payload, tool)) else {
            return Some(no_place("a call without id or name"));
        };
        let key =
            payload.get("call_id").and_then(Value::as_text).map(|id| id.decode().into_owned()).unwrap_or_default();
        if self.turns.has_call(&key) {
            return Some(no_place("a call of that id was announced before in this turn"));
        }
        let call = Call {
            time_ms: record.time_ms,
            key,
            id: id.to_owned(),
            name: tool.to_owned(),
            arguments: payload.get(input).map_or_else(|| "\"\"".to_owned(), block::arguments),
            answer: None,
        };
        let response = self.respond(record.time_ms);
        response.blocks.push(call.block());
        response.calls.push(call);
        if response.id.is_empty() {
            response.id = record.id();
        }
        None
    }

    fn output(&mut self, record: &Record<'_, '_>) -> Option<Fate> {
        let payload = record.payload;
        let call = payload.get("call_id").and_then(Value::as_text).filter(|id| !id.is_empty());
        let Some(call) = call else { return Some(no_place("a result names no call")) };
        let output = payload.get("output").filter(|output| !output.is_null());
        let body = output.filter(|output| output.is_object()).and_then(|output| output.get("content")).or(output);
        let (blocks, lost) = body.map_or_else(Default::default, |body| content(body, read));
        let success = output.and_then(|output| output.get("success")).and_then(Value::as_bool);
        let answer = Answer {
            time_ms: record.time_ms,
            id: record.id(),
            blocks,
            is_error: success.map(|success| !success),
            meta: None,
            key: None,
            order: 0,
        };
        let shown = String::from_utf8_lossy(&call.decode()).into_owned();
        let found = self.turns.result(&call.decode(), answer);
        self.turns.close_response();
        match found {
            Ok(()) if lost.is_empty() => None,
            Ok(()) => Some(Fate::Part("payload.output".to_owned(), lost.join("; "))),
            Err(NoCall::Answered) => Some(no_place(&format!("the call {shown:?} has its result already"))),
            Err(NoCall::Unknown) => Some(no_place(&format!("no call {shown:?} waits for a result"))),
        }
    }

    fn event(&mut self, record: &Record<'_, '_>) -> Option<Fate> {
        match kind(record.payload).as_str() {
            "user_message" => self.echo(record, Role::User, ("event_msg user_message", "message")),
            "agent_message" => self.echo(record, Role::Model, ("event_msg agent_message", "message")),
            "agent_reasoning" => self.echo(record, Role::Reasoning, ("event_msg agent_reasoning", "text")),
            "token_count" => self.tokens(record.payload),
            "task_complete" => {
                self.turns.close_response();
                if self.turns.is_complete() {
                    self.turns.end("{\"kind\":\"completed\"}".to_owned());
                }
                None
            }
            "turn_aborted" => {
                self.turns.end("{\"kind\":\"aborted\",\"reason\":{\"kind\":\"user\"}}".to_owned());
                None
            }
            _ => Some(no_place("it tells of the harness, not of the conversation")),
        }
    }

    /// The counts of the last response, unless they are those that were counted already.
    fn tokens(&mut self, payload: Value<'_, '_>) -> Option<Fate> {
        let info = payload.get("info").filter(|info| info.is_object());
        let Some(info) = info else { return Some(no_place("it counts no tokens")) };
        let totals = info.get("total_token_usage").map(|totals| totals.raw().to_owned());
        if totals.is_some() && totals == self.totals {
            return Some(Fate::Repeated("the token counts of an earlier line".to_owned()));
        }
        self.totals = totals;
        let usage = info.get("last_token_usage").and_then(usage);
        let Some(response) = self.turns.last_response().filter(|response| response.usage.is_none()) else {
            return Some(no_place("no response is there that these tokens were spent on"));
        };
        response.usage = usage;
        let is_known = response.usage.is_some();
        self.turns.close_response();
        if is_known { None } else { Some(no_place("it does not say what the last response took")) }
    }

    fn compacted(&mut self, record: &Record<'_, '_>) -> Option<Fate> {
        let payload = record.payload;
        let id = record.id();
        let source = format!("{{\"kind\":\"plugin\",\"plugin\":\"compact\",\"compactionId\":{id}}}");
        let summary = literal(payload, "message").filter(|literal| *literal != "\"\"").map(block::text);
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        for (index, item) in payload.get("replacement_history").into_iter().flat_map(Value::items).enumerate() {
            let body = item.get("content").filter(|_| is_message_to_model(item));
            let blocks =
                body.map(|body| content(body, read)).filter(|(blocks, lost)| !blocks.is_empty() && lost.is_empty());
            match blocks {
                Some((blocks, _)) => left.push(blocks),
                None => lost.push(format!("replacement_history[{index}] is {:?}", kind(item))),
            }
        }
        if left.is_empty() {
            left.extend(summary.clone().map(|block| vec![block]));
        }
        if left.is_empty() {
            return Some(no_place("it says nothing that takes the place of what was there"));
        }
        for (index, blocks) in left.into_iter().enumerate() {
            let id = if index == 0 { id.clone() } else { quote(&format!("line-{}:{index}", record.line)) };
            let item = Item { time_ms: record.time_ms, data: block::user(&id, &blocks, &source), key: None };
            if index == 0 {
                let blocks = summary.clone().map_or(blocks, |block| vec![block]);
                self.turns.compact(Compaction { id, blocks, tokens: None, item }, &[]);
            } else {
                self.turns.message(item);
            }
        }
        (!lost.is_empty()).then(|| Fate::Part("replacement_history".to_owned(), lost.join("; ")))
    }

    fn echo(&mut self, record: &Record<'_, '_>, role: Role, (kind, key): (&'static str, &str)) -> Option<Fate> {
        let said = record.payload.get(key).and_then(Value::as_text);
        let Some(said) = said else { return Some(no_place("it has no text")) };
        let text = said.decode().into_owned();
        if let Some(at) = self.said.iter().rposition(|other| *other == (role, text.clone())) {
            self.said.remove(at);
            return Some(repeated());
        }
        self.echoes.push(Echo { line: record.line, record: kind, role, text });
        None
    }

    fn note_said(&mut self, role: Role, body: Value<'_, '_>) {
        if body.as_text().is_some() {
            return self.note_text(role, body);
        }
        body.items().filter_map(|item| item.get("text")).for_each(|text| self.note_text(role, text));
    }

    fn note_text(&mut self, role: Role, text: Value<'_, '_>) {
        let Some(text) = text.as_text().map(|text| text.decode().into_owned()) else { return };
        if let Some(at) = self.echoes.iter().position(|echo| echo.role == role && echo.text == text) {
            let Echo { line, record, .. } = self.echoes.remove(at);
            return self.matched.push((line, record));
        }
        if self.said.len() >= SAID_MAX {
            self.said.remove(0);
        }
        self.said.push((role, text));
    }
}

impl Record<'_, '_> {
    /// The literal of a message id: the item's own, or its line.
    fn id(&self) -> String {
        name(self.payload, "id").map_or_else(|| quote(&format!("line-{}", self.line)), str::to_owned)
    }

    fn said(&self, blocks: &[String], source: &str) -> Item {
        Item { time_ms: self.time_ms, data: block::user(&self.id(), blocks, source), key: None }
    }
}

fn is_message_to_model(item: Value<'_, '_>) -> bool {
    let role = item.get("role").and_then(Value::to_text);
    kind(item) == "message" && matches!(role.as_deref(), Some("user" | "developer" | "system"))
}

/// A block of a message or of a result.
fn read(item: Value<'_, '_>) -> Result<String, String> {
    match (kind(item).as_str(), literal(item, "text")) {
        ("input_text" | "output_text" | "text", Some(literal)) => Ok(block::text(literal)),
        _ => verbatim(item),
    }
}

/// The format counts cached tokens among the input; a log does not.
fn usage(usage: Value<'_, '_>) -> Option<String> {
    let part = |key| count(usage.get(key));
    let (cached, reasoning) = (part("cached_input_tokens"), part("reasoning_output_tokens"));
    let input = part("input_tokens")?.checked_sub(cached.unwrap_or_default())?;
    block::usage((Some(input), part("output_tokens")), (cached, None), reasoning)
}

fn repeated() -> Fate {
    Fate::Repeated("a response_item says the same".to_owned())
}

fn no_place(why: &str) -> Fate {
    Fate::NoPlace(why.to_owned())
}
