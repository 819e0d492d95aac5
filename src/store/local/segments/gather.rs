//! What is sealed next: finished journal segments that follow each other, and of them what is not purged.
//!
//! A segment that is damaged, or whose end is missing, is kept, and others are sealed around it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::scan::{self, Batch};
use super::worker::Halt;
use crate::codec::frame::RecordHeader;
use crate::codec::segment::Part;
use crate::store::local::Shared;
use crate::store::local::segment::Segment;
use crate::store::{LogId, StoreError};

impl Shared {
    /// Whether a run has to be kept. What was purged has not; what the store knows nothing about has.
    pub(super) fn is_wanted(
        &self,
        log: u64,
        part: Part,
        run: &RecordHeader,
        failure: &mut Result<(), StoreError>,
    ) -> bool {
        let log = LogId(log);
        let known = self.view.read().entry(log).and_then(|entry| match entry {
            Some(entry) if entry.deleted && part == Part::Own => self.needs(log, run.first_seq, run.next_seq()),
            _ => Ok(true),
        });
        known.unwrap_or_else(|error| {
            *failure = Err(error);
            true
        })
    }

    /// The next journal segments to be sealed together, if there are enough.
    pub(super) fn gather(&self, numbers: &[u64], now: bool) -> Result<Option<Batch>, Halt> {
        let covered = self.covered.load(Ordering::SeqCst);
        let kept = self.sealer.state.lock().kept.clone();
        let mut candidates = Vec::new();
        for &number in numbers.iter().filter(|&&number| number < covered && !kept.contains(&number)) {
            candidates.push(Arc::new(Segment::open(&self.dir.journal(), number, self.id)?));
        }
        let waiting: u64 = candidates.iter().map(|segment| segment.declared_bytes).sum();
        let is_enough = waiting >= self.options.seal_batch_bytes;
        let is_late = !self.options.seal_idle.is_zero() && self.sealer.idle() >= self.options.seal_idle;
        if !now && !is_enough && !is_late {
            return Ok(None);
        }
        let (mut batch, mut bytes) = (Batch::default(), 0);
        for segment in candidates {
            let follows = batch.is_empty() || segment.number == batch.journals.1 + 1;
            if !follows || (!batch.is_empty() && bytes + segment.actual_bytes > self.options.seal_batch_bytes) {
                break;
            }
            bytes += segment.actual_bytes;
            if let Err(reason) = batch.add(&segment, self.id)? {
                if batch.is_empty() || !reason.contains("first change") {
                    tracing::error!(segment = segment.number, %reason, "a journal segment cannot be sealed; it stays");
                    self.sealer.state.lock().kept.insert(segment.number);
                }
                if !batch.is_empty() {
                    break;
                }
            }
        }
        if batch.is_empty() || self.is_followed(&batch, numbers)? {
            return Ok((!batch.is_empty()).then_some(batch));
        }
        tracing::error!(segment = batch.journals.1, "a journal segment lacks its end; it stays");
        self.sealer.state.lock().kept.insert(batch.journals.1);
        Ok(None)
    }

    /// Whether what follows a batch follows it without a gap.
    fn is_followed(&self, batch: &Batch, numbers: &[u64]) -> Result<bool, Halt> {
        let last = batch.positions.1;
        for &number in numbers.iter().filter(|&&number| number > batch.journals.1) {
            let segment = Segment::open(&self.dir.journal(), number, self.id)?;
            match scan::first_position(&segment)? {
                0 => {}
                first => return Ok(first == last + 1),
            }
        }
        Ok(self.view.read().table.cursor.position == last)
    }
}
