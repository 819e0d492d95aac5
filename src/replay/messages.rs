//! The messages that a surface stands for.
//!
//! Each node gives its message as the JSON text that the log has, byte for byte: no framing, no new ids, nothing merged
//! or trimmed (reference 3.2). An assistant message with no content stays a node and gives no message (18.7). Messages
//! depend on the surface and its events only.

use std::collections::HashMap;

use bytes::Bytes;

use super::surface::{Change, Original, Surface, SurfaceError, SurfaceFault};
use super::vocabulary::{ASSISTANT_MESSAGE, USER_MESSAGE, is_surface};
use crate::model::json::{self, Value};
use crate::model::{Event, Seq};

/// A surface event without a message: only a log that was never held to the message shapes has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event at seq {seq} holds no message")]
pub struct NoMessage {
    /// The event.
    pub seq: Seq,
}

/// Why a log has no messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessagesError {
    /// The surface does not fold.
    #[error(transparent)]
    Surface(#[from] SurfaceFault),
    /// A node has no message.
    #[error(transparent)]
    NoMessage(#[from] NoMessage),
}

/// The message of one event (reference 3.2): a slice of its data. `None` for what produces none: log-only types, and assistant
/// messages whose content is `[]`.
///
/// An empty text or reasoning block is content: such a message is given as it is.
pub fn message(event: &Event) -> Result<Option<Bytes>, NoMessage> {
    let body = &event.body;
    if !is_surface(&body.kind) {
        return Ok(None);
    }
    if *body.kind == *USER_MESSAGE {
        return Ok(Some(body.data.slice_ref(body.data.trim_ascii())));
    }
    let doc = json::parse(&body.data).map_err(|_| NoMessage { seq: event.seq })?;
    let message = doc.root().get("message").ok_or(NoMessage { seq: event.seq })?;
    let empty = *body.kind == *ASSISTANT_MESSAGE && message.get("content").is_some_and(is_empty_array);
    Ok((!empty).then(|| body.data.slice_ref(message.raw().as_bytes())))
}

fn is_empty_array(value: Value<'_, '_>) -> bool {
    value.is_array() && value.items().next().is_none()
}

/// The messages of a whole log, in the order in which the model sees them (reference 3.2).
///
/// Law: `derive(events)` is [`message`] over the nodes of the surface, in their order.
pub fn derive(events: &[Event]) -> Result<Vec<Bytes>, MessagesError> {
    let mut nodes = Nodes::default();
    for (index, event) in events.iter().enumerate() {
        nodes.apply(event).map_err(|error| SurfaceFault { index, error })?;
    }
    let mut messages = Vec::new();
    for event in nodes.events() {
        messages.extend(message(event)?);
    }
    Ok(messages)
}

/// The surface of a log that is read once, front to back, with the events of its current nodes.
///
/// Laws: its surface is the one of [`Surface`]; a refused event changes nothing. Growth: the events of the current
/// nodes; what a replacement shadows is let go. It looks up the originals of rewritten tool results in itself, because
/// only a current node can be rewritten.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    surface: Surface,
    events: HashMap<Seq, Event>,
}

impl Nodes {
    /// Takes the next event, or refuses it and stays as it is.
    pub fn apply(&mut self, event: &Event) -> Result<(), SurfaceError> {
        let original = |seq| self.events.get(&seq).map_or(Original::Missing, Original::of);
        match self.surface.apply(event, &original)? {
            Change::LogOnly => return Ok(()),
            Change::Appended => {}
            Change::Replaced(replacement) => replacement.shadowed.iter().for_each(|seq| drop(self.events.remove(seq))),
        }
        self.events.insert(event.seq, event.clone());
        Ok(())
    }

    /// The surface.
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// The events of the current nodes, in surface order.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.surface.nodes().iter().filter_map(|seq| self.events.get(seq))
    }

    /// The same, given away.
    pub fn into_events(mut self) -> Vec<Event> {
        self.surface.nodes().iter().filter_map(|seq| self.events.remove(seq)).collect()
    }
}

/// The events of the surface's nodes, for a caller that holds the whole log.
pub fn nodes<'e>(events: &'e [Event], surface: &Surface) -> impl Iterator<Item = &'e Event> {
    surface.nodes().iter().filter_map(|seq| events.get(usize::try_from(seq.get()).ok()?))
}
