//! A route of a snapshot: what it matches, who may use it, which cluster it leads to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::prefix::IpPrefix;
use crate::spec::RouteSpec;

/// A rule from what a connection asks for to a cluster; immutable.
#[derive(Debug)]
pub struct Route {
    matches: Matches,
    cluster: Arc<Cluster>,
    allow_sources: Box<[IpPrefix]>,
    idle_timeout: Option<Duration>,
    max_connection_age: Option<Duration>,
}

impl Route {
    pub(crate) fn new(matches: Matches, cluster: Arc<Cluster>, spec: &RouteSpec) -> Self {
        Self {
            matches,
            cluster,
            allow_sources: spec.allow_sources.as_slice().into(),
            idle_timeout: spec.idle_timeout,
            max_connection_age: spec.max_connection_age,
        }
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

    /// Tells whether a client at `source` may use the route; without a list everybody may.
    #[must_use]
    pub fn allows(&self, source: IpAddr) -> bool {
        self.allow_sources.is_empty()
            || self
                .allow_sources
                .iter()
                .any(|prefix| prefix.contains(source))
    }

    /// Returns the prefixes of clients that may use the route; empty = all.
    #[must_use]
    pub fn allow_sources(&self) -> &[IpPrefix] {
        &self.allow_sources
    }

    /// Returns the idle timeout that overrides the process's; zero = never.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// Returns the maximum connection age that overrides the process's; zero = never.
    #[must_use]
    pub fn max_connection_age(&self) -> Option<Duration> {
        self.max_connection_age
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
}

impl fmt::Display for Matches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectDestinations(names) | Self::ServerNames(names) => {
                for (index, name) in names.iter().enumerate() {
                    write!(f, "{}{name}", separator(index))?;
                }
            }
            Self::Destinations { prefixes, port } => {
                for (index, prefix) in prefixes.iter().enumerate() {
                    write!(f, "{}{prefix}", separator(index))?;
                }
                if let Some(port) = port {
                    write!(f, " port {port}")?;
                }
            }
        }
        Ok(())
    }
}

fn separator(index: usize) -> &'static str {
    if index == 0 { "" } else { ", " }
}
