//! The policies that one Service asks for, in its own namespace and in its clients'.
//!
//! ```text
//!   ports, annotations ──▶ labels ─┐
//!   Ingresses, VirtualServices ────┼──▶ Grant ──▶ PolicyBuilder ──▶ policies, distinct by key
//!   TLSRoutes, routed ports ───────┘
//! ```
//!
//! An annotation that cannot be understood freezes the policies it decides; all others go on. Two
//! Services that ask for a policy of one name are [`Claims`](super::Claims)' matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::annotations::Annotations;
use self::builder::PolicyBuilder;
use self::frozen::Frozen;
use super::describe::list;
use super::exposure;
use super::labels::{ALLOWED, PREFIX, requested_keys, shorten};
use super::ports::Port;
use super::{Policy, Problem, Reason};
use crate::state::{
    ClusterState, Kind, LabelSelector, Labels, NAMESPACE_SELECTORS, ObjectKey, ObjectRef, Protocol,
    Service, TargetPort,
};

mod annotations;
mod builder;
mod frozen;
#[cfg(test)]
mod tests;

pub(super) use self::builder::{Grant, Origin};

/// Most policies of one Service, so that annotations of one object cannot fill the cluster: enough
/// for five ports that are open to 500 namespaces.
const MAX_POLICIES: usize = 5_000;

/// The policies of one grant: the way in, and the way out.
const OF_GRANT: usize = 2;

/// Which of two behaviors is meant where they differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "CompatibilityFile")]
pub enum Compatibility {
    // "Everywhere" is written as three peers.
    /// Gardener's documentation: policies whether or not a pod is labeled yet.
    #[default]
    Document,
    // "Everywhere" is a rule without peers.
    /// Today's Gardener: policies once a pod carries the label.
    Upstream,
}

/// NetworkPolicies from Services.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "NetworkPolicyFile")]
pub struct PolicySettings {
    /// Whether they are written.
    pub enabled: bool,
    /// Which of two behaviors is meant where they differ.
    pub compatibility: Compatibility,
    /// Services that are worked on at a time.
    pub concurrent_syncs: usize,
    /// Namespaces whose Services get policies, any of these; empty for all.
    pub namespace_selectors: Vec<LabelSelector>,
    /// The ingress controller's pods; absent for no policies from Ingresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_controller_selector: Option<IngressController>,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            enabled: true,
            compatibility: Compatibility::Document,
            concurrent_syncs: 5,
            namespace_selectors: Vec::new(),
            ingress_controller_selector: None,
        }
    }
}

/// The ingress controller's pods.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "IngressControllerFile")]
pub struct IngressController {
    /// Their namespace.
    pub namespace: String,
    /// Their labels.
    pub pod_selector: LabelSelector,
}

/// A port of a Service's pods that gateways route connections to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct RoutedPort {
    /// Namespace of the gateway's pods.
    pub gateway_namespace: Arc<str>,
    /// Labels of the gateway's pods.
    pub gateway_selector: Labels,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port of the Service's pods.
    pub target: TargetPort,
}

/// The policies of one Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePlan {
    /// The policies there should be, sorted by key, distinct.
    pub policies: Vec<Policy>,
    /// What an operator should know, once for each cause.
    pub problems: Vec<Problem>,
    frozen: Frozen,
}

impl ServicePlan {
    /// Returns whether a policy of this Service that exists must be left exactly as it is, because
    /// what decides it cannot be understood: not changed even if it is among the wanted ones, and
    /// not deleted. A wanted one that does not exist is created all the same.
    pub fn keeps(&self, observed: &ObjectKey) -> bool {
        self.frozen.covers(observed, || self.wants(observed))
    }

    fn wants(&self, key: &ObjectKey) -> bool {
        let found = self.policies.binary_search_by(|policy| policy.key.cmp(key));
        found.is_ok()
    }
}

/// Returns whether a Service gets policies: it is there, selects pods, is not going away, nor is
/// its namespace, which the settings select.
pub fn handled(state: &ClusterState, settings: &PolicySettings, key: &ObjectKey) -> bool {
    let Some(service) = state.services.get(key) else {
        return false;
    };
    let Some(namespace) = state.namespaces.get(&key.namespace) else {
        return false;
    };
    let mut selectors = settings.namespace_selectors.iter();
    !service.terminating
        && !service.selector.is_empty()
        && !namespace.terminating
        && (settings.namespace_selectors.is_empty()
            || selectors.any(|selector| selector.matches(&namespace.labels)))
}

/// Plans the policies of a Service, with what gateways route to it.
///
/// A Service that is not [`handled`] gets none. One whose namespace is not known yet gets none
/// either, but keeps those it has.
pub fn service(
    state: &ClusterState,
    settings: &PolicySettings,
    routed: &[RoutedPort],
    key: &ObjectKey,
) -> ServicePlan {
    let known = state.services.get(key);
    let Some(object) = known.filter(|_| handled(state, settings, key)) else {
        let mut frozen = Frozen::new(key);
        frozen.everything = known.is_some() && !state.namespaces.contains_key(&key.namespace);
        return ServicePlan {
            policies: Vec::new(),
            problems: Vec::new(),
            frozen,
        };
    };
    let mut planner = Planner {
        state,
        settings,
        key,
        object,
        builder: PolicyBuilder::new(settings.compatibility, key, &object.selector),
        frozen: Frozen::new(key),
        problems: BTreeSet::new(),
        shortened: BTreeMap::new(),
    };
    planner.plan(routed);
    planner.finish()
}

struct Planner<'a> {
    state: &'a ClusterState,
    settings: &'a PolicySettings,
    key: &'a ObjectKey,
    object: &'a Service,
    builder: PolicyBuilder<'a>,
    frozen: Frozen,
    problems: BTreeSet<Problem>,
    shortened: BTreeMap<String, String>,
}

/// What labels of pods may ask for.
#[derive(Default)]
struct Requested<'a> {
    grants: Vec<Grant<'a>>,
    /// Keys of labels that were too long, and what they are.
    shortened: BTreeMap<String, String>,
}

impl<'a> Planner<'a> {
    fn plan(&mut self, routed: &'a [RoutedPort]) {
        let annotations = Annotations::parse(self.object);
        for (annotation, error) in &annotations.errors {
            self.invalid(annotation, error);
        }
        self.frozen.freeze(self.state, &annotations);
        let own = self.grants_by_label(&self.key.namespace, &annotations);
        self.allow(own);
        let exposures = self.exposures(routed);
        self.others(&annotations, 1 + OF_GRANT * exposures.len());
        if let Some(ports) = &annotations.from_world {
            self.builder.everywhere(ports);
        }
        for exposure in exposures {
            self.grant(&exposure);
        }
    }

    /// Grants what pods of other namespaces can ask for by labels, or nothing of it when those were
    /// too many policies; `reserved` are still to come.
    fn others(&mut self, annotations: &Annotations<'a>, reserved: usize) {
        let mut others = Requested::default();
        for namespace in self.client_namespaces(annotations) {
            let Requested { grants, shortened } = self.grants_by_label(namespace, annotations);
            others.grants.extend(grants);
            others.shortened.extend(shortened);
            if self.builder.count() + OF_GRANT * others.grants.len() + reserved > MAX_POLICIES {
                let error = format!("a Service may have {MAX_POLICIES} policies, these were more");
                self.invalid(NAMESPACE_SELECTORS, &error);
                self.frozen.others = true;
                return;
            }
        }
        self.allow(others);
    }

    fn allow(&mut self, asked: Requested<'_>) {
        for grant in &asked.grants {
            self.grant(grant);
        }
        self.shortened.extend(asked.shortened);
    }

    /// Returns who leads connections to the Service from namespaces that policies can be written
    /// in, distinct and in an order that no list decides.
    fn exposures(&mut self, routed: &[RoutedPort]) -> BTreeSet<Grant<'static>> {
        let mut all: BTreeSet<_> = exposure::routed(routed).collect();
        if let Some(controller) = &self.settings.ingress_controller_selector {
            let own = exposure::ingresses(self.state, controller, self.key, self.object);
            all.extend(own);
        }
        let (routes, problems) = exposure::routes(self.state, self.key, self.object);
        all.extend(routes);
        self.problems.extend(problems);
        let namespaces = &self.state.namespaces;
        let lives = |name: &Arc<str>| namespaces.get(name).is_some_and(|one| !one.terminating);
        all.retain(|exposure| lives(&exposure.namespace));
        all
    }

    /// Returns the other namespaces whose labeled pods may reach the Service.
    fn client_namespaces(&self, annotations: &Annotations<'_>) -> Vec<&'a Arc<str>> {
        let own = &*self.key.namespace;
        let selectors = match &self.object.namespace_selectors {
            Ok(selectors) if annotations.namespace_alias.is_ok() => selectors.as_slice(),
            Ok(_) | Err(_) => &[],
        };
        let others = self.state.namespaces.iter().filter(|(name, namespace)| {
            &***name != own
                && !namespace.terminating
                && selectors.iter().any(|one| one.matches(&namespace.labels))
        });
        others.map(|(name, _)| name).collect()
    }

    fn grants_by_label(
        &self,
        namespace: &Arc<str>,
        annotations: &Annotations<'a>,
    ) -> Requested<'a> {
        let mut asked_for = Requested::default();
        let present: Option<BTreeSet<&str>> = match self.settings.compatibility {
            Compatibility::Document => None,
            Compatibility::Upstream => {
                let sets = self.state.pods.labels_in(namespace);
                Some(sets.flat_map(requested_keys).collect())
            }
        };
        let infix = match annotations.namespace_alias {
            _ if *namespace == self.key.namespace => String::new(),
            Ok(Some(alias)) => format!("{alias}-"),
            Ok(None) | Err(_) => format!("{}-", self.key.namespace),
        };
        let ports = self.object.ports.iter();
        let ports = ports.map(|port| ("", Port::one(port.protocol, &port.target)));
        let aliases = annotations.aliases.iter();
        let aliases =
            aliases.flat_map(|(alias, ports)| ports.iter().map(|port| (*alias, port.clone())));
        for (alias, port) in ports.chain(aliases) {
            let what = match alias {
                "" => format!("{}-{}", self.key.name, port.id()),
                alias => alias.to_owned(),
            };
            let name = format!("to-{infix}{what}");
            let label = format!("{PREFIX}{}", shorten(&name));
            if present
                .as_ref()
                .is_some_and(|all| !all.contains(label.as_str()))
            {
                continue;
            }
            asked_for.grants.push(Grant {
                origin: Origin::Label { alias },
                namespace: Arc::clone(namespace),
                clients: LabelSelector::of_labels([(label.clone(), ALLOWED.to_owned())]),
                port,
            });
            if label.len() < PREFIX.len() + name.len() {
                asked_for.shortened.insert(name, label);
            }
        }
        asked_for
    }

    fn grant(&mut self, grant: &Grant<'_>) {
        if self.builder.count() + OF_GRANT > MAX_POLICIES {
            let message =
                format!("a Service may have {MAX_POLICIES} policies, the others are not written");
            self.problem(Reason::InvalidAnnotation, &message);
            return;
        }
        if let Err(name) = self.builder.grant(grant) {
            let message = format!("{name:?} cannot be the name of a NetworkPolicy");
            self.problem(Reason::InvalidAnnotation, &message);
        }
    }

    fn invalid(&mut self, annotation: &str, error: &str) {
        let message = format!("annotation {annotation}: {error}");
        self.problem(Reason::InvalidAnnotation, &message);
    }

    fn problem(&mut self, reason: Reason, message: &str) {
        let object = ObjectRef::new(Kind::Service, self.key);
        Problem::new(object, reason, message).add_to(&mut self.problems);
    }

    fn finish(mut self) -> ServicePlan {
        if !self.shortened.is_empty() {
            let keys = self.shortened.iter();
            let keys = keys.map(|(name, label)| format!("{PREFIX}{name} is {label}"));
            let keys = list(keys, self.shortened.len());
            let message = format!("keys of labels are shortened: {keys}");
            self.problem(Reason::KeyTooLong, &message);
        }
        ServicePlan {
            policies: self.builder.finish(),
            problems: self.problems.into_iter().collect(),
            frozen: self.frozen,
        }
    }
}
