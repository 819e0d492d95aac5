//! Events as lines of JSON: the reference's line form, data byte for byte.

use anyhow::{Context as _, bail};

use super::text::{hex, unhex};
use crate::model::json::{self, Value};
use crate::model::{Event, NewEvent};
use crate::portable::dsh;
use crate::replay::line;

/// An event as one line, without the line break.
///
/// JSON allows line breaks between tokens. Data that has some would break the line, so it goes as `dataHex`.
pub(super) fn write(event: &Event) -> Vec<u8> {
    if !event.body.data.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return line::encode(event);
    }
    let data = format!("\"{}\"", hex(&event.body.data));
    let shadow = Event { body: NewEvent { data: data.into(), ..event.body.clone() }, ..event.clone() };
    let text = String::from_utf8_lossy(&line::encode(&shadow)).into_owned();
    text.replacen(",\"data\":\"", ",\"dataHex\":\"", 1).into_bytes()
}

/// The event of a line, and the seq that the line gives it, if it does. Without a time it gets `now_ms`.
pub(super) fn read(text: &[u8], now_ms: i64) -> anyhow::Result<(NewEvent, Option<u64>)> {
    let doc = json::parse(text).context("the line")?;
    let root = doc.root();
    let seq = match root.get("seq") {
        None => None,
        Some(seq) => Some(seq.as_int53().and_then(|seq| u64::try_from(seq).ok()).context("`seq` must be a seq")?),
    };
    if root.get("dataHex").is_some() {
        return Ok((read_hex(root)?, seq));
    }
    let time = if root.get("time").is_none() { Some(now_ms) } else { None };
    if time.is_some() && seq.is_some() {
        bail!("`seq` without `time`");
    }
    Ok((dsh::read_event(root, time).map_err(anyhow::Error::msg)?, seq))
}

fn read_hex(root: Value<'_, '_>) -> anyhow::Result<NewEvent> {
    let text = root.get("dataHex").and_then(Value::to_text).context("`dataHex` must be a string")?;
    let data = unhex(&text).context("`dataHex` must be pairs of hexadecimal digits")?;
    let doc_text = as_data(root.raw());
    let doc = json::parse(doc_text.as_bytes())?;
    let event = dsh::read_event(doc.root(), None).map_err(anyhow::Error::msg)?;
    Ok(NewEvent { data: data.into(), ..event })
}

/// Renames the key `dataHex`: the one place with a colon behind it. A value of that text has none, and inside a string
/// the quotes are escaped.
fn as_data(line: &str) -> String {
    const KEY: &str = "\"dataHex\"";
    let is_key = |at: &usize| line.get(at + KEY.len()..).is_some_and(|rest| rest.trim_start().starts_with(':'));
    match line.match_indices(KEY).map(|(at, _)| at).find(is_key) {
        Some(at) => [&line[..at], "\"data\"", &line[at + KEY.len()..]].concat(),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Seq, SurfaceOp};

    proptest! {
        #[test]
        fn a_line_gives_the_event_back_byte_for_byte(
            kind in "[a-z/\"\\\\,:]{0,20}|dataHex|\"dataHex\":",
            data in prop::sample::select(vec!["{}", " { \"a\" :\n [1.0,\r\n -1e5] } ", "\"\\ud800\"", "\",\\\"data\\\":\"", "\u{2028}1"]),
            seq in 0..1u64 << 53,
            time_ms in -(1i64 << 53) + 1..1i64 << 53,
            sources in prop::option::of(prop::collection::vec(0..9u64, 0..3)),
        ) {
            prop_assume!(json::check(data.as_bytes()).is_ok());
            let source_event_seqs = sources.map(|list| list.into_iter().map(Seq::saturating).collect());
            let surface_op = source_event_seqs.is_some().then_some(SurfaceOp::Append);
            let body = NewEvent { time_ms, kind: kind.into(), data: data.into(), ignorable: seq % 2 == 0, surface_op, source_event_seqs };
            let event = Event { seq: Seq::saturating(seq), body };
            let line = write(&event);
            prop_assert!(!line.contains(&b'\n'));
            let (body, again) = read(&line, 0).unwrap();
            // Space around the value is not part of it.
            let trimmed = NewEvent { data: event.body.data.clone(), ..body.clone() };
            prop_assert_eq!(trimmed, event.body.clone());
            prop_assert_eq!(again, Some(seq));
            if line.windows(9).any(|window| window == b"\"dataHex\"") {
                prop_assert_eq!(body.data, event.body.data);
            } else {
                prop_assert_eq!(&body.data[..], data.trim().as_bytes());
            }
        }
    }
}
