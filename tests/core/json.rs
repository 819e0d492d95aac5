//! The lossless JSON boundary and the header, against `validate.json` and by laws.

use proptest::prelude::*;
use quipu::model::json::{self, JsonErrorKind};
use quipu::model::{Header, Limits, NewEvent};

use crate::vectors::cases;

fn counted(kind: &str) -> Vec<serde_json::Value> {
    let cases = cases("validate.json", Some(kind));
    println!("validate.json: {} cases of kind {kind}", cases.len());
    cases
}

#[test]
fn texts_are_accepted_and_canonical_as_the_vectors_have_them() {
    for case in counted("text") {
        let (name, expected) = (&case["name"], &case["expected"]);
        let text = case["input"]["text"].as_str().unwrap().as_bytes();
        assert_eq!(json::is_json(text), expected["parses"].as_bool().unwrap(), "{name}");
        let doc = json::parse(text);
        assert_eq!(doc.is_ok(), expected["accepted"].as_bool().unwrap(), "{name}: {doc:?}");
        if let (Ok(doc), Some(canonical)) = (doc, expected["canonical"].as_str()) {
            assert_eq!(json::canonical(doc.root()), canonical, "{name}");
        }
    }
}

#[test]
fn doubles_have_the_text_of_the_vectors() {
    for case in counted("double") {
        let bits = u64::from_str_radix(case["input"]["bits"].as_str().unwrap(), 16).unwrap();
        let text = json::number_text(f64::from_bits(bits));
        assert_eq!(text.is_some(), case["expected"]["accepted"].as_bool().unwrap(), "{}", case["name"]);
        assert_eq!(text.as_deref(), case["expected"]["canonical"].as_str(), "{}", case["name"]);
    }
}

#[test]
fn headers_are_accepted_and_refused_with_the_words_of_the_vectors() {
    for case in counted("header") {
        let name = &case["name"];
        let text = case["input"]["header"].to_string();
        let doc = json::parse(text.as_bytes()).unwrap();
        let header = Header::from_json(case["input"]["id"].as_str().unwrap(), doc.root());
        if let Some(error) = case["expected"]["error"].as_str() {
            assert_eq!(header.unwrap_err().0, error, "{name}")
        } else {
            let expected = &case["expected"]["header"];
            let header = header.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(Some(header.created_at_ms), expected["createdAt"].as_u64(), "{name}");
            assert_eq!(header.cwd.as_deref(), expected["cwd"].as_str(), "{name}");
            assert_eq!(header.parent_session.as_deref(), expected["parentSession"].as_str(), "{name}");
            assert_eq!(header.seed_length, expected["seedLength"].as_u64(), "{name}");
            assert_eq!(header.origin.is_some(), expected["origin"].is_string(), "{name}");
            assert_eq!(header.delegation_depth, expected["delegationDepth"].as_u64(), "{name}");
            assert_eq!(header.agent_preset.as_deref(), expected["agentPreset"].as_str(), "{name}");
        }
    }
}

fn kind_of(text: &[u8]) -> Option<JsonErrorKind> {
    json::check(text).err().map(|e| e.kind)
}

#[test]
fn the_door_names_the_reason_of_each_refusal() {
    for (text, kind) in [
        (&b"\xff"[..], JsonErrorKind::NotUtf8),
        (b"\"\xed\xa0\x80\"", JsonErrorKind::NotUtf8), // a raw surrogate is not UTF-8
        (b"", JsonErrorKind::Syntax),
        (b"\"a\0b\"", JsonErrorKind::Syntax),
        (b"\"a\nb\"", JsonErrorKind::Syntax),
        (b"\"\\ud83\"", JsonErrorKind::Syntax),
        (b"nul", JsonErrorKind::Syntax),
        (b"1 2", JsonErrorKind::TrailingText),
        (b"[-0]", JsonErrorKind::NegativeZero),
        (b"-1e-400", JsonErrorKind::NegativeZero),
        (b"{\"a\":1e999}", JsonErrorKind::NotFinite),
        (b"{\"a\":1,\"\\u0061\":2}", JsonErrorKind::DuplicateKey),
        (b"[{\"\\ud800\":1,\"\\ud800\":2}]", JsonErrorKind::DuplicateKey),
    ] {
        assert_eq!(kind_of(text), Some(kind), "{}", String::from_utf8_lossy(text));
    }
    assert_eq!(kind_of(&b"9".repeat(400)), Some(JsonErrorKind::NotFinite));
}

#[test]
fn lone_surrogates_and_odd_numbers_pass_the_door() {
    for text in ["\"\\ud83c\"", "\"\\udff7\\ud83c\"", "{\"\\ud800\":\"\\udfff\"}", "18446744073709551617", "1.0", "1E5"]
    {
        assert_eq!(kind_of(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn depth_costs_no_stack() {
    const DEPTH: usize = 1_000_000;
    std::thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(|| {
            assert_eq!(kind_of(&b"[".repeat(DEPTH)), Some(JsonErrorKind::Syntax));
            let nested = [b"[".repeat(DEPTH), b"]".repeat(DEPTH)].concat();
            assert_eq!(kind_of(&nested), None);
            let doc = json::parse(&nested).unwrap();
            assert_eq!(json::canonical(doc.root()).as_bytes(), nested);
            assert!(doc.root().same(json::parse(&nested).unwrap().root()));
            let objects = format!("{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_000));
            assert_eq!(kind_of(objects.as_bytes()), None);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn envelope_limits_are_refused_by_field() {
    let event = NewEvent {
        time_ms: 0,
        kind: "t".into(),
        data: "null".into(),
        ignorable: false,
        surface_op: None,
        source_event_seqs: None,
    };
    let limits = Limits::default();
    assert_eq!(event.check(&limits), Ok(()));
    for (broken, field) in [
        (NewEvent { time_ms: 1 << 53, ..event.clone() }, "`time_ms`"),
        (NewEvent { time_ms: -(1 << 53), ..event.clone() }, "`time_ms`"),
        (NewEvent { kind: "x".repeat(257).into(), ..event.clone() }, "`type`"),
        (
            NewEvent { source_event_seqs: Some(vec![Default::default(); 100_001]), ..event.clone() },
            "`source_event_seqs`",
        ),
        (NewEvent { data: vec![b' '; (4 << 20) + 1].into(), ..event.clone() }, "`data`"),
        (NewEvent { data: "".into(), ..event.clone() }, "`data`"),
    ] {
        let error = broken.check(&limits).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    }
}

/// Any JSON value, as text that serde wrote.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i32>().prop_map(Into::into),
        (-1e300..1e300f64).prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
            prop::collection::vec((any::<String>(), inner), 0..8)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_serde_writes_is_accepted_and_canonical_text_means_the_same(value in any_json()) {
        let text = value.to_string();
        prop_assume!(!text.contains("-0.0"));
        prop_assert_eq!(json::check(text.as_bytes()), Ok(()));
        let doc = json::parse(text.as_bytes()).unwrap();
        let canonical = json::canonical(doc.root());
        let again = json::parse(canonical.as_bytes()).unwrap();
        prop_assert!(doc.root().same(again.root()));
        prop_assert_eq!(json::canonical(again.root()), canonical);
        prop_assert_eq!(doc.root().raw(), text.trim());
    }

    #[test]
    fn the_scanner_and_serde_agree_on_what_is_json(text in "[\\[\\]{}:,\"a\\\\u0-9eE+. \\-tfn]{0,24}") {
        let serde = serde_json::from_str::<serde_json::Value>(&text);
        let ours = json::is_json(text.as_bytes());
        // serde refuses lone surrogates and infinite numbers, which are JSON all the same.
        if let Err(e) = &serde {
            let message = e.to_string();
            if message.contains("surrogate") || message.contains("out of range") || message.contains("hex escape") {
                return Ok(());
            }
        }
        prop_assert_eq!(ours, serde.is_ok(), "{}", text);
    }

    #[test]
    fn plain_text_of_any_length_ends_where_it_should(prefix in "[a-z]{0,40}", stop in prop::sample::select(vec!['"', '\\', '\u{1}', '\u{1f}', '\n'])) {
        let text = format!("\"{prefix}{stop}");
        let expected_ok = stop == '"';
        prop_assert_eq!(json::is_json(text.as_bytes()), expected_ok);
        let high = format!("\"{prefix}\u{7f}\u{80}\u{2028}\"");
        prop_assert!(json::is_json(high.as_bytes()));
    }
}

/// What an archive or an append may cost in memory is bounded by the number of values, not by the text alone.
#[test]
fn a_text_of_more_values_than_any_one_needs_is_refused_by_name() {
    let most = json::VALUES_MAX;
    let full = format!("[{}0]", "0,".repeat(most - 2));
    assert!(json::parse(full.as_bytes()).is_ok());
    for text in [format!("[0,{}", &full[1..]), "[".repeat(most + 1)] {
        let kind = json::parse(text.as_bytes()).unwrap_err().kind;
        assert_eq!(kind.to_string(), format!("holds more than {most} values"));
    }
}
