//! A table that was changed step by step is the table that its last specification alone gives.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

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
    let told = |route: Option<&Arc<Route>>| {
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
    fn build_is_independent_of_previous_tables(tables in prop::collection::vec(any_table(), 1..6)) {
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

/// One cluster and one route of many; every eighth route is a wildcard, of several depths.
fn one_of_many(number: usize, port: u16) -> (ClusterSpec, RouteSpec) {
    let name = format!("c{number:05}");
    let pattern = match number % 24 {
        0 => format!("*.n{number}.test"),
        8 => format!("*.y.n{number}.test"),
        16 => format!("*.x.y.n{number}.test"),
        _ => format!("n{number}.test"),
    };
    let address = format!("10.0.0.1:{port}").parse().unwrap();
    let cluster = ClusterSpec {
        endpoints: vec![EndpointSpec::new(address)],
        ..ClusterSpec::new(name.clone())
    };
    let matches = RouteMatch::ServerNames(vec![pattern]);
    (cluster, RouteSpec::new(matches, name))
}

fn of_many(numbers: &[(usize, u16)]) -> TableSpec {
    let both = numbers
        .iter()
        .map(|(number, port)| one_of_many(*number, *port));
    let (clusters, routes) = both.unzip();
    TableSpec { clusters, routes }
}

/// What is found by the name of each of these, and the order of all.
fn found(table: &Snapshot, numbers: impl Iterator<Item = usize>) -> Vec<String> {
    let mut all: Vec<String> = numbers
        .map(|number| {
            let route = table.by_server_name(Some(&format!("z.x.y.n{number}.test")));
            let other = table.by_server_name(Some(&format!("n{number}.test")));
            let cluster = route.or(other).map(|route| Arc::clone(route.cluster()));
            format!(
                "{:?}",
                cluster.map(|cluster| cluster.endpoints()[0].address().to_string())
            )
        })
        .collect();
    all.extend(table.clusters().map(|cluster| cluster.name().to_string()));
    let routes = table.routes();
    all.extend(routes.map(|route| format!("{} {}", route.matches(), route.cluster().name())));
    all
}

/// Returns how many elements were not there before.
fn fresh<'t, T: 't>(
    before: impl Iterator<Item = &'t Arc<T>>,
    after: impl Iterator<Item = &'t Arc<T>>,
) -> usize {
    let before: HashSet<*const T> = before.map(Arc::as_ptr).collect();
    after
        .filter(|element| !before.contains(&Arc::as_ptr(element)))
        .count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Tables of several pieces and parts: elements come, go, move and change, and all that stay are
    /// the same.
    #[test]
    fn large_table_change_builds_only_new(
        len in prop::sample::select(vec![127, 128, 129, 255, 256, 257, 400]),
        steps in prop::collection::vec(
            prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 0..10_000_usize), 1..4),
            1..8,
        ),
    ) {
        let mut numbers: Vec<(usize, u16)> = (0..len).map(|nth| (nth * 16, 1)).collect();
        let mut asked: Vec<usize> = numbers.iter().map(|(number, _)| *number).collect();
        let mut last = Snapshot::build(of_many(&numbers), 0, None).unwrap();
        for changes in steps {
            let (before, most) = (numbers.clone(), changes.len());
            for (kind, at, number) in changes {
                match kind {
                    0 => drop(numbers.remove(at.index(numbers.len()))),
                    1 => {
                        let at = at.index(numbers.len());
                        numbers[at].1 += 1;
                    }
                    2 => {
                        let moved = numbers.remove(at.index(numbers.len()));
                        numbers.insert(number % (numbers.len() + 1), moved);
                    }
                    _ => {
                        asked.push(number);
                        numbers.insert(at.index(numbers.len() + 1), (number, 1));
                    }
                }
            }
            let alone = Snapshot::build(of_many(&numbers), 1, None);
            let after = Snapshot::build(of_many(&numbers), 1, Some(&last));
            prop_assert_eq!(alone.is_ok(), after.is_ok());
            let (Ok(alone), Ok(after)) = (alone, after) else {
                numbers = before;
                continue;
            };
            let all = || asked.iter().copied();
            prop_assert_eq!(found(&alone, all()), found(&after, all()));
            prop_assert!(fresh(last.clusters(), after.clusters()) <= most);
            prop_assert!(fresh(last.routes(), after.routes()) <= most);
            last = after;
        }
    }
}
