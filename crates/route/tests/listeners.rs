//! Routes of some listeners only, and of WireGuard servers.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use route::{
    BuildErrors, ClusterSpec, ListenerSet, Route, RouteMatch, RouteSpec, Snapshot, TableSpec,
};

fn build(routes: Vec<RouteSpec>) -> Result<Snapshot, BuildErrors> {
    let clusters = ["c", "d"].map(ClusterSpec::new).into();
    Snapshot::build(TableSpec { clusters, routes }, 1, None)
}

fn on(listeners: &[usize], matches: RouteMatch, cluster: &str) -> RouteSpec {
    let sets = listeners.iter().copied().map(ListenerSet::only);
    let listeners = sets.reduce(ListenerSet::union).unwrap();
    RouteSpec {
        listeners,
        ..RouteSpec::new(matches, cluster)
    }
}

fn names(names: &[&str]) -> RouteMatch {
    RouteMatch::ServerNames(names.iter().map(ToString::to_string).collect())
}

fn connect(value: &str) -> RouteMatch {
    RouteMatch::ConnectDestinations(vec![value.to_owned()])
}

fn destination(prefix: &str, port: Option<u16>) -> RouteMatch {
    RouteMatch::Destinations {
        prefixes: vec![prefix.parse().unwrap()],
        port,
    }
}

fn wireguard(keys: &[u8], route_id: Option<u32>) -> RouteMatch {
    RouteMatch::WireGuard {
        public_keys: keys.iter().map(|key| [*key; 32]).collect(),
        route_id,
    }
}

fn cluster(route: Option<&Arc<Route>>) -> Option<&str> {
    route.map(|route| route.cluster().name().as_ref())
}

#[test]
fn a_listener_sees_only_its_own_routes() {
    let table = build(vec![
        on(&[1], names(&["a.example"]), "c"),
        on(&[0], names(&["*.example"]), "d"),
        on(&[1], destination("10.1.0.0/16", Some(443)), "c"),
        on(&[0, 1], destination("10.0.0.0/8", None), "d"),
        on(&[1], connect("x"), "c"),
        RouteSpec::new(connect("y"), "d"),
    ])
    .unwrap();
    // The less specific one counts where the more specific one is another listener's.
    let named = |index| cluster(table.on(index).by_server_name(Some("a.example")));
    assert_eq!([0, 1, 2].map(named), [Some("d"), Some("c"), None]);
    let addr: SocketAddr = "10.1.2.3:443".parse().unwrap();
    let led = |index| cluster(table.on(index).by_destination(addr));
    assert_eq!([0, 1, 2].map(led), [Some("d"), Some("c"), None]);
    let asked = |index| cluster(table.on(index).by_connect("x"));
    assert_eq!([0, 1, 2].map(asked), [None, Some("c"), None]);
    assert_eq!(cluster(table.on(99).by_connect("y")), Some("d"));
    assert_eq!(cluster(table.by_connect("x")), Some("c"));
    assert!(!table.by_connect("x").unwrap().serves(0));
}

#[test]
fn routes_differing_in_listeners_are_merged() {
    let table = build(vec![
        on(&[0], names(&["a", "b"]), "c"),
        on(&[1], names(&["b"]), "c"),
        on(&[0], destination("::/0", None), "c"),
        on(&[1], destination("::/0", None), "c"),
        on(&[0], connect("x"), "c"),
        on(&[1], connect("x"), "c"),
    ])
    .unwrap();
    let serves = |route: Option<&Arc<Route>>| [0, 1, 2].map(|at| route.unwrap().serves(at));
    assert_eq!(
        serves(table.by_server_name(Some("a"))),
        [true, false, false]
    );
    assert_eq!(serves(table.by_server_name(Some("b"))), [true, true, false]);
    let addr = "[::1]:1".parse().unwrap();
    assert_eq!(serves(table.by_destination(addr)), [true, true, false]);
    assert_eq!(serves(table.by_connect("x")), [true, true, false]);
}

#[test]
fn contradicting_routes_are_refused() {
    type Change = fn(&mut RouteSpec);
    let changes: [Change; 5] = [
        |spec| spec.cluster = "d".into(),
        |spec| spec.allow_sources = vec!["192.0.2.0/24".parse().unwrap()],
        |spec| spec.idle_timeout = Some(Duration::ZERO),
        |spec| spec.max_connection_age = Some(Duration::ZERO),
        |spec| spec.listeners = ListenerSet::only(0),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut second = on(&[1], names(&["a"]), "c");
        change(&mut second);
        let errors = build(vec![on(&[0], names(&["a"]), "c"), second]).unwrap_err();
        let wanted = "route 2: \"a\" is matched twice";
        assert_eq!(errors.to_string(), wanted, "change {index}");
    }
}

#[test]
fn wireguard_servers_are_found_by_id_or_key() {
    let max = RouteMatch::MAX_ROUTE_ID;
    let table = build(vec![
        RouteSpec::new(wireguard(&[1, 2], Some(max)), "c"),
        RouteSpec::new(wireguard(&[3], None), "d"),
        RouteSpec::new(connect("x"), "d"),
        RouteSpec::new(wireguard(&[], Some(1)), "d"),
    ])
    .unwrap();
    assert_eq!(cluster(table.by_route_id(max)), Some("c"));
    assert_eq!(cluster(table.by_route_id(1)), Some("d"));
    assert!(table.by_route_id(2).is_none());
    for (key, wanted) in [(1, Some("c")), (2, Some("c")), (3, Some("d")), (4, None)] {
        assert_eq!(cluster(table.by_public_key(&[key; 32])), wanted, "{key}");
    }
    let listed: Vec<(Vec<u8>, Option<&str>)> = table
        .wireguard_routes()
        .map(|(keys, route)| {
            (
                keys.iter().map(|key| key[0]).collect(),
                cluster(Some(route)),
            )
        })
        .collect();
    assert_eq!(
        listed,
        [
            (vec![1, 2], Some("c")),
            (vec![3], Some("d")),
            (vec![], Some("d"))
        ]
    );
}

#[test]
fn a_faulty_wireguard_route_names_its_offender() {
    let cases = [
        (
            vec![wireguard(&[], None)],
            "route 1: there is nothing to match",
        ),
        (vec![wireguard(&[1], Some(0))], "not 0"),
        (
            vec![wireguard(&[1], Some(1 << 20))],
            "from 1 to 1048575, not 1048576",
        ),
        (
            vec![wireguard(&[7, 7], None)],
            "route 1: WireGuard public key BwcHBw… is matched twice",
        ),
        (
            vec![wireguard(&[1], Some(9)), wireguard(&[2], Some(9))],
            "route 2: WireGuard route id 9 is matched twice",
        ),
        (
            vec![wireguard(&[1], Some(8)), wireguard(&[2, 1], Some(9))],
            "route 2: WireGuard public key AQEBAQ… is matched twice",
        ),
    ];
    for (matches, wanted) in cases {
        let routes = matches.into_iter().map(|one| RouteSpec::new(one, "c"));
        let errors = build(routes.collect()).unwrap_err();
        assert!(errors.total() == 1, "{errors}");
        assert!(errors.to_string().contains(wanted), "{errors}");
    }
}
