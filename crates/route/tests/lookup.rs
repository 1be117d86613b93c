//! The rules of look-ups, one by one.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::net::SocketAddr;
use std::sync::Arc;

use route::{ClusterSpec, IpPrefix, Route, RouteMatch, RouteSpec, Snapshot, TableSpec};

fn names(names: &[&str]) -> RouteMatch {
    RouteMatch::ServerNames(names.iter().map(ToString::to_string).collect())
}

fn destination(prefixes: &[&str], port: Option<u16>) -> RouteMatch {
    let prefixes = prefixes
        .iter()
        .map(|text| text.parse::<IpPrefix>().unwrap())
        .collect();
    RouteMatch::Destinations { prefixes, port }
}

fn table(routes: impl IntoIterator<Item = (RouteMatch, &'static str)>) -> Snapshot {
    let mut spec = TableSpec::default();
    for (matches, cluster) in routes {
        spec.clusters.push(ClusterSpec::new(cluster));
        spec.routes.push(RouteSpec::new(matches, cluster));
    }
    Snapshot::build(spec, 7, None).unwrap()
}

fn cluster(route: Option<&Arc<Route>>) -> Option<&str> {
    route.map(|route| route.cluster().name().as_ref())
}

#[test]
fn names_ignore_case_and_trailing_dot() {
    let table = table([(names(&["API.example.com."]), "api")]);
    for name in ["api.example.com", "API.EXAMPLE.COM", "api.example.com."] {
        assert_eq!(
            cluster(table.by_server_name(Some(name))),
            Some("api"),
            "{name}"
        );
    }
    for name in [
        "api.example.com..",
        "xapi.example.com",
        "a.api.example.com",
        "",
        ".",
    ] {
        assert_eq!(cluster(table.by_server_name(Some(name))), None, "{name}");
    }
    assert_eq!(cluster(table.by_server_name(None)), None);
}

#[test]
fn exact_name_precedes_longest_wildcard() {
    let table = table([
        (names(&["*.com"]), "com"),
        (names(&["*.b.example.com"]), "b"),
        (names(&["a.b.example.com"]), "exact"),
        (names(&["*.example.com"]), "example"),
    ]);
    let find = |name| cluster(table.by_server_name(Some(name)));
    assert_eq!(find("a.b.example.com"), Some("exact"));
    assert_eq!(find("z.b.example.com"), Some("b"));
    assert_eq!(find("y.z.b.example.com"), Some("b"));
    assert_eq!(find("b.example.com"), Some("example"));
    assert_eq!(find("example.com"), Some("com"));
    assert_eq!(find("com"), None);
    assert_eq!(find(".com"), None);
    assert_eq!(find("example.org"), None);
}

#[test]
fn catch_all_matches_unknown_and_absent_names() {
    let table = table([(names(&["*"]), "all"), (names(&["*.a.example"]), "a")]);
    let over_long = format!("{}a.example", "x.".repeat(130));
    for name in [
        None,
        Some(""),
        Some("b.example"),
        Some("é.b"),
        Some(over_long.as_str()),
    ] {
        assert_eq!(cluster(table.by_server_name(name)), Some("all"), "{name:?}");
    }
    let longest = format!("{}a.example", "x.".repeat(122));
    assert_eq!(longest.len(), 253);
    assert_eq!(cluster(table.by_server_name(Some(&longest))), Some("a"));
}

#[test]
fn longest_prefix_wins_then_port() {
    let table = table([
        (destination(&["10.0.0.0/8"], None), "wide"),
        (
            destination(&["10.1.0.0/16", "fd00::/16"], Some(443)),
            "port",
        ),
        (destination(&["10.1.0.0/16"], None), "any"),
        (destination(&["10.1.2.3/32"], Some(8443)), "host"),
    ]);
    let find = |addr: &str| cluster(table.by_destination(addr.parse::<SocketAddr>().unwrap()));
    assert_eq!(find("10.2.0.1:443"), Some("wide"));
    assert_eq!(find("10.1.0.1:443"), Some("port"));
    assert_eq!(find("10.1.0.1:80"), Some("any"));
    assert_eq!(find("10.1.2.3:8443"), Some("host"));
    // The longest prefix only has another port.
    assert_eq!(find("10.1.2.3:443"), Some("port"));
    assert_eq!(find("[::ffff:10.1.2.3]:8443"), Some("host"));
    assert_eq!(find("[fd00::1]:443"), Some("port"));
    assert_eq!(find("[fd00::1]:80"), None);
    assert_eq!(find("11.0.0.1:443"), None);
}

#[test]
fn connect_values_are_compared_literally() {
    let value = "outbound|1194||vpn-seed-server.shoot--foo--bar.svc.cluster.local".to_owned();
    let table = table([(RouteMatch::ConnectDestinations(vec![value.clone()]), "vpn")]);
    assert_eq!(cluster(table.by_connect(&value)), Some("vpn"));
    assert_eq!(cluster(table.by_connect(&value.to_uppercase())), None);
    assert_eq!(cluster(table.by_connect(&format!("{value}."))), None);
    assert_eq!(cluster(table.by_connect("")), None);
}

#[test]
fn sources_are_allowed_by_list_or_all() {
    let mut spec = TableSpec::default();
    spec.clusters.push(ClusterSpec::new("c"));
    spec.routes.push(RouteSpec::new(names(&["open"]), "c"));
    spec.routes.push(RouteSpec {
        allow_sources: vec![
            "203.0.113.0/24".parse().unwrap(),
            "fd00::/8".parse().unwrap(),
        ],
        ..RouteSpec::new(names(&["closed"]), "c")
    });
    let table = Snapshot::build(spec, 1, None).unwrap();
    let allows = |name, source: &str| {
        table
            .by_server_name(Some(name))
            .unwrap()
            .allows(source.parse().unwrap())
    };
    assert!(allows("open", "198.51.100.1"));
    assert!(allows("closed", "203.0.113.9"));
    assert!(allows("closed", "::ffff:203.0.113.9"));
    assert!(allows("closed", "fd12::1"));
    assert!(!allows("closed", "198.51.100.1"));
    assert!(!allows("closed", "::1"));
}

#[test]
fn a_snapshot_lists_what_it_holds_in_order() {
    let mut spec = TableSpec::default();
    for name in ["b", "a"] {
        let mut cluster = ClusterSpec::new(name);
        for address in ["zeta.example:443", "alpha.example:80", "10.0.0.1:443"] {
            cluster
                .endpoints
                .push(route::EndpointSpec::new(address.parse().unwrap()));
        }
        spec.clusters.push(cluster);
    }
    spec.routes
        .push(RouteSpec::new(names(&["Z.example", "*.y"]), "b"));
    spec.routes.push(RouteSpec::new(
        destination(&["10.0.0.0/8", "::1"], Some(443)),
        "a",
    ));
    spec.routes.push(RouteSpec::new(
        RouteMatch::ConnectDestinations(vec!["v".into()]),
        "a",
    ));
    let table = Snapshot::build(spec, 9, None).unwrap();
    assert_eq!(table.generation(), 9);
    assert_eq!(
        table
            .clusters()
            .map(|cluster| &**cluster.name())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(&**table.cluster("b").unwrap().name(), "b");
    assert!(table.cluster("c").is_none());
    assert_eq!(
        table.host_names().collect::<Vec<_>>(),
        ["alpha.example", "zeta.example"]
    );
    let shown: Vec<String> = table
        .routes()
        .map(|route| route.matches().to_string())
        .collect();
    assert_eq!(
        shown,
        ["z.example, *.y", "10.0.0.0/8, ::1/128 port 443", "v"]
    );
    assert_eq!(Snapshot::empty().routes().len(), 0);
    assert!(Snapshot::empty().by_server_name(None).is_none());
}

#[test]
fn ten_thousand_names_are_found() {
    let mut spec = TableSpec::default();
    for n in 0..10_000 {
        spec.clusters.push(ClusterSpec::new(format!("c{n}")));
        let both = [
            format!("api.{n}.example.com"),
            format!("*.w{n}.example.com"),
        ];
        spec.routes.push(RouteSpec::new(
            RouteMatch::ServerNames(both.into()),
            format!("c{n}"),
        ));
    }
    let table = Snapshot::build(spec, 1, None).unwrap();
    for n in 0..10_000 {
        let wanted = format!("c{n}");
        for name in [
            format!("api.{n}.example.com"),
            format!("x.y.w{n}.example.com"),
        ] {
            assert_eq!(
                cluster(table.by_server_name(Some(&name))),
                Some(wanted.as_str())
            );
        }
    }
    assert_eq!(
        cluster(table.by_server_name(Some("api.10000.example.com"))),
        None
    );
}
