//! Logs for the tests of the folds: read from JSON text, byte for byte, or drawn at random.

use proptest::prelude::*;
use quipu::model::json::{self, Value};
use quipu::model::{Event, NewEvent, Seq, SurfaceOp};
use quipu::replay::line::Draft;
use quipu::replay::surface::in_log;
use quipu::replay::{Surface, Tail};

/// The event that one JSON object is.
pub(crate) fn event(text: &str) -> Event {
    let doc = json::parse(text.as_bytes()).unwrap();
    event_of(doc.root()).unwrap_or_else(|| panic!("no event: {text}"))
}

pub(crate) fn event_of(value: Value<'_, '_>) -> Option<Event> {
    Draft::read(value).ok().and_then(Draft::into_event)
}

/// The events of a JSON array.
pub(crate) fn events_of(array: Value<'_, '_>) -> Vec<Event> {
    array.items().map(|item| event_of(item).unwrap_or_else(|| panic!("no event: {}", item.raw()))).collect()
}

/// The cases of a vector file as raw text, so that key order and number texts survive.
pub(crate) struct RawCase {
    pub(crate) name: String,
    pub(crate) input: String,
    pub(crate) expected: serde_json::Value,
}

/// The same cases as [`crate::vectors::cases`] gives, with the input untouched; says how many there are.
pub(crate) fn raw_cases(file: &str, kind: Option<&str>) -> Vec<RawCase> {
    let text = crate::vectors::text(file);
    let doc = json::parse(text.as_bytes()).unwrap();
    let of_kind = |case: &Value<'_, '_>| {
        let found = case.get("input").and_then(|input| input.get("kind")).and_then(Value::to_text);
        kind.is_none() || found.as_deref() == kind
    };
    let cases: Vec<_> = doc.root().get("cases").unwrap().items().filter(of_kind).map(raw_case).collect();
    println!("{file}: {} cases{}", cases.len(), kind.map_or_else(String::new, |kind| format!(" of kind {kind}")));
    assert!(!cases.is_empty(), "{file} has no cases of kind {kind:?}");
    cases
}

fn raw_case(case: Value<'_, '_>) -> RawCase {
    RawCase {
        name: case.get("name").and_then(Value::to_text).unwrap(),
        input: case.get("input").unwrap().raw().to_owned(),
        expected: serde_json::from_str(case.get("expected").unwrap().raw()).unwrap(),
    }
}

/// Whether both texts are the same JSON value.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    json::parse(a).unwrap().root().same(json::parse(b).unwrap().root())
}

/// The log B of the failure cases: one healthy turn, seqs 0..=7.
pub(crate) const HEALTHY: [&str; 8] = [
    r#"{"seq":0,"time":1000,"type":"turn/start","data":{"turn":1}}"#,
    r#"{"seq":1,"time":1000,"type":"step/start","data":{"turn":1,"step":1}}"#,
    r#"{"seq":2,"time":1001,"type":"user/message","data":{"id":"m1","role":"user","source":{"kind":"user"},"content":[{"type":"text","text":"hi"}]},"surfaceOp":"append"}"#,
    r#"{"seq":3,"time":1002,"type":"request/header","data":{"reason":"initial","header":{"config":{"provider":"p","model":"m"},"system":"S1","tools":[]}}}"#,
    r#"{"seq":4,"time":1003,"type":"assistant/chunk","data":{"turn":1,"step":1,"chunk":{"type":"finish","reason":{"kind":"stop"}}}}"#,
    r#"{"seq":5,"time":1004,"type":"assistant/message","data":{"turn":1,"step":1,"message":{"id":"a1","role":"assistant","source":{"kind":"model","provider":"p","model":"m"},"content":[{"type":"text","text":"hello"}]},"usage":{"inputTokens":3,"outputTokens":1}},"sourceEventSeqs":[4],"surfaceOp":"append"}"#,
    r#"{"seq":6,"time":1005,"type":"step/end","data":{"turn":1,"step":1}}"#,
    r#"{"seq":7,"time":1005,"type":"turn/end","data":{"turn":1,"reason":{"kind":"completed"}}}"#,
];

/// What makes OPEN of [`HEALTHY`]: a second turn cut off with two calls pending, the first one started.
pub(crate) const CUT_OFF: [&str; 6] = [
    r#"{"seq":8,"time":2000,"type":"turn/start","data":{"turn":2}}"#,
    r#"{"seq":9,"time":2000,"type":"step/start","data":{"turn":2,"step":1}}"#,
    r#"{"seq":10,"time":2001,"type":"user/message","data":{"id":"m2","role":"user","source":{"kind":"user"},"content":[{"type":"text","text":"go"}]},"surfaceOp":"append"}"#,
    r#"{"seq":11,"time":2003,"type":"assistant/chunk","data":{"turn":2,"step":1,"chunk":{"type":"finish","reason":{"kind":"tool-calls"}}}}"#,
    r#"{"seq":12,"time":2004,"type":"assistant/message","data":{"turn":2,"step":1,"message":{"id":"a2","role":"assistant","source":{"kind":"model","provider":"p","model":"m"},"content":[{"type":"tool-call","id":"ca","name":"bash","arguments":"{\"command\":\"ls\"}"},{"type":"tool-call","id":"cb","name":"read","arguments":"{\"file_path\":\"x\"}"}]}},"sourceEventSeqs":[11],"surfaceOp":"append"}"#,
    r#"{"seq":13,"time":2005,"type":"tool/call","data":{"turn":2,"step":1,"callId":"ca","name":"bash","arguments":"{\"command\":\"ls\"}"}}"#,
];

pub(crate) fn healthy() -> Vec<Event> {
    HEALTHY.iter().map(|text| event(text)).collect()
}

pub(crate) fn open() -> Vec<Event> {
    HEALTHY.iter().chain(&CUT_OFF).map(|text| event(text)).collect()
}

/// Appends events given as `(type, data)`; surface types get `append`.
pub(crate) fn extend(log: &mut Vec<Event>, more: &[(&str, &str)]) {
    for (kind, data) in more {
        let seq = Seq::new(log.len() as u64).unwrap();
        log.push(Event { seq, body: body(kind, data) });
    }
}

pub(crate) fn body(kind: &str, data: &str) -> NewEvent {
    NewEvent {
        time_ms: 3000,
        kind: kind.into(),
        data: data.to_owned().into(),
        ignorable: false,
        surface_op: quipu::replay::vocabulary::is_surface(kind).then_some(SurfaceOp::Append),
        source_event_seqs: None,
    }
}

/// A `tool/result` payload for a call.
pub(crate) fn result_data(turn: u32, step: u32, id: &str, text: &str) -> String {
    format!(
        r#"{{"turn":{turn},"step":{step},"message":{{"id":"r-{id}","role":"user","source":{{"kind":"tool","callId":"{id}"}},"content":[{{"type":"tool-result","toolCallId":"{id}","content":[{{"type":"text","text":"{text}"}}]}}]}}}}"#
    )
}

/// An `assistant/message` payload with these content blocks.
pub(crate) fn assistant_data(turn: u32, step: u32, content: &str) -> String {
    format!(
        r#"{{"turn":{turn},"step":{step},"message":{{"id":"a-{turn}-{step}","role":"assistant","source":{{"kind":"model","provider":"p","model":"m"}},"content":[{content}]}}}}"#
    )
}

pub(crate) fn call_block(id: &str) -> String {
    format!(r#"{{"type":"tool-call","id":"{id}","name":"t","arguments":"{{}}"}}"#)
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1..3u32, 1 => Just(0u32)]
}

fn call_id() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "\\ud83c", "\u{547c}\\\"", ""]).prop_map(str::to_owned)
}

fn message() -> impl Strategy<Value = (&'static str, String)> {
    let blocks = prop::collection::vec(
        prop_oneof![call_id().prop_map(|id| call_block(&id)), Just(r#"{"type":"text","text":"x"}"#.to_owned())],
        0..4,
    );
    prop_oneof![
        3 => (small(), small(), blocks)
            .prop_map(|(turn, step, blocks)| ("assistant/message", assistant_data(turn, step, &blocks.join(",")))),
        2 => (small(), small(), call_id(), "[a-z]{0,3}")
            .prop_map(|(turn, step, id, text)| ("tool/result", result_data(turn, step, &id, &text))),
        2 => Just(("user/message", r#"{"id":"u","role":"user","source":{"kind":"user"},"content":[]}"#.to_owned())),
        1 => Just(("user/message", r#"{"id":"","role":7}"#.to_owned())),
    ]
}

fn bracket() -> impl Strategy<Value = (&'static str, String)> {
    prop_oneof![
        4 => small().prop_map(|turn| ("turn/start", format!(r#"{{"turn":{turn}}}"#))),
        4 => (small(), small()).prop_map(|(turn, step)| ("step/start", format!(r#"{{"turn":{turn},"step":{step}}}"#))),
        2 => (small(), small()).prop_map(|(turn, step)| ("step/end", format!(r#"{{"turn":{turn},"step":{step}}}"#))),
        1 => small().prop_map(|turn| ("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#))),
        3 => (small(), call_id())
            .prop_map(|(step, id)| ("tool/call", format!(r#"{{"turn":1,"step":{step},"callId":"{id}"}}"#))),
        2 => (small(), prop::sample::select(vec!["text-delta", "finish", "usage", "zz"])).prop_map(|(step, kind)| (
            "assistant/chunk",
            format!(r#"{{"turn":1,"step":{step},"chunk":{{"type":"{kind}","index":0}}}}"#)
        )),
        1 => prop::sample::select(vec!["\"m\"", "\"\"", "7"]).prop_map(|model| (
            "request/header",
            format!(r#"{{"reason":"initial","header":{{"config":{{"provider":"p","model":{model}}}}}}}"#)
        )),
        1 => prop::sample::select(vec![
            ("llm/retry", "{}"),
            ("turn/start", "[1,[2,{}]]"),
            ("step/start", "{\"turn\":1.5}"),
            ("session/end-seed", "{}"),
            ("mode/set", "null"),
            ("x/y", "\"\\udc00\""),
            ("assistant/message", "{\"message\":{\"content\":{}}}"),
        ]).prop_map(|(kind, data)| (kind, data.to_owned())),
    ]
}

/// Events drawn without regard to what came before: bad shapes, bad ranges, broken nesting.
fn stray() -> impl Strategy<Value = Step> {
    let op = (0..40u64, 0..6u64, 0..10u8, prop::collection::vec(0..40u64, 0..4));
    (prop_oneof![3 => bracket(), 2 => message()], op).prop_map(|((kind, data), (start, width, choice, cites))| {
        Step::Stray { kind, data, start, width, choice, cites }
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// What a host would do next; the numbers choose among its options.
    Next(u8, usize),
    Stray {
        kind: &'static str,
        data: String,
        start: u64,
        width: u64,
        choice: u8,
        cites: Vec<u64>,
    },
}

/// Logs as hosts write them, with stray events in between.
pub(crate) fn any_log(length: usize) -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![12 => (0..12u8, 0..6usize).prop_map(|(a, b)| Step::Next(a, b)), 1 => stray()];
    let mild = prop::collection::vec((step, -5..5i64), 0..length);
    let wild = prop::collection::vec((stray(), -5..5i64), 0..length);
    prop_oneof![4 => mild, 1 => wild].prop_map(|steps| {
        let mut host = Host::default();
        for (step, time) in steps {
            host.take(step, time);
        }
        host.log
    })
}

/// A host in miniature: knows what is open, and goes on from there.
#[derive(Default)]
struct Host {
    log: Vec<Event>,
    tail: Tail,
    surface: Surface,
    turn: u32,
    step: u32,
}

impl Host {
    fn take(&mut self, step: Step, time_ms: i64) {
        let seq = self.log.len() as u64;
        let body = match step {
            Step::Next(action, pick) => self.next(action, pick),
            Step::Stray { kind, data, start, width, choice, cites } => {
                let mut body = body(kind, &data);
                mark(&mut body, seq, (start, width), (choice, &cites));
                body
            }
        };
        let event = Event { seq: Seq::new(seq).unwrap(), body: NewEvent { time_ms, ..body } };
        self.tail.apply(&event);
        self.log.push(event);
        let event = self.log.last().unwrap();
        let _ = self.surface.apply(event, &in_log(&self.log));
    }

    fn next(&mut self, action: u8, pick: usize) -> NewEvent {
        match (self.tail.open_turn(), self.tail.open_step(), action) {
            (_, _, 0) => self.compact(pick),
            (_, _, 1) => self.rewrite(pick),
            (None, _, 2..9) => {
                (self.turn, self.step) = (self.turn + 1, 0);
                body("turn/start", &format!(r#"{{"turn":{}}}"#, self.turn))
            }
            (None, ..) => body("session/title", "{}"),
            (Some(_), None, 2..9) => {
                self.step += 1;
                body("step/start", &self.place(""))
            }
            (Some(_), None, _) => {
                body("turn/end", &format!(r#"{{"turn":{},"reason":{{"kind":"completed"}}}}"#, self.turn))
            }
            (Some(_), Some(_), action) => self.in_step(action, pick),
        }
    }

    fn place(&self, more: &str) -> String {
        format!(r#"{{"turn":{},"step":{}{more}}}"#, self.turn, self.step)
    }

    fn in_step(&self, action: u8, pick: usize) -> NewEvent {
        let pending: Vec<_> = self.tail.pending().collect();
        let call = pending.get(pick % pending.len().max(1));
        match (action, call) {
            (2, _) => body("user/message", r#"{"id":"u","role":"user","source":{"kind":"user"},"content":[]}"#),
            (3, _) => body("assistant/chunk", &self.place(r#","chunk":{"type":"text-delta","index":0}"#)),
            (4, _) => body("assistant/chunk", &self.place(r#","chunk":{"type":"finish"}"#)),
            (5, None) => body("step/end", &self.place("")),
            (_, Some(call)) if call.call_seq.is_none() => {
                body("tool/call", &self.place(&format!(r#","callId":"{}""#, call.id)))
            }
            (_, Some(call)) => body("tool/result", &result_data(self.turn, self.step, call.id.escaped(), "done")),
            (_, None) => {
                let id = |n: usize| format!("{}-\\ud83c-{n}", self.log.len());
                let blocks: Vec<_> = (0..pick % 4).map(|n| call_block(&id(n))).collect();
                body("assistant/message", &assistant_data(self.turn, self.step, &blocks.join(",")))
            }
        }
    }

    /// Replaces a range of nodes by a message.
    fn compact(&self, pick: usize) -> NewEvent {
        let mut body = body("user/message", r#"{"id":"s","role":"user","source":{"kind":"plugin"},"content":[]}"#);
        let nodes = self.surface.nodes();
        let from = nodes.len().saturating_sub(1 + pick);
        if let (Some(&start), Some(&end)) = (nodes.get(from), nodes.get(from + pick / 2)) {
            body.surface_op = Some(SurfaceOp::Replace { start, end });
            body.source_event_seqs = Some(nodes[from..].to_vec());
        }
        body
    }

    /// Replaces a tool result by one with other content.
    fn rewrite(&self, pick: usize) -> NewEvent {
        let log = |seq: &Seq| &self.log[seq.get() as usize];
        let results: Vec<_> = self.surface.nodes().iter().filter(|seq| &*log(seq).body.kind == "tool/result").collect();
        let Some(&&seq) = results.get(pick % results.len().max(1)) else { return body("session/title", "{}") };
        let data = String::from_utf8(log(&seq).body.data.to_vec()).unwrap();
        NewEvent {
            surface_op: Some(SurfaceOp::Replace { start: seq, end: seq }),
            source_event_seqs: Some(vec![seq]),
            ..body("tool/result", &data.replace("\"done\"", "\"cut\""))
        }
    }
}

fn mark(body: &mut NewEvent, seq: u64, (start, width): (u64, u64), (choice, cites): (u8, &[u64])) {
    let at = |n: u64| Seq::new(n).unwrap();
    let start = if seq == 0 { 0 } else { start % seq };
    if body.surface_op.is_some() && choice < 3 {
        let end = (start + width).min(seq.saturating_sub(1));
        body.surface_op = Some(SurfaceOp::Replace { start: at(start), end: at(end.max(start)) });
        body.source_event_seqs = Some((0..seq).map(at).collect());
    } else if choice == 3 {
        body.source_event_seqs = Some(cites.iter().copied().map(at).collect());
    } else if choice == 4 && start == 0 {
        body.surface_op = None;
    }
}
