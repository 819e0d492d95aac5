//! What counts as white space, and the text of an event as a reader or a search sees it (reference 5.5, 13.5).
//!
//! White space is ECMAScript's set, because the reference trims with it: Unicode's space separators, the line
//! separators and the byte order mark, but not the zero width space. Nothing here goes back into a log, so lone
//! surrogates may become U+FFFD.

use crate::model::json::Text;

/// Whether ECMAScript's `trim` removes the character.
pub fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ' | '\u{A0}' | '\u{1680}' | '\u{2000}'..='\u{200A}')
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202F}' | '\u{205F}' | '\u{3000}' | '\u{FEFF}')
}

/// Whether a string holds nothing but white space.
pub fn is_blank(text: Text<'_>) -> bool {
    String::from_utf8_lossy(&text.decode()).chars().all(is_space)
}
