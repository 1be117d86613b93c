//! Which leases are valid at a moment, and how many: no clock and no requests.
//!
//! Valid is a lease whose last renewal, or acquisition where it was never renewed, lies less than
//! its duration back. One that lacks these is not.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Returns the moment at which a lease stops being valid; `None` when it never was.
#[must_use]
pub fn valid_until(lease: &Lease) -> Option<Timestamp> {
    let spec = lease.spec.as_ref()?;
    let since = spec.renew_time.as_ref().or(spec.acquire_time.as_ref())?;
    let lasts = i64::from(spec.lease_duration_seconds?);
    since.0.checked_add(SignedDuration::from_secs(lasts)).ok()
}

/// Returns whether a lease is valid at `now`.
#[must_use]
pub fn is_valid(lease: &Lease, now: Timestamp) -> bool {
    valid_until(lease).is_some_and(|until| now < until)
}

/// The leases an agent has seen, by name.
#[derive(Debug, Default)]
pub(super) struct Tally {
    seen: BTreeMap<String, Timestamp>,
    /// A new list that is being read, until it is complete.
    listing: Option<BTreeMap<String, Timestamp>>,
}

impl Tally {
    /// Begins a list that will replace what is known.
    pub(super) fn begin(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// Adds one lease of the list that has begun.
    pub(super) fn listed(&mut self, lease: &Lease) {
        put(self.listing.get_or_insert_default(), lease);
    }

    /// Ends the list.
    pub(super) fn done(&mut self) {
        if let Some(listing) = self.listing.take() {
            self.seen = listing;
        }
    }

    /// Applies a lease that is new or has changed.
    pub(super) fn apply(&mut self, lease: &Lease) {
        put(&mut self.seen, lease);
    }

    /// Forgets a lease that was deleted.
    pub(super) fn remove(&mut self, lease: &Lease) {
        if let Some(name) = &lease.metadata.name {
            self.seen.remove(name);
        }
    }

    /// Returns how many are valid at `now`: at least one, since the agent has found a server.
    pub(super) fn count(&self, now: Timestamp) -> u32 {
        let valid = self.seen.values().filter(|until| now < **until).count();
        u32::try_from(valid).unwrap_or(u32::MAX).max(1)
    }

    /// Returns how long after `now` the next one stops being valid.
    pub(super) fn next_end(&self, now: Timestamp) -> Option<SignedDuration> {
        let next = self.seen.values().filter(|until| now < **until).min()?;
        Some(next.duration_since(now))
    }
}

fn put(leases: &mut BTreeMap<String, Timestamp>, lease: &Lease) {
    let Some(name) = &lease.metadata.name else {
        return;
    };
    match valid_until(lease) {
        Some(until) if leases.len() < MAX_LEASES || leases.contains_key(name) => {
            leases.insert(name.clone(), until);
        }
        Some(_) => {}
        None => {
            leases.remove(name);
        }
    }
}

/// Far more servers than an agent can have streams to.
const MAX_LEASES: usize = 10_000;

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lease(name: &str, acquired: Option<i64>, renewed: Option<i64>, lasts: Option<i32>) -> Lease {
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
    fn a_lease_is_valid_for_its_duration_after_its_renewal() {
        let renewed = lease("a", Some(0), Some(100), Some(30));
        assert!(is_valid(&renewed, at(129)));
        assert!(!is_valid(&renewed, at(130)));
    }

    #[test]
    fn a_lease_that_was_never_renewed_counts_from_its_acquisition() {
        let acquired = lease("a", Some(100), None, Some(30));
        assert!(is_valid(&acquired, at(129)));
        assert!(!is_valid(&acquired, at(130)));
    }

    #[test]
    fn a_lease_without_times_or_duration_is_not_valid() {
        assert!(!is_valid(&lease("a", None, None, Some(30)), at(0)));
        assert!(!is_valid(&lease("a", Some(0), Some(0), None), at(0)));
        assert!(!is_valid(&Lease::default(), at(0)));
        let endless = lease("a", Some(253_402_207_200), None, Some(i32::MAX));
        assert!(!is_valid(&endless, at(0)), "no such moment");
    }

    #[test]
    fn the_count_falls_as_time_passes_and_never_below_one() {
        let mut tally = Tally::default();
        tally.apply(&lease("a", None, Some(100), Some(30)));
        tally.apply(&lease("b", None, Some(110), Some(30)));
        assert_eq!(tally.count(at(115)), 2);
        assert_eq!(tally.next_end(at(115)), Some(SignedDuration::from_secs(15)));
        assert_eq!(tally.count(at(130)), 1);
        assert_eq!(tally.count(at(999)), 1);
        assert_eq!(tally.next_end(at(999)), None);
    }

    #[test]
    fn a_list_replaces_what_was_known_only_once_it_is_complete() {
        let mut tally = Tally::default();
        for name in ["a", "b", "c"] {
            tally.apply(&lease(name, None, Some(100), Some(30)));
        }
        tally.begin();
        tally.listed(&lease("d", None, Some(100), Some(30)));
        tally.listed(&lease("e", None, Some(100), Some(30)));
        assert_eq!(tally.count(at(101)), 3);
        tally.done();
        assert_eq!(tally.count(at(101)), 2);
        tally.remove(&lease("d", None, None, None));
        tally.apply(&lease("f", None, Some(100), Some(30)));
        tally.apply(&lease("g", None, Some(100), Some(30)));
        assert_eq!(tally.count(at(101)), 3);
    }
}
