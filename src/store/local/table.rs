//! What was committed since the last checkpoint of the index, in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::journal::Cursor;
use super::notes::Notes;
use super::place::Place;
use super::replay::Sink;
use crate::codec::change::Kind;
use crate::codec::frame::{RecordHeader, RecordStub};
use crate::codec::{Chain, Summary, ownership};
use crate::model::{Owner, Seq, SessionKey, Tenure};
use crate::store::{Birth, Change, Damage, Extent, Graft, LogId, Position, Run, Session, StoreError};

/// A session with everything that the index keeps of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) session: Session,
    /// Events from here on were lost.
    pub(super) damage: Option<Damage>,
    pub(super) deleted: bool,
    /// Runs that the index does not have yet.
    pub(super) places: Vec<Place>,
    /// The same of copies of shared events, which come before all others.
    pub(super) copies: Vec<Place>,
    /// Runs from the log's next seq on must leave the index.
    pub(super) is_cut: bool,
    /// Purged: all of it must leave the index.
    pub(super) is_gone: bool,
}

impl Entry {
    /// An entry without runs.
    pub(super) fn new(session: Session, damage: Option<Damage>, deleted: bool) -> Self {
        let (places, copies) = (Vec::new(), Vec::new());
        Self { session, damage, deleted, places, copies, is_cut: false, is_gone: false }
    }

    /// A copy without the runs, of which there may be many.
    pub(super) fn without_places(&self) -> Self {
        let (is_cut, is_gone) = (self.is_cut, self.is_gone);
        Self { is_cut, is_gone, ..Self::new(self.session.clone(), self.damage, self.deleted) }
    }

    /// The log changes hands. A record that is lost but for its epoch fences whoever got that one: nobody may write
    /// with it, and it is never handed out again.
    fn pass_to(&mut self, epoch: u32, content: Content, since_ms: u64) {
        let before = self.session.owner.as_deref();
        let owner = match content {
            Content::Owner(owner) => owner,
            _ => Arc::new(Owner {
                epoch: u64::from(epoch).max(before.map_or(0, |owner| owner.epoch)),
                holder: "".into(),
                tenure: Tenure::Released,
                since_ms,
                ttl_ms: before.map_or(0, |owner| owner.ttl_ms),
                take_overs: before.map(|owner| owner.take_overs.clone()).unwrap_or_default(),
            }),
        };
        self.session.owner = Some(owner);
    }
}

/// What a record holds besides its header, as far as a table needs it.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Nothing.
    None,
    /// Of a `Create`.
    Birth(Arc<Birth>),
    /// Of an `Append`, or a copy.
    Events(Summary),
    /// Of a `Fork`.
    Graft(Arc<Graft>),
    /// Of an `Owner`.
    Owner(Arc<Owner>),
}

impl From<&Change> for Content {
    fn from(change: &Change) -> Self {
        match change {
            Change::Create { birth, .. } => Self::Birth(birth.clone()),
            Change::Fork { graft, .. } => Self::Graft(graft.clone()),
            Change::Owner { owner, .. } => Self::Owner(owner.clone()),
            Change::Append { run, .. } | Change::Repair { run, .. } | Change::Detach { copy: Some(run), .. } => {
                Self::Events(Summary::of(&run.events))
            }
            Change::Delete { .. } | Change::Detach { copy: None, .. } | Change::Purge { .. } => Self::None,
        }
    }
}

impl Content {
    /// The content of a record whose payload is sound.
    fn of(kind: Kind, payload: &Bytes) -> Self {
        match kind {
            Kind::Create => Birth::decode_either(payload).map_or(Self::None, |birth| Self::Birth(birth.into())),
            Kind::Fork => Graft::decode_either(payload).map_or(Self::None, |graft| Self::Graft(graft.into())),
            Kind::Owner => ownership::decode_record(payload).map_or(Self::None, |owner| Self::Owner(owner.into())),
            Kind::Append | Kind::Repair | Kind::Detach => Self::Events(Summary::of(payload)),
            Kind::Delete | Kind::Purge => Self::None,
        }
    }
}

/// The changes since the last checkpoint.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) logs: HashMap<LogId, Entry>,
    /// Names whose meaning changed; `None` is a name that became free.
    pub(super) names: HashMap<SessionKey, Option<LogId>>,
    /// What forks share.
    pub(super) extents: HashMap<LogId, Arc<[Extent]>>,
    /// The events that came with forks.
    pub(super) markers: HashMap<LogId, Run>,
    /// Who shares: by log and live sharer the end of what is shared; `None` shares no more.
    pub(super) sharers: BTreeMap<(LogId, LogId), Option<Seq>>,
    /// Where the journal stands.
    pub(super) cursor: Cursor,
    /// Changes up to here may have been lost without a trace: a log whose last change is not later is unproved.
    pub(super) horizon: Position,
    /// Runs in all entries.
    pub(super) runs: usize,
    /// The highest log id seen.
    pub(super) log_max: u64,
    /// Notes that the index does not have yet.
    pub(super) notes: Notes,
}

impl Table {
    /// Takes a committed record. A record that the index has is passed over.
    pub(super) fn apply(
        &mut self,
        base: Base<'_>,
        (header, place): (&RecordHeader, Place),
        content: Content,
        time_ms: u64,
    ) -> Result<(), StoreError> {
        let log = LogId(header.log);
        self.log_max = self.log_max.max(header.log);
        match (header.kind, &content) {
            (Kind::Create, Content::Birth(birth)) => {
                return self.create(base, log, header, (birth.clone(), time_ms));
            }
            (Kind::Fork, Content::Graft(graft)) => return self.fork(base, header, graft, time_ms),
            (Kind::Detach, _) => return self.detach(base, (header, place), &content),
            (Kind::Delete, _) => self.set_free(base, log)?,
            // The log may be gone in the index already.
            (Kind::Purge, _) => {
                if let Some(entry) = self.entry(base, log)? {
                    entry.purge(header);
                }
                return Ok(());
            }
            _ => {}
        }
        let Some(entry) = self.entry(base, log)? else {
            tracing::warn!(log = log.0, position = header.position, "a record of an unknown log");
            return Ok(());
        };
        let session = &mut entry.session;
        if header.position <= session.position.0 {
            return Ok(());
        }
        session.position = Position(header.position);
        if header.kind != Kind::Owner {
            session.updated_ms = session.updated_ms.max(time_ms);
        }
        let follows = header.first_seq == session.next_seq && header.link == session.chain.link();
        match header.kind {
            Kind::Append | Kind::Repair if follows => {
                (session.next_seq, session.chain) = (place.next_seq(), header.chain);
                if let Content::Events(summary) = &content {
                    session.summary.add(summary);
                }
                entry.places.push(place);
                self.runs += 1;
            }
            Kind::Append | Kind::Repair => {
                entry.damage.get_or_insert(Damage { good_next_seq: session.next_seq });
            }
            Kind::Owner => {
                if !follows {
                    entry.damage.get_or_insert(Damage { good_next_seq: session.next_seq });
                }
                entry.pass_to(header.count, content, time_ms);
            }
            Kind::Delete => {
                entry.deleted = true;
                self.notes.remove(log);
            }
            Kind::Create | Kind::Fork | Kind::Detach | Kind::Purge => {}
        }
        Ok(())
    }

    fn create(
        &mut self,
        base: Base<'_>,
        log: LogId,
        header: &RecordHeader,
        (birth, updated_ms): (Arc<Birth>, u64),
    ) -> Result<(), StoreError> {
        // Even if the index has the session: it may come from a checkpoint that was not finished.
        self.names.insert(birth.key.clone(), Some(log));
        if self.entry(base, log)?.is_some() {
            return Ok(());
        }
        let session = Session::born(log, birth, (updated_ms, Position(header.position)));
        self.logs.insert(log, Entry::new(session, None, false));
        Ok(())
    }

    /// The entry of a log, fetched from the base if need be.
    pub(super) fn entry(&mut self, base: Base<'_>, log: LogId) -> Result<Option<&mut Entry>, StoreError> {
        if !self.logs.contains_key(&log)
            && let Some(entry) = base.entry(log)?
        {
            self.logs.insert(log, entry);
        }
        Ok(self.logs.get_mut(&log))
    }

    /// An empty table that goes on where this one stands.
    pub(super) fn successor(&self) -> Self {
        Self { cursor: self.cursor, horizon: self.horizon, log_max: self.log_max, ..Self::default() }
    }
}

/// What lies below a table: the one that is being written to the index, and the index.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) frozen: Option<&'a Table>,
    pub(super) index: Option<&'a Index>,
}

impl Base<'_> {
    /// The entry of a log, without runs.
    pub(super) fn entry(&self, log: LogId) -> Result<Option<Entry>, StoreError> {
        if let Some(entry) = self.frozen.and_then(|frozen| frozen.logs.get(&log)) {
            return Ok(Some(entry.without_places()));
        }
        Ok(self.index.ok_or(StoreError::Rebuilding)?.entry(log)?)
    }
}

/// Fills a table from the journal, moving it into the index whenever it has grown.
pub(super) struct Loader<'a> {
    pub(super) table: Table,
    pub(super) index: &'a Index,
}

/// Runs and sessions that a replay keeps in memory at once.
const ENTRIES_MAX: usize = 200_000;

impl<'a> Loader<'a> {
    fn base(&self) -> Base<'a> {
        Base { frozen: None, index: Some(self.index) }
    }

    /// Takes a sealed block, of which the record is what it stands for.
    pub(super) fn block(
        &mut self,
        record: &RecordHeader,
        place: Place,
        (summary, time_ms): (Summary, u64),
    ) -> Result<(), StoreError> {
        self.table.apply(self.base(), (record, place), Content::Events(summary), time_ms)?;
        self.empty_when_full()
    }

    fn empty_when_full(&mut self) -> Result<(), StoreError> {
        if self.table.runs + self.table.logs.len() >= ENTRIES_MAX {
            self.index.write(&self.table)?;
            self.table = self.table.successor();
        }
        Ok(())
    }
}

impl Sink for Loader<'_> {
    fn record(&mut self, header: &RecordHeader, payload: Bytes, place: Place, time_ms: u64) -> Result<(), StoreError> {
        self.table.apply(self.base(), (header, place), Content::of(header.kind, &payload), time_ms)?;
        self.empty_when_full()
    }

    fn damaged(&mut self, stub: &RecordStub, payload: &Bytes, place: Place, time_ms: u64) -> Result<(), StoreError> {
        let log = LogId(stub.log);
        tracing::error!(log = stub.log, seq = %stub.first_seq, "a journal record is damaged");
        self.table.log_max = self.table.log_max.max(stub.log);
        let base = self.base();
        let kind = stub.kind.unwrap_or(Kind::Append);
        match (kind, Content::of(kind, payload)) {
            // Its name is lost.
            (Kind::Create | Kind::Fork, Content::None) => {
                self.lost(Position(stub.position));
                Ok(())
            }
            (Kind::Create | Kind::Fork | Kind::Delete, content) => {
                self.table.apply(base, (&restored(stub, kind), place), content, time_ms)
            }
            (Kind::Detach, _) if stub.count == 0 => {
                self.table.apply(base, (&restored(stub, kind), place), Content::None, time_ms)
            }
            // What is shared is still there; what should have gone stays.
            (Kind::Detach | Kind::Purge, _) => Ok(()),
            // It holds no event. That it is there proves nothing about those before it, so that the position stays.
            (Kind::Owner, content) => {
                if let Some(entry) = self.table.entry(base, log)?
                    && entry.session.position.0 < stub.position
                {
                    entry.pass_to(stub.count, content, time_ms);
                }
                Ok(())
            }
            (Kind::Append | Kind::Repair, _) => {
                let entry = self.table.entry(base, log)?;
                if let Some(entry) = entry.filter(|entry| entry.session.position.0 < stub.position) {
                    entry.session.position = Position(stub.position);
                    entry.damage.get_or_insert(Damage { good_next_seq: entry.session.next_seq });
                }
                Ok(())
            }
        }
    }

    fn lost(&mut self, through: Position) {
        tracing::error!(position = through.0, "journal records are lost; logs without a later change are unproved");
        self.table.horizon = self.table.horizon.max(through);
    }
}

/// The header of a damaged record that tells no events, as far as a table needs it.
fn restored(stub: &RecordStub, kind: Kind) -> RecordHeader {
    let RecordStub { position, log, first_seq, count, payload_bytes, .. } = *stub;
    let (link, chain) = (Chain::START.link(), Chain::START);
    RecordHeader { kind, position, log, first_seq, count, link, chain, payload_bytes, payload_checksum: 0 }
}
