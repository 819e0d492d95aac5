//! The bytes on disk: fixtures from another implementation, round trips, and no damage that goes unseen.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use quipu::codec::change::{Birth, Kind};
use quipu::codec::event::{self, Decoder};
use quipu::codec::frame::{
    GROUP_HEADER_BYTES, GroupHeader, RECORD_HEADER_BYTES, RecordHeader, RecordStart, SECTOR, SEGMENT_HEADER_BYTES,
    SegmentHeader, has_unwritten_sector,
};
use quipu::codec::{Chain, Malformed};
use quipu::model::{Event, Header, INT53_MAX, Incarnation, NewEvent, Origin, Profile, Seq, SessionKey, SurfaceOp};
use serde_json::Value;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seq(value: &Value) -> Seq {
    Seq::new(value.as_u64().unwrap()).unwrap()
}

fn fixture(case: &Value) -> Event {
    let surface_op = match case.get("surface") {
        None => None,
        Some(Value::Array(range)) => Some(SurfaceOp::Replace { start: seq(&range[0]), end: seq(&range[1]) }),
        Some(_) => Some(SurfaceOp::Append),
    };
    let sources = case.get("sources").map(|sources| sources.as_array().unwrap().iter().map(seq).collect());
    let body = NewEvent {
        time_ms: case["time_ms"].as_i64().unwrap(),
        kind: case["type"].as_str().unwrap().into(),
        data: case["data"].as_str().unwrap().to_owned().into(),
        ignorable: case.get("ignorable").is_some(),
        surface_op,
        source_event_seqs: sources,
    };
    Event { seq: seq(&case["seq"]), body }
}

#[test]
fn events_have_the_bytes_and_the_chain_that_another_implementation_computes() {
    let fixtures: Value = serde_json::from_str(include_str!("fixtures/chain.json")).unwrap();
    assert_eq!(Chain::START.to_string(), fixtures["start"].as_str().unwrap());
    let (mut chain, mut all) = (Chain::START, Vec::new());
    let cases = fixtures["events"].as_array().unwrap();
    for case in cases {
        let event = fixture(case);
        let mut bytes = Vec::new();
        event::encode(event.seq, &event.body, &mut bytes);
        assert_eq!(hex(&bytes), case["canonical"].as_str().unwrap(), "{case}");
        chain = chain.next(&bytes);
        assert_eq!(chain.to_string(), case["chain"].as_str().unwrap());
        all.extend_from_slice(&bytes);
    }
    let (mut bytes, mut decoder) = (Bytes::from(all), Decoder::default());
    for case in cases {
        assert_eq!(decoder.decode(&mut bytes).unwrap(), fixture(case));
    }
    assert!(bytes.is_empty());
    println!("chain.json: {} cases", cases.len());
}

fn any_seq() -> impl Strategy<Value = Seq> {
    prop_oneof![0..100u64, Just(INT53_MAX)].prop_map(|n| Seq::new(n).unwrap())
}

fn any_event() -> impl Strategy<Value = Event> {
    let surface = prop_oneof![
        Just(None),
        Just(Some(SurfaceOp::Append)),
        (any_seq(), any_seq()).prop_map(|(start, end)| Some(SurfaceOp::Replace { start, end })),
    ];
    let sources = prop::option::of(prop::collection::vec(any_seq(), 0..5));
    let data = prop::collection::vec(any::<u8>(), 0..80);
    (any_seq(), any::<i64>(), "\\PC{0,20}", data, any::<bool>(), surface, sources).prop_map(
        |(seq, time_ms, kind, data, ignorable, surface_op, source_event_seqs)| {
            let (kind, data) = (Arc::from(kind), Bytes::from(data));
            Event { seq, body: NewEvent { time_ms, kind, data, ignorable, surface_op, source_event_seqs } }
        },
    )
}

fn any_birth() -> impl Strategy<Value = Birth> {
    let profile = prop::sample::select(vec![Profile::Dsh, Profile::DshStrict, Profile::Raw]);
    let text = || prop::option::of("\\PC{0,30}");
    let number = || prop::option::of(0..=INT53_MAX);
    let labels = prop::collection::btree_map("[a-z]{1,8}", "\\PC{0,8}", 0..4);
    let header = (0..=INT53_MAX, text(), text(), number(), any::<bool>(), number(), text(), labels);
    ("[a-z0-9-]{1,63}", "[^\\p{Cc}]{1,30}", any::<[u8; 16]>(), profile, header).prop_map(
        |(
            namespace,
            id,
            incarnation,
            profile,
            (created_at_ms, cwd, parent_session, seed_length, is_sub, depth, preset, labels),
        )| {
            let header = Header {
                created_at_ms,
                cwd,
                parent_session,
                seed_length,
                origin: is_sub.then_some(Origin::Subagent),
                delegation_depth: depth,
                agent_preset: preset,
                labels,
            };
            let key = SessionKey::new(&namespace, &id).unwrap();
            Birth { key, incarnation: Incarnation(incarnation), profile, header }
        },
    )
}

fn record(payload: &[u8]) -> RecordHeader {
    RecordHeader {
        kind: Kind::Append,
        position: 77,
        log: 5,
        first_seq: Seq::new(40).unwrap(),
        count: 3,
        link: 0x0123_4567_89AB_CDEF,
        chain: Chain([9; 32]),
        payload_bytes: payload.len() as u32,
        payload_checksum: crc32c::crc32c(payload),
    }
}

fn each_flip(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..bytes.len() * 8).map(|bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        (bit, flipped)
    })
}

proptest! {
    #[test]
    fn an_event_comes_back_and_a_cut_one_is_refused(event in any_event()) {
        let mut bytes = Vec::new();
        event::encode(event.seq, &event.body, &mut bytes);
        for length in 0..bytes.len() {
            let mut cut = Bytes::copy_from_slice(&bytes[..length]);
            prop_assert!(Decoder::default().decode(&mut cut).is_err(), "{} of {}", length, bytes.len());
        }
        bytes.extend_from_slice(b"what follows");
        let mut rest = Bytes::from(bytes);
        prop_assert_eq!(Decoder::default().decode(&mut rest).unwrap(), event);
        prop_assert_eq!(&rest[..], b"what follows");
    }

    #[test]
    fn any_bytes_are_decoded_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut rest = Bytes::from(bytes.clone());
        let mut decoder = Decoder::default();
        while !rest.is_empty() && decoder.decode(&mut rest).is_ok() {}
        drop(Birth::decode(&mut Bytes::from(bytes.clone())));
        drop(Birth::decode_either(&Bytes::from(bytes.clone())));
        let is_frame = SegmentHeader::decode(&bytes).is_ok() || GroupHeader::decode(&bytes).is_ok();
        prop_assert!(!is_frame && RecordStart::decode(&bytes) == RecordStart::Lost);
    }

    #[test]
    fn other_bytes_than_those_of_an_event_are_another_event(event in any_event(), bit in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        event::encode(event.seq, &event.body, &mut bytes);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // The encoding is one to one, or two logs could share a chain and differ.
        let mut rest = Bytes::from(bytes.clone());
        if let Ok(other) = Decoder::default().decode(&mut rest) {
            let mut again = Vec::new();
            event::encode(other.seq, &other.body, &mut again);
            again.extend_from_slice(&rest);
            prop_assert!(other != event && (again == bytes || saturated(&other)));
        }
    }

    #[test]
    fn a_birth_survives_one_damaged_place(birth in any_birth(), at in any::<prop::sample::Index>(), noise in 1..=255u8) {
        let mut once = Vec::new();
        birth.encode(&mut once);
        prop_assert_eq!(&Birth::decode(&mut Bytes::from(once.clone())).unwrap(), &birth);
        for length in 0..once.len() {
            prop_assert!(Birth::decode(&mut Bytes::copy_from_slice(&once[..length])).is_err());
        }
        let mut twice = Vec::new();
        birth.encode_twice(&mut twice);
        let at = at.index(twice.len());
        twice[at] ^= noise;
        prop_assert_eq!(&Birth::decode_either(&Bytes::from(twice.clone())).unwrap(), &birth);
        // Both halves: nothing is guessed.
        let other = (at + twice.len() / 2) % twice.len();
        twice[other] ^= noise;
        prop_assert!(Birth::decode_either(&Bytes::from(twice)).is_err());
    }
}

/// A source or an end of a replacement above the last seq reads as the end of the range.
fn saturated(event: &Event) -> bool {
    let is_past = |seq: &Seq| seq.get() > INT53_MAX;
    let replaced = match event.body.surface_op {
        Some(SurfaceOp::Replace { start, end }) => is_past(&start) || is_past(&end),
        Some(SurfaceOp::Append) | None => false,
    };
    replaced || event.body.source_event_seqs.iter().flatten().any(is_past)
}

#[test]
fn a_segment_header_comes_back_and_any_damage_of_it_is_refused() {
    let header = SegmentHeader { store: [7; 16], segment: 3, file_bytes: 1 << 26 };
    let block = header.encode();
    assert_eq!(block.len(), SEGMENT_HEADER_BYTES);
    assert_eq!(SegmentHeader::decode(&block), Ok(header));
    let used = block.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    each_flip(&block[..used]).for_each(|(bit, bytes)| assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}"));
    (0..used).for_each(|length| assert!(SegmentHeader::decode(&block[..length]).is_err(), "{length}"));
}

#[test]
fn a_group_header_comes_back_and_any_damage_of_it_is_refused() {
    let header =
        GroupHeader { body_bytes: 1000, records: 2, first_position: 9, time_ms: 1 << 40, segment: 3, store: 0xABCD };
    let bytes = header.encode();
    assert_eq!(GroupHeader::decode(&bytes), Ok(header));
    assert_eq!(header.span(), 3 * SECTOR as u64);
    each_flip(&bytes).for_each(|(bit, bytes)| assert!(GroupHeader::decode(&bytes).is_err(), "bit {bit}"));
    (0..bytes.len()).for_each(|length| assert!(GroupHeader::decode(&bytes[..length]).is_err(), "{length}"));
    let huge = GroupHeader { body_bytes: u32::MAX, ..header };
    assert_eq!(GroupHeader::decode(&huge.encode()), Err(Malformed("group header")));
    assert_eq!(GROUP_HEADER_BYTES, bytes.len());
}

#[test]
fn one_flipped_bit_never_hides_whose_record_it_is() {
    let payload = b"the events";
    let header = record(payload);
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    assert_eq!(bytes.len(), RECORD_HEADER_BYTES);
    bytes.extend_from_slice(payload);
    assert_eq!(RecordStart::decode(&bytes), RecordStart::Sound(header));
    assert!(header.matches(payload));
    let mut kinds = BTreeMap::<&str, usize>::new();
    for (bit, flipped) in each_flip(&bytes) {
        let kind = match RecordStart::decode(&flipped) {
            RecordStart::Sound(found) => {
                assert_eq!(found, header, "bit {bit}");
                let intact = header.matches(&flipped[RECORD_HEADER_BYTES..]);
                assert_eq!(intact, bit < RECORD_HEADER_BYTES * 8);
                if intact { "stub" } else { "payload" }
            }
            RecordStart::Damaged(stub) => {
                assert_eq!(stub, header.stub(), "bit {bit}");
                "header"
            }
            RecordStart::Lost => panic!("bit {bit}"),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    assert_eq!(kinds, BTreeMap::from([("header", 84 * 8), ("payload", 80), ("stub", 40 * 8)]));
    (0..RECORD_HEADER_BYTES).for_each(|length| assert_eq!(RecordStart::decode(&bytes[..length]), RecordStart::Lost));
    (0..payload.len()).for_each(|length| assert!(!header.matches(&payload[..length])));
}

#[test]
fn a_record_of_an_unknown_kind_is_not_taken_for_a_known_one() {
    let mut bytes = Vec::new();
    record(b"").encode(&mut bytes);
    let seal = |part: &mut [u8]| {
        let (content, checksum) = part.split_at_mut(part.len() - 4);
        checksum.copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
    };
    bytes[0] = 200;
    bytes[84 + 32] = 200;
    seal(&mut bytes[..84]);
    seal(&mut bytes[84..]);
    let RecordStart::Damaged(stub) = RecordStart::decode(&bytes) else { panic!("known") };
    assert_eq!((stub.kind, stub.log), (None, 5));
}

#[test]
fn only_an_all_zero_sector_looks_unwritten() {
    let mut bytes = vec![1; 3 * SECTOR];
    assert!(!has_unwritten_sector(&bytes));
    bytes[SECTOR + 1..2 * SECTOR].fill(0);
    assert!(!has_unwritten_sector(&bytes));
    bytes[SECTOR] = 0;
    assert!(has_unwritten_sector(&bytes));
}
