//! Decides where a connection goes: from a server name, a destination address or a CONNECT value
//! to a route, from its cluster to one endpoint.
//!
//! ```text
//! TableSpec ──Snapshot::build(generation, previous)──▶ Snapshot      immutable, swapped whole
//!                                                        │ by_server_name, by_destination, by_connect, by_route_id
//!                                                        ▼
//!                                                      Route ─▶ Cluster ──pick(cx)──▶ Endpoint
//! ```
//!
//! A snapshot never changes; what does change while it is in effect (connections counted, failures,
//! ejections, the turn of the balancer) sits in atomics that the next snapshot takes over for every
//! cluster name and endpoint address it still has. So a reload forgets nothing, and connections
//! routed by an old snapshot keep counting where the new one looks. There are no locks.
//!
//! There are no sockets, resolvers, clocks or random numbers in here either: `now` and `random`
//! are arguments. Where specifications come from (a file, xDS) is the callers' matter.
#![forbid(unsafe_code)]

mod balance;
mod build;
mod cluster;
mod destinations;
mod endpoint;
mod handler;
mod listeners;
mod maglev;
mod names;
mod prefix;
mod public_key;
mod route;
mod snapshot;
mod spec;
mod tables;

pub use balance::PickContext;
pub use build::BuildErrors;
pub use cluster::{Cluster, ConnectFailure};
pub use endpoint::{Endpoint, EndpointState};
pub use handler::Handler;
pub use listeners::ListenerSet;
pub use names::{HostNameError, normal_pattern as normal_server_name};
pub use prefix::{IpPrefix, IpPrefixError};
pub use public_key::{PublicKeyError, parse_public_key, public_key_start, public_key_text};
pub use route::{Matches, Route, WireGuardMatch};
pub use snapshot::{OnListener, Snapshot};
pub use spec::{
    Balance, ClusterSpec, EndpointAddress, EndpointAddressError, EndpointSpec, OWN_PODS,
    OutlierParams, ProxyVersion, RouteMatch, RouteSpec, TableSpec, TcpOptions,
};
