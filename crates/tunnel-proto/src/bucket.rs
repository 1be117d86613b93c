//! Token buckets: one for a whole process, and a bounded table of them for sources.
//!
//! ```text
//! now, cost ──▶ TokenBucket ──▶ granted or not
//! now, address ──▶ SourceBuckets (hash of /24 or /56 under a secret) ──▶ granted or not
//! ```
//!
//! Nothing is ever evicted from the table of sources: networks that fall into one slot share it,
//! so its size is fixed and a flood of invented addresses cannot evict any history.
//! There is no fairness beyond that.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::wire::mix;

/// A token bucket: `rate` tokens a second, at most `burst` of them saved up.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Billionths of a token.
    level: u64,
    rate: u32,
    burst: u32,
    filled: Instant,
}

impl TokenBucket {
    /// Returns a full bucket.
    #[must_use]
    pub fn new(rate_per_second: u32, burst: u32, now: Instant) -> Self {
        Self {
            level: u64::from(burst) * NANO,
            rate: rate_per_second,
            burst,
            filled: now,
        }
    }

    /// Takes `cost` tokens when there are as many, and returns whether there were.
    ///
    /// A `now` before an earlier one counts as that earlier one.
    pub fn take(&mut self, now: Instant, cost: u32) -> bool {
        self.fill(now);
        let cost = u64::from(cost) * NANO;
        let enough = self.level >= cost;
        if enough {
            self.level -= cost;
        }
        enough
    }

    /// Returns the number of whole tokens there are now.
    pub fn available(&mut self, now: Instant) -> u32 {
        self.fill(now);
        u32::try_from(self.level / NANO).unwrap_or(u32::MAX)
    }

    fn fill(&mut self, now: Instant) {
        // What a minute brings fits: 60 e9 * 2^32 > 2^64, hence the saturating product.
        let passed = now.saturating_duration_since(self.filled).min(MAX_ELAPSED);
        let nanos = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let more = nanos.saturating_mul(u64::from(self.rate));
        self.level = self
            .level
            .saturating_add(more)
            .min(u64::from(self.burst) * NANO);
        self.filled = self.filled.max(now);
    }
}

const NANO: u64 = 1_000_000_000;
const MAX_ELAPSED: Duration = Duration::from_secs(60);

/// Token buckets for networks of sources: /24 of IPv4, /56 of IPv6.
///
/// Memory is `slots` times 32 bytes, from the start. Two networks whose hashes agree share a
/// bucket; which ones depends on `secret`.
#[derive(Clone, Debug)]
pub struct SourceBuckets {
    slots: Vec<TokenBucket>,
    secret: u64,
}

impl SourceBuckets {
    /// Returns full buckets, `slots` of them (at least one).
    #[must_use]
    pub fn new(rate_per_second: u32, burst: u32, slots: usize, secret: u64, now: Instant) -> Self {
        Self {
            slots: vec![TokenBucket::new(rate_per_second, burst, now); slots.max(1)],
            secret,
        }
    }

    /// Takes `cost` tokens from the bucket of `source`'s network when there are as many, and returns
    /// whether there were.
    pub fn take(&mut self, now: Instant, source: IpAddr, cost: u32) -> bool {
        let network = network(source);
        let count = u64::try_from(self.slots.len()).unwrap_or(1);
        let slot = usize::try_from(mix(self.secret, network) % count).unwrap_or(0);
        self.slots
            .get_mut(slot)
            .is_some_and(|bucket| bucket.take(now, cost))
    }
}

/// Returns the number of an address's network: the /24 of IPv4, the /56 of IPv6.
///
/// IPv4-mapped addresses count as the IPv4 addresses they stand for.
#[must_use]
pub fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits() >> 8),
        IpAddr::V6(address) => {
            let top = u64::try_from(address.to_bits() >> 64).unwrap_or(0) >> 8;
            top | 1 << 63 // apart from every IPv4 network
        }
    }
}
