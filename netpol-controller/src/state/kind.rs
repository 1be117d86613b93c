//! The kinds of objects that are watched, and where each is served.
//!
//! Knows names and versions; which of them a configuration needs is `watch`'s.

/// A kind of object.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// `DestinationRule` of Istio.
    DestinationRule,
    /// `EndpointSlice`.
    EndpointSlice,
    /// `Endpoints` of core/v1, where slices are not served, and for `default/kubernetes`.
    Endpoints,
    /// `EnvoyFilter` of Istio.
    EnvoyFilter,
    /// `Gateway` of the Gateway API.
    Gateway,
    /// `Ingress`.
    Ingress,
    /// `Gateway` of Istio.
    IstioGateway,
    /// `Namespace`.
    Namespace,
    /// `NetworkPolicy`.
    NetworkPolicy,
    /// `Pod`, its metadata only.
    Pod,
    /// `Service`.
    Service,
    /// `Cluster` of Gardener's extensions API, which holds a shoot's networks.
    Shoot,
    /// `TLSRoute` of the Gateway API.
    TlsRoute,
    /// `VirtualService` of Istio.
    VirtualService,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::DestinationRule,
        Self::EndpointSlice,
        Self::Endpoints,
        Self::EnvoyFilter,
        Self::Gateway,
        Self::Ingress,
        Self::IstioGateway,
        Self::Namespace,
        Self::NetworkPolicy,
        Self::Pod,
        Self::Service,
        Self::Shoot,
        Self::TlsRoute,
        Self::VirtualService,
    ];

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub const fn group(self) -> &'static str {
        self.served().0
    }

    /// Returns the supported versions, the preferred one first.
    #[must_use]
    pub const fn versions(self) -> &'static [&'static str] {
        self.served().1
    }

    /// Returns the kind as objects write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.served().2
    }

    /// Returns the name of the resource in URLs.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        self.served().3
    }

    /// Returns the group, versions, kind and plural under which it is served.
    const fn served(self) -> Served {
        match self {
            Self::DestinationRule => (ISTIO, ISTIO_V1, "DestinationRule", "destinationrules"),
            Self::EndpointSlice => (DISCOVERY, V1, "EndpointSlice", "endpointslices"),
            Self::Endpoints => ("", V1, "Endpoints", "endpoints"),
            Self::EnvoyFilter => (ISTIO, &["v1alpha3"], "EnvoyFilter", "envoyfilters"),
            Self::Gateway => (GATEWAY_API, &["v1", "v1beta1"], "Gateway", "gateways"),
            Self::Ingress => (NETWORKING, V1, "Ingress", "ingresses"),
            Self::IstioGateway => (ISTIO, ISTIO_V1, "Gateway", "gateways"),
            Self::Namespace => ("", V1, "Namespace", "namespaces"),
            Self::NetworkPolicy => (NETWORKING, V1, "NetworkPolicy", "networkpolicies"),
            Self::Pod => ("", V1, "Pod", "pods"),
            Self::Service => ("", V1, "Service", "services"),
            Self::Shoot => (GARDENER, &["v1alpha1"], "Cluster", "clusters"),
            Self::TlsRoute => (GATEWAY_API, TLS_ROUTE_V1, "TLSRoute", "tlsroutes"),
            Self::VirtualService => (ISTIO, ISTIO_V1, "VirtualService", "virtualservices"),
        }
    }

    /// Returns the resource with its group, as RBAC and metrics have it.
    #[must_use]
    pub fn resource(self) -> String {
        match self.group() {
            "" => self.plural().to_owned(),
            group => format!("{}.{group}", self.plural()),
        }
    }
}

/// Group, versions, kind, plural.
type Served = (
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
);

const DISCOVERY: &str = "discovery.k8s.io";
const GARDENER: &str = "extensions.gardener.cloud";
const GATEWAY_API: &str = "gateway.networking.k8s.io";
const ISTIO: &str = "networking.istio.io";
const NETWORKING: &str = "networking.k8s.io";

const V1: &[&str] = &["v1"];
const ISTIO_V1: &[&str] = &["v1", "v1beta1", "v1alpha3"];
const TLS_ROUTE_V1: &[&str] = &["v1", "v1alpha3", "v1alpha2"];
