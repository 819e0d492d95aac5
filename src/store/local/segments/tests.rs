//! Sealing against its promises: kills and failures at every step, damage anywhere, old stores, foreign files.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::needless_for_each, reason = "test code")]

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use proptest::prelude::*;

use super::super::tests::{close, evidence, image, open, options, segment_path};
use super::super::*;
use super::file;
use crate::codec::segment::FILE_HEADER_BYTES;
use crate::store::contract::{Writer, everything, key, list_all, read_all};

/// Three sessions and a deleted one, over two journal segments.
fn given(dir: &Path) -> (LocalStore, Vec<Writer>, Writer) {
    let store = open(dir);
    let mut writers: Vec<_> = ["a", "b", "c"].iter().map(|name| Writer::new(&store, key(name))).collect();
    let mut deleted = Writer::new(&store, key("deleted"));
    store.commit(&[writers[0].create(), deleted.create(), deleted.append(2, 40)], 1).unwrap();
    store.commit(&[writers[1].create(), writers[0].append(3, 60), writers[1].append(1, 700)], 2).unwrap();
    store.shared.journal.lock().roll().unwrap();
    store.commit(&[writers[2].create(), deleted.delete()], 3).unwrap();
    store.commit(&[writers[2].append(300, 10), writers[0].append(1, 5), writers[1].append(2, 20)], 4).unwrap();
    (store, writers, deleted)
}

fn check(store: &LocalStore, writers: &[Writer], deleted: &Writer) {
    writers.iter().for_each(|writer| writer.check(store));
    assert!(store.find(&deleted.birth.key).unwrap().is_none());
    assert_eq!(read_all(store, deleted.log).unwrap(), deleted.events, "a deleted log is read until it is reclaimed");
    assert_eq!(list_all(store, &everything(), 2).len(), writers.len());
}

fn sealed_path(dir: &Path, number: u64) -> PathBuf {
    file::path(&dir.join("segments"), number)
}

fn names(dir: &Path) -> BTreeSet<String> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn lose_index(dir: &Path) {
    std::fs::remove_dir_all(dir.join("index")).unwrap();
}

#[test]
fn a_sealed_store_has_one_file_no_old_journal_and_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut writers, deleted) = given(dir.path());
    store.seal().unwrap();
    assert!(!segment_path(dir.path(), 1).exists() && !segment_path(dir.path(), 2).exists());
    let sealing = store.sealing();
    assert_eq!((sealing.sealed_files, sealing.debt_files, sealing.kept_files), (1, 0, 0));
    assert_eq!(sealing.retired_bytes, 2 << 20);
    check(&store, &writers, &deleted);
    store.seal().unwrap();
    assert_eq!(store.sealing().sealed_files, 1, "nothing new is sealed once more");
    store.commit(&[writers[0].append(2, 30)], 5).unwrap();
    check(&store, &writers, &deleted);
    store.seal().unwrap();
    assert_eq!(store.sealing().sealed_files, 2);
    check(&store, &writers, &deleted);
    close(store, dir.path());
    for _ in 0..2 {
        let store = open(dir.path());
        check(&store, &writers, &deleted);
        assert!(store.allot() > deleted.log);
        close(store, dir.path());
        lose_index(dir.path());
    }
}

/// Seals with a hook, and gives what it returned.
fn seal_with(store: &LocalStore, hook: impl Fn(&'static str) -> io::Result<()> + Send + Sync + 'static) -> bool {
    *store.shared.sealer.hook.lock() = Some(Arc::new(hook));
    let outcome = store.seal();
    *store.shared.sealer.hook.lock() = None;
    outcome.is_ok()
}

#[test]
fn a_kill_before_any_step_loses_nothing_and_the_next_open_completes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut writers, deleted) = given(dir.path());
    let images = Arc::new(Mutex::new(Vec::new()));
    let (from, into) = (dir.path().to_owned(), images.clone());
    assert!(seal_with(&store, move |name| {
        into.lock().push((name, image(&from)));
        Ok(())
    }));
    close(store, dir.path());
    let images = std::mem::take(&mut *images.lock());
    println!("{} steps: {:?}", images.len(), images.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    assert!(images.len() >= 15);
    for ((name, killed), without_index) in images.iter().flat_map(|image| [(image, false), (image, true)]) {
        let dir = image(killed.path());
        if without_index {
            lose_index(dir.path());
        }
        let store = open(dir.path());
        assert_eq!((store.recovery().damaged_places, store.recovery().torn_bytes), (0, 0), "killed before: {name}");
        check(&store, &writers, &deleted);
        assert!(names(&dir.path().join("segments")).iter().all(|name| !name.contains(".draft")), "no draft is left");
        store.seal().unwrap();
        check(&store, &writers, &deleted);
        assert!(!segment_path(dir.path(), 1).exists(), "killed before: {name}");
        let mut again = writers[0].clone();
        store.commit(&[again.append(1, 10)], 9).unwrap();
        again.check(&store);
        close(store, dir.path());
        let store = open(dir.path());
        again.check(&store);
        close(store, dir.path());
    }
    writers.clear();
}

#[test]
fn a_failure_of_any_step_keeps_the_journal_and_stops_only_the_sealer() {
    for fails_at in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut writers, deleted) = given(dir.path());
        let calls = AtomicUsize::new(0);
        let done = seal_with(&store, move |_| {
            let is_it = calls.fetch_add(1, Ordering::SeqCst) + 1 == fails_at;
            if is_it { Err(io::Error::other("a planned failure")) } else { Ok(()) }
        });
        check(&store, &writers, &deleted);
        assert_eq!(store.sealing().problem.is_some(), !done);
        assert_eq!(store.health(), Health::Writable);
        store.commit(&[writers[1].append(2, 50)], 7).unwrap();
        check(&store, &writers, &deleted);
        assert_eq!(store.seal().is_ok(), done, "after a failure it does not go on before the store is opened anew");
        close(store, dir.path());
        let store = open(dir.path());
        check(&store, &writers, &deleted);
        store.seal().unwrap();
        check(&store, &writers, &deleted);
        close(store, dir.path());
        if done {
            println!("{} steps failed", fails_at - 1);
            assert!(fails_at > 15);
            return;
        }
    }
}

/// A draft that a power cut left half written, or whole but wrong.
#[test]
fn a_draft_that_reads_differently_is_never_named() {
    for what in ["read the draft back", "sync the draft"] {
        let dir = tempfile::tempdir().unwrap();
        let (store, writers, deleted) = given(dir.path());
        let draft = file::draft_path(&dir.path().join("segments"), 1);
        assert!(!seal_with(&store, move |name| {
            if name == what {
                let file = std::fs::OpenOptions::new().read(true).write(true).open(&draft)?;
                let mut byte = [0];
                file.read_exact_at(&mut byte, FILE_HEADER_BYTES as u64 + 100)?;
                file.write_all_at(&[byte[0] ^ 1], FILE_HEADER_BYTES as u64 + 100)?;
            }
            Ok(())
        }));
        assert!(segment_path(dir.path(), 1).exists() && segment_path(dir.path(), 2).exists());
        assert_eq!(names(&dir.path().join("segments")), BTreeSet::new());
        check(&store, &writers, &deleted);
        close(store, dir.path());
    }
}

#[test]
fn what_is_not_understood_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writers, deleted) = given(dir.path());
    close(store, dir.path());
    let segments = dir.path().join("segments");
    let foreign = ["notes.txt", "1.draft", "00000000000000000001.draft.bak", "00000000000000000009.qz", "x.qs"];
    foreign.iter().for_each(|name| std::fs::write(segments.join(name), "kept").unwrap());
    std::fs::write(file::draft_path(&segments, 7), "torn").unwrap();
    std::fs::write(sealed_path(dir.path(), 5), "no sealed file").unwrap();
    let store = open(dir.path());
    store.seal().unwrap();
    check(&store, &writers, &deleted);
    close(store, dir.path());
    let mut expected: BTreeSet<String> = foreign.iter().map(ToString::to_string).collect();
    expected.extend([5, 6].map(|number| format!("{number:020}.qs")));
    assert_eq!(names(&segments), expected, "only the draft is gone, and no number is used twice");
    assert_eq!(std::fs::read(sealed_path(dir.path(), 5)).unwrap(), b"no sealed file");
}

#[test]
fn a_damaged_journal_segment_is_not_sealed_and_the_others_are() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut writers, _) = given(dir.path());
    store.shared.journal.lock().roll().unwrap();
    store.commit(&[writers[0].append(1, 10)], 5).unwrap();
    close(store, dir.path());
    let path = segment_path(dir.path(), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(20).position(|window| window == [b'x'; 20]).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for round in 0..3 {
        if round == 2 {
            lose_index(dir.path());
        }
        let store = open(dir.path());
        store.seal().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the damaged segment is as it was");
        assert!(!segment_path(dir.path(), 2).exists() && !segment_path(dir.path(), 3).exists());
        writers[0].check(&store);
        writers[1].check(&store);
        writers[2].check(&store);
        assert_eq!(store.sealing().kept_files, 1);
        close(store, dir.path());
    }
    assert_eq!(evidence(dir.path(), "torn-"), 0);
}

#[test]
fn a_store_of_the_version_before_opens_and_is_raised_when_it_is_first_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writers, deleted) = given(dir.path());
    let id = store.id();
    close(store, dir.path());
    let path = dir.path().join("FORMAT");
    let content = format!("quipu store\nformat 1\nid {:032x}\n", u128::from_be_bytes(id));
    let old = format!("{content}checksum {:08x}\n", crc32c::crc32c(content.as_bytes()));
    std::fs::write(&path, &old).unwrap();
    std::fs::remove_dir(dir.path().join("segments")).unwrap();
    let store = open(dir.path());
    assert_eq!(store.id(), id);
    check(&store, &writers, &deleted);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), old, "the version before could still open it");
    store.seal().unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().contains("format 2\n"));
    close(store, dir.path());
    let store = open(dir.path());
    assert_eq!(store.id(), id);
    check(&store, &writers, &deleted);
    close(store, dir.path());
}

#[test]
fn a_sealed_file_of_a_newer_format_or_of_another_store_keeps_the_store_closed() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [dir.path(), other.path()] {
        let (store, ..) = given(dir);
        store.seal().unwrap();
        close(store, dir);
    }
    let path = sealed_path(dir.path(), 1);
    let good = std::fs::read(&path).unwrap();
    std::fs::copy(sealed_path(other.path(), 1), &path).unwrap();
    let error = LocalStore::open(dir.path(), options(1 << 20)).map(drop).unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    let mut newer = good.clone();
    newer[7] += 1;
    let checksum = crc32c::crc32c(&newer[..FILE_HEADER_BYTES - 4]);
    newer[FILE_HEADER_BYTES - 4..FILE_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    let end = newer.len() - FILE_HEADER_BYTES;
    newer.copy_within(..FILE_HEADER_BYTES, end);
    std::fs::write(&path, newer).unwrap();
    let error = LocalStore::open(dir.path(), options(1 << 20)).map(drop).unwrap_err();
    assert!(error.to_string().contains("use a newer quipu"), "{error}");
}

/// What a store says of a session; panics on a lie. `true` when all of it is there.
fn is_whole(store: &LocalStore, writer: &Writer) -> bool {
    let found = match store.find(&writer.birth.key) {
        Err(StoreError::Damaged { .. }) => return false,
        found => found.unwrap().expect("a session is gone, and nothing is said"),
    };
    match read_all(store, writer.log) {
        Ok(events) if found.damage.is_none() => {
            assert_eq!(events, writer.events);
            true
        }
        Ok(events) => {
            assert_eq!(events, writer.events[..events.len()]);
            false
        }
        Err(StoreError::Damaged { damage, .. }) => {
            assert!(damage.good_next_seq < writer.next_seq);
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn any_flipped_bit_of_a_sealed_file_under_an_open_store_is_seen_and_costs_one_log() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writers, _) = given(dir.path());
    store.seal().unwrap();
    close(store, dir.path());
    let store = open(dir.path());
    let path = sealed_path(dir.path(), 1);
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut seen = 0;
    for bit in 0..bytes.len() * 8 {
        let at = bit / 8;
        file.write_all_at(&[bytes[at] ^ (1 << (bit % 8))], at as u64).unwrap();
        let damaged = writers.iter().filter(|writer| !is_whole(&store, writer)).count();
        assert!(damaged <= 1, "bit {bit}");
        seen += damaged;
        file.write_all_at(&[bytes[at]], at as u64).unwrap();
    }
    println!("{} bits flipped, {seen} seen by a reader", bytes.len() * 8);
    assert!(seen > 1000);
    for length in (0..bytes.len()).step_by(7) {
        file.set_len(length as u64).unwrap();
        *store.shared.segments.lock() = HashMap::new();
        writers.iter().for_each(|writer| assert!([true, false].contains(&is_whole(&store, writer))));
    }
    assert_eq!(store.rebuilds(), 0, "damage in a sealed file is not the index's fault");
    close(store, dir.path());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_with_one_damaged_sealed_file_opens_and_tells_the_truth(
        at in any::<prop::sample::Index>(),
        cut in prop::bool::weighted(0.3),
        without_index in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (store, writers, _) = given(dir.path());
        store.seal().unwrap();
        close(store, dir.path());
        let path = sealed_path(dir.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        if cut {
            bytes.truncate(at.index(bytes.len()));
        } else {
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        std::fs::write(&path, &bytes).unwrap();
        if without_index {
            lose_index(dir.path());
        }
        let store = open(dir.path());
        let whole: Vec<bool> = writers.iter().map(|writer| is_whole(&store, writer)).collect();
        if !cut {
            assert!(whole.iter().filter(|whole| !**whole).count() <= 1, "one flipped bit costs one log at most");
        }
        let mut new = Writer::new(&store, key("new"));
        store.commit(&[new.create(), new.append(2, 100)], 9).unwrap();
        store.seal().unwrap();
        close(store, dir.path());
        lose_index(dir.path());
        let store = open(dir.path());
        new.check(&store);
        for (writer, was) in writers.iter().zip(&whole) {
            assert!(*was || !is_whole(&store, writer), "damage is not forgotten");
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "a damaged file stays");
        close(store, dir.path());
    }
}

#[test]
fn the_worker_seals_what_is_finished_while_appends_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let background = Options {
        seal: true,
        seal_batch_bytes: 1 << 20,
        checkpoint_interval: Duration::from_millis(20),
        ..options(1 << 20)
    };
    let store = LocalStore::open(dir.path(), background).unwrap();
    let mut writers: Vec<_> = (0..20).map(|n| Writer::new(&store, key(&format!("s{n}")))).collect();
    store.commit(&writers.iter().map(Writer::create).collect::<Vec<_>>(), 1).unwrap();
    let mut time = 1;
    while store.sealing().sealed_files < 3 {
        time += 1;
        let at = time as usize % writers.len();
        store.commit(&[writers[at].append(1 + time as u32 % 7, 2000)], time).unwrap();
        if time.is_multiple_of(50) {
            writers[at].check(&store);
        }
    }
    writers.iter().for_each(|writer| writer.check(&store));
    assert_eq!((store.rebuilds(), store.sealing().problem), (0, None));
    close(store, dir.path());
    lose_index(dir.path());
    let store = open(dir.path());
    writers.iter().for_each(|writer| writer.check(&store));
    close(store, dir.path());
}
