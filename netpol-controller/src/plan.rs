//! Which NetworkPolicies there should be: pure functions of the
//! [`ClusterState`](crate::state::ClusterState).
//!
//! ```text
//!   state ──service(key)──────▶ ServicePlan      policies of one Service, wherever they lie
//!         ──namespace(name)───▶ NamespacePlan    deny-all and allow-to-* of one namespace
//! ```
//!
//! Nothing here knows what is in the cluster already, or writes: that is `sync`'s.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::state::{ObjectKey, ObjectRef};

mod cidr;
mod claims;
mod describe;
mod exposure;
#[cfg(test)]
mod fixture;
mod labels;
mod namespace;
mod ports;
mod service;
mod triggers;

pub use self::claims::Claims;
pub use self::labels::shorten;
pub use self::namespace::{
    ApiServer, DENY_ALL, HostName, NAMES, NamespacePlan, NamespaceSettings, namespace,
};
pub use self::service::{
    Compatibility, IngressController, PolicySettings, RoutedPort, ServicePlan, handled, service,
};
pub use self::triggers::services_of;

/// Annotation with the sentence that says what a policy is for.
pub const DESCRIPTION: &str = "gardener.cloud/description";

/// Label of a Service's policies: the Service's name.
pub const SERVICE_NAME: &str = "networking.resources.gardener.cloud/service-name";

/// Label of a Service's policies: the Service's namespace.
pub const SERVICE_NAMESPACE: &str = "networking.resources.gardener.cloud/service-namespace";

/// A NetworkPolicy that should be there, as far as it is ours: foreign labels and annotations stay.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Where it lies.
    pub key: ObjectKey,
    /// Labels it must have.
    pub labels: BTreeMap<String, String>,
    /// What it is for, of the annotation [`DESCRIPTION`].
    pub description: String,
    /// All of its specification, normalized as the API server returns it: protocols given,
    /// no empty lists where it would leave them out.
    pub spec: Value,
}

telemetry::labels! {
    /// Why an Event is written.
    pub enum Reason {
        /// An annotation cannot be understood.
        InvalidAnnotation = "InvalidAnnotation",
        /// A label key was shortened.
        KeyTooLong = "PodLabelSelectorKey(s)TooLong",
        /// A shoot's namespace has no `Cluster` object.
        MissingCluster = "MissingCluster",
        /// The object cannot be understood.
        NotUnderstood = "NotUnderstood",
        /// Two Services claim one policy; the older one has it.
        PolicyConflict = "PolicyConflict",
        /// Two objects claim the same route; the older one has it.
        RouteConflict = "RouteConflict",
        /// A route is served in another way than the object asks for.
        RouteAdapted = "RouteAdapted",
        /// A route cannot be translated.
        RouteNotTranslated = "RouteNotTranslated",
    }
}

/// Something an operator should know about an object: an Event of type Warning on it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Problem {
    /// The object.
    pub object: ObjectRef,
    /// What kind of problem it is.
    pub reason: Reason,
    /// What is wrong, and where.
    pub message: String,
}

/// Adds lists to a part of a specification; the API server leaves empty ones out.
fn with_lists<const N: usize>(mut part: Value, lists: [(&str, Vec<Value>); N]) -> Value {
    for (name, list) in lists {
        if !list.is_empty() {
            part[name] = list.into();
        }
    }
    part
}

/// Most bytes of a message, so that an Event takes it (its `note` may have 1024).
const MAX_MESSAGE_BYTES: usize = 900;

/// Most problems of one object and reason that are kept: more than an Event's text holds.
const MAX_PROBLEMS: usize = 20;

impl Problem {
    /// Makes a problem; a message that is too long for an Event is cut.
    pub fn new(object: ObjectRef, reason: Reason, message: &str) -> Self {
        let mut text = message.to_owned();
        if text.len() > MAX_MESSAGE_BYTES {
            text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
            text.push_str(" …");
        }
        Self {
            object,
            reason,
            message: text,
        }
    }

    /// Adds it to others, unless its object has many for this reason: an author can make thousands,
    /// and all are compared and shown.
    pub fn add_to(self, problems: &mut BTreeSet<Self>) {
        let first = Self {
            message: String::new(),
            ..self.clone()
        };
        let same = |other: &&Self| other.object == self.object && other.reason == self.reason;
        let before = problems.range(first..).take_while(same).count();
        if before < MAX_PROBLEMS {
            problems.insert(self);
        }
    }
}
