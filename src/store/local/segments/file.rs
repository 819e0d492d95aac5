//! Sealed files in their directory: names, headers, directories.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::codec::segment::{
    DICTIONARY_BYTES_MAX, DIRECTORY_BYTES_MAX, Directory, FILE_HEADER_BYTES, FileHeader, Unreadable, inflate,
};
use crate::store::local::OpenError;

/// A sealed file whose header was read.
#[derive(Clone, Debug)]
pub(in crate::store::local) struct SealedFile {
    pub(super) header: FileHeader,
    path: PathBuf,
}

/// The path of a sealed file.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.qs"))
}

/// The path of one that is being written.
pub(super) fn draft_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.draft"))
}

fn number_of(name: &std::ffi::OsStr, end: &str) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(end).filter(|digits| digits.len() == 20)?;
    digits.parse::<u64>().ok().filter(|&number| number > 0 && number < u64::MAX >> 1)
}

/// The sealed files of a directory in the order of what they stand for, and the highest number that is taken. Drafts,
/// known by their name, are removed; whatever else is there stays.
pub(in crate::store::local) fn catalog(dir: &Path, store: [u8; 16]) -> Result<(Vec<SealedFile>, u64), OpenError> {
    let (mut files, mut last) = (Vec::new(), 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if number_of(&entry.file_name(), ".draft").is_some() {
            drop(fs::remove_file(entry.path()));
        }
        let Some(number) = number_of(&entry.file_name(), ".qs") else { continue };
        last = last.max(number);
        match SealedFile::open(entry.path(), number, store) {
            Ok(file) => files.push(file),
            Err(OpenError::Damaged { reason, .. }) => {
                tracing::error!(file = number, %reason, "a sealed file is unreadable; it is left as it is");
            }
            Err(other) => return Err(other),
        }
    }
    files.sort_by_key(|file| file.header.journals);
    Ok((files, last))
}

impl SealedFile {
    /// Reads the header, at whichever end it is sound.
    pub(super) fn open(path: PathBuf, number: u64, store: [u8; 16]) -> Result<Self, OpenError> {
        let file = File::open(&path)?;
        let length = file.metadata()?.len();
        let at = |offset: u64| {
            let mut bytes = [0; FILE_HEADER_BYTES];
            file.read_exact_at(&mut bytes, offset).map(|()| FileHeader::decode(&bytes)).or_else(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => Ok(Err(Unreadable::Damaged)),
                _ => Err(e),
            })
        };
        let front = at(0)?;
        let either = if front.is_ok() { front } else { at(length.saturating_sub(FILE_HEADER_BYTES as u64))?.or(front) };
        match either {
            Ok(header) if header.store == store && header.number == number => Ok(Self { header, path }),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a sealed file of another store or place").into()),
            Err(Unreadable::Damaged) => Err(OpenError::Damaged { path, reason: Unreadable::Damaged.to_string() }),
            Err(newer) => Err(OpenError::NewerFile { path, reason: newer.to_string() }),
        }
    }

    /// Its number.
    pub(in crate::store::local) fn number(&self) -> u64 {
        self.header.number
    }

    /// The journal segments that it stands for, first and last.
    pub(in crate::store::local) fn journals(&self) -> (u64, u64) {
        self.header.journals
    }

    /// Whether it stands for that journal segment.
    pub(in crate::store::local) fn covers(&self, journal: u64) -> bool {
        (self.header.journals.0..=self.header.journals.1).contains(&journal)
    }

    /// The file, for reading, and its length.
    pub(super) fn device(&self) -> io::Result<(File, u64)> {
        let file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }

    /// The directory, from whichever copy is sound; `InvalidData` if none is.
    pub(super) fn directory(&self) -> io::Result<Directory> {
        let (file, length) = self.device()?;
        let FileHeader { directories, .. } = self.header;
        self.directory_at(&file, length, directories.0).or_else(|_| self.directory_at(&file, length, directories.1))
    }

    /// The dictionary, from whichever copy is sound; `InvalidData` if none is.
    pub(in crate::store::local) fn dictionary(&self) -> io::Result<Vec<u8>> {
        let (file, length) = self.device()?;
        let FileHeader { dictionaries, .. } = self.header;
        self.dictionary_at(&file, length, dictionaries.0).or_else(|_| self.dictionary_at(&file, length, dictionaries.1))
    }

    /// One copy of the dictionary.
    pub(super) fn dictionary_at(&self, file: &File, length: u64, offset: u64) -> io::Result<Vec<u8>> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the dictionary of a sealed file is damaged");
        let bytes = self.header.dictionary_bytes;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if bytes as usize > 2 * DICTIONARY_BYTES_MAX || offset.saturating_add(u64::from(bytes)) > length {
            return Err(damaged());
        }
        let mut content = vec![0; bytes as usize];
        file.read_exact_at(&mut content, offset)?;
        if crc32c::crc32c(&content) != self.header.dictionary_checksum {
            return Err(damaged());
        }
        inflate(&content, DICTIONARY_BYTES_MAX, "dictionary").map_err(|_| damaged())
    }

    /// One copy of the directory.
    pub(super) fn directory_at(&self, file: &File, length: u64, offset: u64) -> io::Result<Directory> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the directory of a sealed file is damaged");
        let bytes = self.header.directory_bytes;
        if bytes as usize > DIRECTORY_BYTES_MAX || offset.saturating_add(u64::from(bytes)) > length {
            return Err(damaged());
        }
        let mut content = vec![0; bytes as usize];
        file.read_exact_at(&mut content, offset)?;
        if crc32c::crc32c(&content) != self.header.directory_checksum {
            return Err(damaged());
        }
        Directory::decode(&content).map_err(|_| damaged())
    }
}
