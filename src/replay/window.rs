//! What a client that follows a session has of its log (reference 12).
//!
//! A [`Window`] is told what arrives and answers with the pages to ask for; it holds places, not events, and knows
//! neither clock nor transport. Invariant: the window is one contiguous range at every moment. What cannot join it
//! waits, and as long as something waits a request is under way.

use std::collections::BTreeSet;

use crate::model::Seq;

/// Messages asked for per page.
pub const PAGE_MESSAGES: u32 = 50;

/// Where a window stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Never opened.
    #[default]
    Cold,
    /// Waits for its first page.
    Loading,
    /// Follows the log.
    Open,
    /// The first page could not be had; opening again tries again.
    Failed,
}

/// Something that happened to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The reader wants to see the session.
    Open,
    /// The reader wants to see what comes before.
    LoadOlder,
    /// The connection is new; everything known is stale.
    Resync,
    /// A live event.
    Event(Seq),
    /// The log's last seq when the subscription began; `None` when it was empty.
    Subscribed(Option<Seq>),
    /// A page: first and last seq, or `None` when it is empty.
    Page {
        /// The request it answers.
        request: RequestId,
        /// What it holds.
        range: Option<(Seq, Seq)>,
        /// Whether there is more before it.
        has_more: bool,
    },
    /// The server refused a request.
    Refused(RequestId),
    /// No answer could be had for a request.
    Lost(RequestId),
}

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// A page to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the answer must name.
    pub id: RequestId,
    /// The page ends before this seq; `None` asks for the tail.
    pub before_seq: Option<Seq>,
    /// How many of these in a row were in vain: the caller waits accordingly before it sends.
    pub retry: u32,
}

/// The window of one session.
///
/// Laws: the window is contiguous; once every request is answered with the log's tail, the window reaches the last
/// event that arrived; answers of an earlier connection change nothing.
#[derive(Clone, Debug, Default)]
pub struct Window {
    state: State,
    range: Option<(Seq, Seq)>,
    has_more: bool,
    waiting: BTreeSet<Seq>,
    baseline: Option<Seq>,
    last_id: u64,
    tail: Option<(RequestId, Purpose)>,
    older: Option<RequestId>,
    vain: u32,
}

/// Why the tail was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The first page.
    Install,
    /// The log was known to be longer than the first page.
    Baseline,
    /// Something waits behind a gap.
    Repair,
}

impl Window {
    /// Takes one input and says what to ask for, if anything (reference 12).
    pub fn apply(&mut self, input: Input) -> Option<Request> {
        match input {
            Input::Open if matches!(self.state, State::Cold | State::Failed) => Some(self.open()),
            Input::Resync if self.state != State::Cold => {
                *self = Self { last_id: self.last_id, ..Self::default() };
                Some(self.open())
            }
            Input::LoadOlder => self.load_older(),
            Input::Event(seq) => self.event(seq),
            Input::Subscribed(last) => {
                self.baseline = last;
                None
            }
            Input::Page { request, range, has_more } => self.page(request, range, has_more),
            Input::Refused(request) => self.fail(request, false),
            Input::Lost(request) => self.fail(request, true),
            Input::Open | Input::Resync => None,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// First and last seq of what the reader can see.
    pub fn range(&self) -> Option<(Seq, Seq)> {
        self.range
    }

    /// Whether the log has more before the window.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// The live events that wait for what lies before them.
    pub fn waiting(&self) -> impl Iterator<Item = Seq> {
        self.waiting.iter().copied()
    }

    fn request(&mut self, before_seq: Option<Seq>) -> Request {
        self.last_id += 1;
        Request { id: RequestId(self.last_id), before_seq, retry: 0 }
    }

    fn ask_tail(&mut self, purpose: Purpose) -> Request {
        let request = Request { retry: self.vain, ..self.request(None) };
        self.tail = Some((request.id, purpose));
        request
    }

    fn open(&mut self) -> Request {
        self.state = State::Loading;
        self.ask_tail(Purpose::Install)
    }

    fn load_older(&mut self) -> Option<Request> {
        let (first, _) = self.range?;
        if self.state != State::Open || !self.has_more || self.older.is_some() {
            return None;
        }
        let request = self.request(Some(first));
        self.older = Some(request.id);
        Some(request)
    }

    fn event(&mut self, seq: Seq) -> Option<Request> {
        match self.state {
            State::Cold | State::Failed => return None,
            State::Loading => {
                self.waiting.insert(seq);
                return None;
            }
            State::Open => {}
        }
        if self.range.is_none_or(|(_, last)| seq > last) {
            self.waiting.insert(seq);
        }
        self.stitch();
        self.repair()
    }

    /// Moves what waits into the window, as far as it joins.
    fn stitch(&mut self) {
        while let Some(&seq) = self.waiting.first() {
            match self.range {
                // A window over an empty log begins wherever the log goes on.
                None => self.range = Some((seq, seq)),
                Some((first, last)) if last.advance(1) == Some(seq) => self.range = Some((first, seq)),
                Some((_, last)) if seq > last => return,
                Some(_) => {}
            }
            self.waiting.pop_first();
        }
    }

    fn repair(&mut self) -> Option<Request> {
        if self.waiting.is_empty() || self.tail.is_some() {
            return None;
        }
        Some(self.ask_tail(Purpose::Repair))
    }

    fn page(&mut self, request: RequestId, range: Option<(Seq, Seq)>, has_more: bool) -> Option<Request> {
        if self.older.take_if(|older| *older == request).is_some() {
            self.prepend(range, has_more);
            return None;
        }
        let (_, purpose) = self.tail.take_if(|(id, _)| *id == request)?;
        let waited = self.waiting.len();
        self.join(range, has_more);
        self.stitch();
        let is_behind = self.range.is_some_and(|(_, last)| self.baseline > Some(last));
        if purpose == Purpose::Install && is_behind {
            return Some(self.ask_tail(Purpose::Baseline));
        }
        self.state = State::Open;
        self.vain = if self.waiting.len() < waited || waited == 0 { 0 } else { self.vain.saturating_add(1) };
        self.repair()
    }

    /// An older page that does not touch the window is of no use, and neither will the next one be.
    fn prepend(&mut self, range: Option<(Seq, Seq)>, has_more: bool) {
        match (range, self.range) {
            (Some((from, to)), Some((first, last))) if from <= to && to.advance(1) == Some(first) => {
                self.range = Some((from, last));
                self.has_more = has_more;
            }
            _ => self.has_more = false,
        }
    }

    /// A tail page that touches the window joins it, so that older pages stay; one beyond it takes its place.
    fn join(&mut self, page: Option<(Seq, Seq)>, has_more: bool) {
        let Some((from, to)) = page.filter(|(from, to)| from <= to) else { return };
        match self.range {
            Some((first, last)) if from <= last.advance(1).unwrap_or(last) && first <= to => {
                if from <= first {
                    self.has_more = has_more;
                }
                self.range = Some((first.min(from), last.max(to)));
            }
            Some((first, _)) if to < first => {}
            _ => {
                self.range = Some((from, to));
                self.has_more = has_more;
                self.older = None;
            }
        }
    }

    fn fail(&mut self, request: RequestId, is_lost: bool) -> Option<Request> {
        if self.older.take_if(|older| *older == request).is_some() {
            return None;
        }
        let (_, purpose) = self.tail.take_if(|(id, _)| *id == request)?;
        match purpose {
            Purpose::Install => self.state = State::Failed,
            Purpose::Baseline if is_lost => self.state = State::Failed,
            Purpose::Baseline => self.state = State::Open,
            Purpose::Repair => {}
        }
        if self.state == State::Failed {
            self.waiting.clear();
            return None;
        }
        self.vain = self.vain.saturating_add(1);
        self.repair()
    }
}
