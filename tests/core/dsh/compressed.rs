//! Files of Zstandard frames.

use std::io::Write;

use proptest::prelude::*;
use quipu::portable::dsh::{self, DshError, Note, ReadOptions};

use super::*;

fn frame(text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 0).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// The small file as the reference stores it: the header and two batches, with their ends.
pub(super) fn compressed() -> (Vec<u8>, [usize; 3]) {
    let (bytes, marks) = small_file();
    let (header, first) = (marks[0].0, marks[2].0);
    let frames = [&bytes[..header], &bytes[header..first], &bytes[first..]].map(frame);
    let ends = [frames[0].len(), frames[0].len() + frames[1].len(), frames.concat().len()];
    (frames.concat(), ends)
}

#[test]
fn a_compressed_file_reads_like_its_plain_form() {
    let (plain, events) = read(&small_file().0).unwrap();
    let (bytes, _) = compressed();
    assert!(dsh::open(&bytes[..], &ReadOptions::default()).unwrap().is_compressed());
    for step in [1, 3, 64, 8192] {
        assert_eq!(read_slowly(&bytes, step).unwrap(), (plain.clone(), events.clone()));
    }
}

#[test]
fn a_compressed_file_cut_at_any_byte_keeps_its_complete_frames() {
    let (bytes, ends) = compressed();
    for length in 0..bytes.len() {
        let found = read_slowly(&bytes[..length], 1 + length % 5);
        match ends.iter().zip([0, 4]).rev().find(|(end, _)| **end <= length) {
            None if length == 0 => assert!(matches!(found, Err(DshError::Empty))),
            None => assert!(matches!(found, Err(DshError::EmptyZstd)), "{length}"),
            Some((&end, events)) => {
                let (scan, _) = found.unwrap();
                assert!(scan.events >= events, "{length}");
                assert_eq!(scan.is_torn, end < length, "{length}");
                assert_eq!(scan.notes.contains(&Note::FrameCut), end < length, "{length}");
            }
        }
    }
}

/// Lines of noise, so that a frame has several blocks.
fn noisy_lines(count: u64) -> Vec<u8> {
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{state:016x}")
    };
    (0..count)
        .flat_map(|seq| {
            let text: String = (0..64).map(|_| noise()).collect();
            format!("{{\"type\":\"a\",\"seq\":{seq},\"time\":1,\"data\":\"{text}\"}}\n").into_bytes()
        })
        .collect()
}

#[test]
fn frames_of_every_header_and_block_form_are_followed_to_their_end() {
    // Without checksum and with the content size in the frame header: in one, two, four bytes; raw, compressed and
    // run-length blocks.
    let mut bytes = zstd::bulk::compress(&file(&[]), 3).unwrap();
    for (seq, length) in (0..).zip([0, 1, 150, 200, 60_000, 70_000, 2_000_000]) {
        let line = format!("{{\"type\":\"a\",\"seq\":{seq},\"time\":1,\"data\":\"{}\"}}\n", "x".repeat(length));
        bytes.extend(zstd::bulk::compress(line.as_bytes(), [1, 19][seq % 2]).unwrap());
    }
    let (scan, events) = read_slowly(&bytes, 7).unwrap();
    assert_eq!((scan.events, scan.is_torn), (7, false));
    assert_eq!(events[6].body.data.len(), 2_000_002);
    let (scan, _) = read(&bytes[..bytes.len() - 1]).unwrap();
    assert!(scan.is_torn && scan.events == 6);
}

#[test]
fn the_whole_records_of_a_cut_frame_are_kept() {
    let lines = noisy_lines(600);
    let header = frame(&file(&[]));
    let bytes = [header.clone(), frame(&lines)].concat();
    assert_eq!(read(&bytes).unwrap().0.events, 600);
    let mut last = 0;
    for tenth in 1..10 {
        let cut = header.len() + (bytes.len() - header.len()) * tenth / 10;
        let (scan, events) = read(&bytes[..cut]).unwrap();
        assert!(scan.is_torn && scan.events >= last && scan.events < 600);
        assert_eq!(events.len() as u64, scan.events);
        last = scan.events;
    }
    assert!(last > 100, "{last}");
    // Garbage in a block of a cut frame ends what can be had of it; in a complete frame it is damage.
    let mut garbled = bytes.clone();
    let at = header.len() + (bytes.len() - header.len()) * 6 / 10;
    garbled[at..at + 4000].fill(0x55);
    assert!(matches!(read(&garbled), Err(DshError::Zstd { .. })));
    let (scan, _) = read(&garbled[..bytes.len() - 10]).unwrap();
    assert!(scan.is_torn && (1..600).contains(&scan.events), "{scan:?}");
}

#[test]
fn a_complete_frame_that_does_not_decode_is_damage() {
    let (bytes, ends) = compressed();
    for (at, end) in (0..).zip(ends) {
        let mut broken = bytes.clone();
        broken[end - 1] ^= 1;
        let error = read(&broken).unwrap_err();
        assert!(matches!(error, DshError::Zstd { .. }), "frame {at}: {error}");
    }
    let followed = |tail: &[u8]| error_of(read(&[&bytes[..], tail].concat()));
    assert_eq!(followed(b"abcd"), "corrupt Zstandard session log: a frame has a bad magic number");
    assert_eq!(followed(&[0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0]), followed(b"abcd"));
    let reserved = followed(&[0x28, 0xB5, 0x2F, 0xFD, 0x08]);
    assert_eq!(reserved, "corrupt Zstandard session log: a frame header has its reserved bit set");
    assert!(read(&[&bytes[..], b"abc"].concat()).unwrap().0.is_torn);
}

#[test]
fn the_first_frame_is_exactly_the_header_line() {
    let bytes = file(&[START]);
    let error = error_of(read(&frame(&bytes)));
    assert_eq!(error, "corrupt Zstandard session log: first frame is not exactly one header line");
    assert_eq!(error_of(read(&[frame(b""), frame(&bytes)].concat())), error);
    assert_eq!(error_of(read(&frame(HEADER.as_bytes()))), error);
    let options = ReadOptions { line_bytes_max: 100, ..ReadOptions::default() };
    let bomb = frame(&vec![b' '; 16 << 20]);
    assert!(bomb.len() < 4096);
    assert!(matches!(read_with(|| &bomb[..], &options), Err(DshError::LineTooLong { .. })));
}

#[test]
fn a_bad_record_in_a_complete_frame_is_damage_even_without_a_later_turn_end() {
    let header = frame(&file(&[]));
    let start = format!("{START}\n");
    let gap = format!("{MESSAGE}\n");
    for frames in [vec!["{bad}\n"], vec![&start, &gap], vec![&start, &start[..9], &start[9..]], vec![&start[..9]]] {
        let frames: Vec<_> = frames.into_iter().map(|text| frame(text.as_bytes())).collect();
        let error = read(&[header.clone(), frames.concat()].concat()).unwrap_err();
        assert!(matches!(error, DshError::FrameRecord { .. }), "{error}");
    }
    let empty_batch = [header, frame(b""), frame(start.as_bytes())].concat();
    assert_eq!(read(&empty_batch).unwrap().0.events, 1);
}

proptest! {
    #[test]
    fn a_compressed_file_with_one_flipped_byte_never_gives_other_events(at: prop::sample::Index, byte: u8) {
        let (bytes, _) = compressed();
        let (_, whole) = read(&bytes).unwrap();
        let mut broken = bytes.clone();
        let at = at.index(bytes.len());
        broken[at] = byte;
        if let Ok((scan, events)) = read(&broken) {
            // A frame whose length was changed may look cut short; what a cut frame gives was never checksummed.
            prop_assert!(scan.is_torn || events == whole);
        }
    }
}
