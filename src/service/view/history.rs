//! Pages of a log, read backwards.
//!
//! The page is found first, by a search that keeps nothing but places, and sent afterwards, piece by piece: a page costs
//! what it holds, twice, and never more memory than a piece.

use std::sync::Arc;

use super::log::Log;
use super::{Ask, Basis, Depth, View};
use crate::model::{Event, Seq};
use crate::replay::history::{Page, PageRequest, PageScan};
use crate::service::{Error, Service, blocking};

/// A page that was found and is being read.
pub struct History {
    /// What it was cut from.
    pub basis: Basis,
    /// Which events it holds.
    pub page: Page,
    log: Arc<Log>,
    next: Seq,
    _view: View,
}

impl Service {
    /// Finds a page. Only its own events need be of known types.
    pub async fn history(&self, ask: &Ask, request: PageRequest) -> Result<History, Error> {
        let view = self.view(ask, Depth::Tail).await?;
        let check = view.check();
        let find = move |log: &Log| {
            let mut scan = PageScan::new(request);
            let bound = request.before_seq.unwrap_or_else(|| log.closed_end());
            log.backward(bound, |event| {
                let wants_more = scan.apply(event);
                if scan.page().range.is_some_and(|(first, _)| first <= event.seq) {
                    check(event)?;
                }
                Ok(wants_more)
            })?;
            Ok(scan.page())
        };
        let page = view.run(find).await?;
        let next = page.range.map_or_else(|| view.log.closed_end(), |(first, _)| first);
        Ok(History { basis: view.basis, page, log: view.log.clone(), next, _view: view })
    }
}

impl History {
    /// The next events of the page: about `bytes_max` of data, at least one event; nothing at its end.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Vec<Event>, Error> {
        let Some((_, last)) = self.page.range.filter(|(_, last)| self.next <= *last) else { return Ok(Vec::new()) };
        let (log, from) = (self.log.clone(), self.next);
        let read = move || {
            let (mut events, mut bytes) = (Vec::new(), 0);
            log.forward(from, |event| {
                bytes += event.body.data.len();
                if event.seq > last || (bytes > bytes_max && !events.is_empty()) {
                    return Ok(false);
                }
                events.push(event);
                Ok(true)
            })?;
            Ok::<Vec<Event>, Error>(events)
        };
        let events = blocking(read).await??;
        let read = events.last().map_or(last, |event| event.seq);
        self.next = Seq::saturating(read.get() + 1);
        Ok(events)
    }
}
