//! What is known of any kind: keys, counts and unique ids.

use super::{ClusterState, Kind, ObjectKey, ObjectRef};

impl ClusterState {
    /// Returns the keys of all objects of a kind.
    pub fn keys(&self, kind: Kind) -> Vec<ObjectKey> {
        let bare = |name: &std::sync::Arc<str>| ObjectKey {
            namespace: "".into(),
            name: std::sync::Arc::clone(name),
        };
        match kind {
            Kind::DestinationRule => self.destination_rules.keys().cloned().collect(),
            Kind::EndpointSlice => self.slices.keys().cloned().collect(),
            Kind::Endpoints => self.endpoints.keys().cloned().collect(),
            Kind::EnvoyFilter => self.envoy_filters.keys().cloned().collect(),
            Kind::Gateway => self.gateways.keys().cloned().collect(),
            Kind::Ingress => self.ingresses.keys().cloned().collect(),
            Kind::IstioGateway => self.istio_gateways.keys().cloned().collect(),
            Kind::Namespace => self.namespaces.keys().map(bare).collect(),
            Kind::NetworkPolicy => Vec::new(),
            Kind::Pod => self.pods.keys().cloned().collect(),
            Kind::Service => self.services.keys().cloned().collect(),
            Kind::Shoot => self.shoots.keys().map(bare).collect(),
            Kind::TlsRoute => self.tls_routes.keys().cloned().collect(),
            Kind::VirtualService => self.virtual_services.keys().cloned().collect(),
        }
    }

    /// Returns how many objects of a kind are known; NetworkPolicies are not kept here.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::DestinationRule => self.destination_rules.len(),
            Kind::EndpointSlice => self.slices.len(),
            Kind::Endpoints => self.endpoints.len(),
            Kind::EnvoyFilter => self.envoy_filters.len(),
            Kind::Gateway => self.gateways.len(),
            Kind::Ingress => self.ingresses.len(),
            Kind::IstioGateway => self.istio_gateways.len(),
            Kind::Namespace => self.namespaces.len(),
            Kind::NetworkPolicy => 0,
            Kind::Pod => self.pods.len(),
            Kind::Service => self.services.len(),
            Kind::Shoot => self.shoots.len(),
            Kind::TlsRoute => self.tls_routes.len(),
            Kind::VirtualService => self.virtual_services.len(),
        }
    }

    /// Returns the unique id of an object; empty when it is not known.
    pub fn uid(&self, object: &ObjectRef) -> String {
        let key = &object.key;
        let uid = match object.kind {
            Kind::DestinationRule => self.destination_rules.get(key).map(|own| &own.uid),
            Kind::EnvoyFilter => self.envoy_filters.get(key).map(|own| &own.uid),
            Kind::Gateway => self.gateways.get(key).map(|own| &own.uid),
            Kind::IstioGateway => self.istio_gateways.get(key).map(|own| &own.uid),
            Kind::Service => self.services.get(key).map(|own| &own.uid),
            Kind::TlsRoute => self.tls_routes.get(key).map(|own| &own.uid),
            Kind::VirtualService => self.virtual_services.get(key).map(|own| &own.uid),
            Kind::EndpointSlice
            | Kind::Endpoints
            | Kind::Ingress
            | Kind::Namespace
            | Kind::NetworkPolicy
            | Kind::Pod
            | Kind::Shoot => None,
        };
        uid.cloned().unwrap_or_default()
    }
}
