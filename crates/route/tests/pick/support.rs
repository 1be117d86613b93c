//! Clusters, clients and shares that the tests of this target use.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use route::{
    Balance, Cluster, ClusterSpec, ConnectFailure, Endpoint, EndpointSpec, PickContext, Snapshot,
    TableSpec,
};

pub(crate) const ALL: [Balance; 4] = [
    Balance::LeastRequest,
    Balance::Maglev,
    Balance::Random,
    Balance::RoundRobin,
];

#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do to count from"
)]
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn endpoint(number: u32) -> EndpointSpec {
    let ip = Ipv4Addr::from_bits(0x0a00_0000 + number);
    EndpointSpec::new(route::EndpointAddress::Ip((ip, 443).into()))
}

pub(crate) fn zoned(number: u32, zone: &str) -> EndpointSpec {
    EndpointSpec {
        zone: Some(zone.into()),
        ..endpoint(number)
    }
}

pub(crate) fn weighted(number: u32, weight: u32) -> EndpointSpec {
    EndpointSpec {
        weight,
        ..endpoint(number)
    }
}

pub(crate) fn cluster(
    balance: Balance,
    endpoints: impl IntoIterator<Item = EndpointSpec>,
) -> Arc<Cluster> {
    let endpoints = endpoints.into_iter().collect();
    built(ClusterSpec {
        balance,
        endpoints,
        ..ClusterSpec::new("c")
    })
}

pub(crate) fn built(spec: ClusterSpec) -> Arc<Cluster> {
    let spec = TableSpec {
        clusters: vec![spec],
        routes: vec![],
    };
    let snapshot = Snapshot::build(spec, 1, None).unwrap();
    Arc::clone(snapshot.cluster("c").unwrap())
}

/// One client after another, each with its own address and random number.
pub(crate) struct Clients {
    pub(crate) now: Instant,
    pub(crate) count: u32,
    pub(crate) zone: Option<&'static str>,
}

impl Clients {
    pub(crate) fn new() -> Self {
        Self {
            now: start(),
            count: 0,
            zone: None,
        }
    }

    pub(crate) fn pick<'c>(
        &mut self,
        cluster: &'c Cluster,
        tried: &[Arc<Endpoint>],
    ) -> Option<&'c Arc<Endpoint>> {
        self.count += 1;
        cluster.pick(&PickContext {
            source: client(self.count),
            zone: self.zone,
            now: self.now,
            // A Weyl sequence: every value is another one, and any seed does.
            random: u64::from(self.count).wrapping_mul(0xd134_2543_de82_ef95),
            tried,
        })
    }

    /// Returns how many of `count` connections each endpoint gets; `held` ones stay open.
    pub(crate) fn shares(&mut self, cluster: &Cluster, count: u32, held: bool) -> Vec<u32> {
        let mut shares = vec![0; cluster.endpoints().len()];
        for _ in 0..count {
            let picked = self.pick(cluster, &[]).unwrap();
            shares[place(cluster, picked)] += 1;
            if held {
                picked.begin();
            }
        }
        shares
    }
}

pub(crate) fn client(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc000_0000 + number).into()
}

pub(crate) fn place(cluster: &Cluster, endpoint: &Arc<Endpoint>) -> usize {
    cluster
        .endpoints()
        .iter()
        .position(|other| Arc::ptr_eq(other, endpoint))
        .unwrap()
}

pub(crate) fn eject(cluster: &Cluster, places: impl IntoIterator<Item = usize>, now: Instant) {
    for place in places {
        for _ in 0..5 {
            cluster.connect_failed(&cluster.endpoints()[place], ConnectFailure::Refused, now);
        }
    }
}

/// Asserts that each share is within `percent` of its expected part of the sum.
pub(crate) fn assert_shares(shares: &[u32], parts: &[u32], percent: u32) {
    let (sum, whole) = (shares.iter().sum::<u32>(), parts.iter().sum::<u32>());
    for (share, part) in shares.iter().zip(parts) {
        let wanted = sum * part / whole;
        assert!(
            share.abs_diff(wanted) * 100 <= wanted * percent,
            "{shares:?} for {parts:?}"
        );
    }
}
