//! What a table is built from: plain parameters of clusters, endpoints and routes.
//!
//! Knows no file format and no wire; a specification may be wrong, which building it tells.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::handler::Handler;
use crate::listeners::ListenerSet;
use crate::names::{HostNameError, check_host_name};
use crate::prefix::IpPrefix;

/// Name of the cluster of a gateway's own pods, to which no route leads: each finds its zone there.
pub const OWN_PODS: &str = "rhizome-gateway";

/// A whole table: what one snapshot is built from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSpec {
    /// The clusters; their names are distinct.
    pub clusters: Vec<ClusterSpec>,
    /// The routes; no two match the same.
    pub routes: Vec<RouteSpec>,
}

/// A named set of endpoints and how it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Name in routes, logs and metrics.
    pub name: String,
    /// The endpoints; their addresses are distinct. May be empty.
    pub endpoints: Vec<EndpointSpec>,
    /// How an endpoint is chosen among equals.
    pub balance: Balance,
    /// Whether endpoints of the gateway's own zone are preferred.
    pub zone_aware: bool,
    /// Time that one attempt to connect may take.
    pub connect_timeout: Duration,
    /// Further attempts, each on another endpoint.
    pub connect_retries: u32,
    /// Most connections at a time; 0 = no limit.
    pub max_connections: u32,
    /// When endpoints that fail are left out; `None` = never.
    pub outlier: Option<OutlierParams>,
    /// PROXY protocol header sent to the endpoint; `None` = no header.
    pub send_proxy_protocol: Option<ProxyVersion>,
    /// Socket options of connections to the endpoints; `None` = the process's.
    pub tcp: Option<Arc<TcpOptions>>,
}

impl ClusterSpec {
    /// Creates a cluster without endpoints and with the defaults: least-request, zone-aware,
    /// 5 s to connect, 2 retries, no connection limit, outlier detection, no PROXY header.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            endpoints: Vec::new(),
            balance: Balance::LeastRequest,
            zone_aware: true,
            connect_timeout: Duration::from_secs(5),
            connect_retries: 2,
            max_connections: 0,
            outlier: Some(OutlierParams::default()),
            send_proxy_protocol: None,
            tcp: None,
        }
    }
}

/// How an endpoint is chosen among equals.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Balance {
    /// The one with the fewest connections for its weight.
    #[default]
    LeastRequest,
    /// By the client's address: the same client reaches the same endpoint.
    Maglev,
    /// At random, in proportion to weight.
    Random,
    /// In turn, in proportion to weight.
    RoundRobin,
}

/// When endpoints that fail are left out for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct OutlierParams {
    /// Failed attempts to connect, in a row, after which an endpoint is ejected; at least 1.
    pub consecutive_connect_failures: u32,
    /// How long the first ejection lasts; the n-th in a row lasts n times as long, n up to 10.
    pub ejection: Duration,
    /// Most endpoints of a cluster that are ejected at a time, percent.
    pub max_ejected_percent: u8,
}

impl Default for OutlierParams {
    fn default() -> Self {
        Self {
            consecutive_connect_failures: 5,
            ejection: Duration::from_secs(30),
            max_ejected_percent: 100,
        }
    }
}

/// One upstream address of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSpec {
    /// Where it listens.
    pub address: EndpointAddress,
    /// Its zone; compared literally with the gateway's.
    pub zone: Option<Arc<str>>,
    /// Share of the connections relative to others; at least 1.
    pub weight: u32,
    /// Lowest number first; higher ones are used when no lower one is usable.
    pub priority: u32,
    /// What the source says of it; `false` leaves it out while others are left.
    pub healthy: bool,
}

impl EndpointSpec {
    /// Creates a healthy endpoint of weight 1 and priority 0 without a zone.
    #[must_use]
    pub fn new(address: EndpointAddress) -> Self {
        Self {
            address,
            zone: None,
            weight: 1,
            priority: 0,
            healthy: true,
        }
    }
}

/// Address of an endpoint: a socket address or a host name to resolve.
///
/// Its text is `10.0.0.7:443`, `[::1]:443` or `name:443`, both parsed and displayed.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum EndpointAddress {
    /// Host name, resolved by the caller with its TTL.
    Host {
        /// DNS name; a trailing dot is kept, as it keeps resolvers from their search list.
        name: String,
        /// TCP port, not 0.
        port: u16,
    },
    /// Socket address.
    Ip(SocketAddr),
}

impl EndpointAddress {
    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Host { port, .. } => *port,
            Self::Ip(addr) => addr.port(),
        }
    }

    /// Returns the host name, unless it is a socket address.
    #[must_use]
    pub fn host_name(&self) -> Option<&str> {
        match self {
            Self::Host { name, .. } => Some(name),
            Self::Ip(_) => None,
        }
    }

    /// Tells what is wrong with an address that was not parsed but put together.
    pub(crate) fn check(&self) -> Result<(), EndpointAddressError> {
        if let Self::Host { name, .. } = self {
            check_host_name(name).map_err(EndpointAddressError::Name)?;
        }
        if self.port() == 0 {
            Err(EndpointAddressError::Port)
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { name, port } => write!(f, "{name}:{port}"),
            Self::Ip(addr) => addr.fmt(f),
        }
    }
}

impl FromStr for EndpointAddress {
    type Err = EndpointAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = if let Ok(addr) = text.parse::<SocketAddr>() {
            Self::Ip(addr)
        } else {
            let (name, port) = text.rsplit_once(':').ok_or(EndpointAddressError::NoPort)?;
            if name.contains(':') && name.parse::<IpAddr>().is_ok() {
                return Err(EndpointAddressError::Brackets);
            }
            if !port.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(EndpointAddressError::Port);
            }
            let port = port.parse().map_err(|_| EndpointAddressError::Port)?;
            Self::Host {
                name: name.to_owned(),
                port,
            }
        };
        address.check().map(|()| address)
    }
}

/// Why an endpoint's address was refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointAddressError {
    /// An IPv6 address with a port lacks its brackets.
    #[error("an IPv6 address is written in brackets, [::1]:443")]
    Brackets,
    /// The host is neither an address nor a host name.
    #[error(transparent)]
    Name(HostNameError),
    /// There is no port.
    #[error("the port is missing")]
    NoPort,
    /// The port is no number of 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

/// PROXY protocol version of a header.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ProxyVersion {
    /// Version 1, text.
    V1,
    /// Version 2, binary.
    V2,
}

/// Options of TCP sockets; zero or empty leaves an option to the kernel.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct TcpOptions {
    /// Idle time before the first keepalive probe (`TCP_KEEPIDLE`); zero = no keepalive.
    pub keepalive: Duration,
    /// Time between keepalive probes (`TCP_KEEPINTVL`).
    pub keepalive_interval: Duration,
    /// Unanswered probes that end a connection (`TCP_KEEPCNT`).
    pub keepalive_probes: u32,
    /// Longest time that sent data may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
    /// Congestion control algorithm (`TCP_CONGESTION`), or [`AUTO`](Self::AUTO).
    pub congestion: String,
    /// Unsent bytes above which a socket is not writable (`TCP_NOTSENT_LOWAT`).
    pub notsent_lowat: u32,
    /// Received bytes that the kernel holds until they are read (`SO_RCVBUF`).
    pub receive_buffer: u32,
    /// Bytes of the largest segment, both ways (`TCP_MAXSEG`), on sockets that are dialed; zero =
    /// what the device carries.
    pub max_segment: u32,
}

impl TcpOptions {
    /// BBR where the kernel has it and permits it, else its default.
    pub const AUTO: &str = "auto";
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            keepalive: Duration::from_secs(55),
            keepalive_interval: Duration::from_secs(55),
            keepalive_probes: 3,
            user_timeout: Duration::ZERO,
            congestion: String::new(),
            notsent_lowat: 0,
            receive_buffer: 0,
            max_segment: 0,
        }
    }
}

/// A rule from what a connection asks for to a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteSpec {
    /// What the route matches.
    pub matches: RouteMatch,
    /// Name of the cluster it leads to.
    pub cluster: String,
    /// The caller's listeners whose connections may use it.
    pub listeners: ListenerSet,
    /// Client addresses that may use it; empty = all.
    pub allow_sources: Vec<IpPrefix>,
    /// Overrides the process's idle timeout; zero = never.
    pub idle_timeout: Option<Duration>,
    /// Overrides the process's maximum connection age; zero = never.
    pub max_connection_age: Option<Duration>,
    /// Serves the connections instead of a relay.
    pub handler: Option<Handler>,
}

impl RouteSpec {
    /// Creates a route without restrictions or overrides.
    #[must_use]
    pub fn new(matches: RouteMatch, cluster: impl Into<String>) -> Self {
        Self {
            matches,
            cluster: cluster.into(),
            listeners: ListenerSet::ALL,
            allow_sources: Vec::new(),
            idle_timeout: None,
            max_connection_age: None,
            handler: None,
        }
    }
}

/// What a route matches.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteMatch {
    /// Values of the header that names a CONNECT request's destination; compared literally.
    ConnectDestinations(Vec<String>),
    /// Destinations that a node proxy's PROXY header carries.
    Destinations {
        /// Prefixes of the destination address.
        prefixes: Vec<IpPrefix>,
        /// Destination port; `None` = any.
        port: Option<u16>,
    },
    /// TLS server names: `a.example.com`, `*.example.com` (one or more labels), or `*` for every
    /// unknown or absent name.
    ServerNames(Vec<String>),
    /// WireGuard servers; at least one key or the route id.
    WireGuard {
        /// Public keys of the servers; no other route has one of them.
        public_keys: Vec<[u8; 32]>,
        /// Number that datagrams of clients who know it carry, from 1 to
        /// [`MAX_ROUTE_ID`](Self::MAX_ROUTE_ID); no other route has it.
        route_id: Option<u32>,
    },
}

impl RouteMatch {
    /// Greatest route id: it travels in 20 bits.
    pub const MAX_ROUTE_ID: u32 = (1 << 20) - 1;
}
