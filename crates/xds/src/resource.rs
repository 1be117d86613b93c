//! A resource as it travels: its type, its name and its encoded message.
//!
//! Knows the type URLs and nothing of what is in a message.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

telemetry::labels! {
    /// The types of resources that are understood; the order is the one in which additions are sent
    /// and applied, so that nothing refers to what is not there yet.
    pub enum ResourceType {
        /// `envoy.config.cluster.v3.Cluster`.
        Cluster = "cluster",
        /// `envoy.config.endpoint.v3.ClusterLoadAssignment`.
        ClusterLoadAssignment = "assignment",
        /// `envoy.config.listener.v3.Listener`.
        Listener = "listener",
        /// `envoy.config.route.v3.RouteConfiguration`.
        RouteConfiguration = "route",
        /// `envoy.extensions.transport_sockets.tls.v3.Secret`.
        Secret = "secret",
        /// Ours: where WireGuard datagrams of one server go.
        WireGuardRoute = "wireguard",
    }
}

impl ResourceType {
    /// Returns the type URL, as it is written in requests, responses and `Any`.
    #[must_use]
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::ClusterLoadAssignment => {
                "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
            }
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::RouteConfiguration => {
                "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
            }
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::WireGuardRoute => "type.googleapis.com/rhizome.route.v1.WireGuardRoute",
        }
    }

    /// Returns whether an empty subscription means all resources of the type, as it does for the
    /// roots of a configuration; the others are subscribed by name.
    pub(crate) const fn is_root(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener | Self::WireGuardRoute)
    }

    /// Returns the type of a type URL, if it is one of these.
    #[must_use]
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|own| own.type_url() == url)
    }
}

/// A resource as it travels.
#[derive(Clone, Eq, PartialEq)]
pub struct Resource {
    /// What it is.
    pub kind: ResourceType,
    /// Its name, unique among those of its type and audience.
    pub name: Arc<str>,
    /// The encoded message, without the `Any` around it.
    pub body: Bytes,
    /// Its audience.
    pub audience: Audience,
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Resource");
        shown.field("kind", &self.kind).field("name", &self.name);
        if self.kind != ResourceType::Secret {
            shown.field("body", &self.body);
        }
        shown.field("audience", &self.audience).finish()
    }
}

/// The clients that a resource is for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Audience {
    /// Every client.
    All,
    /// Clients that put a listener together from parts, as ours do: one shoot's change costs one
    /// shoot's bytes. They say so with the client feature `rhizome.listener-parts`.
    Parts,
    /// Clients that need each listener whole, as Envoy does.
    Whole,
}
