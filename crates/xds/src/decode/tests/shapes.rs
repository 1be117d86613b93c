//! What control planes send for the objects of a seed, by hand.

use prost::Message;

use super::*;
use crate::proto::{
    Empty, Filter3, HeaderPattern, PrincipalIdentifier, ProxyProtocol, Rbac, RbacPermission,
    RbacPolicy, RbacPrincipal, Rds, RedirectAction, RegexMatcher, RouteAction, RouteMatch,
    StringMatcher, StringPattern,
};

const API_A: &str = "outbound|443||kube-apiserver.shoot--foo--a.svc.cluster.local";
const API_B: &str = "outbound|443||kube-apiserver.shoot--foo--b.svc.cluster.local";
const VPN_A: &str = "outbound|1194||vpn-seed-server-0.shoot--foo--a.svc.cluster.local";
const OTHER: &str = "outbound|8080||dashboard.garden.svc.cluster.local";

/// The listener of PROXY headers: a chain of telemetry and a dummy cluster from a Gateway and a
/// VirtualService, and a chain for each shoot's address.
fn proxy_listener() -> Listener {
    let shoot = |ip: &str, cluster: &str| {
        let matches = FilterChainMatch {
            prefix_ranges: vec![range(ip, 32)],
            destination_port: Some(443),
            ..FilterChainMatch::default()
        };
        tcp_chain(matches, cluster)
    };
    let dummy = FilterChain {
        filters: vec![
            raw_filter(kind::STATS, b"whatever this is".to_vec()),
            filter(kind::TCP_PROXY, &tcp_proxy("outbound|9999||localhost")),
        ],
        ..FilterChain::default()
    };
    let header = ProxyProtocol::default();
    Listener {
        listener_filters: vec![Filter3 {
            name: "envoy.filters.listener.proxy_protocol".to_owned(),
            typed_config: Some(any(kind::PROXY_PROTOCOL, &header)),
        }],
        ..listener(
            "0.0.0.0_8443",
            8443,
            vec![dummy, shoot("10.1.2.3", API_A), shoot("10.1.2.4", API_B)],
        )
    }
}

#[test]
fn proxy_header_listener_matches_by_port() {
    let table = table(&state(&[API_A, API_B], &[proxy_listener()]));
    let text = listed(&table);
    assert_eq!(text.len(), 3);
    assert!(
        text[0].contains("0.0.0.0") && text[0].contains("port: None"),
        "{}",
        text[0]
    );
    assert!(
        text[0].ends_with("-> outbound|9999||localhost [1]"),
        "{}",
        text[0]
    );
    assert!(
        text[1].contains("10.1.2.3") && text[1].contains("port: Some(443)"),
        "{}",
        text[1]
    );
    assert!(text[1].ends_with(&format!("-> {API_A} [1]")), "{}", text[1]);
    // The dummy cluster is absent: its connections find no endpoint, no others are affected.
    let wanted = "outbound|9999||localhost: it is not there, and \"0.0.0.0_8443\" leads to it";
    assert_eq!(reports(&table), [wanted]);
    let cluster = table.spec.clusters.last().unwrap();
    assert_eq!(
        (cluster.name.as_str(), cluster.endpoints.len()),
        ("outbound|9999||localhost", 0)
    );
    route::Snapshot::build(table.spec, 1, None).unwrap();
}

fn by_header() -> RouteAction {
    RouteAction {
        cluster_header: Some("reversed-vpn".to_owned()),
        ..tunnel()
    }
}

fn redirects() -> [Route; 2] {
    let redirected = |matches| Route {
        matches: Some(matches),
        redirect: Some(RedirectAction {
            https_redirect: true,
            port_redirect: 443,
            response_code: 0,
        }),
        ..Route::default()
    };
    [
        redirected(RouteMatch {
            connect_matcher: Some(Empty {}),
            ..RouteMatch::default()
        }),
        redirected(RouteMatch {
            prefix: Some("/".to_owned()),
            ..RouteMatch::default()
        }),
    ]
}

/// A CONNECT listener: one regular expression for all shoots, then redirects.
fn connect_listener(name: &str, port: u32, mut first: Vec<Route>) -> Listener {
    first.extend(redirects());
    listener(name, port, vec![http_chain(routes("tunnel", first))])
}

const DESTINATION: &str = r"^outbound\|(1194\|\|vpn-seed-server(-[0-4])?|443\|\|kube-apiserver)\..+\.svc\.cluster\.local$";

#[test]
fn regex_opens_matching_clusters() {
    let vpn = connect_listener(
        "0.0.0.0_8132",
        8132,
        vec![connect_to(regex(DESTINATION), by_header())],
    );
    let state = state(&[API_A, API_B, VPN_A, OTHER], &[vpn]);
    let table = table(&state);
    let wanted =
        [VPN_A, API_A, API_B].map(|name| format!("ConnectDestinations([{name:?}]) -> {name} [2]"));
    assert_eq!(listed(&table), wanted);
    assert_eq!(reports(&table), [""; 0]);
}

#[test]
fn a_pattern_is_held_against_the_whole_value() {
    let patterns = [
        (regex("outbound.*8080"), vec![]),
        (regex(r"outbound\|8080\|\|.*"), vec![OTHER]),
        (
            HeaderPattern::SafeRegex(RegexMatcher {
                regex: ".*vpn.*".to_owned(),
            }),
            vec![VPN_A],
        ),
        (
            string(StringPattern::Prefix("outbound|443".to_owned())),
            vec![API_A],
        ),
        (
            string(StringPattern::Suffix("garden.svc.cluster.local".to_owned())),
            vec![OTHER],
        ),
        (
            string(StringPattern::Contains("-seed-".to_owned())),
            vec![VPN_A],
        ),
        (HeaderPattern::Prefix("outbound|8".to_owned()), vec![OTHER]),
        (HeaderPattern::Suffix("nowhere".to_owned()), vec![]),
        (HeaderPattern::Contains("apiserver".to_owned()), vec![API_A]),
        (HeaderPattern::Present(true), vec![VPN_A, API_A, OTHER]),
        (exact(VPN_A), vec![VPN_A]),
        (exact("unknown"), vec![]),
        (
            HeaderPattern::String(StringMatcher {
                pattern: Some(StringPattern::Exact(API_A.to_uppercase())),
                ignore_case: true,
            }),
            vec![API_A],
        ),
    ];
    for (pattern, wanted) in patterns {
        let told = format!("{pattern:?}");
        let routes = vec![connect_to(pattern, by_header())];
        let table = table(&state(
            &[API_A, VPN_A, OTHER],
            &[connect_listener("vpn", 1, routes)],
        ));
        let clusters: Vec<&str> = table
            .spec
            .routes
            .iter()
            .map(|one| one.cluster.as_str())
            .collect();
        assert_eq!(clusters, wanted, "{told}");
    }
}

#[test]
fn the_first_route_that_matches_counts() {
    let mut refused = connect_to(exact(API_B), to("x"));
    refused.route = None;
    refused.redirect = Some(RedirectAction::default());
    let first = vec![
        connect_to(exact("alias"), to(API_A)),
        refused,
        connect_to(regex(DESTINATION), by_header()),
        connect_to(exact(VPN_A), to(OTHER)),
        connect_to(exact("alias"), to(OTHER)),
        connect_to(HeaderPattern::Present(true), by_header()),
        connect_to(exact("late"), to(OTHER)),
    ];
    let state = state(
        &[API_A, API_B, VPN_A, OTHER],
        &[connect_listener("vpn", 1, first)],
    );
    let table = table(&state);
    let one =
        |value: &str, cluster: &str| format!("ConnectDestinations([{value:?}]) -> {cluster} [2]");
    let wanted = [
        one("alias", API_A),
        one(VPN_A, VPN_A),
        one(API_A, API_A),
        one(OTHER, OTHER),
    ];
    assert_eq!(listed(&table), wanted);
    let late = [3, 4, 6].map(|at| {
        format!("vpn: virtual_hosts[0].routes[{at}]: an earlier route takes its requests")
    });
    assert_eq!(reports(&table), late);
}

#[test]
fn patterns_per_configuration_are_bounded() {
    let kind = ResourceType::RouteConfiguration;
    let some = |count| {
        routes(
            "r",
            vec![connect_to(regex(DESTINATION), by_header()); count],
        )
    };
    right(kind, "r", &some(64));
    let told = wrong(kind, "r", &some(65).encode_to_vec());
    assert_eq!(
        told,
        "RouteConfiguration r: virtual_hosts: more than 64 routes match patterns"
    );
}

#[test]
fn connect_route_sources_are_decoded() {
    let policy = |sources: [&str; 2]| RbacPolicy {
        permissions: vec![RbacPermission { any: Some(true) }],
        principals: sources
            .map(|source| RbacPrincipal {
                identifier: Some(PrincipalIdentifier::RemoteIp(range(source, 8))),
            })
            .into(),
    };
    let policies = [
        ("one".to_owned(), policy(["10.0.0.0", "11.0.0.0"])),
        ("two".to_owned(), policy(["12.9.9.9", "13.0.0.0"])),
    ];
    let rules = Some(Rbac {
        action: 0,
        policies: policies.into(),
    });
    let mut route = connect_to(exact("a"), to(API_A));
    let config = per_route(rules);
    route.typed_per_filter_config = [("envoy.filters.http.rbac".to_owned(), config)].into();
    let mut vpn = connect_listener("vpn", 1, vec![route, connect_to(exact("b"), to(API_A))]);
    let sources = |table: &Table| -> Vec<Vec<String>> {
        let routes = table.spec.routes.iter();
        let texts =
            |one: &route::RouteSpec| one.allow_sources.iter().map(ToString::to_string).collect();
        routes.map(texts).collect()
    };
    let own = ["10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8", "13.0.0.0/8"].map(str::to_owned);
    let listed = table(&state(&[API_A], &[vpn.clone()]));
    assert_eq!(sources(&listed), [own.to_vec(), Vec::new()]);

    // A chain's list is for the routes without one; both together cannot be expressed.
    vpn.filter_chains[0].filter_chain_match = Some(FilterChainMatch {
        direct_source_prefix_ranges: vec![range("192.0.2.0", 24)],
        ..FilterChainMatch::default()
    });
    let listed = table(&state(&[API_A], &[vpn]));
    assert_eq!(sources(&listed), [["192.0.2.0/24"]]);
    let why = "both its chain and the route say who may use it; it is withheld";
    assert_eq!(
        reports(&listed),
        [format!("vpn: virtual_hosts[0].routes[0]: {why}")]
    );
}

#[test]
fn named_route_configurations_are_awaited() {
    let mut manager = manager(routes("", Vec::new()));
    manager.route_config = None;
    manager.rds = Some(Rds {
        config_source: Some(crate::proto::ConfigSource::ads()),
        route_config_name: "tunnels".to_owned(),
    });
    let chain = FilterChain {
        filters: vec![filter(kind::HTTP_CONNECTION_MANAGER, &manager)],
        ..FilterChain::default()
    };
    let mut state = state(&[API_A], &[listener("vpn", 1, vec![chain])]);
    let wanted: Vec<String> = state
        .wanted(ResourceType::RouteConfiguration)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(wanted, ["tunnels"]);
    let kind = ResourceType::RouteConfiguration;
    assert_eq!(state.missing(), [(kind, "tunnels".into())].into());
    assert_eq!(
        reports(&table(&state)),
        ["vpn: filter_chains[0]: its routes \"tunnels\" are not there"]
    );
    let message = routes("tunnels", vec![connect_to(exact("a"), to(API_A))]);
    state.set("tunnels", right(kind, "tunnels", &message));
    assert!(state.missing().is_empty());
    assert_eq!(listed(&table(&state)).len(), 1);
    assert_eq!(reports(&table(&state)), [""; 0]);
}

#[test]
fn names_route_to_clusters_rest_to_default() {
    let mut limited = tcp_chain(names(&["*.example.com"]), API_B);
    let matches = limited.filter_chain_match.as_mut().unwrap();
    matches.transport_protocol = "tls".to_owned();
    matches.source_prefix_ranges = vec![range("192.0.2.77", 24)];
    let raw = FilterChainMatch {
        transport_protocol: "raw_buffer".to_owned(),
        ..FilterChainMatch::default()
    };
    let chains = vec![
        tcp_chain(names(&["Api.Example.com."]), API_A),
        limited,
        tcp_chain(raw, OTHER),
        http_chain(routes("x", Vec::new())),
    ];
    let mut tls = listener("0.0.0.0_9443", 9443, chains);
    tls.default_filter_chain = Some(FilterChain {
        filter_chain_match: None,
        ..tcp_chain(FilterChainMatch::default(), OTHER)
    });
    let table = table(&state(&[API_A, API_B, OTHER], &[tls]));
    let wanted = [
        format!("ServerNames([\"api.example.com\"]) -> {API_A} [0]"),
        format!("ServerNames([\"*.example.com\"]) -> {API_B} [0]"),
        format!("ServerNames([\"*\"]) -> {OTHER} [0]"),
    ];
    assert_eq!(listed(&table), wanted);
    assert_eq!(
        table.spec.routes[1].allow_sources[0].to_string(),
        "192.0.2.0/24"
    );
    let unfit = [
        "0.0.0.0_9443: filter_chains[2]: a tls listener takes only TLS",
        "0.0.0.0_9443: filter_chains[3]: a tls listener takes no HTTP",
    ];
    assert_eq!(reports(&table), unfit);
}
