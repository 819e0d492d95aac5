//! History pages, against `history.json`, the public cases on pages, and by laws.

use proptest::prelude::*;
use quipu::model::{Event, Seq, SurfaceOp};
use quipu::replay::history::{PAGE_MESSAGES, Page, PageRequest, page, results_without_call};
use quipu::replay::repair::closers;
use serde_json::{Value, json};

use crate::given::events;
use crate::logs::{any_log, assistant_data, call_block, extend, healthy, result_data};
use crate::vectors::cases;

fn check(case: &Value) {
    let (name, input) = (&case["name"], &case["input"]);
    let mut events = events(&input["events"]);
    if input["source"] == "cold" {
        let closers = closers(&events);
        events.extend(closers);
    }
    let request = PageRequest {
        messages_max: input["maxMessages"].as_u64().unwrap_or(PAGE_MESSAGES),
        before_seq: input["beforeSeq"].as_u64().map(|seq| Seq::new(seq).unwrap()),
        ..PageRequest::default()
    };
    let page = page(&events, request);
    let (from, to) = page.range.map(|(from, to)| (from.get(), to.get())).unzip();
    let last = events.last().map_or(-1, |event| event.seq.get() as i64);
    let has_projections = input["projections"] == true && request.before_seq.is_none();
    let found = json!({
        "ok": true, "fromSeq": from, "toSeq": to, "count": page.of(&events).len(), "hasMore": page.has_more,
        "projectionsAsOfSeq": has_projections.then_some(last),
    });
    assert_eq!(found, case["expected"], "{name}");
}

#[test]
fn pages_start_and_end_where_the_vectors_say() {
    let cases = cases("history.json", None);
    // Whether a session exists is not asked of a log.
    let is_lookup = |case: &&Value| case["expected"]["code"] == "session-not-found";
    println!(
        "history.json: {} cases, {} of them about names only",
        cases.len(),
        cases.iter().filter(is_lookup).count()
    );
    cases.iter().filter(|case| !is_lookup(case)).for_each(check);
}

/// Every page of a log, oldest first.
fn pages(events: &[Event], mut request: PageRequest) -> Vec<Page> {
    let mut pages = vec![page(events, request)];
    while let Some(older) = pages.last().and_then(|page| page.older(request)) {
        request = older;
        pages.push(page(events, request));
    }
    pages.reverse();
    pages
}

fn tile(events: &[Event], pages: &[Page]) -> bool {
    pages.iter().flat_map(|page| page.of(events)).eq(events)
}

/// One turn with thirty calls (public case C51).
fn thirty_calls() -> Vec<Event> {
    let mut log = healthy();
    let blocks: Vec<_> = (0..30).map(|n| call_block(&format!("c{n}"))).collect();
    extend(&mut log, &[("turn/start", r#"{"turn":2}"#), ("assistant/chunk", "{}"), ("assistant/chunk", "{}")]);
    extend(&mut log, &[("assistant/message", &assistant_data(2, 1, &blocks.join(",")))]);
    log.last_mut().unwrap().body.source_event_seqs = Some([9, 10].map(|n| Seq::new(n).unwrap()).to_vec());
    for n in 0..30 {
        extend(&mut log, &[("tool/result", &result_data(2, 1, &format!("c{n}"), "out"))]);
    }
    extend(&mut log, &[("assistant/message", &assistant_data(2, 2, "")), ("user/message", "{}")]);
    log
}

#[test]
fn a_page_that_starts_among_tool_results_says_so_c51() {
    let log = thirty_calls();
    for messages_max in 1..=5 {
        for bound in 0..=log.len() as u64 {
            let before_seq = Seq::new(bound);
            let pages = pages(&log, PageRequest { messages_max, before_seq, ..PageRequest::default() });
            assert!(tile(&log[..bound as usize], &pages), "{messages_max} before {bound}");
        }
    }
    // The announcing message takes its chunks along.
    let three = page(&log, PageRequest { messages_max: 3, ..PageRequest::default() });
    assert_eq!(three.range.unwrap().0.get(), 9);
    assert_eq!(results_without_call(three.of(&log)), []);
    let bytes_max = Some(4000);
    let cut = page(&log, PageRequest { messages_max: 3, bytes_max, ..PageRequest::default() });
    let alone = results_without_call(cut.of(&log));
    let first = cut.range.unwrap().0.get();
    assert!(cut.is_capped && first > 12);
    assert_eq!(alone.iter().map(|seq| seq.get()).collect::<Vec<_>>(), (first..42).collect::<Vec<_>>());
}

#[test]
fn an_empty_session_has_an_empty_page_c53() {
    let empty = Page { range: None, has_more: false, is_capped: false };
    for before_seq in [None, Seq::new(0), Seq::new(5)] {
        let request = PageRequest { before_seq, whole_messages: true, bytes_max: Some(1), ..PageRequest::default() };
        assert_eq!(page(&[], request), empty);
    }
}

/// One attempt of 2,000 chunks between two small turns.
fn huge_attempt() -> Vec<Event> {
    let mut log = healthy();
    for _ in 0..2000 {
        extend(
            &mut log,
            &[("assistant/chunk", r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}"#)],
        );
    }
    extend(&mut log, &[("assistant/message", &assistant_data(2, 1, ""))]);
    log.last_mut().unwrap().body.source_event_seqs = Some((8..2008).map(|n| Seq::new(n).unwrap()).collect());
    extend(&mut log, &[("user/message", "{}"), ("user/message", "{}")]);
    log
}

#[test]
fn one_huge_attempt_is_paged_by_bytes() {
    let log = huge_attempt();
    let request = PageRequest { bytes_max: Some(50_000), ..PageRequest::default() };
    let pages = pages(&log, request);
    assert!(pages.len() > 4 && tile(&log, &pages));
    for page in &pages[..pages.len() - 1] {
        let bytes: usize = page.of(&log).iter().map(|event| event.body.weight()).sum();
        assert!(bytes <= 50_000, "{bytes}");
    }
}

#[test]
fn whole_messages_are_never_cut_however_large() {
    let log = huge_attempt();
    let request = PageRequest { bytes_max: Some(1000), whole_messages: true, ..PageRequest::default() };
    let pages = pages(&log, request);
    assert!(tile(&log, &pages));
    let starts: Vec<_> = pages.iter().map(|page| page.range.unwrap().0.get()).filter(|from| *from >= 8).collect();
    // The attempt is one page of its own, past the cap; what follows it is the next.
    assert_eq!(starts, [8, 2009]);
}

fn is_whole(page: Page, events: &[Event]) -> bool {
    let Some((from, _)) = page.range else { return true };
    let counted = page
        .of(events)
        .iter()
        .filter(|event| event.body.surface_op == Some(SurfaceOp::Append) && &*event.body.kind != "tool/result");
    counted.flat_map(|event| event.body.source_event_seqs.iter().flatten()).all(|cited| *cited >= from)
}

proptest! {
    #[test]
    fn every_page_is_contiguous_and_pages_tile_the_log(
        log in any_log(60), messages_max in 0..6u64, bytes_max in prop::option::of(0..2000u64), bound in 0..70u64,
        whole_messages in any::<bool>(), is_bound in any::<bool>(),
    ) {
        let before_seq = Seq::new(bound).filter(|_| is_bound);
        let request = PageRequest { messages_max, before_seq, bytes_max, whole_messages };
        let pages = pages(&log, request);
        let end = if is_bound { log.len().min(bound as usize) } else { log.len() };
        prop_assert!(tile(&log[..end], &pages));
        for page in pages {
            let events = page.of(&log);
            prop_assert!(events.windows(2).all(|pair| pair[0].seq.advance(1) == Some(pair[1].seq)));
            prop_assert_eq!(page.range, events.first().map(|e| e.seq).zip(events.last().map(|e| e.seq)));
            prop_assert!(!whole_messages || is_whole(page, &log), "{:?}", page);
            results_without_call(events);
        }
    }
}
