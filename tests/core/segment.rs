//! Sealed segments: packing gives every byte back, and no damage goes unseen.

use proptest::prelude::*;
use quipu::codec::segment::{
    BLOCK_HEADER_BYTES, Block, Codec, Directory, Entry, FILE_HEADER_BYTES, FileHeader, Packer, Part, State, Unreadable,
};
use quipu::codec::summary::{Noted, Summary};
use quipu::codec::{Chain, event};
use quipu::model::{NewEvent, Seq, SurfaceOp};

/// The runs of a log, and the chain after each.
struct Log {
    first_seq: u64,
    before: Chain,
    runs: Vec<(u32, Vec<u8>, Chain)>,
}

fn log(first_seq: u64, runs: &[Vec<NewEvent>]) -> Log {
    let before = if first_seq == 0 { Chain::START } else { Chain([7; 32]) };
    let (mut seq, mut chain, mut out) = (first_seq, before, Vec::new());
    for run in runs.iter().filter(|run| !run.is_empty()) {
        let mut bytes = Vec::new();
        for event in run {
            let start = bytes.len();
            event::encode(Seq::new(seq).unwrap(), event, &mut bytes);
            chain = chain.next(&bytes[start..]);
            seq += 1;
        }
        out.push((run.len() as u32, bytes, chain));
    }
    Log { first_seq, before, runs: out }
}

fn encode(log: &Log) -> Vec<u8> {
    let mut packer = Packer::default();
    log.runs.iter().for_each(|(_, bytes, chain)| packer.push(bytes, *chain).unwrap());
    let mut out = Vec::new();
    let end = log.runs.last().map_or(log.before, |run| run.2);
    Codec::new(3).encode(9, (Seq::new(log.first_seq).unwrap(), log.before.link(), end), packer, &mut out);
    out
}

/// Everything that can be read of a block is what went in, from any seq and in any portion.
fn check(log: &Log, stored: &[u8], step: usize) {
    let block = Block::decode(stored, &[]).unwrap();
    let canonical: Vec<u8> = log.runs.iter().flat_map(|run| run.1.clone()).collect();
    let count: u64 = log.runs.iter().map(|run| u64::from(run.0)).sum();
    assert_eq!((block.header().count as u64, block.header().canonical_bytes as usize), (count, canonical.len()));
    for from in (log.first_seq..log.first_seq + count).step_by(step) {
        let pieces = block.pieces(Seq::new(from).unwrap(), usize::MAX).unwrap();
        let first = pieces[0].first_seq.get();
        assert!(first <= from && from < first + u64::from(pieces[0].count));
        let got: Vec<u8> = pieces.iter().flat_map(|piece| piece.events.to_vec()).collect();
        assert!(canonical.ends_with(&got), "the bytes are those of the log");
        for piece in &pieces {
            let (mut seq, mut link, mut chain) = (log.first_seq, log.before.link(), None);
            for run in &log.runs {
                if seq == piece.first_seq.get() {
                    assert_eq!(piece.link, link);
                }
                seq += u64::from(run.0);
                link = run.2.link();
                if seq == piece.first_seq.get() + u64::from(piece.count) {
                    chain = Some(run.2);
                }
            }
            assert_eq!(chain, Some(piece.chain), "a piece ends where a run ends");
        }
    }
    let (mut next, mut got) = (log.first_seq, Vec::new());
    while next < log.first_seq + count {
        let pieces = block.pieces(Seq::new(next).unwrap(), 1).unwrap();
        assert_eq!(pieces.len(), 1);
        next += u64::from(pieces[0].count);
        got.extend_from_slice(&pieces[0].events);
    }
    assert_eq!(got, canonical);
    assert!(block.pieces(Seq::new(log.first_seq + count).unwrap(), 1).unwrap().is_empty());
}

fn plain(kind: &str, time_ms: i64, data: String) -> NewEvent {
    let (surface_op, source_event_seqs) = (None, None);
    NewEvent { time_ms, kind: kind.into(), data: data.into(), ignorable: false, surface_op, source_event_seqs }
}

fn delta(turn: u64, time_ms: i64, text: &str) -> NewEvent {
    let data = format!(
        r#"{{"turn":{turn},"step":1,"chunk":{{"type":"text-delta","index":0,"text":{}}}}}"#,
        serde_json::to_string(text).unwrap()
    );
    plain("assistant/chunk", time_ms, data)
}

#[test]
fn stream_deltas_shrink_to_their_texts_and_come_back() {
    let words = "The quick brown fox jumps over the lazy dog, \"said\" \\ the narrator, and \u{e9}\u{1F600} 中文";
    let mut time = 1_700_000_000_000;
    let mut runs = Vec::new();
    for turn in 0..40 {
        for word in words.split_inclusive(' ') {
            time += 17 + turn as i64;
            runs.push(vec![delta(turn, time, word)]);
        }
        runs.push(vec![plain("turn/end", time, format!(r#"{{"turn":{turn}}}"#))]);
    }
    let log = log(0, &runs);
    let stored = encode(&log);
    let canonical: usize = log.runs.iter().map(|run| run.1.len()).sum();
    println!("{} events, {canonical} canonical bytes, {} stored", runs.len(), stored.len());
    assert!(stored.len() * 40 < canonical);
    check(&log, &stored, 37);
}

#[test]
fn long_blocks_are_read_from_the_knot_before_the_seq() {
    let runs: Vec<_> = (0..3000).map(|n| vec![delta(n / 500, n as i64 * 10, &format!("word{n} "))]).collect();
    let log = log(12_345, &runs);
    let stored = encode(&log);
    check(&log, &stored, 101);
    let block = Block::decode(&stored, &[]).unwrap();
    let tail = block.pieces(Seq::new(12_345 + 2950).unwrap(), 1 << 20).unwrap();
    assert!(tail.iter().map(|piece| piece.count).sum::<u32>() <= 50 + 256, "not the whole block is expanded");
}

fn any_event() -> impl Strategy<Value = NewEvent> {
    let number = prop_oneof![0..50u64, Just(quipu::model::INT53_MAX)].prop_map(|n| Seq::new(n).unwrap());
    let surface = prop_oneof![
        4 => Just(None),
        1 => Just(Some(SurfaceOp::Append)),
        1 => (number.clone(), number.clone()).prop_map(|(start, end)| Some(SurfaceOp::Replace { start, end })),
    ];
    let sources = prop::option::weighted(0.2, prop::collection::vec(number, 0..5));
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[\"\\\\a-c]{0,20}".prop_map(|text| format!(r#"{{"a":1,"text":"{text}"}}"#).into_bytes()),
        "[\"\\\\ ab]{0,8}".prop_map(|text| format!(r#"{{"a":1,"text":"\"{text}"}}"#).into_bytes()),
        (0..3u8).prop_map(|n| format!(r#"{{"turn":{n}}}"#).into_bytes()),
        Just(vec![b'"'; 5000]),
    ];
    let kind = prop_oneof![Just("a".to_owned()), Just("assistant/chunk".to_owned()), "\\PC{0,9}"];
    (any::<i64>(), kind, data, any::<bool>(), surface, sources).prop_map(
        |(time_ms, kind, data, ignorable, surface_op, source_event_seqs)| NewEvent {
            time_ms,
            kind: kind.into(),
            data: data.into(),
            ignorable,
            surface_op,
            source_event_seqs,
        },
    )
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let numbers = (any::<u64>(), 0..1u64 << 53, any::<u32>(), any::<u64>(), any::<[u8; 32]>());
    let rest = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>(), prop::option::of(".{0,40}"));
    (numbers, rest).prop_map(
        |((log, first_seq, count, link, chain), (position, time_ms, offset, bytes, is_copy, title))| {
            let first_seq = Seq::saturating(first_seq);
            let part = if is_copy { Part::Copy } else { Part::Own };
            let title = title.map(|text| Noted { seq: first_seq, text });
            let summary = Summary { bytes: time_ms, title, ..Summary::default() };
            Entry { log, part, first_seq, count, link, chain: Chain(chain), position, time_ms, offset, bytes, summary }
        },
    )
}

proptest! {
    #[test]
    fn packed_events_come_back_byte_for_byte(
        runs in prop::collection::vec(prop::collection::vec(any_event(), 1..6), 1..40),
        first_seq in prop_oneof![Just(0u64), 1..1u64 << 40],
    ) {
        let log = log(first_seq, &runs);
        check(&log, &encode(&log), 7);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>()) {
        let log = log(0, &[vec![delta(1, 2, "a"), delta(1, 3, "b"), delta(1, 4, "c")]]);
        let block = Block::decode(&encode(&log), &[]).unwrap();
        let _ = Block::parse(*block.header(), bytes.clone()).map(|block| block.pieces(Seq::ZERO, usize::MAX));
        // A checksum that matches proves nothing about what stands below it.
        let mut stored = encode(&log);
        let at = 4 + cut.index(stored.len() - 4);
        stored.splice(at.., bytes.iter().copied());
        let checksum = crc32c::crc32c(&stored[4..]);
        stored[..4].copy_from_slice(&checksum.to_le_bytes());
        let _ = Block::decode(&stored, &[]).map(|block| block.pieces(Seq::ZERO, usize::MAX));
        let _ = Directory::decode(&bytes);
        let _ = FileHeader::decode(&bytes);
    }

    #[test]
    fn directories_come_back(
        entries in prop::collection::vec(any_entry(), 0..20),
        states in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)), 0..10),
    ) {
        let states = states.into_iter().map(|(time_ms, record)| State { time_ms, record: record.into() }).collect();
        let directory = Directory { states, entries };
        let bytes = directory.encode(&mut Codec::new(3));
        prop_assert_eq!(Directory::decode(&bytes).unwrap(), directory);
    }
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_block_is_seen() {
    let log = log(3, &[vec![delta(1, 2, "one"), delta(1, 3, "two")], vec![delta(1, 4, "three")]]);
    let stored = encode(&log);
    assert!(stored.len() > BLOCK_HEADER_BYTES);
    for bit in 0..stored.len() * 8 {
        let mut bytes = stored.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Block::decode(&bytes, &[]).is_err(), "bit {bit}");
    }
    (0..stored.len()).for_each(|length| assert!(Block::decode(&stored[..length], &[]).is_err()));
}

#[test]
fn every_flipped_bit_of_a_header_is_seen_and_a_newer_version_is_named() {
    let header = FileHeader {
        store: [5; 16],
        number: 3,
        journals: (4, 7),
        positions: (10, 900),
        file_bytes: 12_345,
        directories: (1000, 1100),
        directory_bytes: 100,
        directory_checksum: 77,
        dictionaries: (500, 1200),
        dictionary_bytes: 50,
        dictionary_checksum: 78,
    };
    let bytes = header.encode();
    assert_eq!(FileHeader::decode(&bytes), Ok(header));
    for bit in 0..FILE_HEADER_BYTES * 8 {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FileHeader::decode(&bytes), Err(Unreadable::Damaged), "bit {bit}");
    }
    let mut newer = bytes;
    newer[7] += 1;
    let checksum = crc32c::crc32c(&newer[..FILE_HEADER_BYTES - 4]);
    newer[FILE_HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(FileHeader::decode(&newer), Err(Unreadable::Newer(2)));
    assert!(Unreadable::Newer(2).to_string().contains("use a newer quipu"));
}
