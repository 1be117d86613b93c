//! What a change of one object touches: Services and namespaces to plan, route groups to translate.
//!
//! Compares an object as it was with what it is; what looks the same touches nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::Config;
use crate::plan::{self, PolicySettings};
use crate::routes;
use crate::world::{
    Gateway, Ingress, IstioGateway, Kind, Labels, Namespace, ObjectKey, Service, TlsRoute,
    VirtualService, World,
};

/// An object as it was before a change, as far as that is asked for.
#[derive(Debug)]
pub(crate) struct Before {
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

/// What a change touches.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Touched {
    pub(crate) services: BTreeSet<ObjectKey>,
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    pub(crate) groups: BTreeSet<Arc<str>>,
}

impl Before {
    /// Remembers an object that is about to change.
    pub(crate) fn new(world: &World, config: &Config, kind: Kind, key: &ObjectKey) -> Self {
        let object = match kind {
            Kind::Gateway => Object::Gateway(world.gateways.get(key).cloned()),
            Kind::Ingress => Object::Ingress(world.ingresses.get(key).cloned()),
            Kind::IstioGateway => Object::IstioGateway(world.istio_gateways.get(key).cloned()),
            Kind::Namespace => Object::Namespace(world.namespaces.get(&key.name).cloned()),
            Kind::Pod => Object::Pod(world.pods.labels_of(key).cloned()),
            Kind::Service => Object::Service(world.services.get(key).cloned()),
            Kind::TlsRoute => Object::TlsRoute(world.tls_routes.get(key).cloned()),
            Kind::VirtualService => {
                Object::VirtualService(world.virtual_services.get(key).cloned())
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
            groups: groups(world, config, kind, key),
        }
    }

    /// Tells what the change has touched, now that it has happened.
    pub(crate) fn touched(
        self,
        world: &World,
        config: &Config,
        kind: Kind,
        key: &ObjectKey,
    ) -> Touched {
        let mut touched = Touched {
            groups: self.groups,
            ..Touched::default()
        };
        touched.groups.extend(groups(world, config, kind, key));
        if let Some(settings) = &config.policies {
            touched.services = services(world, settings, key, &self.object);
        }
        if config.namespaces.is_some() {
            match kind {
                Kind::Namespace => drop(touched.namespaces.insert(Arc::clone(&key.name))),
                // A `Cluster` is named as its shoot's namespace.
                Kind::Shoot => drop(touched.namespaces.insert(Arc::clone(&key.name))),
                Kind::Endpoints if (&*key.namespace, &*key.name) == ("default", "kubernetes") => {
                    touched.namespaces = world.namespaces.keys().cloned().collect();
                }
                Kind::DestinationRule
                | Kind::EndpointSlice
                | Kind::Endpoints
                | Kind::EnvoyFilter
                | Kind::Gateway
                | Kind::Ingress
                | Kind::IstioGateway
                | Kind::NetworkPolicy
                | Kind::Pod
                | Kind::Service
                | Kind::TlsRoute
                | Kind::VirtualService => {}
            }
        }
        touched
    }
}

fn groups(world: &World, config: &Config, kind: Kind, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let routing = config.routing.as_ref();
    routing.map_or_else(BTreeSet::new, |own| {
        routes::groups_of(world, &own.settings, kind, key)
    })
}

fn services(
    world: &World,
    settings: &PolicySettings,
    key: &ObjectKey,
    before: &Object,
) -> BTreeSet<ObjectKey> {
    let none = BTreeSet::new;
    match before {
        Object::Gateway(old) => {
            if old.as_ref() == world.gateways.get(key) {
                return none();
            }
            plan::services_of_gateway(world, key)
        }
        Object::Ingress(old) => {
            let new = world.ingresses.get(key);
            plan::services_of_ingress(&key.namespace, old.as_ref(), new)
        }
        Object::IstioGateway(old) => {
            if old.as_ref() == world.istio_gateways.get(key) {
                return none();
            }
            plan::services_of_istio_gateway(world, key)
        }
        Object::Namespace(old) => {
            let new = world.namespaces.get(&key.name);
            if old.as_ref() == new {
                return none();
            }
            let labels =
                |own: Option<&Namespace>| own.map_or_else(Labels::new, |n| n.labels.clone());
            let (old, new) = (labels(old.as_ref()), labels(new));
            plan::services_of_namespace(world, settings, &key.name, &old, &new)
        }
        Object::Other => none(),
        Object::Pod(old) => {
            let new = world.pods.labels_of(key);
            plan::services_of_pod_change(
                world,
                settings,
                &key.namespace,
                old.as_deref(),
                new.map(AsRef::as_ref),
            )
        }
        Object::Service(old) => {
            if old.as_ref() == world.services.get(key) {
                return none();
            }
            BTreeSet::from([key.clone()])
        }
        Object::TlsRoute(old) => {
            let new = world.tls_routes.get(key);
            if old.as_ref() == new {
                return none();
            }
            plan::services_of_tls_route(key, old.as_ref(), new)
        }
        Object::VirtualService(old) => {
            let new = world.virtual_services.get(key);
            if old.as_ref() == new {
                return none();
            }
            plan::services_of_virtual_service(key, old.as_ref(), new)
        }
    }
}
