//! Reads the golden vectors: from `QUIPU_VECTORS`, or the copies under `tests/data`.

use std::path::PathBuf;

use serde_json::Value;

fn directory() -> PathBuf {
    std::env::var_os("QUIPU_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors"), PathBuf::from)
}

/// The text of one vector file, for tests that compare spellings.
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

/// Files that folds answer for; every case that records a defect of the reference has a test that says what is better.
#[test]
fn the_vectors_are_all_here_and_each_recorded_defect_has_its_test() {
    let files = [
        "repair",
        "surface",
        "request_header",
        "request_reconstruction",
        "assemble",
        "fork_core",
        "fork_host",
        "history",
        "trace",
        "validate",
        "convergence",
        "ui_projection",
        "stats",
        "persistence",
    ];
    let better = [
        ("conv-gap-repair-fails", include_str!("window.rs")),
        ("conv-repair-page-shorter", include_str!("window.rs")),
        ("conv-stitch-hole", include_str!("window.rs")),
        ("p-live-append-by-id-shadows", include_str!("persistence.rs")),
        // Found by its mark.
        ("ui-block-start-resets", "\"ui-block-start-resets\""),
    ];
    let mut total = 0;
    for file in files {
        let cases = cases(&format!("{file}.json"), None);
        total += cases.len();
        for case in cases.iter().filter(|case| case.get("upstreamDefect").is_some()) {
            let name = case["name"].as_str().unwrap();
            let known = better.iter().any(|(better, text)| *better == name && text.contains(name));
            assert!(known, "{file}: `{name}` records a defect; a test must say what is better, and why");
        }
    }
    println!("{} files: {total} cases", files.len());
}
