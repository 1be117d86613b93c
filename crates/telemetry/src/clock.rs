//! Writes wall-clock times the way logs want them.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;

/// Displays a time in UTC with milliseconds, as RFC 3339 section 5.6 spells it:
/// `2026-08-01T12:34:56.789Z`. Times that four digits of year cannot write are shown as the last one.
pub(crate) struct Rfc3339(pub(crate) SystemTime);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX);
        write!(f, "{time:.3}")
    }
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
    }
}
