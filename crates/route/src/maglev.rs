//! Consistent hashing of client addresses to endpoints.
//!
//! The table is Maglev's (Eisenbud et al., NSDI 2016, §3.4): each endpoint has its own permutation
//! of the slots and they claim free slots in turn, so all get their share and a change of endpoints
//! moves few clients but those of the endpoints that went. Clients whose endpoint may not be used
//! at present are spread by rendezvous hashing, which moves none of the others.
//!
//! The table has 1,021 slots for up to 10 endpoints, 8,191 for up to 81, and 65,521 above (primes;
//! at least 100 per endpoint up to 655 endpoints). Two bytes each, allocated at the first use. Few
//! sizes, as clients move when it changes.

use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::spec::EndpointAddress;

/// Upper bound of endpoints that a table can tell apart.
pub(crate) const MAX_ENDPOINTS: usize = u16::MAX as usize;

const SIZES: [usize; 3] = [1_021, 8_191, 65_521];

/// Slots per endpoint that keep shares within a few percent of each other.
const SLOTS_PER_ENDPOINT: usize = 100;

/// A table from hashes to endpoints.
#[derive(Debug)]
pub(crate) struct MaglevTable {
    slots: Box<[u16]>,
}

impl MaglevTable {
    /// Builds the table of up to [`MAX_ENDPOINTS`] endpoints; their order does not matter.
    pub(crate) fn new(endpoints: &[Arc<Endpoint>]) -> Self {
        let enough = |size: &&usize| **size >= endpoints.len() * SLOTS_PER_ENDPOINT;
        let size = *SIZES.iter().find(enough).unwrap_or(&SIZES[SIZES.len() - 1]);
        let greatest = endpoints
            .iter()
            .map(|endpoint| endpoint.weight())
            .max()
            .unwrap_or(0);
        let mut claims: Vec<Claim> = endpoints
            .iter()
            .zip(0_u16..)
            .map(|(endpoint, place)| Claim::new(endpoint, place, size))
            .collect();
        claims.sort_unstable_by_key(|claim| claim.order);
        let mut slots = vec![FREE; size];
        let mut free = size;
        while free > 0 && !claims.is_empty() {
            for claim in &mut claims {
                // An endpoint of half the greatest weight takes every second turn, and so on.
                claim.credit += u64::from(claim.weight);
                if claim.credit < u64::from(greatest) {
                    continue;
                }
                claim.credit -= u64::from(greatest);
                while slots[claim.next] != FREE {
                    claim.advance(size);
                }
                slots[claim.next] = claim.place;
                free -= 1;
                if free == 0 {
                    break;
                }
            }
        }
        Self {
            slots: slots.into(),
        }
    }

    /// Returns the index of a hash's endpoint.
    pub(crate) fn endpoint(&self, hash: u64) -> usize {
        let slot = (hash % self.slots.len() as u64) as usize;
        self.slots[slot].into()
    }
}

/// A slot that is not claimed yet; no endpoint has this index.
const FREE: u16 = u16::MAX;

/// An endpoint while the table is filled: its walk over the slots.
struct Claim {
    order: u64,
    place: u16,
    weight: u32,
    credit: u64,
    next: usize,
    skip: usize,
}

impl Claim {
    fn new(endpoint: &Endpoint, place: u16, size: usize) -> Self {
        let order = endpoint_hash(endpoint);
        let second = mix(order ^ GOLDEN_GAMMA);
        Self {
            order,
            place,
            weight: endpoint.weight(),
            credit: 0,
            next: (order % size as u64) as usize,
            skip: (second % (size as u64 - 1)) as usize + 1,
        }
    }

    fn advance(&mut self, size: usize) {
        self.next = (self.next + self.skip) % size;
    }
}

/// Returns the endpoint that a client's hash belongs to: each scores `-ln(u) / weight` with `u`
/// from the hash of both, and the least score wins (weighted rendezvous hashing).
pub(crate) fn rendezvous<'c>(
    source: u64,
    endpoints: impl Iterator<Item = &'c Arc<Endpoint>>,
) -> Option<&'c Arc<Endpoint>> {
    let score = |endpoint: &Endpoint| {
        let hash = mix(source ^ endpoint_hash(endpoint));
        // 53 bits are what a double holds; the half keeps 0 out.
        let unit = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -unit.ln() / f64::from(endpoint.weight())
    };
    endpoints
        .map(|endpoint| (score(endpoint), endpoint))
        .min_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, endpoint)| endpoint)
}

/// Returns the hash of a client's address; the same for an IPv4-mapped one and its IPv4 address.
pub(crate) fn source_hash(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(v4) => hash(&v4.octets(), 4),
        IpAddr::V6(v6) => hash(&v6.octets(), 6),
    }
}

fn endpoint_hash(endpoint: &Endpoint) -> u64 {
    match endpoint.address() {
        EndpointAddress::Host { name, port } => hash(name.as_bytes(), (*port).into()),
        EndpointAddress::Ip(addr) => mix(source_hash(addr.ip()) ^ u64::from(addr.port())),
    }
}

/// Hashes with FNV-1a (RFC 9923) and mixes the result: the same on every gateway, which the
/// standard library's hash is not.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    let folded = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64 ^ seed, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    mix(folded)
}

/// 2⁶⁴ divided by the golden section, odd: the step of SplitMix64.
pub(crate) const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit over all of them (SplitMix64's finaliser).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
