//! A host without a wire: the calls of a service, in one line each, and logs to make with them.

use std::sync::Arc;

use quipu::model::{Event, Header, NewEvent, Profile, Seq, SessionKey, SurfaceOp};
use quipu::replay::fork::ForkAt;
use quipu::service::{
    AckLevel, Append, Appended, Claim, Error, Fork, Forked, Head, Inspected, Loaded, Options, Prepare, Prepared,
    Preset, Reason, Repair, Repaired, Service,
};
use quipu::store::Store;

use super::Random;

pub struct Host {
    pub service: Service,
}

pub fn key(id: &str) -> SessionKey {
    SessionKey::new("", id).unwrap()
}

pub fn claim(holder: &str, ttl_ms: u64, take_over: Option<&str>) -> Claim {
    Claim::new(holder, Some(ttl_ms), take_over).unwrap()
}

/// The reason of a refusal.
pub fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    result.unwrap_err().reason
}

impl Host {
    pub fn over(store: Arc<dyn Store>) -> Self {
        Self { service: Service::new(store, Options::default()) }
    }

    pub async fn create(&self, id: &str, profile: Profile) {
        self.service.create(key(id), (Header::default(), profile, true), None).await.unwrap();
    }

    /// Creates a log of the profile dsh with these events.
    pub async fn with(&self, id: &str, events: &[Event]) {
        self.create(id, Profile::Dsh).await;
        self.append(id, 0, events, None).await.unwrap();
    }

    pub async fn append(&self, id: &str, first: u64, events: &[Event], epoch: Option<u64>) -> Result<Appended, Error> {
        if events.is_empty() {
            let session = self.service.get(&key(id)).await?;
            return Ok(Appended {
                head: session.head,
                level: AckLevel::Durable,
                deduplicated: true,
                reports: Vec::new(),
            });
        }
        let append = Append {
            key: key(id),
            first_seq: Seq::new(first).unwrap(),
            events: events.iter().map(|event| event.body.clone()).collect(),
            level: AckLevel::Durable,
            strict: false,
            incarnation: None,
            epoch,
        };
        self.service.append(append).await
    }

    pub async fn head(&self, id: &str) -> Head {
        self.service.get(&key(id)).await.unwrap().head
    }

    pub async fn read(&self, id: &str) -> Vec<Event> {
        let mut reading = self.service.read(&key(id), Seq::ZERO, None).await.unwrap();
        let mut events = Vec::new();
        while let Some(batch) = reading.next(1 << 20, usize::MAX, usize::MAX).await.unwrap() {
            events.extend(batch);
        }
        events
    }

    pub async fn inspect(&self, id: &str) -> Result<Inspected, Error> {
        self.service.inspect(&key(id), None).await
    }

    pub async fn load(&self, id: &str) -> Result<Loaded, Error> {
        self.service.load(&key(id), None).await
    }

    pub async fn prepare(&self, id: &str, claim: Claim) -> Result<Prepared, Error> {
        self.service.prepare(&Prepare { key: key(id), incarnation: None, claim }).await
    }

    pub async fn fork(&self, id: &str, child: &str, epoch: Option<u64>) -> Result<Forked, Error> {
        let fork = Fork {
            key: key(id),
            incarnation: None,
            epoch,
            expected_revision: None,
            at: ForkAt::Head,
            child: Some(key(child).id),
            cwd: None,
            labels: std::collections::BTreeMap::new(),
            preset: Preset::default(),
        };
        self.service.fork(fork).await
    }

    pub fn repair(id: &str, revision: [u8; 16]) -> Repair {
        Repair { key: key(id), expected_revision: revision, validate_only: false, epoch: None, closers: Vec::new() }
    }

    pub async fn commit(&self, repair: &Repair) -> Result<Repaired, Error> {
        self.service.commit_repair(repair).await
    }
}

/// Events from `(type, data)`, one after the other.
pub fn events_from(first: u64, list: &[(&str, String)]) -> Vec<Event> {
    let event = |(index, (kind, data)): (usize, &(&str, String))| Event {
        seq: Seq::new(first + index as u64).unwrap(),
        body: NewEvent {
            time_ms: 1_700_000_000_000 + index as i64 * 3,
            kind: (*kind).into(),
            data: data.clone().into(),
            ignorable: false,
            surface_op: quipu::replay::vocabulary::is_surface(kind).then_some(SurfaceOp::Append),
            source_event_seqs: None,
        },
    };
    list.iter().enumerate().map(event).collect()
}

pub fn turn_start(turn: u64) -> (&'static str, String) {
    ("turn/start", format!(r#"{{"turn":{turn}}}"#))
}

pub fn turn_end(turn: u64) -> (&'static str, String) {
    ("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#))
}

pub fn step(kind: &'static str, turn: u64, step: u64) -> (&'static str, String) {
    (kind, format!(r#"{{"turn":{turn},"step":{step}}}"#))
}

pub fn user(id: &str) -> (&'static str, String) {
    let data = format!(
        r#"{{"id":"{id}","role":"user","source":{{"kind":"user"}},"content":[{{"type":"text","text":"hi"}}]}}"#
    );
    ("user/message", data)
}

pub fn assistant((turn, step): (u64, u64), calls: &[String]) -> (&'static str, String) {
    let blocks: Vec<_> =
        calls.iter().map(|id| format!(r#"{{"type":"tool-call","id":"{id}","name":"t","arguments":"{{}}"}}"#)).collect();
    let data = format!(
        r#"{{"turn":{turn},"step":{step},"message":{{"id":"a-{turn}-{step}","role":"assistant","source":{{"kind":"model","provider":"p","model":"m"}},"content":[{}]}}}}"#,
        blocks.join(",")
    );
    ("assistant/message", data)
}

pub fn call((turn, step): (u64, u64), id: &str) -> (&'static str, String) {
    ("tool/call", format!(r#"{{"turn":{turn},"step":{step},"callId":"{id}","name":"t","arguments":"{{}}"}}"#))
}

pub fn result((turn, step): (u64, u64), id: &str) -> (&'static str, String) {
    let data = format!(
        r#"{{"turn":{turn},"step":{step},"message":{{"id":"r-{turn}-{step}-{id}","role":"user","source":{{"kind":"tool","callId":"{id}"}},"content":[{{"type":"tool-result","toolCallId":"{id}","content":[{{"type":"text","text":"ok"}}]}}]}}}}"#
    );
    ("tool/result", data)
}

/// The log OPEN of the failure cases: a healthy turn, and one cut off with two calls pending, the first one started.
pub fn open() -> Vec<Event> {
    let calls = ["ca".to_owned(), "cb".to_owned()];
    events_from(
        0,
        &[
            turn_start(1),
            step("step/start", 1, 1),
            user("m1"),
            assistant((1, 1), &[]),
            step("step/end", 1, 1),
            turn_end(1),
            turn_start(2),
            step("step/start", 2, 1),
            user("m2"),
            assistant((2, 1), &calls),
            call((2, 1), "ca"),
        ],
    )
}

/// A well-nested log at random: turns of steps, of calls that start, finish, in any order, some never.
pub fn random_log(random: &mut Random) -> Vec<Event> {
    let mut list = Vec::new();
    for turn in 1..=1 + random.below(2) {
        list.push(turn_start(turn));
        for step_number in 1..=1 + random.below(2) {
            let at = (turn, step_number);
            list.push(step("step/start", turn, step_number));
            list.push(user(&format!("u-{turn}-{step_number}")));
            // The ids are used again in every step, as some providers do.
            let mut calls: Vec<_> = (0..random.below(4)).map(|n| format!("c{n}")).collect();
            list.push(assistant(at, &calls));
            let mut started: Vec<String> = Vec::new();
            while !calls.is_empty() || !started.is_empty() {
                if !calls.is_empty() && (started.is_empty() || random.below(2) == 0) {
                    let id = calls.remove(random.below(calls.len() as u64) as usize);
                    list.push(call(at, &id));
                    started.push(id);
                } else {
                    let id = started.remove(random.below(started.len() as u64) as usize);
                    list.push(result(at, &id));
                }
                if random.below(6) == 0 {
                    list.push(("feedback/record", r#"{"text":"x"}"#.to_owned()));
                }
            }
            list.push(step("step/end", turn, step_number));
        }
        list.push(turn_end(turn));
    }
    events_from(0, &list)
}
