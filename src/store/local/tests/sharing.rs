//! Damage of a store with forks: whoever shares a damaged event says so, everybody else is served, and nothing that is
//! needed is given up.

use std::os::unix::fs::FileExt;

use super::files::{check_soon, index_files, judge_one, lose_index};
use super::*;
use crate::codec::frame::RecordStart;
use crate::store::contract::{Writer, key, read_all};

/// A family: a deleted parent, a child of it with events of its own, a child of that, one that was detached from both,
/// and a log that was purged.
struct Family {
    dir: TempDir,
    parent: Writer,
    live: Vec<Writer>,
    /// What each of the live ones needs: logs.
    needs: Vec<Vec<u64>>,
}

const SMALL: u64 = 24 << 10;

fn family() -> Family {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    let mut parent = Writer::new(&store, key("parent"));
    store.commit(&[parent.create(), parent.append(3, 100), parent.append(2, 100)], 1).unwrap();
    let (mut child, fork) = parent.fork(&store, "child", 4);
    store.commit(&[fork, child.append(3, 100)], 2).unwrap();
    let (grandchild, fork) = child.fork(&store, "grandchild", 5);
    store.commit(&[fork], 3).unwrap();
    let (mut detached, fork) = child.fork(&store, "detached", 7);
    store.commit(&[fork], 4).unwrap();
    store.commit(&detached.detach(7), 5).unwrap();
    store.commit(&[detached.append(1, 100)], 6).unwrap();
    let mut gone = Writer::new(&store, key("gone"));
    store.commit(&[gone.create(), gone.append(2, 100), gone.delete(), parent.delete()], 7).unwrap();
    let purge = Change::Purge { log: gone.log, next_seq: Seq::ZERO, chain: crate::codec::Chain::START };
    store.commit(&[purge], 8).unwrap();
    close(store, dir.path());
    let needs =
        vec![vec![parent.log.0, child.log.0], vec![parent.log.0, child.log.0, grandchild.log.0], vec![detached.log.0]];
    Family { dir, parent, live: vec![child, grandchild, detached], needs }
}

/// Where the records of the first segment stand, and whose they are.
fn records(bytes: &[u8]) -> Vec<(std::ops::Range<usize>, u64)> {
    use crate::codec::frame::{GROUP_HEADER_BYTES, GroupHeader, RECORD_HEADER_BYTES};
    let (mut records, mut group) = (Vec::new(), SEGMENT_HEADER_BYTES);
    while let Ok(header) = GroupHeader::decode(&bytes[group..]) {
        let mut at = group + GROUP_HEADER_BYTES;
        for _ in 0..header.records {
            let RecordStart::Sound(record) = RecordStart::decode(&bytes[at..]) else { panic!("not sound") };
            let end = at + RECORD_HEADER_BYTES + record.payload_bytes as usize;
            records.push((at..end, record.log));
            at = end;
        }
        group += header.span() as usize;
    }
    records
}

#[test]
fn a_flipped_bit_damages_exactly_who_shares_it_and_says_so() {
    let family = family();
    let bytes = fs::read(segment_path(family.dir.path(), 1)).unwrap();
    let records = records(&bytes);
    let end = records.last().unwrap().0.end;
    let (mut hits, mut misses) = ([0; 3], 0);
    // A prime, so that the flips fall on different parts of the records.
    for bit in (SEGMENT_HEADER_BYTES * 8..end * 8).step_by(251) {
        let dir = image(family.dir.path());
        let path = segment_path(dir.path(), 1);
        let at = bit / 8;
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[bytes[at] ^ (1 << (bit % 8))], at as u64).unwrap();
        lose_index(dir.path());
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        let owner = records.iter().find(|(range, _)| range.contains(&at)).map(|(_, log)| *log);
        for (n, writer) in family.live.iter().enumerate() {
            let fate = judge_one(&store, writer);
            if fate == damage::Fate::Whole {
                misses += 1;
                continue;
            }
            hits[n] += 1;
            assert!(owner.is_some_and(|owner| family.needs[n].contains(&owner)), "bit {bit} of {owner:?}: {fate:?}");
        }
        close(store, dir.path());
    }
    println!("{hits:?} hits, {misses} misses");
    assert!(hits.iter().all(|hits| *hits > 0) && misses > 100);
}

#[test]
fn damage_under_an_open_store_is_named_to_the_child() {
    let family = family();
    let store = LocalStore::open(family.dir.path(), options(SMALL)).unwrap();
    let path = segment_path(family.dir.path(), 1);
    let bytes = fs::read(&path).unwrap();
    let (range, _) = records(&bytes).into_iter().filter(|(_, log)| *log == family.parent.log.0).nth(2).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[bytes[range.end - 3] ^ 1], range.end as u64 - 3).unwrap();
    for writer in &family.live[..2] {
        let refused = read_all(&store, writer.log);
        assert!(matches!(refused, Err(StoreError::Damaged { damage, .. }) if damage.good_next_seq.get() == 3));
    }
    family.live[2].check(&store);
    assert_eq!(store.rebuilds(), 0);
    close(store, family.dir.path());
}

#[test]
fn an_index_that_lost_a_share_or_an_extent_is_built_anew_before_anything_is_given_up() {
    let family = family();
    for prefix in ["f", "x", "d", "m"] {
        let dir = image(family.dir.path());
        {
            let db = sled::open(dir.path().join("index")).unwrap();
            let key = db.scan_prefix(prefix).keys().next().unwrap().unwrap();
            db.remove(key).unwrap();
            db.flush().unwrap();
        }
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        assert!(store.recovery().rebuilt.is_some() || ["x", "m"].contains(&prefix));
        family.live.iter().for_each(|writer| check_soon(&store, writer));
        for remains in store.remains(None, 10).unwrap() {
            assert!(remains.needed_until.get() >= 4, "the children need it");
        }
        close(store, dir.path());
    }
}

#[test]
fn any_damage_of_the_index_is_put_aside_or_harmless_for_forks() {
    let family = family();
    let mut seed = 7_u64;
    for _ in 0..60 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dir = image(family.dir.path());
        let files = index_files(dir.path());
        let path = &files[(seed >> 40) as usize % files.len()];
        let mut bytes = fs::read(path).unwrap();
        let used: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        if used.is_empty() {
            continue;
        }
        bytes[used[(seed >> 20) as usize % used.len()]] ^= 1 << (seed % 8);
        fs::write(path, bytes).unwrap();
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        family.live.iter().for_each(|writer| check_soon(&store, writer));
        close(store, dir.path());
    }
}
