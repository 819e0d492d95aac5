//! Damaged, cut, missing and foreign files of the data directory, met by a whole store.

use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::damage::{Fate, Given, SMALL, given};
use super::*;
use crate::codec::frame::SECTOR;
use crate::store::contract::{Writer, everything, key, list_all, read_all};

/// What a store says of its sessions; panics on a lie.
fn judge(store: &LocalStore, writers: &[Writer]) -> Vec<Fate> {
    writers.iter().map(|writer| judge_one(store, writer)).collect()
}

pub(super) fn judge_one(store: &LocalStore, writer: &Writer) -> Fate {
    let found = match store.find(&writer.birth.key) {
        Err(StoreError::Damaged { .. }) => return Fate::Unproved,
        found => found.unwrap().expect("a session is gone, and nothing is said"),
    };
    match (read_all(store, writer.log), found.damage) {
        (Ok(events), None) => {
            assert_eq!(events, writer.events);
            Fate::Whole
        }
        (Ok(events), Some(damage)) => {
            assert_eq!(events, writer.events[..damage.good_next_seq.get() as usize]);
            Fate::Damaged(damage.good_next_seq.get())
        }
        (Err(StoreError::Damaged { damage, .. }), _) => Fate::Damaged(damage.good_next_seq.get()),
        (Err(other), _) => panic!("{other}"),
    }
}

pub(super) fn lose_index(dir: &Path) {
    fs::remove_dir_all(dir.join("index")).unwrap();
}

thread_local!(static GIVEN: Given = given());

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_with_one_damaged_journal_file_opens_and_tells_the_truth(
        at in any::<prop::sample::Index>(),
        cut in any::<bool>(),
        without_index in any::<bool>(),
        spare in prop::bool::weighted(0.2),
    ) {
        GIVEN.with(|given| check_damaged_journal(given, at, (cut, without_index, spare)));
    }

    #[test]
    fn a_damaged_index_is_put_aside_or_harmless(
        at in any::<prop::sample::Index>(),
        file in any::<prop::sample::Index>(),
        cut in prop::bool::weighted(0.3),
    ) {
        GIVEN.with(|given| check_damaged_index(given, at, (file, cut)));
    }
}

fn check_damaged_journal(given: &Given, at: prop::sample::Index, (cut, without_index, spare): (bool, bool, bool)) {
    let dir = image(given.dir.path());
    // On a busy machine the image may have been taken before there was a spare.
    let spare = spare && segment_path(dir.path(), 2).exists();
    let path = segment_path(dir.path(), if spare { 2 } else { 1 });
    damage_file(&path, at, cut);
    if without_index {
        lose_index(dir.path());
    }
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    assert_eq!(store.recovery().rebuilt.is_some(), without_index);
    let fates = judge(&store, &given.writers);
    if cut && without_index && !spare {
        assert!(fates.iter().all(|fate| *fate != Fate::Whole));
    }
    // The store takes writes, in a place where nothing can hide them, and the next opens still tell the truth.
    let mut new = Writer::new(&store, key("new"));
    store.commit(&[new.create(), new.append(2, 100)], 9).unwrap();
    close(store, dir.path());
    for _ in 0..2 {
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        new.check(&store);
        let again = judge(&store, &given.writers);
        let healed = fates.iter().zip(&again).any(|(then, now)| *then != Fate::Whole && *now == Fate::Whole);
        assert!(!healed, "damage is not forgotten: {fates:?}, {again:?}");
        close(store, dir.path());
        lose_index(dir.path());
    }
}

fn damage_file(path: &Path, at: prop::sample::Index, cut: bool) {
    let mut bytes = fs::read(path).unwrap();
    if cut {
        bytes.truncate(at.index(bytes.len()));
    } else {
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    fs::write(path, bytes).unwrap();
}

pub(super) fn index_files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("index")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn check_damaged_index(given: &Given, at: prop::sample::Index, (file, cut): (prop::sample::Index, bool)) {
    let dir = image(given.dir.path());
    let files = index_files(dir.path());
    let path = &files[file.index(files.len())];
    // Most of sled's file is unused; aim at what is not.
    let bytes = fs::read(path).unwrap();
    if bytes.is_empty() {
        return;
    }
    let used: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
    if cut {
        damage_file(path, at, true);
    } else {
        let bit = at.index(used.len() * 8);
        let mut bytes = bytes;
        bytes[used[bit / 8]] ^= 1 << (bit % 8);
        fs::write(path, bytes).unwrap();
    }
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    given.writers.iter().for_each(|writer| check_soon(&store, writer));
    let sessions = list_soon(&store);
    assert_eq!(sessions, given.writers.len());
    close(store, dir.path());
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    given.writers.iter().for_each(|writer| check_soon(&store, writer));
    close(store, dir.path());
}

/// Waits for a rebuild of the index, then checks.
pub(super) fn check_soon(store: &LocalStore, writer: &Writer) {
    let is_rebuilding = || {
        let found = store.find(&writer.birth.key).err();
        let read = found.or_else(|| read_all(store, writer.log).err());
        matches!(read, Some(StoreError::Rebuilding))
    };
    while is_rebuilding() {
        std::thread::yield_now();
    }
    writer.check(store);
}

fn list_soon(store: &LocalStore) -> usize {
    while matches!(store.list(&everything(), None, 10), Err(StoreError::Rebuilding)) {
        std::thread::yield_now();
    }
    list_all(store, &everything(), 10).len()
}

#[test]
fn an_index_that_is_gone_empty_or_garbage_is_built_anew() {
    let given = given();
    for how in 0..4 {
        let dir = image(given.dir.path());
        let index = dir.path().join("index");
        lose_index(dir.path());
        match how {
            0 => {}
            1 => fs::create_dir(&index).unwrap(),
            2 => {
                fs::create_dir(&index).unwrap();
                fs::write(index.join("db"), vec![0x5A; 100_000]).unwrap();
                fs::write(index.join("conf"), "nonsense").unwrap();
            }
            _ => fs::write(&index, "a file").unwrap(),
        }
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        assert!(store.recovery().rebuilt.is_some(), "{:?}", store.recovery());
        assert_eq!(evidence(dir.path(), "index-"), usize::from(how >= 1), "what was unusable is kept");
        assert_eq!((store.recovery().replayed, store.recovery().damaged_places), (10, 0));
        given.writers.iter().for_each(|writer| writer.check(&store));
        assert_eq!(list_all(&store, &everything(), 2).len(), 3);
        close(store, dir.path());
    }
}

/// What sled does when a page of it is lost: it opens, shorter.
#[test]
fn an_index_that_lost_an_entry_is_built_anew() {
    let given = given();
    for kind in ["n", "a", "s", "r", "!"] {
        let dir = image(given.dir.path());
        let db = sled::open(dir.path().join("index")).unwrap();
        let (lost, _) = db.scan_prefix(kind).next().unwrap().unwrap();
        db.remove(lost).unwrap();
        drop(db);
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        let is_noticed_at_open = matches!(kind, "n" | "a" | "!");
        assert_eq!(store.recovery().rebuilt.is_some(), is_noticed_at_open, "{kind}");
        given.writers.iter().for_each(|writer| check_soon(&store, writer));
        assert_eq!(list_soon(&store), 3);
        assert_eq!(store.rebuilds(), 1);
        close(store, dir.path());
    }
}

#[test]
fn a_head_that_went_back_in_time_is_noticed_by_its_runs() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create(), a.append(1, 10)], 1).unwrap();
    close(store, dir.path());
    let entry = |dir: &Path| sled::open(dir.join("index")).unwrap().scan_prefix("s").next().unwrap().unwrap();
    let (name, old) = entry(dir.path());
    let store = open(dir.path());
    store.commit(&[a.append(1, 10)], 1).unwrap();
    close(store, dir.path());
    sled::open(dir.path().join("index")).unwrap().insert(name, old).unwrap();
    let store = open(dir.path());
    check_soon(&store, &a);
    assert_eq!(store.rebuilds(), 1);
    close(store, dir.path());
}

#[test]
fn an_index_of_another_store_is_put_aside() {
    let (given, other) = (given(), given());
    lose_index(given.dir.path());
    copy_into(&other.dir.path().join("index"), &given.dir.path().join("index"));
    let store = LocalStore::open(given.dir.path(), options(SMALL)).unwrap();
    assert!(store.recovery().rebuilt.as_ref().is_some_and(|reason| reason.contains("another store")));
    given.writers.iter().for_each(|writer| writer.check(&store));
    close(store, given.dir.path());
}

#[test]
fn any_flipped_bit_and_any_cut_of_format_keeps_the_store_closed() {
    let given = given();
    let path = given.dir.path().join("FORMAT");
    let bytes = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let opened = LocalStore::open(given.dir.path(), options(SMALL)).map(drop);
        assert!(matches!(opened, Err(OpenError::DamagedFormat { .. })), "{opened:?}");
    };
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        refused(&bytes);
    }
    (0..bytes.len()).for_each(|length| refused(&bytes[..length]));
    fs::remove_file(&path).unwrap();
    let opened = LocalStore::open(given.dir.path(), options(SMALL)).map(drop);
    assert!(matches!(opened, Err(OpenError::NoFormat { .. })), "{opened:?}");
    fs::write(&path, bytes).unwrap();
    let store = LocalStore::open(given.dir.path(), options(SMALL)).unwrap();
    given.writers.iter().for_each(|writer| writer.check(&store));
}

#[test]
fn another_format_is_refused_with_the_direction() {
    let given = given();
    let path = given.dir.path().join("FORMAT");
    for (version, advice) in [(3, "use a newer quipu"), (0, "use an older quipu")] {
        let content = format!("quipu store\nformat {version}\nid {:032x}\n", 7);
        fs::write(&path, format!("{content}checksum {:08x}\n", crc32c::crc32c(content.as_bytes()))).unwrap();
        let error = LocalStore::open(given.dir.path(), options(SMALL)).map(drop).unwrap_err();
        assert!(matches!(error, OpenError::OtherFormat { found, supported: 2 } if found == version));
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn a_second_handle_is_refused_and_told_who_holds_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error = LocalStore::open(dir.path(), options(SEGMENT_BYTES)).map(drop).unwrap_err();
    let holder = format!("process {} on ", std::process::id());
    assert!(matches!(&error, OpenError::Locked { holder: by, .. } if by.starts_with(&holder)), "{error}");
    assert!(error.to_string().contains(&holder));
    close(store, dir.path());
    close(open(dir.path()), dir.path());
}

#[test]
fn a_segment_of_another_store_is_refused() {
    let (given, other) = (given(), given());
    fs::copy(segment_path(other.dir.path(), 1), segment_path(given.dir.path(), 1)).unwrap();
    lose_index(given.dir.path());
    let error = LocalStore::open(given.dir.path(), options(SMALL)).map(drop).unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
}

#[test]
fn a_torn_end_is_kept_as_evidence_and_writing_goes_on() {
    let given = given();
    let store = LocalStore::open(given.dir.path(), options(SMALL)).unwrap();
    store.commit(&[given.writers[1].clone().append(1, 1000)], 9).unwrap();
    let whole = image(given.dir.path());
    close(store, given.dir.path());
    for zeroed in 0..3 {
        let dir = image(whole.path());
        let at = given.used_bytes() + zeroed * SECTOR;
        let file = fs::OpenOptions::new().write(true).open(segment_path(dir.path(), 1)).unwrap();
        file.write_all_at(&[0; SECTOR], at as u64).unwrap();
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        assert_eq!(store.recovery().damaged_places, 0);
        assert!(store.recovery().torn_bytes >= SECTOR as u64);
        assert_eq!(evidence(dir.path(), "torn-1-"), 1);
        given.writers.iter().for_each(|writer| writer.check(&store));
        let mut b = given.writers[1].clone();
        store.commit(&[b.append(2, 10)], 9).unwrap();
        close(store, dir.path());
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        assert_eq!(store.recovery().torn_bytes, 0);
        b.check(&store);
        close(store, dir.path());
    }
}

/// Sessions 0 to 2 with runs over several segments; tells which sessions changed in which segment.
fn long(dir: &Path) -> (Vec<Writer>, Vec<(u64, usize)>) {
    let store = LocalStore::open(dir, options(SMALL)).unwrap();
    let mut writers: Vec<_> = (0..4).map(|n| Writer::new(&store, key(&format!("s{n}")))).collect();
    store.commit(&writers.iter().map(Writer::create).collect::<Vec<_>>(), 1).unwrap();
    let (mut spans, mut time) = (Vec::new(), 1);
    let segment = || store.shared.journal.lock().cursor().segment;
    while segment() < 4 {
        time += 1;
        let n = if segment() == 3 { 2 } else { time as usize % 3 };
        store.commit(&[writers[n].append(1, 900)], time).unwrap();
        spans.push((segment(), n));
    }
    close(store, dir);
    (writers, spans)
}

#[test]
fn a_replay_goes_over_many_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (writers, spans) = long(dir.path());
    lose_index(dir.path());
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    assert_eq!(store.recovery().replayed, spans.len() as u64 + 4);
    writers.iter().for_each(|writer| writer.check(&store));
    close(store, dir.path());
}

#[test]
fn a_missing_segment_leaves_logs_without_a_later_change_unproved() {
    let given = tempfile::tempdir().unwrap();
    let (writers, spans) = long(given.path());
    for (missing, without_index) in [(1, false), (1, true), (2, false), (2, true), (3, true), (4, true)] {
        let dir = image(given.path());
        fs::remove_file(segment_path(dir.path(), missing)).unwrap();
        if without_index {
            lose_index(dir.path());
        }
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        let fates = judge(&store, &writers);
        for n in spans.iter().filter(|(segment, _)| *segment == missing).map(|(_, n)| *n) {
            assert_ne!(fates[n], Fate::Whole, "{missing} {without_index} {fates:?}");
        }
        assert_eq!(fates[3] == Fate::Whole, !without_index, "the index proves what it covers");
        // A new session does not suffer, and the next open says the same.
        let mut new = Writer::new(&store, key("new"));
        store.commit(&[new.create(), new.append(2, 10)], 1000).unwrap();
        close(store, dir.path());
        let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
        new.check(&store);
        assert_eq!(judge(&store, &writers), fates);
        close(store, dir.path());
    }
}

#[test]
fn a_log_that_changed_after_the_lost_segment_is_served_if_it_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    let (mut a, mut b) = (Writer::new(&store, key("a")), Writer::new(&store, key("b")));
    store.commit(&[a.create(), b.create(), a.append(1, 10)], 1).unwrap();
    while store.shared.journal.lock().cursor().segment < 3 {
        store.commit(&[b.append(1, 2000)], 2).unwrap();
    }
    store.commit(&[a.append(1, 10)], 3).unwrap();
    close(store, dir.path());
    fs::remove_file(segment_path(dir.path(), 2)).unwrap();
    lose_index(dir.path());
    let store = LocalStore::open(dir.path(), options(SMALL)).unwrap();
    a.check(&store);
    assert!(matches!(judge_one(&store, &b), Fate::Damaged(_)));
    close(store, dir.path());
}
