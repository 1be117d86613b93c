//! Durations as Go's flags write them: `1h0m0s`, `1.5s`, `100ms`, `0`, in any order of units
//! (`time.ParseDuration`). They are displayed as the shortest exact text.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use settings::HumanDuration;

/// A duration as Go writes it. Negative ones are rejected: no flag has a use for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GoDuration(pub(crate) Duration);

impl GoDuration {
    pub(crate) const fn get(self) -> Duration {
        self.0
    }
}

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    #[error("not a duration; write it like 10s, 1m30s, 1h or 100ms")]
    Malformed,
    #[error("must not be negative")]
    Negative,
    #[error("a unit is missing; write it like 10s, 1m30s, 1h or 100ms")]
    NoUnit,
    #[error("longer than 876000h")]
    TooLong,
}

const UNITS: [(&str, u128); 8] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    // MICRO SIGN and GREEK SMALL LETTER MU, as in Go.
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ns", 1),
];

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let text = text.strip_prefix('+').unwrap_or(text);
        if text == "0" || text == "-0" {
            return Ok(Self::default());
        }
        if text.starts_with('-') {
            return Err(DurationError::Negative);
        }
        let (mut rest, mut total) = (text, 0_u128);
        if rest.is_empty() {
            return Err(DurationError::Malformed);
        }
        while !rest.is_empty() {
            let (number, after) = split_where(rest, |c| !is_number(c));
            let (unit, after) = split_where(after, is_number);
            if unit.is_empty() {
                return Err(DurationError::NoUnit);
            }
            let unit = UNITS.iter().find(|(name, _)| *name == unit);
            let (_, nanos) = unit.ok_or(DurationError::Malformed)?;
            total += count(number, *nanos)?;
            if total > HumanDuration::MAX.as_nanos() {
                return Err(DurationError::TooLong);
            }
            rest = after;
        }
        let nanos = u32::try_from(total % 1_000_000_000).unwrap_or(0);
        let seconds = u64::try_from(total / 1_000_000_000).unwrap_or(u64::MAX);
        Ok(Self(Duration::new(seconds, nanos)))
    }
}

fn is_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

fn split_where(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

/// Nanoseconds of `number`, which may have a fraction, in a unit of `nanos`; rounded down.
fn count(number: &str, nanos: u128) -> Result<u128, DurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Malformed);
    }
    let digits = |text: &str| -> Result<u128, DurationError> {
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(DurationError::Malformed);
        }
        let number: u64 = match text {
            "" => 0,
            text => text.parse().map_err(|_| DurationError::TooLong)?,
        };
        Ok(u128::from(number))
    };
    // An hour has 3.6 * 10^12 nanoseconds: further digits are below one.
    let fraction = fraction.get(..fraction.len().min(18)).unwrap_or_default();
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    Ok(digits(whole)? * nanos + digits(fraction)? * nanos / scale)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HumanDuration(self.0).fmt(f)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Numbers with units, as Go writes them; `0` needs no unit.",
            "examples": ["10s", "1m30s", "1h", "100ms", "0s"],
            "oneOf": [
                { "type": "string", "pattern": "^(0|([0-9.]+(h|m|s|ms|us|µs|μs|ns))+)$" },
                { "const": 0 }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_like_go() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("1h0m0s", 3_600_000),
            ("1m30s", 90_000),
            ("30s1m", 90_000),
            ("1.5s", 1500),
            (".5s", 500),
            ("2.s", 2000),
            ("+100ms", 100),
            ("1000\u{b5}s", 1),
            ("0.000000000000000000000001h", 0),
        ] {
            let duration = GoDuration(Duration::from_millis(milliseconds));
            assert_eq!(text.parse(), Ok(duration), "{text}");
            assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }

    #[test]
    fn malformed_durations_are_rejected_with_reason() {
        for (text, error) in [
            ("", DurationError::Malformed),
            ("s", DurationError::Malformed),
            (".s", DurationError::Malformed),
            ("1.2.3s", DurationError::Malformed),
            ("5d", DurationError::Malformed),
            ("10", DurationError::NoUnit),
            ("1h30", DurationError::NoUnit),
            ("-1s", DurationError::Negative),
            ("876001h", DurationError::TooLong),
            ("99999999999999999999s", DurationError::TooLong),
        ] {
            assert_eq!(text.parse::<GoDuration>(), Err(error), "{text:?}");
        }
    }
}
