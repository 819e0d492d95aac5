//! `FeedService`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::convert;
use super::feed::Answers;
use super::follow::heartbeat;
use super::pb;
use super::pb::changes_response::Frame;
use super::pb::feed_service_server::FeedService;
use crate::codec::change::Kind;
use crate::model::{Event, Namespace};
use crate::service::{Error, Feed, FeedStep, Holding, Reason, Service};
use crate::store::{Birth, Committed, Extent, Position};

/// The adapter.
pub(super) struct Feeds {
    pub(super) service: Service,
    /// Ends the streams when the server goes.
    pub(super) stop: CancellationToken,
}

/// Bytes of events in one part of a change, and of changes in one frame.
const FRAME_BYTES: usize = 256 << 10;

struct Filter {
    namespace: Option<Namespace>,
    kinds: Vec<String>,
    with_events: bool,
}

enum Phase {
    Start,
    Running,
    Over,
}

struct Reader {
    feed: Feed,
    store_id: [u8; 16],
    filter: Filter,
    heartbeat: Duration,
    follow: bool,
    stop: CancellationToken,
    phase: Phase,
    /// Frames that are ready.
    ready: std::collections::VecDeque<pb::ChangeFrame>,
}

#[tonic::async_trait]
impl FeedService for Feeds {
    type ChangesStream = Answers<pb::ChangesResponse>;

    async fn changes(&self, request: Request<pb::ChangesRequest>) -> Result<Response<Self::ChangesStream>, Status> {
        let request = request.into_inner();
        let store_id = self.service.store_id();
        if request.store_id.is_some_and(|wanted| wanted != store_id[..]) {
            return Err(Error::new(Reason::IncarnationMismatch, "the position is of another store").into());
        }
        let namespace = request.namespace.map(|name| Namespace::new(&name)).transpose().map_err(Error::from)?;
        let filter = Filter { namespace, kinds: request.kinds, with_events: request.with_events };
        let heartbeat = heartbeat(request.heartbeat_ms)?;
        let feed = self.service.feed(Position(request.from_position), request.with_states).await?;
        let (stop, follow, ready) = (self.stop.clone(), request.follow, std::collections::VecDeque::new());
        let reader = Reader { feed, store_id, filter, heartbeat, follow, stop, phase: Phase::Start, ready };
        let frames = unfold(reader, |mut reader| async {
            let frame = match reader.phase {
                Phase::Start => {
                    reader.phase = Phase::Running;
                    Ok(reader.start())
                }
                Phase::Running => reader.next().await,
                Phase::Over => return None,
            };
            if matches!(frame, Ok(Frame::End(_)) | Err(_)) {
                reader.phase = Phase::Over;
            }
            Some((frame, reader))
        });
        let frames = frames.map(|frame| match frame {
            Ok(frame) => Ok(pb::ChangesResponse { frame: Some(frame) }),
            Err(error) => Err(error.into()),
        });
        Ok(Response::new(Box::pin(frames)))
    }
}

impl Reader {
    fn start(&self) -> Frame {
        Frame::Start(pb::ChangesStart {
            store_id: self.store_id.to_vec().into(),
            first_kept: self.feed.first_kept.0,
            position: self.feed.began_at.0,
        })
    }

    async fn next(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(changes) = self.ready.pop_front() {
                return Ok(Frame::Changes(changes));
            }
            let step = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(self.end(pb::ChangesEndReason::Draining)),
                step = self.feed.next(self.heartbeat) => step?,
            };
            match step {
                FeedStep::States(states) => {
                    let told =
                        states.into_iter().filter(|(session, _)| self.filter.admits(&session.birth.key.namespace));
                    let state = |(session, position): (crate::service::Session, Position)| pb::SessionState {
                        session: Some(session.into()),
                        position: position.0,
                    };
                    return Ok(Frame::States(pb::SessionStates { sessions: told.map(state).collect() }));
                }
                FeedStep::Told(position) => return Ok(Frame::StatesEnd(pb::SessionStatesEnd { position: position.0 })),
                FeedStep::Changes(changes) => self.pack(changes)?,
                FeedStep::CaughtUp if !self.follow => return Ok(self.end(pb::ChangesEndReason::EndOfFeed)),
                FeedStep::CaughtUp => return Ok(Frame::CaughtUp(self.mark())),
                FeedStep::Idle => return Ok(Frame::Heartbeat(self.mark())),
            }
        }
    }

    /// Puts changes into frames of a size that can be sent.
    fn pack(&mut self, changes: Vec<Committed>) -> Result<(), Error> {
        let (mut frame, mut bytes) = (pb::ChangeFrame::default(), 0);
        for change in changes.into_iter().filter(|change| self.filter.takes(change)) {
            for (part, weight) in parts(&change, self.filter.with_events)? {
                if bytes + weight > FRAME_BYTES && bytes > 0 {
                    self.ready.push_back(std::mem::take(&mut frame));
                    bytes = 0;
                }
                bytes += weight;
                frame.changes.push(part);
            }
        }
        if bytes > 0 {
            self.ready.push_back(frame);
        }
        Ok(())
    }

    fn mark(&self) -> pb::FeedMark {
        pb::FeedMark { position: self.feed.next_position().0 - 1 }
    }

    fn end(&self, reason: pb::ChangesEndReason) -> Frame {
        Frame::End(pb::ChangesEnd { reason: reason.into(), position: self.mark().position })
    }
}

impl Filter {
    fn admits(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
    }

    fn takes(&self, change: &Committed) -> bool {
        let is_kind = self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == change.kind_name());
        let is_ours = match &change.birth {
            Some(birth) => self.admits(&birth.key.namespace),
            None => self.namespace.is_none(),
        };
        change.kind.is_none() || (is_kind && is_ours)
    }
}

/// A change, in as many parts as its events need, and the weight of each.
fn parts(change: &Committed, with_events: bool) -> Result<Vec<(pb::Change, usize)>, Error> {
    const WEIGHT: usize = 256;
    let next_seq = change.run.as_ref().map_or(change.first_seq, crate::store::Run::next_seq).get();
    let mut whole = pb::Change {
        position: change.position.0,
        through_position: change.through.0,
        time_ms: change.time_ms,
        kind: change.kind_name().to_owned(),
        first_seq: change.first_seq.get(),
        next_seq,
        chain: change.chain.0.to_vec().into(),
        ..pb::Change::default()
    };
    if let Some(birth) = &change.birth {
        birth.key.namespace.as_str().clone_into(&mut whole.namespace);
        birth.key.id.as_str().clone_into(&mut whole.session_id);
        whole.incarnation = birth.incarnation.0.to_vec().into();
        if matches!(change.kind, Some(Kind::Create | Kind::Fork)) {
            whole.header = Some(convert::pb_header(birth.key.id.as_str(), birth.header.clone()));
            whole.profile = Some(pb::Profile::from(birth.profile).into());
        }
    }
    whole.inherited = change.inherited.iter().map(inherited).collect();
    let owner = change.owner.clone();
    whole.owner = owner.map(|owner| Holding { owner, expires_in: None }.into());
    let Some(run) = change.run.as_ref().filter(|_| with_events) else { return Ok(vec![(whole, WEIGHT)]) };
    let (mut parts, mut events, mut bytes) = (Vec::new(), Vec::new(), 0);
    let part = |events: Vec<Event>, is_partial: bool| pb::Change {
        first_seq: events.first().map_or(next_seq, |event| event.seq.get()),
        next_seq: events.last().map_or(next_seq, |event| event.seq.get() + 1),
        chain: if is_partial { bytes::Bytes::new() } else { whole.chain.clone() },
        is_partial,
        events: events.into_iter().map(Into::into).collect(),
        ..whole.clone()
    };
    for event in run.decode()? {
        let weight = event.body.weight();
        if bytes + weight > FRAME_BYTES && !events.is_empty() {
            parts.push((part(std::mem::take(&mut events), true), WEIGHT + bytes));
            bytes = 0;
        }
        bytes += weight;
        events.push(event);
    }
    parts.push((part(events, false), WEIGHT + bytes));
    Ok(parts)
}

fn inherited((extent, of): &(Extent, Option<Arc<Birth>>)) -> pb::Inherited {
    let of = of.as_ref();
    pb::Inherited {
        namespace: of.map(|birth| birth.key.namespace.as_str().to_owned()).unwrap_or_default(),
        session_id: of.map(|birth| birth.key.id.as_str().to_owned()).unwrap_or_default(),
        incarnation: of.map(|birth| birth.incarnation.0.to_vec().into()).unwrap_or_default(),
        until_seq: extent.until.get(),
        chain: extent.chain.0.to_vec().into(),
    }
}
