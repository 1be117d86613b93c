//! The state of the Kubernetes cluster: watched objects, cut down to what is planned with.
//!
//! ```text
//!   watch ──apply / remove──▶ ClusterState ──▶ plan, routes (pure functions of it)
//! ```
//!
//! Plain maps, filled by one task. Nothing here talks to an API server, and nothing decides: what
//! an object means is the planners' matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::core::DynamicObject;

mod binding;
mod catalog;
mod core;
mod envoy_filter;
mod gateway_api;
mod istio;
mod kind;
mod lookup;
mod meta;
pub(crate) mod names;
mod pods;
mod selector;

pub use self::catalog::{Catalog, Mention, Mentions};
pub use self::core::{
    BackendPort, EndpointAddress, EndpointPort, EndpointSet, Ingress, IngressBackend,
    NAMESPACE_SELECTORS, Namespace, Protocol, Service, ServicePort, ShootNetworks, TargetPort,
};
pub use self::envoy_filter::{
    Access, ChainPatch, ClusterName, ConnectPatch, ConnectValue, EnvoyFilter, FilterPatch,
    Restriction, Scope, Sources, ValuePattern, Visit,
};
pub use self::gateway_api::{
    AllowedRoutes, Gateway, GatewayListener, ListenerTls, ParentRef, RouteBackend, RouteNamespaces,
    TlsRoute,
};
pub use self::istio::{
    DestinationRule, IstioGateway, IstioServer, PortNumber, RouteDestination, TlsMatch,
    VirtualRoute, VirtualService, WeightedDestination, service_of_host,
};
pub use self::kind::Kind;
pub use self::meta::{Labels, ObjectKey, ObjectRef, ParseError, has_labels};
pub use self::pods::Pods;
pub use self::selector::{LabelSelector, Operator, Requirement, is_label_key, is_subdomain};

/// The objects, by kind.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// Namespaces by name.
    pub namespaces: BTreeMap<Arc<str>, Namespace>,
    /// Services.
    pub services: BTreeMap<ObjectKey, Service>,
    /// Pods' labels.
    pub pods: Pods,
    /// Ingresses.
    pub ingresses: BTreeMap<ObjectKey, Ingress>,
    /// Addresses behind Services, by EndpointSlice.
    pub slices: BTreeMap<ObjectKey, EndpointSet>,
    /// Addresses behind Services, by Endpoints object, which is named as its Service: all where
    /// slices are not served, else those of the API server alone.
    pub endpoints: BTreeMap<ObjectKey, EndpointSet>,
    /// `VirtualService`s of Istio.
    pub virtual_services: Catalog<VirtualService>,
    /// `Gateway`s of Istio.
    pub istio_gateways: BTreeMap<ObjectKey, IstioGateway>,
    /// `DestinationRule`s of Istio.
    pub destination_rules: Catalog<DestinationRule>,
    /// `EnvoyFilter`s of Istio.
    pub envoy_filters: Catalog<EnvoyFilter>,
    /// `Gateway`s of the Gateway API.
    pub gateways: BTreeMap<ObjectKey, Gateway>,
    /// `TLSRoute`s of the Gateway API.
    pub tls_routes: Catalog<TlsRoute>,
    /// Networks of shoots, by the name of their `Cluster`, which is the namespace's.
    pub shoots: BTreeMap<Arc<str>, ShootNetworks>,
    /// Kinds that the API server serves and that have been listed.
    pub served: BTreeSet<Kind>,
    /// Which slices belong to a Service, by its key.
    by_service: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

/// Returns the objects of one namespace.
pub fn in_namespace<'a, T>(
    objects: &'a BTreeMap<ObjectKey, T>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a ObjectKey, &'a T)> {
    let all = objects.range(ObjectKey::new(namespace, "")..);
    all.take_while(move |(key, _)| &*key.namespace == namespace)
}

impl ClusterState {
    /// Applies the current version of an object.
    ///
    /// # Errors
    /// When the object cannot be understood; what was known of it stays then.
    pub fn apply(&mut self, kind: Kind, object: DynamicObject) -> Result<(), ParseError> {
        let key = ObjectKey::of(&object);
        match kind {
            Kind::Namespace => {
                let namespace = Namespace::parse(&object);
                self.namespaces.insert(Arc::clone(&key.name), namespace);
            }
            Kind::Service => {
                self.services.insert(key, Service::parse(object)?);
            }
            Kind::Pod => self.pods.apply(&key, &object),
            Kind::Ingress => {
                self.ingresses.insert(key, Ingress::parse(object)?);
            }
            Kind::EndpointSlice => self.insert_slice(key, EndpointSet::parse_slice(object)?),
            Kind::Endpoints => {
                self.endpoints
                    .insert(key, EndpointSet::parse_endpoints(object)?);
            }
            Kind::VirtualService => {
                self.virtual_services
                    .insert(key, VirtualService::parse(object)?);
            }
            Kind::IstioGateway => {
                self.istio_gateways
                    .insert(key, IstioGateway::parse(object)?);
            }
            Kind::DestinationRule => {
                self.destination_rules
                    .insert(key, DestinationRule::parse(object)?);
            }
            Kind::EnvoyFilter => {
                self.envoy_filters.insert(key, EnvoyFilter::parse(object)?);
            }
            Kind::Gateway => {
                self.gateways.insert(key, Gateway::parse(object)?);
            }
            Kind::TlsRoute => {
                self.tls_routes.insert(key, TlsRoute::parse(object)?);
            }
            Kind::Shoot => {
                self.shoots
                    .insert(Arc::clone(&key.name), ShootNetworks::parse(object)?);
            }
            Kind::NetworkPolicy => {}
        }
        Ok(())
    }

    /// Forgets an object.
    pub fn remove(&mut self, kind: Kind, key: &ObjectKey) {
        match kind {
            Kind::Namespace => drop(self.namespaces.remove(&key.name)),
            Kind::Service => drop(self.services.remove(key)),
            Kind::Pod => self.pods.remove(key),
            Kind::Ingress => drop(self.ingresses.remove(key)),
            Kind::EndpointSlice => self.remove_slice(key),
            Kind::Endpoints => drop(self.endpoints.remove(key)),
            Kind::VirtualService => drop(self.virtual_services.remove(key)),
            Kind::IstioGateway => drop(self.istio_gateways.remove(key)),
            Kind::DestinationRule => drop(self.destination_rules.remove(key)),
            Kind::EnvoyFilter => drop(self.envoy_filters.remove(key)),
            Kind::Gateway => drop(self.gateways.remove(key)),
            Kind::TlsRoute => drop(self.tls_routes.remove(key)),
            Kind::Shoot => drop(self.shoots.remove(&key.name)),
            Kind::NetworkPolicy => {}
        }
    }

    /// Returns the addresses behind a Service, set by set.
    pub fn endpoints_of(&self, service: &ObjectKey) -> impl Iterator<Item = &EndpointSet> {
        let slices = self.served.contains(&Kind::EndpointSlice);
        let keys = self.by_service.get(service).filter(|_| slices);
        let slices_of = keys.into_iter().flatten();
        let whole = self.endpoints.get(service).filter(|_| !slices);
        slices_of
            .filter_map(|key| self.slices.get(key))
            .chain(whole)
    }

    fn insert_slice(&mut self, key: ObjectKey, set: EndpointSet) {
        self.remove_slice(&key);
        let service = ObjectKey::new(&key.namespace, &set.service);
        self.by_service
            .entry(service)
            .or_default()
            .insert(key.clone());
        self.slices.insert(key, set);
    }

    fn remove_slice(&mut self, key: &ObjectKey) {
        let Some(set) = self.slices.remove(key) else {
            return;
        };
        let service = ObjectKey::new(&key.namespace, &set.service);
        if let Some(keys) = self.by_service.get_mut(&service) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_service.remove(&service);
            }
        }
    }
}
