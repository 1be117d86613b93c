//! Which leases are valid at a moment: no clock and no requests.
//!
//! Valid is a lease whose last renewal, or acquisition where it was never renewed, lies less than
//! its duration back. One that lacks these is not.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Returns the moment at which a lease stops being valid; `None` when it never was.
pub(super) fn valid_until(lease: &Lease) -> Option<Timestamp> {
    let spec = lease.spec.as_ref()?;
    let since = spec.renew_time.as_ref().or(spec.acquire_time.as_ref())?;
    let lasts = i64::from(spec.lease_duration_seconds?);
    since.0.checked_add(SignedDuration::from_secs(lasts)).ok()
}

/// Returns whether a lease is valid at `now`.
pub(super) fn is_valid(lease: &Lease, now: Timestamp) -> bool {
    valid_until(lease).is_some_and(|until| now < until)
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

    use super::*;

    pub(in crate::lease) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    pub(in crate::lease) fn lease(
        name: &str,
        acquired: Option<i64>,
        renewed: Option<i64>,
        lasts: Option<i32>,
    ) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                acquire_time: acquired.map(|second| MicroTime(at(second))),
                renew_time: renewed.map(|second| MicroTime(at(second))),
                lease_duration_seconds: lasts,
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn lease_is_valid_for_its_duration() {
        for (acquired, renewed, lasts, second, expected) in [
            (Some(0), Some(100), Some(30), 129, true),
            (Some(0), Some(100), Some(30), 130, false),
            (Some(100), None, Some(30), 129, true),
            (Some(100), None, Some(30), 130, false),
            // Without times or duration, or until a moment that is none.
            (None, None, Some(30), 0, false),
            (Some(0), Some(0), None, 0, false),
            (Some(253_402_207_200), None, Some(i32::MAX), 0, false),
        ] {
            let lease = lease("a", acquired, renewed, lasts);
            assert_eq!(is_valid(&lease, at(second)), expected, "{lease:?}");
        }
        assert!(!is_valid(&Lease::default(), at(0)));
    }
}
