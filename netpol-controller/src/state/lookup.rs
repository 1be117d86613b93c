//! What is known of any kind: keys and unique ids.

use std::sync::Arc;

use super::{ClusterState, Kind, ObjectKey, ObjectRef};

impl ClusterState {
    /// Returns the keys of all objects of a kind; NetworkPolicies are not kept here.
    pub fn keys(&self, kind: Kind) -> Box<dyn ExactSizeIterator<Item = ObjectKey> + '_> {
        let bare = |name: &Arc<str>| ObjectKey {
            namespace: "".into(),
            name: Arc::clone(name),
        };
        match kind {
            Kind::DestinationRule => Box::new(self.destination_rules.keys().cloned()),
            Kind::EndpointSlice => Box::new(self.slices.keys().cloned()),
            Kind::Endpoints => Box::new(self.endpoints.keys().cloned()),
            Kind::EnvoyFilter => Box::new(self.envoy_filters.keys().cloned()),
            Kind::Gateway => Box::new(self.gateways.keys().cloned()),
            Kind::Ingress => Box::new(self.ingresses.keys().cloned()),
            Kind::IstioGateway => Box::new(self.istio_gateways.keys().cloned()),
            Kind::Namespace => Box::new(self.namespaces.keys().map(bare)),
            Kind::NetworkPolicy => Box::new(std::iter::empty()),
            Kind::Pod => Box::new(self.pods.keys().cloned()),
            Kind::Service => Box::new(self.services.keys().cloned()),
            Kind::Shoot => Box::new(self.shoots.keys().map(bare)),
            Kind::TlsRoute => Box::new(self.tls_routes.keys().cloned()),
            Kind::VirtualService => Box::new(self.virtual_services.keys().cloned()),
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
