//! Streams that never end without a word.
//!
//! Frames wait in a channel of bounded length, their end beside it: a reader that is too slow for one more frame still
//! hears why there are no more, and a task that dies ends its stream with an error. How frames are made is not known
//! here.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Response, Status};

use crate::service::{Error, Reason};

/// Frames between whoever makes them and the connection.
const FRAMES_AHEAD: usize = 3;
/// How long a reader of a log may take nothing.
const STALL: std::time::Duration = std::time::Duration::from_secs(60);

/// A stream of messages.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Where a task puts its frames.
pub(super) struct Frames<T>(mpsc::Sender<T>);

impl<T> Frames<T> {
    /// Hands a frame over, however slow the reader; an error when it is gone, or when the server goes meanwhile.
    pub(super) async fn send(&self, frame: T, stop: &CancellationToken) -> Result<(), Error> {
        tokio::select! {
            sent = self.0.send(frame) => sent.map_err(|_| Error::new(Reason::Draining, "the reader is gone")),
            () = stop.cancelled() => Err(Error::new(Reason::Draining, "the server is shutting down; ask again")),
        }
    }

    /// Hands a frame over to a reader who may be slow; `false` when it is gone, or when the server goes while it waits.
    /// One that takes nothing for long is refused: it would keep its place among the reads for ever.
    pub(super) async fn offer(&self, frame: T, stop: &CancellationToken) -> Result<bool, Error> {
        match self.0.try_send(frame) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(false),
            Err(mpsc::error::TrySendError::Full(frame)) => tokio::select! {
                sent = self.0.send(frame) => Ok(sent.is_ok()),
                () = stop.cancelled() => Ok(false),
                () = tokio::time::sleep(STALL) => {
                    Err(Error::new(Reason::ReaderBudget, "the reader took nothing for a minute; go on from where it stands"))
                }
            },
        }
    }
}

/// How a stream ends once its frames are out.
type End<T> = Arc<Mutex<Option<Result<T, Status>>>>;

struct Fed<T> {
    frames: mpsc::Receiver<T>,
    end: End<T>,
}

impl<T> Stream for Fed<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = std::task::ready!(self.frames.poll_recv(context));
        Poll::Ready(frame.map(Ok).or_else(|| self.end.lock().take()))
    }
}

/// A stream with the frames of a task, and then its error if it has one.
pub(super) fn feed<T, F>(tasks: &TaskTracker, work: impl FnOnce(Frames<T>) -> F) -> Response<Answers<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    feed_to_end(tasks, move |frames| {
        let work = work(frames);
        async move { work.await.map(|()| None) }
    })
}

/// The same, of a task that ends with a last frame or an error. The last frame waits for no room among the others, so that
/// a reader who stalls hears how the stream ended, too.
pub(super) fn feed_to_end<T, F>(tasks: &TaskTracker, work: impl FnOnce(Frames<T>) -> F) -> Response<Answers<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<Option<T>, Error>> + Send + 'static,
{
    let (sender, frames) = mpsc::channel(FRAMES_AHEAD);
    // What a reader hears if the task never comes to say anything else.
    let defect = Error::new(Reason::Internal, "a defect of the server; see its log");
    let end = Arc::new(Mutex::new(Some(Err(defect.into()))));
    // Keeps the channel open until the end is known.
    let (kept, said) = (sender.clone(), end.clone());
    let work = work(Frames(sender));
    tasks.spawn(async move {
        let outcome = work.await;
        *said.lock() = outcome.map_err(Status::from).transpose();
        drop(kept);
    });
    Response::new(Box::pin(Fed { frames, end }))
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    async fn all(stream: Answers<u32>) -> (Vec<u32>, Option<tonic::Code>) {
        let (mut frames, mut code) = (Vec::new(), None);
        let mut stream = stream;
        while let Some(frame) = stream.next().await {
            match frame {
                Ok(frame) => frames.push(frame),
                Err(status) => code = Some(status.code()),
            }
        }
        (frames, code)
    }

    #[tokio::test]
    async fn a_slow_reader_hears_of_a_shutdown_after_the_frames_that_it_has() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let gone = stop.clone();
        let stream = feed(&tasks, move |frames| async move {
            for frame in 0..100 {
                frames.send(frame, &gone).await?;
            }
            Ok(())
        });
        // Until the channel is full, and the task waits for a reader that does not read.
        tokio::task::yield_now().await;
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        let (frames, code) = all(stream.into_inner()).await;
        assert_eq!((frames, code), ((0..FRAMES_AHEAD as u32).collect(), Some(tonic::Code::Unavailable)));
    }

    #[tokio::test]
    async fn a_stream_ends_well_only_if_its_task_did() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let good = feed(&tasks, |frames| async move { frames.send(7, &stop).await });
        assert_eq!(all(good.into_inner()).await, (vec![7], None));
        let bad = feed(&tasks, |frames: Frames<u32>| async move {
            assert!(frames.0.is_closed(), "a planted defect");
            Ok(())
        });
        assert_eq!(all(bad.into_inner()).await, (vec![], Some(tonic::Code::Internal)));
    }
}
