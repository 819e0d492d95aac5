//! Session files of the reference harness, against `jsonl_scan.json`, the samples and by laws.

mod compressed;
mod laws;
mod plain;
mod recordings;
mod written;

use std::io::{BufRead, BufReader};

use quipu::model::Event;
use quipu::portable::dsh::{self, DshError, ReadOptions, Scan};

type Read = Result<(Scan, Vec<Event>), DshError>;

/// Both passes over a stream that `open` gives.
fn read_with<R: BufRead>(open: impl Fn() -> R, options: &ReadOptions) -> Read {
    let scan = dsh::scan(dsh::open(open(), options)?, options)?;
    let events = dsh::events(dsh::open(open(), options)?, &scan).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(events.len() as u64, scan.events);
    assert!(scan.committed_bytes <= scan.total_bytes);
    Ok((scan, events))
}

fn read(bytes: &[u8]) -> Read {
    read_with(|| bytes, &ReadOptions::default())
}

/// A stream that gives a few bytes at a time.
fn read_slowly(bytes: &[u8], step: usize) -> Read {
    read_with(|| BufReader::with_capacity(step, bytes), &ReadOptions::default())
}

fn error_of(result: Read) -> String {
    result.map(|(scan, _)| scan).unwrap_err().to_string()
}

const HEADER: &str = r#"{"type":"session","version":0,"id":"s","createdAt":5,"delegationDepth":0}"#;

fn file(lines: &[&str]) -> Vec<u8> {
    std::iter::once(&HEADER).chain(lines).flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect()
}

const START: &str = r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}"#;
const ROW: &str = r#"{"type":"text-chunks","seq0":1,"time0":9,"data":{"turn":1,"step":1,"index":0,"dt":[1,-2],"texts":["a","\ud800","c"]}}"#;
const MESSAGE: &str = r#"{"type":"user/message","seq":4,"time":-3,"data":{"n": 1.0,"t":"\uD83D"},"surfaceOp":{"op":"replace","start":0,"end":3},"sourceEventSeqs":[0,3],"ignorable":true}"#;
const END: &str = r#"{"type":"turn/end","seq":5,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}"#;

/// Whole lines and the numbers of events before each line's end.
fn small_file() -> (Vec<u8>, Vec<(usize, u64)>) {
    let bytes = file(&[START, ROW, MESSAGE, END]);
    let ends = bytes.iter().enumerate().filter(|&(_, &byte)| byte == b'\n').map(|(at, _)| at + 1);
    let marks = ends.zip([0, 1, 4, 5, 6]).collect();
    (bytes, marks)
}
