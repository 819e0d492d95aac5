//! The client window, against `convergence.json` and by laws.

use proptest::prelude::*;
use quipu::model::Seq;
use quipu::replay::window::{Input, PAGE_MESSAGES, Request, State, Window};
use serde_json::{Value, json};

use crate::vectors::cases;

fn seq(value: &Value) -> Option<Seq> {
    value.as_u64().and_then(Seq::new)
}

/// A window with the requests that nobody answered yet.
#[derive(Default)]
struct Client {
    window: Window,
    requests: Vec<Request>,
    total: u64,
}

impl Client {
    fn apply(&mut self, input: Input) {
        let request = self.window.apply(input);
        self.total += request.iter().count() as u64;
        self.requests.extend(request);
    }

    fn step(&mut self, step: &Value) {
        let input = match step["op"].as_str().unwrap() {
            "open" => Input::Open,
            "loadOlder" => Input::LoadOlder,
            "resync" => Input::Resync,
            "event" => Input::Event(seq(&step["seq"]).unwrap()),
            "subscribed" => Input::Subscribed(seq(&step["lastSeq"])),
            op => {
                let at = if op == "replyLast" { self.requests.len() - 1 } else { 0 };
                let request = self.requests.remove(at).id;
                match op {
                    "replyError" => Input::Refused(request),
                    "replyThrow" => Input::Lost(request),
                    _ => {
                        let range = seq(&step["from"]).zip(seq(&step["to"]));
                        Input::Page { request, range, has_more: step["hasMore"].as_bool().unwrap() }
                    }
                }
            }
        };
        self.apply(input);
    }

    fn seen(&self) -> Value {
        let state = match self.window.state() {
            State::Cold => "cold",
            State::Loading => "loading",
            State::Open => "open",
            State::Failed => "error",
        };
        let requests = self.requests.iter();
        let requests = requests
            .map(|request| json!({"maxMessages": PAGE_MESSAGES, "beforeSeq": request.before_seq.map(Seq::get)}));
        json!({
            "state": state,
            "window": self.window.range().iter().map(|(a, b)| json!([a.get(), b.get()])).collect::<Vec<_>>(),
            "hasMore": self.window.has_more(),
            "buffered": self.window.waiting().map(Seq::get).collect::<Vec<_>>(),
            "requests": requests.collect::<Vec<_>>(),
            "totalRequests": self.total,
        })
    }
}

fn play(case: &Value) -> Vec<Value> {
    let mut client = Client::default();
    let steps = case["input"]["steps"].as_array().unwrap().iter();
    steps
        .map(|step| {
            client.step(step);
            client.seen()
        })
        .collect()
}

#[test]
fn windows_converge_as_the_vectors_say() {
    let cases = cases("convergence.json", None);
    println!("convergence.json: {} cases", cases.len());
    for case in cases.iter().filter(|case| case.get("upstreamDefect").is_none()) {
        assert_eq!(Value::from(play(case)), case["expected"]["after"], "{}", case["name"]);
    }
}

/// Last state of a case where the reference breaks its own contract.
fn end_of(name: &str) -> Value {
    let cases = cases("convergence.json", None);
    let case = cases.iter().find(|case| case["name"] == name).unwrap();
    assert!(case.get("upstreamDefect").is_some());
    play(case).pop().unwrap()
}

/// The reference appends what was buffered over the hole; ours lets it wait and asks again, because a reader cannot
/// tell a hole from a quiet log.
#[test]
fn what_does_not_join_waits_where_the_vectors_record_a_hole() {
    let tail = json!([{"maxMessages": 50, "beforeSeq": null}]);
    for (name, window, requests) in [("conv-repair-page-shorter", [0, 6], 3), ("conv-stitch-hole", [0, 5], 2)] {
        let expected = json!({
            "state": "open", "window": [window], "hasMore": false, "buffered": [9], "requests": tail,
            "totalRequests": requests,
        });
        assert_eq!(end_of(name), expected, "{name}");
    }
}

/// The reference forgets a failed repair until the next gap; ours asks again at once and tells the caller how often
/// it was in vain, because what waits must not stay invisible while the log is quiet.
#[test]
fn a_failed_repair_is_asked_again_where_the_vectors_record_silence() {
    let mut client = Client::default();
    client.apply(Input::Open);
    client.step(&json!({"op": "reply", "from": 0, "to": 5, "hasMore": false}));
    client.step(&json!({"op": "event", "seq": 8}));
    for retry in 1..4 {
        client.step(&json!({"op": "replyThrow"}));
        assert_eq!(client.requests.iter().map(|request| request.retry).collect::<Vec<_>>(), [retry]);
    }
    assert_eq!(end_of("conv-gap-repair-fails")["window"], json!([[0, 9]]));
    assert_eq!(end_of("conv-gap-repair-fails")["buffered"], json!([]));
}

/// The reference replaces the whole window by the repair's page; ours keeps the older pages that the page touches,
/// because the reader may be looking at them.
#[test]
fn a_repair_keeps_the_older_pages() {
    let mut client = Client::default();
    client.apply(Input::Open);
    client.step(&json!({"op": "reply", "from": 10, "to": 19, "hasMore": true}));
    client.step(&json!({"op": "loadOlder"}));
    client.step(&json!({"op": "reply", "from": 4, "to": 9, "hasMore": true}));
    client.step(&json!({"op": "event", "seq": 22}));
    client.step(&json!({"op": "reply", "from": 15, "to": 22, "hasMore": true}));
    assert_eq!(client.seen()["window"], json!([[4, 22]]));
}

/// What a server with a growing log and a lossy wire may do to a client.
fn any_step() -> impl Strategy<Value = (u8, u64)> {
    (0..10u8, 0..6u64)
}

proptest! {
    #[test]
    fn a_window_never_passes_over_an_event(steps in prop::collection::vec(any_step(), 0..60)) {
        let (mut client, mut next) = (Client::default(), 0u64);
        client.apply(Input::Open);
        for (what, n) in steps {
            match what {
                0 => client.apply(Input::Resync),
                1 => client.apply(Input::LoadOlder),
                2 => client.apply(Input::Subscribed(next.checked_sub(1).and_then(Seq::new))),
                3 | 4 => next += n, // events that the wire lost
                5..=7 => {
                    next += 1;
                    client.apply(Input::Event(Seq::new(next - 1).unwrap()));
                }
                _ if client.requests.is_empty() => {}
                8 => {
                    let request = client.requests.remove(0).id;
                    client.apply(if n % 2 == 0 { Input::Refused(request) } else { Input::Lost(request) });
                }
                _ => answer(&mut client, next, n),
            }
            prop_assert!(client.window.state() != State::Open || client.window.waiting().next().is_none()
                || !client.requests.is_empty());
        }
        client.apply(Input::Open);
        client.apply(Input::Event(Seq::new(next).unwrap()));
        for _ in 0..100 {
            if !client.requests.is_empty() {
                answer(&mut client, next + 1, 3);
            }
        }
        prop_assert_eq!(client.window.range().map(|(_, last)| last), Seq::new(next));
    }
}

/// Answers the oldest request from a log of `length` events with `page` events, or all when `page` is 0.
fn answer(client: &mut Client, length: u64, page: u64) {
    let request = client.requests.remove(0);
    let end = request.before_seq.map_or(length, Seq::get);
    let from = if page == 0 { 0 } else { end.saturating_sub(page) };
    let range = end.checked_sub(1).and_then(|to| Seq::new(from).zip(Seq::new(to)));
    client.apply(Input::Page { request: request.id, range, has_more: from > 0 });
}
