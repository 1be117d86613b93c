//! Combines resources into a table for the caller's listeners.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use route::{ClusterSpec, IpPrefix, ListenerSet, TableSpec, TcpOptions};

use crate::decode::MAX_RESOURCES;
use crate::decode::cluster::ClusterConfig;
use crate::decode::connect::ConnectRoutes;
use crate::decode::listener::{
    Chain, Handler, HttpHandler, HttpRoutes, Limits, ListenerConfig, Transport,
};
use crate::decode::routes::{Found, Item, Routes};
use crate::decode::state::State;
use crate::decode::terminate::Terminating;
use crate::proto::TcpKeepalive;
use crate::resource::ResourceType;

/// A listener of the caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnListener {
    /// Its name: resources of this name, or that begin with it and a `|`, are its routes.
    pub name: String,
    /// Its port, by which resources of foreign names are matched.
    pub port: u16,
    /// What its connections begin with.
    pub protocol: OwnProtocol,
}

/// What connections of a listener begin with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnProtocol {
    /// An HTTP CONNECT request.
    Connect,
    /// A node proxy's PROXY header, or an HTTP CONNECT request.
    Node,
    /// A TLS ClientHello.
    Tls,
    /// WireGuard datagrams.
    WireGuard,
}

/// What resources amount to.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Clusters and routes. Every route's cluster is there, if need be without endpoints.
    pub spec: TableSpec,
    /// What has no effect, though it was understood: the name of its resource, and what it is and
    /// why.
    pub reports: Vec<(Arc<str>, String)>,
}

/// Why resources amount to no table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Two routes match the same, and lead elsewhere or differ in who may use them.
    #[error("resources {first:?} and {second:?} both have a route for {matched}")]
    Conflict {
        /// The resource of the first.
        first: String,
        /// The resource of the second; may be the same.
        second: String,
        /// What both match.
        matched: String,
    },
    /// There are more resources of a type than are held.
    #[error("more than {MAX_RESOURCES} resources of type {}", kind.type_url())]
    TooMany {
        /// The type.
        kind: ResourceType,
    },
    /// The caller has more listeners than a route's set can hold.
    #[error("more than {} listeners", ListenerSet::MOST)]
    TooManyListeners,
}

pub(super) fn table(state: &State, own: &[OwnListener]) -> Result<Table, TableError> {
    check_counts(state, own)?;
    let mut builder = Builder {
        state,
        own,
        routes: Routes::default(),
        reports: Vec::new(),
    };
    for (name, one) in state.of(ResourceType::Listener) {
        if let Some(listener) = one.listener() {
            builder.listener(name, listener)?;
        }
    }
    builder.wireguard()?;
    let clusters = builder.clusters();
    Ok(Table {
        spec: TableSpec {
            clusters,
            routes: builder.routes.specs,
        },
        reports: builder.reports,
    })
}

fn check_counts(state: &State, own: &[OwnListener]) -> Result<(), TableError> {
    if own.len() > ListenerSet::MOST {
        return Err(TableError::TooManyListeners);
    }
    let mut kinds = ResourceType::ALL.into_iter();
    match kinds.find(|kind| state.of(*kind).len() > MAX_RESOURCES) {
        Some(kind) => Err(TableError::TooMany { kind }),
        None => Ok(()),
    }
}

/// A table while it is made.
struct Builder<'s> {
    state: &'s State,
    own: &'s [OwnListener],
    routes: Routes<'s>,
    reports: Vec<(Arc<str>, String)>,
}

impl<'s> Builder<'s> {
    fn report(&mut self, name: &Arc<str>, what: impl Into<String>) {
        self.reports.push((Arc::clone(name), what.into()));
    }

    /// Adds the routes of a listener to those of the caller's listener that it belongs to.
    fn listener(
        &mut self,
        name: &'s Arc<str>,
        listener: &'s ListenerConfig,
    ) -> Result<(), TableError> {
        if listener.internal {
            // Clusters lead to it.
            return Ok(());
        }
        let Some(index) = find_own(name, listener.port, self.own) else {
            let why = "no listener of this gateway has its name or port";
            self.report(name, why);
            return Ok(());
        };
        let protocol = self.own[index].protocol;
        for chain in &listener.chains {
            let added = match &chain.handler {
                Handler::Tcp(target) => tcp_match(protocol, chain)
                    .and_then(|keys| self.plain(&target.cluster).map(|()| keys))
                    .map(|keys| {
                        self.routes.add(Found {
                            origin: name,
                            keys,
                            listeners: ListenerSet::only(index),
                            sources: &chain.allow_sources,
                            cluster: &target.cluster,
                            limits: target.limits,
                            handler: None,
                        })
                    }),
                Handler::Terminate(own) => tcp_match(protocol, chain)
                    .and_then(|keys| {
                        if protocol == OwnProtocol::Node {
                            return Err("a node listener ends no TLS");
                        }
                        Ok((keys, self.terminate(own)?))
                    })
                    .map(|(keys, (cluster, handler))| {
                        self.routes.add(Found {
                            origin: name,
                            keys,
                            listeners: ListenerSet::only(index),
                            sources: &chain.allow_sources,
                            cluster,
                            limits: own.limits,
                            handler: Some(handler),
                        })
                    }),
                Handler::Http(handler) => {
                    http_fits(protocol, chain).map(|()| self.http(name, index, chain, handler))
                }
            };
            match added {
                Ok(added) => added?,
                Err(why) => self.report(name, format!("{}: {why}", chain.place)),
            }
        }
        Ok(())
    }

    /// Adds the routes of CONNECT requests.
    fn http(
        &mut self,
        name: &'s Arc<str>,
        index: usize,
        chain: &'s Chain,
        handler: &'s HttpHandler,
    ) -> Result<(), TableError> {
        let state = self.state;
        let (origin, rules) = match &handler.routes {
            HttpRoutes::Inline(rules) => (name, rules),
            HttpRoutes::Named(named) => {
                let kind = ResourceType::RouteConfiguration;
                let Some(rules) = state.of(kind).get(named).and_then(|one| one.routes()) else {
                    let what = format!("{}: its routes {named:?} are not there", chain.place);
                    self.report(name, what);
                    return Ok(());
                };
                (named, rules)
            }
        };
        let found = ConnectRoutes::find(rules, state.of(ResourceType::Cluster));
        for what in found.shadowed {
            self.report(origin, what);
        }
        for route in found.routes {
            let idle_timeout = handler.idle_timeout;
            let (of_chain, own) = (&*chain.allow_sources, &*route.rule.allow_sources);
            if !of_chain.is_empty() && !own.is_empty() {
                let why = "both its chain and the route say who may use it; it is withheld";
                let what = format!("{}: {why}", route.rule.place);
                self.report(origin, what);
                continue;
            }
            let sources = if own.is_empty() { of_chain } else { own };
            let limits = route.rule.limits;
            let (cluster, handler) = match self.beyond(route.cluster) {
                Ok(found) => found,
                Err(why) => {
                    self.report(origin, format!("{}: {why}", route.rule.place));
                    continue;
                }
            };
            self.routes.add(Found {
                origin,
                keys: vec![Item::Connect(route.value)],
                listeners: ListenerSet::only(index),
                sources,
                cluster,
                limits: Limits {
                    idle_timeout: limits.idle_timeout.or(idle_timeout),
                    ..limits
                },
                handler,
            })?;
        }
        Ok(())
    }

    /// Returns where a CONNECT request goes on from a cluster: from one in front of an internal listener, TLS
    /// ends there.
    fn beyond(&self, cluster: &'s str) -> Result<(&'s str, Option<route::Handler>), &'static str> {
        let config = self.state.cluster(cluster);
        let Some(listener) = config.and_then(ClusterConfig::internal_listener) else {
            return self.plain(cluster).map(|()| (cluster, None));
        };
        let listeners = self.state.of(ResourceType::Listener);
        let found = listeners.get(listener).and_then(|one| one.listener());
        let found = found.filter(|own| own.internal && own.chains.len() == 1);
        if found.is_some_and(|own| own.chains.iter().any(Chain::is_restricted)) {
            return Err("its internal listener says who may use it");
        }
        let own = found.and_then(|own| own.terminating().next());
        let own = own.ok_or("no internal listener with one chain that ends TLS is behind it")?;
        let (cluster, handler) = self.terminate(own)?;
        Ok((cluster, Some(handler)))
    }

    /// Checks that bytes can pass to a cluster as they are.
    fn plain(&self, cluster: &str) -> Result<(), &'static str> {
        match self.state.cluster(cluster) {
            Some(config) if config.tls.is_some() => {
                Err("its cluster has TLS, which does not begin here")
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the cluster of a chain that ends TLS, which is the one whose endpoints its own have, and how.
    fn terminate(&self, own: &'s Terminating) -> Result<(&'s str, route::Handler), &'static str> {
        let tls = |name: &'s String| {
            let config = self.state.cluster(name);
            let tls = config.and_then(|own| Some((own, own.tls.as_ref()?)));
            tls.ok_or("a cluster of it is not there, or has no TLS")
        };
        let (config, rest) = tls(&own.cluster)?;
        let identified = own.identified.as_ref().map(tls).transpose()?;
        if identified.is_some_and(|(other, _)| other.assignment() != config.assignment()) {
            return Err("its clusters have different endpoints");
        }
        let terminate = own.with(rest, identified.map(|(_, tls)| tls))?;
        let cluster = self.state.shared(config).unwrap_or(&own.cluster);
        Ok((cluster, route::Handler::new(Arc::new(terminate))))
    }

    /// Adds the routes of WireGuard servers to all listeners that take WireGuard.
    fn wireguard(&mut self) -> Result<(), TableError> {
        let own = self.own.iter().enumerate();
        let own = own.filter(|(_, own)| own.protocol == OwnProtocol::WireGuard);
        let sets = own.map(|(index, _)| ListenerSet::only(index));
        let listeners = sets.reduce(ListenerSet::union);
        let all = self.state.of(ResourceType::WireGuardRoute);
        let Some(listeners) = listeners else {
            if let Some(name) = all.keys().next() {
                let why = "no listener of this gateway takes WireGuard, for which there are";
                self.report(name, format!("{why} {} routes", all.len()));
            }
            return Ok(());
        };
        let all = all.iter();
        for (name, config) in all.filter_map(|(name, one)| Some((name, one.wireguard()?))) {
            let id = config.route_id.map(Item::RouteId).into_iter();
            let keys = config.public_keys.iter().copied().map(Item::PublicKey);
            self.routes.add(Found {
                origin: name,
                keys: id.chain(keys).collect(),
                listeners,
                sources: &config.allow_sources,
                cluster: &config.target.cluster,
                limits: config.target.limits,
                handler: None,
            })?;
        }
        Ok(())
    }

    /// Returns the clusters, including empty ones for routes to missing clusters.
    fn clusters(&mut self) -> Vec<ClusterSpec> {
        let state = self.state;
        let mut options: HashMap<TcpKeepalive, Arc<TcpOptions>> = HashMap::new();
        let all = state.of(ResourceType::Cluster);
        let mut clusters = Vec::with_capacity(all.len());
        for (name, config) in all
            .iter()
            .filter_map(|(name, one)| Some((name, one.cluster()?)))
        {
            if config.internal_listener().is_some() || state.shared(config).is_some() {
                continue;
            }
            let assignments = state.of(ResourceType::ClusterLoadAssignment);
            let assigned = config.assignment().and_then(|name| assignments.get(name));
            let mut spec = config.spec(assigned.and_then(|one| one.assignment()));
            spec.tcp = config.keepalive.map(|keepalive| {
                let shared = options.entry(keepalive);
                Arc::clone(shared.or_insert_with(|| Arc::new(keepalive.over(&state.tcp))))
            });
            if let Some(retries) = self.routes.retries(name) {
                spec.connect_retries = retries;
            }
            clusters.push(spec);
        }
        let known: HashSet<&str> = all.keys().map(AsRef::as_ref).collect();
        let mut absent = BTreeSet::new();
        for (origin, cluster) in &self.routes.origins {
            if !known.contains(cluster) && absent.insert(*cluster) {
                let what = format!("it is not there, and {origin:?} leads to it");
                self.reports.push(((*cluster).into(), what));
            }
        }
        clusters.extend(absent.into_iter().map(ClusterSpec::new));
        clusters
    }
}

/// Returns the place of the caller's listener that a resource belongs to: by name up to the first
/// `|`, else by port.
pub(super) fn find_own(name: &str, port: Option<u16>, own: &[OwnListener]) -> Option<usize> {
    let name = name.split('|').next();
    let by_name = own.iter().position(|own| Some(own.name.as_str()) == name);
    by_name.or_else(|| {
        let port = port?;
        own.iter()
            .position(|own| own.port == port && own.protocol != OwnProtocol::WireGuard)
    })
}

/// Returns what a chain matches that leads to a cluster, or why it is not for such a listener.
fn tcp_match(protocol: OwnProtocol, chain: &Chain) -> Result<Vec<Item<'_>>, &'static str> {
    let matches = &chain.matches;
    let names = || matches.server_names.iter().map(|name| Item::Name(name));
    let destination = |prefix| Item::Destination(prefix, matches.port);
    let by_destination = !matches.prefixes.is_empty() || matches.port.is_some();
    match protocol {
        OwnProtocol::Tls if by_destination => Err("a tls listener knows no destinations"),
        OwnProtocol::Tls if matches.transport == Transport::Raw => {
            Err("a tls listener takes only TLS")
        }
        OwnProtocol::Tls if matches.server_names.is_empty() => Ok(vec![Item::Name("*")]),
        OwnProtocol::Tls => Ok(names().collect()),
        OwnProtocol::Node if !matches.server_names.is_empty() => {
            Err("a node listener knows no server names")
        }
        OwnProtocol::Node if matches.transport == Transport::Tls => {
            Err("a node listener does not tell TLS from others")
        }
        OwnProtocol::Node if matches.prefixes.is_empty() => {
            let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            let all = all
                .into_iter()
                .filter_map(|addr| IpPrefix::new(addr, 0).ok());
            Ok(all.map(destination).collect())
        }
        OwnProtocol::Node => Ok(matches.prefixes.iter().copied().map(destination).collect()),
        OwnProtocol::Connect => Err("a connect listener takes only HTTP"),
        OwnProtocol::WireGuard => Err("a wireguard listener takes no TCP"),
    }
}

/// Returns why a chain that leads CONNECT requests is not for such a listener.
fn http_fits(protocol: OwnProtocol, chain: &Chain) -> Result<(), &'static str> {
    let matches = &chain.matches;
    let any = matches.prefixes.is_empty()
        && matches.port.is_none()
        && matches.server_names.is_empty()
        && matches.transport != Transport::Tls;
    match protocol {
        OwnProtocol::Connect | OwnProtocol::Node if any => Ok(()),
        OwnProtocol::Connect | OwnProtocol::Node => {
            Err("CONNECT requests are not told apart by destination, server name or TLS")
        }
        OwnProtocol::Tls => Err("a tls listener takes no HTTP"),
        OwnProtocol::WireGuard => Err("a wireguard listener takes no TCP"),
    }
}
