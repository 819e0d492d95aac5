//! What costs the tail of a log, however long the log is: closers, and the header in force.
//!
//! Each looks backwards for what decides, or asks the session's checkpoint, which a session that was not in memory
//! resumes from its note. Neither reads a log from its start unless its note is lost.

use super::messages::header;
use super::{Ask, Basis, Depth};
use crate::model::{Event, Seq};
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
}
