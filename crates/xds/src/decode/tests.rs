//! What is refused and where, what real control planes send, and what a state makes of it.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod refused;
mod shapes;
mod states;
mod wireguard;

use prost::Message;
use prost_types::Any;

use crate::decode::{Decoded, OwnListener, OwnProtocol, State, Table, decode};
use crate::proto::{
    Address, CidrRange, Cluster, Filter4, FilterChain, FilterChainMatch, HttpConnectionManager,
    Listener, Route, RouteConfiguration, SocketAddress, TcpProxy, VirtualHost, any, kind,
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
    }
}

fn routes(name: &str, routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: "all".to_owned(),
            domains: vec!["*".to_owned()],
            routes,
            require_tls: 0,
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
        state.set(name, right(ResourceType::Cluster, name, &cluster(name)));
    }
    for one in listeners {
        state.set(&one.name, right(ResourceType::Listener, &one.name, one));
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
    let report = |one: &crate::decode::Report| format!("{}: {}", one.name, one.what);
    table.reports.iter().map(report).collect()
}
