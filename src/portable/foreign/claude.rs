//! Transcripts of claude-code.
//!
//! A response stands on several lines with one `message.id` and one usage; a result is a `user` record; records form a
//! tree, in which a prompt that follows an earlier message takes back what stood there; kept messages come again after a
//! compaction. Sidechains are other conversations and have no place in this one.

use std::collections::{HashMap, HashSet};

use super::block::{self, content, count, kind, literal, name, verbatim};
use super::report::Fate;
use super::response::{Answer, Call, Item, Response};
use super::turns::{Compaction, NoCall, Turns};
use super::{Session, time_of};
use crate::model::Seq;
use crate::model::json::{self, Value, quote};

const PROVIDER: &str = "\"anthropic\"";
/// What the harness writes where no model answered.
const NO_MODEL: &str = "<synthetic>";
/// What the harness writes where the user stopped the model.
const INTERRUPTED: &str = "[Request interrupted by user";

/// The state of the fold.
#[derive(Default)]
pub(super) struct Claude {
    pub(super) turns: Turns,
    /// The line of each record.
    seen: HashMap<String, u64>,
    /// What a record without a place follows.
    parents: HashMap<String, String>,
    /// Responses whose usage is in the log.
    counted: HashSet<String>,
    boundary: Option<Boundary>,
    titles: Vec<Title>,
}

/// A compaction that waits for its summary.
struct Boundary {
    line: u64,
    id: String,
    tokens: Option<u64>,
    kept: Vec<String>,
    /// The kept messages go on from there to the end.
    head: Option<String>,
}

struct Title {
    line: u64,
    text: String,
    leaf: String,
}

/// One record in its place.
struct Record<'d, 't> {
    root: Value<'d, 't>,
    line: u64,
    kind: String,
    time_ms: i64,
    uuid: Option<String>,
}

impl Claude {
    pub(super) fn apply(&mut self, root: Value<'_, '_>, line: u64, session: &mut Session) {
        let (kind, uuid) = (kind(root), text(root, "uuid"));
        session.note_place(root.get("sessionId"), root.get("cwd"), line);
        let time_ms = time_of(root).unwrap_or_else(|| self.turns.last_ms());
        let record = Record { root, line, kind, time_ms, uuid };
        let fate = self.place(&record, session);
        if let Some(uuid) = &record.uuid {
            if fate.is_some() {
                self.parents.extend(text(root, "parentUuid").map(|parent| (uuid.clone(), parent)));
            }
            self.seen.entry(uuid.clone()).or_insert(line);
        }
        if let Some(fate) = fate {
            session.report.add(line, &record.kind, fate);
        }
    }

    pub(super) fn finish(&mut self, session: &mut Session) {
        self.lose_boundary(session);
        for Title { line, text, leaf } in std::mem::take(&mut self.titles) {
            if let Some(seq) = self.turns.place(&leaf) {
                self.turns.title(&text, seq, "{\"kind\":\"provider\",\"provider\":\"claude-code\"}");
            } else {
                let why = "it summarises up to a message that is not in this file's log".to_owned();
                session.report.add(line, "summary", Fate::NoPlace(why));
            }
        }
    }

    fn place(&mut self, record: &Record<'_, '_>, session: &mut Session) -> Option<Fate> {
        let root = record.root;
        if let Some(line) = record.uuid.as_ref().and_then(|uuid| self.seen.get(uuid)) {
            return Some(Fate::Repeated(format!("the record of line {line}, by its uuid")));
        }
        if root.get("isSidechain").and_then(Value::as_bool) == Some(true) {
            return Some(no_place("it belongs to a sidechain, which is a conversation of its own"));
        }
        match record.kind.as_str() {
            "user" => self.user(record, session),
            "assistant" => self.assistant(record, session),
            "system" if text(root, "subtype").as_deref() == Some("compact_boundary") => {
                self.lose_boundary(session);
                self.boundary = Some(Boundary::read(record));
                None
            }
            "system" => Some(no_place(&format!("system record {:?}", text(root, "subtype").unwrap_or_default()))),
            "summary" => match (literal(root, "summary"), text(root, "leafUuid")) {
                (Some(title), Some(leaf)) => {
                    self.titles.push(Title { line: record.line, text: title.to_owned(), leaf });
                    None
                }
                _ => Some(no_place("a summary without `summary` and `leafUuid`")),
            },
            other => Some(no_place(&format!("records of type {other:?} are about the harness, not the conversation"))),
        }
    }

    /// A boundary without a summary took nothing away.
    fn lose_boundary(&mut self, session: &mut Session) {
        if let Some(boundary) = self.boundary.take() {
            let why = "no summary follows it".to_owned();
            session.report.add(boundary.line, "system", Fate::NoPlace(why));
        }
    }

    fn user(&mut self, record: &Record<'_, '_>, session: &mut Session) -> Option<Fate> {
        let message = record.root.get("message").filter(|message| !message.is_null());
        let Some(message) = message else { return Some(no_place("it has no message")) };
        let body = if message.is_object() { message.get("content") } else { Some(message) };
        let body = body.filter(|body| body.is_array() || body.as_text().is_some());
        let Some(body) = body else { return Some(no_place("its message has no content")) };
        let results: Vec<_> = body.items().filter(|item| kind(*item) == "tool_result").collect();
        let (mut placed, mut problems) = (0, Vec::new());
        for result in &results {
            match self.result(record, *result, results.len()) {
                Ok(lost) => {
                    placed += 1;
                    problems.extend(lost);
                }
                Err(why) => problems.push(why),
            }
        }
        let (blocks, lost) =
            content(body, |item| if kind(item) == "tool_result" { Ok(String::new()) } else { read(item) });
        let blocks: Vec<_> = blocks.into_iter().filter(|block| !block.is_empty()).collect();
        problems.extend(lost);
        if !blocks.is_empty() {
            self.said(record, body, blocks, !results.is_empty(), session);
            placed += 1;
        } else if results.is_empty() {
            return Some(no_place("its message is empty"));
        }
        match (placed, problems.is_empty()) {
            (_, true) => None,
            (0, false) => Some(Fate::NoPlace(problems.join("; "))),
            (_, false) => Some(Fate::Part("message.content".to_owned(), problems.join("; "))),
        }
    }

    fn said(
        &mut self,
        record: &Record<'_, '_>,
        body: Value<'_, '_>,
        blocks: Vec<String>,
        has_results: bool,
        session: &mut Session,
    ) {
        let flag = |key| record.root.get(key).and_then(Value::as_bool) == Some(true);
        let id = record.id("");
        if flag("isCompactSummary") {
            return self.compact(record, blocks);
        }
        self.lose_boundary(session);
        let is_meta = flag("isMeta");
        let source = if is_meta {
            "{\"kind\":\"plugin\",\"plugin\":\"claude-code\",\"form\":\"notice\"}"
        } else {
            "{\"kind\":\"user\"}"
        };
        let data = block::user(&id, &blocks, source);
        let item = Item { time_ms: record.time_ms, data, key: record.uuid.clone() };
        if is_interruption(body) && self.turns.has_turn() {
            self.turns.message(item);
            self.turns.end_now("{\"kind\":\"aborted\",\"reason\":{\"kind\":\"user\"}}".to_owned());
        } else if is_meta || has_results {
            self.turns.message(item);
        } else {
            let parent = text(record.root, "parentUuid").and_then(|parent| self.ancestor(parent));
            self.turns.prompt(item, parent.as_deref());
        }
    }

    /// The nearest record that is, or comes before, this one and has a place.
    fn ancestor(&self, mut uuid: String) -> Option<String> {
        // A hostile file may go round in circles.
        for _ in 0..=self.parents.len() {
            match self.parents.get(&uuid) {
                Some(parent) => uuid.clone_from(parent),
                None => return Some(uuid),
            }
        }
        None
    }

    fn compact(&mut self, record: &Record<'_, '_>, blocks: Vec<String>) {
        // So that what was kept has its place.
        self.turns.settle();
        let boundary = self.boundary.take();
        let (tokens, kept) = boundary.as_ref().map_or((None, Vec::new()), |it| (it.tokens, it.kept(&self.turns)));
        let id = boundary.map_or_else(|| record.id(""), |boundary| boundary.id);
        let source = format!("{{\"kind\":\"plugin\",\"plugin\":\"compact\",\"compactionId\":{id}}}");
        let data = block::user(&record.id(""), &blocks, &source);
        let item = Item { time_ms: record.time_ms, data, key: record.uuid.clone() };
        self.turns.compact(Compaction { id, blocks, tokens, item }, &kept);
    }

    fn result(
        &mut self,
        record: &Record<'_, '_>,
        result: Value<'_, '_>,
        among: usize,
    ) -> Result<Option<String>, String> {
        let call = result.get("tool_use_id").and_then(Value::as_text).filter(|id| !id.is_empty());
        let call = call.ok_or("a result names no call")?;
        let body = result.get("content").filter(|body| !body.is_null());
        let (blocks, lost) = body.map_or_else(Default::default, |body| content(body, read));
        let meta = record.root.get("toolUseResult").filter(|_| among == 1);
        let says_more = |meta: &Value<'_, '_>| {
            !body.is_some_and(|body| body.same(*meta)) && json::check(meta.raw().as_bytes()).is_ok()
        };
        let answer = Answer {
            time_ms: record.time_ms,
            id: record.id(if among == 1 { "" } else { call.raw() }),
            blocks,
            is_error: result.get("is_error").and_then(Value::as_bool),
            meta: meta.filter(says_more).map(|meta| format!("{{\"toolUseResult\":{}}}", meta.raw())),
            key: record.uuid.clone(),
            order: 0,
        };
        let shown = String::from_utf8_lossy(&call.decode()).into_owned();
        match self.turns.result(&call.decode(), answer) {
            Ok(()) => Ok((!lost.is_empty()).then(|| lost.join("; "))),
            Err(NoCall::Answered) => Err(format!("the call {shown:?} has its result already")),
            Err(NoCall::Unknown) => Err(format!("no call {shown:?} waits for a result")),
        }
    }

    fn assistant(&mut self, record: &Record<'_, '_>, session: &mut Session) -> Option<Fate> {
        let message = record.root.get("message").filter(|message| message.is_object());
        let Some(message) = message else { return Some(no_place("it has no message with a model")) };
        let Some(model) = name(message, "model") else { return Some(no_place("no model is named")) };
        let Some(body) = message.get("content") else { return Some(no_place("its message has no content")) };
        if text(message, "model").as_deref() == Some(NO_MODEL) {
            return Some(self.no_answer(record, body));
        }
        self.lose_boundary(session);
        let id = name(message, "id").map_or_else(|| record.id(""), str::to_owned);
        let known = |item: &Value<'_, '_>| {
            item.get("id").and_then(Value::as_text).is_some_and(|id| self.turns.has_call(&id.decode()))
        };
        let again: Vec<_> =
            body.items().filter(|item| kind(*item) == "tool_use").filter(known).map(Value::raw).collect();
        let response = self.turns.response(record.time_ms, |response| response.id == id);
        response.time_ms = record.time_ms;
        (response.provider, response.model) = (PROVIDER.to_owned(), model.to_owned());
        response.keys.extend(record.uuid.clone());
        response.is_cut |= text(message, "stop_reason").as_deref() == Some("max_tokens");
        let lost = add(response, body, record.time_ms, &again);
        let usage = message.get("usage").and_then(usage);
        // A response whose step is in the log already was counted there.
        let is_counted = response.id.is_empty() && !self.counted.insert(id.clone());
        response.id = id;
        if !is_counted {
            response.usage = usage.or_else(|| response.usage.take());
        }
        (!lost.is_empty()).then(|| Fate::Part("message.content".to_owned(), lost.join("; ")))
    }

    /// The harness shows an error as if a model had said it.
    fn no_answer(&mut self, record: &Record<'_, '_>, body: Value<'_, '_>) -> Fate {
        if record.root.get("isApiErrorMessage").and_then(Value::as_bool) == Some(true) {
            let said =
                body.items().find_map(|item| literal(item, "text")).or_else(|| body.as_text().map(|_| body.raw()));
            let message = said.unwrap_or("\"\"");
            self.turns.end(format!("{{\"kind\":\"error\",\"error\":{{\"message\":{message},\"code\":\"UNKNOWN\"}}}}"));
        }
        no_place("the harness wrote it, no model did")
    }
}

impl Boundary {
    fn read(record: &Record<'_, '_>) -> Self {
        let meta = record.root.get("compactMetadata");
        let part = |key: &str| meta.and_then(|meta| meta.get(key));
        let kept = part("preservedMessages").and_then(|kept| kept.get("uuids"));
        Self {
            line: record.line,
            id: record.id(""),
            tokens: count(part("preTokens")),
            kept: kept.into_iter().flat_map(Value::items).filter_map(Value::to_text).collect(),
            head: part("preservedSegment").and_then(|segment| text(segment, "headUuid")),
        }
    }

    fn kept(&self, turns: &Turns) -> Vec<Seq> {
        self.kept.iter().chain(&self.head).filter_map(|uuid| turns.place(uuid)).collect()
    }
}

impl Record<'_, '_> {
    /// The literal of a message id: the record's own, or its line.
    fn id(&self, suffix: &str) -> String {
        match (name(self.root, "uuid"), suffix) {
            (Some(id), "") => id.to_owned(),
            (Some(id), _) => format!("{}:{suffix}\"", id.trim_end_matches('"')),
            (None, "") => quote(&format!("line-{}", self.line)),
            (None, _) => format!("\"line-{}:{suffix}\"", self.line),
        }
    }
}

/// Adds the blocks of a record to its response; says what cannot be kept.
///
/// `again` are calls that were announced before.
fn add(response: &mut Response, body: Value<'_, '_>, time_ms: i64, again: &[&str]) -> Vec<String> {
    let (mut lost, mut ready) = (Vec::new(), Vec::new());
    if body.as_text().is_some() {
        ready.push(block::text(body.raw()));
    }
    for item in body.items() {
        if kind(item) != "tool_use" {
            match read(item) {
                Ok(block) => ready.push(block),
                Err(why) => lost.push(why),
            }
            continue;
        }
        let Some((id, tool)) = name(item, "id").zip(name(item, "name")) else {
            lost.push("a call without id or name".to_owned());
            continue;
        };
        let is_twice = response.calls.iter().any(|call| call.id == id);
        if is_twice || again.contains(&item.raw()) {
            lost.push(format!("the call {id} was announced before in this turn"));
            continue;
        }
        let arguments = item.get("input").map_or_else(|| "\"\"".to_owned(), block::arguments);
        let key = item.get("id").and_then(Value::as_text).map(|id| id.decode().into_owned()).unwrap_or_default();
        let call = Call { time_ms, key, id: id.to_owned(), name: tool.to_owned(), arguments, answer: None };
        ready.push(call.block());
        response.calls.push(call);
    }
    response.blocks.extend(ready);
    lost
}

/// A block of a message or of a result.
fn read(item: Value<'_, '_>) -> Result<String, String> {
    match (kind(item).as_str(), literal(item, "text"), literal(item, "thinking")) {
        ("text", Some(literal), _) => Ok(block::text(literal)),
        ("thinking", _, Some(thinking)) => {
            let signature = literal(item, "signature").map(|it| format!(",\"signature\":{it}")).unwrap_or_default();
            Ok(format!("{{\"type\":\"reasoning\",\"text\":{thinking}{signature}}}"))
        }
        _ => verbatim(item),
    }
}

/// Input does not count what came from the cache.
fn usage(usage: Value<'_, '_>) -> Option<String> {
    let part = |key| count(usage.get(key));
    let cache = (part("cache_read_input_tokens"), part("cache_creation_input_tokens"));
    block::usage((part("input_tokens"), part("output_tokens")), cache, None)
}

fn is_interruption(body: Value<'_, '_>) -> bool {
    let mut items = body.items();
    let only = items.next().filter(|_| items.next().is_none()).and_then(|item| item.get("text"));
    let said = only.or(Some(body)).and_then(Value::to_text);
    said.is_some_and(|said| said.starts_with(INTERRUPTED))
}

fn text(value: Value<'_, '_>, key: &str) -> Option<String> {
    value.get(key).and_then(Value::to_text)
}

fn no_place(why: &str) -> Fate {
    Fate::NoPlace(why.to_owned())
}
