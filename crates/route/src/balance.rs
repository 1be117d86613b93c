//! Choosing one endpoint of a cluster.
//!
//! ```text
//! endpoints ─▶ not tried ─▶ best rank (state, priority, zone) ─▶ least-request | maglev | random | round-robin
//! ```
//!
//! Counts nothing and waits for nothing: what it reads may be changing, and any answer that was
//! right a moment ago will do.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::cluster::Cluster;
use crate::endpoint::{Endpoint, EndpointState};
use crate::maglev;
use crate::spec::Balance;

/// What a choice depends on besides the cluster.
#[derive(Clone, Copy, Debug)]
pub struct PickContext<'a> {
    /// The client's address, which [`Balance::Maglev`] goes by.
    pub source: IpAddr,
    /// The gateway's own zone.
    pub zone: Option<&'a str>,
    /// The time, for ejections.
    pub now: Instant,
    /// A random number, drawn anew for each call; all 64 bits are used.
    pub random: u64,
    /// Endpoints that this connection has tried, which are not picked again; compared by pointer.
    pub tried: &'a [Arc<Endpoint>],
}

impl Cluster {
    /// Chooses an endpoint for the next attempt; `None` when all of them have been tried.
    ///
    /// Among those not tried, in this order:
    /// 1. healthy before ejected before unhealthy ones: ejected ones are tried when nothing better
    ///    is left, unhealthy ones when nothing at all is;
    /// 2. the lowest priority number;
    /// 3. the own zone, where the cluster is zone-aware and the zone is known: all connections stay
    ///    in it while one endpoint there is usable, whatever its load (as Kubernetes'
    ///    `trafficDistribution: PreferSameZone`);
    /// 4. what [`Balance`] says.
    #[must_use]
    pub fn pick(&self, cx: &PickContext<'_>) -> Option<&Arc<Endpoint>> {
        let random = &mut SplitMix64(cx.random);
        let peers = Peers::find(self, cx)?;
        let endpoint = match self.settings().balance {
            Balance::LeastRequest => peers.lightest(random),
            Balance::Maglev => peers.by_source(),
            Balance::Random => peers.at_weight(random.below(peers.weight)),
            Balance::RoundRobin => peers.in_turn(self.turn()),
        };
        Some(endpoint)
    }

    /// Returns the endpoints of which [`pick`](Self::pick) would choose one if it were asked now:
    /// one where the choice is certain, several where it is drawn by lot, none when all have been
    /// tried. It changes nothing (the turn of [`Balance::RoundRobin`] is looked at, not taken), and
    /// `random` does not matter.
    #[must_use]
    pub fn candidates(&self, cx: &PickContext<'_>) -> Vec<&Arc<Endpoint>> {
        let Some(peers) = Peers::find(self, cx) else {
            return Vec::new();
        };
        match self.settings().balance {
            Balance::LeastRequest => peers.all_least_loaded(),
            Balance::Random => peers.iter().collect(),
            Balance::Maglev => vec![peers.by_source()],
            Balance::RoundRobin => vec![peers.in_turn(self.next_turn())],
        }
    }
}

/// How good an endpoint is; lower is better.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Rank {
    state: u8,
    priority: u32,
    other_zone: bool,
}

impl Rank {
    /// Returns the rank of an endpoint, or `None` when it was tried.
    fn of(endpoint: &Arc<Endpoint>, cluster: &Cluster, cx: &PickContext<'_>) -> Option<Self> {
        if cx.tried.iter().any(|tried| Arc::ptr_eq(tried, endpoint)) {
            return None;
        }
        let state = match endpoint.state(cx.now) {
            EndpointState::Healthy => 0,
            EndpointState::Ejected => 1,
            EndpointState::Unhealthy => 2,
        };
        let zone = cx.zone.filter(|_| cluster.settings().zone_aware);
        let other_zone = zone.is_some() && zone != endpoint.zone();
        Some(Self {
            state,
            priority: endpoint.priority(),
            other_zone,
        })
    }
}

/// The endpoints of the best rank there is.
///
/// They are looked up again rather than kept, which needs no memory; should all of them have
/// changed in between, the first one is the answer.
struct Peers<'c, 'p> {
    cluster: &'c Cluster,
    cx: &'p PickContext<'p>,
    rank: Rank,
    first: &'c Arc<Endpoint>,
    count: usize,
    /// Sum of their weights.
    weight: u64,
    equal_weights: bool,
}

impl<'c, 'p> Peers<'c, 'p> {
    fn find(cluster: &'c Cluster, cx: &'p PickContext<'p>) -> Option<Self> {
        let mut best: Option<Self> = None;
        for endpoint in cluster.endpoints() {
            let Some(rank) = Rank::of(endpoint, cluster, cx) else {
                continue;
            };
            let weight = u64::from(endpoint.weight());
            match &mut best {
                Some(peers) if peers.rank < rank => {}
                Some(peers) if peers.rank == rank => {
                    peers.count += 1;
                    peers.weight += weight;
                    peers.equal_weights &= peers.first.weight() == endpoint.weight();
                }
                Some(_) | None => {
                    let equal_weights = true;
                    best = Some(Self {
                        cluster,
                        cx,
                        rank,
                        first: endpoint,
                        count: 1,
                        weight,
                        equal_weights,
                    });
                }
            }
        }
        best
    }

    fn iter(&self) -> impl Iterator<Item = &'c Arc<Endpoint>> {
        let all = self.cluster.endpoints().iter();
        all.filter(|endpoint| Rank::of(endpoint, self.cluster, self.cx) == Some(self.rank))
    }

    /// Returns the endpoint with the least connections for its weight, `active / weight`; among
    /// equals one at random in proportion to weight, so that weights hold without load, too.
    fn lightest(&self, random: &mut SplitMix64) -> &'c Arc<Endpoint> {
        let mut least = self.first;
        let mut equals_weight = 0;
        for endpoint in self.iter() {
            let weight = u64::from(endpoint.weight());
            match load_order(endpoint, least) {
                std::cmp::Ordering::Less => {
                    least = endpoint;
                    equals_weight = weight;
                }
                std::cmp::Ordering::Equal => {
                    equals_weight += weight;
                    if random.below(equals_weight) < weight {
                        least = endpoint;
                    }
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        least
    }

    /// Returns all endpoints with the least connections for their weight.
    fn all_least_loaded(&self) -> Vec<&'c Arc<Endpoint>> {
        let least = { self.iter() }.min_by(|left, right| load_order(left, right));
        let least = least.unwrap_or(self.first);
        let equal = |endpoint: &&Arc<Endpoint>| load_order(endpoint, least).is_eq();
        self.iter().filter(equal).collect()
    }

    fn by_source(&self) -> &'c Arc<Endpoint> {
        let hash = maglev::source_hash(self.cx.source);
        let chosen = self
            .cluster
            .endpoints()
            .get(self.cluster.maglev().endpoint(hash));
        chosen
            .filter(|endpoint| Rank::of(endpoint, self.cluster, self.cx) == Some(self.rank))
            .or_else(|| maglev::rendezvous(hash, self.iter()))
            .unwrap_or(self.first)
    }

    /// Returns the one whose `turn` it is. With different weights the turns of one endpoint are spread over the
    /// round: steps of about the golden section of its length, coprime to it, reach each place of
    /// the round once.
    fn in_turn(&self, turn: u32) -> &'c Arc<Endpoint> {
        let turn = u64::from(turn);
        if self.equal_weights {
            let place = turn % self.count as u64;
            return self.at_weight(place * u64::from(self.first.weight()));
        }
        let place = u128::from(turn) * u128::from(golden_stride(self.weight));
        let place = u64::try_from(place % u128::from(self.weight)).unwrap_or(0);
        self.at_weight(place)
    }

    /// Returns the endpoint at a place of the line on which each is as long as its weight; `place`
    /// is less than the length of that line.
    fn at_weight(&self, place: u64) -> &'c Arc<Endpoint> {
        let mut left = place;
        let mut last = self.first;
        for endpoint in self.iter() {
            last = endpoint;
            match left.checked_sub(endpoint.weight().into()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        last
    }
}

/// Compares `active / weight`.
fn load_order(left: &Endpoint, right: &Endpoint) -> std::cmp::Ordering {
    let scaled = |of: &Endpoint, by: &Endpoint| u64::from(of.active()) * u64::from(by.weight());
    scaled(left, right).cmp(&scaled(right, left))
}

/// Returns the first number from the golden section of `total` on that is coprime to it.
fn golden_stride(total: u64) -> u64 {
    let section = u128::from(total) * 618 / 1000;
    let mut stride = u64::try_from(section).unwrap_or(1).max(1);
    while gcd(stride, total) != 1 {
        stride += 1;
    }
    stride
}

fn gcd(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// Draws further random numbers from one (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(maglev::GOLDEN_GAMMA);
        maglev::mix(self.0)
    }

    /// Returns a number less than `bound`, or 0 when that is 0; its bias is below 2⁻¹⁵ for any sum
    /// of weights that fits a cluster.
    fn below(&mut self, bound: u64) -> u64 {
        let scaled = u128::from(self.next()) * u128::from(bound);
        (scaled >> 64) as u64
    }
}
