//! Durations as Go writes them (`time.ParseDuration`): `1h0m0s`, `1.5s`, `100ms`, `0`, in any order
//! of units.

use std::{fmt, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::HumanDuration;

/// A duration as Go writes it, at most [`HumanDuration::MAX`] and not negative. Displayed as the
/// shortest exact text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(
    transparent,
    rename = "Duration",
    description = "Numbers with units, as Go writes them; `0` needs no unit.",
    extend("examples" = ["10s", "1m30s", "1h", "100ms", "0s"], "oneOf" = [
        { "type": "string", "pattern": "^(0|([0-9.]+(h|m|s|ms|us|µs|μs|ns))+)$" },
        { "const": 0 }
    ])
)]
pub struct GoDuration(#[schemars(with = "serde_json::Value")] pub Duration);

impl GoDuration {
    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoDurationError {
    /// Not numbers with units.
    #[error("not a duration; write it like 10s, 1m30s, 1h or 100ms")]
    Malformed,
    /// Below zero.
    #[error("must not be negative")]
    Negative,
    /// A number without a unit.
    #[error("a unit is missing; write it like 10s, 1m30s, 1h or 100ms")]
    NoUnit,
    /// Beyond [`HumanDuration::MAX`].
    #[error("longer than 876000h")]
    TooLong,
}

/// Units with their nanoseconds, large to small.
pub(super) const UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Returns the nanoseconds of a unit.
pub(super) fn unit_nanos(unit: &str) -> Option<u128> {
    // MICRO SIGN and GREEK SMALL LETTER MU, as in Go.
    let unit = if matches!(unit, "\u{b5}s" | "\u{3bc}s") {
        "us"
    } else {
        unit
    };
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    known.map(|(_, nanos)| *nanos)
}

impl FromStr for GoDuration {
    type Err = GoDurationError;

    fn from_str(text: &str) -> Result<Self, GoDurationError> {
        let text = text.strip_prefix('+').unwrap_or(text);
        match text {
            "" => return Err(GoDurationError::Malformed),
            "0" | "-0" => return Ok(Self::default()),
            _ if text.starts_with('-') => return Err(GoDurationError::Negative),
            _ => {}
        }
        let (mut rest, mut total) = (text, 0_u128);
        while !rest.is_empty() {
            let (number, after) = split_where(rest, |c| !is_number(c));
            let (unit, after) = split_where(after, is_number);
            if unit.is_empty() {
                return Err(GoDurationError::NoUnit);
            }
            let nanos = unit_nanos(unit).ok_or(GoDurationError::Malformed)?;
            total += count(number, nanos)?;
            if total > HumanDuration::MAX.as_nanos() {
                return Err(GoDurationError::TooLong);
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
fn count(number: &str, nanos: u128) -> Result<u128, GoDurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(GoDurationError::Malformed);
    }
    let digits = |text: &str| -> Result<u128, GoDurationError> {
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(GoDurationError::Malformed);
        }
        let number: u64 = match text {
            "" => 0,
            text => text.parse().map_err(|_| GoDurationError::TooLong)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_like_go() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("1h0m0s", 3_600_000),
            ("86400s", 86_400_000),
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
    fn malformed_durations_are_refused_with_reason() {
        for (text, error) in [
            ("", GoDurationError::Malformed),
            ("s", GoDurationError::Malformed),
            (".s", GoDurationError::Malformed),
            ("1.2.3s", GoDurationError::Malformed),
            ("5d", GoDurationError::Malformed),
            ("5 s", GoDurationError::Malformed),
            ("1e400s", GoDurationError::Malformed),
            ("10", GoDurationError::NoUnit),
            ("1h30", GoDurationError::NoUnit),
            ("-1s", GoDurationError::Negative),
            ("876001h", GoDurationError::TooLong),
            ("99999999999999999999s", GoDurationError::TooLong),
        ] {
            assert_eq!(text.parse::<GoDuration>(), Err(error), "{text:?}");
        }
    }
}
