//! What is refused, and the path that says where.

use std::slice;

use prost::Message as _;

use super::*;
use crate::proto::known::{Kind, Known, Message};
use crate::proto::{
    Filter3, LocalityLbEndpoints, PrincipalIdentifier, RbacPermission, RbacPolicy, RbacPrincipal,
    RedirectAction, TransportSocket, WireGuardRoute,
};

const ASSIGNMENT: ResourceType = ResourceType::ClusterLoadAssignment;
const LISTENER: ResourceType = ResourceType::Listener;
const CLUSTER: ResourceType = ResourceType::Cluster;
const ROUTES: ResourceType = ResourceType::RouteConfiguration;

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
    let body = listener("tls", 443, chains).encode_to_vec();
    let error = wrong(LISTENER, "tls", &body);
    let path = "filter_chains[2].filters[0].typed_config(TcpProxy).tunneling_config";
    let text = format!("Listener tls: {path}: the field is not understood");
    assert_eq!(error, text);
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
        (ASSIGNMENT, ClusterLoadAssignment::known()),
        (LISTENER, Listener::known()),
        (ROUTES, RouteConfiguration::known()),
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
    let told = wrong(CLUSTER, "c", &message.encode_to_vec());
    told.strip_prefix("Cluster c: ").unwrap().to_owned()
}

#[test]
fn cluster_faults_name_the_field() {
    use crate::proto::{CircuitBreakers, EdsClusterConfig, OutlierDetection, Thresholds};

    let timeout = |seconds| prost_types::Duration { seconds, nanos: 0 };
    let refused = Thresholds {
        max_connections: Some(0),
        ..Thresholds::default()
    };
    let outlier = OutlierDetection {
        max_ejection_percent: Some(101),
        ..OutlierDetection::default()
    };
    let breakers = CircuitBreakers {
        thresholds: vec![refused],
    };
    let tls = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let told = [
        cluster_fault(|c| c.discovery_type = 4),
        cluster_fault(|c| c.lb_policy = 7),
        cluster_fault(|c| {
            c.discovery_type = 3;
            c.eds_cluster_config = Some(EdsClusterConfig::default());
        }),
        cluster_fault(|c| c.connect_timeout = Some(timeout(-1))),
        cluster_fault(|c| c.connect_timeout = Some(timeout(0))),
        cluster_fault(|c| c.connect_timeout = Some(timeout(315_576_000_001))),
        cluster_fault(|c| c.circuit_breakers = Some(breakers)),
        cluster_fault(|c| c.outlier_detection = Some(outlier)),
        cluster_fault(|c| c.transport_socket = Some(socket(any(tls, &Empty {})))),
        wrong(CLUSTER, "d", &cluster("c").encode_to_vec()),
        wrong(CLUSTER, "", b""),
        wrong(CLUSTER, "c", b"\x0a\x05c"),
    ];
    let wanted = [
        "type: the value 4 is not understood",
        "lb_policy: the value 7 is not understood",
        "eds_cluster_config.eds_config: only ads and self are understood",
        "connect_timeout: it is no duration of 0 to 10,000 years",
        "connect_timeout: it is zero",
        "connect_timeout: it is no duration of 0 to 10,000 years",
        "circuit_breakers: 0 connections would admit no client",
        "outlier_detection.max_ejection_percent: it is more than 100",
        "transport_socket.sni: invalid dns name",
        "Cluster d: name: it is \"c\"",
        "Cluster : name: it is empty",
        "Cluster c: it is malformed",
    ];
    assert_eq!(told, wanted);
}

fn socket(config: Any) -> TransportSocket {
    TransportSocket {
        name: String::new(),
        typed_config: Some(config),
    }
}

#[test]
fn endpoint_faults_name_the_field() {
    let fault = |change: fn(&mut Vec<LbEndpoint>)| {
        let mut second = LocalityLbEndpoints {
            lb_endpoints: vec![at("10.0.0.1", 443)],
            ..LocalityLbEndpoints::default()
        };
        change(&mut second.lb_endpoints);
        let localities = vec![LocalityLbEndpoints::default(), second];
        let told = wrong(
            ASSIGNMENT,
            "c",
            &assignment("c", localities).encode_to_vec(),
        );
        let prefix = "ClusterLoadAssignment c: endpoints[1].lb_endpoints";
        told.strip_prefix(prefix).unwrap().to_owned()
    };
    let told = [
        fault(|all| all.push(at("::ffff:10.0.0.1", 443))),
        fault(|all| all[0].load_balancing_weight = Some(0)),
        fault(|all| all[0].health_status = 6),
        fault(|all| all[0] = at("10.0.0.1", 0)),
        fault(|all| all[0] = at("10.0.0.1", 65_536)),
        fault(|all| all[0] = at("not a host", 1)),
    ];
    let wanted = [
        "[1]: 10.0.0.1:443 is there twice",
        "[0].load_balancing_weight: it is 0",
        "[0].health_status: the value 6 is not understood",
        "[0].endpoint.address.socket_address.port_value: it is no port",
        "[0].endpoint.address.socket_address.port_value: it is no port",
        "[0].endpoint.address.socket_address.address: a host name has letters, digits, hyphens \
         and underscores only",
    ];
    assert_eq!(told, wanted);
}

fn listener_fault(change: impl FnOnce(&mut Listener)) -> String {
    let mut message = listener("tls", 443, vec![tcp_chain(names(&["a"]), "c")]);
    change(&mut message);
    let told = wrong(LISTENER, "tls", &message.encode_to_vec());
    told.strip_prefix("Listener tls: ").unwrap().to_owned()
}

fn filter_fault(with: Filter4) -> String {
    let told = listener_fault(|listener| listener.filter_chains[0].filters[0] = with);
    let prefix = "filter_chains[0].filters[0].";
    told.strip_prefix(prefix).unwrap().to_owned()
}

#[test]
fn filter_chain_faults_name_the_field() {
    let fault = |change: fn(&mut FilterChainMatch)| {
        let told = listener_fault(|listener| {
            change(
                listener.filter_chains[0]
                    .filter_chain_match
                    .as_mut()
                    .unwrap(),
            );
        });
        let prefix = "filter_chains[0].filter_chain_match.";
        told.strip_prefix(prefix).unwrap().to_owned()
    };
    let told = [
        fault(|matches| matches.server_names = vec!["ok".into(), "a b".into()]),
        fault(|matches| matches.server_names = vec!["a".into(), "A.".into()]),
        fault(|matches| matches.transport_protocol = "quic".into()),
        fault(|matches| matches.destination_port = Some(0)),
        fault(|matches| matches.prefix_ranges = vec![range("10.0.0.0", 33)]),
        fault(|matches| {
            matches.source_prefix_ranges = vec![range("10.0.0.0", 8)];
            matches.direct_source_prefix_ranges = vec![range("10.0.0.0", 8)];
        }),
    ];
    let wanted = [
        "server_names[1]: a host name has letters, digits, hyphens and underscores only",
        "server_names[1]: a is there twice",
        "transport_protocol: \"quic\" is not understood",
        "destination_port: it is no port",
        "prefix_ranges[0].prefix_len: the prefix length is not a number from 0 to 32",
        "direct_source_prefix_ranges: together with source_prefix_ranges it is not understood",
    ];
    assert_eq!(told, wanted);

    let mongo = "envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy";
    let told = [
        filter_fault(filter(kind::TCP_PROXY, &tcp_proxy(""))),
        filter_fault(filter(mongo, &Empty {})),
        listener_fault(|listener| listener.filter_chains[0].filters.clear()),
        listener_fault(|listener| {
            let filters = &mut listener.filter_chains[0].filters;
            filters.push(filters[0].clone());
        }),
        listener_fault(|listener| listener.default_filter_chain = listener.filter_chains.pop()),
        listener_fault(|listener| listener.listener_filters.push(Filter3::default())),
    ];
    let wanted = [
        "typed_config(TcpProxy).cluster: it is empty",
        &format!("typed_config: the type {mongo:?} is not understood"),
        "filter_chains[0].filters: none of them leads on",
        "filter_chains[0].filters[1]: an earlier filter leads on already",
        "default_filter_chain.filter_chain_match: the default matches whatever else does not",
        "listener_filters[0]: it has no typed_config",
    ];
    assert_eq!(told, wanted);
}

fn routes_fault(change: impl FnOnce(&mut VirtualHost)) -> String {
    let mut message = routes("r", vec![connect_route()]);
    right(ROUTES, "r", &message);
    change(&mut message.virtual_hosts[0]);
    let told = wrong(ROUTES, "r", &message.encode_to_vec());
    let prefix = "RouteConfiguration r: virtual_hosts[0].";
    told.strip_prefix(prefix).unwrap().to_owned()
}

fn route_fault(change: impl FnOnce(&mut Route)) -> String {
    let mut route = connect_route();
    change(&mut route);
    let told = routes_fault(|host| host.routes.push(route));
    told.strip_prefix("routes[1]").unwrap().to_owned()
}

/// A CONNECT route that is right.
fn connect_route() -> Route {
    let mut route = connect_to(HeaderPattern::Exact("a".to_owned()), to("c"));
    headers(&mut route)[0].name = "X-Destination".to_owned();
    route
}

fn headers(route: &mut Route) -> &mut Vec<HeaderMatcher> {
    &mut route.matches.as_mut().unwrap().headers
}

fn action(route: &mut Route) -> &mut RouteAction {
    route.route.as_mut().unwrap()
}

#[test]
fn route_faults_name_the_field() {
    let pattern = |pattern| route_fault(|route| headers(route)[0].pattern = Some(pattern));
    let tunnel = |change: fn(&mut UpgradeConfig)| {
        route_fault(|route| change(&mut action(route).upgrade_configs[0]))
    };
    let told = [
        route_fault(|route| route.matches = None),
        route_fault(|route| route.route = None),
        route_fault(|route| route.matches.as_mut().unwrap().connect_matcher = None),
        route_fault(|route| headers(route).clear()),
        route_fault(|route| {
            let header = headers(route)[0].clone();
            headers(route).push(header);
        }),
        route_fault(|route| headers(route)[0].invert_match = true),
        pattern(string(StringPattern::Prefix("a".to_owned()))),
        route_fault(|route| {
            action(route).cluster = None;
            action(route).cluster_header = Some("X-Other".to_owned());
        }),
        route_fault(|route| action(route).upgrade_configs.clear()),
        tunnel(|config| config.connect_config = None),
        tunnel(|config| config.connect_config = Some(ConnectConfig { allow_post: true })),
        tunnel(|config| config.enabled = Some(false)),
        routes_fault(|host| host.domains = vec!["a.example".to_owned()]),
        pattern(regex("")),
    ];
    let wanted = [
        ".match: it is missing",
        ": it has no action",
        ".route: only CONNECT requests are led on",
        ".route: without a header to go by it is not understood",
        ".match.headers: only one is understood",
        ".match.headers[0].invert_match: it is not understood",
        ".route.cluster: for a pattern of values it is not understood; cluster_header is",
        ".route.cluster_header: it is another header than the one that is matched",
        ".route.upgrade_configs: CONNECT is missing",
        ".route.upgrade_configs[0]: without connect_config it is not understood",
        ".route.upgrade_configs[0].connect_config.allow_post: it is not understood",
        ".route.upgrade_configs[0].enabled: CONNECT would be refused",
        "domains: only \"*\" is understood",
        ".match.headers[0].string_match.safe_regex.regex: it is empty, or longer than 4096 bytes",
    ];
    assert_eq!(told, wanted);
    for told in [pattern(regex("(")), pattern(regex("a)(b"))] {
        let path = ".match.headers[0].string_match.safe_regex.regex: ";
        assert!(told.starts_with(path), "{told}");
    }
}

#[test]
fn unsupported_route_sources_are_refused() {
    let fault = |configs: &[(&str, Any)]| {
        let configs = configs.iter();
        let configs = configs.map(|(name, config)| (name.to_string(), config.clone()));
        let told = route_fault(|route| route.typed_per_filter_config = configs.collect());
        let prefix = ".typed_per_filter_config";
        told.strip_prefix(prefix).unwrap().to_owned()
    };
    let rules = |any, sources: &[Option<PrincipalIdentifier>], action| {
        let principals = sources.iter().cloned();
        let policy = RbacPolicy {
            permissions: vec![RbacPermission { any }],
            principals: principals
                .map(|identifier| RbacPrincipal { identifier })
                .collect(),
        };
        per_route(Some(Rbac {
            action,
            policies: [("p".to_owned(), policy)].into(),
        }))
    };
    let some = Some(PrincipalIdentifier::DirectRemoteIp(range("10.0.0.0", 8)));
    let twice = rules(Some(true), slice::from_ref(&some), 0);
    let other = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute";
    let told = [
        fault(&[("rbac", rules(Some(true), slice::from_ref(&some), 1))]),
        fault(&[("rbac", rules(Some(true), &[], 0))]),
        fault(&[("rbac", rules(None, slice::from_ref(&some), 0))]),
        fault(&[("rbac", rules(Some(true), &[some.clone(), None], 0))]),
        // It would admit all clients.
        fault(&[("rbac", per_route(None))]),
        fault(&[("a", twice.clone()), ("b", twice)]),
        fault(&[("rbac", any(other, &Empty {}))]),
    ];
    let wanted = [
        "[0](rbac).rbac.rules.action: only ALLOW is understood",
        "[0](rbac).rbac.rules.policies: no client would be admitted",
        "[0](rbac).rbac.rules.policies[\"p\"].permissions: only any is understood",
        "[0](rbac).rbac.rules.policies[\"p\"].principals[1]: it matches no client",
        "[0](rbac).rbac.rules: it is missing",
        "[1](b): only one RBACPerRoute is understood",
        &format!("[0].value: the type {other:?} is not understood"),
    ];
    assert_eq!(told, wanted);

    let mut manager = manager(routes("r", vec![connect_route()]));
    let rules = Some(Rbac::default());
    manager.http_filters = vec![filter(kind::RBAC, &RbacFilter { rules })];
    assert_eq!(
        filter_fault(filter(kind::HTTP_CONNECTION_MANAGER, &manager)),
        "typed_config(HttpConnectionManager).http_filters[0].typed_config(RBAC).rules: \
         rules for all routes are not understood"
    );
}

#[test]
fn wireguard_faults_name_the_field() {
    let fault = |keys: &[usize], route_id, cluster: &str| {
        let message = WireGuardRoute {
            name: "w".to_owned(),
            public_keys: keys.iter().map(|len| vec![7; *len]).collect(),
            route_id,
            cluster: cluster.to_owned(),
            ..WireGuardRoute::default()
        };
        let told = wrong(ResourceType::WireGuardRoute, "w", &message.encode_to_vec());
        told.strip_prefix("WireGuardRoute w: ").unwrap().to_owned()
    };
    let told = [
        fault(&[], 0, "c"),
        fault(&[32, 31], 0, "c"),
        fault(&[32, 32], 0, "c"),
        fault(&[], 1 << 20, "c"),
        fault(&[], 1, ""),
    ];
    let wanted = [
        "it has neither a key nor a route id",
        "public_keys[1]: it is not of 32 bytes",
        "public_keys[1]: it is there twice",
        "route_id: it is more than 1048575",
        "cluster: it is empty",
    ];
    assert_eq!(told, wanted);
}

#[test]
fn answers_decode_whatever_their_details() {
    let mut redirect = connect_route();
    redirect.route = None;
    redirect.redirect = Some(RedirectAction {
        response_code: 1,
        ..RedirectAction::default()
    });
    right(ROUTES, "r", &routes("r", vec![redirect]));
}

#[test]
fn matchers_nest_only_so_deep() {
    // A transport socket inside a transport socket, and so on.
    let mut nested = socket(any(kind::RAW_BUFFER, &Empty {}));
    for _ in 0..40 {
        let upstream = crate::proto::ProxyProtocolUpstreamTransport {
            config: None,
            transport_socket: Some(nested),
        };
        nested = socket(any(kind::UPSTREAM_PROXY_PROTOCOL, &upstream));
    }
    let told = cluster_fault(|cluster| cluster.transport_socket = Some(nested));
    assert!(told.ends_with("it is nested too deeply"), "{told}");
}
