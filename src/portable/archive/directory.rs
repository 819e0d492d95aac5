//! The records of a ZIP file, in the one form that is written here (APPNOTE 4.3): 64-bit sizes everywhere, no comments,
//! no times, no links.

/// Starts a local header.
pub(super) const LOCAL: u32 = 0x0403_4b50;
/// Starts the central directory.
pub(super) const CENTRAL: u32 = 0x0201_4b50;

const DESCRIPTOR: u32 = 0x0807_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR: u32 = 0x0706_4b50;
const END: u32 = 0x0605_4b50;

/// Length of a local header before the name.
pub(super) const LOCAL_BYTES: usize = 30;
/// Length of its extra field.
pub(super) const EXTRA_BYTES: usize = 20;
/// Length of what follows a deflated entry.
pub(super) const DESCRIPTOR_BYTES: usize = 24;

const VERSION: u16 = 45;
const MADE_BY_UNIX: u16 = 3 << 8 | VERSION;
/// Sizes and checksum follow the data.
const FOLLOWS: u16 = 8;
const DEFLATED: u16 = 8;
/// The first day that the format knows.
const DATE: u16 = 0x21;
const REGULAR_FILE: u32 = 0o100_644 << 16;
const IN_EXTRA: u32 = u32::MAX;

/// One entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Stored as it is, sizes in front; otherwise deflated, sizes behind.
    pub(super) is_stored: bool,
    pub(super) crc: u32,
    pub(super) packed: u64,
    pub(super) plain: u64,
    pub(super) offset: u64,
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, number: u16) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }
}

impl Entry {
    /// What both headers say alike.
    fn shared(&self, bytes: Bytes, crc: u32) -> Bytes {
        let (flags, method) = if self.is_stored { (0, 0) } else { (FOLLOWS, DEFLATED) };
        let bytes = bytes.u16(VERSION).u16(flags).u16(method).u16(0).u16(DATE);
        bytes.u32(crc).u32(IN_EXTRA).u32(IN_EXTRA).u16(self.name.len() as u16)
    }

    /// In front of the data.
    pub(super) fn local(&self) -> Vec<u8> {
        let (crc, packed, plain) = if self.is_stored { (self.crc, self.packed, self.plain) } else { (0, 0, 0) };
        let Bytes(mut bytes) = self.shared(Bytes(Vec::new()).u32(LOCAL), crc).u16(EXTRA_BYTES as u16);
        bytes.extend(self.name.as_bytes());
        Bytes(bytes).u16(1).u16(16).u64(plain).u64(packed).0
    }

    /// Behind the data of a deflated entry.
    pub(super) fn descriptor(&self) -> Vec<u8> {
        Bytes(Vec::new()).u32(DESCRIPTOR).u32(self.crc).u64(self.packed).u64(self.plain).0
    }

    /// In the central directory.
    fn central(&self) -> Vec<u8> {
        let bytes = self.shared(Bytes(Vec::new()).u32(CENTRAL).u16(MADE_BY_UNIX), self.crc);
        let Bytes(mut bytes) = bytes.u16(28).u16(0).u16(0).u16(0).u32(REGULAR_FILE).u32(IN_EXTRA);
        bytes.extend(self.name.as_bytes());
        Bytes(bytes).u16(1).u16(24).u64(self.plain).u64(self.packed).u64(self.offset).0
    }
}

/// What follows the last entry: the central directory and the end.
pub(super) fn closing(entries: &[Entry], offset: u64) -> Vec<u8> {
    let central: Vec<u8> = entries.iter().flat_map(Entry::central).collect();
    let (count, size) = (entries.len() as u64, central.len() as u64);
    let bytes = Bytes(central).u32(END64).u64(44).u16(MADE_BY_UNIX).u16(VERSION).u32(0).u32(0);
    let bytes = bytes.u64(count).u64(count).u64(size).u64(offset);
    let bytes = bytes.u32(LOCATOR).u32(0).u64(offset + size).u32(1);
    let bytes = bytes.u32(END).u16(u16::MAX).u16(u16::MAX).u16(u16::MAX).u16(u16::MAX);
    bytes.u32(IN_EXTRA).u32(IN_EXTRA).u16(0).0
}
