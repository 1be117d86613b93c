//! What an object is about: Services and namespaces to plan, route groups to translate.
//!
//! Asked before and after a change of the object; an equal object affects nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::Config;
use crate::plan;
use crate::routes;
use crate::state::{ClusterState, Kind, ObjectKey};

/// What a change affects.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Affected {
    pub(crate) services: BTreeSet<ObjectKey>,
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    pub(crate) groups: BTreeSet<Arc<str>>,
}

impl Affected {
    pub(crate) fn by(state: &ClusterState, config: &Config, kind: Kind, key: &ObjectKey) -> Self {
        let mut affected = Self::default();
        if let Some(routing) = &config.routing {
            affected.groups = routes::groups_of(state, &routing.gateways, kind, key);
        }
        if let Some(settings) = config.policies() {
            affected.services = plan::services_of(state, settings, kind, key);
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
