//! Every request that was dispatched, from the log alone.
//!
//! The request of an attempt is what the prefix before its first chunk yields: the messages of its surface and the
//! header in force (reference 4.2). A retry sees the messages that the failed attempt saw, because a failed attempt
//! leaves no node. Latency, transport failures and what was projected for a provider after reconstruction are not in
//! the log, and so not here.

pub mod header;

use bytes::Bytes;

pub use header::{LatestHeader, NoHeader, RequestHeader};

use super::messages::{self, MessagesError};
use super::vocabulary::{
    ASSISTANT_CHUNK, ASSISTANT_MESSAGE, LLM_RETRY, LLM_RETRY_STARTED, REQUEST_CONTEXT, REQUEST_HEADER, STEP_END,
    STEP_START, TURN_END, TURN_START,
};
use crate::model::json::{self, Value};
use crate::model::{Event, Seq};

/// What was asked of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The header in force, if there was one.
    pub header: Option<RequestHeader>,
    /// The messages, each as the JSON text that the log has.
    pub messages: Vec<Bytes>,
}

/// Why a request cannot be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The prefix has no messages.
    #[error(transparent)]
    Messages(#[from] MessagesError),
    /// The header event has no header.
    #[error(transparent)]
    Header(#[from] NoHeader),
    /// The boundary lies beyond the log.
    #[error("boundary {boundary} is beyond the log's {length} events")]
    BeyondEnd {
        /// The boundary asked for.
        boundary: Seq,
        /// How many events there are.
        length: usize,
    },
}

/// The request that the events before `boundary` add up to (reference 4.2); `events` is a log from seq 0, or a prefix
/// that reaches there. Law: later events do not matter.
///
/// Any boundary will do, also one where nothing was dispatched: an attempt that yielded no chunk leaves no mark of its
/// own, and is asked for by the seq after its header or step event.
pub fn reconstruct(events: &[Event], boundary: Seq) -> Result<Request, RequestError> {
    let prefix = usize::try_from(boundary.get()).ok().and_then(|end| events.get(..end));
    let prefix = prefix.ok_or(RequestError::BeyondEnd { boundary, length: events.len() })?;
    Ok(Request { header: header::fold(prefix, None)?, messages: messages::derive(prefix)? })
}

/// Finds the attempts of a log: each starts at its first chunk, and that seq is its dispatch boundary.
///
/// An attempt goes on over the chunks that follow, and ends with a `finish` chunk, an `assistant/message`, a retry, a
/// header, or a step or turn bracket; a chunk after its end starts the next one, so that two attempts that failed in a
/// row are two. Other types may stand between its chunks. Law: batch equals stepwise. Growth: one bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatches {
    streaming: bool,
}

impl Dispatches {
    /// Takes the next event; gives the boundary of the attempt that it starts, if it starts one.
    pub fn apply(&mut self, event: &Event) -> Option<Seq> {
        match &*event.body.kind {
            ASSISTANT_CHUNK => {
                let started = !self.streaming;
                self.streaming = !is_finish(event);
                started.then_some(event.seq)
            }
            TURN_START | TURN_END | STEP_START | STEP_END | ASSISTANT_MESSAGE | LLM_RETRY | LLM_RETRY_STARTED
            | REQUEST_HEADER | REQUEST_CONTEXT => {
                self.streaming = false;
                None
            }
            _ => None,
        }
    }

    /// Whether the last attempt may still go on.
    pub fn is_streaming(self) -> bool {
        self.streaming
    }
}

fn is_finish(event: &Event) -> bool {
    let doc = json::parse(&event.body.data).ok();
    let chunk = doc.as_ref().and_then(|doc| doc.root().get("chunk"));
    chunk.and_then(|chunk| chunk.get("type")).and_then(Value::as_text).is_some_and(|kind| kind.is("finish"))
}

/// The dispatch boundaries of a log, in order (reference 4.2); a loop over [`Dispatches`].
pub fn dispatches<'e>(events: impl IntoIterator<Item = &'e Event>) -> Vec<Seq> {
    let mut fold = Dispatches::default();
    events.into_iter().filter_map(|event| fold.apply(event)).collect()
}
