//! ReadFrom: durable events in bounded frames, from any place, within limits, to an end that says why.

use quipu::rpc::pb;
use quipu::rpc::pb::log_service_client::LogServiceClient;
use quipu::store::local::{LocalStore, Options as StoreOptions};

use crate::support::{Calls, Node, all_of, batch, chain_after, note, notes, run, stored};

#[test]
fn a_read_starts_anywhere_with_the_chain_before_it() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = std::sync::Arc::new(LocalStore::open(dir.path(), StoreOptions::default()).unwrap());
        let node = Node::over(store.clone(), quipu::service::Options::default()).await;
        let mut client = node.client().await;
        client.make("s").await;
        let mut events = Vec::new();
        for (n, count) in [7, 1, 1, 20, 3].into_iter().enumerate() {
            let salt = n.to_string();
            client.append(batch("s", events.len() as u64, notes(&salt, count))).await.unwrap();
            events.extend(notes(&salt, count));
            if n == 2 {
                store.checkpoint();
            }
        }
        let head = client.head("s").await;
        for from_seq in 0..=33 {
            let read = client.read(pb::ReadFromRequest { from_seq, ..all_of("s") }).await.unwrap();
            let rest = events.get(from_seq as usize..).unwrap_or_default();
            assert_eq!(read.events(), stored(from_seq, rest));
            assert_eq!(read.reason(), pb::ReadEndReason::EndOfLog);
            assert_eq!(read.start.session.as_ref().unwrap().head.as_ref().unwrap().revision, head.revision);
            // At and past the end too: a reader that goes on from there has where to start.
            assert_eq!(chain_after(&read.start.chain_before, &read.events()), head.chain, "from {from_seq}");
            assert_eq!(read.end.unwrap().next_seq, from_seq.max(32));
        }
    });
}

#[test]
fn limits_stop_the_stream_and_say_where_to_go_on() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        // 100 events of 10 bytes, then one of 1,000, then 10 bytes again.
        let mut events: Vec<_> = (0..100).map(|n| note(format!("\"{n:08}\""))).collect();
        events.push(note(format!("\"{}\"", "x".repeat(998))));
        events.push(note("\"01234567\""));
        client.append(batch("s", 0, events[..60].to_vec())).await.unwrap();
        client.append(batch("s", 60, events[60..].to_vec())).await.unwrap();
        let limited = |from_seq, limit_events, limit_bytes| pb::ReadFromRequest {
            from_seq,
            limit_events,
            limit_bytes,
            ..all_of("s")
        };
        let cases = [
            // from, limit_events, limit_bytes: events, reason
            ((0, 1, 0), 1, pb::ReadEndReason::Limit),
            ((0, 61, 0), 61, pb::ReadEndReason::Limit),
            ((0, 103, 0), 102, pb::ReadEndReason::EndOfLog),
            ((0, u64::MAX, u64::MAX), 102, pb::ReadEndReason::EndOfLog),
            ((0, 0, 1), 1, pb::ReadEndReason::Limit),
            ((0, 0, 10), 1, pb::ReadEndReason::Limit),
            ((0, 0, 19), 1, pb::ReadEndReason::Limit),
            ((0, 0, 20), 2, pb::ReadEndReason::Limit),
            ((55, 0, 105), 10, pb::ReadEndReason::Limit),
            ((99, 0, 1009), 1, pb::ReadEndReason::Limit),
            ((99, 0, 1010), 2, pb::ReadEndReason::Limit),
            ((100, 0, 5), 1, pb::ReadEndReason::Limit),
            ((0, 7, 55), 5, pb::ReadEndReason::Limit),
            ((0, 3, 55), 3, pb::ReadEndReason::Limit),
            ((102, 1, 1), 0, pb::ReadEndReason::EndOfLog),
            ((500, 1, 1), 0, pb::ReadEndReason::EndOfLog),
        ];
        for ((from, limit_events, limit_bytes), count, reason) in cases {
            let read = client.read(limited(from, limit_events, limit_bytes)).await.unwrap();
            let case = format!("from {from}, {limit_events} events, {limit_bytes} bytes");
            let wanted = events.get(from as usize..).map_or(&[][..], |rest| &rest[..count]);
            assert_eq!(read.events(), stored(from, wanted), "{case}");
            assert_eq!(read.reason(), reason, "{case}");
            assert_eq!(read.end.unwrap().next_seq, from + count as u64, "{case}");
        }
        // Paging by bytes makes way although each event is larger than the limit, and gives every event once.
        let (mut next_seq, mut all) = (0, Vec::new());
        while next_seq < 102 {
            let read = client.read(limited(next_seq, 0, 9)).await.unwrap();
            all.extend(read.events());
            next_seq = read.end.unwrap().next_seq;
        }
        assert_eq!(all, stored(0, &events));
    });
}

/// A client as any language generates it: messages up to 4 MiB.
async fn plain_client(node: &Node) -> LogServiceClient<tonic::transport::Channel> {
    LogServiceClient::connect(node.address.clone()).await.unwrap()
}

#[test]
fn two_hundred_and_thirty_thousand_small_events_reach_a_client_with_default_limits() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        for first_seq in (0..230_000).step_by(1000) {
            let events = (first_seq..first_seq + 1000).map(|n| note(n.to_string())).collect();
            client.append(batch("s", first_seq, events)).await.unwrap();
        }
        let mut stream = plain_client(&node).await.read_from(all_of("s")).await.unwrap().into_inner();
        let (mut next_seq, mut largest, mut end) = (0, 0, None);
        while let Some(frame) = stream.message().await.unwrap() {
            largest = largest.max(prost::Message::encoded_len(&frame));
            match frame.frame.unwrap() {
                pb::read_from_response::Frame::Start(_) => {}
                pb::read_from_response::Frame::Events(events) => {
                    for event in events.events {
                        assert_eq!((event.seq, &event.data[..]), (next_seq, next_seq.to_string().as_bytes()));
                        next_seq += 1;
                    }
                }
                pb::read_from_response::Frame::End(found) => end = Some(found),
                other => panic!("not for a read that ends: {other:?}"),
            }
        }
        assert_eq!(end.unwrap().reason(), pb::ReadEndReason::EndOfLog);
        assert_eq!(next_seq, 230_000);
        assert!(largest < 1 << 20, "a frame of {largest} bytes");
    });
}

#[test]
fn frames_stay_bounded_whatever_fills_the_events() {
    // A source list weighs as much as data: eight events of 100,000 long seqs fill 6 MB around one byte of data each.
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let sources = |n: u64| pb::SourceEventSeqs { seqs: (0..100_000).map(|s| (1 << 52) + n + s).collect() };
        let events: Vec<_> =
            (0..8).map(|n| pb::NewEvent { source_event_seqs: Some(sources(n)), ..note("0") }).collect();
        client.append(batch("s", 0, events.clone())).await.unwrap();
        let long_types: Vec<_> = (0..1000).map(|_| pb::NewEvent { r#type: "t".repeat(256), ..note("0") }).collect();
        client.append(batch("s", 8, long_types.clone())).await.unwrap();
        let stream = plain_client(&node).await.read_from(all_of("s")).await.unwrap().into_inner();
        let read = crate::support::Read::of(stream).await;
        assert!(read.refusal.is_none(), "{:?}", read.refusal);
        assert_eq!(read.events(), [stored(0, &events), stored(8, &long_types)].concat());
    });
}

#[test]
fn the_largest_event_can_be_written_and_read() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let sources = Some(pb::SourceEventSeqs { seqs: (0..100_000).map(|s| (1 << 52) + s).collect() });
        let data = format!("\"{}\"", "x".repeat((4 << 20) - 2));
        let largest = pb::NewEvent { source_event_seqs: sources, r#type: "t".repeat(256), ..note(data) };
        let events = vec![note("1"), largest, note("2")];
        client.append(batch("s", 0, events.clone())).await.unwrap();
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!(read.events(), stored(0, &events));
        assert_eq!(read.reason(), pb::ReadEndReason::EndOfLog);
    });
}

#[test]
fn a_read_shows_the_log_as_it_was_when_it_began() {
    run(async {
        let node = Node::memory().await;
        let (mut client, mut writer) = (node.client().await, node.client().await);
        client.make("s").await;
        let big = || vec![note(format!("\"{}\"", "x".repeat(200_000)))];
        for seq in 0..40 {
            writer.append(batch("s", seq, big())).await.unwrap();
        }
        // The stream has begun; the log grows, and is deleted and made anew.
        let stream = client.log.read_from(all_of("s")).await.unwrap().into_inner();
        writer.append(batch("s", 40, big())).await.unwrap();
        writer.remove("s").await.unwrap();
        writer.make("s").await;
        let read = crate::support::Read::of(stream).await;
        assert_eq!(read.seqs(), (0..40).collect::<Vec<_>>());
        assert_eq!(read.reason(), pb::ReadEndReason::EndOfLog);
        assert!(writer.read(all_of("s")).await.unwrap().seqs().is_empty());
    });
}
