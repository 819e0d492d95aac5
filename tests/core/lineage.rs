//! The family of a session, against `trace.json` and by laws.

use proptest::prelude::*;
use quipu::replay::lineage::{Descendant, Family, LineEnd, Lineage, LineageError};
use serde_json::{Value, json};

use crate::vectors::cases;

fn family(corpus: &Value) -> Family {
    let mut family = Family::default();
    for session in corpus.as_array().unwrap() {
        let created = session["createdAt"].as_u64().unwrap();
        family.insert(session["id"].as_str().unwrap(), created, session["parent"].as_str());
    }
    family
}

/// The flat list as the tree of the vectors.
fn tree(descendants: &[Descendant], depth: u64) -> Vec<Value> {
    let mut nodes = Vec::new();
    for (at, node) in descendants.iter().enumerate() {
        if node.depth < depth {
            break;
        }
        if node.depth == depth {
            nodes.push(json!({"id": node.id, "children": tree(&descendants[at + 1..], depth + 1)}));
        }
    }
    nodes
}

fn found(input: &Value) -> Value {
    let id = input["id"].as_str().unwrap();
    let lineage = match family(&input["corpus"]).trace(id) {
        Ok(lineage) => lineage,
        Err(error) => {
            assert!(matches!(error, LineageError::Cycle { .. }));
            return json!({
                "ok": false, "name": "SessionQueryError", "code": "SESSION_QUERY_INVALID_LINEAGE",
                "message": error.to_string(),
            });
        }
    };
    // Where a session is kept is not a matter of lineage.
    let target = input["corpus"].as_array().unwrap().iter().find(|session| session["id"] == id).unwrap();
    let is_stored = target.get("stored").is_some();
    let mut found = json!({
        "ok": true, "complete": matches!(lineage.end, LineEnd::Root(_)), "ancestors": lineage.ancestors,
        "descendants": tree(&lineage.descendants, 1), "target": {"id": id, "live": !is_stored, "persisted": is_stored},
    });
    match lineage.end {
        LineEnd::Root(root) => found["root"] = json!(root),
        LineEnd::Unresolved(parent) => found["unresolvedParentId"] = json!(parent),
    }
    found
}

/// Siblings of one millisecond are ordered by bytes, so that `C` comes before `a`; the reference's locale collation
/// gives another order on another platform, and a page token must mean the same everywhere.
const ORDERED_BY_BYTES: &str = "session-siblings-tie";

#[test]
fn sessions_have_the_families_of_the_vectors() {
    let cases = cases("trace.json", Some("session"));
    println!("trace.json: {} cases of kind session, one ordered by bytes instead", cases.len());
    for case in cases {
        let mut expected = case["expected"].clone();
        if case["name"] == ORDERED_BY_BYTES {
            assert_eq!(expected["descendants"].as_array().unwrap().len(), 4);
            let leaf = |id: &str| json!({"id": id, "children": []});
            expected["descendants"] = json!([leaf("C"), leaf("a"), leaf("b"), leaf("c")]);
        }
        assert_eq!(found(&case["input"]), expected, "{}", case["name"]);
    }
}

#[test]
fn a_session_that_is_its_own_parent_is_a_cycle_and_an_unknown_one_is_not_found() {
    let mut family = Family::default();
    family.insert("a", 1, Some("a"));
    assert_eq!(family.trace("a"), Err(LineageError::Cycle { id: "a".into() }));
    assert_eq!(family.trace("b"), Err(LineageError::NotFound { id: "b".into() }));
}

#[test]
fn a_line_of_a_hundred_thousand_forks_costs_no_stack() {
    let mut family = Family::default();
    family.insert("0", 0, None);
    for n in 1..100_000u64 {
        family.insert(&n.to_string(), n, Some(&(n - 1).to_string()));
    }
    assert_eq!(family.trace("0").unwrap().descendants.len(), 99_999);
    assert_eq!(family.trace("99999").unwrap().ancestors.len(), 99_999);
}

proptest! {
    #[test]
    fn a_family_does_not_depend_on_the_order_of_its_sessions(
        parents in prop::collection::vec((0..4u64, prop::option::of(0..14usize)), 1..12), shift in 0..12usize,
    ) {
        let insert = |family: &mut Family, n: usize| {
            let (created, parent) = parents[n];
            family.insert(&n.to_string(), created, parent.map(|parent| parent.to_string()).as_deref());
        };
        let (mut forward, mut shifted) = (Family::default(), Family::default());
        for n in 0..parents.len() {
            insert(&mut forward, n);
            shifted.insert(&n.to_string(), 99, Some("elsewhere"));
            insert(&mut shifted, (n + shift) % parents.len());
        }
        for n in 0..parents.len() {
            insert(&mut shifted, n);
        }
        for n in 0..parents.len() {
            let traced: Result<Lineage, _> = forward.trace(&n.to_string());
            prop_assert_eq!(&traced, &shifted.trace(&n.to_string()));
            if let Ok(lineage) = traced {
                for child in lineage.descendants {
                    let line = forward.trace(&child.id).unwrap();
                    prop_assert_eq!(&line.ancestors[child.depth as usize - 1], &n.to_string());
                    prop_assert_eq!(&line.end, &lineage.end);
                }
            }
        }
    }
}
