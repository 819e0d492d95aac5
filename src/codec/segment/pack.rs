//! From canonical events to a packed block.
//!
//! Knows nothing of JSON or of event types: what neighbours share is found by looking at their bytes, so that stream
//! deltas, progress reports and whatever a host invents shrink alike. A row of the reference's packed log carries its
//! texts as a list; here they follow each other without anything in between, so that the message that repeats them is
//! one match for the compressor.

use super::super::varint::{Numbers, put, put_difference};
use super::super::{Chain, Malformed};
use super::{REPLACE, SOURCES};

/// A knot comes with the first run that ends after so many events or bytes.
const KNOT_EVENTS: u32 = 256;
const KNOT_BYTES: u32 = 64 << 10;
/// The shortest common beginning that makes a template.
const HEAD_BYTES_MIN: usize = 12;
/// Larger data is never a member of a template.
const MEMBER_BYTES_MAX: usize = 4096;

/// Packs the runs of one block. Law: [`super::Block`] gives back the bytes that were pushed.
#[derive(Debug, Default)]
pub struct Packer {
    kinds: Vec<Vec<u8>>,
    knots: Vec<u8>,
    knots_count: u64,
    /// Events and bytes since the last knot, and the chain behind them.
    knot: (u32, u32, Option<Chain>),
    operations: Vec<u8>,
    times: Vec<u8>,
    lengths: Vec<u8>,
    text: Vec<u8>,
    time: u64,
    count: u32,
    canonical_bytes: u64,
    template: Option<Template>,
    /// The data of the event before.
    before: Vec<u8>,
    /// The event before, if it is not written yet.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Template {
    kind: u64,
    flags: u8,
    head: usize,
    tail: Vec<u8>,
    members: u64,
}

/// An event that may begin a template; its data is `before`.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    kind: u64,
    flags: u8,
}

/// The fields of a canonical event.
struct Fields<'a> {
    seq: u64,
    time: u64,
    kind: &'a [u8],
    flags: u8,
    replace: Option<(u64, u64)>,
    sources: Option<&'a [u8]>,
    data: &'a [u8],
}

fn u64_of(bytes: &mut Numbers<'_>) -> Result<u64, Malformed> {
    Ok(u64::from_le_bytes(bytes.array()?))
}

fn u32_of(bytes: &mut Numbers<'_>) -> Result<usize, Malformed> {
    Ok(u32::from_le_bytes(bytes.array()?) as usize)
}

fn fields<'a>(bytes: &mut Numbers<'a>) -> Result<Fields<'a>, Malformed> {
    let (seq, time) = (u64_of(bytes)?, u64_of(bytes)?);
    let length = u32_of(bytes)?;
    let kind = bytes.take(length)?;
    let [flags] = bytes.array()?;
    let replace = if flags & REPLACE == 0 { None } else { Some((u64_of(bytes)?, u64_of(bytes)?)) };
    let mut sources = None;
    if flags & SOURCES != 0 {
        let count = u32_of(bytes)?;
        sources = Some(bytes.take(count.saturating_mul(8))?);
    }
    let length = u32_of(bytes)?;
    Ok(Fields { seq, time, kind, flags, replace, sources, data: bytes.take(length)? })
}

impl Packer {
    /// Adds a run: canonical events that follow the ones before, and the chain after them.
    pub fn push(&mut self, events: &[u8], chain: Chain) -> Result<(), Malformed> {
        if self.knot.0 >= KNOT_EVENTS || self.knot.1 >= KNOT_BYTES {
            self.tie();
        }
        let mut rest = Numbers::new(events, "run of events");
        while !rest.is_empty() {
            let event = fields(&mut rest)?;
            self.event(&event);
            self.knot.0 += 1;
            self.count += 1;
        }
        self.knot.1 = self.knot.1.saturating_add(events.len() as u32);
        self.knot.2 = Some(chain);
        self.canonical_bytes += events.len() as u64;
        Ok(())
    }

    fn tie(&mut self) {
        let (count, bytes, chain) = std::mem::take(&mut self.knot);
        let Some(chain) = chain else { return };
        self.knots_count += 1;
        put(u64::from(count), &mut self.knots);
        put(u64::from(bytes), &mut self.knots);
        self.knots.extend_from_slice(&chain.0);
    }

    /// Events pushed.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes pushed.
    pub fn canonical_bytes(&self) -> u64 {
        self.canonical_bytes
    }

    /// About how many bytes the packed block has now.
    pub fn packed_bytes(&self) -> usize {
        self.knots.len() + self.operations.len() + self.times.len() + self.lengths.len() + self.text.len()
    }

    /// The texts alone: what other blocks may have in common with this one.
    pub fn into_text(mut self) -> Vec<u8> {
        self.close();
        self.release();
        self.text
    }

    /// The packed block.
    pub fn finish(mut self) -> Vec<u8> {
        self.close();
        self.release();
        let mut out = Vec::with_capacity(self.packed_bytes() + 64 * (1 + self.kinds.len()));
        put(self.kinds.len() as u64, &mut out);
        for kind in &self.kinds {
            put(kind.len() as u64, &mut out);
            out.extend_from_slice(kind);
        }
        put(self.knots_count, &mut out);
        out.extend_from_slice(&self.knots);
        for stream in [&self.operations, &self.times, &self.lengths] {
            put(stream.len() as u64, &mut out);
        }
        for stream in [&self.operations, &self.times, &self.lengths, &self.text] {
            out.extend_from_slice(stream);
        }
        out
    }

    fn event(&mut self, event: &Fields<'_>) {
        put_difference(event.time, self.time, &mut self.times);
        self.time = event.time;
        let kind = self.kind(event.kind);
        let is_plain = event.flags & (REPLACE | SOURCES) == 0 && event.data.len() <= MEMBER_BYTES_MAX;
        if !is_plain {
            self.close();
            self.release();
            self.single(event, kind);
            return;
        }
        if self.joins(event, kind) {
            self.member(event.data);
        } else {
            self.close();
            if !self.begins(event, kind) {
                self.release();
                self.waiting = Some(Waiting { kind, flags: event.flags });
            }
        }
        self.before.clear();
        self.before.extend_from_slice(event.data);
    }

    fn kind(&mut self, kind: &[u8]) -> u64 {
        let known = self.kinds.iter().position(|known| known == kind);
        known.unwrap_or_else(|| {
            self.kinds.push(kind.to_owned());
            self.kinds.len() - 1
        }) as u64
    }

    /// Whether an event is one more of the open template, and no better template begins with it.
    fn joins(&self, event: &Fields<'_>, kind: u64) -> bool {
        let Some(template) = self.template.as_ref().filter(|template| template.kind == kind) else { return false };
        let head = self.before.get(..template.head).unwrap_or_default();
        let is_member = template.flags == event.flags
            && event.data.len() >= head.len() + template.tail.len()
            && event.data.starts_with(head)
            && event.data.ends_with(&template.tail);
        is_member && common_head(&self.before, event.data) < template.head + HEAD_BYTES_MIN
    }

    /// Opens a template with the waiting event and this one, if they share enough.
    fn begins(&mut self, event: &Fields<'_>, kind: u64) -> bool {
        let Some(_) = self.waiting.filter(|waiting| waiting.kind == kind && waiting.flags == event.flags) else {
            return false;
        };
        let before = std::mem::take(&mut self.before);
        let head = common_head(&before, event.data);
        if head < HEAD_BYTES_MIN {
            self.before = before;
            return false;
        }
        let room = before.len().min(event.data.len()) - head;
        let tail = event.data[event.data.len() - common_tail(&before, event.data, room)..].to_vec();
        self.text.extend_from_slice(&event.data[..head]);
        self.text.extend_from_slice(&tail);
        self.waiting = None;
        self.template = Some(Template { kind, flags: event.flags, head, tail, members: 0 });
        self.member(&before);
        self.member(event.data);
        true
    }

    fn member(&mut self, data: &[u8]) {
        let Some(template) = &mut self.template else { return };
        template.members += 1;
        let own = data.get(template.head..data.len() - template.tail.len()).unwrap_or_default();
        put(own.len() as u64, &mut self.lengths);
        self.text.extend_from_slice(own);
    }

    fn close(&mut self) {
        let Some(template) = self.template.take() else { return };
        put(template.kind << 1 | 1, &mut self.operations);
        self.operations.push(template.flags);
        for number in [template.members, template.head as u64, template.tail.len() as u64] {
            put(number, &mut self.operations);
        }
    }

    /// Writes the waiting event on its own.
    fn release(&mut self) {
        let Some(Waiting { kind, flags }) = self.waiting.take() else { return };
        put(kind << 1, &mut self.operations);
        self.operations.push(flags);
        put(self.before.len() as u64, &mut self.lengths);
        self.text.extend_from_slice(&self.before);
    }

    fn single(&mut self, event: &Fields<'_>, kind: u64) {
        put(kind << 1, &mut self.operations);
        self.operations.push(event.flags);
        if let Some((start, end)) = event.replace {
            put_difference(start, event.seq, &mut self.operations);
            put_difference(end, start, &mut self.operations);
        }
        if let Some(sources) = event.sources {
            put(sources.len() as u64 / 8, &mut self.operations);
            let mut before = event.seq;
            for source in sources.chunks_exact(8) {
                let source = source.try_into().map_or(0, u64::from_le_bytes);
                put_difference(source, before, &mut self.operations);
                before = source;
            }
        }
        put(event.data.len() as u64, &mut self.lengths);
        self.text.extend_from_slice(event.data);
    }
}

/// Length of the common beginning, through its last quote that is not escaped: what comes behind that is text that two
/// neighbours share by chance.
fn common_head(a: &[u8], b: &[u8]) -> usize {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    (0..common).rev().find(|&at| is_quote(a, at)).map_or(0, |at| at + 1)
}

/// Length of the common end from its first quote that is not escaped, at most `room`.
fn common_tail(a: &[u8], b: &[u8], room: usize) -> usize {
    let common = a.iter().rev().zip(b.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    let start = a.len() - common;
    (start..a.len()).find(|&at| is_quote(a, at)).map_or(0, |at| a.len() - at)
}

fn is_quote(data: &[u8], at: usize) -> bool {
    data[at] == b'"' && (at == 0 || data[at - 1] != b'\\')
}
