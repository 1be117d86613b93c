//! That Maglev keeps clients where they are.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use route::{Balance, Cluster, PickContext};

use crate::support::*;

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
    for (count, max_moved_too) in [(4_u32, 5), (9, 5), (40, 5)] {
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
            moved * 100 <= stayed * max_moved_too,
            "{moved} of {stayed} with {count}"
        );
    }
}

#[test]
fn maglev_moves_only_ejected_clients() {
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
fn maglev_spreads_ejected_clients_by_weight() {
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
