//! Append: at the place that the caller names, safe to repeat, atomic, answered at a level.

use std::sync::Arc;
use std::time::Duration;

use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::memory::MemoryStore;
use tonic::Code;

use crate::support::gate::GateStore;
use crate::support::{Calls, Node, all_of, batch, chain_after, note, notes, refused, run, stored};

#[test]
fn the_first_seq_is_required_and_must_be_the_next_one() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let without = pb::AppendRequest { first_seq: None, ..batch("s", 0, notes("a", 1)) };
        let refusal = refused(client.append(without).await, Code::InvalidArgument, "INVALID_REQUEST");
        assert_eq!(refusal.fact("field"), "first_seq");

        let answer = client.append(batch("s", 0, notes("a", 3))).await.unwrap();
        let head = answer.head.clone().unwrap();
        assert_eq!((head.next_seq, head.durable_next_seq), (3, 3));
        assert_eq!((answer.ack_level(), answer.deduplicated), (pb::AckLevel::Durable, false));
        assert_eq!(head.chain[..], chain_after(blake3::hash(b"quipu chain 1").as_bytes(), &stored(0, &notes("a", 3))));

        for first_seq in [4, 5, 1 << 40, (1 << 53) - 1] {
            let refusal = refused(client.append(batch("s", first_seq, notes("b", 1))).await, Code::Aborted, "SEQ_GAP");
            let detail = refusal.conflict();
            assert_eq!((detail.head.unwrap().next_seq, detail.first_differing_seq), (3, None));
            assert_eq!(refusal.fact("next_seq"), "3");
        }
        let beyond = client.append(batch("s", 1 << 53, notes("b", 1))).await;
        assert_eq!(refused(beyond, Code::InvalidArgument, "INVALID_REQUEST").fact("field"), "first_seq");
        assert_eq!(client.head("s").await.revision, head.revision, "refusals change nothing");
        assert_eq!(client.append(batch("s", 3, notes("b", 2))).await.unwrap().head.unwrap().next_seq, 5);
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!(read.events(), [stored(0, &notes("a", 3)), stored(3, &notes("b", 2))].concat());
    });
}

#[test]
fn a_repetition_with_the_same_bytes_is_confirmed_wherever_it_stands() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let events = notes("a", 10);
        client.append(batch("s", 0, events[..4].to_vec())).await.unwrap();
        client.append(batch("s", 4, events[4..].to_vec())).await.unwrap();
        let head = client.head("s").await;
        // The same batches, parts of them, and a batch across both.
        for (from, until) in [(0, 4), (4, 10), (0, 10), (2, 7), (9, 10), (3, 4)] {
            let answer = client.append(batch("s", from as u64, events[from..until].to_vec())).await.unwrap();
            assert!(answer.deduplicated, "{from}..{until}");
            assert_eq!(answer.ack_level(), pb::AckLevel::Durable);
            let now = answer.head.unwrap();
            assert_eq!((now.next_seq, now.durable_next_seq, &now.revision), (10, 10, &head.revision));
        }
        assert_eq!(client.read(all_of("s")).await.unwrap().events(), stored(0, &events));
        // The strict form refuses the same.
        let strict = pb::AppendRequest { strict: true, ..batch("s", 4, events[4..].to_vec()) };
        let refusal = refused(client.append(strict).await, Code::Aborted, "SEQ_CONFLICT");
        assert_eq!(refusal.conflict().head.unwrap().next_seq, 10);
        let strict = pb::AppendRequest { strict: true, ..batch("s", 10, notes("b", 1)) };
        assert!(!client.append(strict).await.unwrap().deduplicated);
    });
}

#[test]
fn other_bytes_are_a_conflict_with_the_head_and_the_first_seq_that_differs() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let events = notes("a", 10);
        client.append(batch("s", 0, events[..4].to_vec())).await.unwrap();
        client.append(batch("s", 4, events[4..].to_vec())).await.unwrap();
        let head = client.head("s").await;
        let sources = |seqs: &[u64]| Some(pb::SourceEventSeqs { seqs: seqs.to_vec() });
        let append_op = pb::SurfaceOp { op: Some(pb::surface_op::Op::Append(pb::SurfaceAppend {})) };
        let mut changes: Vec<(u64, pb::NewEvent)> = vec![
            (0, note("{}")),
            (3, pb::NewEvent { time_ms: 1, ..events[3].clone() }),
            (4, pb::NewEvent { r#type: "Note".into(), ..events[4].clone() }),
            (7, pb::NewEvent { ignorable: true, ..events[7].clone() }),
            (8, pb::NewEvent { source_event_seqs: sources(&[]), ..events[8].clone() }),
            (9, pb::NewEvent { surface_op: Some(append_op), ..events[9].clone() }),
        ];
        // The same value in other bytes is another event.
        let spaced = [&events[2].data[..], b" "].concat();
        changes.push((2, pb::NewEvent { data: spaced.into(), ..events[2].clone() }));
        for (at, changed) in changes {
            for from in [0, at] {
                let mut other = events.clone();
                other[at as usize] = changed.clone();
                let attempt = client.append(batch("s", from, other[from as usize..].to_vec())).await;
                let detail = refused(attempt, Code::Aborted, "SEQ_CONFLICT").conflict();
                assert_eq!(detail.first_differing_seq, Some(at), "from {from}");
                assert_eq!(detail.head.unwrap().revision, head.revision);
            }
        }
        // A batch that starts with stored events and goes beyond them.
        let longer = [events[6..].to_vec(), notes("b", 2)].concat();
        let refusal = refused(client.append(batch("s", 6, longer)).await, Code::Aborted, "SEQ_CONFLICT");
        assert_eq!(refusal.conflict().first_differing_seq, Some(10));
        assert_eq!(client.head("s").await.revision, head.revision);
        assert_eq!(client.read(all_of("s")).await.unwrap().events(), stored(0, &events));
    });
}

#[test]
fn a_batch_with_one_bad_event_changes_nothing() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let head = client.make("s").await.head.unwrap();
        for bad in [0, 1, 4] {
            let mut events = notes("a", 5);
            events[bad] = note("{");
            let refusal = refused(client.append(batch("s", 0, events)).await, Code::InvalidArgument, "INVALID_EVENT");
            assert_eq!(refusal.fact("field"), format!("events[{bad}].data"));
        }
        assert_eq!(client.head("s").await, head);
        assert!(client.read(all_of("s")).await.unwrap().events().is_empty());
    });
}

#[test]
fn presence_survives_absent_differs_from_empty_and_replacements_keep_their_range() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let op = |op| Some(pb::SurfaceOp { op: Some(op) });
        let list = |seqs: &[u64]| Some(pb::SourceEventSeqs { seqs: seqs.to_vec() });
        let replace = pb::surface_op::Op::Replace(pb::SurfaceReplace { start: 9, end: 3 });
        let events = vec![
            note("1"),
            pb::NewEvent { source_event_seqs: list(&[]), ..note("2") },
            pb::NewEvent { source_event_seqs: list(&[5, 0, (1 << 53) - 1]), ..note("3") },
            pb::NewEvent { surface_op: op(pb::surface_op::Op::Append(pb::SurfaceAppend {})), ..note("4") },
            pb::NewEvent { surface_op: op(replace), ignorable: true, ..note("5") },
            pb::NewEvent { time_ms: -((1 << 53) - 1), r#type: String::new(), ..note("6") },
            pb::NewEvent { time_ms: (1 << 53) - 1, r#type: "\u{1F642}/".repeat(51), ..note("7") },
        ];
        client.append(batch("s", 0, events.clone())).await.unwrap();
        assert_eq!(client.read(all_of("s")).await.unwrap().events(), stored(0, &events));
    });
}

#[test]
fn accepted_events_are_ordered_at_once_and_durable_with_flush() {
    run(async {
        // A window that does not close by itself while the test runs, and a store that takes nothing for a while: the
        // commit of the creation may still be running and take the first events along.
        let options = Options { accept_window: Duration::from_secs(3600), ..Options::default() };
        let gate = Arc::new(GateStore::default());
        let node = Node::over(gate.clone(), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        gate.shut();
        let accepted = |first_seq, events| pb::AppendRequest {
            ack_level: Some(pb::AckLevel::Accepted.into()),
            ..batch("s", first_seq, events)
        };
        let answer = client.append(accepted(0, notes("a", 2))).await.unwrap();
        let head = answer.head.clone().unwrap();
        assert_eq!(answer.ack_level(), pb::AckLevel::Accepted);
        assert_eq!((head.next_seq, head.durable_next_seq), (2, 0));
        client.append(accepted(2, notes("b", 3))).await.unwrap();
        let head = client.head("s").await;
        assert_eq!((head.next_seq, head.durable_next_seq), (5, 0));
        // What is not durable is shown to nobody, but it is compared with.
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!((read.events(), read.reason()), (vec![], pb::ReadEndReason::EndOfLog));
        let again = client.append(accepted(2, notes("b", 3))).await.unwrap();
        assert!(again.deduplicated && again.head.unwrap().durable_next_seq <= 5);
        let other = client.append(accepted(2, notes("c", 3))).await;
        assert_eq!(refused(other, Code::Aborted, "SEQ_CONFLICT").conflict().first_differing_seq, Some(2));

        gate.open();
        let head = client.flush("s").await.unwrap();
        assert_eq!((head.next_seq, head.durable_next_seq), (5, 5));
        assert_eq!(client.head("s").await.durable_next_seq, 5);
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!(read.events(), [stored(0, &notes("a", 2)), stored(2, &notes("b", 3))].concat());
        // A durable append takes along what was accepted before it.
        client.append(accepted(5, notes("d", 1))).await.unwrap();
        let head = client.append(batch("s", 6, notes("e", 1))).await.unwrap().head.unwrap();
        assert_eq!((head.next_seq, head.durable_next_seq), (7, 7));
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs().len(), 7);
        // So does the durable repetition of an accepted batch.
        client.append(accepted(7, notes("f", 1))).await.unwrap();
        let again = client.append(batch("s", 7, notes("f", 1))).await.unwrap();
        assert!(again.deduplicated);
        assert_eq!(again.head.unwrap().durable_next_seq, 8);
        assert_eq!(client.read(all_of("s")).await.unwrap().seqs().len(), 8);
    });
}

#[test]
fn the_window_makes_accepted_events_durable_by_itself() {
    run(async {
        let options = Options { accept_window: Duration::from_millis(20), ..Options::default() };
        let node = Node::over(Arc::new(MemoryStore::new()), options).await;
        let mut client = node.client().await;
        client.make("s").await;
        let accepted =
            pb::AppendRequest { ack_level: Some(pb::AckLevel::Accepted.into()), ..batch("s", 0, notes("a", 2)) };
        client.append(accepted).await.unwrap();
        let durable = async {
            while client.head("s").await.durable_next_seq < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), durable).await.expect("the window closes");
    });
}

#[test]
fn of_concurrent_appenders_exactly_one_wins_each_seq() {
    run(async {
        let node = Node::memory().await;
        node.client().await.make("s").await;
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let mut client = node.client().await;
            writers.spawn(async move {
                let (mut won, mut next_seq) = (Vec::new(), 0);
                while won.len() < 25 {
                    let count = 1 + (won.len() + writer) % 3;
                    let salt = format!("{writer}.{}", won.len());
                    match client.append(batch("s", next_seq, notes(&salt, count))).await {
                        Ok(answer) => {
                            assert!(!answer.deduplicated);
                            won.push((next_seq, salt, count));
                            next_seq = answer.head.unwrap().next_seq;
                        }
                        Err(status) => {
                            let refusal = crate::support::refusal(status);
                            assert_eq!(refusal.reason, "SEQ_CONFLICT");
                            next_seq = refusal.conflict().head.unwrap().next_seq;
                        }
                    }
                }
                won
            });
        }
        let mut won: Vec<(u64, String, usize)> = writers.join_all().await.concat();
        won.sort_unstable();
        let mut wanted = Vec::new();
        for (first_seq, salt, count) in won {
            assert_eq!(first_seq, wanted.len() as u64, "the log is dense: each seq has one winner");
            wanted.extend(stored(first_seq, &notes(&salt, count)));
        }
        let mut client = node.client().await;
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!(read.events(), wanted);
        assert_eq!(client.head("s").await.chain[..], chain_after(&read.start.chain_before, &wanted));
    });
}

#[test]
fn the_same_batch_from_many_hands_is_stored_once() {
    run(async {
        let node = Node::memory().await;
        node.client().await.make("s").await;
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = node.client().await;
            writers.spawn(async move {
                let mut fresh = 0;
                for round in 0..20_u64 {
                    let answer = client.append(batch("s", round * 2, notes(&round.to_string(), 2))).await.unwrap();
                    fresh += u64::from(!answer.deduplicated);
                }
                fresh
            });
        }
        let fresh: u64 = writers.join_all().await.into_iter().sum();
        assert_eq!(fresh, 20, "one of the hands stored each batch, the others were confirmed");
        assert_eq!(node.client().await.read(all_of("s")).await.unwrap().seqs(), (0..40).collect::<Vec<_>>());
    });
}
