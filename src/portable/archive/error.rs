//! Why an archive was refused.

use std::io;

use crate::portable::dsh::DshError;

/// Why an archive was refused. [`name`](ArchiveError::name) is a word for programs; names stay.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The stream could not be read.
    #[error("cannot read the archive")]
    Io(#[source] io::Error),
    /// It ends too early.
    #[error("the archive is truncated: it ends at byte {at}, inside {inside}")]
    Truncated {
        /// Where.
        at: u64,
        /// In what.
        inside: String,
    },
    /// The container is not of the one form that is written.
    #[error("not an archive of this kind: {problem} at byte {at}")]
    Form {
        /// Where.
        at: u64,
        /// What is wrong.
        problem: String,
    },
    /// An entry with a name that its content does not have.
    #[error("an entry is called {name:?}; a session {id:?} in its place is called {wanted:?}")]
    EntryName {
        /// Its name.
        name: String,
        /// The session in it.
        id: String,
        /// The name that it must have.
        wanted: String,
    },
    /// The same session twice.
    #[error("the session {id:?} is there twice")]
    Duplicate {
        /// The session.
        id: String,
    },
    /// A session whose parent is not before it.
    #[error("the session {id:?} is no descendant of the sessions before it")]
    Lineage {
        /// The session.
        id: String,
    },
    /// A session's file is damaged.
    #[error("entry {name:?}: {source}")]
    Session {
        /// The entry.
        name: String,
        /// What is wrong.
        source: DshError,
    },
    /// The compressed bytes of an entry are damaged.
    #[error("entry {name:?} cannot be decompressed")]
    Deflate {
        /// The entry.
        name: String,
    },
    /// Size or checksum of an entry are not what the archive says.
    #[error("entry {name:?} is not what the archive says it is: {problem}")]
    Lie {
        /// The entry.
        name: String,
        /// What differs.
        problem: String,
    },
    /// It grows beyond what may be imported.
    #[error("the archive grows beyond {max} bytes; more are not taken in")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// More sessions than an archive may have.
    #[error("the archive has more than {max} sessions")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The manifest is missing, no manifest, or says something else than the sessions.
    #[error("the manifest {problem}")]
    Manifest {
        /// What is wrong.
        problem: String,
    },
    /// Something follows the end.
    #[error("something follows the end of the archive, at byte {at}")]
    Trailing {
        /// Where.
        at: u64,
    },
    /// Whoever reads it wants no more.
    #[error("{0}")]
    Stopped(String),
}

impl ArchiveError {
    /// One word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Truncated { .. } => "truncated",
            Self::Form { .. } => "form",
            Self::EntryName { .. } => "entry-name",
            Self::Duplicate { .. } => "duplicate",
            Self::Lineage { .. } => "lineage",
            Self::Session { .. } => "session",
            Self::Deflate { .. } => "deflate",
            Self::Lie { .. } => "lie",
            Self::TooLarge { .. } => "too-large",
            Self::TooMany { .. } => "too-many",
            Self::Manifest { .. } => "manifest",
            Self::Trailing { .. } => "trailing",
            Self::Stopped(_) => "stopped",
        }
    }
}
