//! One damaged place anywhere in the journal: never a shorter log with OK.
//!
//! The exhaustive sweeps run the replay over a segment in memory with an empty index, and read back through the
//! places that it gives. `files` samples the same through a whole store.

use std::ops::Range;

use bytes::Bytes;

use super::super::index::Index;
use super::super::journal::Cursor;
use super::super::replay::{Outcome, replay};
use super::super::segment::{Device, Segment};
use super::super::table::{Loader, Table};
use super::super::{place, read};
use super::*;
use crate::codec::frame::{GROUP_HEADER_BYTES, GroupHeader, RECORD_HEADER_BYTES, RecordStart, SECTOR};
use crate::model::Event;
use crate::store::contract::{Writer, key, read_all};

/// A segment in memory.
struct Memory(Vec<u8>);

impl Device for Memory {
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::Error::other("read only"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.0[at as usize..at as usize + bytes.len()]);
        Ok(())
    }
}

/// A small store: what it holds, and its only segment with data.
pub(super) struct Given {
    pub(super) dir: TempDir,
    pub(super) writers: Vec<Writer>,
    pub(super) bytes: Vec<u8>,
    id: [u8; 16],
    deleted: Writer,
    index: Index,
    _index_dir: TempDir,
}

/// Bytes of its segments.
pub(super) const SMALL: u64 = 16 << 10;

pub(super) fn given() -> Given {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    let mut writers: Vec<_> = ["a", "b", "c"].iter().map(|name| Writer::new(&store, key(name))).collect();
    let deleted = Writer::new(&store, key("deleted"));
    store.commit(&[writers[0].create(), writers[1].create()], 1).unwrap();
    let changes = [deleted.create(), writers[0].append(2, 60), writers[1].append(1, 700)];
    store.commit(&changes, 2).unwrap();
    store.commit(&[writers[2].create()], 3).unwrap();
    let changes = [deleted.delete(), writers[2].append(1, 10), writers[0].append(1, 5)];
    store.commit(&changes, 4).unwrap();
    store.commit(&[writers[1].append(3, 20)], 5).unwrap();
    close(store, dir.path());
    let id = DataDir::take(dir.path()).unwrap().identity(true).unwrap();
    let index_dir = tempfile::tempdir().unwrap();
    let (index, _) = Index::open(index_dir.path(), id, 1 << 20).unwrap();
    let bytes = fs::read(segment_path(dir.path(), 1)).unwrap();
    Given { dir, id, writers, deleted, bytes, index, _index_dir: index_dir }
}

/// What became of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All events are there.
    Whole,
    /// A good prefix is, and the damage is said.
    Damaged(u64),
    /// It is not there, and that is said too.
    Unproved,
}

impl Given {
    /// Replays a changed segment of which the header says that it is as long as before.
    fn replay(&self, bytes: Vec<u8>) -> (Table, Outcome, Segment) {
        let segment = |bytes: Vec<u8>| Segment::with(1, SMALL, bytes.len() as u64, Box::new(Memory(bytes)));
        let mut loader = Loader { table: Table::default(), index: &self.index };
        let from = Cursor { segment: 1, offset: SEGMENT_HEADER_BYTES as u64, position: 0 };
        let outcome = replay(&[Arc::new(segment(bytes.clone()))], self.id, (from, None), &mut loader).unwrap();
        (loader.table, outcome, segment(bytes))
    }

    /// The fate of each session in a changed segment; panics on a lie.
    fn fates(&self, bytes: Vec<u8>) -> (Vec<Fate>, Outcome) {
        let (table, outcome, segment) = self.replay(bytes);
        let is_back = table.names.get(&self.deleted.birth.key).is_some_and(Option::is_some);
        assert!(!is_back || table.horizon.0 > 0, "a deleted session is back, and nothing is said");
        (self.writers.iter().map(|writer| fate(writer, &table, &segment)).collect(), outcome)
    }

    /// Where the groups start, and where the last one ends.
    fn groups(&self) -> Vec<usize> {
        let mut groups = vec![SEGMENT_HEADER_BYTES];
        while let Ok(header) = GroupHeader::decode(&self.bytes[*groups.last().unwrap()..]) {
            groups.push(groups.last().unwrap() + header.span() as usize);
        }
        groups
    }

    /// The records: where they are, and whose.
    pub(super) fn records(&self) -> Vec<(Range<usize>, u64)> {
        let mut records = Vec::new();
        for group in self.groups() {
            let mut at = group + GROUP_HEADER_BYTES;
            let Ok(header) = GroupHeader::decode(&self.bytes[group..]) else { break };
            for _ in 0..header.records {
                let RecordStart::Sound(record) = RecordStart::decode(&self.bytes[at..]) else { panic!("not sound") };
                let end = at + RECORD_HEADER_BYTES + record.payload_bytes as usize;
                records.push((at..end, record.log));
                at = end;
            }
        }
        records
    }

    pub(super) fn used_bytes(&self) -> usize {
        *self.groups().last().unwrap()
    }

    fn flipped(&self, bit: usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    }
}

fn fate(writer: &Writer, table: &Table, segment: &Segment) -> Fate {
    let Some(Some(log)) = table.names.get(&writer.birth.key) else {
        assert!(table.horizon.0 > 0, "a session is gone, and nothing is said");
        return Fate::Unproved;
    };
    let entry = table.logs.get(log).unwrap().clone();
    let events = survivors(writer, &entry.places, segment);
    let found = read::found(entry, table.horizon);
    assert_eq!(found.session.next_seq.get(), events.len() as u64);
    match found.damage {
        None => {
            assert_eq!((events.len(), found.session.chain), (writer.events.len(), writer.chain), "a shorter log");
            Fate::Whole
        }
        Some(damage) => {
            assert_eq!(damage.good_next_seq, found.session.next_seq);
            Fate::Damaged(damage.good_next_seq.get())
        }
    }
}

/// The events at those places; they must be the right ones.
fn survivors(writer: &Writer, places: &[place::Place], segment: &Segment) -> Vec<Event> {
    let mut events = Vec::new();
    for place in places {
        let record = Bytes::from(segment.read(place.offset, place.bytes as usize).unwrap());
        events.extend(read::verify(writer.log, place, record).unwrap().decode().unwrap());
    }
    assert_eq!(events, writer.events[..events.len()], "what is there is right");
    events
}

#[test]
fn any_flipped_bit_of_the_journal_is_detected_and_others_are_served() {
    let given = given();
    let records = given.records();
    let (mut harmless, mut damaging) = (0, 0);
    for bit in SEGMENT_HEADER_BYTES * 8..given.used_bytes() * 8 {
        let (fates, outcome) = given.fates(given.flipped(bit));
        assert_eq!(outcome.torn, [], "damage at bit {bit} was taken for a torn end");
        assert_eq!(outcome.roll_past, None);
        let owner = records.iter().find(|(range, _)| range.contains(&(bit / 8))).map(|(_, log)| *log);
        for (writer, fate) in given.writers.iter().zip(&fates) {
            let is_owner = owner == Some(writer.log.0);
            assert!(is_owner || *fate == Fate::Whole, "bit {bit} is of log {owner:?}, not {:?}", writer.log);
        }
        let is_harmless = fates.iter().all(|fate| *fate == Fate::Whole);
        *if is_harmless { &mut harmless } else { &mut damaging } += 1;
    }
    println!("{harmless} flipped bits cost nothing, {damaging} damaged one log");
    assert!(damaging > 5_000 && harmless > 1_000);
}

#[test]
fn a_flipped_bit_in_unused_space_costs_nothing() {
    let given = given();
    let used = given.used_bytes();
    for bit in (used * 8..(used + SECTOR) * 8).chain((used * 8..given.bytes.len() * 8).step_by(61)) {
        let (fates, outcome) = given.fates(given.flipped(bit));
        assert!(fates.iter().all(|fate| *fate == Fate::Whole), "bit {bit}");
        assert_eq!(outcome.cursor.offset, used as u64);
        assert_eq!(outcome.torn.len(), 1, "it is put aside, so that no later replay meets it");
    }
}

#[test]
fn any_truncation_of_the_journal_is_detected() {
    let given = given();
    for length in 0..given.bytes.len() {
        let (fates, outcome) = given.fates(given.bytes[..length].to_vec());
        assert!(fates.iter().all(|fate| *fate != Fate::Whole), "nothing proves a log whole at {length}: {fates:?}");
        assert_eq!((outcome.roll_past, outcome.torn.len()), (Some(1), 0), "{length}");
    }
}

#[test]
fn a_group_of_which_any_sectors_are_missing_is_cut_and_everything_before_it_stays() {
    let given = given();
    for (n, bounds) in given.groups().windows(2).enumerate() {
        let group = &given.bytes[bounds[0]..bounds[1]];
        let sectors = group.len() / SECTOR;
        for present in 0..1_u32 << sectors {
            let mut bytes = given.bytes.clone();
            bytes[bounds[0]..].fill(0);
            for sector in (0..sectors).filter(|sector| present & (1 << sector) != 0) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                bytes[bounds[0] + range.start..bounds[0] + range.end].copy_from_slice(&group[range]);
            }
            let (table, outcome, _) = given.replay(bytes);
            assert_eq!((outcome.damaged_places, table.horizon.0), (0, 0), "a torn end is no damage");
            assert!(table.logs.values().all(|entry| entry.damage.is_none()));
            let is_whole = present == (1 << sectors) - 1;
            let positions = [0, 2, 5, 6, 9, 10];
            let expected = positions[n + usize::from(is_whole)];
            assert_eq!(outcome.cursor.position, expected, "wholly there or wholly absent");
            assert_eq!(outcome.torn.len(), usize::from(!is_whole && present != 0));
            assert!(outcome.torn.iter().all(|torn| torn.start == bounds[0] as u64));
        }
    }
}

/// Damage of whole sectors and runs of bytes. Not every case can be told from a crash, but none may panic or hand out
/// wrong events, and one that is not taken for a crash must not shorten a log in silence.
#[test]
fn garbage_anywhere_never_panics_and_never_gives_wrong_events() {
    let given = given();
    let used = given.used_bytes();
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for _ in 0..4000 {
        let mut bytes = given.bytes.clone();
        for _ in 0..=random(3) {
            let at = SEGMENT_HEADER_BYTES + random(used - SEGMENT_HEADER_BYTES);
            let end = (at + 1 + random(1200)).min(used);
            match random(3) {
                0 => bytes[at..end].iter_mut().for_each(|byte| *byte = random(256) as u8),
                1 => bytes.copy_within(SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + end - at, at),
                _ => bytes[at] = bytes[at].wrapping_add(1 + random(255) as u8),
            }
        }
        let (table, outcome, segment) = given.replay(bytes.clone());
        let entries = given.writers.iter().filter_map(|writer| Some((writer, table.logs.get(&writer.log)?)));
        entries.for_each(|(writer, entry)| drop(survivors(writer, &entry.places, &segment)));
        if outcome.torn.is_empty() {
            given.fates(bytes);
        }
    }
}

#[test]
fn a_flipped_bit_under_an_open_store_fails_the_read_after_a_good_prefix() {
    use std::os::unix::fs::FileExt;
    let given = given();
    let store = LocalStore::open(given.dir.path(), options(SMALL)).unwrap();
    assert_eq!(store.recovery().replayed, 0);
    let file = fs::OpenOptions::new().write(true).open(segment_path(given.dir.path(), 1)).unwrap();
    let records = given.records();
    for bit in 0..given.used_bytes() * 8 {
        let at = bit / 8;
        file.write_all_at(&[given.bytes[at] ^ (1 << (bit % 8))], at as u64).unwrap();
        let owner = records.iter().find(|(range, _)| range.contains(&at)).map(|(_, log)| *log);
        for writer in &given.writers {
            match read_all(&store, writer.log) {
                Ok(events) => assert_eq!(events, writer.events, "bit {bit}"),
                Err(StoreError::Damaged { damage, .. }) => {
                    assert_eq!(owner, Some(writer.log.0), "bit {bit}");
                    let runs = store.read(writer.log, Seq::ZERO, usize::MAX).unwrap_or_default();
                    let prefix: Vec<_> = runs.iter().flat_map(|run| run.decode().unwrap()).collect();
                    assert_eq!(prefix, writer.events[..damage.good_next_seq.get() as usize]);
                }
                Err(other) => panic!("bit {bit}: {other}"),
            }
        }
        file.write_all_at(&[given.bytes[at]], at as u64).unwrap();
    }
    given.writers.iter().for_each(|writer| writer.check(&store));
    assert_eq!(store.rebuilds(), 0, "damage in the journal is not the index's fault");
    close(store, given.dir.path());
}
