//! Racing hosts: eight of them, one session, and a server that is killed under them. What each of them was told is
//! recorded, and the checker holds it, and the log in the end, to the rules of a session.
//!
//! A round is one host's: it prepares the session (it may take it over), publishes, appends, pauses beyond its lease,
//! comes back and goes on as if nothing had happened, and leaves in one of several ways. Whoever does not get the
//! session looks at it, forks it, repairs it, or writes with an epoch that is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quipu::model::NewEvent;
use quipu::replay::Tail;
use quipu::rpc::client::Caller;
use quipu::rpc::client::{self, Client};
use quipu::rpc::pb;
use quipu::rpc::pb::owner_service_client::OwnerServiceClient;
use tokio::sync::watch;
use tonic::Status;
use tonic_types::StatusExt;

use crate::checker::{
    Ask, Call, Child, Digest, Fork, History, Log, Mark, Outcome, Owned, Refusal, Shown, Time, check, digest, draft,
};
use crate::support::process::Process;
use crate::support::{Calls, Random, all_of, refusal, run_long, setting};

const HOSTS: u32 = 8;
const ID: &str = "s";
/// What a race may be answered; anything else is a failed test.
const REFUSALS: [&str; 11] = [
    "FENCED",
    "OWNER_REQUIRED",
    "LEASE_HELD",
    "SESSION_LIVE",
    "NOT_PUBLISHED",
    "TURN_OPEN",
    "SEQ_CONFLICT",
    "SEQ_GAP",
    "REVISION_CONFLICT",
    "FORK_BOUNDARY",
    "SESSION_EXISTS",
];

/// What all hosts share.
struct Race {
    start: Instant,
    /// Life and address of the server.
    server: watch::Receiver<(u32, String)>,
    rounds: u64,
    begun: AtomicU64,
    next_op: AtomicU64,
    children: Mutex<Vec<u64>>,
}

impl Race {
    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as u64
    }
}

/// A batch, to be sent until something definite is known.
struct Batch {
    op: u64,
    first_seq: u64,
    epoch: Option<u64>,
    is_durable: bool,
    events: Vec<NewEvent>,
}

/// What a host heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Ok,
    Refused,
    Nothing,
}

struct HostOf {
    race: Arc<Race>,
    number: u32,
    random: Random,
    client: Client,
    life: u32,
    calls: Vec<Call>,
    /// The last epoch it had.
    epoch: Option<u64>,
    /// Where it believes the log to end, and what is open there.
    next_seq: u64,
    tail: Tail,
}

fn owned(owner: &pb::Owner) -> Owned {
    let holder = owner.holder.strip_prefix('h').and_then(|number| number.parse().ok()).unwrap_or(u32::MAX);
    Owned { epoch: owner.epoch, holder }
}

fn mark_of(head: &pb::Head) -> Mark {
    Mark {
        next_seq: head.next_seq,
        durable_next_seq: head.durable_next_seq,
        revision: head.revision[..].try_into().unwrap(),
        chain: head.chain[..].try_into().unwrap(),
    }
}

fn shown(head: Option<pb::Head>) -> Shown {
    let head = head.expect("every answer has a head");
    Shown { mark: Some(mark_of(&head)), owner: head.owner.as_ref().map(owned), ..Shown::default() }
}

/// What a status says of the outcome.
fn outcome_of(status: Status) -> Outcome {
    let Some(reason) = status.get_error_details().error_info().map(|info| info.reason.clone()) else {
        return Outcome::Unknown;
    };
    assert!(REFUSALS.contains(&reason.as_str()), "{status:?}");
    let refused = refusal(status);
    let mut shown = Shown::default();
    let kind = match reason.as_str() {
        "FENCED" => {
            let detail = refused.fenced();
            shown.owner = detail.owner.as_ref().map(owned);
            Refusal::Fenced { committed: detail.committed }
        }
        "SEQ_CONFLICT" | "SEQ_GAP" | "REVISION_CONFLICT" => {
            shown.mark = refused.conflict().head.as_ref().map(mark_of);
            if reason == "SEQ_CONFLICT" { Refusal::Conflict } else { Refusal::Other }
        }
        "FORK_BOUNDARY" | "SESSION_EXISTS" => Refusal::Other,
        _ => {
            shown.owner = Some(owned(&refused.owner()));
            Refusal::Other
        }
    };
    Outcome::Refused(kind, shown)
}

/// What an answer, or its absence, says.
fn outcome<T>(result: &Result<T, Status>, answer: impl FnOnce(&T) -> Shown) -> Outcome {
    match result {
        Ok(answered) => Outcome::Ok(answer(answered)),
        Err(status) => outcome_of(status.clone()),
    }
}

fn appended(answer: &pb::AppendResponse) -> Shown {
    Shown { is_repetition: answer.deduplicated, ..shown(answer.head.clone()) }
}

fn prepared_by(start: &pb::PrepareStart) -> Shown {
    let shown = shown(start.session.clone().unwrap().head);
    assert_eq!(shown.owner.unwrap().epoch, start.epoch);
    Shown { repaired: start.repaired, ..shown }
}

/// Prepares, and takes the first frame of the stream when it is over.
async fn start_of(
    mut owners: OwnerServiceClient<Caller>,
    request: pb::PrepareRequest,
) -> Result<pb::PrepareStart, Status> {
    let mut stream = owners.prepare(request).await?.into_inner();
    let mut start = None;
    while let Some(frame) = stream.message().await? {
        if let Some(pb::prepare_response::Frame::Start(found)) = frame.frame {
            start = Some(found);
        }
    }
    Ok(start.expect("a stream begins with its start"))
}

impl Batch {
    fn call(&self) -> (Ask, pb::AppendRequest) {
        let level = if self.is_durable { pb::AckLevel::Durable } else { pb::AckLevel::Accepted };
        let request = pb::AppendRequest {
            session_id: ID.to_owned(),
            first_seq: Some(self.first_seq),
            events: self.events.iter().cloned().map(client::new_event).collect(),
            ack_level: Some(level.into()),
            epoch: self.epoch,
            ..Default::default()
        };
        let events: Vec<Digest> = self.events.iter().map(digest).collect();
        let (op, epoch, first_seq, is_durable) = (self.op, self.epoch, self.first_seq, self.is_durable);
        (Ask::Append { op, epoch, first_seq, events, is_durable }, request)
    }
}

impl HostOf {
    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// Makes a call and writes down what became of it. Now and then it is given up before it is answered.
    async fn call<T>(
        &mut self,
        ask: Ask,
        call: impl Future<Output = Result<T, Status>>,
        answer: impl FnOnce(&T) -> Shown,
    ) -> (Heard, Option<T>) {
        let patience = if self.below(60) == 0 { self.below(2000) } else { 60_000_000 };
        let invoked = self.race.now();
        let result = tokio::time::timeout(Duration::from_micros(patience), call).await;
        let returned = self.race.now();
        // Whoever gives up does not know.
        let (outcome, answered) = match result {
            Err(_) => (Outcome::Unknown, None),
            Ok(result) => (outcome(&result, answer), result.ok()),
        };
        let heard = match outcome {
            Outcome::Ok(_) => Heard::Ok,
            Outcome::Refused(..) => Heard::Refused,
            Outcome::Unknown => Heard::Nothing,
        };
        self.record(ask, (invoked, returned), outcome);
        if heard == Heard::Nothing {
            (self.life, self.client) = connect(&mut self.race.server.clone()).await;
        }
        (heard, answered)
    }

    fn claim(&self, ttl_ms: u64, take_over: bool) -> pb::PrepareRequest {
        let reason = format!("host {} wants it", self.number);
        pb::PrepareRequest {
            session_id: ID.to_owned(),
            holder: format!("h{}", self.number),
            ttl_ms: Some(ttl_ms),
            take_over: take_over.then_some(pb::TakeOverClaim { reason }),
            ..Default::default()
        }
    }

    fn record(&mut self, ask: Ask, (invoked, returned): (Time, Time), outcome: Outcome) {
        self.calls.push(Call { process: self.number, life: self.life, invoked, returned, ask, outcome });
    }

    async fn prepare(&mut self, ttl_ms: u64, take_over: bool) -> bool {
        let ask = Ask::Prepare { ttl: ttl_ms * 1_000_000, take_over };
        let call = start_of(self.client.owners.clone(), self.claim(ttl_ms, take_over));
        let (_, start) = self.call(ask, call, prepared_by).await;
        let Some(start) = start else { return false };
        self.begin(&start);
        true
    }

    /// It has the session, whose log is balanced.
    fn begin(&mut self, start: &pb::PrepareStart) {
        self.epoch = Some(start.epoch);
        self.next_seq = start.session.as_ref().unwrap().head.as_ref().unwrap().next_seq;
        self.tail = Tail::default();
    }

    async fn publish(&mut self, epoch: u64) -> Heard {
        let request = pb::PublishRequest { session_id: ID.to_owned(), epoch, ..Default::default() };
        let mut owners = self.client.owners.clone();
        let call = async move { owners.publish(request).await };
        self.call(Ask::Publish { epoch }, call, |answer| shown(answer.get_ref().head.clone())).await.0
    }

    async fn release(&mut self, epoch: u64) -> Heard {
        let request = pb::ReleaseRequest { session_id: ID.to_owned(), epoch, ..Default::default() };
        let mut owners = self.client.owners.clone();
        let call = async move { owners.release(request).await };
        self.call(Ask::Release { epoch }, call, |answer| shown(answer.get_ref().head.clone())).await.0
    }

    async fn renew(&mut self, epoch: u64) -> Heard {
        let ttl_ms = (self.below(2) == 0).then_some(1 + self.random.below(4));
        let request = pb::RenewRequest { session_id: ID.to_owned(), epoch, ttl_ms, ..Default::default() };
        let ask = Ask::Renew { epoch, ttl: ttl_ms.map(|ttl_ms| ttl_ms * 1_000_000) };
        let mut owners = self.client.owners.clone();
        let call = async move { owners.renew(request).await };
        self.call(ask, call, |answer| shown(answer.get_ref().head.clone())).await.0
    }

    async fn flush(&mut self, epoch: Option<u64>) -> Heard {
        let request = pb::FlushRequest { session_id: ID.to_owned(), epoch, ..Default::default() };
        let mut log = self.client.log.clone();
        let call = async move { log.flush(request).await };
        self.call(Ask::Flush { epoch }, call, |answer| shown(answer.get_ref().head.clone())).await.0
    }

    /// A batch that fits to what the host believes.
    fn batch(&mut self, epoch: Option<u64>) -> Batch {
        let op = self.race.next_op.fetch_add(1, Ordering::Relaxed);
        let count = 1 + self.below(3);
        let is_durable = self.below(4) > 0;
        let random = &mut self.random;
        let mut tail = self.tail.clone();
        let events = draft::events((&mut tail, self.next_seq), (&op.to_string(), count), &mut |n| random.below(n));
        Batch { op, first_seq: self.next_seq, epoch, is_durable, events }
    }

    /// Sends a batch until something definite is known, and believes what it hears.
    async fn append(&mut self, batch: &Batch) -> Heard {
        loop {
            let heard = self.attempt(batch).await;
            match heard {
                Heard::Nothing => {}
                Heard::Refused => return heard,
                Heard::Ok => {
                    for (seq, body) in (batch.first_seq..).zip(&batch.events) {
                        let seq = quipu::model::Seq::new(seq).unwrap();
                        self.tail.apply(&quipu::model::Event { seq, body: body.clone() });
                    }
                    self.next_seq = batch.first_seq + batch.events.len() as u64;
                    return heard;
                }
            }
        }
    }

    async fn attempt(&mut self, batch: &Batch) -> Heard {
        let (ask, request) = batch.call();
        let mut log = self.client.log.clone();
        let call = async move { log.append(request).await.map(tonic::Response::into_inner) };
        self.call(ask, call, appended).await.0
    }

    /// As if another process of this host took the session while batches of the old one are on their way: the log is
    /// balanced, so that nothing but the epoch is between them.
    async fn overtake_itself(&mut self, epoch: u64) {
        let batches = [0, 1, 2, 3].map(|ahead| {
            let op = self.race.next_op.fetch_add(1, Ordering::Relaxed);
            let events = vec![draft::note(&op.to_string())];
            Batch { op, first_seq: self.next_seq + ahead, epoch: Some(epoch), is_durable: true, events }
        });
        let race = self.race.clone();
        let append = async |batch: &Batch| {
            let (ask, request) = batch.call();
            let mut log = self.client.log.clone();
            let invoked = race.now();
            (ask, invoked, log.append(request).await, race.now())
        };
        let (take_over, ask) = (self.claim(5, true), Ask::Prepare { ttl: 5_000_000, take_over: true });
        let prepare = async {
            let invoked = race.now();
            (invoked, start_of(self.client.owners.clone(), take_over).await, race.now())
        };
        let [one, two, three, four] = &batches;
        let (one, two, (invoked, prepared, returned), three, four) =
            tokio::join!(append(one), append(two), prepare, append(three), append(four));
        for (ask, invoked, result, returned) in [one, two, three, four] {
            let result = result.map(tonic::Response::into_inner);
            self.record(ask, (invoked, returned), outcome(&result, appended));
        }
        self.record(ask, (invoked, returned), outcome(&prepared, prepared_by));
        if let Ok(start) = prepared {
            self.begin(&start);
        }
    }

    async fn get(&mut self) -> Option<pb::Head> {
        let mut client = self.client.clone();
        let call = async move { client.get(ID).await };
        let (_, session) = self.call(Ask::Get, call, |session| shown(session.head.clone())).await;
        session.and_then(|session| session.head)
    }

    async fn repair(&mut self, epoch: Option<u64>) -> Heard {
        let Some(head) = self.get().await else { return Heard::Nothing };
        let request = pb::CommitRepairRequest {
            session_id: ID.to_owned(),
            expected_revision: head.revision.clone(),
            epoch,
            ..Default::default()
        };
        let ask = Ask::Repair { expected: head.revision[..].try_into().unwrap(), epoch };
        let mut faces = self.client.faces.clone();
        let call = async move { faces.commit_repair(request).await };
        let (heard, answer) = self
            .call(ask, call, |answer| {
                let answer = answer.get_ref();
                let repaired = if answer.committed { answer.closers.len() as u64 } else { 0 };
                Shown { repaired, ..shown(answer.head.clone()) }
            })
            .await;
        if let Some(answer) = answer {
            self.next_seq = answer.get_ref().head.as_ref().unwrap().next_seq;
            self.tail = Tail::default();
        }
        heard
    }

    /// Loads, and believes that nobody owns what could be loaded.
    async fn load(&mut self) -> Heard {
        let request = pb::LoadRequest { session_id: ID.to_owned(), ..Default::default() };
        let mut faces = self.client.faces.clone();
        let call = async move {
            let mut stream = faces.load(request).await?.into_inner();
            let mut start = None;
            while let Some(frame) = stream.message().await? {
                if let Some(pb::load_response::Frame::Start(found)) = frame.frame {
                    start = Some(found);
                }
            }
            Ok(start.expect("a stream begins with its start"))
        };
        let (heard, start) = self
            .call(Ask::Load, call, |start: &pb::LoadStart| Shown {
                repaired: start.repaired,
                ..shown(start.session.clone().unwrap().head)
            })
            .await;
        if let Some(start) = start {
            self.next_seq = start.session.unwrap().head.unwrap().next_seq;
            self.tail = Tail::default();
        }
        heard
    }

    async fn inspect(&mut self) {
        let request = pb::InspectRequest { session_id: ID.to_owned(), ..Default::default() };
        let mut faces = self.client.faces.clone();
        let call = async move {
            let mut stream = faces.inspect(request).await?.into_inner();
            let mut start = None;
            while let Some(frame) = stream.message().await? {
                if let Some(pb::inspect_response::Frame::Start(found)) = frame.frame {
                    start = Some(found);
                }
            }
            Ok(start.expect("a stream begins with its start"))
        };
        self.call(Ask::Inspect, call, |start: &pb::InspectStart| shown(start.session.clone().unwrap().head)).await;
    }

    async fn read(&mut self) {
        let from = self.next_seq.saturating_sub(self.random.below(30));
        let request = pb::ReadFromRequest { from_seq: from, ..all_of(ID) };
        let mut client = self.client.clone();
        let call = async move {
            let mut read = client.read(request).await?;
            read.refusal.take().map_or(Ok(read), Err)
        };
        self.call(Ask::Read { from }, call, |read| {
            let events = read.events().into_iter().map(|event| digest(&client::event(event).unwrap().body)).collect();
            let head = read.start.session.clone().unwrap().head;
            // What an empty read says is where the log ends.
            Shown { events: (!read.frames.is_empty()).then_some(events), ..shown(head) }
        })
        .await;
    }

    async fn fork(&mut self) {
        let child = self.race.next_op.fetch_add(1, Ordering::Relaxed);
        self.race.children.lock().unwrap().push(child);
        let boundary = if self.below(2) == 0 { pb::Boundary::Head } else { pb::Boundary::LastTurn };
        let epoch = self.epoch.filter(|_| self.random.below(2) == 0);
        let request = pb::ForkRequest {
            session_id: ID.to_owned(),
            child_id: Some(child_id(child)),
            boundary: Some(boundary.into()),
            epoch,
            ..Default::default()
        };
        let mut forks = self.client.forks.clone();
        let call = async move { forks.fork(request).await };
        self.call(Ask::Fork { child, epoch }, call, |answer| {
            let answer = answer.get_ref();
            let chain = answer.chain_at_boundary[..].try_into().unwrap();
            Shown { fork: Some(Fork { seed_length: answer.seed_length, chain }), ..Shown::default() }
        })
        .await;
    }

    /// Somebody else has the session.
    async fn look_on(&mut self) {
        match self.below(10) {
            0 | 1 => self.inspect().await,
            2 | 3 => self.read().await,
            4 if self.below(8) == 0 => self.fork().await,
            5 => drop(self.repair(None).await),
            6 => drop(self.flush(None).await),
            7 => {
                // It writes as nobody, if it may.
                if self.load().await == Heard::Ok {
                    let batch = self.batch(None);
                    self.append(&batch).await;
                }
            }
            8 => {
                // It never noticed that its epoch is over.
                if let (Some(epoch), Some(head)) = (self.epoch, self.get().await) {
                    (self.next_seq, self.tail) = (head.next_seq, Tail::default());
                    let batch = self.batch(Some(epoch));
                    self.append(&batch).await;
                }
            }
            _ => drop(self.get().await),
        }
    }

    async fn round(&mut self) {
        // Most leases are over before their owner gets anything done, some are not.
        let ttl_ms = if self.below(3) == 0 { 40 + self.below(40) } else { 1 + self.below(6) };
        loop {
            let take_over = self.below(50) == 0;
            if self.prepare(ttl_ms, take_over).await {
                break;
            }
            self.look_on().await;
            // So that an owner gets something done.
            tokio::time::sleep(Duration::from_micros(self.below(6000))).await;
        }
        let epoch = self.epoch.unwrap();
        if self.below(12) == 0 || self.publish(epoch).await != Heard::Ok {
            return;
        }
        if self.below(3) == 0 {
            self.overtake_itself(epoch).await;
            return;
        }
        for _ in 0..1 + self.below(3) {
            for _ in 0..1 + self.below(4) {
                let batch = self.batch(Some(epoch));
                if self.append(&batch).await != Heard::Ok {
                    return;
                }
            }
            match self.below(12) {
                0 => drop(self.repair(Some(epoch)).await),
                1 => drop(self.flush(Some(epoch)).await),
                2 => drop(self.renew(epoch).await),
                3 => self.read().await,
                _ => {}
            }
            // The pause of a host that was stopped: beyond its lease, or not quite.
            if self.below(3) == 0 {
                tokio::time::sleep(Duration::from_micros(self.below(2000 * ttl_ms))).await;
            }
        }
        if self.below(3) == 0 {
            self.release(epoch).await;
            if self.below(3) == 0 {
                let batch = self.batch(Some(epoch));
                self.append(&batch).await;
            }
        }
    }

    async fn run(mut self) -> Self {
        while self.race.begun.fetch_add(1, Ordering::Relaxed) < self.race.rounds {
            self.round().await;
        }
        self
    }
}

fn child_id(child: u64) -> String {
    format!("child-{child}")
}

/// Connects to the server that runs, or to the next one.
async fn connect(server: &mut watch::Receiver<(u32, String)>) -> (u32, Client) {
    loop {
        let (life, address) = server.borrow_and_update().clone();
        if let Ok(client) = Client::connect(&address).await {
            return (life, client);
        }
        server.changed().await.expect("the test ended");
    }
}

async fn log_of(client: &mut Client, id: &str) -> Option<Log> {
    let head = client.get(id).await.ok()?.head.unwrap();
    let read = client.read(all_of(id)).await.unwrap();
    assert!(read.refusal.is_none(), "{:?}", read.refusal);
    let events = read.events().into_iter().map(|event| client::event(event).unwrap()).collect();
    Some(Log { events, chain: head.chain[..].try_into().unwrap() })
}

/// Lets hosts race, kills the server between, and gives what they saw and what is there in the end.
async fn race(rounds: u64, kills: u64) -> (History, Vec<pb::TakeOver>) {
    let mut random = Random::new("QUIPU_RACE_SEED");
    let dir = tempfile::tempdir().unwrap();
    let small = ["--segment-bytes", "24MiB", "--spare-segments", "1", "--reserve-bytes", "0", "--serving-loops"];
    let start = |random: &mut Random| {
        let loops = (1 + random.below(2)).to_string();
        Process::start(dir.path(), &[&small[..], &[&loops]].concat())
    };
    let mut server = start(&mut random);
    let header = pb::Header { id: ID.to_owned(), ..Default::default() };
    let create = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
    server.client().await.sessions.create_session(create).await.unwrap();
    let (tell, told) = watch::channel((0, server.address.clone()));
    let race = Arc::new(Race {
        start: Instant::now(),
        server: told.clone(),
        rounds,
        begun: AtomicU64::new(0),
        next_op: AtomicU64::new(0),
        children: Mutex::default(),
    });
    let mut racing = tokio::task::JoinSet::new();
    for number in 0..HOSTS {
        let (life, client) = connect(&mut told.clone()).await;
        let (race, random) = (race.clone(), Random::seeded(random.next()));
        let (calls, tail) = (Vec::new(), Tail::default());
        racing.spawn(HostOf { race, number, random, client, life, calls, epoch: None, next_seq: 0, tail }.run());
    }
    let mut finished = Vec::new();
    for life in 1..=kills {
        // So that the kills are spread over the rounds.
        while race.begun.load(Ordering::Relaxed) < rounds * life / (kills + 1) {
            // A host that failed ends the test.
            finished.extend(racing.try_join_next().map(Result::unwrap));
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        tokio::time::sleep(Duration::from_micros(random.below(3000))).await;
        server.kill();
        server = start(&mut random);
        tell.send((life as u32, server.address.clone())).unwrap();
    }
    let mut calls: Vec<Call> =
        finished.into_iter().chain(racing.join_all().await).flat_map(|host: HostOf| host.calls).collect();
    server.kill();
    let server = start(&mut random);
    let mut client = server.client().await;
    let log = log_of(&mut client, ID).await.unwrap();
    let mut children = Vec::new();
    let ids = std::mem::take(&mut *race.children.lock().unwrap());
    for id in ids {
        children.push(Child { id, found: log_of(&mut client, &child_id(id)).await });
    }
    let take_overs = client.get(ID).await.unwrap().take_overs;
    calls.sort_by_key(|call| call.invoked);
    server.end();
    (History { calls, log, children }, take_overs)
}

#[test]
fn eight_racing_hosts_and_a_killed_server_keep_the_rules_of_a_session() {
    run_long(async {
        let rounds = setting("QUIPU_RACE_ROUNDS", 400);
        let kills = setting("QUIPU_RACE_KILLS", 6);
        let began = Instant::now();
        let (history, take_overs) = race(rounds, kills).await;
        println!("{rounds} rounds, {kills} kills, {} calls in {:?}", history.calls.len(), began.elapsed());
        let seen = check(&history).unwrap_or_else(|violations| {
            panic!("{} violations: {violations:#?}", violations.len());
        });
        println!("{seen:?} in {} events", history.log.events.len());
        // A race in which nothing happened shows nothing.
        let enough = [seen.appends, seen.fenced, seen.epochs, seen.repairs, seen.reads, seen.accepted];
        assert!(enough.iter().all(|count| *count as u64 > rounds / 20), "{seen:?}");
        assert!(seen.unknown as u64 >= kills && seen.forks > 0, "{seen:?}");
        // The record of the session names who took it, and why.
        assert!(!take_overs.is_empty());
        for found in take_overs {
            let holder: u32 = found.holder.strip_prefix('h').unwrap().parse().unwrap();
            assert_eq!(found.reason, format!("host {holder} wants it"));
            let is_it = |call: &&Call| {
                let granted = call.shown().and_then(|shown| shown.owner).is_none_or(|owner| owner.epoch == found.epoch);
                call.process == holder && matches!(call.ask, Ask::Prepare { take_over: true, .. }) && granted
            };
            assert!(history.calls.iter().any(|call| is_it(&call)), "nobody asked for {found:?}");
        }
    });
}
