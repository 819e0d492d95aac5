//! A memory limit that the kernel holds a process to.

use std::path::PathBuf;

use super::skipped;

/// A memory cgroup (v1) of our own.
pub struct MemoryLimit {
    dir: PathBuf,
}

impl MemoryLimit {
    /// Holds a process to `bytes`: its heap, and the pages of its files that the kernel cannot give up. What it took
    /// before counts, too. Or a line that says why it cannot be.
    pub fn hold(process: u32, bytes: u64) -> Option<Self> {
        let made = Self::make(process, bytes.saturating_sub(resident(process)));
        made.inspect_err(|why| skipped(&format!("no memory cgroup: {why}"))).ok()
    }

    fn make(process: u32, bytes: u64) -> std::io::Result<Self> {
        let dir = PathBuf::from(format!("/sys/fs/cgroup/memory/quipu-test-{process}"));
        std::fs::create_dir(&dir)?;
        let limit = Self { dir };
        std::fs::write(limit.dir.join("memory.limit_in_bytes"), bytes.to_string())?;
        std::fs::write(limit.dir.join("cgroup.procs"), process.to_string())?;
        Ok(limit)
    }

    /// How often the kernel had to take pages back at the limit. Pages of files are taken first.
    pub fn times_full(&self) -> u64 {
        let text = std::fs::read_to_string(self.dir.join("memory.failcnt")).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Its process must be gone by then.
        if let Err(problem) = std::fs::remove_dir(&self.dir) {
            println!("left behind: {}: {problem}", self.dir.display());
        }
    }
}

/// Bytes of memory of a process.
pub fn resident(process: u32) -> u64 {
    status(process, "VmRSS:")
}

/// The most that it ever had.
pub fn peak(process: u32) -> u64 {
    status(process, "VmHWM:")
}

fn status(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Processor time of a process so far.
pub fn processor(process: u32) -> std::time::Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    std::time::Duration::from_millis(ticks * 10)
}
