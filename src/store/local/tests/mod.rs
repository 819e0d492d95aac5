//! The local engine against its promises: the contract, a model, crashes, damage, failing disks.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::needless_for_each, reason = "test code")]

mod damage;
mod faults;
mod files;
mod kinds;
mod model;
mod sharing;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::store::contract::{self, Harness};

const SEGMENT_BYTES: u64 = 1 << 20;

/// No checkpoint unless the test asks for one.
pub(super) fn options(segment_bytes: u64) -> Options {
    Options {
        segment_bytes,
        spare_segments: 1,
        index_cache_bytes: 1 << 20,
        checkpoint_interval: Duration::from_secs(3600),
        reserve_bytes: 0,
        seal: false,
        seal_level: 1,
        ..Options::default()
    }
}

pub(super) fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, options(SEGMENT_BYTES)).unwrap()
}

/// Closes a store and checks what must hold of every directory at rest.
pub(super) fn close(store: LocalStore, dir: &Path) {
    store.close();
    drop(store);
    check_at_rest(dir);
}

/// sled moves large pages to files that it never syncs; there must be none.
fn check_at_rest(dir: &Path) {
    let blobs = dir.join("index").join("blobs");
    let count = fs::read_dir(blobs).map_or(0, Iterator::count);
    assert_eq!(count, 0, "`blobs/` of the index must stay empty");
}

/// A copy of a data directory: what a killed process would leave.
pub(super) fn image(dir: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(dir, copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_into(&entry.path(), &target);
        } else if entry.path().extension().is_none_or(|name| name != "draft") {
            // A segment that is being made may get its name at this moment.
            drop(fs::copy(entry.path(), target));
        }
    }
}

pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    segment::path(&dir.join("journal"), number)
}

pub(super) fn evidence(dir: &Path, prefix: &str) -> usize {
    let names = fs::read_dir(dir.join("quarantine")).unwrap();
    names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with(prefix)).count()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    Checkpoint,
    Reopen,
    Kill,
    LoseIndex,
    Seal,
    SealKill,
    SealLoseIndex,
}

struct Local {
    dir: TempDir,
    store: Option<LocalStore>,
    between: Between,
}

impl Local {
    fn new(between: Between) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Some(open(dir.path()));
        Self { dir, store, between }
    }

    fn local(&self) -> &LocalStore {
        self.store.as_ref().unwrap()
    }

    fn close(&mut self) {
        if let Some(store) = self.store.take() {
            close(store, self.dir.path());
        }
    }
}

impl Harness for Local {
    fn store(&self) -> &dyn Store {
        self.local()
    }

    fn between(&mut self) {
        match self.between {
            Between::Nothing => return,
            Between::Checkpoint => return self.local().checkpoint(),
            Between::Seal => return self.local().seal().unwrap(),
            Between::Reopen => self.close(),
            Between::Kill | Between::SealKill => {
                if self.between == Between::SealKill {
                    self.local().seal().unwrap();
                }
                let copy = image(self.dir.path());
                self.close();
                self.dir = copy;
            }
            Between::LoseIndex | Between::SealLoseIndex => {
                if self.between == Between::SealLoseIndex {
                    self.local().seal().unwrap();
                }
                self.close();
                fs::remove_dir_all(self.dir.path().join("index")).unwrap();
            }
        }
        self.store = Some(open(self.dir.path()));
        assert_eq!(self.local().recovery().damaged_places, 0);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.close();
        }
    }
}

#[test]
fn the_contract_holds() {
    contract::hold(&|| Box::new(Local::new(Between::Nothing)));
}

#[test]
fn the_contract_holds_with_a_checkpoint_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::Checkpoint)));
}

#[test]
fn the_contract_holds_when_the_store_is_reopened_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::Reopen)));
}

#[test]
fn the_contract_holds_when_the_process_is_killed_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::Kill)));
}

#[test]
fn the_contract_holds_when_the_index_is_lost_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::LoseIndex)));
}

#[test]
fn the_contract_holds_when_everything_is_sealed_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::Seal)));
}

#[test]
fn the_contract_holds_when_a_sealed_store_is_killed_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::SealKill)));
}

#[test]
fn the_contract_holds_when_a_sealed_store_loses_its_index_after_every_step() {
    contract::hold(&|| Box::new(Local::new(Between::SealLoseIndex)));
}

/// A note is a shortcut only if it is there at the next open; what the index loses is made anew by nobody below.
#[test]
fn a_note_survives_what_the_index_survives() {
    for (between, survives) in [(Between::Reopen, true), (Between::Kill, true), (Between::LoseIndex, false)] {
        let mut local = Local::new(between);
        let mut a = contract::Writer::new(local.store(), contract::key("a"));
        local.store().commit(&[a.create(), a.append(3, 10)], 1).unwrap();
        let note = Note { next_seq: a.next_seq, chain: a.chain, bytes: vec![5; 30_000].into() };
        local.store().note(a.log, note.clone());
        local.local().checkpoint();
        local.store().commit(&[a.append(3, 10)], 2).unwrap();
        for _ in 0..2 {
            local.between();
            assert_eq!(local.store().noted(a.log), survives.then(|| note.clone()), "{between:?}");
        }
        a.check(local.store());
    }
}
