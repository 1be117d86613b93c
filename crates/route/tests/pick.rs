//! Which endpoint of a cluster a connection gets.
//!
//! Random numbers are a fixed sequence, so shares are the same in every run.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use route::{
    Balance, Cluster, ClusterSpec, ConnectFailure, Endpoint, EndpointSpec, EndpointState,
    OutlierParams, PickContext, Snapshot, TableSpec,
};

const ALL: [Balance; 4] = [
    Balance::LeastRequest,
    Balance::Maglev,
    Balance::Random,
    Balance::RoundRobin,
];

#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do to count from"
)]
fn start() -> Instant {
    Instant::now()
}

fn endpoint(number: u32) -> EndpointSpec {
    let ip = Ipv4Addr::from_bits(0x0a00_0000 + number);
    EndpointSpec::new(route::EndpointAddress::Ip((ip, 443).into()))
}

fn zoned(number: u32, zone: &str) -> EndpointSpec {
    EndpointSpec {
        zone: Some(zone.to_owned()),
        ..endpoint(number)
    }
}

fn weighted(number: u32, weight: u32) -> EndpointSpec {
    EndpointSpec {
        weight,
        ..endpoint(number)
    }
}

fn cluster(balance: Balance, endpoints: impl IntoIterator<Item = EndpointSpec>) -> Arc<Cluster> {
    let endpoints = endpoints.into_iter().collect();
    built(ClusterSpec {
        balance,
        endpoints,
        ..ClusterSpec::new("c")
    })
}

fn built(spec: ClusterSpec) -> Arc<Cluster> {
    let spec = TableSpec {
        clusters: vec![spec],
        routes: vec![],
    };
    let snapshot = Snapshot::build(spec, 1, None).unwrap();
    Arc::clone(snapshot.cluster("c").unwrap())
}

/// One client after another, each with its own address and random number.
struct Clients {
    now: Instant,
    count: u32,
    zone: Option<&'static str>,
}

impl Clients {
    fn new() -> Self {
        Self {
            now: start(),
            count: 0,
            zone: None,
        }
    }

    fn pick<'c>(
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
    fn shares(&mut self, cluster: &Cluster, count: u32, held: bool) -> Vec<u32> {
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

fn client(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc000_0000 + number).into()
}

fn place(cluster: &Cluster, endpoint: &Arc<Endpoint>) -> usize {
    cluster
        .endpoints()
        .iter()
        .position(|other| Arc::ptr_eq(other, endpoint))
        .unwrap()
}

fn eject(cluster: &Cluster, places: impl IntoIterator<Item = usize>, now: Instant) {
    for place in places {
        for _ in 0..5 {
            cluster.connect_failed(&cluster.endpoints()[place], ConnectFailure::Refused, now);
        }
    }
}

/// Asserts that each share is within `percent` of its expected part of the sum.
fn assert_shares(shares: &[u32], parts: &[u32], percent: u32) {
    let (sum, whole) = (shares.iter().sum::<u32>(), parts.iter().sum::<u32>());
    for (share, part) in shares.iter().zip(parts) {
        let wanted = sum * part / whole;
        assert!(
            share.abs_diff(wanted) * 100 <= wanted * percent,
            "{shares:?} for {parts:?}"
        );
    }
}

#[test]
fn every_balance_spreads_evenly() {
    for balance in ALL {
        for count in [2, 5, 12, 40] {
            let cluster = cluster(balance, (0..count).map(endpoint));
            let shares = Clients::new().shares(&cluster, count * 1_000, false);
            assert_shares(&shares, &vec![1; count as usize], 15);
        }
    }
}

#[test]
fn every_balance_heeds_weights() {
    for balance in ALL {
        for count in [3_u32, 12, 40] {
            let weights: Vec<u32> = (0..count).map(|n| 1 + n % 3).collect();
            let specs = weights
                .iter()
                .zip(0..)
                .map(|(weight, n)| weighted(n, *weight));
            let cluster = cluster(balance, specs);
            let shares = Clients::new().shares(&cluster, count * 2_000, false);
            assert_shares(&shares, &weights, 20);
        }
    }
}

#[test]
fn least_request_evens_out_open_connections() {
    let few = cluster(
        Balance::LeastRequest,
        [weighted(0, 1), weighted(1, 2), weighted(2, 5)],
    );
    assert_eq!(Clients::new().shares(&few, 800, true), [100, 200, 500]);

    // A newcomer to a loaded cluster gets everything until it has caught up.
    let late = cluster(Balance::LeastRequest, (0..4).map(endpoint));
    for endpoint in &late.endpoints()[..3] {
        (0..50).for_each(|_| endpoint.begin());
    }
    assert_eq!(Clients::new().shares(&late, 50, true), [0, 0, 0, 50]);

    // Among equally loaded ones weights decide.
    let idle = cluster(
        Balance::LeastRequest,
        [endpoint(0), weighted(1, 1), weighted(2, 3)],
    );
    idle.endpoints()[0].begin();
    assert_shares(&Clients::new().shares(&idle, 4_000, false), &[0, 1, 3], 10);

    let many = cluster(Balance::LeastRequest, (0..100).map(endpoint));
    let shares = Clients::new().shares(&many, 10_000, true);
    assert!(
        shares.iter().all(|share| share.abs_diff(100) <= 5),
        "{shares:?}"
    );
}

#[test]
fn round_robin_takes_turns() {
    let equal = cluster(Balance::RoundRobin, (0..3).map(|n| weighted(n, 100)));
    let clients = &mut Clients::new();
    let turns: Vec<usize> = (0..7)
        .map(|_| place(&equal, clients.pick(&equal, &[]).unwrap()))
        .collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);

    let unequal = cluster(Balance::RoundRobin, [weighted(0, 300), weighted(1, 200)]);
    let turns: Vec<usize> = (0..500)
        .map(|_| place(&unequal, clients.pick(&unequal, &[]).unwrap()))
        .collect();
    assert_eq!(turns.iter().filter(|place| **place == 0).count(), 300);
    // Spread over the round, not in blocks.
    assert!(
        turns
            .windows(4)
            .all(|four| four.contains(&0) && four.contains(&1)),
        "{turns:?}"
    );
}

#[test]
fn the_lowest_priority_number_comes_first() {
    for balance in ALL {
        let specs = (0..20).map(|n| EndpointSpec {
            priority: 1 + n % 2,
            ..endpoint(n)
        });
        let cluster = cluster(balance, specs);
        let mut clients = Clients::new();
        let odd = |shares: &[u32]| shares.iter().skip(1).step_by(2).sum::<u32>();
        assert_eq!(odd(&clients.shares(&cluster, 500, false)), 0);
        // One usable endpoint of the lower number is enough to get everything.
        eject(&cluster, (2..20).step_by(2), clients.now);
        assert_eq!(clients.shares(&cluster, 500, false)[0], 500);
        eject(&cluster, [0], clients.now);
        assert_eq!(odd(&clients.shares(&cluster, 500, false)), 500);
    }
}

#[test]
fn the_own_zone_is_preferred_and_spills_over() {
    for balance in ALL {
        let specs = || (0..30).map(|n| zoned(n, ["a", "b", "c"][n as usize % 3]));
        let own = cluster(balance, specs());
        let mut clients = Clients {
            zone: Some("b"),
            ..Clients::new()
        };
        let of_zone = |shares: &[u32]| shares.iter().skip(1).step_by(3).sum::<u32>();
        let shares = clients.shares(&own, 5_000, false);
        assert_eq!(of_zone(&shares), 5_000);
        assert!(
            shares.iter().skip(1).step_by(3).all(|share| *share > 250),
            "{shares:?}"
        );
        eject(&own, (1..30).step_by(3), clients.now);
        assert_eq!(of_zone(&clients.shares(&own, 500, false)), 0);

        // Priority comes before zone.
        let lower = specs().map(|spec| EndpointSpec {
            priority: u32::from(spec.zone.as_deref() == Some("b")),
            ..spec
        });
        assert_eq!(
            of_zone(&clients.shares(&cluster(balance, lower), 500, false)),
            0
        );

        let elsewhere = Clients {
            zone: Some("d"),
            ..Clients::new()
        }
        .shares(&cluster(balance, specs()), 5_000, false);
        assert!(elsewhere.iter().all(|share| *share > 80), "{elsewhere:?}");
        let unaware = built(ClusterSpec {
            balance,
            zone_aware: false,
            endpoints: specs().collect(),
            ..ClusterSpec::new("c")
        });
        assert!(of_zone(&clients.shares(&unaware, 3_000, false)) < 1_500);
    }
}

#[test]
fn ejected_endpoints_are_left_out_until_all_are() {
    for balance in ALL {
        for count in [4_usize, 40] {
            let cluster = cluster(balance, (0..count as u32).map(endpoint));
            let mut clients = Clients::new();
            eject(&cluster, 1..count, clients.now);
            assert_eq!(clients.shares(&cluster, 200, false)[0], 200);
            eject(&cluster, [0], clients.now);
            let all = clients.shares(&cluster, 100 * count as u32, false);
            assert!(all.iter().all(|share| *share > 0), "{all:?}");
            clients.now += Duration::from_secs(30);
            let back = clients.shares(&cluster, 100 * count as u32, false);
            assert!(back.iter().all(|share| *share > 0), "{back:?}");
        }
    }
}

#[test]
fn unhealthy_endpoints_are_the_last_resort() {
    for balance in ALL {
        let specs = (0..3).map(|n| EndpointSpec {
            healthy: n == 0,
            ..endpoint(n)
        });
        let cluster = cluster(balance, specs);
        let mut clients = Clients::new();
        assert_eq!(clients.shares(&cluster, 100, false), [100, 0, 0]);
        eject(&cluster, [0], clients.now);
        assert_eq!(clients.shares(&cluster, 100, false), [100, 0, 0]);
        let tried = [Arc::clone(&cluster.endpoints()[0])];
        assert_ne!(place(&cluster, clients.pick(&cluster, &tried).unwrap()), 0);
    }
}

#[test]
fn each_attempt_gets_another_endpoint_until_none_is_left() {
    for balance in ALL {
        for count in [0_u32, 1, 2, 5, 30] {
            let cluster = cluster(balance, (0..count).map(endpoint));
            let mut clients = Clients::new();
            let mut tried: Vec<Arc<Endpoint>> = Vec::new();
            while let Some(picked) = clients.pick(&cluster, &tried) {
                assert!(!tried.iter().any(|tried| Arc::ptr_eq(tried, picked)));
                tried.push(Arc::clone(picked));
            }
            assert_eq!(tried.len(), count as usize);
        }
    }
}

#[test]
fn any_random_number_will_do() {
    for balance in ALL {
        for count in [1, 3, 12, 40] {
            let cluster = cluster(balance, (0..count).map(|n| weighted(n, u32::MAX - n)));
            for random in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63] {
                let cx = PickContext {
                    source: client(1),
                    zone: Some("a"),
                    now: start(),
                    random,
                    tried: &[],
                };
                assert!(cluster.pick(&cx).is_some());
            }
        }
    }
}

#[test]
fn failures_in_a_row_eject_for_longer_each_time() {
    let cluster = cluster(Balance::Random, [endpoint(0), endpoint(1)]);
    let endpoint = &cluster.endpoints()[0];
    let mut now = start();
    let fail = |now| cluster.connect_failed(endpoint, ConnectFailure::Timeout, now);
    (0..4).for_each(|_| fail(now));
    assert_eq!(endpoint.state(now), EndpointState::Healthy);
    cluster.connect_succeeded(endpoint);
    (0..4).for_each(|_| fail(now));
    assert_eq!(
        endpoint.state(now),
        EndpointState::Healthy,
        "a success ends the row"
    );
    let just_before = Duration::from_nanos(1);
    for times in (1..=10).chain([10, 10]) {
        fail(now);
        // What fails while it is ejected does not prolong that.
        fail(now + Duration::from_secs(1));
        let end = now + Duration::from_secs(30) * times;
        assert_eq!(
            endpoint.state(end - just_before),
            EndpointState::Ejected,
            "{times}"
        );
        assert_eq!(endpoint.state(end), EndpointState::Healthy, "{times}");
        now = end;
    }
    fail(now);
    cluster.connect_succeeded(endpoint);
    assert_eq!(
        endpoint.state(now),
        EndpointState::Healthy,
        "a success ends the ejection"
    );
    (0..5).for_each(|_| fail(now));
    assert_eq!(
        endpoint.state(now + Duration::from_secs(30)),
        EndpointState::Healthy
    );
    assert_eq!(
        cluster.connect_failures(ConnectFailure::Timeout),
        4 + 4 + 24 + 1 + 5
    );
    assert_eq!(cluster.connect_failures(ConnectFailure::Refused), 0);
}

#[test]
fn no_more_than_the_share_is_ejected() {
    let ejected = |percent, count: u32| {
        let cluster = built(ClusterSpec {
            endpoints: (0..count).map(endpoint).collect(),
            outlier: Some(OutlierParams {
                max_ejected_percent: percent,
                ..Default::default()
            }),
            ..ClusterSpec::new("c")
        });
        let now = start();
        eject(&cluster, 0..count as usize, now);
        let state = |endpoint: &Arc<Endpoint>| endpoint.state(now) == EndpointState::Ejected;
        cluster
            .endpoints()
            .iter()
            .filter(|endpoint| state(endpoint))
            .count()
    };
    let cases = [
        (100, 10, 10),
        (50, 10, 5),
        (59, 10, 5),
        (10, 9, 0),
        (34, 3, 1),
        (0, 5, 0),
    ];
    for (percent, count, wanted) in cases {
        assert_eq!(ejected(percent, count), wanted, "{percent} % of {count}");
    }
}

#[test]
fn without_outlier_detection_nothing_is_ejected() {
    let spec = ClusterSpec {
        outlier: None,
        endpoints: vec![endpoint(0)],
        ..ClusterSpec::new("c")
    };
    let cluster = built(spec);
    let now = start();
    eject(&cluster, [0], now);
    assert_eq!(cluster.endpoints()[0].state(now), EndpointState::Healthy);
    assert_eq!(cluster.connect_failures(ConnectFailure::Refused), 5);
}

/// Returns the endpoint's address of each of 5,000 clients.
fn mapping(cluster: &Cluster, now: Instant) -> BTreeMap<u32, String> {
    let pick = |number| {
        let (zone, tried) = (None, &[][..]);
        let cx = PickContext {
            source: client(number),
            zone,
            now,
            random: number.into(),
            tried,
        };
        cluster.pick(&cx).unwrap().address().to_string()
    };
    (0..5_000).map(|number| (number, pick(number))).collect()
}

#[test]
fn maglev_keeps_clients_where_they_are() {
    let now = start();
    for (count, most_moved_too) in [(4_u32, 5), (9, 5), (40, 5)] {
        let before = mapping(&cluster(Balance::Maglev, (0..count).map(endpoint)), now);
        let reversed = cluster(Balance::Maglev, (0..count).rev().map(endpoint));
        assert_eq!(before, mapping(&reversed, now), "the order does not matter");

        let gone = endpoint(1).address.to_string();
        let after = mapping(
            &cluster(
                Balance::Maglev,
                (0..count).filter(|n| *n != 1).map(endpoint),
            ),
            now,
        );
        let stayed = before
            .iter()
            .filter(|(_, address)| **address != gone)
            .count();
        let moved = before
            .iter()
            .filter(|(number, address)| **address != gone && after[number] != **address)
            .count();
        assert!(
            moved * 100 <= stayed * most_moved_too,
            "{moved} of {stayed} with {count}"
        );
    }
}

#[test]
fn maglev_moves_only_clients_of_ejected_endpoints() {
    let now = start();
    for count in [3, 40] {
        let cluster = cluster(Balance::Maglev, (0..count).map(endpoint));
        let before = mapping(&cluster, now);
        eject(&cluster, [0], now);
        let during = mapping(&cluster, now);
        let ejected = cluster.endpoints()[0].address().to_string();
        let mut shares: BTreeMap<&str, u32> = BTreeMap::new();
        for (number, address) in &before {
            if *address == ejected {
                assert_ne!(during[number], ejected);
                *shares.entry(&during[number]).or_default() += 1;
            } else {
                assert_eq!(during[number], *address);
            }
        }
        assert!(
            shares.len() as u32 > (count - 1) * 3 / 4,
            "spread over the others: {shares:?}"
        );
        assert_eq!(mapping(&cluster, now + Duration::from_secs(30)), before);
    }
}

#[test]
fn maglev_spreads_clients_of_ejected_endpoints_by_weight() {
    let specs = [
        weighted(0, 6),
        weighted(1, 1),
        weighted(2, 2),
        weighted(3, 3),
    ];
    let cluster = cluster(Balance::Maglev, specs);
    let mut clients = Clients::new();
    let before = clients.shares(&cluster, 24_000, false);
    eject(&cluster, [0], clients.now);
    // The same clients once more.
    clients.count = 0;
    let during = clients.shares(&cluster, 24_000, false);
    let more: Vec<u32> = during
        .iter()
        .zip(&before)
        .map(|(new, old)| new.saturating_sub(*old))
        .collect();
    assert_shares(&more, &[0, 1, 2, 3], 10);
}

#[test]
fn maglev_knows_a_client_in_either_notation() {
    let cluster = cluster(Balance::Maglev, (0..20).map(endpoint));
    let pick = |source: IpAddr| {
        let (zone, tried) = (None, &[][..]);
        let cx = PickContext {
            source,
            zone,
            now: start(),
            random: 0,
            tried,
        };
        place(&cluster, cluster.pick(&cx).unwrap())
    };
    for number in 0..100 {
        let v4 = Ipv4Addr::from_bits(number * 7_919);
        assert_eq!(pick(v4.into()), pick(v4.to_ipv6_mapped().into()));
    }
}

#[test]
fn threads_do_not_eject_more_than_the_share_together() {
    let cluster = built(ClusterSpec {
        endpoints: (0..10).map(endpoint).collect(),
        outlier: Some(OutlierParams {
            max_ejected_percent: 50,
            ..Default::default()
        }),
        ..ClusterSpec::new("c")
    });
    let now = start();
    let ejected = || {
        let all = cluster.endpoints().iter();
        all.filter(|endpoint| endpoint.state(now) == EndpointState::Ejected)
            .count()
    };
    for _ in 0..200 {
        let together = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (cluster, together) = (&cluster, &together);
                scope.spawn(move || {
                    together.wait();
                    eject(cluster, (0..10).map(|place| (place + 3 * thread) % 10), now);
                });
            }
        });
        assert!((1..=5).contains(&ejected()), "{}", ejected());
        // Whom a thread left to another one is ejected by its next failure.
        eject(&cluster, 0..10, now);
        assert_eq!(ejected(), 5);
        cluster
            .endpoints()
            .iter()
            .for_each(|endpoint| cluster.connect_succeeded(endpoint));
    }
}

#[test]
fn picking_copes_with_states_that_change_meanwhile() {
    let now = start();
    for balance in ALL {
        for count in [3_usize, 40] {
            let cluster = cluster(balance, (0..count as u32).map(endpoint));
            let done = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        eject(&cluster, 0..count, now);
                        let all = cluster.endpoints().iter();
                        all.for_each(|endpoint| cluster.connect_succeeded(endpoint));
                    }
                });
                let mut clients = Clients {
                    now,
                    ..Clients::new()
                };
                let tried = [Arc::clone(&cluster.endpoints()[1])];
                for _ in 0..2_000 {
                    let picked = clients
                        .pick(&cluster, &tried)
                        .map(|picked| place(&cluster, picked));
                    let fine = picked.is_some_and(|place| place != 1);
                    // Before any assertion, or the other thread would never end.
                    if !fine {
                        done.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                    assert!(fine, "{picked:?}");
                }
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
        }
    }
}
