//! From clusters and routes to resources.
//!
//! ```text
//!  ClusterSpec ──cluster──▶ Cluster, ClusterLoadAssignment                        all clients
//!  RouteSpec   ──parts────▶ Listener tls|g, node|g, vpn|g, WireGuardRoute g/…     ours, per group
//!              ──base─────▶ Listener tls, node, vpn without routes                ours
//!              ──parts────▶ Cluster with TLS, where TLS ends in the gateway         ours
//!              ──whole────▶ Listener tls, node, vpn, RouteConfiguration node, vpn Envoy
//! ```
//!
//! Equal input is encoded to equal bytes. Which routes there are is the caller's to decide, and
//! that they do not contradict each other; only in whole listeners, which Envoy would refuse as a
//! whole, is the second of two equal matches withheld.

mod cluster;
mod connect;
mod listener;
mod matches;
mod secret;
mod terminate;
mod wireguard;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use prost::Message;
use route::RouteSpec;

use crate::decode::MAX_RESOURCE_BYTES;
use crate::encode::listener::Listeners;
use crate::resource::{Audience, Resource, ResourceType};

pub use cluster::encode as cluster;
pub use listener::base;
pub use secret::{authorities, key_pair};

/// What a gateway's listeners have in common.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayParams {
    /// Address of all listeners; `::` includes IPv4.
    pub address: IpAddr,
    /// Port of the listener `tls`.
    pub tls: u16,
    /// Port of the listener `node`.
    pub node: u16,
    /// Port of the listener `vpn`.
    pub vpn: u16,
    /// Headers that name a CONNECT request's destination.
    pub connect_headers: [&'static str; 2],
    /// Further attempts to connect, each on another endpoint.
    pub connect_retries: u32,
    /// Time in which a connection has to say where it wants to go.
    pub preamble_timeout: Duration,
}

impl Default for GatewayParams {
    fn default() -> Self {
        Self {
            address: Ipv6Addr::UNSPECIFIED.into(),
            tls: 443,
            node: 8443,
            vpn: 8132,
            connect_headers: ["X-Gardener-Destination", "Reversed-VPN"],
            connect_retries: 2,
            preamble_timeout: Duration::from_secs(10),
        }
    }
}

/// Resources, and the routes that are not among them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Encoded {
    /// What is sent.
    pub resources: Vec<Resource>,
    /// Routes, or parts of what they match, that are not sent, each with the reason.
    pub withheld: Vec<String>,
}

/// Encodes the routes of one group as parts of listeners; groups have different names.
#[must_use]
pub fn parts(group: &str, routes: &[RouteSpec], params: &GatewayParams) -> Encoded {
    let mut listeners = Listeners::new(params, Audience::Parts);
    let mut encoded = Encoded::default();
    listeners.add(routes);
    encoded.resources = listeners.part(group);
    encoded.resources.append(&mut listeners.beside);
    encoded.withheld = listeners.withheld;
    wireguard::encode(group, routes, &mut encoded.resources);
    // A client would refuse the whole response, and with it what other groups have there.
    let (sent, large): (Vec<_>, Vec<_>) = encoded
        .resources
        .into_iter()
        .partition(|own| own.body.len() <= MAX_RESOURCE_BYTES);
    let why = |own: Resource| format!("{}: larger than {MAX_RESOURCE_BYTES} bytes", own.name);
    encoded.withheld.extend(large.into_iter().map(why));
    encoded.resources = sent;
    encoded
}

/// Encodes the routes of all groups as whole listeners, but for those of WireGuard, which Envoy
/// does not know.
pub fn whole<'a>(params: &GatewayParams, groups: impl Iterator<Item = &'a [RouteSpec]>) -> Encoded {
    let mut listeners = Listeners::new(params, Audience::Whole);
    for routes in groups {
        listeners.add(routes);
    }
    Encoded {
        resources: listeners.whole(),
        withheld: listeners.withheld,
    }
}

fn resource(
    kind: ResourceType,
    name: &str,
    message: &impl Message,
    audience: Audience,
) -> Resource {
    Resource {
        kind,
        name: name.into(),
        body: message.encode_to_vec().into(),
        audience,
    }
}

/// Returns a duration as it travels, at most as long as one can be.
fn duration(duration: Duration) -> prost_types::Duration {
    /// 10,000 years, which the wire format ends with.
    const MAX_SECONDS: i64 = 315_576_000_000;

    match prost_types::Duration::try_from(duration) {
        Ok(duration) if duration.seconds < MAX_SECONDS => duration,
        Ok(_) | Err(_) => prost_types::Duration {
            seconds: MAX_SECONDS,
            nanos: 0,
        },
    }
}

#[cfg(test)]
mod tests;
