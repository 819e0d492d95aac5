//! What costs the tail of a log, however long the log is: closers, the header in force, where a fork may be cut.
//!
//! Each looks backwards for what decides, or asks the session's checkpoint, which a session that was not in memory
//! resumes from its note. None of them reads a log from its start unless its note is lost.

use super::messages::header;
use super::{Ask, Basis, Depth};
use crate::model::{Event, Seq};
use crate::replay::cut::{CutAt, CutSearch};
use crate::replay::fork::{AnchorSearch, Cut, ForkAt, ForkError};
use crate::replay::request::RequestHeader;
use crate::replay::vocabulary::REQUEST_HEADER;
use crate::service::{Error, Service};

impl Service {
    /// The events that would close the open turn; none if there is none.
    pub async fn closers(&self, ask: &Ask) -> Result<(Basis, Vec<Event>), Error> {
        let view = self.view(&Ask { is_balanced: true, ..ask.clone() }, Depth::Tail).await?;
        Ok((view.basis, view.log.closers().to_vec()))
    }

    /// The request header in force, and the event that set it.
    pub async fn latest_header(&self, ask: &Ask) -> Result<(Basis, Option<(Seq, RequestHeader)>), Error> {
        let mut view = self.view(ask, Depth::Header).await?;
        let place = view.folded.take().map(|folded| folded.check().map(|()| folded.header.seq())).transpose()?;
        let find = move |log: &super::Log| {
            let mut found = place.flatten();
            if place.is_none() {
                log.backward(log.end(), |event| {
                    found = (*event.body.kind == *REQUEST_HEADER).then_some(event.seq);
                    Ok(found.is_none())
                })?;
            }
            found.map(|seq| header(log, seq)).transpose()
        };
        Ok((view.basis, view.run(find).await?))
    }

    /// Where a fork at that boundary would be cut; see [`crate::replay::fork::cut`].
    pub async fn cut(&self, ask: &Ask, at: ForkAt) -> Result<(Basis, Result<Cut, ForkError>), Error> {
        let view = self.view(ask, Depth::Tail).await?;
        let find = move |log: &super::Log| {
            let end = log.closed_end();
            let last = end.get().checked_sub(1).and_then(Seq::new);
            let (at, end) = match at {
                ForkAt::Head => (CutAt::End, end),
                ForkAt::Inclusive(boundary) if last < Some(boundary) => {
                    return Ok(Err(ForkError::Missing { boundary, last }));
                }
                ForkAt::Inclusive(boundary) => (CutAt::End, Seq::saturating(boundary.get() + 1)),
                ForkAt::Anchor(anchor) if last >= Some(anchor) => {
                    let mut search = AnchorSearch::default();
                    log.forward(anchor, |event| Ok(search.apply(&event)))?;
                    return Ok(search.cut().ok_or(ForkError::Incomplete { anchor }));
                }
                ForkAt::Anchor(_) | ForkAt::LastTurn => (CutAt::LastTurn, end),
            };
            let mut search = CutSearch::new(at, end);
            log.backward(end, |event| Ok(search.apply(event)))?;
            Ok(search.cut())
        };
        Ok((view.basis, view.run(find).await?))
    }
}
