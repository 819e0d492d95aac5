//! A corpus made from the recorded sessions, repeated and varied, and what a store makes of it: size, speed, memory.
//!
//! The stream of every model call is replaced by as many new words as the seed says, and the message that repeats it
//! follows; ids are new each time. Small by default; QUIPU_CORPUS_EVENTS=2500000 with an optimised build measures.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu::codec::{Chain, change::Birth, event};
use quipu::model::{Event, Header, NewEvent, Profile, Seq, SessionKey};
use quipu::portable::dsh::{WriteOptions, Writer};
use quipu::store::local::{LocalStore, Options};
use quipu::store::{Change, LogId, Run, Store, new_incarnation};

use crate::support::{Random, setting};

/// Sessions that are written at the same time.
const LIVE: usize = 64;

struct Corpus {
    samples: Vec<Vec<NewEvent>>,
    words: Vec<String>,
}

/// What a delta says, and what stands before it; `None` for anything else.
fn delta(event: &NewEvent) -> Option<(&str, &str)> {
    let data = std::str::from_utf8(&event.data).ok()?;
    let is_text = data.contains(r#""type":"text-delta""#) || data.contains(r#""type":"reasoning-delta""#);
    let (head, rest) = data.split_once(r#","text":""#).filter(|_| is_text && &*event.kind == "assistant/chunk")?;
    Some((head, rest.strip_suffix(r#""}}"#)?))
}

impl Corpus {
    fn new() -> Self {
        let samples: Vec<Vec<NewEvent>> = crate::samples::samples()
            .iter()
            .map(|path| crate::samples::events(path).into_iter().map(|event| event.body).collect())
            .collect();
        let text: String =
            samples.iter().flatten().map(|event| String::from_utf8_lossy(&event.data).into_owned()).collect();
        let words = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 2).map(str::to_owned);
        let words: std::collections::BTreeSet<String> = words.collect();
        Self { samples, words: words.into_iter().collect() }
    }

    /// One recorded session, varied.
    fn cycle(&self, random: &mut Random, time_ms: &mut i64) -> Vec<NewEvent> {
        let sample = &self.samples[random.below(self.samples.len() as u64) as usize];
        let (mut out, mut swaps, mut at) = (Vec::new(), Vec::new(), 0);
        while let Some(event) = sample.get(at) {
            if let Some((head, _)) = delta(event) {
                let stream = sample[at..].iter().map_while(|event| delta(event).filter(|(other, _)| *other == head));
                let old: Vec<&str> = stream.map(|(_, text)| text).collect();
                at += old.len();
                let mut new = String::new();
                for _ in 0..40 + random.below(120) {
                    let word = format!(" {}", self.words[random.below(self.words.len() as u64) as usize]);
                    *time_ms += random.below(60) as i64;
                    let data = format!(r#"{head},"text":"{word}"}}}}"#);
                    out.push(NewEvent { time_ms: *time_ms, data: data.into(), ..event.clone() });
                    new.push_str(&word);
                }
                swaps.push((old.concat(), new));
                continue;
            }
            *time_ms += random.below(20) as i64;
            let mut data = String::from_utf8(event.data.to_vec()).unwrap();
            for (old, new) in swaps.iter().filter(|(old, _)| old.len() > 8) {
                data = data.replace(old, new);
            }
            out.push(NewEvent { time_ms: *time_ms, data: renamed(&data, random).into(), ..event.clone() });
            at += 1;
        }
        out
    }
}

/// The data with another id wherever one stands.
fn renamed(data: &str, random: &mut Random) -> String {
    let is_id = |text: &str| {
        text.len() == 36
            && text.bytes().enumerate().all(|(n, byte)| match n {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            })
    };
    let part = |part: &str, random: &mut Random| {
        if !is_id(part) {
            return part.to_owned();
        }
        let hex = format!("{:016x}{:016x}", random.next(), random.next());
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    };
    data.split('"').map(|text| part(text, random)).collect::<Vec<_>>().join("\"")
}

/// One session that is being written.
struct Live {
    log: LogId,
    next_seq: Seq,
    chain: Chain,
    time_ms: i64,
    ahead: std::collections::VecDeque<NewEvent>,
    left: u64,
}

fn begin(store: &dyn Store, n: u64, left: u64) -> (Live, Change) {
    let key = SessionKey::new("default", &format!("session-{n}")).unwrap();
    let header = Header { created_at_ms: 1_700_000_000_000 + n, cwd: Some("/work".to_owned()), ..Header::default() };
    let birth = Birth { key, incarnation: new_incarnation(), profile: Profile::Raw, header };
    let log = store.allot();
    let time_ms = 1_700_000_000_000 + n as i64 * 1000;
    let live = Live { log, next_seq: Seq::ZERO, chain: Chain::START, time_ms, ahead: Default::default(), left };
    (live, Change::Create { log, birth: Arc::new(birth) })
}

impl Live {
    fn append(&mut self, events: impl Iterator<Item = NewEvent>, mut keep: impl FnMut(Event)) -> Change {
        let (first_seq, link, mut bytes, mut count) = (self.next_seq, self.chain.link(), Vec::new(), 0);
        for body in events {
            let start = bytes.len();
            event::encode(self.next_seq, &body, &mut bytes);
            self.chain = self.chain.next(&bytes[start..]);
            keep(Event { seq: self.next_seq, body });
            self.next_seq = self.next_seq.advance(1).unwrap();
            count += 1;
        }
        let run = Run { first_seq, count, link, chain: self.chain, events: bytes.into() };
        Change::Append { log: self.log, run }
    }
}

#[derive(Debug, Default)]
struct Loaded {
    events: u64,
    canonical_bytes: u64,
    logs: Vec<(LogId, Seq, Chain)>,
    /// Time in commits.
    time: Duration,
}

/// Writes a corpus through the port, `LIVE` sessions at a time, up to eight events an append.
fn load(store: &dyn Store, events: u64, corpus: &Corpus, mut keep: impl FnMut(LogId, Event)) -> Loaded {
    let mut random = Random::seeded(5);
    let (mut loaded, mut made, mut live) = (Loaded::default(), 0, Vec::new());
    let mut time_ms = 1;
    while loaded.events < events || !live.is_empty() {
        let mut changes = Vec::new();
        while live.len() < LIVE && loaded.events < events {
            made += 1;
            let (session, create) = begin(store, made, 500 + random.below(4000));
            live.push(session);
            changes.push(create);
        }
        for session in &mut live {
            if session.ahead.is_empty() {
                let mut time = session.time_ms;
                session.ahead.extend(corpus.cycle(&mut random, &mut time));
                session.time_ms = time;
            }
            let count = (1 + random.below(8) as usize).min(session.ahead.len());
            session.left = session.left.saturating_sub(count as u64);
            loaded.events += count as u64;
            let (log, events): (_, Vec<_>) = (session.log, session.ahead.drain(..count).collect());
            let change = session.append(events.into_iter(), |event| keep(log, event));
            if let Change::Append { run, .. } = &change {
                loaded.canonical_bytes += run.events.len() as u64;
            }
            changes.push(change);
        }
        time_ms += 1;
        let started = Instant::now();
        store.commit(&changes, time_ms).unwrap();
        loaded.time += started.elapsed();
        let loaded_all = loaded.events >= events;
        loaded.logs.extend(live.iter().filter(|s| s.left == 0 || loaded_all).map(|s| (s.log, s.next_seq, s.chain)));
        live.retain(|session| session.left > 0 && loaded.events < events);
    }
    loaded
}

/// Reads a whole log; gives the events, and fails unless the chain is the one that was written.
fn read(store: &dyn Store, log: LogId, end: Seq, chain: Chain) -> u64 {
    let (mut next, mut last, mut decoder) = (Seq::ZERO, Chain::START, event::Decoder::default());
    let mut count = 0;
    while next < end {
        for run in store.read(log, next, 1 << 20).unwrap() {
            let mut events = Vec::new();
            run.decode_into(&mut decoder, &mut events).unwrap();
            count += events.len() as u64;
            (next, last) = (run.next_seq(), run.chain);
        }
    }
    assert_eq!(last, chain);
    count
}

fn read_rate(store: &dyn Store, loaded: &Loaded) -> f64 {
    let started = Instant::now();
    let logs = loaded.logs.iter().take(400);
    let events: u64 = logs.map(|(log, end, chain)| read(store, *log, *end, *chain)).sum();
    events as f64 / started.elapsed().as_secs_f64()
}

fn tail_p50(store: &dyn Store, loaded: &Loaded) -> Duration {
    let mut times: Vec<_> = loaded
        .logs
        .iter()
        .take(1000)
        .map(|(log, end, _)| {
            let started = Instant::now();
            let runs = store.read(*log, Seq::new(end.get().saturating_sub(50)).unwrap(), 64 << 10).unwrap();
            assert!(runs.iter().all(|run| run.decode().is_ok()));
            started.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn bytes_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| if entry.path().is_dir() { bytes_of(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

/// Memory of this process in MiB: now and at its highest.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() >> 10
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Counts what a zstd stream makes of the bytes.
struct Counter(u64);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// All sessions, one after the other, as packed lines in one stream of `zstd -3`.
fn reference_bytes(store: &dyn Store, loaded: &Loaded) -> (u64, u64) {
    let encoder = zstd::Encoder::new(Counter(0), 3).unwrap();
    let mut out = (encoder, 0_u64);
    struct Both<'a>(&'a mut (zstd::Encoder<'static, Counter>, u64));
    impl std::io::Write for Both<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.1 += bytes.len() as u64;
            std::io::Write::write_all(&mut self.0.0, bytes).map(|()| bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let options = WriteOptions { is_compressed: false, is_packed: true };
    for (n, (log, end, _)) in loaded.logs.iter().enumerate() {
        let id = quipu::model::SessionId::new(&format!("session-{n}")).unwrap();
        let mut writer = Writer::begin(Both(&mut out), &id, &Header::default(), options).unwrap();
        let mut next = Seq::ZERO;
        while next < *end {
            for run in store.read(*log, next, 1 << 20).unwrap() {
                next = run.next_seq();
                run.decode().unwrap().into_iter().for_each(|event| writer.push(event).unwrap());
            }
        }
        writer.finish().unwrap();
    }
    let packed = out.1;
    (packed, out.0.finish().unwrap().0)
}

fn options(seal: bool) -> Options {
    Options { seal, ..Options::default() }
}

#[test]
fn a_sealed_corpus_is_not_larger_than_the_packed_reference_in_one_zstd_stream() {
    let events = setting("QUIPU_CORPUS_EVENTS", 300_000);
    let corpus = Corpus::new();
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), options(false)).unwrap();
    let mut written: std::collections::HashMap<LogId, Vec<Event>> = Default::default();
    let is_small = events <= 400_000;
    let loaded = load(&store, events, &corpus, |log, event| {
        if is_small {
            written.entry(log).or_default().push(event);
        }
    });
    let rate = loaded.events as f64 / loaded.time.as_secs_f64();
    println!(
        "{} events, {} canonical bytes, {} sessions, {rate:.0} events/s without sealing",
        loaded.events,
        loaded.canonical_bytes,
        loaded.logs.len()
    );
    println!("journal: {:.0} events/s read, tail of 50 in {:?}", read_rate(&store, &loaded), tail_p50(&store, &loaded));
    let started = Instant::now();
    store.seal().unwrap();
    println!("sealed in {:?}: {:?}, memory {:?} MiB", started.elapsed(), store.sealing(), memory());
    println!("sealed: {:.0} events/s read, tail of 50 in {:?}", read_rate(&store, &loaded), tail_p50(&store, &loaded));
    for (log, events) in written {
        let runs = store.read(log, Seq::ZERO, usize::MAX).unwrap();
        let found: Vec<Event> = runs.iter().flat_map(|run| run.decode().unwrap()).collect();
        assert_eq!(found, events[..found.len()]);
    }
    let sealed = store.sealing().sealed_bytes;
    let (packed, reference) = reference_bytes(&store, &loaded);
    store.close();
    drop(store);
    let index = bytes_of(&dir.path().join("index"));
    println!("sealed {sealed} bytes, index {index}; packed JSONL {packed}, in one zstd -3 stream {reference}");
    assert!(sealed <= reference, "{sealed} of {reference}");
    let started = Instant::now();
    let store = LocalStore::open(dir.path(), options(false)).unwrap();
    println!("opened in {:?}", started.elapsed());
    drop(store);
    std::fs::remove_dir_all(dir.path().join("index")).unwrap();
    let started = Instant::now();
    let store = LocalStore::open(dir.path(), options(false)).unwrap();
    println!("opened without an index in {:?}, index {} bytes", started.elapsed(), bytes_of(&dir.path().join("index")));
    assert!(store.recovery().rebuilt.is_some());
    let (log, end, chain) = loaded.logs[0];
    read(&store, log, end, chain);
    drop(store);
}

/// For numbers only: the same load without and with sealing, in turns.
#[test]
#[ignore = "measures; run with an optimised build and QUIPU_CORPUS_EVENTS"]
fn sealing_leaves_appends_their_speed() {
    let events = setting("QUIPU_CORPUS_EVENTS", 300_000);
    let corpus = Corpus::new();
    for _ in 0..2 {
        for seal in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store = LocalStore::open(dir.path(), options(seal)).unwrap();
            let loaded = load(&store, events, &corpus, |_, _| {});
            let rate = loaded.events as f64 / loaded.time.as_secs_f64();
            println!("sealing {seal}: {rate:.0} events/s, {:?}", store.sealing());
        }
    }
}

/// For numbers only: opens a directory that another process filled, and says what that took.
#[test]
#[ignore = "measures; QUIPU_CORPUS_DIR is filled if it is empty, else opened"]
fn opening_a_large_sealed_store_is_quick_and_small() {
    let dir = std::env::var("QUIPU_CORPUS_DIR").unwrap();
    let dir = Path::new(&dir);
    if !dir.join("FORMAT").exists() {
        let store = LocalStore::open(dir, options(true)).unwrap();
        let loaded = load(&store, setting("QUIPU_CORPUS_EVENTS", 10_000_000), &Corpus::new(), |_, _| {});
        store.seal().unwrap();
        println!("{} events: {:?}", loaded.events, store.sealing());
        return;
    }
    let started = Instant::now();
    let store = LocalStore::open(dir, options(true)).unwrap();
    println!("opened in {:?}, memory {:?} MiB, {:?}", started.elapsed(), memory(), store.sealing());
}

/// For numbers only: many sessions that are equally busy.
#[test]
#[ignore = "measures; QUIPU_BUSY_SESSIONS and QUIPU_CORPUS_EVENTS"]
fn equally_busy_sessions_stay_small() {
    let (sessions, events) = (setting("QUIPU_BUSY_SESSIONS", 10_000), setting("QUIPU_CORPUS_EVENTS", 1_000_000));
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), options(true)).unwrap();
    let mut live = Vec::new();
    for n in 0..sessions {
        let (session, create) = begin(&store, n, u64::MAX);
        store.commit(&[create], 1).unwrap();
        live.push(session);
    }
    let text = "x".repeat(400);
    let (mut done, mut group) = (0, Vec::new());
    let started = Instant::now();
    'all: loop {
        for session in &mut live {
            let data = format!(r#"{{"turn":1,"text":"{text}{done}"}}"#);
            let body = NewEvent {
                time_ms: done as i64,
                kind: "note".into(),
                data: data.into(),
                ignorable: false,
                surface_op: None,
                source_event_seqs: None,
            };
            group.push(session.append(std::iter::once(body), |_| {}));
            done += 1;
            if group.len() == 256 {
                store.commit(&group, done).unwrap();
                group.clear();
                if done >= events {
                    break 'all;
                }
            }
        }
    }
    let rate = done as f64 / started.elapsed().as_secs_f64();
    println!("{sessions} sessions: {rate:.0} events/s, memory {:?} MiB, {:?}", memory(), store.sealing());
    store.seal().unwrap();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks: Vec<u64> = stat.rsplit(')').next().unwrap().split(' ').filter_map(|n| n.parse().ok()).collect();
    println!("sealed: memory {:?} MiB, {} ticks of CPU, {:?}", memory(), ticks[10] + ticks[11], store.sealing());
}
