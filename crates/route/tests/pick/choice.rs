//! Balances, priorities, zones, states and attempts.

use std::sync::Arc;
use std::time::Duration;

use route::{Balance, ClusterSpec, Endpoint, EndpointSpec, PickContext};

use crate::support::*;

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
fn request_balance_evens_out_connections() {
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
fn each_attempt_gets_another_endpoint() {
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
