//! Comparing a sealed file with the journal segments that it is to replace, byte for byte and by the chain.

use std::os::unix::fs::FileExt;

use super::file::SealedFile;
use super::scan::{Batch, Source};
use super::worker::{Halt, Steps};
use crate::codec::event::Skimmed;
use crate::codec::segment::{Block, Directory, Entry, FILE_HEADER_BYTES, FileHeader, Part};
use crate::codec::{Chain, Summary};
use crate::model::Seq;

fn wrong<T>(what: &str) -> Result<T, Halt> {
    Err(Halt::Wrong(what.to_owned()))
}

/// `Ok` only if the file, read now, gives back everything that the batch holds.
pub(super) fn verify(file: &SealedFile, batch: &Batch, steps: &dyn Steps) -> Result<Directory, Halt> {
    let (device, length) = file.device()?;
    let header = file.header;
    if length != header.file_bytes || header.journals != batch.journals || header.positions != batch.positions {
        return wrong("the header of a sealed file does not fit");
    }
    for offset in [0, length - FILE_HEADER_BYTES as u64] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        device.read_exact_at(&mut bytes, offset)?;
        if FileHeader::decode(&bytes) != Ok(header) {
            return wrong("a header of a sealed file reads differently");
        }
    }
    let directory = file.directory_at(&device, length, header.directories.0)?;
    if directory != file.directory_at(&device, length, header.directories.1)? || directory.states != batch.states {
        return wrong("a directory of a sealed file reads differently");
    }
    let dictionary = file.dictionary_at(&device, length, header.dictionaries.0)?;
    if dictionary != file.dictionary_at(&device, length, header.dictionaries.1)? {
        return wrong("a dictionary of a sealed file reads differently");
    }
    let mut entries = directory.entries.iter();
    for ((log, part), runs) in &batch.logs {
        let mut walk = Walk { log: *log, part: *part, runs, chain: None };
        while !walk.runs.is_empty() {
            let Some(entry) = entries.next() else { return wrong("a block is missing") };
            if entry.offset.saturating_add(u64::from(entry.bytes)) > length {
                return wrong("a block beyond the end");
            }
            let mut bytes = vec![0; entry.bytes as usize];
            device.read_exact_at(&mut bytes, entry.offset)?;
            walk.compare(entry, &bytes, &dictionary)?;
            steps.pace(u64::from(entry.bytes))?;
        }
    }
    if entries.next().is_none() { Ok(directory) } else { wrong("a block too many") }
}

struct Walk<'a> {
    log: u64,
    part: Part,
    /// What was not compared yet.
    runs: &'a [Source],
    /// The chain before it, as soon as it is known.
    chain: Option<Chain>,
}

impl Walk<'_> {
    fn compare(&mut self, entry: &Entry, stored: &[u8], dictionary: &[u8]) -> Result<(), Halt> {
        let block = Block::decode(stored, dictionary).map_err(|e| Halt::Wrong(e.to_string()))?;
        let header = block.header();
        let says = (header.log, header.first_seq, header.count, header.link, header.chain);
        if (entry.log, entry.part) != (self.log, self.part)
            || says != (entry.log, entry.first_seq, entry.count, entry.link, entry.chain)
        {
            return wrong("a block is not where the directory says");
        }
        let pieces = block.pieces(entry.first_seq, usize::MAX).map_err(|e| Halt::Wrong(e.to_string()))?;
        let (mut link, mut summary) = (entry.link, Summary::default());
        for piece in pieces {
            let mut rest = &piece.events[..];
            let mut seq = piece.first_seq;
            if piece.link != link {
                return wrong("a piece does not follow the one before");
            }
            while !rest.is_empty() {
                let Some((run, later)) = self.runs.split_first() else { return wrong("a run too many") };
                if run.header.first_seq != seq || run.header.link != link || !rest.starts_with(&run.events) {
                    return wrong("a run reads differently");
                }
                self.follow(run, &rest[..run.events.len()])?;
                summary.add(&Summary::of(&rest[..run.events.len()]));
                rest = &rest[run.events.len()..];
                seq = Seq::saturating(seq.get() + u64::from(run.header.count));
                (link, self.runs) = (run.header.chain.link(), later);
            }
            if piece.chain.link() != link || seq.get() != piece.first_seq.get() + u64::from(piece.count) {
                return wrong("a piece ends elsewhere");
            }
        }
        if summary != entry.summary {
            return wrong("a block is listed as something else");
        }
        if link == entry.chain.link() { Ok(()) } else { wrong("a block ends elsewhere") }
    }

    /// Computes the chain over what was read.
    fn follow(&mut self, run: &Source, events: &[u8]) -> Result<(), Halt> {
        // Copies need not follow each other.
        self.chain = self.chain.filter(|chain| chain.link() == run.header.link);
        let at_start = (run.header.first_seq == Seq::ZERO).then_some(Chain::START);
        let Some(mut chain) = self.chain.or(at_start) else {
            self.chain = Some(run.header.chain);
            return Ok(());
        };
        let mut rest = events;
        for event in Skimmed::all(events) {
            let (first, later) = rest.split_at(event.bytes);
            (chain, rest) = (chain.next(first), later);
        }
        if !rest.is_empty() {
            return wrong("an event cannot be read");
        }
        self.chain = Some(chain);
        if chain == run.header.chain { Ok(()) } else { wrong("the chain of a run is not that of its events") }
    }
}
