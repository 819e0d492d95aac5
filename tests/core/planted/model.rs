//! A session that keeps all rules, played by processes whose calls overlap: what the checker must take.

use quipu::model::{Event, NewEvent, Seq};
use quipu::replay::Tail;
use quipu::replay::repair::closers_of;

use crate::checker::draft;
use crate::checker::{
    Ask, Call, Child, Fork, History, Log, Mark, Outcome, Owned, Refusal, Shown, Time, chains, digest,
};

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// Whoever has the session.
#[derive(Clone, Copy, Default)]
struct Owner {
    epoch: u64,
    holder: u32,
    is_held: bool,
    is_live: bool,
    ttl: Time,
    until: Time,
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) calls: Vec<Call>,
    pub(crate) children: Vec<Child>,
    log: Vec<Event>,
    chains: Vec<[u8; 32]>,
    tail: Tail,
    durable: usize,
    owner: Owner,
    life: u32,
    pub(crate) now: Time,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { chains: chains(&[]), ..Self::default() }
    }

    pub(crate) fn history(mut self) -> History {
        self.durable = self.log.len();
        let chain = *self.chains.last().unwrap();
        History { calls: self.calls, log: Log { events: self.log, chain }, children: self.children }
    }

    pub(crate) fn next_seq(&self) -> u64 {
        self.log.len() as u64
    }

    pub(crate) fn log(&self) -> &[Event] {
        &self.log
    }

    /// A batch that fits.
    pub(crate) fn batch(&self, op: u64, count: u64, random: &mut Random) -> Vec<NewEvent> {
        let mut tail = self.tail.clone();
        draft::events((&mut tail, self.next_seq()), (&op.to_string(), count), &mut |n| random.below(n))
    }

    /// One call that nothing overlaps; gives its place in the history.
    pub(crate) fn call(&mut self, process: u32, ask: Ask, events: &[NewEvent]) -> usize {
        let invoked = self.tick();
        self.tick();
        let outcome = self.effect(process, &ask, events);
        let returned = self.tick();
        self.calls.push(Call { process, life: self.life, invoked, returned, ask, outcome });
        self.calls.len() - 1
    }

    fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    fn mark(&self) -> Mark {
        let (next_seq, durable_next_seq) = (self.next_seq(), self.durable as u64);
        let chain = *self.chains.last().unwrap();
        let mut revision = [0; 16];
        revision.copy_from_slice(&blake3::hash(&[&chain[..], b"revision"].concat()).as_bytes()[..16]);
        Mark { next_seq, durable_next_seq, revision, chain }
    }

    fn shown(&self) -> Shown {
        let owned = Owned { epoch: self.owner.epoch, holder: self.owner.holder };
        Shown { mark: Some(self.mark()), owner: (owned.epoch > 0).then_some(owned), ..Shown::default() }
    }

    fn push(&mut self, events: &[NewEvent]) {
        for body in events {
            let event = Event { seq: Seq::new(self.next_seq()).unwrap(), body: body.clone() };
            self.tail.apply(&event);
            let mut bytes = Vec::new();
            quipu::codec::event::encode(event.seq, body, &mut bytes);
            self.chains.push(quipu::codec::Chain(*self.chains.last().unwrap()).next(&bytes).0);
            self.log.push(event);
        }
    }

    fn close(&mut self) -> u64 {
        let closers: Vec<_> = closers_of(&self.tail).into_iter().map(|closer| closer.body).collect();
        self.push(&closers);
        self.durable = self.log.len();
        closers.len() as u64
    }

    /// The server is killed: what was not durable is gone.
    pub(crate) fn crash(&mut self) {
        self.log.truncate(self.durable);
        self.chains.truncate(self.durable + 1);
        // A turn's start forgets what was before it.
        let turn = self.log.iter().rposition(|event| &*event.body.kind == "turn/start").unwrap_or(0);
        self.tail = Tail::from_events(&self.log[turn..]);
        self.life += 1;
        self.owner.until = self.now + self.owner.ttl;
    }

    /// What a call does, and what it is told.
    fn effect(&mut self, process: u32, ask: &Ask, events: &[NewEvent]) -> Outcome {
        if let Some(refusal) = self.fenced(ask, events) {
            return Outcome::Refused(refusal, self.shown());
        }
        let mut repaired = 0;
        let (mut is_repetition, mut read, mut fork) = (false, None, None);
        match ask {
            Ask::Append { first_seq, is_durable, .. } => {
                if *first_seq < self.next_seq() {
                    is_repetition = self.has(*first_seq, events);
                    if !is_repetition {
                        return Outcome::Refused(Refusal::Conflict, self.shown());
                    }
                } else if *first_seq > self.next_seq() {
                    return Outcome::Refused(Refusal::Other, self.shown());
                } else {
                    self.push(events);
                    self.owner.until = self.now + self.owner.ttl;
                }
                if *is_durable {
                    self.durable = self.log.len();
                }
            }
            Ask::Prepare { ttl, take_over } => {
                let again = !self.owner.is_live && self.owner.holder == process;
                if self.owner.is_held && self.owner.until > self.now && !take_over && !again {
                    return Outcome::Refused(Refusal::Other, self.shown());
                }
                repaired = self.close();
                let (epoch, until) = (self.owner.epoch + 1, self.now + ttl);
                self.owner = Owner { epoch, holder: process, is_held: true, is_live: false, ttl: *ttl, until };
            }
            Ask::Publish { .. } => (self.owner.is_live, self.owner.until) = (true, self.now + self.owner.ttl),
            Ask::Release { .. } => {
                (self.owner.is_held, self.owner.is_live, self.durable) = (false, false, self.log.len());
            }
            Ask::Renew { ttl, .. } => {
                self.owner.ttl = ttl.unwrap_or(self.owner.ttl);
                self.owner.until = self.now + self.owner.ttl;
            }
            Ask::Flush { .. } => self.durable = self.log.len(),
            Ask::Repair { expected, .. } => {
                if *expected != self.mark().revision {
                    return Outcome::Refused(Refusal::Other, self.shown());
                }
                repaired = self.close();
            }
            Ask::Load => {
                if self.owner.is_held && !self.tail.is_balanced() {
                    return Outcome::Refused(Refusal::Other, self.shown());
                }
                repaired = self.close();
            }
            Ask::Read { from } => {
                let stored = self.log.get(*from as usize..self.durable).unwrap_or_default();
                read = Some(stored.iter().map(|event| digest(&event.body)).collect());
            }
            Ask::Fork { child, .. } => {
                if !self.tail.is_balanced() {
                    return Outcome::Refused(Refusal::Other, self.shown());
                }
                self.durable = self.log.len();
                fork = Some(Fork { seed_length: self.next_seq(), chain: self.mark().chain });
                let mut child_log = self.log.clone();
                child_log.push(Event { seq: Seq::new(self.next_seq()).unwrap(), body: marker() });
                let chain = *chains(&child_log).last().unwrap();
                self.children.push(Child { id: *child, found: Some(Log { events: child_log, chain }) });
            }
            Ask::Inspect | Ask::Get => {}
        }
        Outcome::Ok(Shown { repaired, events: read, fork, is_repetition, ..self.shown() })
    }

    fn has(&self, first_seq: u64, events: &[NewEvent]) -> bool {
        let stored = self.log.get(first_seq as usize..first_seq as usize + events.len());
        stored.is_some_and(|stored| stored.iter().zip(events).all(|(stored, event)| stored.body == *event))
    }

    fn fenced(&mut self, ask: &Ask, events: &[NewEvent]) -> Option<Refusal> {
        let owner = self.owner;
        match (ask, ask.epoch()) {
            (Ask::Append { first_seq, .. }, Some(epoch)) if epoch != owner.epoch || !owner.is_held => {
                let committed = self.has(*first_seq, events);
                self.durable = self.log.len();
                Some(Refusal::Fenced { committed: Some(committed) })
            }
            (_, Some(epoch)) if epoch != owner.epoch || !owner.is_held => Some(Refusal::Fenced { committed: None }),
            (Ask::Append { .. }, Some(_)) if !owner.is_live => Some(Refusal::Other),
            (Ask::Append { .. } | Ask::Repair { .. }, None) if owner.is_held => Some(Refusal::Other),
            _ => None,
        }
    }
}

pub(crate) fn marker() -> NewEvent {
    let data = "{}".to_owned().into();
    NewEvent {
        time_ms: 1,
        kind: "session/end-seed".into(),
        data,
        ignorable: false,
        surface_op: None,
        source_event_seqs: None,
    }
}

/// A call on its way.
struct Flight {
    ask: Ask,
    events: Vec<NewEvent>,
    invoked: Time,
    outcome: Option<Outcome>,
}

#[derive(Default)]
struct Process {
    flight: Option<Flight>,
    epoch: Option<u64>,
    /// What it sends again.
    in_doubt: Option<(Ask, Vec<NewEvent>)>,
}

/// A history of about so many calls by `processes`, with crashes.
pub(crate) fn draw(seed: u64, calls: usize, processes: u32) -> History {
    let mut random = Random(seed);
    let mut model = Model::new();
    let mut everybody: Vec<_> = (0..processes).map(|_| Process::default()).collect();
    let mut next = 0;
    while model.calls.len() < calls {
        model.now += 1 + random.below(3);
        if random.below(400) == 0 {
            lose(&mut model, &mut everybody);
            model.crash();
        }
        let number = random.below(u64::from(processes)) as u32;
        let process = &mut everybody[number as usize];
        let invoked = model.now;
        match &mut process.flight {
            None => {
                next += 1;
                let (ask, events) =
                    process.in_doubt.take().unwrap_or_else(|| choose(&model, process.epoch, next, &mut random));
                process.flight = Some(Flight { ask, events, invoked, outcome: None });
            }
            Some(flight) if flight.outcome.is_none() => {
                flight.outcome = Some(model.effect(number, &flight.ask, &flight.events));
            }
            Some(_) => {
                let flight = process.flight.take().unwrap();
                let outcome = flight.outcome.unwrap();
                match (&flight.ask, &outcome) {
                    (Ask::Prepare { .. }, Outcome::Ok(shown)) => process.epoch = shown.owner.map(|owner| owner.epoch),
                    (Ask::Release { .. }, _) if random.below(2) == 0 => process.epoch = None,
                    (_, Outcome::Refused(Refusal::Fenced { .. }, _)) if random.below(4) > 0 => process.epoch = None,
                    _ => {}
                }
                let (life, returned) = (model.life, invoked);
                model.calls.push(Call {
                    process: number,
                    life,
                    invoked: flight.invoked,
                    returned,
                    ask: flight.ask,
                    outcome,
                });
            }
        }
    }
    lose(&mut model, &mut everybody);
    model.history()
}

/// Nobody hears what became of the calls on their way.
fn lose(model: &mut Model, everybody: &mut [Process]) {
    for (number, process) in (0..).zip(everybody) {
        let Some(flight) = process.flight.take() else { continue };
        if matches!(flight.ask, Ask::Append { .. }) {
            process.in_doubt = Some((flight.ask.clone(), flight.events));
        }
        let (life, returned) = (model.life, 0);
        let (invoked, ask, outcome) = (flight.invoked, flight.ask, Outcome::Unknown);
        model.calls.push(Call { process: number, life, invoked, returned, ask, outcome });
    }
}

fn choose(model: &Model, epoch: Option<u64>, next: u64, random: &mut Random) -> (Ask, Vec<NewEvent>) {
    let plain = |ask| (ask, Vec::new());
    match random.below(20) {
        0..10 => {
            let count = 1 + random.below(3);
            let events = model.batch(next, count, random);
            let digests = events.iter().map(digest).collect();
            let (first_seq, is_durable) = (model.next_seq() + random.below(40) / 39, random.below(4) > 0);
            (Ask::Append { op: next, epoch, first_seq, events: digests, is_durable }, events)
        }
        10..12 => plain(Ask::Prepare { ttl: 1 + random.below(200), take_over: random.below(3) == 0 }),
        12 | 13 => plain(epoch.map_or(Ask::Load, |epoch| Ask::Publish { epoch })),
        14 => plain(epoch.map_or(Ask::Get, |epoch| Ask::Release { epoch })),
        15 => plain(epoch.map_or(Ask::Inspect, |epoch| Ask::Renew { epoch, ttl: Some(1 + random.below(200)) })),
        16 => plain(Ask::Flush { epoch: epoch.filter(|_| random.below(2) == 0) }),
        17 => plain(Ask::Read { from: random.below(model.next_seq() + 1).max(model.next_seq().saturating_sub(20)) }),
        18 => plain(Ask::Repair { expected: model.mark().revision, epoch }),
        // A child is a copy of the log here.
        _ if random.below(20) == 0 && model.next_seq() < 2000 => plain(Ask::Fork { child: next, epoch }),
        _ => plain(Ask::Load),
    }
}
