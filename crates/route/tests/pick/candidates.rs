//! What a choice would be, told without choosing.

use std::collections::BTreeSet;

use route::{Balance, ConnectFailure, PickContext};

use crate::support::*;

fn context(number: u32) -> PickContext<'static> {
    PickContext {
        source: client(number),
        zone: None,
        now: start(),
        random: u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        tried: &[],
    }
}

/// Also says that looking does not take a turn: the choice after it is the one it told.
#[test]
fn picked_endpoint_was_a_candidate() {
    for balance in ALL {
        for count in [1_u32, 3, 12, 40] {
            let specs = (0..count).map(|n| weighted(n, 1 + n % 3));
            let cluster = cluster(balance, specs);
            cluster.endpoints()[0].begin();
            for number in 0..200 {
                let cx = context(number);
                let told: Vec<_> = cluster.candidates(&cx).into_iter().cloned().collect();
                let _ = cluster.candidates(&cx);
                let picked = cluster.pick(&cx).unwrap();
                let among = told.iter().any(|told| std::sync::Arc::ptr_eq(told, picked));
                assert!(among, "{balance:?} of {count}, client {number}");
                if matches!(balance, Balance::Maglev | Balance::RoundRobin) {
                    assert_eq!(told.len(), 1, "{balance:?} is certain");
                }
            }
        }
    }
}

#[test]
fn those_of_least_request_are_the_least_loaded() {
    let cluster = cluster(Balance::LeastRequest, (0..4).map(endpoint));
    let places = || -> BTreeSet<String> {
        let told = cluster.candidates(&context(1));
        told.iter().map(|told| told.address().to_string()).collect()
    };
    assert_eq!(places().len(), 4);
    cluster.endpoints()[0].begin();
    cluster.endpoints()[2].begin();
    let expected = ["10.0.0.1:443", "10.0.0.3:443"].map(str::to_owned);
    assert_eq!(places(), BTreeSet::from(expected));
}

#[test]
fn lookup_ejects_none_and_reports_ejection_time() {
    let cluster = cluster(Balance::Random, (0..2).map(endpoint));
    let (first, second) = (&cluster.endpoints()[0], &cluster.endpoints()[1]);
    let now = start();
    for _ in 0..5 {
        cluster.connect_failed(first, ConnectFailure::Refused, now);
    }
    assert_eq!((first.failures(), second.failures()), (5, 0));
    assert_eq!(
        first.ejected_for(now),
        Some(std::time::Duration::from_secs(30))
    );
    assert_eq!(second.ejected_for(now), None);
    let cx = PickContext { now, ..context(1) };
    let told = cluster.candidates(&cx);
    assert_eq!(told.len(), 1);
    assert!(std::sync::Arc::ptr_eq(told[0], second));
    assert_eq!(first.failures(), 5);
}

#[test]
fn candidates_are_empty_when_all_were_tried() {
    let cluster = cluster(Balance::RoundRobin, (0..3).map(endpoint));
    let tried = cluster.endpoints().to_vec();
    let cx = PickContext {
        tried: &tried,
        ..context(1)
    };
    assert!(cluster.candidates(&cx).is_empty());
}
