//! Writes an archive, piece by piece.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use super::directory::{Entry, closing};
use super::{MANIFEST, Manifest, Member, entry_name};
use crate::codec::Chain;
use crate::model::{Event, Header, Namespace, Profile, SessionId};
use crate::portable::dsh::{WriteOptions, Writer, on_one_line};

/// Writes sessions into an archive. The bytes so far are taken with [`take`](Packer::take), so that whoever sends them
/// decides how many there are at a time.
///
/// The bytes depend on namespace, headers, profiles, events and form alone.
pub struct Packer {
    zip: Option<Zip>,
    session: Option<Open>,
    manifest: Manifest,
}

struct Open {
    writer: Writer<Zip>,
    member: Member,
}

impl Packer {
    /// An archive without sessions.
    pub fn new(namespace: Namespace, is_packed: bool) -> Self {
        let manifest = Manifest { namespace, is_packed, digest: [0; 32], sessions: Vec::new() };
        Self { zip: Some(Zip::default()), session: None, manifest }
    }

    /// Begins the next session: the root, or one whose parent was written before.
    pub fn begin(&mut self, id: &SessionId, header: &Header, profile: Profile) -> io::Result<()> {
        self.end()?;
        let file = entry_name(self.manifest.sessions.len(), id.as_str());
        let mut zip = self.zip.take().ok_or_else(broken)?;
        zip.begin(file.clone());
        let options = WriteOptions { is_compressed: false, is_packed: self.manifest.is_packed };
        let member = Member {
            file,
            id: id.clone(),
            header: header.clone(),
            profile,
            events: 0,
            bytes: 0,
            chain: Chain::START,
            line_breaks: 0,
        };
        self.session = Some(Open { writer: Writer::begin(zip, id, header, options)?, member });
        Ok(())
    }

    /// The next event of the session.
    pub fn push(&mut self, event: Event) -> io::Result<()> {
        let Open { writer, member } = self.session.as_mut().ok_or_else(broken)?;
        let (event, was_broken) = on_one_line(event);
        member.events += 1;
        member.line_breaks += u64::from(was_broken);
        member.chain = member.chain.after(&event);
        writer.push(event)
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(Open { writer, mut member }) = self.session.take() else { return Ok(()) };
        let (mut zip, _) = writer.finish()?;
        member.bytes = zip.end()?;
        self.manifest.sessions.push(member);
        self.zip = Some(zip);
        Ok(())
    }

    /// Ends the archive. The last bytes are there for [`take`](Packer::take).
    pub fn finish(&mut self) -> io::Result<&Manifest> {
        self.end()?;
        let zip = self.zip.as_mut().ok_or_else(broken)?;
        self.manifest.digest = *zip.hasher.finalize().as_bytes();
        zip.store(MANIFEST, self.manifest.text().as_bytes());
        let closing = closing(&zip.entries, zip.offset);
        zip.emit(&closing);
        Ok(&self.manifest)
    }

    /// The bytes that are ready.
    pub fn take(&mut self) -> Vec<u8> {
        let open = self.session.as_mut().map(|open| open.writer.get_mut());
        open.or(self.zip.as_mut()).map(|zip| std::mem::take(&mut zip.ready)).unwrap_or_default()
    }
}

/// A call after one that failed.
fn broken() -> io::Error {
    io::Error::other("the archive is in no state for this")
}

#[derive(Default)]
struct Zip {
    ready: Vec<u8>,
    offset: u64,
    hasher: blake3::Hasher,
    entries: Vec<Entry>,
    open: Option<(Entry, DeflateEncoder<Vec<u8>>, Crc)>,
}

impl Zip {
    fn emit(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        self.ready.extend_from_slice(bytes);
    }

    fn begin(&mut self, name: String) {
        let entry = Entry { name, offset: self.offset, ..Entry::default() };
        self.emit(&entry.local());
        self.open = Some((entry, DeflateEncoder::new(Vec::new(), Compression::new(6)), Crc::new()));
    }

    /// Ends the entry and says how long its content is.
    fn end(&mut self) -> io::Result<u64> {
        let (mut entry, encoder, crc) = self.open.take().ok_or_else(broken)?;
        let rest = encoder.finish()?;
        self.emit(&rest);
        let start = entry.offset + entry.local().len() as u64;
        (entry.packed, entry.crc) = (self.offset - start, crc.sum());
        self.emit(&entry.descriptor());
        let plain = entry.plain;
        self.entries.push(entry);
        Ok(plain)
    }

    fn store(&mut self, name: &str, content: &[u8]) {
        let mut crc = Crc::new();
        crc.update(content);
        let size = content.len() as u64;
        let (name, crc, offset) = (name.to_owned(), crc.sum(), self.offset);
        let entry = Entry { name, is_stored: true, crc, packed: size, plain: size, offset };
        self.emit(&entry.local());
        self.emit(content);
        self.entries.push(entry);
    }
}

impl Write for Zip {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        let (entry, encoder, crc) = self.open.as_mut().ok_or_else(broken)?;
        encoder.write_all(content)?;
        crc.update(content);
        entry.plain += content.len() as u64;
        let packed = std::mem::take(encoder.get_mut());
        self.emit(&packed);
        Ok(content.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
