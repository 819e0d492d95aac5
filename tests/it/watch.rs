//! Displays: a page and what follows it, without a seam.

use quipu::rpc::pb;
use quipu::rpc::pb::read_from_response::Frame;
use quipu::rpc::pb::watch_response::Content;
use tonic::Code;

use crate::support::{Calls, Node, Random, batch, note, notes, refused, run, setting};

fn watching(id: &str, from_seq: Option<u64>) -> pb::WatchRequest {
    pb::WatchRequest { session_id: id.to_owned(), from_seq, max_messages: 2, ..Default::default() }
}

fn message(n: u64) -> pb::NewEvent {
    let data = format!("{{\"role\":\"user\",\"content\":\"{n}\"}}");
    let surface_op = Some(pb::SurfaceOp { op: Some(pb::surface_op::Op::Append(pb::SurfaceAppend {})) });
    pb::NewEvent { r#type: "user/message".to_owned(), surface_op, ..note(data) }
}

#[test]
fn the_page_says_where_it_lies_and_its_events_begin_the_stream() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        client.append(batch("s", 0, (0..5).map(message).collect())).await.unwrap();
        let mut frames = client.log.watch(watching("s", None)).await.unwrap().into_inner();
        let Some(Content::Page(page)) = frames.message().await.unwrap().unwrap().content else { panic!("page first") };
        assert_eq!((page.first_seq, page.next_seq, page.has_more), (3, 5, true));
        client.append(batch("s", 5, vec![message(5)])).await.unwrap();
        let mut seqs = Vec::new();
        while seqs.len() < 3 {
            let Some(Content::Frame(frame)) = frames.message().await.unwrap().unwrap().content else {
                panic!("frames")
            };
            if let Some(Frame::Events(events)) = frame.frame {
                seqs.extend(events.events.into_iter().map(|event| event.seq));
            }
        }
        assert_eq!(seqs, [3, 4, 5]);
        client.make("empty").await;
        let mut frames = client.log.watch(watching("empty", None)).await.unwrap().into_inner();
        let Some(Content::Page(page)) = frames.message().await.unwrap().unwrap().content else { panic!("page first") };
        assert_eq!((page.first_seq, page.next_seq, page.has_more), (0, 0, false));
        refused(client.log.watch(watching("s", Some(99))).await, Code::OutOfRange, "BEYOND_HEAD");
        refused(client.log.watch(watching("nobody", None)).await, Code::NotFound, "SESSION_NOT_FOUND");
    });
}

/// Long form: QUIPU_FOLLOW_CUTS=10000.
#[test]
fn a_display_that_is_cut_at_random_sees_the_log_exactly() {
    run(async {
        let mut random = Random::new("QUIPU_FOLLOW_SEED");
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let (mut seen, mut end): (Option<u64>, u64) = (None, 0);
        for _ in 0..setting("QUIPU_FOLLOW_CUTS", 500) {
            let mut frames = client.log.watch(watching("s", seen)).await.unwrap().into_inner();
            let count = random.below(4);
            if count > 0 {
                client.append(batch("s", end, notes("x", count as usize))).await.unwrap();
                end += count;
            }
            for _ in 0..1 + random.below(3) {
                let content = frames.message().await.unwrap().unwrap().content;
                match content {
                    Some(Content::Page(page)) => assert!(seen.replace(page.first_seq).is_none(), "one page"),
                    Some(Content::Frame(frame)) => match frame.frame {
                        Some(Frame::Events(events)) => events.events.into_iter().for_each(|event| {
                            assert_eq!(seen.replace(event.seq + 1), Some(event.seq));
                        }),
                        Some(Frame::CaughtUp(_)) => break,
                        _ => {}
                    },
                    None => panic!("an empty frame"),
                }
            }
        }
    });
}
