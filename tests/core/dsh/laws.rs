//! Whatever the bytes are, they are read or refused.

use proptest::prelude::*;
use quipu::model::json;

use super::compressed::compressed;
use super::*;

proptest! {
    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), packed: bool) {
        let mut bytes = if packed { compressed().0 } else { small_file().0 };
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok((scan, events)) = read(&bytes) {
            prop_assert!((0..).zip(&events).all(|(seq, event)| event.seq.get() == seq));
            prop_assert!(events.iter().all(|event| json::check(&event.body.data).is_ok()));
            prop_assert!(packed || scan.total_bytes == bytes.len() as u64);
        }
    }

    #[test]
    fn any_lines_read_or_are_refused(lines in prop::collection::vec(any_line(), 0..8), torn in "[\\[{\"a]{0,3}") {
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let bytes = [file(&lines), torn.into_bytes()].concat();
        if let Ok((scan, _)) = read_slowly(&bytes, 5) {
            prop_assert_eq!(scan.total_bytes, bytes.len() as u64);
        }
    }
}

fn any_line() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec!["turn/end", "a", "text-chunks"]);
    let line = (kind, 0..4u8, any::<bool>()).prop_map(|(kind, seq, placed)| {
        let data = r#"{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a","b"]}"#;
        let (seq_key, time_key) = if kind == "text-chunks" { ("seq0", "time0") } else { ("seq", "time") };
        let place = if placed { format!(r#","{seq_key}":{seq},"{time_key}":1"#) } else { String::new() };
        format!(r#"{{"type":"{kind}"{place},"data":{data}}}"#)
    });
    prop_oneof![4 => line, 1 => prop::sample::select(vec!["", "null", "3", "{", "[]"]).prop_map(str::to_owned)]
}

#[test]
fn depth_of_a_line_costs_no_stack() {
    let nested = [b"[".repeat(300_000), b"]".repeat(300_000)].concat();
    let nested = String::from_utf8(nested).unwrap();
    let line = format!(r#"{{"type":"a","seq":0,"time":1,"data":{nested}}}"#);
    let bytes = file(&[&line, &nested]);
    let read = move || {
        let (scan, events) = read(&bytes).unwrap();
        assert!(scan.is_torn);
        assert_eq!(events[0].body.data, nested);
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(read).unwrap().join().unwrap();
}
