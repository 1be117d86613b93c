//! What may be wrong with a specification.

use std::fmt;

use crate::maglev::MAX_ENDPOINTS;
use crate::names::HostNameError;
use crate::prefix::IpPrefix;
use crate::spec::{EndpointAddressError, RouteMatch};

/// What is wrong with a specification: the first faults, and how many there are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BuildErrors {
    first: Vec<BuildError>,
    total: usize,
}

impl BuildErrors {
    /// Faults that are kept; more are only counted.
    pub const KEPT: usize = 20;

    pub(super) fn push(&mut self, error: BuildError) {
        self.total += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(error);
        }
    }

    /// Returns the first faults, at most [`KEPT`](Self::KEPT).
    #[must_use]
    pub fn first(&self) -> &[BuildError] {
        &self.first
    }

    /// Returns the number of all faults.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

impl fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.first.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        match self.total.saturating_sub(self.first.len()) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for BuildErrors {}

/// One fault of a specification.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A cluster is wrong.
    #[error("cluster {cluster:?}: {fault}")]
    Cluster {
        /// The cluster's name.
        cluster: String,
        /// What is wrong with it.
        fault: ClusterFault,
    },
    /// A route is wrong.
    #[error("route {place}: {fault}")]
    Route {
        /// Which of the specification's routes, from 1.
        place: usize,
        /// What is wrong with it.
        fault: RouteFault,
    },
}

/// What is wrong with a cluster.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFault {
    /// Another cluster has the same name.
    #[error("the name is taken by another cluster")]
    Duplicate,
    /// Two endpoints have the same address.
    #[error("endpoint {endpoint:?} is there twice")]
    DuplicateEndpoint {
        /// The endpoint's address.
        endpoint: String,
    },
    /// An endpoint's address cannot be used.
    #[error("endpoint {endpoint:?}: {why}")]
    EndpointAddress {
        /// The endpoint's address.
        endpoint: String,
        /// Why not.
        why: EndpointAddressError,
    },
    /// The time to connect is zero.
    #[error("the time to connect is zero")]
    NoConnectTimeout,
    /// Ejections last no time.
    #[error("the ejection time of outlier detection is zero")]
    NoEjection,
    /// Endpoints are ejected without a failure.
    #[error("the number of failures of outlier detection is zero")]
    NoFailures,
    /// The cluster has no name.
    #[error("the name is empty")]
    NoName,
    /// An endpoint has weight 0.
    #[error("endpoint {endpoint:?} has weight 0; at least 1 is needed")]
    NoWeight {
        /// The endpoint's address.
        endpoint: String,
    },
    /// More than all endpoints may be ejected.
    #[error("at most 100 percent of the endpoints can be ejected, not {given}")]
    Percent {
        /// What was asked for.
        given: u8,
    },
    /// There are more endpoints than 65,535.
    #[error("{given} endpoints are more than a cluster can have, which is {MAX_ENDPOINTS}")]
    TooManyEndpoints {
        /// Number of endpoints.
        given: usize,
    },
}

/// What is wrong with a route.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteFault {
    /// The same destination is matched a second time.
    #[error("destination {prefix}{} is matched twice", port_text(*.port))]
    DuplicateDestination {
        /// Prefix of the destination.
        prefix: IpPrefix,
        /// Port; `None` = any.
        port: Option<u16>,
    },
    /// The same name or CONNECT value is matched a second time.
    #[error("{value:?} is matched twice")]
    DuplicateMatch {
        /// What is matched, in the form in which it is compared.
        value: String,
    },
    /// A WireGuard key is matched a second time.
    #[error("WireGuard public key {} is matched twice", hex(key))]
    DuplicatePublicKey {
        /// The key.
        key: [u8; 32],
    },
    /// A WireGuard route id is matched a second time.
    #[error("WireGuard route id {id} is matched twice")]
    DuplicateRouteId {
        /// The id.
        id: u32,
    },
    /// The route matches nothing, or an empty value.
    #[error("there is nothing to match, or an empty value")]
    NoMatch,
    /// The destination port is 0.
    #[error("port 0 is no destination")]
    Port,
    /// A WireGuard route id does not fit into its 20 bits, or is 0, which stands for none.
    #[error(
        "a WireGuard route id is a number from 1 to {}, not {id}",
        RouteMatch::MAX_ROUTE_ID
    )]
    RouteId {
        /// The id as given.
        id: u32,
    },
    /// A server name is no host name or wildcard.
    #[error("server name {name:?}: {why}")]
    ServerName {
        /// The name as given.
        name: String,
        /// Why not.
        why: HostNameError,
    },
    /// No cluster has the name that the route leads to.
    #[error("there is no cluster {cluster:?}")]
    UnknownCluster {
        /// The name as given.
        cluster: String,
    },
}

fn port_text(port: Option<u16>) -> String {
    port.map(|port| format!(" port {port}")).unwrap_or_default()
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
