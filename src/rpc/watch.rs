//! `LogService.Watch`: a page, and what follows it.
//!
//! The page says only where it lies; its events are the beginning of the stream that follows the log, so that there is
//! no seam between the two.

use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

use super::convert;
use super::feed::Answers;
use super::follow::{self, Pace};
use super::pb;
use super::pb::watch_response::Content;
use crate::model::Seq;
use crate::replay::history::{PAGE_MESSAGES, PageRequest};
use crate::service::{Ask, Error, Service, Wanted};

/// The frames of one call.
pub(super) async fn frames(
    service: &Service,
    request: pb::WatchRequest,
    stop: CancellationToken,
) -> Result<Answers<pb::WatchResponse>, Error> {
    let key = convert::key(&request.namespace, &request.session_id)?;
    let incarnation = convert::incarnation(request.incarnation.as_deref())?;
    let rhythm = Pace::new(request.heartbeat_ms, (0, 0))?;
    let (from, incarnation, page) = if let Some(from) = request.from_seq {
        (convert::seq("from_seq", from)?, incarnation, None)
    } else {
        let wanted = PageRequest {
            messages_max: if request.max_messages == 0 { PAGE_MESSAGES } else { request.max_messages },
            before_seq: None,
            bytes_max: None,
            whole_messages: false,
        };
        let ask = Ask { key: key.clone(), incarnation, before: None, is_balanced: false };
        let history = service.history(&ask, wanted).await?;
        let end = history.basis.next_seq;
        let (first, next) =
            history.page.range.map_or((end, end), |(first, last)| (first, Seq::saturating(last.get() + 1)));
        let has_more = history.page.has_more;
        let page = pb::WatchPage { first_seq: first.get(), next_seq: next.get(), has_more };
        // Of the life of the name that the page is of.
        (first, Some(history.basis.incarnation), Some(page))
    };
    let follow = service.follow(Wanted { key, from, incarnation, accepted: request.accepted }).await?;
    let page = tokio_stream::iter(page.map(|page| Ok(pb::WatchResponse { content: Some(Content::Page(page)) })));
    let frames = follow::frames(follow, rhythm, (stop, CancellationToken::new()));
    let frames = frames.map(|frame| match frame {
        Ok(frame) => Ok(pb::WatchResponse { content: Some(Content::Frame(frame)) }),
        Err(error) => Err(error.into()),
    });
    Ok(Box::pin(page.chain(frames)))
}
