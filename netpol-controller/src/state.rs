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
mod secret;
mod selector;

use self::catalog::Objects;
pub use self::catalog::{Catalog, Mention, Mentions};
pub use self::core::{
    EndpointAddress, EndpointPort, EndpointSet, Ingress, IngressBackend, NAMESPACE_SELECTORS,
    Namespace, Protocol, Service, ServicePort, ShootNetworks, TargetPort,
};
pub use self::envoy_filter::{
    Access, ChainPatch, ClusterName, ConnectPatch, ConnectValue, EnvoyFilter, EnvoyFilterSpec,
    FilterPatch, Restriction, Scope, Sources, ValuePattern, Visit, WorkloadSelector,
};
pub use self::gateway_api::{
    AllowedRoutes, Gateway, GatewayListener, GatewaySpec, Infrastructure, ListenerTls, ParentRef,
    RouteBackend, RouteNamespaces, TlsRoute, TlsRouteSpec, TlsRule,
};
pub use self::istio::{
    DestinationRule, DestinationRuleSpec, IstioGateway, IstioGatewaySpec, IstioServer,
    MAX_ELEMENTS, PortNumber, RouteDestination, ServerPort, ServerTls, TlsMatch, VirtualRoute,
    VirtualService, VirtualServiceSpec, WeightedDestination, service_of_host,
};
pub use self::kind::Kind;
use self::meta::Parse;
pub use self::meta::{Labels, Object, ObjectKey, ObjectRef, ParseError, has_labels};
pub use self::pods::Pods;
pub use self::secret::{Secret, Secrets, authorities_of};
pub(crate) use self::selector::parse_items;
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
    pub slices: Catalog<EndpointSet>,
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
    /// Secrets of gateways whose TLS ends there.
    pub secrets: Secrets,
    /// Services that exist, and were invalid when first seen.
    pub unreadable: BTreeSet<ObjectKey>,
    /// Kinds that the API server serves and that have been listed.
    pub served: BTreeSet<Kind>,
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
    /// Applies the current version of an object. Where that changes what is known of it, `before`
    /// is asked first, and its answer returned.
    ///
    /// # Errors
    /// When the object cannot be understood; what was known of it stays then.
    pub fn apply<B>(
        &mut self,
        kind: Kind,
        object: DynamicObject,
        before: impl FnOnce(&Self) -> B,
    ) -> Result<Option<B>, ParseError> {
        match kind {
            Kind::Namespace => self.put(before, kind, object, |own| &mut own.namespaces),
            Kind::Service => self.put(before, kind, object, |own| &mut own.services),
            Kind::Pod => self.put(before, kind, object, |own| &mut own.pods),
            Kind::Ingress => self.put(before, kind, object, |own| &mut own.ingresses),
            Kind::EndpointSlice => self.put(before, kind, object, |own| &mut own.slices),
            Kind::Endpoints => self.put(before, kind, object, |own| &mut own.endpoints),
            Kind::VirtualService => self.put(before, kind, object, |own| &mut own.virtual_services),
            Kind::IstioGateway => self.put(before, kind, object, |own| &mut own.istio_gateways),
            Kind::DestinationRule => {
                self.put(before, kind, object, |own| &mut own.destination_rules)
            }
            Kind::EnvoyFilter => self.put(before, kind, object, |own| &mut own.envoy_filters),
            Kind::Gateway => self.put(before, kind, object, |own| &mut own.gateways),
            Kind::TlsRoute => self.put(before, kind, object, |own| &mut own.tls_routes),
            Kind::Shoot => self.put(before, kind, object, |own| &mut own.shoots),
            Kind::NetworkPolicy => Ok(None),
        }
    }

    /// Notes that an object exists and cannot be read; what was known of it stays.
    pub fn reject(&mut self, kind: Kind, key: &ObjectKey) {
        if kind == Kind::Service && !self.services.contains_key(key) {
            self.unreadable.insert(key.clone());
        }
    }

    /// Forgets an object.
    pub fn remove(&mut self, kind: Kind, key: &ObjectKey) {
        match kind {
            Kind::Namespace => drop(self.namespaces.remove(&key.name)),
            Kind::Service => {
                self.unreadable.remove(key);
                self.services.remove(key);
            }
            Kind::Pod => self.pods.remove(key),
            Kind::Ingress => drop(self.ingresses.remove(key)),
            Kind::EndpointSlice => drop(self.slices.remove(key)),
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
        let mention = Mention::Service(service.clone());
        let own = slices.then(|| self.slices.mentioning(&mention));
        let own = own.into_iter().flatten().map(|(_, set)| set);
        own.chain(self.endpoints.get(service).filter(|_| !slices))
    }

    fn put<T: Parse + PartialEq, O: Objects<T>, B>(
        &mut self,
        before: impl FnOnce(&Self) -> B,
        kind: Kind,
        object: DynamicObject,
        objects: fn(&mut Self) -> &mut O,
    ) -> Result<Option<B>, ParseError> {
        let key = ObjectKey::of(&object);
        let new = match T::parse(kind, object) {
            Ok(new) => new,
            Err(source) => {
                self.reject(kind, &key);
                let kind = kind.name();
                return Err(ParseError { kind, key, source });
            }
        };
        if kind == Kind::Service {
            self.unreadable.remove(&key);
        }
        if objects(self).find(&key) == Some(&new) {
            return Ok(None);
        }
        let before = before(self);
        objects(self).put(key, new);
        Ok(Some(before))
    }
}
