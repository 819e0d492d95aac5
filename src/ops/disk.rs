//! How full the volume is: two marks, with a gap between falling below one and being above it again.

use std::io;
use std::path::Path;

use crate::metrics::Metrics;

/// The marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// With less free space a person should look; 0 for never.
    pub warn_bytes: u64,
    /// With less free space nothing more is taken; 0 for never.
    pub min_bytes: u64,
}

/// How much room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Below the first mark.
    pub is_low: bool,
    /// Below the second.
    pub is_crammed: bool,
}

impl Room {
    /// The room with so much free. A mark that was passed is passed back only with a quarter more, so that a node at the
    /// mark does not flap.
    #[must_use]
    pub fn after(self, free: u64, marks: Marks) -> Self {
        let below = |was: bool, mark: u64| free < if was { mark.saturating_add(mark / 4) } else { mark };
        Self { is_low: below(self.is_low, marks.warn_bytes), is_crammed: below(self.is_crammed, marks.min_bytes) }
    }
}

/// Free bytes of the volume of `dir`; waits for the disk.
pub fn free(dir: &Path, metrics: &Metrics) -> io::Result<u64> {
    let volume = rustix::fs::statvfs(dir)?;
    let free = volume.f_bavail.saturating_mul(volume.f_frsize);
    metrics.disk_free.set(free as f64);
    metrics.disk_size.set(volume.f_blocks.saturating_mul(volume.f_frsize) as f64);
    Ok(free)
}

/// Adds up the directories of the store; waits for the disk. What goes away meanwhile counts as nothing.
pub fn add_up(dir: &Path, metrics: &Metrics) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if let (Ok(true), Some(part)) = (entry.file_type().map(|kind| kind.is_dir()), entry.file_name().to_str()) {
            metrics.data_bytes.with(&[part]).set(size(&entry.path(), DEPTH) as f64);
        }
    }
    let quarantined = std::fs::read_dir(dir.join("quarantine")).map_or(0, Iterator::count);
    metrics.quarantined.set(quarantined as f64);
}

/// Directories in directories that are followed.
const DEPTH: usize = 4;

fn size(dir: &Path, depth: usize) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && depth > 0 => size(&entry.path(), depth - 1),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_passed_back_only_with_a_quarter_more() {
        let marks = Marks { warn_bytes: 1000, min_bytes: 100 };
        let low = Room { is_low: true, is_crammed: false };
        let crammed = Room { is_low: true, is_crammed: true };
        let frees = [(1000, Room::default()), (999, low), (1249, low), (99, crammed), (124, crammed), (125, low)];
        let mut room = Room::default();
        for (free, wanted) in frees {
            room = room.after(free, marks);
            assert_eq!(room, wanted, "{free} free");
        }
        assert_eq!(room.after(1250, marks), Room::default());
        assert_eq!(Room::default().after(0, Marks { warn_bytes: 0, min_bytes: 0 }), Room::default());
    }
}
