//! Which objects apply to a gateway: by labels, by namespace, by name.

use super::{GatewayEntry, ROOT_NAMESPACE};
use crate::state::{
    ClusterState, EnvoyFilter, Gateway, IstioGateway, Labels, ObjectKey, has_labels,
};

/// Annotation with the names of the gateways that an object is for.
pub(super) const GATEWAYS: &str = "rhizome.gardener.cloud/gateways";

/// Istio's annotation with the namespaces that see a Service.
const EXPORT_TO: &str = "networking.istio.io/exportTo";

fn selects_pods(state: &ClusterState, entry: &GatewayEntry, selector: &Labels) -> bool {
    if has_labels(&entry.selector, selector) {
        return true;
    }
    let mut pods = state.pods.labels_in(&entry.namespace);
    may_select(entry, selector)
        && pods.any(|pod| has_labels(pod, &entry.selector) && has_labels(pod, selector))
}

/// Returns whether a selector selects pods that have a gateway's labels and perhaps others.
fn may_select(entry: &GatewayEntry, selector: &Labels) -> bool {
    let other =
        |(key, value): (&String, &String)| entry.selector.get(key).is_none_or(|own| own == value);
    selector.iter().all(other)
}

/// Returns whether it depends on the gateway's pods if a selector selects them.
pub(super) fn pods_decide(entry: &GatewayEntry, selector: &Labels) -> bool {
    !has_labels(&entry.selector, selector) && may_select(entry, selector)
}

/// Returns whether an Istio `Gateway` is for a gateway. One without a selector is for none: Istio
/// would open its ports everywhere.
pub(super) fn serves_istio_gateway(
    state: &ClusterState,
    entry: &GatewayEntry,
    gateway: &IstioGateway,
) -> bool {
    !gateway.selector.is_empty() && selects_pods(state, entry, &gateway.selector)
}

pub(super) fn applies_filter(
    state: &ClusterState,
    entry: &GatewayEntry,
    key: &ObjectKey,
    filter: &EnvoyFilter,
) -> bool {
    may_filter(entry, key) && selects_pods(state, entry, &filter.workload_selector.labels)
}

/// Returns whether an `EnvoyFilter` of this name is for a gateway if it selects its pods.
pub(super) fn may_filter(entry: &GatewayEntry, filter: &ObjectKey) -> bool {
    let namespace = &*filter.namespace;
    namespace == entry.namespace || namespace == ROOT_NAMESPACE
}

pub(super) fn serves_gateway(
    state: &ClusterState,
    entry: &GatewayEntry,
    key: &ObjectKey,
    gateway: &Gateway,
) -> bool {
    if let Some(names) = gateway.annotations.get(GATEWAYS) {
        return names.split(',').any(|name| name.trim() == entry.name);
    }
    let labels = &gateway.infrastructure.labels;
    *key.namespace == *entry.namespace || !labels.is_empty() && selects_pods(state, entry, labels)
}

/// Returns whether an object of Istio that lies in `own` and is exported so is seen in `to`.
pub(super) fn exported(exports: &[String], own: &str, to: &str) -> bool {
    let sees = |export: &String| match export.as_str() {
        "*" => true,
        "." => own == to,
        name => name == to,
    };
    exports.is_empty() || exports.iter().any(sees)
}

/// Checks that an object of Istio may lead from a gateway to a Service: to one of its own namespace, or
/// to any where its author may change the gateway itself; and only to one that the gateway sees. Istio
/// leads to any that it sees, which lets an author open what others run.
///
/// # Errors
/// Why not.
pub(super) fn check_lead(
    state: &ClusterState,
    entry: &GatewayEntry,
    from: &ObjectKey,
    service: &ObjectKey,
) -> Result<(), String> {
    let trusted = [&*service.namespace, &entry.namespace, ROOT_NAMESPACE];
    if !trusted.contains(&&*from.namespace) {
        return Err(format!("Service {service} is in another namespace"));
    }
    if !sees_service(state, entry, service) {
        return Err(format!("Service {service} is not exported to the gateway"));
    }
    Ok(())
}

pub(super) fn sees_service(
    state: &ClusterState,
    entry: &GatewayEntry,
    service: &ObjectKey,
) -> bool {
    let object = state.services.get(service);
    let Some(exports) = object.and_then(|own| own.annotations.get(EXPORT_TO)) else {
        return true;
    };
    let exports: Vec<String> = exports
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    exported(&exports, &service.namespace, &entry.namespace)
}
