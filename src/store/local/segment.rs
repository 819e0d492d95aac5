//! Segment files of the journal: made full of zeros, then filled from the front.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::codec::frame::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// What the journal needs of a file; a seam for tests that fail a write or a sync.
pub(super) trait Device: Send + Sync {
    /// Writes all of `bytes` at `at`.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything written is on stable storage.
    fn sync(&self) -> io::Result<()>;
    /// Fills `bytes` from `at`.
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;
}

impl Device for File {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }
}

/// An open segment.
pub(super) struct Segment {
    /// Its number.
    pub(super) number: u64,
    /// The length it was made with.
    pub(super) declared_bytes: u64,
    /// The length it has.
    pub(super) actual_bytes: u64,
    device: Box<dyn Device>,
}

/// The path of a segment.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.qj"))
}

/// The numbers of the segments in a directory, in order. Other files are left alone.
pub(super) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(".qj")).filter(|digits| digits.len() == 20);
        let number = digits.and_then(|digits| digits.parse::<u64>().ok()).filter(|&number| number < u64::MAX);
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Fills a file with zeros from the end of its header on, past the page cache where the file system can: copying
/// zeros through it would cost a busy server a fifth of a core.
fn fill(path: &Path, file: &mut File, file_bytes: u64) -> io::Result<()> {
    const CHUNK: usize = 1 << 20;
    let zeros = vec![0; CHUNK + SEGMENT_HEADER_BYTES];
    // Direct writes need memory on a page boundary.
    let skip = zeros.as_ptr().align_offset(SEGMENT_HEADER_BYTES);
    let zeros = &zeros[skip..skip + CHUNK];
    let direct = OpenOptions::new().write(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path);
    let is_aligned = file_bytes.is_multiple_of(SEGMENT_HEADER_BYTES as u64);
    let mut target = match direct {
        Ok(direct) if is_aligned => direct,
        _ => file.try_clone()?,
    };
    let mut at = SEGMENT_HEADER_BYTES as u64;
    while at < file_bytes {
        let count = (file_bytes - at).min(CHUNK as u64) as usize;
        if target.write_all_at(&zeros[..count], at).is_err() {
            // Not every file system that opens a file for direct writes takes them.
            target = file.try_clone()?;
            target.write_all_at(&zeros[..count], at)?;
        }
        at += count as u64;
    }
    Ok(())
}

impl Segment {
    /// Makes a segment and returns when it, its zeros and its name are on stable storage.
    ///
    /// The zeros matter: a sync into written space costs a fraction of one that must also commit a new length.
    pub(super) fn create(dir: &Path, header: SegmentHeader) -> io::Result<Self> {
        let path = path(dir, header.segment);
        let draft = path.with_extension("draft");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&draft)?;
        file.write_all(&header.encode())?;
        fill(&draft, &mut file, header.file_bytes)?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(dir)?.sync_all()?;
        let (number, bytes) = (header.segment, header.file_bytes);
        Ok(Self { number, declared_bytes: bytes, actual_bytes: bytes, device: Box::new(file) })
    }

    /// Opens a segment. One with a damaged header is opened all the same, because its groups say for themselves what
    /// they are; one too short for a header counts as cut. `Err(InvalidData)` for a segment of another store.
    pub(super) fn open(dir: &Path, number: u64, store: [u8; 16]) -> io::Result<Self> {
        let path = path(dir, number);
        // A volume that turned read-only is still read.
        let file = OpenOptions::new().read(true).write(true).open(&path).or_else(|e| match e.kind() {
            io::ErrorKind::ReadOnlyFilesystem => File::open(&path),
            _ => Err(e),
        })?;
        let actual_bytes = file.metadata()?.len();
        let mut block = vec![0; SEGMENT_HEADER_BYTES];
        let declared_bytes = match file.read_exact_at(&mut block, 0).map(|()| SegmentHeader::decode(&block)) {
            Ok(Ok(header)) if header.store == store && header.segment == number => header.file_bytes,
            Ok(Ok(_)) => return Err(io::Error::new(io::ErrorKind::InvalidData, "a segment of another store or place")),
            Ok(Err(_)) => {
                tracing::warn!(segment = number, "the header of a journal segment is damaged");
                actual_bytes
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => actual_bytes + 1,
            Err(e) => return Err(e),
        };
        Ok(Self { number, declared_bytes, actual_bytes, device: Box::new(file) })
    }

    /// A sealed file, for reading; its blocks say for themselves what they are.
    pub(super) fn sealed(path: &Path, number: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { number, declared_bytes: bytes, actual_bytes: bytes, device: Box::new(file) })
    }

    /// A segment on another device.
    #[cfg(test)]
    pub(super) fn on(number: u64, bytes: u64, device: Box<dyn Device>) -> Self {
        Self::with(number, bytes, bytes, device)
    }

    /// A segment on another device, made with one length and found with another.
    #[cfg(test)]
    pub(super) fn with(number: u64, declared_bytes: u64, actual_bytes: u64, device: Box<dyn Device>) -> Self {
        Self { number, declared_bytes, actual_bytes, device }
    }

    /// Whether the file is shorter than it was made.
    pub(super) fn is_cut(&self) -> bool {
        self.actual_bytes < self.declared_bytes
    }

    /// Writes and syncs; an error leaves the content unknown.
    pub(super) fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write(at, bytes)?;
        self.device.sync()
    }

    /// Reads `count` bytes at `at`, which the caller took from a checked place or bounded by the file's length.
    pub(super) fn read(&self, at: u64, count: usize) -> io::Result<Vec<u8>> {
        if at.saturating_add(count as u64) > self.actual_bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the segment"));
        }
        let mut bytes = vec![0; count];
        self.device.read(at, &mut bytes)?;
        Ok(bytes)
    }
}
