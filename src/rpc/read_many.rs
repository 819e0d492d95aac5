//! `LogService.ReadMany`: followers of many sessions, on one stream.
//!
//! Each follower is a stream of its own; the call polls those that are ready and takes the client's wishes in between.
//! No task, no queue: a client that takes nothing stops all of them.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::Either;
use futures_util::stream::{SelectAll, StreamExt, once};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::pb::read_from_response::Frame;
use super::pb::read_many_request::Action;
use super::pb::read_many_response::Content;
use super::{follow, pb};
use crate::service::{Error, Reason, Service};

/// What a reader gives, and whether it is the last of it.
type Reader = Pin<Box<dyn Stream<Item = (pb::ReadManyResponse, bool)> + Send>>;

/// The frames of one call.
pub(super) struct ReadMany {
    service: Service,
    wishes: Option<Streaming<pb::ReadManyRequest>>,
    stop: CancellationToken,
    stopped: Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
    readers: SelectAll<Reader>,
    /// The readers that run, and how to end them.
    running: HashMap<u32, CancellationToken>,
}

/// Wishes taken at once, before other calls have their turn.
const WISHES_MAX: usize = 256;

impl ReadMany {
    pub(super) fn new(service: Service, wishes: Streaming<pb::ReadManyRequest>, stop: CancellationToken) -> Self {
        let stopped = Box::pin(stop.clone().cancelled_owned());
        Self { service, wishes: Some(wishes), stop, stopped, readers: SelectAll::new(), running: HashMap::new() }
    }

    fn poll_wishes(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if self.stopped.as_mut().poll(context).is_ready() {
            self.wishes = None;
        }
        for _ in 0..WISHES_MAX {
            let Some(wishes) = &mut self.wishes else { return Ok(()) };
            match Pin::new(wishes).poll_next(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => self.wishes = None,
                Poll::Ready(Some(wish)) => self.take(wish?),
            }
        }
        context.waker().wake_by_ref();
        Ok(())
    }

    fn take(&mut self, wish: pb::ReadManyRequest) {
        let number = wish.reader;
        match wish.action {
            Some(Action::Remove(pb::RemoveReader {})) => {
                if let Some(reader) = self.running.get(&number) {
                    reader.cancel();
                }
            }
            Some(Action::Add(request)) if !self.running.contains_key(&number) => {
                let removed = CancellationToken::new();
                self.running.insert(number, removed.clone());
                let ends = (self.stop.clone(), removed);
                self.readers.push(Box::pin(read(self.service.clone(), (number, request), ends)));
            }
            Some(Action::Add(_)) => self.refuse(number, "is in use"),
            None => self.refuse(number, "neither adds nor removes"),
        }
    }

    fn refuse(&mut self, number: u32, problem: &'static str) {
        let refusal = Error::field(Reason::InvalidRequest, "reader", problem);
        self.readers.push(Box::pin(once(std::future::ready((answer(number, Err(refusal)), false)))));
    }
}

/// The answers of one reader.
fn read(
    service: Service,
    (number, request): (u32, pb::ReadFromRequest),
    ends: (CancellationToken, CancellationToken),
) -> impl Stream<Item = (pb::ReadManyResponse, bool)> + Send {
    let start = async move {
        let (wanted, pace) = follow::wanted(&request)?;
        Ok::<_, Error>(follow::frames(service.follow(wanted).await?, pace, ends))
    };
    let frames = once(start).flat_map(|started| match started {
        Ok(frames) => Either::Left(frames),
        Err(error) => Either::Right(once(std::future::ready(Err(error)))),
    });
    frames.map(move |frame| {
        let is_last = match &frame {
            Ok(frame) => matches!(frame.frame, Some(Frame::End(_))),
            Err(_) => true,
        };
        (answer(number, frame), is_last)
    })
}

fn answer(reader: u32, frame: Result<pb::ReadFromResponse, Error>) -> pb::ReadManyResponse {
    let content = match frame {
        Ok(frame) => Content::Frame(frame),
        Err(error) => Content::Refusal(error.into()),
    };
    pb::ReadManyResponse { reader, content: Some(content) }
}

impl Stream for ReadMany {
    type Item = Result<pb::ReadManyResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Err(status) = this.poll_wishes(context) {
            this.wishes = None;
            this.readers.clear();
            return Poll::Ready(Some(Err(status)));
        }
        match Pin::new(&mut this.readers).poll_next(context) {
            Poll::Ready(Some((answer, is_last))) => {
                if is_last {
                    this.running.remove(&answer.reader);
                }
                Poll::Ready(Some(Ok(answer)))
            }
            // Nobody reads now; the client may still wish for more.
            Poll::Ready(None) if this.wishes.is_some() => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
