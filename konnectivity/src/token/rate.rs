//! How often an API server is asked for one source: a bucket of places that fills up again.
//!
//! Each tenant has its own buckets, by source: an IPv4 address or the /64 of an IPv6 one. All
//! agents may come from one, through a proxy, so guesses from there can use up no other
//! tenant's places. A review that ends well gives its place back: what is limited is guessing,
//! and how many reviews are under way. What keys or the cache can tell takes none. Time is handed
//! in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use knp_proto::TenantId;
use tokio::time::Instant;

use super::cache::{MAX_ENTRIES, make_space};

/// The buckets of all tenants and sources, at most [`MAX_ENTRIES`]: when each will be full
/// again. The one that is full first is evicted first.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<Payer, Instant>);

/// Whose bucket it is.
type Payer = (TenantId, IpAddr);

impl Rates {
    /// Takes a place of `source` with `tenant`; returns whether there was one.
    pub(crate) fn take(&mut self, tenant: &TenantId, source: IpAddr, now: Instant) -> bool {
        let payer = payer(tenant, source);
        let full_at = self.0.get(&payer).copied();
        let full_at = full_at.map_or(now, |at| at.max(now)) + PERIOD;
        if full_at.duration_since(now) > PERIOD * BURST {
            return false;
        }
        make_space(&mut self.0, &payer, MAX_ENTRIES, |at| *at);
        self.0.insert(payer, full_at);
        true
    }

    /// Gives a place back that was taken.
    pub(crate) fn give_back(&mut self, tenant: &TenantId, source: IpAddr, now: Instant) {
        let payer = payer(tenant, source);
        let full_at = self.0.get(&payer).copied();
        match full_at.and_then(|at| at.checked_sub(PERIOD)) {
            Some(full_at) if full_at > now => self.0.insert(payer, full_at),
            Some(_) | None => self.0.remove(&payer),
        };
    }
}

fn payer(tenant: &TenantId, source: IpAddr) -> Payer {
    (tenant.clone(), serve::source_key(source))
}

/// A place comes back after this long, 10 a second.
const PERIOD: Duration = Duration::from_millis(100);

/// Places of one source with one tenant: what an agent with a bad token needs in minutes, and
/// enough for the tenant's good agents behind one address to have reviewed at a time.
const BURST: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rates: &mut Rates, tenant: &str, source: &str, now: Instant) -> usize {
        let (tenant, source) = (TenantId::new(tenant), source.parse().unwrap());
        let taken = (0..1000).take_while(|_| rates.take(&tenant, source, now));
        taken.count()
    }

    #[test]
    fn slots_refill_per_tenant_and_network() {
        let mut rates = Rates::default();
        let now = Instant::now();
        for (tenant, source, second, places) in [
            ("a", "192.0.2.1", 0, 100),
            ("a", "192.0.2.2", 0, 100),
            ("b", "192.0.2.1", 0, 100),
            ("a", "192.0.2.1", 1, 10),
            ("a", "192.0.2.1", 3600, 100),
            ("a", "2001:db8::1", 0, 100),
            ("a", "2001:db8::2", 0, 0),
            ("a", "2001:db8:0:1::1", 0, 100),
        ] {
            let now = now + Duration::from_secs(second);
            let taken = taken(&mut rates, tenant, source, now);
            assert_eq!(taken, places, "{tenant} {source} {second}");
        }
    }

    #[test]
    fn a_place_given_back_can_be_taken_again() {
        let mut rates = Rates::default();
        let (now, source) = (Instant::now(), "192.0.2.1".parse().unwrap());
        // No more than all.
        for (given_back, places) in [(0, 100), (1, 1), (200, 100)] {
            for _ in 0..given_back {
                rates.give_back(&TenantId::new("a"), source, now);
            }
            assert_eq!(taken(&mut rates, "a", "192.0.2.1", now), places);
        }
    }
}
