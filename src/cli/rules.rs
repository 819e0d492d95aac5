//! Values of the configuration that are rules: how long the sessions of a namespace are kept, and how often that is
//! looked at.

use std::time::Duration;

use super::kinds;
use crate::model::Namespace;
use crate::service::Retention;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// `default=30d,team-a=12h`.
pub(super) fn show(rules: &[Retention]) -> String {
    let rule = |rule: &Retention| format!("{}={}", rule.namespace, age::show(&rule.keep));
    rules.iter().map(rule).collect::<Vec<_>>().join(",")
}

/// Reads what [`show`] gives.
pub(super) fn parse(text: &str) -> Result<Vec<Retention>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let rule = |rule: &str| {
        let (namespace, keep) = rule.trim().split_once('=').ok_or("is not NAMESPACE=TIME,...")?;
        let namespace = Namespace::new(namespace).map_err(|e| e.to_string())?;
        Ok(Retention { namespace, keep: age::parse(keep)? })
    };
    let rules = text.split(',').map(rule).collect::<Result<Vec<_>, String>>()?;
    let mut names: Vec<_> = rules.iter().map(|rule| &rule.namespace).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("has two rules for {}", pair[0])),
        None => Ok(rules),
    }
}

/// Long times: `90m`, `12h`, `30d`.
pub(super) mod age {
    use super::{Duration, UNITS, kinds};

    pub(in crate::cli) fn show(age: &Duration) -> String {
        let millis = age.as_millis() as u64;
        let unit = UNITS.iter().rfind(|(_, factor)| millis.is_multiple_of(*factor) && millis >= *factor);
        unit.map_or_else(|| "0s".to_owned(), |(unit, factor)| format!("{}{unit}", millis / factor))
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<Duration, String> {
        let millis = kinds::millis(text, &UNITS);
        millis.map(Duration::from_millis).ok_or_else(|| "is not a time like 90m, 12h or 30d".to_owned())
    }
}

/// A time, or `never`.
#[allow(clippy::ref_option, reason = "all kinds of value share one signature")]
pub(super) mod repeat {
    use super::{Duration, age};

    pub(in crate::cli) fn show(every: &Option<Duration>) -> String {
        every.as_ref().map_or_else(|| "never".to_owned(), age::show)
    }

    pub(in crate::cli) fn parse(text: &str) -> Result<Option<Duration>, String> {
        match text {
            "never" => Ok(None),
            text => match age::parse(text)? {
                Duration::ZERO => Err("must not be zero; never turns it off".to_owned()),
                every => Ok(Some(every)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back_and_bad_ones_say_why() {
        let text = "default=30d,team-a=12h,x=90m";
        assert_eq!(show(&parse(text).unwrap()), text);
        assert_eq!(parse(text).unwrap()[0].keep, Duration::from_secs(30 * 86_400));
        for bad in ["default", "default=", "default=soon", "NO=1d", "a=1d,a=2d", "a=1d,"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(repeat::parse("never").unwrap(), None);
        assert_eq!(repeat::show(&repeat::parse("6h").unwrap()), "6h");
        assert!(repeat::parse("0s").is_err());
    }
}
