//! Writes wall-clock times the way logs and HTTP want them.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

/// Displays a time in UTC with milliseconds, as RFC 3339 section 5.6 spells it:
/// `2026-08-01T12:34:56.789Z`. Times that four digits of year cannot write are shown as the last one.
pub(crate) struct Rfc3339(pub(crate) SystemTime);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX);
        write!(f, "{time:.3}")
    }
}

/// Returns a time as the field `Date` of HTTP has it (RFC 9110 section 5.6.7):
/// `Sat, 01 Aug 2026 12:34:56 GMT`; `None` of one that four digits of year cannot write.
#[must_use]
pub fn http_date(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&time)
        .ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn known_instants() {
        let at = |millis| Rfc3339(UNIX_EPOCH + Duration::from_millis(millis)).to_string();
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_000_000_000_042), "2001-09-09T01:46:40.042Z");
        assert_eq!(at(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
        assert_eq!(at(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert!(at(253_402_300_800_000).starts_with("9999-12-30T"));
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Rfc3339(before).to_string(), "1969-12-31T23:59:59.000Z");

        let at = |seconds| http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        let date = at(951_782_400).unwrap();
        assert_eq!(date, "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(at(1 << 60), None);
        let year_0 = Duration::from_secs(62_200_000_000);
        assert_eq!(http_date(UNIX_EPOCH - year_0), None);
    }
}
