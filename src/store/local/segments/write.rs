//! Writing a draft: blocks as they are packed, the directory twice, the header at both ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::scan::{Batch, Source};
use super::worker::{Halt, Steps};
use crate::codec::Summary;
use crate::codec::segment::{Codec, Directory, Entry, FILE_HEADER_BYTES, FileHeader, Packer, Part};

/// A block is closed with the run that reaches one of these.
const PACKED_BYTES: usize = 256 << 10;
const CANONICAL_BYTES: u64 = 4 << 20;
const EVENTS: u32 = 16 << 10;

/// Writes a batch into a new file and syncs it. Gives what the file says of itself.
pub(super) fn write(
    path: &Path,
    (store, number): ([u8; 16], u64),
    (batch, level): (&Batch, i32),
    steps: &dyn Steps,
) -> Result<(FileHeader, Directory), Halt> {
    steps.step("create the draft")?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    let codec = Codec::with_dictionary(level, dictionary(batch)?);
    let mut plain = Codec::new(level);
    let mut shared = Vec::new();
    if !codec.dictionary().is_empty() {
        plain.deflate(codec.dictionary(), &mut shared);
    }
    file.write_all_at(&shared, FILE_HEADER_BYTES as u64)?;
    let offset = FILE_HEADER_BYTES as u64 + shared.len() as u64;
    let mut draft = Draft { file, offset, codec, entries: Vec::new(), steps };
    for (of, runs) in &batch.logs {
        draft.log(*of, runs)?;
    }
    let Draft { file, offset, entries, .. } = draft;
    let directory = Directory { states: batch.states.clone(), entries };
    let content = directory.encode(&mut plain);
    let (bytes, again) = (content.len() as u64, shared.len() as u64);
    let header = FileHeader {
        store,
        number,
        journals: batch.journals,
        positions: batch.positions,
        file_bytes: offset + 2 * bytes + again + FILE_HEADER_BYTES as u64,
        directories: (offset, offset + bytes + again),
        directory_bytes: content.len() as u32,
        directory_checksum: crc32c::crc32c(&content),
        dictionaries: (FILE_HEADER_BYTES as u64, offset + bytes),
        dictionary_bytes: shared.len() as u32,
        dictionary_checksum: crc32c::crc32c(&shared),
    };
    steps.step("write the directory")?;
    let end = [&content[..], &shared, &content, &header.encode()].concat();
    file.write_all_at(&end, offset)?;
    steps.step("write the header")?;
    file.write_all_at(&header.encode(), 0)?;
    steps.step("sync the draft")?;
    file.sync_all()?;
    // What is compared with the journal next is to come from the disk.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok((header, directory))
}

/// What the logs of a batch may have in common: how some of them begin. Sessions repeat instructions and tool
/// descriptions, and a block on its own would hold them once more.
fn dictionary(batch: &Batch) -> Result<Vec<u8>, Halt> {
    const LOGS: usize = 16;
    const BYTES: usize = 256 << 10;
    let events: usize = batch.logs.values().flatten().map(|run| run.events.len()).sum();
    let share = BYTES.min(events / 8) / LOGS;
    let mut text = Vec::new();
    if batch.logs.len() > 1 {
        for runs in batch.logs.values().step_by(batch.logs.len().div_ceil(LOGS)) {
            let mut packer = Packer::default();
            for run in runs {
                packer.push(&run.events, run.header.chain).map_err(|e| Halt::Wrong(e.to_string()))?;
                if packer.packed_bytes() >= share {
                    break;
                }
            }
            let own = packer.into_text();
            text.extend_from_slice(&own[..share.min(own.len())]);
        }
        // No text begins like a dictionary that zstd made itself.
        text.insert(0, b' ');
    }
    Ok(text)
}

struct Draft<'a> {
    file: File,
    offset: u64,
    codec: Codec,
    entries: Vec<Entry>,
    steps: &'a dyn Steps,
}

impl Draft<'_> {
    fn log(&mut self, of: (u64, Part), runs: &[Source]) -> Result<(), Halt> {
        let (mut packer, mut start) = (Packer::default(), 0);
        for (index, run) in runs.iter().enumerate() {
            packer.push(&run.events, run.header.chain).map_err(|e| Halt::Wrong(e.to_string()))?;
            let is_full = packer.packed_bytes() >= PACKED_BYTES
                || packer.canonical_bytes() >= CANONICAL_BYTES
                || packer.count() >= EVENTS
                || of.1 == Part::Copy;
            if is_full || index + 1 == runs.len() {
                self.block(of, &runs[start..=index], std::mem::take(&mut packer))?;
                start = index + 1;
            }
        }
        Ok(())
    }

    fn block(&mut self, (log, part): (u64, Part), runs: &[Source], packer: Packer) -> Result<(), Halt> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
        let (first_seq, link, chain) = (first.header.first_seq, first.header.link, last.header.chain);
        let mut summary = Summary::default();
        runs.iter().for_each(|run| summary.add(&Summary::of(&run.events)));
        let weight = packer.canonical_bytes();
        let mut bytes = Vec::new();
        let header = self.codec.encode(log, (first_seq, link, chain), packer, &mut bytes);
        self.steps.step("write a block")?;
        self.file.write_all_at(&bytes, self.offset)?;
        self.entries.push(Entry {
            log,
            part,
            first_seq,
            count: header.count,
            link,
            chain,
            position: last.header.position,
            time_ms: runs.iter().map(|run| run.time_ms).max().unwrap_or(0),
            offset: self.offset,
            bytes: bytes.len() as u32,
            summary,
        });
        self.offset += bytes.len() as u64;
        self.steps.pace(weight)
    }
}
