//! Pages of a log, read backwards (reference 11).
//!
//! A page is one contiguous range of events, counted in messages and optionally capped in bytes. [`PageScan`] is fed
//! events newest first and stops as soon as it knows where the page starts, so that a page costs what it holds.
//! Invariant: the page before a page ends where that one starts, so pages tile the log. It reads no payload, except to
//! say which tool results have lost their call to an older page.

use std::collections::BTreeSet;

use super::tail::{CallId, announced, answered};
use super::vocabulary::{ASSISTANT_MESSAGE, TOOL_RESULT, USER_MESSAGE};
use crate::model::json;
use crate::model::{Event, Seq, SurfaceOp};

/// Messages on a page, unless the reader says otherwise.
pub const PAGE_MESSAGES: u64 = 50;

/// What a reader asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// How many messages; 0 is taken for 1.
    pub messages_max: u64,
    /// The page ends before this seq; `None` means at the end of the log.
    pub before_seq: Option<Seq>,
    /// How many bytes of events (data, types, sources); `None` means any number. A page holds at least one event.
    pub bytes_max: Option<u64>,
    /// Never start between a message and the events it was made from. For the sake of one such message a page may
    /// grow past both limits.
    pub whole_messages: bool,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self { messages_max: PAGE_MESSAGES, before_seq: None, bytes_max: None, whole_messages: false }
    }
}

/// One page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// First and last seq; `None` when nothing is before the bound.
    pub range: Option<(Seq, Seq)>,
    /// Whether the log has events before the page.
    pub has_more: bool,
    /// Whether the cap in bytes ended it.
    pub is_capped: bool,
}

impl Page {
    /// The request for the page before this one.
    pub fn older(self, request: PageRequest) -> Option<PageRequest> {
        let (from, _) = self.range.filter(|_| self.has_more)?;
        Some(PageRequest { before_seq: Some(from), ..request })
    }

    /// The page's part of a log that starts at seq 0.
    pub fn of(self, events: &[Event]) -> &[Event] {
        let Some((from, to)) = self.range else { return &[] };
        let start = events.partition_point(|event| event.seq < from);
        let end = events.partition_point(|event| event.seq <= to);
        events.get(start..end).unwrap_or_default()
    }
}

/// The search for the start of a page. Constant size.
///
/// User and assistant messages that were appended count, empty ones included; replacements and tool results do not.
/// The message that reaches the quota moves the start back to the earliest event it cites, and no other message does,
/// unless the reader asked for whole messages: then the start moves back until no message on the page cites an event
/// before it.
#[derive(Clone, Debug)]
pub struct PageScan {
    request: PageRequest,
    counted: u64,
    bytes: u64,
    quota_start: Option<Seq>,
    earliest_cited: Option<Seq>,
    end: Option<Seq>,
    start: Option<Seq>,
    oldest: Option<Seq>,
    is_capped: bool,
}

impl PageScan {
    /// A search that has seen nothing.
    pub fn new(request: PageRequest) -> Self {
        Self {
            request,
            counted: 0,
            bytes: 0,
            quota_start: None,
            earliest_cited: None,
            end: None,
            start: None,
            oldest: None,
            is_capped: false,
        }
    }

    /// Takes the next older event; says whether it wants another. Events at or after the bound are passed over.
    pub fn apply(&mut self, event: &Event) -> bool {
        let seq = event.seq;
        if self.request.before_seq.is_some_and(|bound| seq >= bound) {
            return true;
        }
        self.bytes = self.bytes.saturating_add(event.body.weight() as u64);
        if self.start.is_some() && self.request.bytes_max.is_some_and(|max| self.bytes > max) {
            self.is_capped = true;
            return false;
        }
        self.end.get_or_insert(seq);
        self.oldest = Some(seq);
        self.count(event);
        let is_whole = self.earliest_cited.is_none_or(|cited| seq <= cited);
        if is_whole || !self.request.whole_messages {
            self.start = Some(seq);
            return self.quota_start.is_none_or(|start| seq > start);
        }
        true
    }

    /// The page, once no more events are wanted or none are left.
    pub fn page(&self) -> Page {
        let start = self.start.or(self.oldest);
        Page {
            range: start.zip(self.end),
            has_more: start.is_some_and(|start| start > Seq::ZERO),
            is_capped: self.is_capped,
        }
    }

    fn count(&mut self, event: &Event) {
        let counts = matches!(&*event.body.kind, USER_MESSAGE | ASSISTANT_MESSAGE);
        if !counts || event.body.surface_op != Some(SurfaceOp::Append) {
            return;
        }
        let cited = event.body.source_event_seqs.iter().flatten().copied();
        let group_start = cited.fold(event.seq, Seq::min);
        self.earliest_cited = Some(self.earliest_cited.map_or(group_start, |cited| cited.min(group_start)));
        self.counted += 1;
        if self.counted >= self.request.messages_max {
            self.quota_start.get_or_insert(group_start);
        }
    }
}

/// The page of a log that starts at seq 0 (reference 11).
///
/// Laws: the page is contiguous and ends where the bound says; following [`Page::older`] gives every event exactly
/// once.
pub fn page(events: &[Event], request: PageRequest) -> Page {
    let mut scan = PageScan::new(request);
    let end = request.before_seq.map_or(events.len(), |bound| events.partition_point(|event| event.seq < bound));
    for event in events.iter().take(end).rev() {
        if !scan.apply(event) {
            break;
        }
    }
    scan.page()
}

/// The appended tool results whose call no message on the page announces: it is on an older page.
///
/// A range that was cut by messages may separate the two; a reader that shows or sends pages must know.
pub fn results_without_call(page: &[Event]) -> Vec<Seq> {
    let mut calls = BTreeSet::new();
    let mut alone = Vec::new();
    for event in page {
        let kind = &*event.body.kind;
        if kind != ASSISTANT_MESSAGE && kind != TOOL_RESULT {
            continue;
        }
        let doc = json::parse(&event.body.data).ok();
        let data = doc.as_ref().map(json::Doc::root);
        if kind == ASSISTANT_MESSAGE {
            calls.extend(announced(data).filter_map(CallId::read));
        } else if event.body.surface_op == Some(SurfaceOp::Append)
            && !answered(data).is_some_and(|id| calls.contains(&id))
        {
            alone.push(event.seq);
        }
    }
    alone
}
