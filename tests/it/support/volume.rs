//! An ext4 volume of our own that can lose its power.
//!
//! The cut is the shutdown ioctl without a log flush: the file system drops its dirty pages and its unwritten journal.
//! Everything that writes is stopped before, or a sync that is in flight might be answered while the volume dies.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::signal;
use super::skipped;

pub struct Volume {
    home: TempDir,
    is_mounted: bool,
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

fn python() -> String {
    std::env::var("QUIPU_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

impl Volume {
    /// A new volume, or a line that says why there can be none here.
    pub fn new(bytes: u64) -> Option<Self> {
        let made = Self::make(bytes);
        made.inspect_err(|why| skipped(&format!("no volume of our own: {why}"))).ok()
    }

    fn make(bytes: u64) -> Result<Self, String> {
        // In memory if possible: a cut is about what the volume was told, not about the disk below it.
        let home = tempfile::Builder::new().prefix("quipu-volume-").tempdir_in("/dev/shm");
        let home = home.or_else(|_| tempfile::tempdir()).map_err(|e| e.to_string())?;
        let mut volume = Self { home, is_mounted: false };
        std::fs::create_dir(volume.root()).map_err(|e| e.to_string())?;
        let image = std::fs::File::create(volume.image()).map_err(|e| e.to_string())?;
        image.set_len(bytes).map_err(|e| e.to_string())?;
        let path = volume.image();
        run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=1,nodiscard", path.to_str().unwrap_or_default()])?;
        volume.mount()?;
        // What `shut_down` needs.
        run(&python(), &["-c", "import fcntl"])?;
        Ok(volume)
    }

    fn image(&self) -> PathBuf {
        self.home.path().join("image")
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("mounted")
    }

    /// A directory on the volume.
    pub fn dir(&self) -> PathBuf {
        self.root().join("data")
    }

    fn mount(&mut self) -> Result<(), String> {
        let (image, root) = (self.image(), self.root());
        let args = ["-o", "loop", image.to_str().unwrap_or_default(), root.to_str().unwrap_or_default()];
        run("mount", &args)?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), String> {
        run("umount", &[self.root().to_str().unwrap_or_default()])?;
        self.is_mounted = false;
        Ok(())
    }

    /// Drops what is not on the volume; everything on it fails from now on.
    pub fn shut_down(&self) {
        let script = "import fcntl,os,struct,sys; fd=os.open(sys.argv[1],os.O_RDONLY); \
                      fcntl.ioctl(fd,0x8004587D,struct.pack('I',2))";
        run(&python(), &["-c", script, self.root().to_str().unwrap_or_default()]).unwrap();
    }

    /// Turns read-only under its users, as the kernel does after an error of the disk.
    pub fn turn_read_only(&self) {
        // An emergency remount, which does not mind files that are open for writing.
        let root = self.root();
        run("mount", &["-o", "remount,abort", root.to_str().unwrap_or_default()]).unwrap();
    }

    /// The power goes while `process` works, and comes back without it. `end` kills the process and reaps it.
    pub fn cut(&mut self, process: u32, end: impl FnOnce()) {
        signal(process, "STOP");
        wait_until_stopped(process);
        self.shut_down();
        end();
        self.unmount().unwrap();
        self.mount().unwrap();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(problem) = self.unmount()
        {
            println!("left behind: {problem}");
        }
    }
}

/// Returns when every thread of a process is stopped.
fn wait_until_stopped(process: u32) {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let is_stopped = |task: &Path| {
        let text = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        text.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !std::fs::read_dir(&tasks).unwrap().all(|task| is_stopped(&task.unwrap().path())) {
        assert!(std::time::Instant::now() < until, "process {process} does not stop");
        std::thread::yield_now();
    }
}
