//! The contract of the port about reading everything by position.
#![allow(clippy::unwrap_used, reason = "test code")]

use super::contract::{Harness, Writer, everything, key, list_all};
use super::{Change, LogId, Position};

/// A change as the test knows it: kind, name, first seq, events.
type Known = (&'static str, String, u64, u32);

pub(super) fn changes_are_read_by_position(h: &mut dyn Harness) {
    let mut writers: Vec<_> = (0..20).map(|n| Writer::new(h.store(), key(&format!("s{n}")))).collect();
    let mut known: Vec<Known> = Vec::new();
    let commit = |h: &mut dyn Harness, changes: Vec<(Change, Known)>, known: &mut Vec<Known>| {
        let (changes, said): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        h.store().commit(&changes, 7).unwrap();
        known.extend(said);
        h.between();
    };
    let name = |writer: &Writer| writer.birth.key.id.as_str().to_owned();
    let creations = writers.iter().map(|w| (w.create(), ("create", name(w), 0, 0))).collect();
    commit(h, creations, &mut known);
    for round in 0..6_usize {
        let appends = writers.iter_mut().skip(round).map(|w| {
            let first = w.next_seq.get();
            (w.append(2, 300 * round), ("append", name(w), first, 2))
        });
        let appends = appends.collect();
        commit(h, appends, &mut known);
    }
    let gone = writers.swap_remove(3);
    commit(h, vec![(gone.delete(), ("delete", "s3".to_owned(), gone.next_seq.get(), 0))], &mut known);
    let again = Writer::new(h.store(), key("s3"));
    commit(h, vec![(again.create(), ("create", "s3".to_owned(), 0, 0))], &mut known);
    for bytes_max in [1, 3000, 1 << 20] {
        for from in [1, 2, 21, 60, known.len() as u64, known.len() as u64 + 1] {
            let mut next = Position(from);
            loop {
                let page = h.store().changes(next, bytes_max).unwrap();
                assert_eq!(page.first_kept, Position(1));
                if page.changes.is_empty() {
                    break;
                }
                for change in page.changes {
                    assert_eq!((change.position, change.time_ms), (next, 7));
                    let count = change.run.as_ref().map_or(0, |run| run.count);
                    let id = change.birth.as_ref().unwrap().key.id.as_str().to_owned();
                    let said = (change.kind_name(), id, change.first_seq.get(), count);
                    assert_eq!(said, known[next.0 as usize - 1], "{next:?}");
                    next.0 += 1;
                }
            }
            assert_eq!(next.0, (known.len() as u64 + 1).max(from), "a hole at the end");
        }
    }
    let (mut logs, mut after) = (Vec::new(), LogId(0));
    loop {
        let page = h.store().sessions(after, 3).unwrap();
        let Some(last) = page.last() else { break };
        after = last.log;
        logs.extend(page.into_iter().map(|session| session.log));
    }
    let mut listed: Vec<_> = list_all(h.store(), &everything(), 100).into_iter().map(|session| session.log).collect();
    listed.sort_unstable();
    assert_eq!(logs, listed);
}
