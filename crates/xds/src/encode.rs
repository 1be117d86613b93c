//! From clusters and routes to resources.

use route::{ClusterSpec, RouteSpec};

use crate::resource::Resource;

/// What a gateway's listeners have in common.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayParams {
    /// Port of the listener `tls`; `None` = there is none.
    pub tls: Option<u16>,
    /// Port of the listener `node`; `None` = there is none.
    pub node: Option<u16>,
    /// Port of the listener `vpn`; `None` = there is none.
    pub vpn: Option<u16>,
    /// Headers that name a CONNECT request's destination, the first that is there.
    pub connect_headers: [&'static str; 2],
    /// Further attempts to connect, each on another endpoint.
    pub connect_retries: u32,
}

impl Default for GatewayParams {
    fn default() -> Self {
        Self {
            tls: Some(443),
            node: Some(8443),
            vpn: Some(8132),
            connect_headers: ["X-Gardener-Destination", "Reversed-VPN"],
            connect_retries: 2,
        }
    }
}

/// Resources, and the routes that are not among them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Encoded {
    /// What is sent.
    pub resources: Vec<Resource>,
    /// What is not, and why.
    pub withheld: Vec<Withheld>,
}

/// A route that is not sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Withheld {
    /// What the route matches.
    pub route: String,
    /// Why it is not sent.
    pub reason: String,
}

/// Encodes a cluster, and its endpoints when all of them are addresses.
#[must_use]
pub fn cluster(spec: &ClusterSpec) -> Vec<Resource> {
    let _ = spec;
    unimplemented!()
}

/// Encodes the listeners without routes that [`parts`] are added to.
#[must_use]
pub fn base(params: &GatewayParams) -> Vec<Resource> {
    let _ = params;
    unimplemented!()
}

/// Encodes the routes of one group as parts of listeners.
#[must_use]
pub fn parts(group: &str, routes: &[RouteSpec], params: &GatewayParams) -> Encoded {
    let _ = (group, routes, params);
    unimplemented!()
}

/// Encodes the routes of all groups as whole listeners.
pub fn whole<'a>(
    params: &GatewayParams,
    groups: impl Iterator<Item = (&'a str, &'a [RouteSpec])>,
) -> Encoded {
    let _ = (params, groups.count());
    unimplemented!()
}
