//! The messages of a surface, and the request at a boundary.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::log::{Log, owned};
use super::{Ask, Basis, Depth, Folded, Hold, View};
use crate::model::{Event, Seq};
use crate::replay::attempts::Attempt;
use crate::replay::messages::{self, Nodes};
use crate::replay::pairing::{Pairing, PairingError};
use crate::replay::request::{Dispatches, LatestHeader, RequestHeader};
use crate::replay::surface::Surface;
use crate::replay::vocabulary::is_surface;
use crate::service::{Error, Reason, Service};

/// What a model would see.
#[derive(Debug)]
pub struct Conversation {
    /// What it was made from.
    pub basis: Basis,
    /// Seq and type of each message's event, and its JSON text.
    pub messages: Vec<(Seq, Arc<str>, Bytes)>,
    /// Whether calls and results go together.
    pub pairing: Result<bool, PairingError>,
    /// Kept until the messages are sent.
    pub hold: Hold,
}

/// What was asked of a model.
#[derive(Debug)]
pub struct Reconstructed {
    /// The messages; the basis is the boundary.
    pub conversation: Conversation,
    /// The header in force, and the event that set it.
    pub header: Option<(Seq, RequestHeader)>,
    /// The model call that begins at the boundary.
    pub attempt: Option<Attempt>,
}

/// The nodes' events in surface order, where the header stands, and where reading stopped.
struct Prefix {
    nodes: Vec<Event>,
    header: LatestHeader,
    end: Seq,
}

impl Service {
    /// The messages that a model would see.
    pub async fn messages(&self, ask: &Ask) -> Result<Conversation, Error> {
        let mut view = self.view(ask, Depth::Folded).await?;
        let (basis, prefix) = (view.basis, view.prefix(None).await?);
        conversation(basis, &prefix.nodes, view.hold)
    }

    /// The request before a seq, or before the nth dispatch.
    pub async fn request(&self, ask: Ask, dispatch: Option<u64>) -> Result<Reconstructed, Error> {
        let depth = if dispatch.is_some() { Depth::Tail } else { Depth::Folded };
        let ask = Ask { is_balanced: ask.is_balanced && dispatch.is_none(), ..ask };
        let mut view = self.view(&ask, depth).await?;
        let prefix = view.prefix(dispatch).await?;
        let basis = Basis { next_seq: prefix.end, ..view.basis };
        let (boundary, durable, place) = (prefix.end, view.durable, prefix.header);
        let found = view.run(move |log| {
            let header = place.seq().map(|seq| header(log, seq)).transpose()?;
            let attempt = super::attempts::find(&log.up_to(durable), boundary)?;
            Ok((header, attempt.filter(|attempt| attempt.first_chunk_seq == Some(boundary))))
        });
        let (header, attempt) = found.await?;
        let conversation = conversation(basis, &prefix.nodes, view.hold)?;
        Ok(Reconstructed { conversation, header, attempt })
    }

    /// A part of the surface, the number of replacements, and the number of nodes.
    pub async fn surface(
        &self,
        ask: &Ask,
        (from, count): (usize, usize),
    ) -> Result<(Basis, Vec<Seq>, [u64; 2]), Error> {
        let mut view = self.view(ask, Depth::Folded).await?;
        let surface = view.surface().await?;
        let nodes = surface.nodes();
        let page = nodes.iter().skip(from).take(count).copied().collect();
        Ok((view.basis, page, [surface.replace_generation(), nodes.len() as u64]))
    }
}

pub(super) fn header(log: &Log, seq: Seq) -> Result<(Seq, RequestHeader), Error> {
    let event = log.event(seq)?.ok_or_else(|| crate::service::error::corrupt(seq))?;
    let header = RequestHeader::of_event(&event).map_err(|error| Error::unreadable(seq, error))?;
    header.map(|header| (seq, header)).ok_or_else(|| Error::unreadable(seq, "is no request/header"))
}

fn conversation(basis: Basis, nodes: &[Event], hold: Hold) -> Result<Conversation, Error> {
    let mut texts = Vec::with_capacity(nodes.len());
    for event in nodes {
        let message = messages::message(event).map_err(|error| Error::unreadable(event.seq, error))?;
        texts.extend(message.map(|text| (event.seq, event.body.kind.clone(), text)));
    }
    let pairing = Pairing::from_nodes(nodes).map(|pairing| pairing.is_balanced());
    Ok(Conversation { basis, messages: texts, pairing, hold })
}

impl View {
    /// The surface at the end of the view.
    pub(super) async fn surface(&mut self) -> Result<Surface, Error> {
        if let Some(folded) = self.folded.take() {
            folded.check()?;
            return folded.surface_with(self.log.closers());
        }
        let check = self.check();
        let fold = move |log: &Log| {
            let mut surface = Surface::default();
            log.forward(Seq::ZERO, |event| {
                check(&event)?;
                let applied = surface.apply(&event, &|seq| log.original(seq));
                applied.map(|_| true).map_err(|error| Error::unreadable(event.seq, error))
            })?;
            Ok(surface)
        };
        self.run(fold).await
    }

    /// The nodes' events at the end of the view, or at the nth dispatch in it.
    async fn prefix(&mut self, dispatch: Option<u64>) -> Result<Prefix, Error> {
        if let Some(folded) = self.folded.take() {
            return self.run(move |log| from_checkpoint(log, &folded)).await;
        }
        let check = self.check();
        self.run(move |log| from_start(log, dispatch, &check)).await
    }
}

fn from_checkpoint(log: &Log, folded: &Folded) -> Result<Prefix, Error> {
    folded.check()?;
    let surface = folded.surface_with(log.closers())?;
    let mut seqs = surface.nodes().to_vec();
    seqs.sort_unstable();
    let mut events: HashMap<Seq, Event> = log.events(&seqs)?.into_iter().map(|event| (event.seq, event)).collect();
    let nodes = surface.nodes().iter().filter_map(|seq| events.remove(seq)).collect();
    Ok(Prefix { nodes, header: folded.header, end: log.end() })
}

fn from_start(log: &Log, dispatch: Option<u64>, check: &dyn Fn(&Event) -> Result<(), Error>) -> Result<Prefix, Error> {
    let (mut nodes, mut header, mut dispatches) = (Nodes::default(), LatestHeader::default(), Dispatches::default());
    let (mut left, mut boundary) = (dispatch, None);
    log.forward(Seq::ZERO, |event| {
        if let Some(left) = &mut left
            && let Some(seq) = dispatches.apply(&event)
        {
            boundary = (*left == 0).then_some(seq);
            *left = left.saturating_sub(1);
        }
        if boundary.is_some() {
            return Ok(false);
        }
        check(&event)?;
        header.apply(&event);
        let event = if is_surface(&event.body.kind) { owned(event) } else { event };
        nodes.apply(&event).map(|()| true).map_err(|error| Error::unreadable(event.seq, error))
    })?;
    if let (Some(dispatch), None) = (dispatch, boundary) {
        let left = left.unwrap_or_default();
        let message = format!("there is no dispatch {dispatch}; the log has {}", dispatch - left);
        return Err(Error::new(Reason::EventNotFound, message));
    }
    Ok(Prefix { nodes: nodes.into_events(), header, end: boundary.unwrap_or_else(|| log.end()) })
}
