//! Writes wall-clock times the way logs want them.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends `time` in UTC with milliseconds, as RFC 3339 section 5.6 spells it:
/// `2026-08-01T12:34:56.789Z`. Times outside the years 1970 to 9999 are moved to the nearer end.
pub(crate) fn write_rfc3339(out: &mut String, time: SystemTime) -> fmt::Result {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = match since_epoch.as_secs() {
        seconds if seconds > LAST_SECOND => (LAST_SECOND, 999),
        seconds => (seconds, since_epoch.subsec_millis()),
    };
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    write!(
        out,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"
    )
}

/// 9999-12-31T23:59:59Z, the last second that four digits of year can write.
const LAST_SECOND: u64 = 253_402_300_799;

/// Turns days since 1970-01-01 into year, month and day of the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year, and in eras of 400
/// years, after which the calendar repeats.
fn civil(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_TO_EPOCH: u64 = 719_468; // from 0000-03-01 to 1970-01-01
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days_since_epoch + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> String {
        let mut out = String::new();
        write_rfc3339(&mut out, UNIX_EPOCH + Duration::from_millis(millis)).unwrap();
        out
    }

    #[test]
    fn known_instants() {
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_000_000_000_042), "2001-09-09T01:46:40.042Z");
        assert_eq!(at(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
        assert_eq!(at(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert_eq!(at(LAST_SECOND * 1000), "9999-12-31T23:59:59.000Z");
    }

    #[test]
    fn out_of_range_is_moved_to_the_nearer_end() {
        assert_eq!(at((LAST_SECOND + 1) * 1000), "9999-12-31T23:59:59.999Z");
        let mut out = String::new();
        write_rfc3339(&mut out, UNIX_EPOCH - Duration::from_secs(1)).unwrap();
        assert_eq!(out, "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn every_day_of_an_era_follows_the_one_before() {
        let mut previous = civil(0);
        for day in 1..146_097 {
            let next = civil(day);
            let (year, month, dom) = previous;
            let same_month = next == (year, month, dom + 1);
            let next_month = next == (year, month + 1, 1) && dom >= 28;
            let next_year = next == (year + 1, 1, 1) && (month, dom) == (12, 31);
            assert!(
                same_month || next_month || next_year,
                "{previous:?} then {next:?}"
            );
            previous = next;
        }
        assert_eq!(civil(146_097), (2370, 1, 1));
    }
}
