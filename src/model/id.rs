//! Names: namespaces, session ids, incarnations.

use std::fmt;

/// Longest session id in bytes.
pub const SESSION_ID_BYTES_MAX: usize = 128;
/// Longest namespace in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 63;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty, or longer than the limit.
    #[error("{what} has {bytes} bytes; 1 to {max} are allowed")]
    Length {
        /// Which name.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A character that the name may not contain.
    #[error("{what} contains {character:?} at byte {at}; {rule}")]
    Character {
        /// Which name.
        what: &'static str,
        /// The character.
        character: char,
        /// Where it stands.
        at: usize,
        /// What is allowed.
        rule: &'static str,
    },
}

fn check_length(what: &'static str, text: &str, max: usize) -> Result<(), IdError> {
    if text.is_empty() || text.len() > max {
        return Err(IdError::Length { what, bytes: text.len(), max });
    }
    Ok(())
}

/// A tenant: `[a-z0-9-]{1,63}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Box<str>);

impl Namespace {
    /// The namespace of requests that name none.
    pub const DEFAULT: &'static str = "default";

    /// Checks and takes a name; the empty text means [`Namespace::DEFAULT`].
    pub fn new(text: &str) -> Result<Self, IdError> {
        let text = if text.is_empty() { Self::DEFAULT } else { text };
        check_length("namespace", text, NAMESPACE_BYTES_MAX)?;
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        match text.char_indices().find(|&(_, c)| !allowed(c)) {
            None => Ok(Self(text.into())),
            Some((at, character)) => {
                Err(IdError::Character { what: "namespace", character, at, rule: "only a-z, 0-9 and '-' are allowed" })
            }
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a session inside its namespace: 1 to 128 bytes of UTF-8 without control characters.
///
/// Compared byte for byte, never normalised; never part of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(Box<str>);

impl SessionId {
    /// Checks and takes a name.
    pub fn new(text: &str) -> Result<Self, IdError> {
        check_length("session_id", text, SESSION_ID_BYTES_MAX)?;
        match text.char_indices().find(|&(_, c)| c.is_control()) {
            None => Ok(Self(text.into())),
            Some((at, character)) => Err(IdError::Character {
                what: "session_id",
                character,
                at,
                rule: "control characters are not allowed",
            }),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What names a session: (namespace, session id).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    /// The tenant.
    pub namespace: Namespace,
    /// The name inside it.
    pub id: SessionId,
}

impl SessionKey {
    /// Checks and joins both names.
    pub fn new(namespace: &str, id: &str) -> Result<Self, IdError> {
        Ok(Self { namespace: Namespace::new(namespace)?, id: SessionId::new(id)? })
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

/// The random identity of one life of a session name: delete and create never mix positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub [u8; 16]);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_lower_case_words_and_the_empty_one_is_the_default() {
        assert_eq!(Namespace::new("").unwrap().as_str(), "default");
        assert!(Namespace::new("team-1").is_ok());
        for bad in ["Team", "a_b", "a/b", "\u{e9}", &"x".repeat(64)] {
            assert!(Namespace::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn session_ids_take_any_text_without_control_characters() {
        for good in ["..", "a/b", "\u{e9}\u{1F642}", "{{sessionId}}", &"x".repeat(128)] {
            assert!(SessionId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a\0", "a\u{1b}[31m", "a\u{85}", &"x".repeat(129), &"\u{e9}".repeat(65)] {
            assert!(SessionId::new(bad).is_err(), "{bad:?}");
        }
    }
}
