//! Text for a terminal.

/// Escapes everything that could steer a terminal: control characters, and the marks that turn the direction of
/// writing. Logs of agents hold hostile text by nature.
pub(super) fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let turns = matches!(character, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || turns || matches!(character, '\u{2028}' | '\u{2029}' | '\u{feff}') {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// The start of a text, on one line, in at most `width` characters.
pub(super) fn clipped(text: &str, width: usize) -> String {
    let mut shown: String = shown(text).chars().take(width + 1).collect();
    if shown.chars().count() > width {
        shown = shown.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect();
    }
    shown
}

/// A time as UTC, to the second; one outside the calendar as its number.
pub(super) fn time(ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(ms);
    time.map_or_else(|_| ms.to_string(), |time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// Bytes as lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

/// Bytes from their hexadecimal form; `None` unless all of it is pairs of digits.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Bytes for people.
pub(super) fn size(bytes: f64) -> String {
    let units = [("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0), ("KiB", 1024.0)];
    let unit = units.iter().find(|(_, size)| bytes >= *size);
    unit.map_or_else(|| format!("{bytes:.0} B"), |(name, size)| format!("{:.1} {name}", bytes / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_log_can_steer_the_terminal() {
        let hostile = "a\u{1b}]0;x\u{7}\r\n\u{9b}31m\u{202e}b\u{0}";
        let text = shown(hostile);
        assert!(text.chars().all(|character| !character.is_control()), "{text}");
        assert!(text.starts_with('a') && text.contains('b'));
    }

    #[test]
    fn times_are_dates() {
        for (ms, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (1_700_000_000_000, "2023-11-14 22:13:20Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (-1, "1969-12-31 23:59:59Z"),
        ] {
            assert_eq!(time(ms), text);
        }
    }
}
