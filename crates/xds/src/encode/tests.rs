//! What Envoy needs that decoding does not show, and what is withheld.

use prost::Message;
use route::{ClusterSpec, EndpointSpec, RouteMatch};

use super::*;
use crate::decode::{MAX_NAME_BYTES, decode};
use crate::proto::{
    Cluster, FilterChain, HttpConnectionManager, Listener, RouteConfiguration, TcpProxy,
};

fn names(names: &[&str]) -> RouteMatch {
    RouteMatch::ServerNames(names.iter().map(ToString::to_string).collect())
}

fn to(prefix: &str, port: Option<u16>) -> RouteMatch {
    RouteMatch::Destinations {
        prefixes: vec![prefix.parse().unwrap()],
        port,
    }
}

fn connect(values: &[&str]) -> RouteMatch {
    RouteMatch::ConnectDestinations(values.iter().map(ToString::to_string).collect())
}

fn limited(matches: RouteMatch) -> RouteSpec {
    RouteSpec {
        allow_sources: vec!["192.0.2.0/24".parse().unwrap()],
        ..RouteSpec::new(matches, "c")
    }
}

fn whole_of(routes: &[RouteSpec]) -> Encoded {
    whole(&GatewayParams::default(), [routes].into_iter())
}

fn body<M: Message + Default>(resources: &[Resource], kind: ResourceType, name: &str) -> M {
    let found = resources
        .iter()
        .find(|one| one.kind == kind && &*one.name == name);
    M::decode(&*found.unwrap().body).unwrap()
}

fn listener_of(resources: &[Resource], name: &str) -> Listener {
    body(resources, ResourceType::Listener, name)
}

fn listed(resources: &[Resource]) -> Vec<String> {
    let name = |one: &Resource| {
        let kind = one.kind.type_url().rsplit('.').next().unwrap();
        format!("{kind} {}", one.name)
    };
    resources.iter().map(name).collect()
}

fn unpacked<M: Message + Default>(chain: &FilterChain) -> M {
    M::decode(&*chain.filters[0].typed_config.as_ref().unwrap().value).unwrap()
}

#[test]
fn a_change_of_one_group_is_that_groups_parts() {
    let params = GatewayParams::default();
    let wanted = ["Listener tls", "Listener node", "Listener vpn"];
    assert_eq!(listed(&base(&params)), wanted);
    assert_eq!(parts("g", &[], &params), Encoded::default());
    let named = [RouteSpec::new(names(&["a"]), "c")];
    assert_eq!(
        listed(&parts("g", &named, &params).resources),
        ["Listener tls|g"]
    );
    let key = RouteMatch::WireGuard {
        public_keys: vec![[0xab; 32]],
        route_id: None,
    };
    let number = RouteMatch::WireGuard {
        public_keys: Vec::new(),
        route_id: Some(17),
    };
    let all = [connect(&["x"]), to("10.0.0.0/8", None), key, number];
    let all = all.map(|matches| RouteSpec::new(matches, "c"));
    // `head -c 32 /dev/zero | tr '\0' '\253' | sha256sum`
    let hash = "9a2db2e23f1504cd056606553ac049c5";
    let wanted = [
        "Listener node|g".to_owned(),
        "Listener vpn|g".to_owned(),
        format!("WireGuardRoute g/{hash}"),
        "WireGuardRoute g/17".to_owned(),
    ];
    assert_eq!(listed(&parts("g", &all, &params).resources), wanted);
    assert_eq!(parts("g", &all, &params), parts("g", &all, &params));
}

#[test]
fn whole_listeners_reference_connect_routes() {
    let encoded = whole_of(&[RouteSpec::new(connect(&["x"]), "c")]);
    let wanted = [
        "Listener node",
        "RouteConfiguration node",
        "Listener vpn",
        "RouteConfiguration vpn",
    ];
    // A listener without chains is one that Envoy refuses.
    assert_eq!(listed(&encoded.resources), wanted);
    let vpn = listener_of(&encoded.resources, "vpn");
    let manager: HttpConnectionManager = unpacked(&vpn.filter_chains[0]);
    assert_eq!(manager.rds.unwrap().route_config_name, "vpn");
    let node = listener_of(&encoded.resources, "node");
    assert!(node.filter_chains.is_empty() && node.default_filter_chain.is_some());
    let kind = ResourceType::RouteConfiguration;
    let routes: RouteConfiguration = body(&encoded.resources, kind, "node");
    let headers: Vec<String> = routes.virtual_hosts[0]
        .routes
        .iter()
        .map(|route| {
            let headers = &route.matches.as_ref().unwrap().headers;
            headers.first().map_or("", |header| &header.name).to_owned()
        })
        .collect();
    let [first, second] = GatewayParams::default().connect_headers;
    assert_eq!(headers, [first, second, first, second, "", ""]);
}

#[test]
fn source_list_is_not_bypassed_by_wildcard() {
    let routes = [
        limited(names(&["a"])),
        RouteSpec::new(names(&["*", "b"]), "d"),
    ];
    let tls = listener_of(&whole_of(&routes).resources, "tls");
    // A default chain would take who is refused by the list of `a`.
    assert_eq!(tls.default_filter_chain, None);
    let told: Vec<_> = tls
        .filter_chains
        .iter()
        .map(|chain| {
            let matches = chain.filter_chain_match.as_ref().unwrap();
            assert_eq!(matches.transport_protocol, "tls");
            let sources = matches.source_prefix_ranges.len();
            (
                matches.server_names.join(","),
                sources,
                unpacked::<TcpProxy>(chain).cluster,
            )
        })
        .collect();
    let wanted = [("a", 1, "c"), ("", 0, "d"), ("b", 0, "d")];
    let wanted = wanted.map(|(name, sources, to)| (name.to_owned(), sources, to.to_owned()));
    assert_eq!(told, wanted);
}

#[test]
fn any_port_routes_repeat_for_each_port() {
    let routes = [
        RouteSpec::new(to("10.0.0.0/8", None), "any"),
        RouteSpec::new(to("192.0.2.0/24", Some(443)), "https"),
        RouteSpec::new(to("10.0.0.0/8", Some(80)), "http"),
    ];
    let chains = |encoded: &Encoded, name: &str| {
        let chains = listener_of(&encoded.resources, name).filter_chains;
        let told = chains.iter().map(|chain| {
            let matches = chain.filter_chain_match.as_ref().unwrap();
            let prefix = matches.prefix_ranges[0].address_prefix.clone();
            (
                prefix,
                matches.destination_port.unwrap_or(0),
                unpacked::<TcpProxy>(chain).cluster,
            )
        });
        told.map(|(prefix, port, to)| format!("{prefix} {port} {to}"))
            .collect::<Vec<_>>()
    };
    let wanted = [
        "192.0.2.0 443 https",
        "10.0.0.0 80 http",
        "10.0.0.0 443 any",
        "10.0.0.0 0 any",
    ];
    assert_eq!(chains(&whole_of(&routes), "node"), wanted);
    let parts = parts("g", &routes, &GatewayParams::default());
    let wanted = ["10.0.0.0 0 any", "192.0.2.0 443 https", "10.0.0.0 80 http"];
    assert_eq!(chains(&parts, "node|g"), wanted);
}

#[test]
fn chains_are_not_repeated_without_end() {
    let any = |n: u8| RouteSpec::new(to(&format!("10.{n}.0.0/16"), None), "any");
    let own = |port| RouteSpec::new(to("192.0.2.0/24", Some(port)), "own");
    let count = |routes: &[RouteSpec]| {
        let encoded = whole_of(routes);
        let chains = listener_of(&encoded.resources, "node").filter_chains.len();
        (chains, encoded.withheld.len())
    };
    let mut routes: Vec<RouteSpec> = (0..100).map(any).chain((1..=100).map(own)).collect();
    assert_eq!(count(&routes), (100 * 100 + 100 + 100, 0));
    routes.push(any(100));
    assert_eq!(count(&routes), (100, 101));
}

#[test]
fn envoys_own_idle_timeout_is_switched_off() {
    let proxy = |encoded: Encoded, name: &str| -> TcpProxy {
        unpacked(&listener_of(&encoded.resources, name).filter_chains[0])
    };
    let routes = [RouteSpec {
        max_connection_age: Some(Duration::ZERO),
        ..RouteSpec::new(names(&["a"]), "c")
    }];
    let envoys = proxy(whole_of(&routes), "tls");
    assert_eq!(envoys.idle_timeout, Some(duration(Duration::ZERO)));
    assert_eq!(envoys.max_downstream_connection_duration, None);
    assert_eq!(
        (envoys.hash_policy.len(), envoys.max_connect_attempts),
        (1, Some(3))
    );
    let ours = proxy(parts("g", &routes, &GatewayParams::default()), "tls|g");
    assert_eq!(ours.idle_timeout, None);
    let zero = Some(duration(Duration::ZERO));
    assert_eq!(ours.max_downstream_connection_duration, zero);
}

#[test]
fn unencodable_route_is_withheld_alone() {
    let first = [
        RouteSpec::new(names(&["a", "b c"]), "c"),
        limited(to("10.0.0.0/8", Some(1))),
        limited(connect(&["x"])),
    ];
    let second = [
        RouteSpec::new(names(&["A", "z"]), "d"),
        RouteSpec::new(to("10.0.0.0/8", Some(1)), "d"),
        RouteSpec::new(connect(&["x", "y"]), "d"),
    ];
    let groups = [&first[..], &second[..]];
    let encoded = whole(&GatewayParams::default(), groups.into_iter());
    let wanted = [
        "server name \"b c\": a host name has letters, digits, hyphens and underscores only",
        "server name \"a\": another route matches the same",
        "destination 10.0.0.0/8 port 1: another route matches the same",
        "CONNECT to \"x\": another route matches the same",
    ];
    assert_eq!(encoded.withheld, wanted);
    let tls = listener_of(&encoded.resources, "tls");
    assert_eq!(tls.filter_chains.len(), 2);
}

/// Clients refuse a response as a whole, with what other groups have in it.
#[test]
fn undecodable_part_is_withheld_alone() {
    let fits = "x".repeat(MAX_NAME_BYTES);
    let long = fits.clone() + "x";
    let values = ["good", &fits, &long];
    let routes = [RouteSpec::new(connect(&values), "c")];
    let encoded = parts("group", &routes, &GatewayParams::default());
    assert_eq!(encoded.withheld.len(), 1, "{:?}", encoded.withheld);
    assert_eq!(encoded.resources.len(), 2);
    for own in &encoded.resources {
        decode(own.kind, &own.name, &own.body).unwrap();
    }
    // 40,000 values of 2,000 bytes.
    let values: Vec<String> = (0..40_000).map(|index| format!("{index:02000}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let routes = [
        RouteSpec::new(connect(&values), "c"),
        RouteSpec::new(names(&["a"]), "c"),
    ];
    let encoded = parts("group", &routes, &GatewayParams::default());
    assert_eq!(listed(&encoded.resources), ["Listener tls|group"]);
    assert_eq!(encoded.withheld.len(), 2, "{:?}", encoded.withheld);
}

#[test]
fn endpoints_are_inline_for_host_names_only() {
    let mut spec = ClusterSpec::new("c");
    let wanted = ["Cluster c", "ClusterLoadAssignment c"];
    assert_eq!(listed(&cluster(&spec)), wanted);
    let one = cluster(&spec);
    spec.endpoints
        .push(EndpointSpec::new("10.0.0.1:443".parse().unwrap()));
    let other = cluster(&spec);
    assert_eq!(
        one[0], other[0],
        "an endpoint more does not touch the cluster"
    );
    assert_ne!(one[1], other[1]);
    spec.endpoints
        .push(EndpointSpec::new("name:443".parse().unwrap()));
    let resources = cluster(&spec);
    assert_eq!(listed(&resources), ["Cluster c"]);
    let message: Cluster = body(&resources, ResourceType::Cluster, "c");
    let assignment = message.load_assignment.unwrap();
    assert_eq!(assignment.endpoints[0].lb_endpoints.len(), 2);
}
