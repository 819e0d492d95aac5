//! The sealer: which journal segments are sealed when, and the order of the steps.
//!
//! Works on its own thread, below the priority of everybody else, and while appends are running no faster than it is
//! allowed to. An error stops it until the store is opened anew, except for want of space: the journal is still
//! there, and nothing depends on it being sealed soon.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::file::{self, SealedFile};
use super::progress::Sealing;
use super::scan::Batch;
use super::{relocate, verify, write};
use crate::codec::segment::Directory;
use crate::store::StoreError;
use crate::store::local::Shared;
use crate::store::local::segment::{self, Segment};

/// Appends are running when the last commit is not longer ago.
const BUSY: Duration = Duration::from_millis(500);
/// Time between two looks at what there is to do.
const LOOK: Duration = Duration::from_secs(1);
/// Time before sealing is tried again when there was no space.
const RETRY: Duration = Duration::from_secs(60);

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Halt {
    #[error("the store is being closed")]
    Closed,
    #[error("{0}; the journal is kept")]
    Wrong(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the steps of a pass report to: the seam for tests that fail or interrupt one.
pub(super) trait Steps {
    /// Before something is done to a file.
    fn step(&self, name: &'static str) -> io::Result<()>;
    /// After so many bytes of work; waits if that was too fast, and ends the pass if the store is being closed.
    fn pace(&self, bytes: u64) -> Result<(), Halt>;
}

#[cfg(test)]
pub(in crate::store::local) type Hook = Arc<dyn Fn(&'static str) -> io::Result<()> + Send + Sync>;

/// The state of sealing of one store.
pub(in crate::store::local) struct Sealer {
    dir: PathBuf,
    files: RwLock<Vec<SealedFile>>,
    dictionaries: Mutex<HashMap<u64, Arc<Vec<u8>>>>,
    pub(super) state: Mutex<State>,
    changed: Condvar,
    /// One pass at a time.
    passing: Mutex<()>,
    retired_bytes: AtomicU64,
    opened: Instant,
    last_commit_ms: AtomicU64,
    #[cfg(test)]
    pub(in crate::store::local) hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
pub(super) struct State {
    closed: bool,
    last_number: u64,
    /// Damaged journal segments.
    pub(super) kept: BTreeSet<u64>,
    problem: Option<Arc<str>>,
}

impl Sealer {
    /// With the files that are there, of which the last has that number.
    pub(in crate::store::local) fn new(dir: &Path, (files, last_number): (Vec<SealedFile>, u64)) -> Self {
        Self {
            dir: dir.to_owned(),
            files: RwLock::new(files),
            dictionaries: Mutex::default(),
            state: Mutex::new(State { last_number, ..State::default() }),
            changed: Condvar::new(),
            passing: Mutex::default(),
            retired_bytes: AtomicU64::new(0),
            opened: Instant::now(),
            last_commit_ms: AtomicU64::new(0),
            #[cfg(test)]
            hook: Mutex::default(),
        }
    }

    /// The sealed files in order.
    pub(in crate::store::local) fn files(&self) -> Vec<SealedFile> {
        self.files.read().clone()
    }

    /// The last journal segment that some sealed file stands for.
    pub(in crate::store::local) fn last_journal(&self) -> u64 {
        self.files.read().iter().map(|file| file.journals().1).max().unwrap_or(0)
    }

    /// Whether some sealed file stands for that journal segment.
    pub(in crate::store::local) fn covers(&self, journal: u64) -> bool {
        self.files.read().iter().any(|file| file.covers(journal))
    }

    /// The dictionary of a sealed file, which is kept.
    pub(in crate::store::local) fn dictionary(&self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        const KEPT: usize = 64;
        if let Some(known) = self.dictionaries.lock().get(&number) {
            return Ok(known.clone());
        }
        let file = self.files.read().iter().find(|file| file.number() == number).cloned();
        let file = file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such sealed file"))?;
        let dictionary = Arc::new(file.dictionary()?);
        let mut kept = self.dictionaries.lock();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(number, dictionary.clone());
        Ok(dictionary)
    }

    /// The path of a sealed file.
    pub(in crate::store::local) fn path(&self, number: u64) -> PathBuf {
        file::path(&self.dir, number)
    }

    /// To be called with every commit.
    pub(in crate::store::local) fn note_commit(&self) {
        self.last_commit_ms.store(self.opened.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Time since the last commit, or since the store was opened.
    pub(super) fn idle(&self) -> Duration {
        self.opened.elapsed().saturating_sub(Duration::from_millis(self.last_commit_ms.load(Ordering::Relaxed)))
    }

    /// Ends the worker; a pass that is running is given up.
    pub(in crate::store::local) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// `true` when the store is being closed.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.closed {
            self.changed.wait_for(&mut state, time);
        }
        state.closed
    }
}

/// A pass: asks the hook of tests, and keeps to the rate.
struct Pass<'a> {
    shared: &'a Shared,
    /// On demand, at full speed.
    now: bool,
}

impl Steps for Pass<'_> {
    #[cfg(test)]
    fn step(&self, name: &'static str) -> io::Result<()> {
        let hook = self.shared.sealer.hook.lock().clone();
        hook.map_or(Ok(()), |hook| hook(name))
    }

    #[cfg(not(test))]
    fn step(&self, _: &'static str) -> io::Result<()> {
        Ok(())
    }

    fn pace(&self, bytes: u64) -> Result<(), Halt> {
        let sealer = &self.shared.sealer;
        let rate = self.shared.options.seal_bytes_per_second.max(1);
        let is_free = self.now || sealer.idle() > BUSY;
        let time = if is_free { Duration::ZERO } else { Duration::from_secs_f64(bytes as f64 / rate as f64) };
        let is_closed = if time.is_zero() { sealer.state.lock().closed } else { sealer.wait(time) };
        if is_closed && !self.now { Err(Halt::Closed) } else { Ok(()) }
    }
}

impl Shared {
    /// Seals until closed.
    pub(in crate::store::local) fn seal_until_closed(&self) {
        // Best effort: without it the rate alone keeps the sealer from being in the way.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
        let mut pause = LOOK;
        while !self.sealer.wait(pause) {
            pause = LOOK;
            if self.sealer.state.lock().problem.is_some() || self.poisoned.read().is_some() {
                continue;
            }
            let outcome = self.roll_when_idle().and_then(|()| self.pass(false));
            match outcome {
                Ok(_) | Err(Halt::Closed) => {}
                Err(Halt::Io(error)) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!(%error, "no space for a sealed file; the journal is kept");
                    pause = RETRY;
                }
                Err(error) => self.stop_sealing(&error),
            }
        }
    }

    fn stop_sealing(&self, error: &Halt) {
        tracing::error!(%error, "sealing stops until the store is opened anew; appends and reads go on");
        self.sealer.state.lock().problem = Some(error.to_string().into());
    }

    /// A store that nobody writes to seals its last segment too.
    fn roll_when_idle(&self) -> Result<(), Halt> {
        const WORTH_BYTES: u64 = 1 << 20;
        let idle = self.options.seal_idle;
        if !idle.is_zero() && self.sealer.idle() >= idle && self.journal.lock().cursor().offset > WORTH_BYTES {
            self.roll()?;
        }
        Ok(())
    }

    /// Begins a new journal segment, and lets the index cover the ones before.
    fn roll(&self) -> Result<(), StoreError> {
        {
            let mut journal = self.journal.lock();
            if let Some(reason) = self.poisoned.read().clone() {
                return Err(StoreError::Poisoned(reason));
            }
            journal.roll()?;
            self.view.write().table.cursor = journal.cursor();
        }
        self.checkpoint();
        Ok(())
    }

    /// Seals everything that was committed before the call.
    pub(in crate::store::local) fn seal_now(&self) -> Result<(), StoreError> {
        if let Some(problem) = self.sealer.state.lock().problem.clone() {
            return Err(StoreError::Io(Arc::new(io::Error::other(problem.to_string()))));
        }
        self.roll()?;
        loop {
            match self.pass(true) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Halt::Store(error)) => return Err(error),
                Err(error) => {
                    self.stop_sealing(&error);
                    return Err(StoreError::Io(Arc::new(io::Error::other(error.to_string()))));
                }
            }
        }
    }

    /// Seals one batch; `false` when there was nothing to do.
    fn pass(&self, now: bool) -> Result<bool, Halt> {
        let _one = self.sealer.passing.lock();
        let pass = Pass { shared: self, now };
        let numbers = segment::numbers(&self.dir.journal())?;
        for sealed in self.sealer.files() {
            if numbers.iter().any(|&number| sealed.covers(number)) {
                self.complete(&sealed, &numbers, &pass)?;
                return Ok(true);
            }
        }
        let Some(mut batch) = self.gather(&numbers, now)? else { return Ok(false) };
        let runs = batch.logs.len();
        let mut failure = Ok(());
        batch.retain(|log, part, run| self.is_wanted(log, part, run, &mut failure));
        failure?;
        if batch.logs.len() < runs {
            tracing::debug!(logs = runs - batch.logs.len(), "what was purged is not sealed");
        }
        let number = {
            let mut state = self.sealer.state.lock();
            state.last_number += 1;
            state.last_number
        };
        let draft = file::draft_path(&self.sealer.dir, number);
        let done = self.seal(number, &batch, &pass);
        if done.is_err() && !file::path(&self.sealer.dir, number).exists() {
            drop(std::fs::remove_file(draft));
        }
        done.map(|()| true)
    }

    fn seal(&self, number: u64, batch: &Batch, pass: &Pass<'_>) -> Result<(), Halt> {
        let draft = file::draft_path(&self.sealer.dir, number);
        let (header, _) = write::write(&draft, (self.id, number), (batch, self.options.seal_level), pass)?;
        pass.step("read the draft back")?;
        let written = SealedFile::open(draft.clone(), number, self.id).map_err(|e| Halt::Wrong(e.to_string()))?;
        if written.header != header {
            return Err(Halt::Wrong("a header reads differently".to_owned()));
        }
        let directory = verify::verify(&written, batch, pass)?;
        // From here on nothing may come in between: a rebuild reads either the journal or the file.
        let _guard = self.checkpointing.lock();
        pass.step("raise the format")?;
        self.dir.raise_format()?;
        pass.step("name the file")?;
        std::fs::rename(&draft, file::path(&self.sealer.dir, number))?;
        pass.step("sync the name")?;
        std::fs::File::open(&self.sealer.dir)?.sync_all()?;
        let path = file::path(&self.sealer.dir, number);
        let sealed = SealedFile::open(path, number, self.id).map_err(|e| Halt::Wrong(e.to_string()))?;
        {
            let mut files = self.sealer.files.write();
            files.push(sealed.clone());
            files.sort_by_key(SealedFile::journals);
        }
        self.switch(&sealed, &directory, pass)?;
        self.retire(&sealed, pass)
    }

    /// Does what a crash left to do behind the name of a sealed file.
    fn complete(&self, sealed: &SealedFile, numbers: &[u64], pass: &Pass<'_>) -> Result<(), Halt> {
        let (first, last) = sealed.journals();
        std::fs::File::open(&self.sealer.dir)?.sync_all()?;
        let mut directory = sealed.directory()?;
        if (first..=last).all(|number| numbers.binary_search(&number).is_ok()) {
            let mut batch = Batch::default();
            for number in first..=last {
                let segment = Arc::new(Segment::open(&self.dir.journal(), number, self.id)?);
                batch.add(&segment, self.id)?.map_err(Halt::Wrong)?;
            }
            let mut failure = Ok(());
            batch.retain(|log, part, run| {
                directory.holds(log, part, run.first_seq) || self.is_wanted(log, part, run, &mut failure)
            });
            failure?;
            directory = verify::verify(sealed, &batch, pass)?;
        }
        // Else some were retired already, which happens only behind the comparison.
        let _guard = self.checkpointing.lock();
        self.switch(sealed, &directory, pass)?;
        self.retire(sealed, pass)
    }

    /// Lets the index point at a sealed file, durably.
    fn switch(&self, sealed: &SealedFile, directory: &Directory, pass: &Pass<'_>) -> Result<(), Halt> {
        let index = self.view.read().index.clone().ok_or(StoreError::Rebuilding)?;
        pass.step("move the places")?;
        // Odd while places are on the move.
        self.moves.fetch_add(1, Ordering::SeqCst);
        let moved = relocate::relocate(&index, sealed.number(), &directory.entries);
        self.moves.fetch_add(1, Ordering::SeqCst);
        moved?;
        pass.step("sync the index")?;
        index.sync().map_err(StoreError::from)?;
        Ok(())
    }

    /// Removes the journal segments that a sealed file stands for.
    fn retire(&self, sealed: &SealedFile, pass: &Pass<'_>) -> Result<(), Halt> {
        let (first, last) = sealed.journals();
        for number in first..=last {
            let path = segment::path(&self.dir.journal(), number);
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            pass.step("retire a journal segment")?;
            self.moves.fetch_add(2, Ordering::SeqCst);
            std::fs::remove_file(&path)?;
            self.segments.lock().remove(&number);
            self.sealer.retired_bytes.fetch_add(meta.len(), Ordering::Relaxed);
        }
        pass.step("sync the journal")?;
        std::fs::File::open(self.dir.journal())?.sync_all()?;
        tracing::info!(file = sealed.number(), first, last, bytes = sealed.header.file_bytes, "sealed");
        Ok(())
    }

    /// How far sealing is.
    pub(in crate::store::local) fn sealing(&self) -> Sealing {
        let files = self.sealer.files();
        let covered = self.covered.load(Ordering::SeqCst);
        let (kept, problem) = {
            let state = self.sealer.state.lock();
            (state.kept.clone(), state.problem.clone())
        };
        let waiting: Vec<u64> = segment::numbers(&self.dir.journal()).unwrap_or_default();
        let waiting = waiting.into_iter().filter(|number| *number < covered && !kept.contains(number));
        let sizes = waiting.filter_map(|n| Some(std::fs::metadata(segment::path(&self.dir.journal(), n)).ok()?.len()));
        let sizes: Vec<u64> = sizes.collect();
        Sealing {
            sealed_files: files.len() as u64,
            sealed_bytes: files.iter().map(|file| file.header.file_bytes).sum(),
            debt_files: sizes.len() as u64,
            debt_bytes: sizes.iter().sum(),
            kept_files: kept.len() as u64,
            retired_bytes: self.sealer.retired_bytes.load(Ordering::Relaxed),
            problem,
        }
    }
}
