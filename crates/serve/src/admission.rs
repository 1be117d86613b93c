//! Limits of connections: of the process, of its descriptors, and per client.
//!
//! The first is one atomic counter, lowered at start to what the descriptors carry. The last is a table
//! split over locks, touched twice in the life of a connection and only when a limit per client is set.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telemetry::lock;

/// Parts of the per-client table; a power of two far above the number of workers.
const SHARDS: usize = 64;

/// The limits of connections, shared by all workers.
#[derive(Debug)]
pub struct Admission {
    connections: AtomicU64,
    limit: u64,
    per_source: u32,
    hasher: RandomState,
    sources: Vec<Mutex<HashMap<IpAddr, u32>>>,
}

/// The right to one connection; returned when dropped.
#[derive(Debug)]
pub struct Permit(Arc<Admission>);

/// One of a client's connections; returned when dropped. Holds nothing without a limit.
#[derive(Debug)]
pub struct SourcePermit(Option<(Arc<Admission>, IpAddr)>);

impl Admission {
    /// Creates the limits; `per_source` 0 means none per client.
    pub fn new(limit: u64, per_source: u32) -> Arc<Self> {
        let shards = if per_source == 0 { 0 } else { SHARDS };
        Arc::new(Self {
            connections: AtomicU64::new(0),
            limit,
            per_source,
            hasher: RandomState::new(),
            sources: (0..shards).map(|_| Mutex::default()).collect(),
        })
    }

    /// Admits one connection; `None` at the limit.
    #[must_use]
    pub fn permit(self: &Arc<Self>) -> Option<Permit> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        if before >= self.limit {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit(Arc::clone(self)))
    }

    /// Counts one connection that is open already, whatever the limit.
    pub(crate) fn permit_beyond(self: &Arc<Self>) -> Permit {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Permit(Arc::clone(self))
    }

    /// Counts one connection of `client` that is open already, whatever its limit.
    pub(crate) fn source_permit_beyond(self: &Arc<Self>, client: IpAddr) -> SourcePermit {
        if self.per_source == 0 {
            return SourcePermit(None);
        }
        let key = source_key(client);
        *self.shard(key).entry(key).or_insert(0) += 1;
        SourcePermit(Some((Arc::clone(self), key)))
    }

    /// Admits one connection of `client`; `None` at its limit.
    #[must_use]
    pub fn source_permit(self: &Arc<Self>, client: IpAddr) -> Option<SourcePermit> {
        if self.per_source == 0 {
            return Some(SourcePermit(None));
        }
        let key = source_key(client);
        let mut shard = self.shard(key);
        let count = shard.entry(key).or_insert(0);
        if *count >= self.per_source {
            return None;
        }
        *count += 1;
        drop(shard);
        Some(SourcePermit(Some((Arc::clone(self), key))))
    }

    /// Returns the number of connections admitted now.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns how many there may be.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the number of connections that `client` has now; 0 where they are not limited, and
    /// therefore not counted.
    pub fn source_connections(&self, client: IpAddr) -> u32 {
        if self.per_source == 0 {
            return 0;
        }
        let key = source_key(client);
        self.shard(key).get(&key).copied().unwrap_or(0)
    }

    /// Returns how many one client may have; 0 for no limit.
    pub fn source_limit(&self) -> u32 {
        self.per_source
    }

    fn shard(&self, key: IpAddr) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        let index = self.hasher.hash_one(key) as usize % self.sources.len();
        lock(&self.sources[index])
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let Some((admission, key)) = self.0.take() else {
            return;
        };
        let mut shard = admission.shard(key);
        let left = shard.get_mut(&key).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            shard.remove(&key);
        }
    }
}

/// Returns what counts as one client: an IPv4 address, or the /64 of an IPv6 address, which is
/// what one subscriber commonly holds (RFC 6177).
pub fn source_key(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// Descriptors kept for everything that is not a connection: listeners, pipes, probes, files.
const RESERVED: u64 = 256;

/// Two sockets: the accepted one and the dialed one.
const PER_CONNECTION: u64 = 2;

/// Raises the soft limit of open descriptors to the hard one, and returns `wanted` connections
/// lowered to what it carries beside `pipes` pipes.
pub fn connection_limit(wanted: u64, pipes: u64) -> u64 {
    let descriptors = raise_descriptor_limit();
    let carried = connections_carried(descriptors, pipes);
    if carried < wanted {
        tracing::warn!(wanted, carried, descriptors, "limit of connections lowered");
    }
    wanted.min(carried)
}

fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Returns how many proxied connections `descriptors` carry beside `pipes` pipes.
fn connections_carried(descriptors: u64, pipes: u64) -> u64 {
    let spare = descriptors.saturating_sub(RESERVED.min(descriptors / 4));
    spare.saturating_sub(pipes.saturating_mul(2).min(spare / 2)) / PER_CONNECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_and_returned() {
        let admission = Admission::new(2, 0);
        let first = admission.permit().unwrap();
        let _second = admission.permit().unwrap();
        assert!(admission.permit().is_none());
        assert_eq!(admission.connections(), 2);
        drop(first);
        assert!(admission.permit().is_some());
    }

    fn assert_no_sources(admission: &Admission) {
        let mut shards = admission.sources.iter();
        assert!(shards.all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn source_is_an_ipv4_address_or_ipv6_network() {
        let admission = Admission::new(100, 1);
        let of = |ip: &str| admission.source_permit(ip.parse().unwrap());
        let held = of("10.0.0.1").unwrap();
        assert!(of("10.0.0.1").is_none());
        let count = |ip: &str| admission.source_connections(ip.parse().unwrap());
        assert_eq!((count("10.0.0.1"), count("10.0.0.2")), (1, 0));
        assert!(of("::ffff:10.0.0.1").is_none());
        assert!(of("10.0.0.2").is_some());
        let network = of("2001:db8:0:1::1").unwrap();
        assert!(of("2001:db8:0:1:ffff::2").is_none());
        assert!(of("2001:db8:0:2::1").is_some());
        drop((held, network));
        assert!(of("10.0.0.1").is_some());
        assert_no_sources(&admission);
    }

    #[test]
    fn counts_hold_across_threads() {
        let admission = Admission::new(u64::MAX, 1_000_000);
        let client: IpAddr = "192.0.2.1".parse().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _both = (admission.permit(), admission.source_permit(client));
                    }
                });
            }
        });
        assert_eq!(admission.connections(), 0);
        assert_no_sources(&admission);
    }

    #[test]
    fn small_limits_still_carry_connections() {
        assert_eq!(connections_carried(20_000, 128), (20_000 - 256 - 256) / 2);
        assert_eq!(connections_carried(64, 128), 12);
        assert_eq!(connections_carried(0, 0), 0);
    }
}
