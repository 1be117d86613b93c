//! Definitions of other people's kinds, as small as the API server takes them.

use serde_json::{Value, json};

use crate::api::Api;

/// A kind: group, version, kind, plural, and whether it lies in namespaces.
pub(crate) type Definition = (&'static str, &'static str, &'static str, &'static str, bool);

pub(crate) const ISTIO_GATEWAY: Definition =
    ("networking.istio.io", "v1", "Gateway", "gateways", true);
pub(crate) const VIRTUAL_SERVICE: Definition = (
    "networking.istio.io",
    "v1",
    "VirtualService",
    "virtualservices",
    true,
);
pub(crate) const GATEWAY: Definition = (
    "gateway.networking.k8s.io",
    "v1beta1",
    "Gateway",
    "gateways",
    true,
);
pub(crate) const TLS_ROUTE: Definition = (
    "gateway.networking.k8s.io",
    "v1alpha2",
    "TLSRoute",
    "tlsroutes",
    true,
);
pub(crate) const CLUSTER: Definition = (
    "extensions.gardener.cloud",
    "v1alpha1",
    "Cluster",
    "clusters",
    false,
);

/// Installs a kind, and waits until objects of it can be created.
pub(crate) fn install(api: &mut Api, definition: Definition) {
    let (group, version, kind, plural, namespaced) = definition;
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let mut object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "scope": if namespaced { "Namespaced" } else { "Cluster" },
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    });
    if group.ends_with(".k8s.io") {
        let approval = json!("https://github.com/kubernetes-sigs/gateway-api");
        object["metadata"]["annotations"] = json!({ "api-approved.kubernetes.io": approval });
    }
    api.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        &object,
    );
    let served = testkit::wait::until("the kind to be served", crate::child::LIMIT, || {
        api.find(&format!("/apis/{group}/{version}/{plural}"))
            .is_some()
    });
    served.unwrap();
}

/// Creates an object of an installed kind.
pub(crate) fn create(
    api: &mut Api,
    definition: Definition,
    (namespace, name): (&str, &str),
    spec: &Value,
) {
    let (group, version, kind, _, namespaced) = definition;
    let object = json!({
        "apiVersion": format!("{group}/{version}"), "kind": kind,
        "metadata": { "name": name }, "spec": spec,
    });
    assert_eq!(namespaced, !namespace.is_empty());
    api.create(&path(definition, namespace), &object);
}

/// Returns the path of the objects of a kind.
pub(crate) fn path((group, version, _, plural, _): Definition, namespace: &str) -> String {
    match namespace {
        "" => format!("/apis/{group}/{version}/{plural}"),
        _ => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
    }
}
