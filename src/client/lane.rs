//! The batches of one writer that are on their way.
//!
//! Batches go in, answers come out in the same order. Whatever fails ends the series: the writer calls everything back
//! and decides what is sent again. Dropping a lane leaves no call behind.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::outbox::{Ack, Span};
use super::transport::{Address, Batch, Reply, Transport};
use super::{AckLevel, Error};
use crate::model::NewEvent;

/// What became of a batch.
pub(super) struct Answer {
    pub(super) span: Span,
    pub(super) result: Result<Ack, Error>,
}

/// A call, or its result that waits for its turn.
enum Place {
    Running(Reply<Ack>),
    Done(Result<Ack, Error>),
}

/// Calls in a row.
pub(super) struct Lane {
    transport: Arc<dyn Transport>,
    address: Address,
    calls: VecDeque<(Span, Place)>,
    is_resuming: bool,
}

impl Lane {
    pub(super) fn new(transport: Arc<dyn Transport>, address: Address) -> Self {
        Self { transport, address, calls: VecDeque::new(), is_resuming: false }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Sends a batch.
    pub(super) fn send(&mut self, span: Span, events: Vec<NewEvent>, level: AckLevel) {
        let resumes = std::mem::take(&mut self.is_resuming);
        let batch = Batch { first: span.first, events, level, resumes };
        let call = self.transport.append(&self.address, batch);
        self.calls.push_back((span, Place::Running(call)));
    }

    /// The answer of the oldest batch; none comes while nothing is on its way. Loses nothing when it is dropped.
    pub(super) async fn answer(&mut self) -> Answer {
        let (span, result) = poll_fn(|context| self.poll(context)).await;
        Answer { span, result }
    }

    /// All calls are moved on, in the order in which they were made: that is how they get their order on the connection.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Span, Result<Ack, Error>)> {
        for (_, place) in &mut self.calls {
            if let Place::Running(call) = place
                && let Poll::Ready(result) = call.as_mut().poll(context)
            {
                *place = Place::Done(result);
            }
        }
        match self.calls.pop_front() {
            Some((span, Place::Done(result))) => Poll::Ready((span, result)),
            Some(running) => {
                self.calls.push_front(running);
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }

    /// Calls everything back. What is on its way may still arrive; it will be sent again with the same bounds.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.is_resuming = true;
    }
}
