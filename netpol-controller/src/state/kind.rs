//! The kinds of objects that are watched, and where each is served.
//!
//! Knows names and versions; which of them a configuration needs is `watch`'s.

telemetry::labels! {
    /// A kind of object; its word is the resource with its group, as RBAC and metrics have it.
    pub enum Kind {
        /// `DestinationRule` of Istio.
        DestinationRule = "destinationrules.networking.istio.io",
        /// `EndpointSlice`.
        EndpointSlice = "endpointslices.discovery.k8s.io",
        /// `Endpoints` of core/v1, where slices are not served, and for `default/kubernetes`.
        Endpoints = "endpoints",
        /// `EnvoyFilter` of Istio.
        EnvoyFilter = "envoyfilters.networking.istio.io",
        /// `Gateway` of the Gateway API.
        Gateway = "gateways.gateway.networking.k8s.io",
        /// `Ingress`.
        Ingress = "ingresses.networking.k8s.io",
        /// `Gateway` of Istio.
        IstioGateway = "gateways.networking.istio.io",
        /// `Namespace`.
        Namespace = "namespaces",
        /// `NetworkPolicy`.
        NetworkPolicy = "networkpolicies.networking.k8s.io",
        /// `Pod`, its metadata only.
        Pod = "pods",
        /// `Service`.
        Service = "services",
        /// `Cluster` of Gardener's extensions API, which holds a shoot's networks.
        Shoot = "clusters.extensions.gardener.cloud",
        /// `TLSRoute` of the Gateway API.
        TlsRoute = "tlsroutes.gateway.networking.k8s.io",
        /// `VirtualService` of Istio.
        VirtualService = "virtualservices.networking.istio.io",
    }
}

impl Kind {
    /// Returns the API group; empty for the core group.
    pub fn group(self) -> &'static str {
        self.as_str().split_once('.').map_or("", |(_, group)| group)
    }

    /// Returns the name of the resource in URLs.
    pub fn plural(self) -> &'static str {
        let word = self.as_str();
        word.split_once('.').map_or(word, |(plural, _)| plural)
    }

    /// Returns the supported versions, the preferred one first.
    pub const fn versions(self) -> &'static [&'static str] {
        match self {
            Self::DestinationRule | Self::IstioGateway | Self::VirtualService => {
                &["v1", "v1beta1", "v1alpha3"]
            }
            Self::EnvoyFilter => &["v1alpha3"],
            Self::Gateway => &["v1", "v1beta1"],
            Self::Shoot => &["v1alpha1"],
            Self::TlsRoute => &["v1", "v1alpha3", "v1alpha2"],
            Self::EndpointSlice
            | Self::Endpoints
            | Self::Ingress
            | Self::Namespace
            | Self::NetworkPolicy
            | Self::Pod
            | Self::Service => &["v1"],
        }
    }

    /// Returns the kind as objects write it.
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
}
