//! The data directory: who holds it, what it is, what is put aside.
//!
//! ```text
//! LOCK         held while a process has the store open; says which
//! FORMAT       version and id of the store
//! RESERVE      space that is given up when a full disk keeps the store from opening
//! journal/     segment files: the truth
//! segments/    sealed files: what finished journal segments became
//! index/       finds things in the journal; can be deleted at any time
//! quarantine/  what was put aside: torn ends of the journal, unusable indexes
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::OpenError;
use super::replay::{Spot, TornTail};
use super::segment::Segment;

/// The version of the layout: 1 has a journal only, 2 may have sealed files in place of some of it.
const FORMAT: u32 = 2;
/// The oldest version that this one reads.
const FORMAT_MIN: u32 = 1;
/// Bytes of a torn end that are kept as evidence.
const EVIDENCE_BYTES_MAX: u64 = 16 << 20;

/// A data directory that this process holds.
pub(super) struct DataDir {
    root: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes the directory if need be and takes it; a second process is refused with the name of the first.
    pub(super) fn take(root: &Path) -> Result<Self, OpenError> {
        create_durably(root)?;
        let mut lock =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(root.join("LOCK"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = Vec::new();
                lock.read_to_end(&mut text)?;
                let holder = String::from_utf8_lossy(&text).trim().to_owned();
                return Err(OpenError::Locked { dir: root.to_owned(), holder });
            }
            Err(TryLockError::Error(e)) => return Err(e.into()),
        }
        // Best effort: the text only helps a person, and a full disk must not keep the store closed.
        // In containers the number says little without the host, which is the name of the pod.
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let text = format!("process {} on {host}\n", std::process::id());
        drop(
            lock.set_len(0).and_then(|()| lock.seek(SeekFrom::Start(0))).and_then(|_| lock.write_all(text.as_bytes())),
        );
        let dir = Self { root: root.to_owned(), _lock: lock };
        for part in [dir.journal(), dir.segments(), dir.quarantine()] {
            fs::create_dir_all(part)?;
        }
        Ok(dir)
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    pub(super) fn segments(&self) -> PathBuf {
        self.root.join("segments")
    }

    pub(super) fn index(&self) -> PathBuf {
        self.root.join("index")
    }

    fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// The id of the store; makes one for a new store.
    pub(super) fn identity(&self, has_journal: bool) -> Result<[u8; 16], OpenError> {
        let path = self.root.join("FORMAT");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(parse_format(&text, &path)?.1),
            Err(e) if e.kind() == io::ErrorKind::NotFound && !has_journal => {
                let id = crate::store::new_incarnation();
                write_durably(&path, format_text(id.0).as_bytes())?;
                Ok(id.0)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(OpenError::NoFormat { path }),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(OpenError::DamagedFormat { path }),
            Err(e) => Err(e.into()),
        }
    }

    /// Says on disk that there may be sealed files: a quipu that knows none must not open the store any more.
    pub(super) fn raise_format(&self) -> io::Result<()> {
        let path = self.root.join("FORMAT");
        let (version, id) = parse_format(&fs::read_to_string(&path)?, &path).map_err(io::Error::other)?;
        if version < FORMAT { write_durably(&path, format_text(id).as_bytes()) } else { Ok(()) }
    }

    /// Fills the reserve up, as far as the disk allows.
    pub(super) fn keep_reserve(&self, bytes: u64) {
        let path = self.root.join("RESERVE");
        if fs::metadata(&path).is_ok_and(|meta| meta.len() >= bytes) {
            return;
        }
        let filled = File::create(&path).and_then(|mut file| {
            io::copy(&mut io::repeat(0xA5).take(bytes), &mut file)?;
            file.sync_all()
        });
        if let Err(error) = filled {
            tracing::warn!(%error, "no space for the reserve");
            self.give_up_reserve();
        }
    }

    /// Gives the reserved space back; `true` when there was some.
    pub(super) fn give_up_reserve(&self) -> bool {
        fs::remove_file(self.root.join("RESERVE")).is_ok()
    }

    /// Puts the index aside under a name of its own.
    pub(super) fn quarantine_index(&self) -> io::Result<()> {
        match fs::rename(self.index(), self.fresh("index")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Keeps a copy of a torn end, then fills it with zeros again, so that no later crash can mistake it.
    pub(super) fn cut(&self, segment: &Segment, torn: TornTail) -> Result<(), OpenError> {
        let kept = (torn.end - torn.start).min(EVIDENCE_BYTES_MAX);
        let bytes = segment.read(torn.start, kept as usize)?;
        let path = self.fresh(&format!("torn-{}-{}", torn.segment, torn.start));
        if let Err(error) = fs::write(&path, bytes) {
            tracing::warn!(%error, "no copy of the torn end could be kept");
        }
        let zeros = vec![0; (torn.end - torn.start) as usize];
        Ok(segment.write_durably(torn.start, &zeros)?)
    }

    /// Writes the last group once more and syncs. A killed process may have written it without syncing, and after a
    /// failed sync the page cache shows it although the disk does not have it.
    pub(super) fn settle(segment: &Segment, group: Spot) -> Result<(), OpenError> {
        let bytes = segment.read(group.offset, group.bytes as usize)?;
        Ok(segment.write_durably(group.offset, &bytes)?)
    }

    fn fresh(&self, name: &str) -> PathBuf {
        let free = (0..u32::MAX).map(|n| self.quarantine().join(format!("{name}-{n}"))).find(|path| !path.exists());
        free.unwrap_or_else(|| self.quarantine().join(name))
    }
}

/// Makes a directory and those above it, each name on stable storage.
fn create_durably(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().map(Path::to_owned).unwrap_or_default();
    create_durably(&parent)?;
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    sync_dir(&parent)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?.sync_all()
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = File::create(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    sync_dir(&path.parent().map(Path::to_owned).unwrap_or_default())
}

fn format_text(id: [u8; 16]) -> String {
    let content = format!("quipu store\nformat {FORMAT}\nid {:032x}\n", u128::from_be_bytes(id));
    format!("{content}checksum {:08x}\n", crc32c::crc32c(content.as_bytes()))
}

fn parse_format(text: &str, path: &Path) -> Result<(u32, [u8; 16]), OpenError> {
    let damaged = || OpenError::DamagedFormat { path: path.to_owned() };
    let at = text.find("checksum ").ok_or_else(damaged)?;
    let (content, checksum) = text.split_at(at);
    if checksum != format!("checksum {:08x}\n", crc32c::crc32c(content.as_bytes())) {
        return Err(damaged());
    }
    let field = |name: &str| content.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let version: u32 = field("format").and_then(|text| text.parse().ok()).ok_or_else(damaged)?;
    if !(FORMAT_MIN..=FORMAT).contains(&version) {
        return Err(OpenError::OtherFormat { found: version, supported: FORMAT });
    }
    let id = field("id").and_then(|hex| u128::from_str_radix(hex, 16).ok()).ok_or_else(damaged)?;
    Ok((version, id.to_be_bytes()))
}
