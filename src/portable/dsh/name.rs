//! File names of sessions.

/// A file name for a session id, without suffix: two ids never share one, also where names ignore case, and none leaves
/// its directory or is hidden.
///
/// Small letters, digits, `-`, `_`, and `.` but at the start, stay as they are; every other UTF-16 unit becomes `~` and
/// four digits, as in the reference's directories (15.2). A name that would be longer than 200 bytes ends with a hash
/// of the id.
pub fn file_name(id: &str) -> String {
    let mut name = String::with_capacity(id.len());
    let mut units = [0; 2];
    for (at, letter) in id.chars().enumerate() {
        match letter {
            'a'..='z' | '0'..='9' | '-' | '_' => name.push(letter),
            '.' if at > 0 => name.push(letter),
            _ => letter.encode_utf16(&mut units).iter().for_each(|unit| name.push_str(&format!("~{unit:04x}"))),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        // Only ASCII stands there, and no escape ends like this.
        name.truncate(NAME_BYTES_MAX / 2);
        name.push_str(&format!("~~{}", blake3::hash(id.as_bytes()).to_hex()));
    }
    name
}

/// Leaves room for suffixes below the 255 bytes of a file name.
const NAME_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_do_not_collide_escape_or_grow() {
        let mut seen = HashMap::new();
        let long = "\u{1f600}".repeat(32);
        let ids = ["", ".", "..", "a/b", "a_b", "a~002fb", "A", "a", "con", "../x", "\u{e9}", "e\u{301}", &long];
        let others = [format!("{long}a"), "x".repeat(128), "/".repeat(128), "/".repeat(127)];
        for id in ids.into_iter().map(str::to_owned).chain(others) {
            let name = file_name(&id);
            assert!(name.len() <= NAME_BYTES_MAX && !name.contains('/') && !name.starts_with('.'), "{name}");
            if let Some(other) = seen.insert(name.to_lowercase(), id.clone()) {
                panic!("{other:?} and {id:?} are both {name}");
            }
        }
    }

    proptest! {
        #[test]
        fn two_ids_never_share_a_name(one in ".{0,40}", other in ".{0,40}") {
            prop_assert_eq!(file_name(&one).to_lowercase() == file_name(&other).to_lowercase(), one == other);
        }
    }
}
