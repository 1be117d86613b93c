//! Routes and clusters of every gateway: pure functions of the [`ClusterState`], one namespace at a
//! time.
//!
//! ```text
//!   state ─▶ istio, envoy_filter, gateway_api, annotations ─▶ Claims ─▶ connect ─▶ Claims
//!                                                                                   │ restrict
//!   accepted, clusters ◀── Table ◀──put── Group ◀──endpoints, resolve── Claims ◀────┘
//!   of each gateway        the oldest object
//!                          has what two claim
//! ```
//!
//! A group is all routes to Services of one namespace, from objects of any kind and
//! namespace, with the clusters of those Services; so an endpoint's change costs one group.
//! Unsupported objects are reported and affect nothing else; but a route whose restriction
//! cannot be evaluated is withheld. Which objects are for which gateway: `docs/migration.md`.
//!
//! Nothing here knows how routes travel.

use std::collections::BTreeMap;

use route::{ClusterSpec, RouteSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::Problem;
use crate::state::{ClusterState, Labels, ObjectKey, ObjectRef, Protocol, TargetPort};

mod affected;
mod annotations;
mod claims;
mod connect;
mod envoy_filter;
mod gateway_api;
mod istio;
mod policy;
mod resolve;
mod restrict;
mod select;
mod table;
mod terminate;

pub use self::affected::{all_groups, groups_of, groups_of_secret};
pub use self::table::{Changed, Table};

use self::claims::{Claims, Context};
use crate::state::names;

/// The namespace whose objects of Istio are for all namespaces.
const ROOT_NAMESPACE: &str = "istio-system";

/// A gateway: a set of pods that get the same routes.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "GatewayFile")]
pub struct GatewayEntry {
    /// Name, which its pods give as `node.cluster`.
    pub name: String,
    /// Namespace of its pods.
    pub namespace: String,
    /// Labels of its pods.
    pub selector: Labels,
    /// Ports of its Service, as objects name them.
    #[serde(default)]
    pub ports: Ports,
    /// Subject alternative names, any of which a client's certificate must have, with mTLS.
    #[serde(default)]
    pub clients: Vec<String>,
    /// TLS ends in it where objects say so, `tlsTermination`.
    #[serde(skip)]
    pub terminates_tls: bool,
}

/// Ports of a gateway's Service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "PortsFile")]
pub struct Ports {
    /// TLS passthrough by server name.
    pub tls: u16,
    /// Node proxies.
    pub node: u16,
    /// VPN clients.
    pub vpn: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            tls: 443,
            node: 8443,
            vpn: 8132,
        }
    }
}

/// The routes into one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// By gateway, in the order of the configuration.
    pub gateways: Vec<GatewayGroup>,
    /// Routed Services, sorted and distinct: their ports need NetworkPolicies.
    pub routed: BTreeMap<ObjectKey, Vec<Routed>>,
    /// Problems to report, sorted and distinct.
    pub problems: Vec<Problem>,
}

/// The routes of one gateway into one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayGroup {
    /// The clusters that the routes name, sorted by name.
    pub clusters: Vec<ClusterSpec>,
    /// The routes, before conflicts with other objects are resolved.
    pub routes: Vec<SourcedRoute>,
}

/// A route and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcedRoute {
    /// The route.
    pub spec: RouteSpec,
    /// The object that asks for it.
    pub source: ObjectRef,
    /// When that object was created, seconds since 1970.
    pub created: i64,
}

/// A port of a Service's pods that a gateway routes to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Routed {
    /// Index of the gateway in the configuration.
    pub gateway: usize,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port of the pods.
    pub target: TargetPort,
}

/// Returns the routes into `namespace` of gateways with distinct names.
pub fn group(state: &ClusterState, entries: &[GatewayEntry], namespace: &str) -> Group {
    let cx = Context {
        state,
        entries,
        namespace,
    };
    let sources = [
        istio::virtual_services(cx),
        istio::terminating_gateways(cx),
        envoy_filter::patches(cx),
        gateway_api::gateways(cx),
        gateway_api::tls_routes(cx),
        annotations::services(cx),
    ];
    let claims = Claims::merge(cx, sources);
    let connect = connect::services(cx, &claims);
    let claims = Claims::merge(cx, [claims, connect]);
    let unserved = istio::servers(cx, &claims);
    let claims = Claims::merge(cx, [claims, unserved]);
    resolve::group(cx, restrict::apply(cx, claims))
}

#[cfg(test)]
mod tests;
