//! How a store on a disk is opened, what opening it found, and why it may not open.
//!
//! Values only; nothing here touches the disk.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::store::StoreError;

/// How a local store behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a journal segment, at least 1 MiB; must hold the largest group.
    pub segment_bytes: u64,
    /// Empty segments kept ready, at least 1.
    pub spare_segments: usize,
    /// Memory for the pages of the index.
    pub index_cache_bytes: u64,
    /// Time between checkpoints of the index.
    pub checkpoint_interval: Duration,
    /// Space kept back so that a full disk does not keep the store from opening; 0 for none.
    pub reserve_bytes: u64,
    /// Whether finished journal segments are sealed in the background.
    pub seal: bool,
    /// Journal that is sealed into one file, and read into memory for it.
    pub seal_batch_bytes: u64,
    /// Without a commit for so long, what is there is sealed; zero for never.
    pub seal_idle: Duration,
    /// Journal bytes that are sealed in a second while appends are running.
    pub seal_bytes_per_second: u64,
    /// Level of zstd, 1 to 19.
    pub seal_level: i32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            spare_segments: 2,
            index_cache_bytes: 16 << 20,
            checkpoint_interval: Duration::from_secs(2),
            reserve_bytes: 16 << 20,
            seal: true,
            seal_batch_bytes: 128 << 20,
            seal_idle: Duration::from_secs(600),
            seal_bytes_per_second: 16 << 20,
            seal_level: 12,
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("`{}` is in use by {holder}; stop it, or choose another data directory", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// What the lock says.
        holder: String,
    },
    /// Another layout.
    #[error("the store has format {found}, this quipu reads {supported}: {}", if found > supported { "use a newer quipu" } else { "use an older quipu" })]
    OtherFormat {
        /// What the store says.
        found: u32,
        /// What this version reads.
        supported: u32,
    },
    /// The FORMAT file is damaged.
    #[error("`{}` is damaged; restore it from a backup, it never changes after creation", path.display())]
    DamagedFormat {
        /// The file.
        path: PathBuf,
    },
    /// A journal without a FORMAT file.
    #[error("`{}` is missing although there is a journal; restore it from a backup", path.display())]
    NoFormat {
        /// The file.
        path: PathBuf,
    },
    /// A sealed file of a later version.
    #[error("`{}`: {reason}", path.display())]
    NewerFile {
        /// The file.
        path: PathBuf,
        /// Which version, and what to do.
        reason: String,
    },
    /// A file says nothing.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// In which way.
        reason: String,
    },
    /// The index could be neither opened nor made.
    #[error("the index can be neither opened nor made: {0}")]
    Index(String),
    /// The engine.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Changes replayed from the journal.
    pub replayed: u64,
    /// Bytes of a torn end that were cut.
    pub torn_bytes: u64,
    /// Damaged places met in the journal.
    pub damaged_places: u64,
    /// Why the index was built anew, if it was.
    pub rebuilt: Option<String>,
}
