//! What is refused, and the path that says where.

use prost::Message as _;

use super::*;
use crate::proto::known::{Kind, Known, Message};
use crate::proto::{
    ClusterLoadAssignment, ConnectConfig, Empty, Endpoint, Filter3, HeaderMatcher, HeaderPattern,
    LbEndpoint, LocalityLbEndpoints, PrincipalIdentifier, Rbac, RbacFilter, RbacPerRoute,
    RbacPermission, RbacPolicy, RbacPrincipal, RedirectAction, RegexMatcher, RouteAction,
    RouteConfiguration, RouteMatch, StringMatcher, StringPattern, TransportSocket, UpgradeConfig,
    WireGuardRoute,
};

const LISTENER: ResourceType = ResourceType::Listener;
const CLUSTER: ResourceType = ResourceType::Cluster;

#[test]
fn unsupported_field_is_named_by_its_path() {
    let proxy = with_field(tcp_proxy("c").encode_to_vec(), 12);
    let chains = vec![
        tcp_chain(names(&["a"]), "c"),
        tcp_chain(names(&["b"]), "c"),
        FilterChain {
            filters: vec![raw_filter(kind::TCP_PROXY, proxy)],
            ..FilterChain::default()
        },
    ];
    let error = decode(
        LISTENER,
        "tls",
        &listener("tls", 443, chains).encode_to_vec(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Listener tls: filter_chains[2].filters[0].typed_config(TcpProxy).tunneling_config: \
         the field is not understood"
    );
    assert_eq!(error.kind(), LISTENER);
    let path = "filter_chains[2].filters[0].typed_config(TcpProxy).tunneling_config";
    assert_eq!(error.path(), path);
}

#[test]
fn unknown_field_is_named_by_its_number() {
    let body = with_field(listener("tls", 443, Vec::new()).encode_to_vec(), 999);
    assert_eq!(
        wrong(LISTENER, "tls", &body),
        "Listener tls: #999: the field is unknown"
    );
    // Numbers in a later version of the API, deep inside.
    let matches = with_field(names(&["a"]).encode_to_vec(), 77);
    let mut chain = vec![0x0a, u8::try_from(matches.len()).unwrap()];
    chain.extend(matches);
    let mut body = listener("tls", 443, Vec::new()).encode_to_vec();
    body.extend([0x1a, u8::try_from(chain.len()).unwrap()]);
    body.extend(chain);
    let wanted = "Listener tls: filter_chains[0].filter_chain_match.#77: the field is unknown";
    assert_eq!(wrong(LISTENER, "tls", &body), wanted);
}

#[test]
fn fields_that_change_no_routing_are_passed_over() {
    // Metadata, access log, statistics; for a cluster metadata and retries of DNS.
    for number in [6, 22, 28] {
        let body = with_field(listener("tls", 443, Vec::new()).encode_to_vec(), number);
        assert!(decode(LISTENER, "tls", &body).is_ok(), "{number}");
    }
    for number in [25, 44] {
        let body = with_field(cluster("c").encode_to_vec(), number);
        assert!(decode(CLUSTER, "c", &body).is_ok(), "{number}");
    }
}

/// Every field of every message that is in the tables as refused is refused, by its name.
#[test]
fn refused_fields_of_root_messages_are_refused() {
    for (kind, message) in [
        (CLUSTER, Cluster::known()),
        (
            ResourceType::ClusterLoadAssignment,
            ClusterLoadAssignment::known(),
        ),
        (LISTENER, Listener::known()),
        (
            ResourceType::RouteConfiguration,
            RouteConfiguration::known(),
        ),
    ] {
        for (number, name) in message.refused {
            let body = with_field(b"\x0a\x01a".to_vec(), *number);
            let error = decode(kind, "a", &body).unwrap_err().to_string();
            assert!(error.contains(&format!(" {name}: ")), "{name}");
        }
        assert!(!message.refused.is_empty());
    }
}

#[test]
fn tables_have_each_number_once() {
    let mut left = vec![
        Cluster::known(),
        ClusterLoadAssignment::known(),
        Listener::known(),
        RouteConfiguration::known(),
        WireGuardRoute::known(),
    ];
    let mut seen: Vec<&Message> = Vec::new();
    while let Some(message) = left.pop() {
        if seen.iter().any(|other| std::ptr::eq(*other, message)) {
            continue;
        }
        seen.push(message);
        let read = message.fields.iter().map(|field| field.0);
        let refused = message.refused.iter().map(|field| field.0);
        let mut numbers: Vec<u32> = read.chain(refused).collect();
        numbers.extend(message.ignored);
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{:?}", message.fields.first());
        assert!(message.ignored.is_sorted() && message.refused.is_sorted());
        for (_, _, kind) in message.fields {
            match kind {
                Kind::One(inner) | Kind::Each(inner) => left.push(inner()),
                Kind::Any(inner) => {
                    left.extend(
                        inner
                            .iter()
                            .filter_map(|(_, inner)| Some(inner.as_ref()?())),
                    );
                }
                Kind::Ignored | Kind::Value => {}
            }
        }
    }
    assert!(seen.len() > 40, "{}", seen.len());
}

fn cluster_fault(change: impl FnOnce(&mut Cluster)) -> String {
    let mut message = cluster("c");
    change(&mut message);
    wrong(CLUSTER, "c", &message.encode_to_vec())
}

#[test]
fn cluster_faults_name_the_field() {
    use crate::proto::{CircuitBreakers, EdsClusterConfig, OutlierDetection, Thresholds};

    let told = cluster_fault(|cluster| cluster.discovery_type = 4);
    assert_eq!(told, "Cluster c: type: the value 4 is not understood");
    let told = cluster_fault(|cluster| cluster.lb_policy = 7);
    assert_eq!(told, "Cluster c: lb_policy: the value 7 is not understood");
    let told = cluster_fault(|cluster| {
        cluster.discovery_type = 3;
        cluster.eds_cluster_config = Some(EdsClusterConfig::default());
    });
    let wanted = "Cluster c: eds_cluster_config.eds_config: only ads and self are understood";
    assert_eq!(told, wanted);
    for seconds in [-1, 0, 315_576_000_001] {
        let duration = prost_types::Duration { seconds, nanos: 0 };
        let told = cluster_fault(|cluster| cluster.connect_timeout = Some(duration));
        assert!(
            told.starts_with("Cluster c: connect_timeout: it is "),
            "{told}"
        );
    }
    let told = cluster_fault(|cluster| {
        let max_connections = Some(0);
        let thresholds = vec![Thresholds {
            max_connections,
            ..Thresholds::default()
        }];
        cluster.circuit_breakers = Some(CircuitBreakers { thresholds });
    });
    assert!(
        told.starts_with("Cluster c: circuit_breakers: 0 connections"),
        "{told}"
    );
    let told = cluster_fault(|cluster| {
        cluster.outlier_detection = Some(OutlierDetection {
            max_ejection_percent: Some(101),
            ..OutlierDetection::default()
        });
    });
    assert_eq!(
        told,
        "Cluster c: outlier_detection.max_ejection_percent: it is more than 100"
    );
    let tls = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let told = cluster_fault(|cluster| {
        cluster.transport_socket = Some(TransportSocket {
            name: "tls".to_owned(),
            typed_config: Some(any(tls, &Empty {})),
        });
    });
    let wanted = format!("transport_socket.typed_config: the type {tls:?} is not understood");
    assert_eq!(told, format!("Cluster c: {wanted}"));
    assert_eq!(
        wrong(CLUSTER, "d", &cluster("c").encode_to_vec()),
        "Cluster d: name: it is \"c\""
    );
    assert_eq!(wrong(CLUSTER, "", b""), "Cluster : name: it is empty");
    assert_eq!(
        wrong(CLUSTER, "c", b"\x0a\x05c"),
        "Cluster c: it is malformed"
    );
}

#[test]
fn endpoint_faults_name_the_field() {
    let told = |endpoints: Vec<LbEndpoint>| {
        let message = ClusterLoadAssignment {
            cluster_name: "c".to_owned(),
            endpoints: vec![
                LocalityLbEndpoints::default(),
                LocalityLbEndpoints {
                    lb_endpoints: endpoints,
                    ..LocalityLbEndpoints::default()
                },
            ],
            policy: None,
        };
        let told = wrong(
            ResourceType::ClusterLoadAssignment,
            "c",
            &message.encode_to_vec(),
        );
        told.strip_prefix("ClusterLoadAssignment c: endpoints[1].")
            .unwrap()
            .to_owned()
    };
    let at = |host: &str, port| LbEndpoint {
        endpoint: Some(Endpoint {
            address: Some(address(host, port)),
        }),
        ..LbEndpoint::default()
    };
    let good = || at("10.0.0.1", 443);
    let twice = vec![good(), at("::ffff:10.0.0.1", 443)];
    assert_eq!(told(twice), "lb_endpoints[1]: 10.0.0.1:443 is there twice");
    let unweighted = LbEndpoint {
        load_balancing_weight: Some(0),
        ..good()
    };
    assert_eq!(
        told(vec![unweighted]),
        "lb_endpoints[0].load_balancing_weight: it is 0"
    );
    let odd = LbEndpoint {
        health_status: 6,
        ..good()
    };
    let wanted = "lb_endpoints[0].health_status: the value 6 is not understood";
    assert_eq!(told(vec![odd]), wanted);
    let wanted = "lb_endpoints[0].endpoint.address.socket_address.port_value: it is no port";
    for port in [0, 65_536] {
        assert_eq!(told(vec![at("10.0.0.1", port)]), wanted);
    }
    let told = told(vec![at("not a host", 1)]);
    assert!(
        told.starts_with("lb_endpoints[0].endpoint.address.socket_address.address: "),
        "{told}"
    );
}

fn chain_fault(change: impl FnOnce(&mut FilterChain)) -> String {
    let mut chain = tcp_chain(names(&["a"]), "c");
    change(&mut chain);
    let told = wrong(
        LISTENER,
        "tls",
        &listener("tls", 443, vec![chain]).encode_to_vec(),
    );
    told.strip_prefix("Listener tls: filter_chains[0]")
        .unwrap()
        .to_owned()
}

#[test]
fn filter_chain_faults_name_the_field() {
    let with = |change: fn(&mut FilterChainMatch)| {
        chain_fault(|chain| change(chain.filter_chain_match.as_mut().unwrap()))
    };
    let told = with(|matches| matches.server_names = vec!["ok".into(), "a b".into()]);
    assert!(
        told.starts_with(".filter_chain_match.server_names[1]: "),
        "{told}"
    );
    let told = with(|matches| matches.server_names = vec!["a".into(), "A.".into()]);
    assert_eq!(
        told,
        ".filter_chain_match.server_names[1]: a is there twice"
    );
    let told = with(|matches| matches.transport_protocol = "quic".into());
    assert_eq!(
        told,
        ".filter_chain_match.transport_protocol: \"quic\" is not understood"
    );
    let told = with(|matches| matches.destination_port = Some(0));
    assert_eq!(told, ".filter_chain_match.destination_port: it is no port");
    let told = with(|matches| matches.prefix_ranges = vec![range("10.0.0.0", 33)]);
    assert!(
        told.starts_with(".filter_chain_match.prefix_ranges[0].prefix_len: "),
        "{told}"
    );
    let told = with(|matches| {
        matches.source_prefix_ranges = vec![range("10.0.0.0", 8)];
        matches.direct_source_prefix_ranges = vec![range("10.0.0.0", 8)];
    });
    assert!(
        told.starts_with(".filter_chain_match.direct_source_prefix_ranges: "),
        "{told}"
    );

    assert_eq!(
        chain_fault(|chain| chain.filters.clear()),
        ".filters: none of them leads on"
    );
    let told = chain_fault(|chain| chain.filters.push(chain.filters[0].clone()));
    assert_eq!(told, ".filters[1]: an earlier filter leads on already");
    let told = chain_fault(|chain| chain.filters[0] = filter(kind::TCP_PROXY, &tcp_proxy("")));
    assert_eq!(
        told,
        ".filters[0].typed_config(TcpProxy).cluster: it is empty"
    );
    let mongo = "envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy";
    let told = chain_fault(|chain| chain.filters[0] = filter(mongo, &Empty {}));
    assert!(
        told.starts_with(".filters[0].typed_config: the type \"envoy."),
        "{told}"
    );
    let mut message = listener("tls", 443, Vec::new());
    message.default_filter_chain = Some(tcp_chain(names(&["a"]), "c"));
    let told = wrong(LISTENER, "tls", &message.encode_to_vec());
    assert!(
        told.starts_with("Listener tls: default_filter_chain.filter_chain_match: "),
        "{told}"
    );
    message.default_filter_chain = None;
    message.listener_filters.push(Filter3::default());
    let told = wrong(LISTENER, "tls", &message.encode_to_vec());
    assert_eq!(
        told,
        "Listener tls: listener_filters[0]: it has no typed_config"
    );
}

/// A CONNECT route that is right.
fn connect_route() -> Route {
    Route {
        matches: Some(RouteMatch {
            headers: vec![HeaderMatcher {
                name: "X-Destination".to_owned(),
                pattern: Some(HeaderPattern::Exact("a".to_owned())),
                invert_match: false,
            }],
            connect_matcher: Some(Empty {}),
            prefix: None,
        }),
        route: Some(RouteAction {
            cluster: Some("c".to_owned()),
            upgrade_configs: vec![UpgradeConfig {
                upgrade_type: "CONNECT".to_owned(),
                enabled: None,
                connect_config: Some(ConnectConfig { allow_post: false }),
            }],
            ..RouteAction::default()
        }),
        ..Route::default()
    }
}

fn route_fault(change: impl FnOnce(&mut Route)) -> String {
    let mut route = connect_route();
    change(&mut route);
    let message = routes("r", vec![connect_route(), route]);
    let told = wrong(
        ResourceType::RouteConfiguration,
        "r",
        &message.encode_to_vec(),
    );
    let prefix = "RouteConfiguration r: virtual_hosts[0].routes[1]";
    told.strip_prefix(prefix).unwrap().to_owned()
}

fn matcher(pattern: StringPattern) -> Option<HeaderPattern> {
    let pattern = Some(pattern);
    Some(HeaderPattern::String(StringMatcher {
        pattern,
        ignore_case: false,
    }))
}

#[test]
fn route_faults_name_the_field() {
    right(
        ResourceType::RouteConfiguration,
        "r",
        &routes("r", vec![connect_route()]),
    );
    fn matches(route: &mut Route) -> &mut RouteMatch {
        route.matches.as_mut().unwrap()
    }
    fn action(route: &mut Route) -> &mut RouteAction {
        route.route.as_mut().unwrap()
    }
    assert_eq!(
        route_fault(|route| route.matches = None),
        ".match: it is missing"
    );
    assert_eq!(
        route_fault(|route| route.route = None),
        ": it has no action"
    );
    let told = route_fault(|route| matches(route).connect_matcher = None);
    assert_eq!(told, ".route: only CONNECT requests are led on");
    let told = route_fault(|route| matches(route).headers.clear());
    assert_eq!(
        told,
        ".route: without a header to go by it is not understood"
    );
    let told = route_fault(|route| {
        let header = matches(route).headers[0].clone();
        matches(route).headers.push(header);
    });
    assert_eq!(told, ".match.headers: only one is understood");
    let told = route_fault(|route| matches(route).headers[0].invert_match = true);
    assert_eq!(told, ".match.headers[0].invert_match: it is not understood");
    let told = route_fault(|route| {
        matches(route).headers[0].pattern = matcher(StringPattern::Prefix("a".to_owned()));
    });
    assert!(told.starts_with(".route.cluster: for a pattern"), "{told}");
    for (regex, wanted) in [
        ("(", "regex"),
        ("", "regex: it is empty"),
        ("a)(b", "regex"),
    ] {
        let told = route_fault(|route| {
            let regex = RegexMatcher {
                regex: regex.to_owned(),
            };
            matches(route).headers[0].pattern = matcher(StringPattern::SafeRegex(regex));
        });
        let path = ".match.headers[0].string_match.safe_regex.";
        assert!(told.starts_with(&format!("{path}{wanted}")), "{told}");
    }
    let told = route_fault(|route| {
        action(route).cluster = None;
        action(route).cluster_header = Some("X-Other".to_owned());
    });
    assert!(
        told.starts_with(".route.cluster_header: it is another header"),
        "{told}"
    );
    let told = route_fault(|route| action(route).upgrade_configs.clear());
    assert_eq!(told, ".route.upgrade_configs: CONNECT is missing");
    let told = route_fault(|route| action(route).upgrade_configs[0].connect_config = None);
    assert!(
        told.starts_with(".route.upgrade_configs[0]: without connect_config"),
        "{told}"
    );
    let told = route_fault(|route| {
        let connect = ConnectConfig { allow_post: true };
        action(route).upgrade_configs[0].connect_config = Some(connect);
    });
    let wanted = ".route.upgrade_configs[0].connect_config.allow_post: it is not understood";
    assert_eq!(told, wanted);
    let told = route_fault(|route| action(route).upgrade_configs[0].enabled = Some(false));
    assert!(
        told.starts_with(".route.upgrade_configs[0].enabled: "),
        "{told}"
    );

    let mut message = routes("r", vec![connect_route()]);
    message.virtual_hosts[0].domains = vec!["a.example".to_owned()];
    let told = wrong(
        ResourceType::RouteConfiguration,
        "r",
        &message.encode_to_vec(),
    );
    let wanted = "RouteConfiguration r: virtual_hosts[0].domains: only \"*\" is understood";
    assert_eq!(told, wanted);
}

#[test]
fn unsupported_route_sources_are_refused() {
    let rules = |permission, principals: Vec<Option<PrincipalIdentifier>>, action| {
        let principals = principals.into_iter();
        let policy = RbacPolicy {
            permissions: vec![RbacPermission { any: permission }],
            principals: principals
                .map(|identifier| RbacPrincipal { identifier })
                .collect(),
        };
        let rules = Some(Rbac {
            action,
            policies: [("p".to_owned(), policy)].into(),
        });
        let rbac = Some(RbacFilter { rules });
        any(kind::RBAC_PER_ROUTE, &RbacPerRoute { rbac })
    };
    let with = |config| {
        move |route: &mut Route| {
            route.typed_per_filter_config = [("rbac".to_owned(), config)].into();
        }
    };
    let source = || PrincipalIdentifier::DirectRemoteIp(range("10.0.0.0", 8));
    let path = ".typed_per_filter_config[0](rbac).rbac.rules.";
    let told = route_fault(with(rules(Some(true), vec![Some(source())], 1)));
    assert_eq!(told, format!("{path}action: only ALLOW is understood"));
    let told = route_fault(with(rules(Some(true), vec![], 0)));
    assert_eq!(told, format!("{path}policies: no client would be admitted"));
    let told = route_fault(with(rules(None, vec![Some(source())], 0)));
    assert_eq!(
        told,
        format!("{path}policies[\"p\"].permissions: only any is understood")
    );
    let told = route_fault(with(rules(Some(true), vec![Some(source()), None], 0)));
    assert_eq!(
        told,
        format!("{path}policies[\"p\"].principals[1]: it matches no client")
    );
    let empty = || any(kind::RBAC_PER_ROUTE, &RbacPerRoute { rbac: None });
    let told = route_fault(with(empty()));
    let missing = ".typed_per_filter_config[0](rbac).rbac.rules: it is missing";
    assert_eq!(told, missing, "it would admit all clients");
    let twice = rules(Some(true), vec![Some(source())], 0);
    let told = route_fault(move |route| {
        let configs = [("a".to_owned(), twice.clone()), ("b".to_owned(), twice)];
        route.typed_per_filter_config = configs.into();
    });
    assert_eq!(
        told,
        ".typed_per_filter_config[1](b): only one RBACPerRoute is understood"
    );
    let other = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute";
    let told = route_fault(with(any(other, &Empty {})));
    assert!(
        told.starts_with(".typed_per_filter_config[0].value: the type"),
        "{told}"
    );

    let mut manager = manager(routes("r", vec![connect_route()]));
    let all = RbacFilter {
        rules: Some(Rbac::default()),
    };
    manager.http_filters = vec![filter(kind::RBAC, &all)];
    let told = chain_fault(|chain| {
        chain.filters[0] = filter(kind::HTTP_CONNECTION_MANAGER, &manager);
    });
    let path = ".filters[0].typed_config(HttpConnectionManager).http_filters[0].typed_config(RBAC)";
    assert_eq!(
        told,
        format!("{path}.rules: rules for all routes are not understood")
    );
}

#[test]
fn answers_decode_whatever_their_details() {
    let mut redirect = connect_route();
    redirect.route = None;
    redirect.redirect = Some(RedirectAction {
        response_code: 1,
        ..RedirectAction::default()
    });
    right(
        ResourceType::RouteConfiguration,
        "r",
        &routes("r", vec![redirect]),
    );
}

#[test]
fn matchers_nest_only_so_deep() {
    // A transport socket inside a transport socket, and so on.
    let mut socket = TransportSocket {
        name: String::new(),
        typed_config: Some(any(kind::RAW_BUFFER, &Empty {})),
    };
    for _ in 0..40 {
        let upstream = crate::proto::ProxyProtocolUpstreamTransport {
            config: None,
            transport_socket: Some(socket),
        };
        socket = TransportSocket {
            name: String::new(),
            typed_config: Some(any(kind::UPSTREAM_PROXY_PROTOCOL, &upstream)),
        };
    }
    let told = cluster_fault(|cluster| cluster.transport_socket = Some(socket));
    assert!(told.ends_with("it is nested too deeply"), "{told}");
}
