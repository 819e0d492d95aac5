//! Reads an archive from its first byte to its last, and believes nothing of it.

use std::collections::HashSet;
use std::io::BufRead;

use super::directory::{CENTRAL, DESCRIPTOR_BYTES, EXTRA_BYTES, Entry, LOCAL, LOCAL_BYTES, closing};
use super::input::{Body, Input};
use super::{ArchiveError, MANIFEST, Manifest, Member, SESSIONS_MAX, entry_name};
use crate::codec::Chain;
use crate::model::{Event, Profile};
use crate::portable::dsh::{DshError, ReadOptions, Whole, header_line};

/// What an archive may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all its entries, decompressed.
    pub bytes_max: u64,
    /// Bytes of one line.
    pub line_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_max: 16 << 30, line_bytes_max: 8 << 20 }
    }
}

/// Whoever wants to see what an archive holds. Nothing of it is proved before the walk has ended well.
pub trait Visitor {
    /// The next event of the session with that number.
    fn event(&mut self, session: usize, event: Event) -> Result<(), ArchiveError>;
}

impl Visitor for () {
    fn event(&mut self, _session: usize, _event: Event) -> Result<(), ArchiveError> {
        Ok(())
    }
}

/// Proves a whole archive and says what it holds.
pub fn verify<R: BufRead>(reader: R, limits: Limits) -> Result<Manifest, ArchiveError> {
    walk(reader, limits, &mut ())
}

/// The same, showing what is read on the way.
pub fn walk<R: BufRead>(reader: R, limits: Limits, visitor: &mut dyn Visitor) -> Result<Manifest, ArchiveError> {
    let left = limits.bytes_max;
    Walk { input: Input::new(reader), limits, left, entries: Vec::new(), members: Vec::new(), ids: HashSet::new() }
        .run(visitor)
}

struct Walk<R> {
    input: Input<R>,
    limits: Limits,
    /// Bytes that may still come.
    left: u64,
    entries: Vec<Entry>,
    members: Vec<Member>,
    ids: HashSet<String>,
}

/// Longest name of an entry.
const NAME_BYTES_MAX: usize = 255;
/// Largest manifest.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

impl<R: BufRead> Walk<R> {
    fn run(mut self, visitor: &mut dyn Visitor) -> Result<Manifest, ArchiveError> {
        loop {
            let before = self.input.hasher.clone();
            let entry = self.header()?;
            if entry.is_stored {
                let digest = *before.finalize().as_bytes();
                return self.manifest(entry, digest);
            }
            if self.members.len() >= SESSIONS_MAX {
                return Err(ArchiveError::TooMany { max: SESSIONS_MAX });
            }
            self.session(entry, visitor)?;
        }
    }

    /// The header of the next entry: exactly what would be written for its name.
    fn header(&mut self) -> Result<Entry, ArchiveError> {
        let offset = self.input.offset;
        let form = |problem: &str| ArchiveError::Form { at: offset, problem: problem.to_owned() };
        let fixed = self.input.take(LOCAL_BYTES, "the header of an entry")?;
        let short = |at: usize| u16::from_le_bytes([byte(&fixed, at), byte(&fixed, at + 1)]);
        let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        match long(0) {
            LOCAL => {}
            CENTRAL => return Err(ArchiveError::Manifest { problem: "is missing".to_owned() }),
            _ => return Err(form("no entry begins")),
        }
        let name_bytes = usize::from(short(26));
        if name_bytes > NAME_BYTES_MAX || usize::from(short(28)) != EXTRA_BYTES {
            return Err(form("an entry with a header that none has begins"));
        }
        let rest = self.input.take(name_bytes + EXTRA_BYTES, "the header of an entry")?;
        let (name, extra) = rest.split_at(name_bytes);
        let name = String::from_utf8(name.to_vec()).map_err(|_| form("an entry whose name is not UTF-8 begins"))?;
        let size = |at: usize| extra.iter().skip(at).take(8).rev().fold(0, |size, &byte| size << 8 | u64::from(byte));
        let mut entry = Entry { name, offset, ..Entry::default() };
        if short(8) == 0 {
            entry = Entry { is_stored: true, crc: long(14), plain: size(4), packed: size(12), ..entry };
        }
        if entry.local() == [fixed, rest].concat() {
            Ok(entry)
        } else {
            Err(form(&format!("the entry {:?} with a header that none has begins", entry.name)))
        }
    }

    fn session(&mut self, mut entry: Entry, visitor: &mut dyn Visitor) -> Result<(), ArchiveError> {
        let name = entry.name.clone();
        let mut body = Body::new(&mut self.input, &name, (self.left, self.limits.bytes_max));
        let index = self.members.len();
        let read = Self::lines(&mut body, self.limits, |event| visitor.event(index, event));
        let member = match read {
            Ok(member) => member,
            Err(Problem::Told(error)) => return Err(error),
            Err(Problem::Lines(source)) => {
                return Err(body.fault.take().unwrap_or(ArchiveError::Session { name, source }));
            }
        };
        (entry.crc, entry.packed, entry.plain) = body.sums();
        self.left -= entry.plain.min(self.left);
        let descriptor = self.input.take(DESCRIPTOR_BYTES, "the sizes of an entry")?;
        if descriptor != entry.descriptor() {
            let problem = format!("it has {} bytes, {} of them packed, or another checksum", entry.plain, entry.packed);
            return Err(ArchiveError::Lie { name, problem });
        }
        let member = Member { bytes: entry.plain, ..member };
        self.entries.push(entry);
        self.admit(member, name)
    }

    /// All lines of a session, its header first.
    fn lines(
        body: &mut Body<'_, R>,
        limits: Limits,
        mut event: impl FnMut(Event) -> Result<(), ArchiveError>,
    ) -> Result<Member, Problem> {
        let options = ReadOptions { line_bytes_max: limits.line_bytes_max, ..ReadOptions::default() };
        let mut whole = Whole::open(body, &options)?;
        let (mut events, mut chain) = (0, Chain::START);
        for found in whole.by_ref() {
            let found = found?;
            events += 1;
            chain = chain.after(&found);
            event(found).map_err(Problem::Told)?;
        }
        Ok(Member {
            file: String::new(),
            id: whole.id,
            header: whole.header,
            profile: Profile::Raw,
            events,
            bytes: 0,
            chain,
            line_breaks: 0,
        })
    }

    /// A session in its place: by its name, once, after its parent.
    fn admit(&mut self, member: Member, name: String) -> Result<(), ArchiveError> {
        let id = member.id.as_str().to_owned();
        let wanted = entry_name(self.members.len(), &id);
        if name != wanted {
            return Err(ArchiveError::EntryName { name, id, wanted });
        }
        let parent = member.header.parent_session.as_ref();
        let is_child = parent.is_some_and(|parent| self.ids.contains(parent));
        if !self.members.is_empty() && !is_child {
            return Err(ArchiveError::Lineage { id });
        }
        if !self.ids.insert(id.clone()) {
            return Err(ArchiveError::Duplicate { id });
        }
        self.members.push(Member { file: name, ..member });
        Ok(())
    }

    /// The last entry, and the end.
    fn manifest(mut self, entry: Entry, digest: [u8; 32]) -> Result<Manifest, ArchiveError> {
        let wrong = |problem: &str| ArchiveError::Manifest { problem: problem.to_owned() };
        if entry.name != MANIFEST || entry.packed != entry.plain || entry.plain > MANIFEST_BYTES_MAX {
            return Err(wrong("is not the last entry"));
        }
        let text = self.input.take(entry.plain as usize, "the manifest")?;
        let mut crc = flate2::Crc::new();
        crc.update(&text);
        if crc.sum() != entry.crc {
            return Err(ArchiveError::Lie { name: entry.name, problem: "it has another checksum".to_owned() });
        }
        let manifest = Manifest::read(&text)?;
        drop(text);
        if manifest.digest != digest {
            return Err(wrong("was written for other bytes"));
        }
        let (said, found) = (manifest.sessions.len(), self.members.len());
        if said != found || found == 0 {
            return Err(wrong(&format!("lists {said} sessions, the archive holds {found}")));
        }
        if let Some((said, _)) = manifest.sessions.iter().zip(&self.members).find(|(said, found)| !agree(said, found)) {
            return Err(wrong(&format!("tells something else than the entry {:?}", said.file)));
        }
        let at = self.input.offset;
        self.entries.push(entry);
        let wanted = closing(&self.entries, at);
        if self.input.take(wanted.len(), "the central directory")? != wanted {
            return Err(ArchiveError::Form {
                at,
                problem: "the central directory differs from the entries".to_owned(),
            });
        }
        if self.input.is_at_end()? { Ok(manifest) } else { Err(ArchiveError::Trailing { at: self.input.offset }) }
    }
}

/// Whether the manifest tells of a session what was found.
fn agree(said: &Member, found: &Member) -> bool {
    let counts = |member: &Member| (member.events, member.bytes, member.chain);
    let header = |member: &Member| header_line(&member.id, &member.header);
    said.file == found.file && counts(said) == counts(found) && header(said) == header(found)
}

enum Problem {
    /// In the lines, or in what they are read from.
    Lines(DshError),
    /// By the visitor.
    Told(ArchiveError),
}

impl From<DshError> for Problem {
    fn from(error: DshError) -> Self {
        Self::Lines(error)
    }
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}
