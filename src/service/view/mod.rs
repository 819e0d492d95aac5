//! Views: what a log means, computed from what is stored.
//!
//! A view looks at one contiguous prefix of a log, all of it durable, and says which. Folds run where they may wait for
//! a disk, over events that are read in pieces: what is kept in memory is the answer and the state of the fold. Views
//! of the head start from the session's checkpoint where they can. Nothing here writes, and nothing knows the wire.

mod attempts;
mod family;
mod history;
mod log;
mod messages;
mod records;
mod tail;

use std::sync::Arc;

use super::budget::Permit;
use super::committer::Waiter;
use super::session::{Live, Slot};
use super::{Error, Reason, Service, blocking, durable, error, live};
use crate::model::{Event, Incarnation, Profile, Seq, SessionKey};
use crate::replay::repair::closers_of;
use crate::replay::request::LatestHeader;
use crate::replay::surface::{Surface, SurfaceError};
use crate::replay::vocabulary::{UnknownType, check_readable};

pub use self::attempts::Assembled;
pub use self::family::{Family, Relative};
pub use self::history::History;
pub(super) use self::log::Log;
pub use self::messages::{Conversation, Reconstructed};
pub use self::records::{RecordQuery, Statistics};

/// Which log, and how much of it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The session.
    pub key: SessionKey,
    /// Only this life of the name.
    pub incarnation: Option<Incarnation>,
    /// Only the events before this seq; `None`: all that was accepted.
    pub before: Option<Seq>,
    /// Whether closers follow.
    pub is_balanced: bool,
}

/// What an answer was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The events below were looked at.
    pub next_seq: Seq,
    /// Which life of the name.
    pub incarnation: Incarnation,
    /// How many closers follow.
    pub closers: usize,
}

/// The right to read, for as long as an answer is in memory.
#[derive(Debug)]
pub struct Hold {
    _permit: Permit,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct PageOf<T> {
    /// What it was made from.
    pub basis: Basis,
    /// The part.
    pub items: Vec<T>,
    /// Where the next part begins, if there may be one.
    pub next: Option<Seq>,
}

/// How much of the checkpoint a view needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// None: it reads what it needs.
    Tail,
    /// The header in force.
    Header,
    /// The surface too, which is copied.
    Folded,
}

/// A view that was opened.
struct View {
    basis: Basis,
    log: Arc<Log>,
    folded: Option<Folded>,
    inherited: Seq,
    /// The end of all that was durable.
    durable: Seq,
    service: Service,
    hold: Hold,
}

/// What the checkpoint says of a head.
struct Folded {
    surface: Surface,
    header: LatestHeader,
    unknown: Option<UnknownType>,
    fault: Option<(Seq, SurfaceError)>,
}

/// What is decided under the lock.
struct Opened {
    log: Log,
    durable: Seq,
    incarnation: Incarnation,
    inherited: Seq,
    closers: Option<Vec<Event>>,
    folded: Option<Folded>,
}

impl Service {
    async fn view(&self, ask: &Ask, depth: Depth) -> Result<View, Error> {
        let permit = self.inner.reads.take(1);
        let permit = permit.ok_or_else(|| Error::new(Reason::ReaderBudget, "too many reads are running"))?;
        let slot = self.inner.slots.get(&ask.key).await?;
        let depth = if ask.before.is_none() { depth } else { Depth::Tail };
        let is_folded = depth != Depth::Tail;
        if is_folded {
            self.settle(ask, &slot).await?;
            self.fold(&ask.key, &slot).await?;
        }
        let (mut opened, waiter) = self.look(ask, &slot, depth)?;
        if let Some(waiter) = waiter
            && let Err(error) = durable(waiter).await
        {
            if ask.before.is_some() {
                return Err(error);
            }
            // A store that takes no more writes still shows what it has.
            opened = Opened { log: opened.log.up_to(opened.durable), closers: None, folded: None, ..opened };
        }
        self.close_turn(ask, &slot, &mut opened).await?;
        Ok(self.opened(opened, permit))
    }

    fn opened(&self, opened: Opened, permit: Permit) -> View {
        let (end, closers) = (opened.log.end(), opened.log.closers().len());
        View {
            basis: Basis { next_seq: end, incarnation: opened.incarnation, closers },
            log: Arc::new(opened.log),
            folded: opened.folded,
            inherited: opened.inherited,
            durable: opened.durable.max(end),
            service: self.clone(),
            hold: Hold { _permit: permit },
        }
    }

    /// Waits for what was accepted of a raw log, whose fold covers durable events only.
    async fn settle(&self, ask: &Ask, slot: &Arc<Slot>) -> Result<(), Error> {
        let waiter = {
            let state = slot.state.lock();
            let live = live(&state, &ask.key)?;
            let is_behind = live.birth.profile == Profile::Raw && live.next_seq > live.durable_next_seq;
            is_behind.then(|| self.committer.submit(slot, None, None))
        };
        if let Some(waiter) = waiter {
            // What failed is not durable, and so not seen.
            let _ = durable(waiter).await;
        }
        Ok(())
    }

    /// Takes what is needed from the session, all from one moment; the waiter says when it is durable.
    fn look(&self, ask: &Ask, slot: &Arc<Slot>, depth: Depth) -> Result<(Opened, Option<Waiter>), Error> {
        let is_folded = depth != Depth::Tail;
        let state = slot.state.lock();
        let live = live(&state, &ask.key)?;
        live.check_incarnation(ask.incarnation)?;
        let (wanted, fold) = (wanted_end(ask, live)?, live.fold.as_ref());
        let end = fold.filter(|_| is_folded).map_or(wanted, |fold| fold.next_seq());
        let fold = fold.filter(|fold| fold.next_seq() == end);
        let closers = fold.filter(|_| ask.is_balanced).map(|fold| closers_of(fold.admission.tail()));
        let folded = fold.filter(|_| is_folded).map(|fold| Folded {
            surface: match depth {
                Depth::Folded => fold.admission.surface().clone(),
                Depth::Tail | Depth::Header => Surface::default(),
            },
            header: fold.admission.latest_header(),
            unknown: fold.unknown.clone(),
            fault: fold.admission.surface_fault().map(|(seq, error)| (seq, error.clone())),
        });
        let is_trusted = live.birth.profile != Profile::Raw;
        let opened = Opened {
            log: Log::new(&self.inner.store, (live.log, end), is_trusted),
            durable: live.durable_next_seq,
            incarnation: live.birth.incarnation,
            inherited: Seq::saturating(live.birth.header.seed_length.unwrap_or_default()),
            closers,
            folded,
        };
        let waiter = (end > live.durable_next_seq).then(|| self.committer.submit(slot, None, None));
        Ok((opened, waiter))
    }

    /// Computes the closers, if they are asked for.
    async fn close_turn(&self, ask: &Ask, slot: &Arc<Slot>, opened: &mut Opened) -> Result<(), Error> {
        if !ask.is_balanced {
            return Ok(());
        }
        let closers = if let Some(closers) = opened.closers.take() {
            closers
        } else {
            let log = opened.log.clone();
            match blocking(move || log.tail_within(TAIL_EVENTS)).await?? {
                Some(tail) => closers_of(&tail),
                None => self.close_long_turn(ask, slot, &opened.log).await?,
            }
        };
        opened.log.close_with(closers);
        Ok(())
    }
}

impl Service {
    /// The closers of a turn whose start is far back: the checkpoint has them.
    async fn close_long_turn(&self, ask: &Ask, slot: &Arc<Slot>, log: &Log) -> Result<Vec<Event>, Error> {
        self.fold(&ask.key, slot).await?;
        {
            let state = slot.state.lock();
            let live = live(&state, &ask.key)?;
            let fold = live.fold.as_ref().filter(|fold| live.log == log.id() && fold.next_seq() == log.end());
            if let Some(fold) = fold {
                return Ok(closers_of(fold.admission.tail()));
            }
        }
        let log = log.clone();
        Ok(closers_of(&blocking(move || log.tail()).await??))
    }
}

/// Events that are looked through backwards for the start of a turn before the checkpoint is asked.
const TAIL_EVENTS: u64 = 2048;

fn wanted_end(ask: &Ask, live: &Live) -> Result<Seq, Error> {
    let end = ask.before.unwrap_or(live.next_seq);
    match live.damage {
        Some(damage) if ask.before.is_none_or(|before| before > damage.good_next_seq) => {
            Err(error::corrupt(damage.good_next_seq))
        }
        _ if end > live.next_seq => {
            let problem = format!("is {end}; the log ends at {}", live.next_seq);
            Err(Error::field(Reason::BeyondHead, "log.before_seq", problem))
        }
        _ => Ok(end),
    }
}

impl View {
    /// Runs a fold over the log where it may wait for a disk; it stops soon after nobody waits for it any more.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Log) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let log = self.log.renewed();
        let _gone = log.watch();
        blocking(move || work(&log)).await?
    }

    fn check(&self) -> impl Fn(&Event) -> Result<(), Error> + Send + 'static {
        let log_only = self.service.inner.log_only.clone();
        move |event| Ok(check_readable(event, &|kind| log_only.iter().any(|name| name == kind))?)
    }
}

impl Folded {
    /// Refuses a log that no view may be made of.
    fn check(&self) -> Result<(), Error> {
        if let Some(unknown) = &self.unknown {
            return Err(unknown.clone().into());
        }
        self.fault.as_ref().map_or(Ok(()), |(seq, error)| Err(Error::unreadable(*seq, error)))
    }

    /// The surface with what follows the log.
    fn surface_with(&self, closers: &[Event]) -> Result<Surface, Error> {
        let mut surface = self.surface.clone();
        for event in closers {
            let applied = surface.apply(event, &crate::replay::surface::admitted);
            applied.map_err(|error| Error::unreadable(event.seq, error))?;
        }
        Ok(surface)
    }
}
