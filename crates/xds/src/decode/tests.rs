//! What is refused and where, what real control planes send, and what a state makes of it.

mod istio;
mod refused;
mod shapes;
mod states;

use prost::Message;
use prost_types::Any;

use crate::decode::{Decoded, OwnListener, OwnProtocol, State, Table, decode};
use crate::proto::{
    Address, CidrRange, Cluster, ClusterLoadAssignment, ConnectConfig, Empty, Endpoint, Filter4,
    FilterChain, FilterChainMatch, HeaderMatcher, HeaderPattern, HttpConnectionManager, LbEndpoint,
    Listener, LocalityLbEndpoints, Rbac, RbacFilter, RbacPerRoute, RegexMatcher, Route,
    RouteAction, RouteConfiguration, RouteMatch, SocketAddress, StringMatcher, StringPattern,
    TcpProxy, UpgradeConfig, VirtualHost, any, kind,
};
use crate::resource::ResourceType;

fn own() -> [OwnListener; 3] {
    let own = |name: &str, port, protocol| OwnListener {
        name: name.to_owned(),
        port,
        protocol,
    };
    [
        own("tls", 9443, OwnProtocol::Tls),
        own("node", 8443, OwnProtocol::Node),
        own("vpn", 8132, OwnProtocol::Connect),
    ]
}

/// Decodes a message that is right.
fn right(kind: ResourceType, name: &str, message: &impl Message) -> Decoded {
    match decode(kind, name, &message.encode_to_vec()) {
        Ok(decoded) => decoded,
        Err(error) => panic!("{error}"),
    }
}

/// Decodes an invalid message, and returns the error's text.
fn wrong(kind: ResourceType, name: &str, body: &[u8]) -> String {
    decode(kind, name, body).unwrap_err().to_string()
}

/// Adds an empty message as the field `number` to an encoded message.
fn with_field(mut body: Vec<u8>, number: u32) -> Vec<u8> {
    prost::encoding::encode_key(
        number,
        prost::encoding::WireType::LengthDelimited,
        &mut body,
    );
    body.push(0);
    body
}

fn filter(kind: &str, message: &impl Message) -> Filter4 {
    Filter4 {
        name: "any name will do".to_owned(),
        typed_config: Some(any(kind, message)),
    }
}

fn raw_filter(kind: &str, body: Vec<u8>) -> Filter4 {
    Filter4 {
        name: "any name will do".to_owned(),
        typed_config: Some(Any {
            type_url: format!("type.googleapis.com/{kind}"),
            value: body,
        }),
    }
}

fn tcp_proxy(cluster: &str) -> TcpProxy {
    TcpProxy {
        stat_prefix: cluster.to_owned(),
        cluster: cluster.to_owned(),
        ..TcpProxy::default()
    }
}

fn tcp_chain(matches: FilterChainMatch, cluster: &str) -> FilterChain {
    FilterChain {
        filter_chain_match: Some(matches),
        filters: vec![filter(kind::TCP_PROXY, &tcp_proxy(cluster))],
        ..FilterChain::default()
    }
}

fn names(names: &[&str]) -> FilterChainMatch {
    FilterChainMatch {
        server_names: names.iter().map(ToString::to_string).collect(),
        ..FilterChainMatch::default()
    }
}

fn range(address: &str, len: u32) -> CidrRange {
    CidrRange {
        address_prefix: address.to_owned(),
        prefix_len: Some(len),
    }
}

fn listener(name: &str, port: u32, chains: Vec<FilterChain>) -> Listener {
    Listener {
        name: name.to_owned(),
        address: Some(address("0.0.0.0", port)),
        filter_chains: chains,
        ..Listener::default()
    }
}

fn address(host: &str, port: u32) -> Address {
    Address {
        socket_address: Some(SocketAddress {
            address: host.to_owned(),
            port_value: Some(port),
            ..SocketAddress::default()
        }),
        internal: None,
    }
}

fn at(host: &str, port: u32) -> LbEndpoint {
    LbEndpoint {
        endpoint: Some(Endpoint {
            address: Some(address(host, port)),
        }),
        ..LbEndpoint::default()
    }
}

fn connect_to(pattern: HeaderPattern, action: RouteAction) -> Route {
    let header = HeaderMatcher {
        name: "Reversed-VPN".to_owned(),
        pattern: Some(pattern),
        invert_match: false,
    };
    Route {
        matches: Some(RouteMatch {
            prefix: None,
            headers: vec![header],
            connect_matcher: Some(Empty {}),
            ..RouteMatch::default()
        }),
        route: Some(action),
        ..Route::default()
    }
}

fn tunnel() -> RouteAction {
    RouteAction {
        upgrade_configs: vec![UpgradeConfig {
            upgrade_type: "connect".to_owned(),
            enabled: None,
            connect_config: Some(ConnectConfig { allow_post: false }),
        }],
        ..RouteAction::default()
    }
}

fn to(cluster: &str) -> RouteAction {
    RouteAction {
        cluster: Some(cluster.to_owned()),
        ..tunnel()
    }
}

fn string(pattern: StringPattern) -> HeaderPattern {
    HeaderPattern::String(StringMatcher {
        pattern: Some(pattern),
        ignore_case: false,
    })
}

fn regex(regex: &str) -> HeaderPattern {
    let regex = regex.to_owned();
    string(StringPattern::SafeRegex(RegexMatcher { regex }))
}

fn exact(value: &str) -> HeaderPattern {
    string(StringPattern::Exact(value.to_owned()))
}

/// Who may use a route, as it stands in a route.
fn per_route(rules: Option<Rbac>) -> Any {
    let rbac = Some(RbacFilter { rules });
    any(kind::RBAC_PER_ROUTE, &RbacPerRoute { rbac })
}

fn assignment(name: &str, endpoints: Vec<LocalityLbEndpoints>) -> ClusterLoadAssignment {
    ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints,
        policy: None,
    }
}

fn routes(name: &str, routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: "all".to_owned(),
            domains: vec!["*".to_owned()],
            routes,
            ..VirtualHost::default()
        }],
    }
}

fn manager(routes: RouteConfiguration) -> HttpConnectionManager {
    HttpConnectionManager {
        stat_prefix: "http_proxy".to_owned(),
        route_config: Some(routes),
        ..HttpConnectionManager::default()
    }
}

fn http_chain(routes: RouteConfiguration) -> FilterChain {
    FilterChain {
        filters: vec![filter(kind::HTTP_CONNECTION_MANAGER, &manager(routes))],
        ..FilterChain::default()
    }
}

fn cluster(name: &str) -> Cluster {
    Cluster {
        name: name.to_owned(),
        ..Cluster::default()
    }
}

fn state(clusters: &[&str], listeners: &[Listener]) -> State {
    let mut state = State::default();
    for name in clusters {
        state.set(*name, right(ResourceType::Cluster, name, &cluster(name)));
    }
    for one in listeners {
        state.set(
            one.name.as_str(),
            right(ResourceType::Listener, &one.name, one),
        );
    }
    state
}

fn table(state: &State) -> Table {
    state.table(&own()).unwrap()
}

/// Writes the routes as text: what they match, where they lead, which listeners they serve.
fn listed(table: &Table) -> Vec<String> {
    let route = |route: &route::RouteSpec| {
        let serves: Vec<usize> = (0..3).filter(|at| route.listeners.contains(*at)).collect();
        format!("{:?} -> {} {serves:?}", route.matches, route.cluster)
    };
    table.spec.routes.iter().map(route).collect()
}

fn reports(table: &Table) -> Vec<String> {
    let reports = table.reports.iter();
    reports
        .map(|(name, what)| format!("{name}: {what}"))
        .collect()
}
