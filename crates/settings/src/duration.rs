//! Durations as people write them: `10s`, `5m`, `1h30m`, `250ms`.
//!
//! A unit is required: `10` could be seconds or milliseconds, and every guess is an outage.
//! The texts are those of Go's `time.Duration` without fractions, which Gardener's operators know;
//! [`GoDuration`] is the whole of it, for flags and objects that Go programs read as well.

mod go;

use std::{fmt, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::go::{GoDuration, GoDurationError};
use self::go::{UNITS, unit_nanos};
use crate::text::{self, ParseError, shown};

/// A duration written as whole numbers with units, largest unit first: `h`, `m`, `s`, `ms`, `us`,
/// `ns`. `0` needs no unit. At most [`HumanDuration::MAX`].
///
/// ```
/// use settings::HumanDuration;
/// let duration: HumanDuration = "1h30m".parse().unwrap();
/// assert_eq!(duration.0.as_secs(), 5400);
/// assert_eq!(duration.to_string(), "90m");
/// assert!("10".parse::<HumanDuration>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(
    transparent,
    rename = "Duration",
    description = "Whole numbers with units, largest unit first; `0` needs no unit.",
    extend("examples" = ["10s", "5m", "1h30m", "250ms", "0s"], "oneOf" = [
        { "type": "string", "pattern": "^(0|([0-9]+(h|m|s|ms|us|ns))+)$" },
        { "const": 0 }
    ])
)]
pub struct HumanDuration(#[schemars(with = "serde_json::Value")] pub Duration);

impl HumanDuration {
    /// 100 years of 365 days: far beyond use, and safe to add to any clock.
    pub const MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// `seconds` as a duration.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// `milliseconds` as a duration.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The duration, or nothing for zero, which switches many settings off.
    pub fn non_zero(self) -> Option<Duration> {
        (!self.0.is_zero()).then_some(self.0)
    }
}

impl FromStr for HumanDuration {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refused = |why: String| Err(ParseError(why));
        let shown = shown(text);
        let malformed =
            format!("`{shown}` is not a duration; write it like `10s`, `5m`, `1h30m` or `250ms`");
        match text {
            "" => return refused("a duration such as `10s` is needed, found empty text".into()),
            "0" => return Ok(Self::default()),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                return refused(format!(
                    "a duration needs a unit: `{shown}s`, `{shown}ms`, …"
                ));
            }
            _ if !text.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                return refused(malformed);
            }
            _ => {}
        }
        let duration = match text.parse() {
            Ok(GoDuration(duration)) => duration,
            Err(GoDurationError::TooLong) => {
                return refused(format!("`{shown}` is longer than 876000h"));
            }
            Err(_) => return refused(malformed),
        };
        let units = text.split(|c: char| c.is_ascii_digit());
        let sizes = units.filter(|unit| !unit.is_empty()).map(unit_nanos);
        if sizes.is_sorted_by(|larger, smaller| larger > smaller) {
            return Ok(Self(duration));
        }
        refused(format!(
            "the units of `{shown}` must go from large to small, each once: h, m, s, ms, us, ns"
        ))
    }
}

/// The shortest exact text; of two equally short ones that with a single unit.
impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let single = UNITS
            .iter()
            .find(|(_, unit)| nanos.is_multiple_of(*unit))
            .map(|(name, unit)| format!("{}{name}", nanos / unit))
            .unwrap_or_default();
        let (mut several, mut rest) = (String::new(), nanos);
        for (name, unit) in UNITS {
            if rest >= unit {
                several.push_str(&format!("{}{name}", rest / unit));
                rest %= unit;
            }
        }
        f.write_str(if several.len() < single.len() {
            &several
        } else {
            &single
        })
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize_scalar(deserializer, "a duration such as `10s`")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Duration, String> {
        text.parse::<HumanDuration>()
            .map(HumanDuration::get)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn texts_are_read_and_shown_as_the_shortest() {
        for (text, seconds, shown) in [
            ("10s", 10.0, "10s"),
            ("5m", 300.0, "5m"),
            ("1h30m", 5400.0, "90m"),
            ("250ms", 0.25, "250ms"),
            ("0s", 0.0, "0s"),
            ("0", 0.0, "0s"),
            ("1m0s", 60.0, "1m"),
            ("55s", 55.0, "55s"),
            ("3600s", 3600.0, "1h"),
            ("90s", 90.0, "90s"),
            ("3600001ms", 3600.001, "1h1ms"),
            ("876000h", HumanDuration::MAX.as_secs_f64(), "876000h"),
        ] {
            assert_eq!(parsed(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn malformed_durations_are_refused_with_reason() {
        let order = "must go from large to small, each once: h, m, s, ms, us, ns";
        let many = format!("{}s", "9".repeat(1000));
        let shown = "9".repeat(60);
        for (text, why) in [
            ("10", "a duration needs a unit: `10s`, `10ms`, …"),
            ("", "a duration such as `10s` is needed, found empty text"),
            ("30m1h", &format!("the units of `30m1h` {order}")),
            ("1s1s", &format!("the units of `1s1s` {order}")),
            ("876000h1ns", "`876000h1ns` is longer than 876000h"),
            (&many, &format!("`{shown}` is longer than 876000h")),
        ] {
            assert_eq!(parsed(text), Err(why.to_owned()));
        }
        for text in ["10 s", "-1s", "1.5h", "s", "5d", "1h5"] {
            let why = "is not a duration; write it like `10s`, `5m`, `1h30m` or `250ms`";
            assert_eq!(parsed(text), Err(format!("`{text}` {why}")));
        }
    }

    proptest! {
        #[test]
        fn shown_and_read_again_is_the_same(seconds in 0..=HumanDuration::MAX.as_secs() - 1, nanos in 0..1_000_000_000_u32) {
            let duration = HumanDuration(Duration::new(seconds, nanos));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn round_values_survive_too(count in 0..50_000_u64, unit in 0..UNITS.len()) {
            let nanos = u128::from(count) * UNITS[unit].1;
            let text = format!("{count}{}", UNITS[unit].0);
            let duration: HumanDuration = text.parse().unwrap();
            prop_assert_eq!(duration.0.as_nanos(), nanos);
            prop_assert!(duration.to_string().len() <= text.len().max(2));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[0-9hmsun ]{0,24}|.{0,24}") {
            let _: Result<HumanDuration, ParseError> = text.parse();
        }
    }
}
