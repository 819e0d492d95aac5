//! Archives: the same sessions give the same bytes, and nothing else is taken in.

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use quipu::model::{Event, Header, Namespace, Profile, SessionId};
use quipu::portable::archive::{ArchiveError, Limits, Manifest, Packer, Visitor, verify, walk};
use quipu::portable::dsh::{ReadOptions, Whole};

use crate::logs::any_log;

pub(crate) type Given = (String, Header, Vec<Event>);

/// Everything that an archive holds.
#[derive(Default)]
struct Read(Vec<Vec<Event>>);

impl Visitor for Read {
    fn event(&mut self, session: usize, event: Event) -> Result<(), ArchiveError> {
        self.0.resize(self.0.len().max(session + 1), Vec::new());
        self.0[session].push(event);
        Ok(())
    }
}

pub(crate) fn pack(sessions: &[Given], is_packed: bool) -> Vec<u8> {
    let mut packer = Packer::new(Namespace::new("").unwrap(), is_packed);
    let mut bytes = Vec::new();
    for (id, header, events) in sessions {
        packer.begin(&SessionId::new(id).unwrap(), header, Profile::Dsh).unwrap();
        for event in events {
            packer.push(event.clone()).unwrap();
            bytes.extend(packer.take());
        }
    }
    packer.finish().unwrap();
    bytes.extend(packer.take());
    bytes
}

fn events_of_sample(name: &str) -> Vec<Event> {
    use quipu::portable::dsh::{events, open, scan};
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/samples").join(name);
    let text = std::fs::read(path).unwrap();
    let options = ReadOptions { cwd: Some("/work".to_owned()), ..ReadOptions::default() };
    let scan = scan(open(&text[..], &options).unwrap(), &options).unwrap();
    events(open(&text[..], &options).unwrap(), &scan).map(Result::unwrap).collect()
}

/// A root, a child and a child of that, with awkward names.
pub(crate) fn family() -> Vec<Given> {
    let child = |parent: &str| Header {
        created_at_ms: 7,
        parent_session: Some(parent.to_owned()),
        seed_length: Some(42),
        ..Header::default()
    };
    let labels = [("k\"1".to_owned(), "v\u{e9}".to_owned())].into();
    let root = Header {
        created_at_ms: 1_700_000_000_000,
        cwd: Some("/w".to_owned()),
        labels,
        delegation_depth: Some(0),
        ..Header::default()
    };
    vec![
        ("root".to_owned(), root, events_of_sample("dsh-v0-fork-parent.jsonl")),
        ("../x/A".to_owned(), child("root"), events_of_sample("dsh-v0-fork-child.jsonl")),
        ("..\u{2f}x\u{2f}a".to_owned(), child("../x/A"), Vec::new()),
    ]
}

fn read(bytes: &[u8]) -> (Manifest, Vec<Vec<Event>>) {
    let mut found = Read::default();
    let manifest = walk(bytes, Limits::default(), &mut found).unwrap();
    found.0.resize(manifest.sessions.len(), Vec::new());
    (manifest, found.0)
}

/// Packs again what was read.
fn again(bytes: &[u8]) -> Vec<u8> {
    let (manifest, events) = read(bytes);
    let members = manifest.sessions.iter().zip(events);
    let sessions: Vec<_> =
        members.map(|(member, events)| (member.id.as_str().to_owned(), member.header.clone(), events)).collect();
    pack(&sessions, manifest.is_packed)
}

#[test]
fn a_family_goes_in_and_out_with_equal_events_headers_and_bytes() {
    for is_packed in [false, true] {
        let sessions = family();
        let bytes = pack(&sessions, is_packed);
        let (manifest, events) = read(&bytes);
        for ((id, header, given), (member, found)) in sessions.iter().zip(manifest.sessions.iter().zip(&events)) {
            assert_eq!((member.id.as_str(), &member.header, found), (id.as_str(), header, given));
            assert_eq!(member.events, given.len() as u64);
        }
        assert_eq!(again(&bytes), bytes);
        assert!(!manifest.sessions.iter().any(|member| member.file.contains("..")), "{manifest:?}");
    }
}

#[test]
fn any_zip_tool_opens_an_archive() {
    let Ok(mut python) = Command::new("python3")
        .args(["-c", "import sys,io,zipfile\nz=zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))\nassert z.testzip() is None\nfor i in z.infolist(): print(i.filename, i.file_size)\nsys.stdout.flush()\nsys.stdout.buffer.write(z.read('session.jsonl'))"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        assert!(std::env::var_os("QUIPU_REQUIRE_ALL").is_none_or(|value| value != "1"));
        return println!("SKIPPED: no python3");
    };
    let bytes = pack(&family(), false);
    let mut input = python.stdin.take().unwrap();
    let given = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&given));
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let (manifest, events) = read(&bytes);
    let mut rest = &output.stdout[..];
    for member in &manifest.sessions {
        let line = format!("{} {}\n", member.file, member.bytes);
        assert!(rest.starts_with(line.as_bytes()), "{line}");
        rest = &rest[line.len()..];
    }
    let at = rest.iter().position(|&byte| byte == b'\n').unwrap();
    let root = &rest[at + 1..];
    let whole = Whole::open(root, &ReadOptions::default()).unwrap();
    assert_eq!(whole.map(Result::unwrap).collect::<Vec<_>>(), events[0]);
}

fn lcg(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn two_thousand_random_damages_are_refused_by_name() {
    let bytes = pack(&family(), false);
    assert!(verify(&bytes[..], Limits::default()).is_ok());
    let mut state = 20_261_201;
    println!("seed {state}, {} bytes", bytes.len());
    let mut names = std::collections::BTreeMap::new();
    for round in 0..2000 {
        let mut damaged = bytes.clone();
        let (at, to) = (lcg(&mut state) % bytes.len(), lcg(&mut state) % bytes.len());
        let (from, until) = (at.min(to), at.max(to) + 1);
        match round % 5 {
            0 => damaged[at] ^= 1 << (lcg(&mut state) % 8),
            1 => damaged.truncate(at),
            2 => drop(damaged.drain(from..until.min(from + 40))),
            3 => damaged.splice(from..from, bytes[from..until].to_vec()).for_each(drop),
            _ => damaged[from..until].iter_mut().for_each(|byte| *byte = 0),
        }
        if damaged == bytes {
            continue;
        }
        match verify(&damaged[..], Limits::default()) {
            Ok(_) => panic!("round {round}: taken in"),
            Err(error) => *names.entry(error.name()).or_insert(0) += 1,
        }
    }
    println!("{names:?}");
    assert_eq!(names.values().sum::<u32>(), 2000, "every damage changed something");
    assert!(names.len() >= 5, "{names:?}");
}

#[test]
fn every_single_bit_counts() {
    let bytes = pack(
        &family()[2..]
            .iter()
            .map(|(id, header, events)| (id.clone(), Header { parent_session: None, ..header.clone() }, events.clone()))
            .collect::<Vec<_>>(),
        false,
    );
    assert!(verify(&bytes[..], Limits::default()).is_ok());
    for at in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(verify(&damaged[..], Limits::default()).is_err(), "bit {at}");
    }
    for end in 0..bytes.len() {
        let error = verify(&bytes[..end], Limits::default()).unwrap_err();
        assert_eq!(error.name(), "truncated", "{end}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_log_goes_in_and_out_the_same(log in any_log(60), is_packed in any::<bool>()) {
        let bytes = pack(&[("s".to_owned(), Header::default(), log.clone())], is_packed);
        let (_, events) = read(&bytes);
        prop_assert_eq!(&events[0], &log);
        prop_assert_eq!(again(&bytes), bytes);
    }

    #[test]
    fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), tail in any::<bool>()) {
        let mut text = if tail { pack(&family()[..1], false)[..600].to_vec() } else { Vec::new() };
        text.extend(bytes);
        prop_assert!(verify(&text[..], Limits::default()).is_err());
    }
}
