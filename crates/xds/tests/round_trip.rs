//! What is encoded decodes to what it was, but for what `docs/xds.md` says is lost; and whatever
//! else arrives is refused or understood, never a panic.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

#[path = "../../../fuzz/resources.rs"]
mod resources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::{option, sample};
use route::{
    Balance, ClusterSpec, EndpointAddress, EndpointSpec, IpPrefix, ListenerSet, OutlierParams,
    ProxyVersion, RouteMatch, RouteSpec, Snapshot, TableSpec, TcpOptions,
};
use xds::{
    Audience, GatewayParams, OwnListener, OwnProtocol, Resource, State, base, cluster, decode,
    parts, whole,
};

const TLS: usize = 0;
const NODE: usize = 1;
const VPN: usize = 2;
const WIREGUARD: usize = 3;

fn own() -> [OwnListener; 4] {
    let own = |name: &str, port, protocol| OwnListener {
        name: name.to_owned(),
        port,
        protocol,
    };
    [
        own("tls", 443, OwnProtocol::Tls),
        own("node", 8443, OwnProtocol::Node),
        own("vpn", 8132, OwnProtocol::Connect),
        own("wireguard", 51820, OwnProtocol::WireGuard),
    ]
}

fn table(resources: &[Resource]) -> TableSpec {
    let mut state = State::default();
    for resource in resources {
        let decoded = decode(resource.kind, &resource.name, &resource.body).unwrap();
        assert_eq!(decoded.kind(), resource.kind);
        state.set(&*resource.name, decoded);
    }
    assert_eq!(state.missing(), [].into());
    let table = state.table(&own()).unwrap();
    assert_eq!(table.reports, []);
    Snapshot::build(table.spec.clone(), 1, None).unwrap();
    table.spec
}

/// One match, and all that a connection gets by it.
type Rule = (
    ListenerSet,
    String,
    Vec<IpPrefix>,
    Option<Duration>,
    Option<Duration>,
);

/// Every single match of the routes; a set of listeners is the union over equal ones.
fn rules(routes: &[RouteSpec]) -> BTreeMap<String, Rule> {
    let mut rules: BTreeMap<String, Rule> = BTreeMap::new();
    for route in routes {
        let keys: Vec<String> = match &route.matches {
            RouteMatch::ConnectDestinations(values) => values
                .iter()
                .map(|value| format!("connect {value}"))
                .collect(),
            RouteMatch::Destinations { prefixes, port } => prefixes
                .iter()
                .map(|prefix| format!("to {prefix} {port:?}"))
                .collect(),
            RouteMatch::ServerNames(names) => names
                .iter()
                .map(|name| format!("name {}", name.to_lowercase()))
                .collect(),
            RouteMatch::WireGuard {
                public_keys,
                route_id,
            } => {
                vec![format!("wireguard {route_id:?} {public_keys:?}")]
            }
        };
        for key in keys {
            let rule = (
                route.listeners,
                route.cluster.clone(),
                route.allow_sources.clone(),
                route.idle_timeout,
                route.max_connection_age,
            );
            let set = rules.entry(key).or_insert_with(|| rule.clone());
            assert_eq!(
                (&set.1, &set.2, set.3, set.4),
                (&rule.1, &rule.2, rule.3, rule.4)
            );
            set.0 = set.0.union(rule.0);
        }
    }
    rules
}

/// Assigns each route the listeners of its kind, and drops duplicate matches.
fn sorted_out(routes: Vec<RouteSpec>) -> Vec<RouteSpec> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for mut route in routes {
        let (left, listeners) = match &mut route.matches {
            RouteMatch::ConnectDestinations(values) => {
                values.retain(|value| seen.insert(format!("c {value}")));
                let both = ListenerSet::only(NODE).union(ListenerSet::only(VPN));
                (!values.is_empty(), both)
            }
            RouteMatch::Destinations { prefixes, port } => {
                prefixes.retain(|prefix| seen.insert(format!("d {prefix} {port:?}")));
                (!prefixes.is_empty(), ListenerSet::only(NODE))
            }
            RouteMatch::ServerNames(names) => {
                names.retain(|name| seen.insert(format!("n {}", name.to_lowercase())));
                (!names.is_empty(), ListenerSet::only(TLS))
            }
            RouteMatch::WireGuard {
                public_keys,
                route_id,
            } => {
                public_keys.retain(|key| seen.insert(format!("k {key:?}")));
                *route_id = route_id.filter(|id| seen.insert(format!("i {id}")));
                let left = !public_keys.is_empty() || route_id.is_some();
                (left, ListenerSet::only(WIREGUARD))
            }
        };
        route.listeners = listeners;
        if left {
            all.push(route);
        }
    }
    all
}

/// What of a cluster arrives: see `docs/xds.md`.
fn arriving(mut spec: ClusterSpec) -> ClusterSpec {
    let priorities: BTreeSet<u32> = spec.endpoints.iter().map(|one| one.priority).collect();
    for endpoint in &mut spec.endpoints {
        let rank = priorities.range(..endpoint.priority).count();
        endpoint.priority = u32::try_from(rank).unwrap();
    }
    spec.endpoints
        .sort_by(|left, right| (left.priority, &left.zone).cmp(&(right.priority, &right.zone)));
    spec.tcp = spec.tcp.map(|tcp| {
        let base = TcpOptions::default();
        Arc::new(TcpOptions {
            keepalive: tcp.keepalive,
            keepalive_interval: if tcp.keepalive.is_zero() {
                base.keepalive_interval
            } else {
                tcp.keepalive_interval
            },
            keepalive_probes: if tcp.keepalive.is_zero() {
                base.keepalive_probes
            } else {
                tcp.keepalive_probes
            },
            ..base
        })
    });
    spec
}

fn prefix() -> impl Strategy<Value = IpPrefix> {
    let texts = [
        "10.0.0.0/8",
        "10.1.2.3/32",
        "fd00::/8",
        "0.0.0.0/0",
        "192.0.2.0/24",
    ];
    sample::select(texts.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn time() -> impl Strategy<Value = Duration> {
    (0..100_000_u64).prop_map(Duration::from_millis)
}

fn matches() -> impl Strategy<Value = RouteMatch> {
    let name = sample::select(vec![
        "a.example",
        "B.example",
        "*.example",
        "*",
        "*.c.example",
        "d",
    ]);
    let value = sample::select(vec!["outbound|443||a.svc", "x", "X", "ü"]);
    let port = option::of(sample::select(vec![1_u16, 443, 65535]));
    prop_oneof![
        vec(name, 1..4).prop_map(|names| {
            RouteMatch::ServerNames(names.into_iter().map(str::to_owned).collect())
        }),
        vec(value, 1..3).prop_map(|values| {
            RouteMatch::ConnectDestinations(values.into_iter().map(str::to_owned).collect())
        }),
        (vec(prefix(), 1..3), port)
            .prop_map(|(prefixes, port)| RouteMatch::Destinations { prefixes, port }),
        (vec(0..9_u8, 0..3), option::of(1..=RouteMatch::MAX_ROUTE_ID)).prop_map(
            |(keys, route_id)| RouteMatch::WireGuard {
                public_keys: keys.into_iter().map(|key| [key; 32]).collect(),
                route_id,
            }
        ),
    ]
}

fn route() -> impl Strategy<Value = RouteSpec> {
    let cluster = sample::select(vec!["a", "b", "c"]);
    let sources = vec(prefix(), 0..3);
    (
        matches(),
        cluster,
        sources,
        option::of(time()),
        option::of(time()),
    )
        .prop_map(
            |(matches, cluster, allow_sources, idle_timeout, max_connection_age)| RouteSpec {
                allow_sources,
                idle_timeout,
                max_connection_age,
                ..RouteSpec::new(matches, cluster)
            },
        )
}

fn endpoint() -> impl Strategy<Value = EndpointSpec> {
    let address = (0..40_u16, any::<bool>()).prop_map(|(n, named)| {
        let text = match (named, n) {
            (true, 30..) => format!("host-{n}.example.:443"),
            (_, 20..) => format!("[fd00::{n}]:443"),
            _ => format!("10.0.0.{n}:{}", 443 + n),
        };
        text.parse::<EndpointAddress>().unwrap()
    });
    let zone = option::of(sample::select(vec!["a", "b"]));
    (address, zone, 1..9_u32, 0..5_u32, any::<bool>()).prop_map(
        |(address, zone, weight, priority, healthy)| EndpointSpec {
            address,
            zone: zone.map(Into::into),
            weight,
            priority,
            healthy,
        },
    )
}

fn outlier() -> impl Strategy<Value = OutlierParams> {
    (1..9_u32, 1..90_u64, 0..=100_u8).prop_map(|(failures, ejection, percent)| OutlierParams {
        consecutive_connect_failures: failures,
        ejection: Duration::from_secs(ejection),
        max_ejected_percent: percent,
    })
}

fn cluster_of(name: &'static str) -> impl Strategy<Value = ClusterSpec> {
    let balance = sample::select(vec![
        Balance::LeastRequest,
        Balance::Maglev,
        Balance::Random,
        Balance::RoundRobin,
    ]);
    let proxy = option::of(sample::select(vec![ProxyVersion::V1, ProxyVersion::V2]));
    let tcp = option::of((0..9000_u64, 1..99_u64, 1..9_u32).prop_map(
        |(time, interval, probes)| {
            Arc::new(TcpOptions {
                keepalive: Duration::from_secs(time),
                keepalive_interval: Duration::from_secs(interval),
                keepalive_probes: probes,
                ..TcpOptions::default()
            })
        },
    ));
    let limits = (1..9000_u64, prop_oneof![Just(0), 1..u32::MAX]);
    (
        vec(endpoint(), 0..6),
        balance,
        any::<bool>(),
        limits,
        option::of(outlier()),
        proxy,
        tcp,
    )
        .prop_map(
            move |(endpoints, balance, zone_aware, limits, outlier, proxy, tcp)| {
                let mut seen = BTreeSet::new();
                let mut spec = ClusterSpec::new(name);
                spec.endpoints = endpoints;
                spec.endpoints
                    .retain(|one| seen.insert(one.address.clone()));
                spec.balance = balance;
                spec.zone_aware = zone_aware;
                spec.connect_timeout = Duration::from_millis(limits.0);
                spec.max_connections = limits.1;
                spec.outlier = outlier;
                spec.send_proxy_protocol = proxy;
                spec.tcp = tcp;
                spec
            },
        )
}

fn clusters() -> impl Strategy<Value = Vec<ClusterSpec>> {
    (cluster_of("a"), cluster_of("b"), cluster_of("c")).prop_map(|(a, b, c)| vec![a, b, c])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn parts_decode_to_what_they_were(
        clusters in clusters(),
        routes in vec(route(), 0..12),
        cut in any::<sample::Index>(),
    ) {
        let params = GatewayParams::default();
        let routes = sorted_out(routes);
        let (first, second) = routes.split_at(cut.index(routes.len() + 1));
        let mut resources = base(&params);
        resources.extend(clusters.iter().flat_map(cluster));
        for (group, routes) in [("one", first), ("two", second)] {
            let encoded = parts(group, routes, &params);
            prop_assert_eq!(&encoded.withheld, &Vec::<String>::new());
            prop_assert!(encoded.resources.iter().all(|one| one.audience == Audience::Parts));
            resources.extend(encoded.resources);
        }
        let decoded = table(&resources);
        prop_assert_eq!(rules(&decoded.routes), rules(&routes));
        let expected: Vec<ClusterSpec> = clusters.into_iter().map(arriving).collect();
        prop_assert_eq!(decoded.clusters, expected);
    }

    #[test]
    fn whole_listeners_decode_to_equal_routes(
        clusters in clusters(),
        routes in vec(route(), 0..12),
    ) {
        let params = GatewayParams::default();
        let mut routes = sorted_out(routes);
        routes.retain(|route| !matches!(route.matches, RouteMatch::WireGuard { .. }));
        let encoded = whole(&params, [&routes[..]].into_iter());
        prop_assert_eq!(&encoded.withheld, &Vec::<String>::new());
        let mut resources = encoded.resources;
        prop_assert!(resources.iter().all(|one| one.audience == Audience::Whole));
        resources.extend(clusters.iter().flat_map(cluster));
        let decoded = Snapshot::build(table(&resources), 1, None).unwrap();
        let original = Snapshot::build(TableSpec { clusters, routes }, 1, None).unwrap();
        let found = |snapshot: &Snapshot| {
            let mut found = Vec::new();
            for listener in [TLS, NODE, VPN] {
                let table = snapshot.on(listener);
                for name in ["a.example", "b.example", "q.c.example", "d", "none"] {
                    found.push(table.by_server_name(Some(name)));
                }
                for ip in ["10.1.2.3", "10.2.0.0", "192.0.2.1", "fd00::1", "::1"] {
                    for port in [1_u16, 2, 443] {
                        found.push(table.by_destination((ip.parse::<std::net::IpAddr>().unwrap(), port).into()));
                    }
                }
                for value in ["outbound|443||a.svc", "x", "X", "ü", "y"] {
                    found.push(table.by_connect(value));
                }
            }
            let what = |route: &Arc<route::Route>| {
                (route.cluster().name().to_string(), route.allow_sources().to_vec())
            };
            found.into_iter().map(|route| route.map(what)).collect::<Vec<_>>()
        };
        prop_assert_eq!(found(&decoded), found(&original));
    }

    #[test]
    fn garbage_never_panics(input in vec(any::<u8>(), 0..300)) {
        resources::resource(&input);
    }

    #[test]
    fn damaged_resources_never_panic(
        clusters in clusters(),
        routes in vec(route(), 0..6),
        which in any::<sample::Index>(),
        damage in vec((any::<sample::Index>(), any::<u8>()), 1..4),
    ) {
        let params = GatewayParams::default();
        let mut all = base(&params);
        all.extend(clusters.iter().flat_map(cluster));
        all.extend(parts("one", &routes, &params).resources);
        all.extend(whole(&params, [&routes[..]].into_iter()).resources);
        let mut body = which.get(&all).body.to_vec();
        for (place, byte) in damage {
            let place = place.index(body.len());
            body[place] = byte;
        }
        resources::resource(&body);
    }
}
