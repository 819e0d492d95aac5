//! Failing disks, full disks, crashes in the middle of things.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::super::segment::{Device, Segment};
use super::*;
use crate::store::contract::{Writer, everything, key, list_all, read_all};

/// A segment file whose calls can fail, and that remembers what was written.
struct Failing {
    file: fs::File,
    writes: Arc<AtomicUsize>,
    syncs: Arc<AtomicUsize>,
    /// The write and the sync that fail, from 1.
    fails: (usize, usize),
}

impl Device for Failing {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.writes.fetch_add(1, Ordering::SeqCst) + 1 == self.fails.0 {
            // What a torn write leaves.
            let group = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            Device::write(&self.file, at, &bytes[..group / 1024 * 512])?;
            return Err(io::Error::other("a planned failure to write"));
        }
        Device::write(&self.file, at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        if self.syncs.fetch_add(1, Ordering::SeqCst) + 1 == self.fails.1 {
            return Err(io::Error::other("a planned failure to sync"));
        }
        Device::sync(&self.file)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        Device::read(&self.file, at, bytes)
    }
}

/// A store whose current segment fails, and its counts of writes and syncs.
fn failing(dir: &Path, fails: (usize, usize)) -> (LocalStore, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let store = open(dir);
    let file = fs::OpenOptions::new().read(true).write(true).open(segment_path(dir, 1)).unwrap();
    let (writes, syncs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let device = Failing { file, writes: writes.clone(), syncs: syncs.clone(), fails };
    let segment = Arc::new(Segment::on(1, SEGMENT_BYTES, Box::new(device)));
    let cursor = store.shared.journal.lock().cursor();
    *store.shared.journal.lock() =
        Journal::new(store.id(), (segment, cursor), store.shared.spares.clone(), Arc::default());
    (store, writes, syncs)
}

#[test]
fn every_commit_is_one_write_and_one_sync_before_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writes, syncs) = failing(dir.path(), (0, 0));
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create(), a.append(3, 3000)], 1).unwrap();
    for n in 2..6 {
        store.commit(&[a.append(n as u32, 10), a.append(1, 10)], 1).unwrap();
        assert_eq!((writes.load(Ordering::SeqCst), syncs.load(Ordering::SeqCst)), (n, n));
    }
    close(store, dir.path());
}

#[test]
fn a_failed_write_or_sync_at_any_call_poisons_and_loses_nothing() {
    for (n, in_sync) in (1..=5).flat_map(|n| [(n, false), (n, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let fails = if in_sync { (0, n) } else { (n, 0) };
        let (store, writes, _) = failing(dir.path(), fails);
        let mut a = Writer::new(&store, key("a"));
        let mut acknowledged = None;
        for call in 1..=7 {
            let mut next = a.clone();
            let change = if call == 1 { vec![next.create()] } else { vec![next.append(2, 700)] };
            match store.commit(&change, 1) {
                Ok(()) => {
                    assert!(call < n);
                    a = next;
                    acknowledged = Some(a.clone());
                }
                Err(error) => {
                    assert!(call >= n && matches!(error, StoreError::Poisoned(_)), "{error}");
                    assert!(matches!(store.health(), Health::Poisoned(_)));
                }
            }
            // Reads go on, and do not show what was not acknowledged.
            match &acknowledged {
                Some(a) => a.check(&store),
                None => assert!(store.find(&key("a")).unwrap().is_none()),
            }
        }
        assert_eq!(writes.load(Ordering::SeqCst), n, "nothing is written after a failure");
        // Even a rebuild of the index takes nothing of the failed group, and leaves the journal alone.
        let before = fs::read(segment_path(dir.path(), 1)).unwrap();
        store.shared.rebuild(&mut store.shared.journal.lock()).unwrap();
        assert_eq!(fs::read(segment_path(dir.path(), 1)).unwrap(), before);
        acknowledged.iter().for_each(|a| a.check(&store));
        assert_eq!(store.position().0, n as u64 - 1);
        close(store, dir.path());
        let store = open(dir.path());
        assert_eq!(store.recovery().damaged_places, 0);
        let found = store.find(&key("a")).unwrap();
        let position = store.position().0;
        assert_eq!(position, n as u64 - u64::from(!in_sync), "a torn group is absent, a whole one there");
        assert_eq!(found.is_some(), position > 0);
        if let Some(found) = found {
            let events = read_all(&store, found.session.log).unwrap();
            assert_eq!(events.len() as u64, (position - 1) * 2);
            assert_eq!(found.damage, None);
        }
        close(store, dir.path());
    }
}

#[test]
fn the_last_group_is_written_and_synced_once_more_at_open() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("segment"), vec![7; 8192]).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(dir.path().join("segment")).unwrap();
    let (writes, syncs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let device = Failing { file, writes: writes.clone(), syncs: syncs.clone(), fails: (0, 0) };
    let segment = Segment::on(1, 8192, Box::new(device));
    let group = replay::Spot { segment: 1, offset: 4096, bytes: 1024 };
    DataDir::settle(&segment, group).unwrap();
    assert_eq!((writes.load(Ordering::SeqCst), syncs.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(fs::read(dir.path().join("segment")).unwrap(), vec![7; 8192]);
}

#[test]
fn opening_after_a_kill_settles_the_end_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create(), a.append(2, 10)], 1).unwrap();
    let killed = image(dir.path());
    close(store, dir.path());
    let path = segment_path(killed.path(), 1);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let before = fs::read(&path).unwrap();
    let store = open(killed.path());
    assert_ne!(fs::metadata(&path).unwrap().modified().unwrap(), std::time::UNIX_EPOCH, "it was written once more");
    assert_eq!(fs::read(&path).unwrap(), before);
    a.check(&store);
    close(store, killed.path());
}

#[test]
fn a_group_goes_into_the_next_segment_when_it_does_not_fit_and_one_that_never_fits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create()], 1).unwrap();
    for n in 0..7 {
        store.commit(&[a.append(1, 400_000)], 1).unwrap();
        assert_eq!(store.shared.journal.lock().cursor().segment, 1 + n / 2);
    }
    a.check(&store);
    let too_large = a.clone().append(1, SEGMENT_BYTES as usize);
    assert!(matches!(store.commit(&[too_large], 1), Err(StoreError::Defect(_))));
    a.check(&store);
    close(store, dir.path());
    let store = open(dir.path());
    a.check(&store);
    store.commit(&[a.append(1, 10)], 1).unwrap();
    a.check(&store);
    close(store, dir.path());
}

#[test]
fn a_store_that_keeps_no_spares_still_goes_on_in_the_next_segment() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), Options { spare_segments: 0, ..options(SEGMENT_BYTES) }).unwrap();
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create()], 1).unwrap();
    (0..4).for_each(|_| store.commit(&[a.append(1, 700_000)], 1).unwrap());
    a.check(&store);
    close(store, dir.path());
}

#[test]
fn a_checkpoint_bounds_the_replay() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create()], 1).unwrap();
    for n in 0..60 {
        store.commit(&[a.append(1, 100)], 1).unwrap();
        if n == 50 {
            store.checkpoint();
        }
    }
    let killed = image(dir.path());
    close(store, dir.path());
    let store = open(killed.path());
    assert_eq!((store.recovery().replayed, &store.recovery().rebuilt), (9, &None));
    a.check(&store);
    close(store, killed.path());
    for dir in [killed.path(), dir.path()] {
        let store = open(dir);
        assert_eq!(store.recovery().replayed, 0, "a closed store replays nothing");
        a.check(&store);
        close(store, dir);
    }
}

/// The state of the index that a kill leaves between two batches of a checkpoint.
#[test]
fn an_unfinished_checkpoint_hides_no_session() {
    for keep in ["n", "nr", "nrs", "nrsa", "r", "s", "rs"] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut writers: Vec<_> = (0..3).map(|n| Writer::new(&store, key(&format!("s{n}")))).collect();
        store.commit(&[writers[0].create(), writers[0].append(2, 10)], 1).unwrap();
        store.checkpoint();
        let gone = Writer::new(&store, key("gone"));
        store.commit(&[writers[1].create(), writers[1].append(2, 10), gone.create()], 2).unwrap();
        store.commit(&[writers[0].append(1, 10), gone.delete(), writers[2].create()], 3).unwrap();
        let before = image(dir.path());
        close(store, dir.path());
        // Everything of the kinds in `keep` is as after the checkpoint, the rest as before it.
        let after = sled::open(dir.path().join("index")).unwrap();
        let unfinished = sled::open(before.path().join("index")).unwrap();
        for kind in keep.chars() {
            let prefix = kind.to_string();
            unfinished.scan_prefix(&prefix).keys().for_each(|key| drop(unfinished.remove(key.unwrap()).unwrap()));
            for item in after.scan_prefix(&prefix) {
                let (key, value) = item.unwrap();
                unfinished.insert(key, value).unwrap();
            }
        }
        if !keep.contains('a') && keep.contains('s') {
            // The old row goes before the session changes.
            unfinished.scan_prefix("a").keys().for_each(|key| drop(unfinished.remove(key.unwrap()).unwrap()));
        }
        drop(unfinished);
        let store = open(before.path());
        writers.iter().for_each(|writer| writer.check(&store));
        assert!(store.find(&key("gone")).unwrap().is_none());
        assert_eq!(list_all(&store, &everything(), 2).len(), 3, "with only {keep:?} written");
        close(store, before.path());
        let store = open(before.path());
        writers.iter().for_each(|writer| writer.check(&store));
        close(store, before.path());
    }
}

#[test]
fn a_session_whose_name_was_not_written_yet_gets_it_from_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let new = Writer::new(&store, key("new"));
    store.commit(&[new.create()], 2).unwrap();
    let before = image(dir.path());
    close(store, dir.path());
    let after = sled::open(dir.path().join("index")).unwrap();
    let unfinished = sled::open(before.path().join("index")).unwrap();
    for item in after.scan_prefix("s").chain(after.scan_prefix("a")) {
        let (key, value) = item.unwrap();
        unfinished.insert(key, value).unwrap();
    }
    drop(unfinished);
    let store = open(before.path());
    assert_eq!((store.recovery().replayed, &store.recovery().rebuilt), (1, &None));
    new.check(&store);
    close(store, before.path());
    let store = open(before.path());
    new.check(&store);
    close(store, before.path());
}

#[test]
fn a_checkpoint_after_a_failed_one_does_not_bless_what_was_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (mut a, mut b) = (Writer::new(&store, key("a")), Writer::new(&store, key("b")));
    store.commit(&[a.create(), a.append(2, 10)], 1).unwrap();
    {
        // What a failed write to the index leaves in the view.
        let mut view = store.shared.view.write();
        let next = view.table.successor();
        view.frozen = Some(Arc::new(std::mem::replace(&mut view.table, next)));
    }
    store.commit(&[b.create(), b.append(1, 10)], 2).unwrap();
    store.checkpoint();
    a.check(&store);
    close(store, dir.path());
    let store = open(dir.path());
    a.check(&store);
    b.check(&store);
    close(store, dir.path());
}

#[test]
fn an_index_that_breaks_under_an_open_store_is_built_anew_while_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut writers: Vec<_> = (0..20).map(|n| Writer::new(&store, key(&format!("s{n}")))).collect();
    for writer in &mut writers {
        store.commit(&[writer.create(), writer.append(2, 10)], 1).unwrap();
    }
    store.checkpoint();
    // An empty index in the place of the full one: the names are gone, the heads of the table are not.
    store.commit(&writers.iter_mut().map(|writer| writer.append(1, 10)).collect::<Vec<_>>(), 2).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let (index, _) = Index::open(empty.path(), store.id(), 1 << 20).unwrap();
    store.shared.view.write().index = Some(Arc::new(index));
    let readers = || {
        while store.read(writers[0].log, Seq::ZERO, 1000).is_err() {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(readers))));
    writers.iter().for_each(|writer| writer.check(&store));
    assert_eq!(store.rebuilds(), 1, "once, however many readers met it");
    store.commit(&[writers[0].append(1, 10)], 3).unwrap();
    close(store, dir.path());
    let store = open(dir.path());
    writers.iter().for_each(|writer| writer.check(&store));
    close(store, dir.path());
}

#[test]
fn no_room_for_segments_is_full_and_ends_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            std::thread::yield_now();
        }
    };
    until(&|| segment_path(dir.path(), 2).exists());
    // A directory where the draft of the next segment should be made.
    let obstacle = segment_path(dir.path(), 3).with_extension("draft");
    fs::create_dir(&obstacle).unwrap();
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create(), a.append(1, 700_000)], 1).unwrap();
    assert_eq!(store.health(), Health::Writable, "there is a spare");
    store.commit(&[a.append(1, 700_000)], 1).unwrap();
    until(&|| matches!(store.health(), Health::Full(_)));
    // What is on its way still fits.
    store.commit(&[a.append(1, 100_000)], 1).unwrap();
    a.check(&store);
    fs::remove_dir(&obstacle).unwrap();
    until(&|| store.health() == Health::Writable);
    store.commit(&[a.append(1, 700_000)], 1).unwrap();
    assert_eq!(store.shared.journal.lock().cursor().segment, 3);
    close(store, dir.path());
    let store = open(dir.path());
    a.check(&store);
    close(store, dir.path());
}

#[test]
fn a_commit_that_finds_no_room_poisons_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), options(SEGMENT_BYTES)).unwrap();
    let mut a = Writer::new(&store, key("a"));
    store.commit(&[a.create(), a.append(1, 700_000)], 1).unwrap();
    while !segment_path(dir.path(), 2).exists() {
        std::thread::yield_now();
    }
    // The spare is taken, and no other can be made.
    fs::create_dir(segment_path(dir.path(), 3).with_extension("draft")).unwrap();
    store.commit(&[a.append(1, 700_000)], 1).unwrap();
    let refused = a.clone().append(1, 700_000);
    assert!(matches!(store.commit(&[refused], 1), Err(StoreError::Poisoned(_))));
    assert!(matches!(store.commit(&[a.clone().append(1, 1)], 1), Err(StoreError::Poisoned(_))));
    close(store, dir.path());
    fs::remove_dir(segment_path(dir.path(), 3).with_extension("draft")).unwrap();
    let store = open(dir.path());
    a.check(&store);
    assert_eq!(store.recovery().torn_bytes, 0);
    close(store, dir.path());
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Commits, reads, lists, checkpoints and rebuilds at once: no deadlock, no wrong answer.
#[test]
fn readers_checkpoints_and_rebuilds_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut writers: Vec<_> = (0..8).map(|n| Writer::new(&store, key(&format!("s{n}")))).collect();
    store.commit(&writers.iter().map(Writer::create).collect::<Vec<_>>(), 1).unwrap();
    let heads: Vec<_> = writers.iter().map(|_| AtomicUsize::new(0)).collect();
    let (logs, done): (Vec<_>, _) = (writers.iter().map(|writer| writer.log).collect(), AtomicBool::new(false));
    let is_done = || done.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        // Also when this thread panics, or the others would run for ever.
        let _stop = Stop(&done);
        scope.spawn(|| {
            while !is_done() {
                store.checkpoint();
            }
        });
        scope.spawn(|| {
            while !is_done() {
                store.shared.ask_for_rebuild(store.rebuilds());
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !is_done() {
                for (n, log) in logs.iter().enumerate() {
                    let acknowledged = heads[n].load(Ordering::SeqCst);
                    match read_all(&store, *log) {
                        Ok(events) => assert!(events.len() >= acknowledged, "{} of {acknowledged}", events.len()),
                        Err(error) => assert!(matches!(error, StoreError::Rebuilding), "{error}"),
                    }
                }
            }
        });
        scope.spawn(|| {
            while !is_done() {
                match store.list(&everything(), None, 100) {
                    Ok(page) => assert_eq!(page.sessions.len(), logs.len()),
                    Err(error) => assert!(matches!(error, StoreError::Rebuilding), "{error}"),
                }
            }
        });
        for round in 0..300 {
            let n = round % writers.len();
            store.commit(&[writers[n].append(1, 50)], round as u64).unwrap();
            heads[n].store(writers[n].events.len(), Ordering::SeqCst);
        }
    });
    while store.find(&key("s0")).is_err() {
        std::thread::yield_now();
    }
    close(store, dir.path());
    let store = open(dir.path());
    writers.iter().for_each(|writer| writer.check(&store));
    close(store, dir.path());
}
