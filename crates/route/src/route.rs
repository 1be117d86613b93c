//! A route of a snapshot: what it matches, which clients may use it, which cluster it leads to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::handler::Handler;
use crate::listeners::ListenerSet;
use crate::names::is_normal_of;
use crate::prefix::IpPrefix;
use crate::spec::{RouteMatch, RouteSpec};

/// A rule from what a connection asks for to a cluster; immutable.
#[derive(Debug)]
pub struct Route {
    matches: Matches,
    cluster: Arc<Cluster>,
    listeners: ListenerSet,
    /// Absent when nothing is set, as for most of very many routes.
    options: Option<Box<Options>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Options {
    allow_sources: Box<[IpPrefix]>,
    idle_timeout: Option<Duration>,
    max_connection_age: Option<Duration>,
    handler: Option<Handler>,
}

impl Route {
    pub(crate) fn new(matches: Matches, cluster: Arc<Cluster>, spec: &RouteSpec) -> Self {
        let plain = spec.allow_sources.is_empty()
            && spec.idle_timeout.is_none()
            && spec.max_connection_age.is_none()
            && spec.handler.is_none();
        let options = (!plain).then(|| {
            Box::new(Options {
                allow_sources: spec.allow_sources.as_slice().into(),
                idle_timeout: spec.idle_timeout,
                max_connection_age: spec.max_connection_age,
                handler: spec.handler.clone(),
            })
        });
        Self {
            matches,
            cluster,
            listeners: spec.listeners,
            options,
        }
    }

    /// Returns this route for the listeners of both, if the other is the same but for what it
    /// matches, and no listener is in both.
    pub(crate) fn united(&self, other: &Self) -> Option<Self> {
        let same = Arc::ptr_eq(&self.cluster, &other.cluster) && self.options == other.options;
        (same && !self.listeners.intersects(other.listeners)).then(|| Self {
            matches: self.matches.clone(),
            cluster: Arc::clone(&self.cluster),
            listeners: self.listeners.union(other.listeners),
            options: self.options.clone(),
        })
    }

    /// Tells whether the route is what `spec` describes.
    pub(crate) fn is(&self, spec: &RouteSpec) -> bool {
        // Named one by one, so that a new one cannot be forgotten.
        let RouteSpec {
            matches,
            cluster,
            listeners,
            allow_sources,
            idle_timeout,
            max_connection_age,
            handler,
        } = spec;
        self.matches.are(matches)
            && **self.cluster.name() == **cluster
            && self.listeners == *listeners
            && self.allow_sources() == *allow_sources
            && self.idle_timeout() == *idle_timeout
            && self.max_connection_age() == *max_connection_age
            && self.handler() == handler.as_ref()
    }

    /// Returns what the route matches.
    #[must_use]
    pub fn matches(&self) -> &Matches {
        &self.matches
    }

    /// Returns the cluster that the route leads to.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Tells whether connections of the caller's listener at `index` may use the route.
    #[must_use]
    pub fn serves(&self, index: usize) -> bool {
        self.listeners.contains(index)
    }

    /// Returns the caller's listeners whose connections may use the route.
    #[must_use]
    pub fn listeners(&self) -> ListenerSet {
        self.listeners
    }

    /// Tells whether a client at `source` may use the route; without a list every client may.
    #[must_use]
    pub fn allows(&self, source: IpAddr) -> bool {
        let allowed = self.allow_sources();
        allowed.is_empty() || allowed.iter().any(|prefix| prefix.contains(source))
    }

    /// Returns the prefixes of clients that may use the route; empty = all.
    #[must_use]
    pub fn allow_sources(&self) -> &[IpPrefix] {
        self.options
            .as_ref()
            .map_or(&[], |options| &options.allow_sources)
    }

    /// Returns what serves the connections instead of a relay.
    #[must_use]
    pub fn handler(&self) -> Option<&Handler> {
        self.options.as_ref()?.handler.as_ref()
    }

    /// Returns the idle timeout that overrides the process's; zero = never.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.options.as_ref()?.idle_timeout
    }

    /// Returns the maximum connection age that overrides the process's; zero = never.
    #[must_use]
    pub fn max_connection_age(&self) -> Option<Duration> {
        self.options.as_ref()?.max_connection_age
    }
}

/// What a route matches, in the form in which it is compared; displayed as a comma-separated list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Matches {
    /// Values of the header that names a CONNECT request's destination.
    ConnectDestinations(Box<[Arc<str>]>),
    /// Destination prefixes, and one port or any.
    Destinations {
        /// Prefixes of the destination address.
        prefixes: Box<[IpPrefix]>,
        /// Destination port; `None` = any.
        port: Option<u16>,
    },
    /// Server names and wildcards: lower case, without a trailing dot.
    ServerNames(Box<[Arc<str>]>),
    /// WireGuard servers.
    WireGuard(Box<WireGuardMatch>),
}

impl Matches {
    /// Tells whether these are the matches that `spec` describes.
    fn are(&self, spec: &RouteMatch) -> bool {
        match (self, spec) {
            (Self::ConnectDestinations(own), RouteMatch::ConnectDestinations(values)) => {
                own.len() == values.len() && own.iter().zip(values).all(|(a, b)| **a == **b)
            }
            (
                Self::Destinations { prefixes, port },
                RouteMatch::Destinations {
                    prefixes: others,
                    port: other,
                },
            ) => **prefixes == **others && port == other,
            (Self::ServerNames(own), RouteMatch::ServerNames(names)) => {
                own.len() == names.len() && own.iter().zip(names).all(|(a, b)| is_normal_of(a, b))
            }
            (
                Self::WireGuard(own),
                RouteMatch::WireGuard {
                    public_keys,
                    route_id,
                },
            ) => *own.public_keys == **public_keys && own.route_id == *route_id,
            _ => false,
        }
    }
}

/// The WireGuard servers that a route matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WireGuardMatch {
    /// Public keys of the servers.
    pub public_keys: Box<[[u8; 32]]>,
    /// Number that datagrams of clients who know it carry.
    pub route_id: Option<u32>,
}

impl fmt::Display for Matches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectDestinations(names) | Self::ServerNames(names) => {
                f.write_str(&names.join(", "))?;
            }
            Self::Destinations { prefixes, port } => {
                let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
                f.write_str(&prefixes.join(", "))?;
                if let Some(port) = port {
                    write!(f, " port {port}")?;
                }
            }
            Self::WireGuard(wireguard) => {
                if let Some(id) = wireguard.route_id {
                    write!(f, "WireGuard route id {id}, ")?;
                }
                write!(f, "{} WireGuard keys", wireguard.public_keys.len())?;
            }
        }
        Ok(())
    }
}
