//! Reads the transcripts of other harnesses as events: claude-code and codex (JSONL, one record a line).
//!
//! A pure fold over lines: no clock, no randomness, so that the same file always gives the same log and an import can be
//! repeated. Messages, tool calls and results, usage and compaction survive, with the texts as they are spelled. What
//! has no place in a log is named, line by line, and so is what is damaged; nothing is made up. Turns and steps are read
//! off the order of the records, since these formats have none. Memory: one turn and one small entry per record.

mod block;
mod claude;
mod codex;
mod records;
mod report;
mod response;
mod turn;
mod turns;

pub use records::{Records, records};
pub use report::{Entry, Fate, Report};

use crate::model::json::{self, Value};
use crate::model::{Event, Header, IdError, SessionId};

/// Which harness wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harness {
    /// `projects/<directory>/<uuid>.jsonl`.
    ClaudeCode,
    /// `sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl`.
    Codex,
}

/// What a whole file came to.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The session's id, by the file; absent if no record names one that can be used here.
    pub id: Option<SessionId>,
    /// Why the id of the file cannot be used.
    pub id_problem: Option<IdError>,
    /// The header.
    pub header: Header,
    /// How many events.
    pub events: u64,
    /// What became of the records.
    pub report: Report,
}

/// The fold: lines in, events out.
pub struct Mapper {
    dialect: Dialect,
    session: Session,
    line: u64,
}

enum Dialect {
    Claude(Box<claude::Claude>),
    Codex(Box<codex::Codex>),
}

/// What both dialects collect beside the turns.
#[derive(Default)]
struct Session {
    id: Option<String>,
    header: Header,
    has_time: bool,
    report: Report,
}

impl Mapper {
    /// Before the first line.
    pub fn new(harness: Harness) -> Self {
        let dialect = match harness {
            Harness::ClaudeCode => Dialect::Claude(Box::default()),
            Harness::Codex => Dialect::Codex(Box::default()),
        };
        Self { dialect, session: Session::default(), line: 0 }
    }

    /// Takes the next line, without its newline. An empty one is no record.
    pub fn apply(&mut self, text: &[u8]) {
        self.line += 1;
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let report = &mut self.session.report;
        report.records += 1;
        let doc = match json::parse_any(text) {
            Ok(doc) if doc.root().is_object() => doc,
            Ok(_) => return report.add(self.line, "?", Fate::Damaged("the line is no object".to_owned())),
            Err(error) => return report.add(self.line, "?", Fate::Damaged(format!("the line {error}"))),
        };
        let root = doc.root();
        self.session.note_time(root);
        match &mut self.dialect {
            Dialect::Claude(claude) => claude.apply(root, self.line, &mut self.session),
            Dialect::Codex(codex) => codex.apply(root, self.line, &mut self.session),
        }
    }

    /// Takes a last line that has no newline: whole, or cut off by whatever ended its writer.
    pub fn apply_last(&mut self, text: &[u8]) {
        if json::is_json(text) {
            return self.apply(text);
        }
        self.line += 1;
        self.session.report.records += 1;
        self.session.report.add(self.line, "?", Fate::Torn);
    }

    /// Says that the next line is there and cannot be held.
    pub(crate) fn refuse_line(&mut self, bytes: u64, max: usize) {
        self.line += 1;
        self.session.report.records += 1;
        let problem = format!("the line has {bytes} bytes; {max} are allowed");
        self.session.report.add(self.line, "?", Fate::Damaged(problem));
    }

    /// The events that are certain by now. What belongs to the turn at the end may still change.
    pub fn take(&mut self) -> Vec<Event> {
        self.turns().take()
    }

    /// Ends the fold: the events that were still open are there for [`take`](Self::take).
    ///
    /// A turn that the file leaves unfinished is left open: whoever loads the session closes it by the rules of crash
    /// repair.
    pub fn finish(&mut self) {
        self.turns().finish();
        match &mut self.dialect {
            Dialect::Claude(claude) => claude.finish(&mut self.session),
            Dialect::Codex(codex) => codex.finish(&mut self.session),
        }
    }

    /// What the file came to; the counts are whole after [`finish`](Self::finish).
    pub fn mapped(&mut self) -> Mapped {
        let events = self.turns().events();
        let id = self.session.id.as_deref().map(SessionId::new);
        let (id, id_problem) = match id {
            Some(Ok(id)) => (Some(id), None),
            Some(Err(problem)) => (None, Some(problem)),
            None => (None, None),
        };
        let mut report = self.session.report.clone();
        report.entries.sort_by_key(|entry| entry.line);
        Mapped { id, id_problem, header: self.session.header.clone(), events, report }
    }

    fn turns(&mut self) -> &mut turns::Turns {
        match &mut self.dialect {
            Dialect::Claude(claude) => &mut claude.turns,
            Dialect::Codex(codex) => &mut codex.turns,
        }
    }
}

impl Session {
    /// The session begins with the first time that a record has.
    fn note_time(&mut self, root: Value<'_, '_>) {
        if let (false, Some(time_ms)) = (self.has_time, time_of(root)) {
            self.header.created_at_ms = u64::try_from(time_ms).unwrap_or_default();
            self.has_time = true;
        }
    }

    /// Takes the first id and the first directory that a record names.
    fn note_place(&mut self, id: Option<Value<'_, '_>>, cwd: Option<Value<'_, '_>>, line: u64) {
        if self.id.is_none() {
            self.id = id.and_then(Value::to_text).filter(|id| !id.is_empty());
        }
        if let (None, Some(cwd)) = (&self.header.cwd, cwd.and_then(Value::to_text)) {
            let header = Header { cwd: Some(cwd), ..self.header.clone() };
            match header.check() {
                Ok(()) => self.header = header,
                Err(_) if self.report.entries.iter().any(|entry| entry.fate.is_of("cwd")) => {}
                Err(error) => self.report.add(line, "cwd", Fate::Part("cwd".to_owned(), error.to_string())),
            }
        }
    }
}

/// The time of a record.
fn time_of(record: Value<'_, '_>) -> Option<i64> {
    let text = record.get("timestamp")?.to_text()?;
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}
