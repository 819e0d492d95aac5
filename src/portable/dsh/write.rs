//! Writes the session files of the reference harness (reference 1.1, 1.2, 7.8, 15): what [`super::scan()`] reads.
//!
//! A header line, then one line per event or per packed row, plain or as zstd frames of whole lines. The bytes depend
//! on header, events and options alone, never on how the events arrived, so that an export of an import of an export is
//! the same file. `data` goes out as it is spelled. Memory: one batch of about 256 KiB, or one event that is larger.

use std::io::{self, Write};

use crate::codec::rows::{Packed, pack};
use crate::model::header::FORMAT_VERSION;
use crate::model::json::quote;
use crate::model::{Event, Header, NewEvent, Origin, SessionId};
use crate::replay::line;

/// A batch ends when it has so many bytes of data, or so many events.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_EVENTS: usize = 1024;

/// The form of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// zstd frames with checksums instead of plain text.
    pub is_compressed: bool,
    /// Runs of stream deltas as rows.
    pub is_packed: bool,
}

/// What a file could not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Omission {
    /// The header's labels: the format has no place for them.
    Labels(usize),
    /// The line breaks between the tokens of so many events' data: a line has no place for them. They became spaces.
    LineBreaks(u64),
}

impl std::fmt::Display for Omission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Labels(count) => write!(f, "{count} labels have no place in this format and were left out"),
            Self::LineBreaks(events) => {
                write!(f, "line breaks between the tokens of {events} events became spaces, for a line has none")
            }
        }
    }
}

/// A file that is being written.
pub struct Writer<W> {
    out: W,
    options: WriteOptions,
    batch: Vec<Event>,
    bytes: usize,
    labels: usize,
    broken_lines: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn begin(out: W, id: &SessionId, header: &Header, options: WriteOptions) -> io::Result<Self> {
        let (batch, labels) = (Vec::new(), header.labels.len());
        let mut writer = Self { out, options, batch, bytes: 0, labels, broken_lines: 0 };
        writer.put(header_line(id, header).into_bytes())?;
        Ok(writer)
    }

    /// Takes the next event; its seq must be the number of events before it.
    pub fn push(&mut self, event: Event) -> io::Result<()> {
        let (event, was_broken) = on_one_line(event);
        self.broken_lines += u64::from(was_broken);
        self.bytes += event.body.weight();
        self.batch.push(event);
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_EVENTS { self.end_batch() } else { Ok(()) }
    }

    /// Writes what is left, and says what the file does not.
    pub fn finish(mut self) -> io::Result<(W, Vec<Omission>)> {
        self.end_batch()?;
        let labels = (self.labels > 0).then_some(Omission::Labels(self.labels));
        let breaks = (self.broken_lines > 0).then_some(Omission::LineBreaks(self.broken_lines));
        Ok((self.out, labels.into_iter().chain(breaks).collect()))
    }

    /// What is written to.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    fn end_batch(&mut self) -> io::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let mut text = Vec::with_capacity(self.bytes + batch.len() * 64);
        self.bytes = 0;
        let mut end_line = |line: &[u8]| {
            text.extend_from_slice(line);
            text.push(b'\n');
        };
        if self.options.is_packed {
            for record in pack(&batch) {
                match record {
                    Packed::Event(event) => end_line(&line::encode(event)),
                    Packed::Row(row) => end_line(row.as_bytes()),
                }
            }
        } else {
            batch.iter().for_each(|event| end_line(&line::encode(event)));
        }
        self.put(text)
    }

    /// Writes whole lines, as a frame of their own if the file is compressed.
    fn put(&mut self, lines: Vec<u8>) -> io::Result<()> {
        if !self.options.is_compressed {
            return self.out.write_all(&lines);
        }
        let mut frame = zstd::bulk::Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL)?;
        frame.include_checksum(true)?;
        self.out.write_all(&frame.compress(&lines)?)
    }
}

/// An event that fits on a line, and whether it did not. JSON has line breaks between tokens only: in a string they are
/// escaped.
pub(in crate::portable) fn on_one_line(event: Event) -> (Event, bool) {
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if !event.body.data.iter().any(is_break) {
        return (event, false);
    }
    let data: Vec<u8> = event.body.data.iter().map(|byte| if is_break(byte) { b' ' } else { *byte }).collect();
    (Event { body: NewEvent { data: data.into(), ..event.body }, ..event }, true)
}

/// The first line. A delegation depth that is absent is written as 0: the format demands one.
pub(in crate::portable) fn header_line(id: &SessionId, header: &Header) -> String {
    let text = |key, value: &Option<String>| value.as_ref().map(|text| format!(",\"{key}\":{}", quote(text)));
    let members = [
        text("cwd", &header.cwd),
        text("parentSession", &header.parent_session),
        header.seed_length.map(|length| format!(",\"seedLength\":{length}")),
        header.origin.map(|Origin::Subagent| ",\"origin\":\"subagent\"".to_owned()),
        Some(format!(",\"delegationDepth\":{}", header.delegation_depth.unwrap_or_default())),
        text("agentPreset", &header.agent_preset),
    ];
    let members: String = members.into_iter().flatten().collect();
    let (id, created) = (quote(id.as_str()), header.created_at_ms);
    format!("{{\"type\":\"session\",\"version\":{FORMAT_VERSION},\"id\":{id},\"createdAt\":{created}{members}}}\n")
}
