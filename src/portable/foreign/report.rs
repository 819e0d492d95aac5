//! What became of the records of a file.

use std::fmt;

/// What became of a record that is not simply in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has no place in a log; why.
    NoPlace(String),
    /// It says again what another record says, which is in the log.
    Repeated(String),
    /// It is in the log but for one part: which, and why.
    Part(String, String),
    /// It is no record; what is wrong with the line.
    Damaged(String),
    /// The last line is cut off: its write never finished.
    Torn,
}

impl Fate {
    /// Whether it is about that part of a record.
    pub(super) fn is_of(&self, part: &str) -> bool {
        matches!(self, Self::Part(name, _) if name == part)
    }

    /// One word for it, which stays.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoPlace(_) => "no-place",
            Self::Repeated(_) => "repeated",
            Self::Part(..) => "part",
            Self::Damaged(_) => "damaged",
            Self::Torn => "torn",
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPlace(why) => write!(f, "has no place: {why}"),
            Self::Repeated(what) => write!(f, "is there once: {what}"),
            Self::Part(part, why) => write!(f, "lost `{part}`: {why}"),
            Self::Damaged(problem) => write!(f, "is damaged: {problem}"),
            Self::Torn => f.write_str("is cut off at the end of the file"),
        }
    }
}

/// One record of which there is something to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its line, counted from 1.
    pub line: u64,
    /// Its type, by its own words.
    pub record: String,
    /// What became of it.
    pub fate: Fate,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} ({}) {}", self.line, self.record, self.fate)
    }
}

/// What became of all records. One that no entry names is in the log, whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many there are; empty lines do not count.
    pub records: u64,
    /// What there is to say, in the order of the lines.
    pub entries: Vec<Entry>,
}

impl Report {
    pub(super) fn add(&mut self, line: u64, record: &str, fate: Fate) {
        self.entries.push(Entry { line, record: record.to_owned(), fate });
    }

    /// The lines that are damaged: what they held is not known. A torn end is none.
    pub fn damaged(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| matches!(entry.fate, Fate::Damaged(_)))
    }
}
