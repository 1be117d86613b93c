//! How often one source may have tokens checked: a bucket of places that fills up again.
//!
//! A source is an IPv4 address or the /64 of an IPv6 one. A check that ends well gives its place
//! back, so that many good agents behind one address are not held up: what is limited is guessing,
//! and how many checks are under way. Time is handed in.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::bounded::Bounded;

/// The buckets of all sources.
#[derive(Debug)]
pub(super) struct Rates {
    /// When each source's bucket will be full again.
    full_at: Bounded<IpAddr, Instant>,
}

impl Rates {
    pub(super) fn new(sources: usize) -> Self {
        Self {
            full_at: Bounded::new(sources),
        }
    }

    /// Takes a place of `source`; tells whether there was one.
    pub(super) fn take(&mut self, source: IpAddr, now: Instant) -> bool {
        let source = serve::source_key(source);
        let full_at = self.full_at.get(&source).copied();
        let full_at = full_at.map_or(now, |at| at.max(now)) + PERIOD;
        if full_at.duration_since(now) > PERIOD * BURST {
            return false;
        }
        self.full_at.insert(source, full_at);
        true
    }

    /// Gives a place back that was taken.
    pub(super) fn give_back(&mut self, source: IpAddr, now: Instant) {
        let source = serve::source_key(source);
        let full_at = self.full_at.get(&source).copied();
        match full_at.and_then(|at| at.checked_sub(PERIOD)) {
            Some(full_at) if full_at > now => self.full_at.insert(source, full_at),
            Some(_) | None => drop(self.full_at.remove(&source)),
        }
    }
}

/// A place comes back after this long, 10 a second.
const PERIOD: Duration = Duration::from_millis(100);

/// Places of one source: what an agent with a bad token needs in minutes, and enough for the good
/// agents behind one address to have checked at a time.
const BURST: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rates: &mut Rates, source: &str, now: Instant) -> usize {
        let source = source.parse().unwrap();
        (0..1000).take_while(|_| rates.take(source, now)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn places_run_out_and_come_back_with_time() {
        let mut rates = Rates::new(10);
        let now = Instant::now();
        assert_eq!(taken(&mut rates, "192.0.2.1", now), 100);
        assert_eq!(taken(&mut rates, "192.0.2.2", now), 100, "another source");
        let later = now + Duration::from_secs(1);
        assert_eq!(taken(&mut rates, "192.0.2.1", later), 10);
        let much_later = now + Duration::from_secs(3600);
        assert_eq!(taken(&mut rates, "192.0.2.1", much_later), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_given_back_can_be_taken_again() {
        let mut rates = Rates::new(10);
        let (now, source) = (Instant::now(), "192.0.2.1".parse().unwrap());
        assert_eq!(taken(&mut rates, "192.0.2.1", now), 100);
        rates.give_back(source, now);
        assert_eq!(taken(&mut rates, "192.0.2.1", now), 1);
        for _ in 0..200 {
            rates.give_back(source, now);
        }
        assert_eq!(taken(&mut rates, "192.0.2.1", now), 100, "no more than all");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_of_one_network_share_a_bucket() {
        let mut rates = Rates::new(10);
        let now = Instant::now();
        assert_eq!(taken(&mut rates, "2001:db8::1", now), 100);
        assert_eq!(taken(&mut rates, "2001:db8::2", now), 0);
        assert_eq!(taken(&mut rates, "2001:db8:0:1::1", now), 100);
    }
}
