//! Listeners and the filter chains of what is not HTTP.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use route::{IpPrefix, RouteMatch, RouteSpec, normal_server_name};

use crate::decode::MAX_NAME_BYTES;
use crate::encode::matches::{Key, cidr_ranges};
use crate::encode::{GatewayParams, connect, duration, resource, terminate};
use crate::proto::{
    Address, Empty, Filter3, Filter4, FilterChain, FilterChainMatch, HashPolicy, Listener,
    ProxyProtocol, Route, SocketAddress, TcpProxy, any, kind,
};
use crate::resource::{Audience, Resource, ResourceType};
use crate::terminate::Terminate;

const TLS: &str = "tls";
const NODE: &str = "node";
const VPN: &str = "vpn";

/// Chains that are added so that Envoy finds what is for any port.
const MAX_REPEATED: usize = 10_000;

/// What the routes added so far make of the listeners.
pub(super) struct Listeners<'p> {
    params: &'p GatewayParams,
    audience: Audience,
    pub(super) withheld: Vec<String>,
    /// What is matched already, where a second match would spoil the first.
    taken: BTreeSet<Key>,
    tls: Vec<FilterChain>,
    /// Routes by destination; the chains depend on all of them.
    destinations: Vec<Destination>,
    connects: Vec<Route>,
    /// What routes whose TLS ends in the gateway need beside listeners.
    pub(super) beside: Vec<Resource>,
}

/// A route by destination.
#[derive(Clone)]
struct Destination {
    prefixes: Vec<IpPrefix>,
    port: Option<u16>,
    sources: Vec<IpPrefix>,
    proxy: TcpProxy,
}

impl<'p> Listeners<'p> {
    pub(super) fn new(params: &'p GatewayParams, audience: Audience) -> Self {
        Self {
            params,
            audience,
            withheld: Vec::new(),
            taken: BTreeSet::new(),
            tls: Vec::new(),
            destinations: Vec::new(),
            connects: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Adds the routes of a group.
    pub(super) fn add(&mut self, routes: &[RouteSpec]) {
        for spec in routes {
            let ends = terminate::of(spec).filter(|_| self.audience == Audience::Parts);
            if let Some(own) = &ends {
                let known: Vec<_> = self.beside.iter().map(|one| one.name.clone()).collect();
                let clusters = terminate::clusters(own, spec);
                let fresh = clusters.filter(|one| !known.contains(&one.name));
                self.beside.extend(fresh);
            }
            match &spec.matches {
                RouteMatch::ConnectDestinations(values) => {
                    for value in values {
                        if value.len() > MAX_NAME_BYTES {
                            let start = &value[..value.floor_char_boundary(100)];
                            let key = Key::Connect(format!("{start}…"));
                            self.withhold(key, format!("longer than {MAX_NAME_BYTES} bytes"));
                            continue;
                        }
                        if self.take(Key::Connect(value.clone())) {
                            let cluster = match &ends {
                                Some(own) => {
                                    self.beside.extend(terminate::internal(value, own, spec));
                                    value
                                }
                                None => &spec.cluster,
                            };
                            let to = (spec, cluster.as_str());
                            let routes = connect::routes(value, to, self.params, self.audience);
                            self.connects.extend(routes);
                        }
                    }
                }
                RouteMatch::Destinations { prefixes, port } => {
                    let mut prefixes = prefixes.clone();
                    prefixes.retain(|prefix| self.take(Key::Destination(*prefix, *port)));
                    if !prefixes.is_empty() {
                        self.destinations.push(Destination {
                            prefixes,
                            port: *port,
                            sources: spec.allow_sources.clone(),
                            proxy: self.tcp_proxy(spec),
                        });
                    }
                }
                RouteMatch::ServerNames(names) => {
                    self.server_names(names, spec, ends.as_deref());
                }
                RouteMatch::WireGuard { .. } => {}
            }
        }
    }

    fn withhold(&mut self, route: impl Display, reason: impl Display) {
        self.withheld.push(format!("{route}: {reason}"));
    }

    /// Returns whether a match is new, and reports it when not.
    fn take(&mut self, key: Key) -> bool {
        if self.taken.contains(&key) {
            self.withhold(key, "another route matches the same");
            return false;
        }
        self.taken.insert(key)
    }

    /// Adds a chain for the names of a route.
    ///
    /// A chain is chosen by name before it is looked at who may use it, and there is no way back:
    /// a client that is refused reaches no wildcard's chain instead. That is why `*` has a chain of
    /// its own and is not the default one, which takes what no other chain wanted.
    fn server_names(&mut self, names: &[String], spec: &RouteSpec, ends: Option<&Terminate>) {
        let mut listed = Vec::with_capacity(names.len());
        let mut catch_all = false;
        for name in names {
            match normal_server_name(name) {
                Ok(name) if !self.take(Key::Name(name.clone())) => {}
                Ok(name) if name == "*" => catch_all = true,
                Ok(name) => listed.push(name),
                Err(error) => self.withhold(Key::Name(name.clone()), error),
            }
        }
        let inner = match ends {
            Some(own) => terminate::chain(own, spec),
            None => FilterChain {
                filters: vec![tcp_filter(&self.tcp_proxy(spec))],
                ..FilterChain::default()
            },
        };
        let chain = |server_names| FilterChain {
            filter_chain_match: Some(FilterChainMatch {
                source_prefix_ranges: cidr_ranges(&spec.allow_sources),
                transport_protocol: TLS.to_owned(),
                server_names,
                ..FilterChainMatch::default()
            }),
            ..inner.clone()
        };
        if catch_all {
            self.tls.push(chain(Vec::new()));
        }
        if !listed.is_empty() {
            self.tls.push(chain(listed));
        }
    }

    fn tcp_proxy(&self, spec: &RouteSpec) -> TcpProxy {
        let age = spec.max_connection_age;
        let mut proxy = TcpProxy {
            cluster: spec.cluster.clone(),
            max_connect_attempts: Some(self.params.connect_retries.saturating_add(1)),
            idle_timeout: spec.idle_timeout.map(duration),
            max_downstream_connection_duration: age.map(duration),
            ..TcpProxy::default()
        };
        if self.audience == Audience::Whole {
            proxy.stat_prefix.clone_from(&spec.cluster);
            // An hour for Envoy when absent, as long as it likes when zero.
            let idle = spec.idle_timeout.unwrap_or_default();
            proxy.idle_timeout = Some(duration(idle));
            let age = age.filter(|age| !age.is_zero());
            proxy.max_downstream_connection_duration = age.map(duration);
            proxy.hash_policy = vec![HashPolicy {
                source_ip: Some(Empty {}),
            }];
        }
        proxy
    }

    /// Encodes the parts of listeners that are not empty.
    pub(super) fn part(&self, group: &str) -> Vec<Resource> {
        let http = |name: &str| {
            let configuration = connect::configuration(name, self.connects.clone());
            http_chain(connect::inline(configuration))
        };
        let part = |name: String, chains: Vec<FilterChain>| {
            (!chains.is_empty()).then(|| {
                let listener = Listener {
                    name: name.clone(),
                    filter_chains: chains,
                    ..Listener::default()
                };
                resource(ResourceType::Listener, &name, &listener, Audience::Parts)
            })
        };
        let [tls, node, vpn] = [TLS, NODE, VPN].map(|listener| format!("{listener}|{group}"));
        let mut node_chains = destination_chains(&self.destinations);
        let mut vpn_chains = Vec::new();
        if !self.connects.is_empty() {
            node_chains.push(http(&node));
            vpn_chains.push(http(&vpn));
        }
        let parts = [
            part(tls, self.tls.clone()),
            part(node, node_chains),
            part(vpn, vpn_chains),
        ];
        parts.into_iter().flatten().collect()
    }

    /// Withholds what is for any port when too many chains would have to be added for it.
    fn limit_repetition(&mut self) {
        let all = std::mem::take(&mut self.destinations);
        let (any, some): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.port.is_none());
        let ports: BTreeSet<_> = some.iter().map(|one| one.port).collect();
        self.destinations = some;
        if any.len().saturating_mul(ports.len()) <= MAX_REPEATED {
            self.destinations.extend(any);
            return;
        }
        for one in any {
            for prefix in one.prefixes {
                let reason = "too many other destinations have ports of their own";
                self.withhold(Key::Destination(prefix, None), reason);
            }
        }
    }

    /// Encodes the listeners and the route configurations that they refer to.
    pub(super) fn whole(&mut self) -> Vec<Resource> {
        self.limit_repetition();
        let params = self.params;
        let mut routes = self.connects.clone();
        routes.extend(connect::otherwise(params));
        let mut resources = Vec::new();
        for mut message in listeners(params, |name| connect::by_name(name, params)) {
            let name = message.name.clone();
            match name.as_str() {
                // Without chains Envoy would refuse the listener.
                TLS if self.tls.is_empty() => continue,
                TLS => message.filter_chains.clone_from(&self.tls),
                NODE => {
                    message.filter_chains = destination_chains(&for_every_port(&self.destinations));
                }
                _ => {}
            }
            let kind = ResourceType::Listener;
            resources.push(resource(kind, &name, &message, Audience::Whole));
            if name != TLS {
                let message = connect::configuration(&name, routes.clone());
                let kind = ResourceType::RouteConfiguration;
                resources.push(resource(kind, &name, &message, Audience::Whole));
            }
        }
        resources
    }
}

/// Encodes the listeners without routes that [`parts`](super::parts) add to.
#[must_use]
pub fn base(params: &GatewayParams) -> Vec<Resource> {
    let http =
        |name: &str| connect::inline(connect::configuration(name, connect::otherwise(params)));
    let listeners = listeners(params, http).into_iter();
    let kind = ResourceType::Listener;
    listeners
        .map(|message| resource(kind, &message.name, &message, Audience::Parts))
        .collect()
}

/// Returns the listeners, whose CONNECT requests are led by the filter `http`.
fn listeners(params: &GatewayParams, http: impl Fn(&str) -> Filter4) -> [Listener; 3] {
    let filters = |name: &str, config| {
        vec![Filter3 {
            name: name.to_owned(),
            typed_config: Some(config),
        }]
    };
    let header = ProxyProtocol {
        allow_requests_without_proxy_protocol: true,
    };
    let tls = Listener {
        listener_filters: filters(
            "envoy.filters.listener.tls_inspector",
            any(kind::TLS_INSPECTOR, &Empty {}),
        ),
        ..listener(TLS, params.tls, params)
    };
    let node = Listener {
        listener_filters: filters(
            "envoy.filters.listener.proxy_protocol",
            any(kind::PROXY_PROTOCOL, &header),
        ),
        default_filter_chain: Some(http_chain(http(NODE))),
        ..listener(NODE, params.node, params)
    };
    let vpn = Listener {
        filter_chains: vec![http_chain(http(VPN))],
        ..listener(VPN, params.vpn, params)
    };
    [tls, node, vpn]
}

fn http_chain(filter: Filter4) -> FilterChain {
    FilterChain {
        filters: vec![filter],
        ..FilterChain::default()
    }
}

fn listener(name: &str, port: u16, params: &GatewayParams) -> Listener {
    Listener {
        name: name.to_owned(),
        address: Some(Address {
            socket_address: Some(SocketAddress {
                protocol: 0,
                address: params.address.to_string(),
                port_value: Some(port.into()),
                ipv4_compat: params.address.is_ipv6(),
            }),
            internal: None,
        }),
        listener_filters_timeout: (params.preamble_timeout > Duration::ZERO)
            .then(|| duration(params.preamble_timeout)),
        ..Listener::default()
    }
}

fn tcp_filter(proxy: &TcpProxy) -> Filter4 {
    Filter4 {
        name: "envoy.filters.network.tcp_proxy".to_owned(),
        typed_config: Some(any(kind::TCP_PROXY, proxy)),
    }
}

fn destination_chains(destinations: &[Destination]) -> Vec<FilterChain> {
    let chain = |destination: &Destination| FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            prefix_ranges: cidr_ranges(&destination.prefixes),
            destination_port: destination.port.map(u32::from),
            direct_source_prefix_ranges: cidr_ranges(&destination.sources),
            ..FilterChainMatch::default()
        }),
        filters: vec![tcp_filter(&destination.proxy)],
        ..FilterChain::default()
    };
    destinations.iter().map(chain).collect()
}

/// Repeats what is for any port for every port that something is for.
///
/// Envoy looks for the port first and does not come back from it, so that a chain for any port of
/// `10.0.0.0/8` would never see a port that another chain has for `192.0.2.0/24`. Here the longest
/// prefix comes first, and with it its own port before any.
fn for_every_port(destinations: &[Destination]) -> Vec<Destination> {
    let ports: BTreeSet<u16> = destinations.iter().filter_map(|one| one.port).collect();
    let own: BTreeSet<(IpPrefix, u16)> = destinations
        .iter()
        .filter_map(|one| Some((one, one.port?)))
        .flat_map(|(one, port)| one.prefixes.iter().map(move |prefix| (*prefix, port)))
        .collect();
    let mut all = Vec::with_capacity(destinations.len());
    for destination in destinations {
        let ports = if destination.port.is_none() {
            ports.iter().copied().map(Some).collect()
        } else {
            Vec::new()
        };
        for port in ports.into_iter().chain([destination.port]) {
            let mut prefixes = destination.prefixes.clone();
            if destination.port.is_none()
                && let Some(port) = port
            {
                prefixes.retain(|prefix| !own.contains(&(*prefix, port)));
            }
            if !prefixes.is_empty() {
                all.push(Destination {
                    prefixes,
                    port,
                    ..destination.clone()
                });
            }
        }
    }
    all
}
