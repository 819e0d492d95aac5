//! Limits and bad input: each has one stated, typed answer, changes nothing, and never ends the server.

use quipu::model::Limits;
use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::service::Options;
use quipu::store::memory::MemoryStore;
use tonic::Code;

use crate::support::{Calls, Node, Refusal, all_of, batch, note, notes, refused, run, stored};

const MIB: usize = 1 << 20;

/// A string of that many bytes with its quotes.
fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

async fn is_invalid(client: &mut Client, event: pb::NewEvent, field: &str) {
    let shown = format!("{event:?}").chars().take(200).collect::<String>();
    let attempt = client.append(batch("s", 0, vec![note("1"), event])).await;
    let refusal = refused(attempt, Code::InvalidArgument, "INVALID_EVENT");
    assert_eq!(refusal.fact("field"), format!("events[1].{field}"), "{shown}");
    assert_eq!(client.head("s").await.next_seq, 0, "{shown}");
}

fn is_limit(refusal: &Refusal, name: &str, size: u64, limit: u64) {
    let detail = refusal.limit();
    assert_eq!((detail.limit_name.as_str(), detail.size, detail.limit), (name, size, limit));
    let facts = [refusal.fact("limit_name"), refusal.fact("size"), refusal.fact("limit")];
    assert_eq!(facts, [name.to_owned(), size.to_string(), limit.to_string()]);
}

#[test]
fn events_and_batches_that_are_too_large_get_the_limit_and_the_size() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let over = batch("s", 0, vec![note(text(4 * MIB + 1))]);
        let refusal = refused(client.append(over).await, Code::InvalidArgument, "EVENT_TOO_LARGE");
        is_limit(&refusal, "event_bytes_max", 4 * MIB as u64 + 1, 4 * MIB as u64);

        let refusal =
            refused(client.append(batch("s", 0, notes("a", 1001))).await, Code::InvalidArgument, "BATCH_TOO_LARGE");
        is_limit(&refusal, "batch_events_max", 1001, 1000);

        let three = vec![note(text(3 * MIB)), note(text(3 * MIB)), note(text(3 * MIB))];
        let refusal = refused(client.append(batch("s", 0, three)).await, Code::InvalidArgument, "BATCH_TOO_LARGE");
        assert_eq!(refusal.limit().limit_name, "batch_bytes_max");
        assert_eq!(refusal.limit().limit, 8 * MIB as u64);
        assert!(refusal.limit().size > 9 * MIB as u64);

        let empty = client.append(batch("s", 0, vec![])).await;
        assert_eq!(refused(empty, Code::InvalidArgument, "BATCH_TOO_LARGE").fact("field"), "events");
        // More than the wire takes for any batch: refused from the declared length.
        let huge = (0..5).map(|_| note(text(4 * MIB))).collect();
        assert_eq!(client.append(batch("s", 0, huge)).await.unwrap_err().code(), Code::OutOfRange);
        assert_eq!(client.head("s").await.next_seq, 0);

        // The limits themselves are allowed.
        client.append(batch("s", 0, vec![note(text(4 * MIB))])).await.unwrap();
        client.append(batch("s", 1, notes("a", 1000))).await.unwrap();
        client.append(batch("s", 1001, vec![note(text(4 * MIB - 1000)), note(text(4 * MIB - 1000))])).await.unwrap();
        assert_eq!(client.head("s").await.next_seq, 1003);
    });
}

#[test]
fn limits_are_settings() {
    run(async {
        let limits = Limits { event_bytes_max: 10, batch_events_max: 2, batch_bytes_max: 200 };
        let node = Node::over(std::sync::Arc::new(MemoryStore::new()), Options { limits, ..Options::default() }).await;
        let mut client = node.client().await;
        client.make("s").await;
        let refusal =
            refused(client.append(batch("s", 0, vec![note(text(11))])).await, Code::InvalidArgument, "EVENT_TOO_LARGE");
        is_limit(&refusal, "event_bytes_max", 11, 10);
        let three = vec![note("1"), note("2"), note("3")];
        let refusal = refused(client.append(batch("s", 0, three)).await, Code::InvalidArgument, "BATCH_TOO_LARGE");
        is_limit(&refusal, "batch_events_max", 3, 2);
        client.append(batch("s", 0, vec![note(text(10)), note("2")])).await.unwrap();
    });
}

#[test]
fn names_that_break_their_rules_are_refused_everywhere() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let bad_ids = ["", "a\0", "a\n", "a\u{1b}[31m", "\u{7f}", "\u{85}", &"x".repeat(129), &"\u{e9}".repeat(65)];
        for id in bad_ids {
            let create = pb::CreateSessionRequest {
                header: Some(pb::Header { id: id.to_owned(), ..Default::default() }),
                ..Default::default()
            };
            refused(client.sessions.create_session(create).await, Code::InvalidArgument, "INVALID_ID");
            refused(client.get(id).await, Code::InvalidArgument, "INVALID_ID");
            refused(client.remove(id).await, Code::InvalidArgument, "INVALID_ID");
            refused(client.flush(id).await, Code::InvalidArgument, "INVALID_ID");
            refused(client.append(batch(id, 0, notes("a", 1))).await, Code::InvalidArgument, "INVALID_ID");
            refused(client.read(all_of(id)).await, Code::InvalidArgument, "INVALID_ID");
        }
        for namespace in ["A", "a_b", "a/b", "..", "\u{e9}", "a\0", &"x".repeat(64)] {
            let namespace = namespace.to_owned();
            let get = pb::GetSessionRequest { namespace: namespace.clone(), session_id: "s".to_owned() };
            refused(client.sessions.get_session(get).await, Code::InvalidArgument, "INVALID_ID");
            let list = pb::ListSessionsRequest { namespace, ..Default::default() };
            refused(client.sessions.list_sessions(list).await, Code::InvalidArgument, "INVALID_ID");
        }
        // Ids are names, never paths.
        for id in ["..", "../../etc/passwd", "a/b", "{{sessionId}}", "\u{202e}x", &"x".repeat(128)] {
            client.make(id).await;
            client.append(batch(id, 0, notes("a", 1))).await.unwrap();
            assert_eq!(client.get(id).await.unwrap().header.unwrap().id, id);
        }
    });
}

#[test]
fn headers_that_break_their_rules_are_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let header = || pb::Header { id: "s".to_owned(), ..Default::default() };
        let labels = |count: usize, value: &str| (0..count).map(|n| (n.to_string(), value.to_owned())).collect();
        let bad = [
            pb::Header { cwd: Some("relative".into()), ..header() },
            pb::Header { cwd: Some(String::new()), ..header() },
            pb::Header { cwd: Some("/a\0".into()), ..header() },
            pb::Header { cwd: Some(format!("/{}", "x".repeat(3000))), ..header() },
            // Refusals stay small enough for a header of HTTP/2, whatever they are about.
            pb::Header { cwd: Some("x".repeat(MIB)), ..header() },
            pb::Header { labels: [("\u{7}".repeat(MIB), String::new())].into(), ..header() },
            pb::Header { created_at_ms: Some(1 << 53), ..header() },
            pb::Header { seed_length: Some(1 << 53), ..header() },
            pb::Header { delegation_depth: Some(u64::MAX), ..header() },
            pb::Header { origin: Some(0), ..header() },
            pb::Header { origin: Some(77), ..header() },
            pb::Header { labels: labels(65, ""), ..header() },
            pb::Header { labels: labels(64, &"x".repeat(50)), ..header() },
            pb::Header { labels: [(String::new(), "x".to_owned())].into(), ..header() },
            pb::Header { agent_preset: Some("x".repeat(3001)), ..header() },
        ];
        for header in bad {
            let shown = format!("{header:?}").chars().take(200).collect::<String>();
            let create = pb::CreateSessionRequest { header: Some(header), ..Default::default() };
            let refusal =
                refused(client.sessions.create_session(create).await, Code::InvalidArgument, "INVALID_REQUEST");
            assert!(refusal.fact("field").starts_with("header"), "{shown}");
        }
        let without = client.sessions.create_session(pb::CreateSessionRequest::default()).await;
        assert_eq!(refused(without, Code::InvalidArgument, "INVALID_REQUEST").fact("field"), "header");
        refused(client.get("s").await, Code::NotFound, "SESSION_NOT_FOUND");
        let largest = pb::Header { labels: labels(64, "x"), created_at_ms: Some((1 << 53) - 1), ..header() };
        let create = pb::CreateSessionRequest { header: Some(largest), ..Default::default() };
        client.sessions.create_session(create).await.unwrap();
    });
}

#[test]
fn zero_and_unknown_values_of_every_enum_are_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        for value in [0, 77, -1] {
            let create = pb::CreateSessionRequest {
                header: Some(pb::Header { id: "t".to_owned(), ..Default::default() }),
                profile: Some(value),
                ..Default::default()
            };
            let answer = client.sessions.create_session(create).await;
            assert_eq!(refused(answer, Code::InvalidArgument, "INVALID_REQUEST").fact("field"), "profile");
            let append = pb::AppendRequest { ack_level: Some(value), ..batch("s", 0, notes("a", 1)) };
            let answer = client.append(append).await;
            assert_eq!(refused(answer, Code::InvalidArgument, "INVALID_REQUEST").fact("field"), "ack_level");
        }
        for bytes in [0, 15, 17] {
            let append = pb::AppendRequest { incarnation: Some(vec![1; bytes].into()), ..batch("s", 0, notes("a", 1)) };
            let answer = client.append(append).await;
            assert_eq!(refused(answer, Code::InvalidArgument, "INVALID_REQUEST").fact("field"), "incarnation");
        }
        let read = pb::ReadFromRequest { from_seq: 1 << 53, ..all_of("s") };
        assert_eq!(
            refused(client.read(read).await, Code::InvalidArgument, "INVALID_REQUEST").fact("field"),
            "from_seq"
        );
        assert_eq!(client.head("s").await.next_seq, 0);
    });
}

#[test]
fn envelopes_that_break_their_rules_are_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let sources = |seqs: Vec<u64>| Some(pb::SourceEventSeqs { seqs });
        let replace = |start, end| {
            Some(pb::SurfaceOp { op: Some(pb::surface_op::Op::Replace(pb::SurfaceReplace { start, end })) })
        };
        let bad = [
            ("time_ms", pb::NewEvent { time_ms: 1 << 53, ..note("1") }),
            ("time_ms", pb::NewEvent { time_ms: i64::MIN, ..note("1") }),
            ("type", pb::NewEvent { r#type: "x".repeat(257), ..note("1") }),
            ("type", pb::NewEvent { r#type: "\u{e9}".repeat(129), ..note("1") }),
            ("surface_op", pb::NewEvent { surface_op: Some(pb::SurfaceOp { op: None }), ..note("1") }),
            ("surface_op.replace", pb::NewEvent { surface_op: replace(1 << 53, 0), ..note("1") }),
            ("surface_op.replace", pb::NewEvent { surface_op: replace(0, u64::MAX), ..note("1") }),
            ("source_event_seqs", pb::NewEvent { source_event_seqs: sources(vec![1 << 53]), ..note("1") }),
            ("source_event_seqs", pb::NewEvent { source_event_seqs: sources(vec![3, 1, 3]), ..note("1") }),
            ("source_event_seqs", pb::NewEvent { source_event_seqs: sources((0..100_001).collect()), ..note("1") }),
        ];
        for (field, event) in bad {
            is_invalid(&mut client, event, field).await;
        }
    });
}

#[test]
fn data_that_is_not_one_lossless_json_value_is_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let long_key = format!("{{\"{0}\":1,\"{0}\":2}}", "k".repeat(MIB));
        let deep = "[".repeat(100_000);
        let bad: [&[u8]; 30] = [
            b"",
            b" ",
            b"{",
            b"[1,]",
            b"{\"a\":1,}",
            b"1 2",
            b"{} {}",
            b"nul",
            b"NaN",
            b"Infinity",
            b"'a'",
            b"01",
            b"+1",
            b"1.",
            b".5",
            b"\"\n\"",
            b"\"\0\"",
            b"\0",
            b"1\0",
            b"\"\\x\"",
            b"\"\\ud83\"",
            b"\"\xff\"",
            // CESU-8: a surrogate encoded as UTF-8.
            b"\"\xed\xa0\x80\"",
            b"\xef\xbb\xbf1",
            b"-0",
            b"[-0.0]",
            b"{\"a\":-0e5}",
            b"1e400",
            long_key.as_bytes(),
            deep.as_bytes(),
        ];
        for data in bad {
            is_invalid(&mut client, note(data), "data").await;
        }
        for data in ["-1e400", "{\"a\":1,\"a\":1}", "{\"a\":1,\"\\u0061\":2}", "[{\"x\":{\"\":1,\"\":1}}]"] {
            is_invalid(&mut client, note(data), "data").await;
        }
    });
}

#[test]
fn good_data_comes_back_byte_for_byte() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let deep_objects = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        let texts = [
            // C21: line breaks inside strings are escapes, between tokens they are free.
            r#"{"text":"line one\nline two\r\n"}"#,
            " {\n\t\"a\" :\r\n [ 1 , 2 ]\n} \n",
            // C23: lone surrogates in values, keys, the wrong way round; a pair beside them.
            r#""\ud83c""#,
            r#""\udff7""#,
            r#""\udff7\ud83c""#,
            r#"{"\ud83c":"\uD83C\uDFF7","x":"🏷"}"#,
            // C25
            "\"\u{2028}a\u{2029}\u{85}\u{feff}b\"",
            r#""\u2028\u0000\u001b""#,
            "\"\u{7f}\u{202e}\"",
            // C27
            "[9007199254740993,9223372036854775807,18446744073709551615,18446744073709551616,18446744073709551617]",
            "[-9223372036854775809,123456789012345678901234567890]",
            // C29
            "[0e0,1E5,1.0,100000000000000000000.0,4.435375000000022,5e-324,0.1,1e-400,1.7976931348623157e308]",
            "null",
            "true",
            "false",
            "\"\"",
            "[]",
            "{}",
            "0",
            r#"{"":{"":[]}}"#,
            r#""\/\b\f""#,
            &deep,
            &deep_objects,
        ];
        let events: Vec<_> = texts.iter().map(|text| note(*text)).collect();
        client.append(batch("s", 0, events.clone())).await.unwrap();
        let read = client.read(all_of("s")).await.unwrap();
        assert_eq!(read.events(), stored(0, &events));
        assert!(client.append(batch("s", 0, events.clone())).await.unwrap().deduplicated);
        // C27: numbers that a double cannot tell apart are other bytes.
        let mut other = events;
        other[9] = note(texts[9].replace("18446744073709551617", "18446744073709551616"));
        let refusal = refused(client.append(batch("s", 0, other)).await, Code::Aborted, "SEQ_CONFLICT");
        assert_eq!(refusal.conflict().first_differing_seq, Some(9));
    });
}

/// `AppendRequest` as a later version might send it.
#[derive(Clone, PartialEq, prost::Message)]
struct LaterAppend {
    #[prost(string, tag = "2")]
    session_id: String,
    #[prost(uint64, optional, tag = "3")]
    first_seq: Option<u64>,
    #[prost(message, repeated, tag = "4")]
    events: Vec<LaterEvent>,
    #[prost(string, tag = "500")]
    later: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterEvent {
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
    #[prost(uint64, tag = "1")]
    seq_is_reserved: u64,
    #[prost(map = "string, string", tag = "500")]
    later: std::collections::HashMap<String, String>,
}

#[test]
fn unknown_fields_are_ignored() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        client.make("s").await;
        let event = LaterEvent {
            kind: "note".to_owned(),
            data: b"1".to_vec(),
            seq_is_reserved: 9,
            later: [("a".to_owned(), "b".to_owned())].into(),
        };
        let request =
            LaterAppend { session_id: "s".to_owned(), first_seq: Some(0), events: vec![event], later: "x".to_owned() };
        let channel = tonic::transport::Endpoint::new(node.address.clone()).unwrap().connect().await.unwrap();
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/quipu.v1.LogService/Append");
        let codec = tonic_prost::ProstCodec::<LaterAppend, pb::AppendResponse>::default();
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await.unwrap().into_inner();
        assert_eq!(answer.head.unwrap().next_seq, 1);
        let event = pb::NewEvent { time_ms: 0, ..note("1") };
        assert_eq!(client.read(all_of("s")).await.unwrap().events(), stored(0, &[event]));
    });
}
