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
        match self {
            Self::Endpoints | Self::Namespace | Self::Pod | Self::Service => "",
            Self::EndpointSlice => "discovery.k8s.io",
            Self::Gateway | Self::TlsRoute => "gateway.networking.k8s.io",
            Self::Ingress | Self::NetworkPolicy => "networking.k8s.io",
            Self::DestinationRule
            | Self::EnvoyFilter
            | Self::IstioGateway
            | Self::VirtualService => "networking.istio.io",
            Self::Shoot => "extensions.gardener.cloud",
        }
    }

    /// Returns the versions that are understood, the preferred one first.
    #[must_use]
    pub const fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Endpoints
            | Self::EndpointSlice
            | Self::Ingress
            | Self::Namespace
            | Self::NetworkPolicy
            | Self::Pod
            | Self::Service => &["v1"],
            Self::DestinationRule | Self::IstioGateway | Self::VirtualService => {
                &["v1", "v1beta1", "v1alpha3"]
            }
            Self::EnvoyFilter => &["v1alpha3"],
            Self::Gateway => &["v1", "v1beta1"],
            Self::TlsRoute => &["v1", "v1alpha3", "v1alpha2"],
            Self::Shoot => &["v1alpha1"],
        }
    }

    /// Returns the name of the resource in URLs.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::DestinationRule => "destinationrules",
            Self::EndpointSlice => "endpointslices",
            Self::Endpoints => "endpoints",
            Self::EnvoyFilter => "envoyfilters",
            Self::Gateway | Self::IstioGateway => "gateways",
            Self::Ingress => "ingresses",
            Self::Namespace => "namespaces",
            Self::NetworkPolicy => "networkpolicies",
            Self::Pod => "pods",
            Self::Service => "services",
            Self::Shoot => "clusters",
            Self::TlsRoute => "tlsroutes",
            Self::VirtualService => "virtualservices",
        }
    }

    /// Returns the kind as objects write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DestinationRule => "DestinationRule",
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
            Self::EnvoyFilter => "EnvoyFilter",
            Self::Gateway | Self::IstioGateway => "Gateway",
            Self::Ingress => "Ingress",
            Self::Namespace => "Namespace",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::Pod => "Pod",
            Self::Service => "Service",
            Self::Shoot => "Cluster",
            Self::TlsRoute => "TLSRoute",
            Self::VirtualService => "VirtualService",
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
