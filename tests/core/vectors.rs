//! Reads the golden vectors: from `QUIPU_VECTORS`, or the copies under `tests/data`.

use std::path::PathBuf;

use serde_json::Value;

fn directory() -> PathBuf {
    std::env::var_os("QUIPU_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors"), PathBuf::from)
}

/// The text of one vector file.
pub(crate) fn text(file: &str) -> String {
    let path = directory().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The cases of one vector file; of `kind` only, if one is named.
pub(crate) fn cases(file: &str, kind: Option<&str>) -> Vec<Value> {
    let mut whole: Value = serde_json::from_str(&text(file)).unwrap();
    let cases = whole["cases"].as_array_mut().map(std::mem::take).unwrap();
    let cases: Vec<_> =
        cases.into_iter().filter(|case| kind.is_none_or(|kind| case["input"]["kind"] == kind)).collect();
    assert!(!cases.is_empty(), "{file} has no cases of kind {kind:?}");
    cases
}
