//! What values of settings look like: each kind shows and reads its text.

/// Values with `FromStr` and `Display`.
pub(super) mod plain {
    pub(in crate::cli) fn show(value: &impl ToString) -> String {
        value.to_string()
    }

    pub(in crate::cli) fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
        text.parse().map_err(|e: T::Err| e.to_string())
    }
}

/// An address, or nothing.
#[allow(clippy::ref_option, reason = "all kinds of value share one signature")]
pub(super) mod address {
    use std::net::SocketAddr;

    pub(in crate::cli) fn show(value: &Option<SocketAddr>) -> String {
        value.map(|address| address.to_string()).unwrap_or_default()
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<Option<SocketAddr>, String> {
        if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| "is not ADDRESS:PORT".to_owned()) }
    }
}

/// Times, and none.
pub(super) mod span {
    use std::time::Duration;

    pub(in crate::cli) use super::time::show;

    pub(in crate::cli) fn parse(text: &str) -> Result<Duration, String> {
        if text == "0s" { Ok(Duration::ZERO) } else { super::time::parse(text) }
    }
}

/// Names with commas between them.
pub(super) mod list {
    pub(in crate::cli) fn show(value: &[String]) -> String {
        value.join(",")
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<Vec<String>, String> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let name = |name: &str| match name.trim() {
            "" => Err("has an empty name".to_owned()),
            name => Ok(name.to_owned()),
        };
        text.split(',').map(name).collect()
    }
}

pub(super) mod path {
    use std::path::{Path, PathBuf};

    pub(in crate::cli) fn show(value: &Path) -> String {
        value.display().to_string()
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<PathBuf, String> {
        if text.is_empty() { Err("is empty".to_owned()) } else { Ok(text.into()) }
    }
}

/// A file, or none.
#[allow(clippy::unnecessary_wraps, reason = "all kinds of value share one signature")]
pub(super) mod file {
    use std::path::PathBuf;

    pub(in crate::cli) use super::path::show;

    pub(in crate::cli) fn parse(text: &str) -> Result<PathBuf, String> {
        Ok(text.into())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "all kinds of value share one signature")]
pub(super) mod format {
    use crate::cli::config::LogFormat;

    pub(in crate::cli) fn show(value: &LogFormat) -> String {
        format!("{value:?}").to_lowercase()
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<LogFormat, String> {
        match text {
            "auto" => Ok(LogFormat::Auto),
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("is none of auto, text, json".to_owned()),
        }
    }
}

/// Byte counts: `4096`, `64KiB`, `8MiB`, `1GiB`.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "all kinds of value share one signature")]
pub(super) mod wide {
    const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

    pub(in crate::cli) fn show(value: &u64) -> String {
        super::Bytes(*value).to_string()
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<u64, String> {
        let unit = UNITS.iter().find_map(|(name, factor)| Some((text.strip_suffix(name)?, *factor)));
        let (digits, factor) = unit.unwrap_or((text, 1));
        let number: Option<u64> = digits.trim().parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(factor));
        bytes.ok_or_else(|| "is not a size like 4096, 64KiB, 8MiB or 1GiB".to_owned())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "all kinds of value share one signature")]
pub(super) mod size {
    pub(in crate::cli) fn show(value: &usize) -> String {
        super::wide::show(&(*value as u64))
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<usize, String> {
        super::wide::parse(text).and_then(|bytes| usize::try_from(bytes).map_err(|e| e.to_string()))
    }
}

/// Times: `200ms`, `30s`, `5m`.
pub(super) mod time {
    use std::time::Duration;

    pub(in crate::cli) fn show(value: &Duration) -> String {
        if value.subsec_millis() == 0 { format!("{}s", value.as_secs()) } else { format!("{}ms", value.as_millis()) }
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<Duration, String> {
        let millis = super::millis(text, &[("ms", 1), ("s", 1000), ("m", 60_000)]).filter(|millis| *millis > 0);
        millis.map(Duration::from_millis).ok_or_else(|| "is not a time like 200ms, 30s or 5m".to_owned())
    }
}

/// The milliseconds of a number with a unit.
pub(super) fn millis(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let number = |(name, factor): &(&str, u64)| Some((text.strip_suffix(name)?.parse::<u64>().ok()?, *factor));
    units.iter().find_map(number).and_then(|(number, factor)| number.checked_mul(factor))
}

/// A byte count in the largest unit that is exact.
#[derive(Clone, Copy)]
pub(super) struct Bytes(pub(super) u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.iter().find(|(_, shift)| self.0 >> shift > 0 && self.0.trailing_zeros() >= *shift) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => self.0.fmt(f),
        }
    }
}
