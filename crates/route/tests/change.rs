//! A table that was changed step by step is the table that its last specification alone gives.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::prelude::*;
use route::{
    ClusterSpec, EndpointSpec, ListenerSet, Route, RouteMatch, RouteSpec, Snapshot, TableSpec,
};

/// Names that may be asked for; patterns are `*` in place of the first label, and `*`.
const NAMES: [&str; 5] = ["a.x.test", "b.x.test", "a.y.test", "y.test", "z.y.test"];
const PATTERNS: [&str; 8] = [
    "a.x.test",
    "B.x.test.",
    "a.y.test",
    "*.x.test",
    "*.y.test",
    "*.test",
    "*",
    "y.test",
];

fn any_match() -> impl Strategy<Value = RouteMatch> {
    let patterns = prop::sample::subsequence(PATTERNS.to_vec(), 1..3);
    let all = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.7/32"];
    let networks = prop::sample::subsequence(all.to_vec(), 1..3);
    prop_oneof![
        4 => patterns.prop_map(|some| {
            RouteMatch::ServerNames(some.into_iter().map(str::to_owned).collect())
        }),
        2 => (networks, prop::option::of(1..3_u16)).prop_map(|(some, port)| {
            let prefixes = some.into_iter().map(|prefix| prefix.parse().unwrap()).collect();
            RouteMatch::Destinations { prefixes, port }
        }),
        2 => (0..3_u8).prop_map(|value| RouteMatch::ConnectDestinations(vec![value.to_string()])),
        1 => (0..3_u8, prop::option::of(1..3_u32)).prop_map(|(key, route_id)| {
            RouteMatch::WireGuard { public_keys: vec![[key; 32]], route_id }
        }),
    ]
}

fn any_route() -> impl Strategy<Value = RouteSpec> {
    // Most serve all listeners; two that serve one each are united.
    let listeners = prop_oneof![
        3 => Just(ListenerSet::ALL),
        1 => Just(ListenerSet::only(0)),
        1 => Just(ListenerSet::only(1)),
    ];
    (any_match(), 0..4_u8, listeners).prop_map(|(matches, cluster, listeners)| RouteSpec {
        listeners,
        ..RouteSpec::new(matches, format!("c{cluster}"))
    })
}

fn any_cluster() -> impl Strategy<Value = ClusterSpec> {
    let address =
        prop::sample::select(vec!["10.0.0.1:1", "10.0.0.1:2", "one.test:1", "two.test:1"]);
    (0..4_u8, address).prop_map(|(name, address)| ClusterSpec {
        endpoints: vec![EndpointSpec::new(address.parse().unwrap())],
        ..ClusterSpec::new(format!("c{name}"))
    })
}

fn any_table() -> impl Strategy<Value = TableSpec> {
    let clusters = prop::collection::vec(any_cluster(), 0..6);
    let routes = prop::collection::vec(any_route(), 0..5);
    (clusters, routes).prop_map(|(mut clusters, routes)| {
        // Mostly tables that are good: what is refused changes nothing.
        clusters.sort_by(|left, right| left.name.cmp(&right.name));
        clusters.dedup_by(|left, right| left.name == right.name);
        TableSpec { clusters, routes }
    })
}

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 1, 2, last).into()
}

/// All that a table answers, and what it consists of.
fn answers(table: &Snapshot) -> Vec<String> {
    let told = |route: Option<&std::sync::Arc<Route>>| {
        route.map(|route| {
            let cluster = route.cluster();
            let address = cluster.endpoints()[0].address().to_string();
            (
                route.matches().to_string(),
                cluster.name().to_string(),
                address,
            )
        })
    };
    let mut all: Vec<String> = table.host_names().map(str::to_owned).collect();
    for listener in 0..2 {
        let on = table.on(listener);
        for name in NAMES.into_iter().map(Some).chain([None]) {
            all.push(format!("{:?}", told(on.by_server_name(name))));
        }
        for (last, port) in [(7, 1), (7, 2), (8, 1), (8, 3)] {
            let addr = SocketAddr::new(ip(last), port);
            all.push(format!("{:?}", told(on.by_destination(addr))));
        }
        for value in ["0", "1", "2"] {
            all.push(format!("{:?}", told(on.by_connect(value))));
        }
    }
    for id in 1..3 {
        all.push(format!("{:?}", told(table.by_route_id(id))));
    }
    all.extend(table.clusters().map(|cluster| cluster.name().to_string()));
    all.extend(
        table
            .routes()
            .map(|route| format!("{:?}", told(Some(route)))),
    );
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_was_before_makes_no_difference(tables in prop::collection::vec(any_table(), 1..6)) {
        let mut last: Option<Snapshot> = None;
        for (at, spec) in tables.into_iter().enumerate() {
            let alone = Snapshot::build(spec.clone(), at as u64, None);
            let after = Snapshot::build(spec, at as u64, last.as_ref());
            prop_assert_eq!(alone.is_ok(), after.is_ok());
            match (alone, after) {
                (Ok(alone), Ok(after)) => {
                    prop_assert_eq!(answers(&alone), answers(&after));
                    last = Some(after);
                }
                (Err(alone), Err(after)) => prop_assert_eq!(alone.total(), after.total()),
                _ => unreachable!("told apart above"),
            }
        }
    }

    /// Changes of one element, where most of the tables is taken over.
    #[test]
    fn one_change_after_the_other_adds_up(
        mut spec in any_table(),
        steps in prop::collection::vec((any_route(), 0..6_usize), 1..10),
    ) {
        let mut last: Option<Snapshot> = None;
        for (at, (route, place)) in steps.into_iter().enumerate() {
            let before = spec.clone();
            if spec.routes.len() > 6 || (at % 3 == 2 && !spec.routes.is_empty()) {
                spec.routes.remove(place % spec.routes.len());
            } else {
                spec.routes.insert(place.min(spec.routes.len()), route);
            }
            if at % 4 == 3 {
                spec.routes.reverse();
            }
            let alone = Snapshot::build(spec.clone(), 1, None);
            let after = Snapshot::build(spec.clone(), 1, last.as_ref());
            prop_assert_eq!(alone.is_ok(), after.is_ok());
            match (alone, after) {
                (Ok(alone), Ok(after)) => {
                    prop_assert_eq!(answers(&alone), answers(&after));
                    last = Some(after);
                }
                _ => spec = before,
            }
        }
    }
}
