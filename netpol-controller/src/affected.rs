//! What a change of one object affects: Services and namespaces to plan, route groups to translate.
//!
//! Compares an object before and after the change; an equal object affects nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::Config;
use crate::plan::{self, PolicySettings};
use crate::routes;
use crate::state::{
    ClusterState, Gateway, Ingress, IstioGateway, Kind, Labels, Namespace, ObjectKey, Service,
    TlsRoute, VirtualService,
};

/// An object as it was before a change, as far as that is asked for.
#[derive(Debug)]
pub(crate) struct PriorState {
    object: Object,
    groups: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
enum Object {
    Gateway(Option<Gateway>),
    Ingress(Option<Ingress>),
    IstioGateway(Option<IstioGateway>),
    Namespace(Option<Namespace>),
    Other,
    Pod(Option<Arc<Labels>>),
    Service(Option<Service>),
    TlsRoute(Option<TlsRoute>),
    VirtualService(Option<VirtualService>),
}

/// What a change affects.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Affected {
    pub(crate) services: BTreeSet<ObjectKey>,
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    pub(crate) groups: BTreeSet<Arc<str>>,
}

impl PriorState {
    /// Remembers an object that is about to change.
    pub(crate) fn new(state: &ClusterState, config: &Config, kind: Kind, key: &ObjectKey) -> Self {
        let object = match kind {
            Kind::Gateway => Object::Gateway(state.gateways.get(key).cloned()),
            Kind::Ingress => Object::Ingress(state.ingresses.get(key).cloned()),
            Kind::IstioGateway => Object::IstioGateway(state.istio_gateways.get(key).cloned()),
            Kind::Namespace => Object::Namespace(state.namespaces.get(&key.name).cloned()),
            Kind::Pod => Object::Pod(state.pods.labels_of(key).cloned()),
            Kind::Service => Object::Service(state.services.get(key).cloned()),
            Kind::TlsRoute => Object::TlsRoute(state.tls_routes.get(key).cloned()),
            Kind::VirtualService => {
                Object::VirtualService(state.virtual_services.get(key).cloned())
            }
            Kind::DestinationRule
            | Kind::EndpointSlice
            | Kind::Endpoints
            | Kind::EnvoyFilter
            | Kind::NetworkPolicy
            | Kind::Shoot => Object::Other,
        };
        Self {
            object,
            groups: groups(state, config, kind, key),
        }
    }

    /// Returns what the change affects, once it was applied.
    pub(crate) fn affected(
        self,
        state: &ClusterState,
        config: &Config,
        kind: Kind,
        key: &ObjectKey,
    ) -> Affected {
        let mut affected = Affected {
            groups: self.groups,
            ..Affected::default()
        };
        affected.groups.extend(groups(state, config, kind, key));
        if let Some(settings) = &config.policies {
            affected.services = services(state, settings, key, &self.object);
        }
        if config.namespaces.is_some() {
            // A `Cluster` is named as its shoot's namespace.
            if matches!(kind, Kind::Namespace | Kind::Shoot) {
                affected.namespaces.insert(Arc::clone(&key.name));
            } else if kind == Kind::Endpoints && *key == ObjectKey::new("default", "kubernetes") {
                affected.namespaces = state.namespaces.keys().cloned().collect();
            }
        }
        affected
    }
}

fn groups(
    state: &ClusterState,
    config: &Config,
    kind: Kind,
    key: &ObjectKey,
) -> BTreeSet<Arc<str>> {
    let routing = config.routing.as_ref();
    routing.map_or_else(BTreeSet::new, |own| {
        routes::groups_of(state, &own.settings, kind, key)
    })
}

fn services(
    state: &ClusterState,
    settings: &PolicySettings,
    key: &ObjectKey,
    before: &Object,
) -> BTreeSet<ObjectKey> {
    let none = BTreeSet::new;
    match before {
        Object::Gateway(old) => {
            if old.as_ref() == state.gateways.get(key) {
                return none();
            }
            plan::services_of_gateway(state, key)
        }
        Object::Ingress(old) => {
            let new = state.ingresses.get(key);
            plan::services_of_ingress(&key.namespace, old.as_ref(), new)
        }
        Object::IstioGateway(old) => {
            if old.as_ref() == state.istio_gateways.get(key) {
                return none();
            }
            plan::services_of_istio_gateway(state, key)
        }
        Object::Namespace(old) => {
            let new = state.namespaces.get(&key.name);
            if old.as_ref() == new {
                return none();
            }
            let labels =
                |own: Option<&Namespace>| own.map_or_else(Labels::new, |n| n.labels.clone());
            let (old, new) = (labels(old.as_ref()), labels(new));
            plan::services_of_namespace(state, settings, &key.name, &old, &new)
        }
        Object::Other => none(),
        Object::Pod(old) => {
            let new = state.pods.labels_of(key);
            plan::services_of_pod_change(
                state,
                settings,
                &key.namespace,
                old.as_deref(),
                new.map(AsRef::as_ref),
            )
        }
        Object::Service(old) => {
            if old.as_ref() == state.services.get(key) {
                return none();
            }
            BTreeSet::from([key.clone()])
        }
        Object::TlsRoute(old) => {
            let new = state.tls_routes.get(key);
            if old.as_ref() == new {
                return none();
            }
            plan::services_of_tls_route(key, old.as_ref(), new)
        }
        Object::VirtualService(old) => {
            let new = state.virtual_services.get(key);
            if old.as_ref() == new {
                return none();
            }
            plan::services_of_virtual_service(key, old.as_ref(), new)
        }
    }
}
