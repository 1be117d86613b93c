//! Routes and clusters of every gateway: pure functions of the [`World`], one namespace at a time.
//!
//! ```text
//!   World ──group(namespace)──▶ Group ──put──▶ Table ──▶ accepted(gateway, group), clusters(gateway, group)
//!             what leads into        older objects
//!             the namespace          keep what two claim
//! ```
//!
//! A group is everything that leads to Services of one namespace, whatever objects say so and
//! wherever they lie, with the clusters of those Services; so an endpoint's change costs one group.
//! Objects that cannot be followed are told of and change nothing else; but a route whose restriction
//! cannot be followed is withheld.
//!
//! Which objects are for which gateway:
//!
//! | object | is for a gateway when |
//! |---|---|
//! | `Gateway` of Istio | its selector selects the gateway's pods: it is part of the configured labels, or a pod with those labels has it |
//! | `VirtualService`, `DestinationRule` | the gateway's namespace sees it (`exportTo`; everybody when that is not given) |
//! | `EnvoyFilter` | it lies in the gateway's namespace or in `istio-system`, and its labels select the pods |
//! | `Gateway` of the Gateway API | its annotation `rhizome.gardener.cloud/gateways` names it; without one: it lies in the gateway's namespace, or its infrastructure labels select the pods |
//! | annotated Service | `rhizome.gardener.cloud/gateways` names it, or is not there |
//!
//! Nothing here knows how routes travel.

use std::collections::BTreeMap;

use route::{ClusterSpec, RouteSpec};

use crate::plan::Problem;
use crate::world::{Labels, ObjectKey, ObjectRef, Protocol, TargetPort, World};

mod annotations;
mod cluster;
mod connect;
mod draft;
mod envoy_filter;
mod gateway_api;
mod istio;
mod policy;
mod restrict;
mod select;
mod table;
mod touched;

pub use self::table::{Changed, Table};
pub use self::touched::{all_groups, groups_of};

use self::draft::Draft;
use crate::world::names;

/// The namespace whose objects of Istio are for all namespaces.
const ROOT_NAMESPACE: &str = "istio-system";

/// Which gateways there are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RouteSettings {
    /// The gateways; their names are distinct.
    pub gateways: Vec<GatewayEntry>,
}

/// A gateway: a set of pods that get the same routes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayEntry {
    /// Its name, in configuration and annotations.
    pub name: String,
    /// Namespace of its pods.
    pub namespace: String,
    /// Labels of its pods.
    pub selector: Labels,
    /// Ports of its Service.
    pub ports: Ports,
}

/// Ports of a gateway's Service, as objects name them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ports {
    /// TLS by server name.
    pub tls: u16,
    /// Node proxies.
    pub node: u16,
    /// VPN clients.
    pub vpn: u16,
}

/// What leads into one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// By gateway, in the order of the settings.
    pub gateways: Vec<GatewayGroup>,
    /// Services that are led to, sorted and distinct: what is routed must be allowed.
    pub routed: BTreeMap<ObjectKey, Vec<Routed>>,
    /// What an operator should know, sorted and distinct.
    pub problems: Vec<Problem>,
}

/// What leads into one namespace from one gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayGroup {
    /// The clusters that the routes name, sorted by name.
    pub clusters: Vec<ClusterSpec>,
    /// The routes, before it is decided who has what two claim.
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

/// A port of a Service's pods that a gateway leads to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Routed {
    /// The gateway's place in the settings.
    pub gateway: usize,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port of the pods.
    pub target: TargetPort,
}

/// Returns what leads into `namespace`.
#[must_use]
pub fn group(world: &World, settings: &RouteSettings, namespace: &str) -> Group {
    let mut draft = Draft::new(world, settings, namespace);
    istio::virtual_services(&mut draft);
    istio::terminating_gateways(&mut draft);
    envoy_filter::patches(&mut draft);
    gateway_api::gateways(&mut draft);
    gateway_api::tls_routes(&mut draft);
    annotations::services(&mut draft);
    connect::services(&mut draft);
    restrict::routes(&mut draft);
    draft.finish()
}

#[cfg(test)]
mod tests;
