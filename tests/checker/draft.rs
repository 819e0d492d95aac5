//! What a host appends next: events of turns, steps and calls as they fit to what is open, each unlike any other.

use quipu::model::{NewEvent, Seq, SurfaceOp};
use quipu::replay::Tail;

/// `count` events that fit behind `tail`, which is moved along. `mark` must be unique; `pick(n)` draws below `n`.
pub fn events(
    (tail, first_seq): (&mut Tail, u64),
    (mark, count): (&str, u64),
    pick: &mut dyn FnMut(u64) -> u64,
) -> Vec<NewEvent> {
    let mut events = Vec::new();
    for index in 0..count {
        let seq = first_seq + index;
        // Numbers of turns and steps begin at one.
        let (kind, data, sources) = next(tail, &format!("{mark}.{index}"), seq + 1, pick);
        let is_surface = quipu::replay::vocabulary::is_surface(kind);
        let body = NewEvent {
            time_ms: 1_700_000_000_000 + seq as i64 % 1000,
            kind: kind.into(),
            data: data.into(),
            ignorable: false,
            surface_op: is_surface.then_some(SurfaceOp::Append),
            source_event_seqs: sources,
        };
        tail.apply(&quipu::model::Event { seq: Seq::new(seq).unwrap(), body: body.clone() });
        events.push(body);
    }
    events
}

/// An event that fits anywhere and opens nothing.
pub fn note(mark: &str) -> NewEvent {
    NewEvent {
        time_ms: 1_700_000_000_000,
        kind: "feedback/record".into(),
        data: format!(r#"{{"text":"x","mark":"{mark}"}}"#).into(),
        ignorable: false,
        surface_op: None,
        source_event_seqs: None,
    }
}

fn next(
    tail: &Tail,
    mark: &str,
    number: u64,
    pick: &mut dyn FnMut(u64) -> u64,
) -> (&'static str, String, Option<Vec<Seq>>) {
    let mark_of = format!(r#""mark":"{mark}""#);
    let Some(turn) = tail.open_turn().and_then(|turn| turn.number.json()) else {
        return match pick(4) {
            0 => ("feedback/record", format!(r#"{{"text":"x",{mark_of}}}"#), None),
            _ => ("turn/start", format!(r#"{{"turn":{number},{mark_of}}}"#), None),
        };
    };
    let Some(step) = tail.open_step().and_then(|step| step.number.json()) else {
        return match pick(3) {
            0 => {
                // The plain reasons have no room for a mark.
                let reason = format!(r#""reason":{{"kind":"ended",{mark_of}}}"#);
                ("turn/end", format!(r#"{{"turn":{turn},{reason}}}"#), None)
            }
            _ => ("step/start", format!(r#"{{"turn":{turn},"step":{number},{mark_of}}}"#), None),
        };
    };
    let place = format!(r#""turn":{turn},"step":{step}"#);
    if let Some(call) = tail.pending().find(|_| pick(3) > 0) {
        let id = call.id.escaped();
        let Some(started) = call.call_seq else {
            let data = format!(r#"{{{place},"callId":"{id}","name":"t","arguments":"{{}}",{mark_of}}}"#);
            return ("tool/call", data, None);
        };
        let content = format!(r#"[{{"type":"tool-result","toolCallId":"{id}","content":[]}}]"#);
        let source = format!(r#"{{"kind":"tool","callId":"{id}"}}"#);
        let message = format!(r#"{{"id":"{mark}","role":"user","source":{source},"content":{content}}}"#);
        return ("tool/result", format!(r#"{{{place},"message":{message}}}"#), Some(vec![started]));
    }
    if tail.pending().next().is_none() && pick(3) == 0 {
        return ("step/end", format!("{{{place},{mark_of}}}"), None);
    }
    let calls: Vec<_> = (0..pick(3))
        .map(|n| format!(r#"{{"type":"tool-call","id":"{mark}-{n}","name":"t","arguments":"{{}}"}}"#))
        .collect();
    let source = r#"{"kind":"model","provider":"p","model":"m"}"#;
    let message = format!(r#"{{"id":"{mark}","role":"assistant","source":{source},"content":[{}]}}"#, calls.join(","));
    ("assistant/message", format!(r#"{{{place},"message":{message}}}"#), None)
}
