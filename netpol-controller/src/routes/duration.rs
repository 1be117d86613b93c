//! Durations as Istio's objects have them: `86400s`, `1h30m`, `500ms`.

use std::time::Duration;

/// Units with their length in seconds; what another begins with comes after it.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Reads a duration; `None` when it is none.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, tail) = rest.split_at(end);
        let (unit, seconds) = UNITS.iter().find(|(unit, _)| tail.starts_with(unit))?;
        let number: f64 = number.parse().ok()?;
        sum = sum.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &tail[unit.len()..];
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up() {
        for (text, millis) in [
            ("86400s", Some(86_400_000)),
            ("1.5s", Some(1_500)),
            ("1h30m", Some(5_400_000)),
            ("30ms", Some(30)),
            ("2m", Some(120_000)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("-5s", None),
            ("5 s", None),
            ("s", None),
            ("1e400s", None),
        ] {
            assert_eq!(parse(text), millis.map(Duration::from_millis), "{text}");
        }
    }
}
