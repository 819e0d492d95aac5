//! Sessions as named things: create, look at, list, delete.

use quipu::rpc::client::Client;
use quipu::rpc::pb;
use quipu::store::local::{LocalStore, Options as StoreOptions};
use tonic::Code;

use crate::support::{Calls, Node, Refusal, batch, notes, refused, run};

fn header(id: &str) -> pb::Header {
    pb::Header { id: id.to_owned(), ..Default::default() }
}

fn full_header(id: &str) -> pb::Header {
    pb::Header {
        id: id.to_owned(),
        created_at_ms: Some(1_700_000_000_123),
        cwd: Some("/srv/r\u{e9}po".to_owned()),
        parent_session: Some(String::new()),
        seed_length: Some(0),
        origin: Some(pb::Origin::Subagent.into()),
        delegation_depth: Some(2),
        agent_preset: Some("reviewer".to_owned()),
        labels: [("team".to_owned(), "a=b".to_owned()), ("\u{1F642}".to_owned(), String::new())].into(),
    }
}

async fn create(client: &mut Client, request: pb::CreateSessionRequest) -> Result<(pb::Session, bool), tonic::Status> {
    let answer = client.sessions.create_session(request).await?.into_inner();
    Ok((answer.session.unwrap(), answer.already_existed))
}

fn of(header: pb::Header) -> pb::CreateSessionRequest {
    pb::CreateSessionRequest { header: Some(header), ..Default::default() }
}

#[test]
fn a_session_comes_back_as_it_was_created_with_an_empty_log() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let (made, existed) = create(&mut client, of(full_header("s"))).await.unwrap();
        assert!(!existed);
        assert_eq!((made.namespace.as_str(), made.profile()), ("default", pb::Profile::Dsh));
        assert_eq!(made.header, Some(full_header("s")));
        let head = made.head.clone().unwrap();
        assert_eq!((head.next_seq, head.durable_next_seq, head.incarnation.len()), (0, 0, 16));
        assert_eq!(head.chain[..], *blake3::hash(b"quipu chain 1").as_bytes());
        let got = client.get("s").await.unwrap();
        assert_eq!((got.header, got.profile, got.head), (made.header, made.profile, made.head));
    });
}

#[test]
fn creating_again_is_harmless_and_another_header_or_profile_is_refused() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let (first, _) = create(&mut client, of(full_header("s"))).await.unwrap();
        client.append(batch("s", 0, notes("a", 3))).await.unwrap();
        let (again, existed) = create(&mut client, of(full_header("s"))).await.unwrap();
        assert!(existed);
        assert_eq!(again.header, first.header);
        assert_eq!(again.head.as_ref().unwrap().next_seq, 3);
        assert_eq!(again.head.unwrap().incarnation, first.head.unwrap().incarnation);
        // Without a creation time the clock decided, and a repetition need not match.
        create(&mut client, of(header("timed-by-clock"))).await.unwrap();
        assert!(create(&mut client, of(header("timed-by-clock"))).await.unwrap().1);
        let explicit = pb::CreateSessionRequest { profile: Some(pb::Profile::Dsh.into()), ..of(full_header("s")) };
        assert!(create(&mut client, explicit).await.unwrap().1, "absent and DSH are the same profile");

        let raw = pb::CreateSessionRequest { profile: Some(pb::Profile::Raw.into()), ..of(full_header("s")) };
        let others = [
            raw,
            of(pb::Header { cwd: None, ..full_header("s") }),
            of(pb::Header { created_at_ms: Some(1), ..full_header("s") }),
            of(pb::Header { parent_session: None, ..full_header("s") }),
            of(pb::Header { labels: std::collections::HashMap::new(), ..full_header("s") }),
        ];
        for other in others {
            refused(create(&mut client, other).await, Code::AlreadyExists, "SESSION_EXISTS");
        }
        assert_eq!(client.head("s").await.next_seq, 3, "a refusal changes nothing");
    });
}

#[test]
fn namespaces_are_apart() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let elsewhere = |id| pb::CreateSessionRequest { namespace: "team-1".to_owned(), ..of(header(id)) };
        let (a, _) = create(&mut client, of(header("s"))).await.unwrap();
        let (b, existed) = create(&mut client, elsewhere("s")).await.unwrap();
        assert!(!existed);
        assert_ne!(a.head.unwrap().incarnation, b.head.unwrap().incarnation);
        client.append(batch("s", 0, notes("a", 1))).await.unwrap();
        let there = pb::GetSessionRequest { namespace: "team-1".to_owned(), session_id: "s".to_owned() };
        let there = client.sessions.get_session(there).await.unwrap().into_inner().session.unwrap();
        assert_eq!((there.namespace.as_str(), there.head.unwrap().next_seq), ("team-1", 0));
        assert_eq!(ids(&mut client, pb::ListSessionsRequest::default()).await, ["s"]);
    });
}

#[test]
fn what_is_not_there_is_not_found_and_changes_nothing() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        refused(client.get("none").await, Code::NotFound, "SESSION_NOT_FOUND");
        refused(client.remove("none").await, Code::NotFound, "SESSION_NOT_FOUND");
        refused(client.flush("none").await, Code::NotFound, "SESSION_NOT_FOUND");
        refused(client.append(batch("none", 0, notes("a", 1))).await, Code::NotFound, "SESSION_NOT_FOUND");
        refused(client.read(crate::support::all_of("none")).await, Code::NotFound, "SESSION_NOT_FOUND");
        client.make("none").await;
        assert_eq!(client.head("none").await.next_seq, 0);
    });
}

#[test]
fn a_deleted_name_is_free_again_and_its_lives_never_mix() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        let first = client.make("s").await.head.unwrap().incarnation;
        client.append(batch("s", 0, notes("a", 5))).await.unwrap();
        let other = pb::DeleteSessionRequest {
            session_id: "s".to_owned(),
            incarnation: Some(vec![7; 16].into()),
            ..Default::default()
        };
        let refusal = client.sessions.delete_session(other).await;
        refused(refusal, Code::FailedPrecondition, "INCARNATION_MISMATCH");
        assert_eq!(client.remove("s").await.unwrap().next_seq, 5);
        refused(client.get("s").await, Code::NotFound, "SESSION_NOT_FOUND");

        let second = client.make("s").await.head.unwrap();
        assert_eq!(second.next_seq, 0);
        assert_ne!(second.incarnation, first);
        let stale = pb::AppendRequest { incarnation: Some(first.clone()), ..batch("s", 0, notes("a", 1)) };
        refused(client.append(stale).await, Code::FailedPrecondition, "INCARNATION_MISMATCH");
        let stale = pb::ReadFromRequest { incarnation: Some(first), ..crate::support::all_of("s") };
        refused(client.read(stale).await, Code::FailedPrecondition, "INCARNATION_MISMATCH");
        assert_eq!(client.head("s").await.next_seq, 0);
        let fresh = pb::AppendRequest { incarnation: Some(second.incarnation.clone()), ..batch("s", 0, notes("b", 2)) };
        let head = client.append(fresh).await.unwrap().head.unwrap();
        assert_ne!(head.revision, second.revision);
        let fresh = pb::ReadFromRequest { incarnation: Some(second.incarnation), ..crate::support::all_of("s") };
        assert_eq!(client.read(fresh).await.unwrap().seqs(), [0, 1]);
    });
}

async fn page(client: &mut Client, request: pb::ListSessionsRequest) -> pb::ListSessionsResponse {
    client.sessions.list_sessions(request).await.unwrap().into_inner()
}

fn names(page: &pb::ListSessionsResponse) -> Vec<String> {
    page.sessions.iter().map(|session| session.header.clone().unwrap().id).collect()
}

/// The ids of all pages.
async fn ids(client: &mut Client, mut request: pb::ListSessionsRequest) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let page = page(client, request.clone()).await;
        all.extend(names(&page));
        if page.next_page_token.is_empty() {
            return all;
        }
        request.page_token = page.next_page_token;
    }
}

/// Twelve sessions with known headers; waits until the clock of the server has moved between changes, because the
/// list is ordered by it.
async fn twelve(client: &mut Client) {
    for n in 0..12_u64 {
        let header = pb::Header {
            created_at_ms: Some(1000 + n),
            cwd: (n % 2 == 0).then(|| "/even".to_owned()),
            parent_session: (n % 3 == 0).then(|| "s-00".to_owned()),
            ..header(&format!("{}-{n:02}", if n < 10 { "s" } else { "t" }))
        };
        let (session, _) = create(client, of(header)).await.unwrap();
        tick(session.head.unwrap().updated_at_ms).await;
    }
}

async fn tick(after_ms: u64) {
    let now_ms = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    while now_ms() <= after_ms + 1 {
        tokio::task::yield_now().await;
    }
}

async fn lists_by_pages_and_filters(client: &mut Client) {
    twelve(client).await;
    let newest_first: Vec<_> = (0..12).rev().map(|n| format!("{}-{n:02}", if n < 10 { "s" } else { "t" })).collect();
    let all = pb::ListSessionsRequest::default;
    assert_eq!(ids(client, all()).await, newest_first);
    for page_size in [1, 5, 11, 12, 1000] {
        assert_eq!(ids(client, pb::ListSessionsRequest { page_size, ..all() }).await, newest_first, "{page_size}");
    }
    let first = page(client, pb::ListSessionsRequest { page_size: 5, ..all() }).await;
    assert_eq!((first.sessions.len(), first.next_page_token.is_empty()), (5, false));

    let expect = |keep: &dyn Fn(u64) -> bool| -> Vec<String> {
        newest_first.iter().filter(|id| keep(id[2..].parse().unwrap())).cloned().collect()
    };
    let cases: [(pb::ListSessionsRequest, Vec<String>); 8] = [
        (pb::ListSessionsRequest { id_prefix: "t-".into(), ..all() }, expect(&|n| n >= 10)),
        (pb::ListSessionsRequest { id_prefix: "x".into(), ..all() }, vec![]),
        (pb::ListSessionsRequest { cwd: Some("/even".into()), ..all() }, expect(&|n| n % 2 == 0)),
        (pb::ListSessionsRequest { cwd: Some("/ev".into()), ..all() }, vec![]),
        (pb::ListSessionsRequest { parent_session: Some("s-00".into()), ..all() }, expect(&|n| n % 3 == 0)),
        (
            pb::ListSessionsRequest { created_from_ms: Some(1003), created_until_ms: Some(1006), ..all() },
            expect(&|n| (3..6).contains(&n)),
        ),
        (
            pb::ListSessionsRequest { cwd: Some("/even".into()), parent_session: Some("s-00".into()), ..all() },
            expect(&|n| n % 6 == 0),
        ),
        (pb::ListSessionsRequest { namespace: "other".into(), ..all() }, vec![]),
    ];
    for (request, wanted) in cases {
        for page_size in [0, 2] {
            let request = pb::ListSessionsRequest { page_size, ..request.clone() };
            assert_eq!(ids(client, request.clone()).await, wanted, "{request:?}");
        }
    }

    // An append moves its session to the front; the filter by the last change sees it.
    let mark = client.head("t-11").await.updated_at_ms;
    client.append(batch("s-04", 0, notes("a", 1))).await.unwrap();
    let moved = page(client, all()).await;
    assert_eq!(names(&moved)[0], "s-04");
    assert_eq!(moved.sessions[0].head.as_ref().unwrap().next_seq, 1, "the list shows durable heads");
    let since = pb::ListSessionsRequest { updated_from_ms: Some(mark + 1), ..all() };
    assert_eq!(ids(client, since).await, ["s-04"]);
    let until = pb::ListSessionsRequest { updated_until_ms: Some(mark), ..all() };
    assert_eq!(ids(client, until).await.len(), 10);
    client.remove("s-04").await.unwrap();
    assert!(!ids(client, all()).await.contains(&"s-04".to_owned()));
}

#[test]
fn lists_go_by_pages_filters_and_newest_activity_first_in_memory() {
    run(async {
        let node = Node::memory().await;
        lists_by_pages_and_filters(&mut node.client().await).await;
    });
}

#[test]
fn lists_go_by_pages_filters_and_newest_activity_first_on_disk() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path(), StoreOptions::default()).unwrap();
        let node = Node::over(std::sync::Arc::new(store), quipu::service::Options::default()).await;
        lists_by_pages_and_filters(&mut node.client().await).await;
    });
}

#[test]
fn a_page_token_goes_with_its_list_only() {
    run(async {
        let node = Node::memory().await;
        let mut client = node.client().await;
        twelve(&mut client).await;
        let request = pb::ListSessionsRequest { page_size: 3, id_prefix: "s".into(), ..Default::default() };
        let token = page(&mut client, request.clone()).await.next_page_token;
        let with = |page_token: &str| pb::ListSessionsRequest { page_token: page_token.to_owned(), ..request.clone() };
        assert_eq!(names(&page(&mut client, with(&token)).await), ["s-06", "s-05", "s-04"]);
        let larger = pb::ListSessionsRequest { page_size: 4, ..with(&token) };
        assert_eq!(page(&mut client, larger).await.sessions.len(), 4, "the size of a page may change");
        let mut flipped = token.clone().into_bytes();
        flipped[0] = if flipped[0] == b'1' { b'2' } else { b'1' };
        let misused = [
            with("nonsense"),
            with("1.2.3"),
            with(".."),
            with(&token[..token.len() - 1]),
            with(&format!("{token}.0")),
            with(std::str::from_utf8(&flipped).unwrap()),
            pb::ListSessionsRequest { id_prefix: String::new(), ..with(&token) },
            pb::ListSessionsRequest { cwd: Some("/even".into()), ..with(&token) },
            pb::ListSessionsRequest { namespace: "other".into(), ..with(&token) },
            pb::ListSessionsRequest { created_until_ms: Some(5), ..with(&token) },
        ];
        for request in misused {
            let refusal: Refusal =
                refused(client.sessions.list_sessions(request.clone()).await, Code::InvalidArgument, "BAD_PAGE_TOKEN");
            assert_eq!(refusal.fact("field"), "page_token", "{request:?}");
        }
        let large = pb::ListSessionsRequest { page_size: 1001, ..Default::default() };
        let refusal = refused(client.sessions.list_sessions(large).await, Code::InvalidArgument, "INVALID_REQUEST");
        assert_eq!(refusal.fact("field"), "page_size");
    });
}
