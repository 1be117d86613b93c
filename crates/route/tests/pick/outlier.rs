//! When endpoints are ejected, for how long, and that threads agree.

use std::sync::Arc;
use std::time::Duration;

use route::{Balance, ClusterSpec, ConnectFailure, Endpoint, EndpointState, OutlierParams};

use crate::support::*;

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

#[test]
fn threads_share_ejection_limit() {
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
fn picking_copes_with_concurrent_changes() {
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
