//! The user's document from its first example to its last, read back from the API server.

use serde_json::{Value, json};

use crate::api::{Api, P, Policies, key, service, services};
use crate::stage::{DOCUMENT, Stage};

/// The policies that the document shows, as it shows them.
const SHOWN: &str = include_str!("document.yaml");

const GRM: &str = "gardener-resource-manager";

/// Reads the documents of a file that has several.
fn shown() -> Vec<Value> {
    let parse = |text| settings::yaml::from_str(text, "document.yaml".as_ref()).unwrap();
    SHOWN.split("---\n").map(parse).collect()
}

/// Compares what is shown of a policy with the policy: labels and what the API server adds are
/// nothing the document shows.
fn is_as_shown(shown: &Value, policies: &Policies) {
    let found = &policies[&key(shown)];
    assert_eq!(found["spec"], shown["spec"], "{}", key(shown));
    let annotations = &shown["metadata"]["annotations"];
    if !annotations.is_null() {
        assert_eq!(&found["metadata"]["annotations"], annotations);
    }
    let labels = &found["metadata"]["labels"];
    assert_eq!(labels[format!("{P}/service-name")], GRM);
    assert_eq!(labels[format!("{P}/service-namespace")], "a");
}

fn resource_manager() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": GRM },
        "spec": {
            "selector": { "app": GRM },
            "ports": [{ "name": "server", "port": 443, "protocol": "TCP", "targetPort": 10250 }],
        },
    })
}

fn ingress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": GRM },
        "spec": { "rules": [{ "host": "grm.foo.example.com", "http": { "paths": [{
            "backend": { "service": { "name": GRM, "port": { "number": 443 } } },
            "path": "/", "pathType": "Prefix",
        }] } }] },
    })
}

fn the_resource_manager(api: &mut Api) {
    let own = [
        "a/ingress-to-gardener-resource-manager-tcp-10250",
        "a/egress-to-gardener-resource-manager-tcp-10250",
    ];
    let of_b = [
        "a/ingress-to-gardener-resource-manager-tcp-10250-from-b",
        "b/egress-to-a-gardener-resource-manager-tcp-10250",
    ];
    let state = ["a/ingress-to-gardener-resource-manager-from-world"];
    let exposed = [
        "a/ingress-to-gardener-resource-manager-tcp-10250-from-ingress-controller",
        "default/egress-to-a-gardener-resource-manager-tcp-10250-from-ingress-controller",
    ];
    api.create(&services("a"), &resource_manager());
    api.wait_names("the Service's own policies", &own);
    let b = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#;
    api.annotate("a", GRM, &json!({ format!("{P}/namespace-selectors"): b }));
    api.wait_names("those of b", &[own, of_b].concat());
    let ports = r#"[{"port":"10250","protocol":"TCP"}]"#;
    api.annotate(
        "a",
        GRM,
        &json!({ format!("{P}/from-world-to-ports"): ports }),
    );
    let three = [&own[..], &of_b[..], &state[..]].concat();
    api.wait_names("the from-world policy", &three);
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/a/ingresses";
    api.create(ingresses, &ingress());
    let all = [&three[..], &exposed[..]].concat();
    let policies = api.wait_names("those of the Ingress", &all);
    let shown = shown();
    assert_eq!(shown.len(), all.len());
    for one in &shown {
        is_as_shown(one, &policies);
    }
    api.delete(&format!("{ingresses}/{GRM}"));
    api.wait_names("those of the Ingress to go", &three);
    let none = json!({ format!("{P}/from-world-to-ports"): null, format!("{P}/namespace-selectors"): null });
    api.annotate("a", GRM, &none);
    api.wait_names("the Service's own to stay", &own);
    api.delete(&format!("{}/{GRM}", services("a")));
    api.wait_names("the last ones to go", &[]);
}

/// A Service in namespaces of unknown names, and a component that talks to all of them.
fn targets_in_many_namespaces(api: &mut Api) {
    let bar = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"bar"}}]"#;
    for namespace in ["foo-1", "foo-2"] {
        let mut example = service("example", 8080);
        example["metadata"]["annotations"] = json!({
            format!("{P}/namespace-selectors"): bar,
            format!("{P}/pod-label-selector-namespace-alias"): "all-foos",
        });
        api.create(&services(namespace), &example);
    }
    let policies = api.wait_policies("eight policies", |found| found.len() == 8);
    for namespace in ["foo-1", "foo-2"] {
        let out = &policies[&format!("bar/egress-to-{namespace}-example-tcp-8080")]["spec"];
        let label = json!({ format!("{P}/to-all-foos-example-tcp-8080"): "allowed" });
        assert_eq!(out["podSelector"]["matchLabels"], label);
        let into = &policies[&format!("{namespace}/ingress-to-example-tcp-8080-from-bar")]["spec"];
        let peer = &into["ingress"][0]["from"][0];
        assert_eq!(peer["podSelector"]["matchLabels"], label);
        api.delete(&format!("{}/example", services(namespace)));
    }
    api.wait_names("all of them to go", &[]);
}

/// One label for many Services.
fn one_label_for_many(api: &mut Api) {
    for number in [8080_u16, 8081] {
        let name = format!("bar{number}");
        let ports = format!(r#"[{{"port":{number},"protocol":"TCP"}}]"#);
        let mut one = service(&name, number);
        one["metadata"]["annotations"] =
            json!({ format!("{P}/from-all-bars-allowed-ports"): ports });
        api.create(&services("a"), &one);
    }
    let policies = api.wait_policies("eight policies", |found| found.len() == 8);
    for number in [8080_u16, 8081] {
        let name = format!("a/egress-to-bar{number}-tcp-{number}-via-all-bars");
        let spec = &policies[&name]["spec"];
        let label = json!({ format!("{P}/to-all-bars"): "allowed" });
        assert_eq!(spec["podSelector"]["matchLabels"], label);
        assert_eq!(
            spec["egress"][0]["ports"],
            json!([{ "port": number, "protocol": "TCP" }])
        );
        api.delete(&format!("{}/bar{number}", services("a")));
    }
    api.wait_names("all of them to go", &[]);
}

#[test]
fn the_document_comes_true_step_by_step() {
    let stage = Stage::new("document");
    let mut api = stage.api();
    for name in ["a", "b", "foo-1", "foo-2", "bar"] {
        api.namespace(name, &json!({}));
    }
    let mut controller = stage.controller("controller", DOCUMENT);
    the_resource_manager(&mut api);
    targets_in_many_namespaces(&mut api);
    one_label_for_many(&mut api);
    assert_eq!(
        controller.value("rhizome_netpol_write_errors_total", &[]),
        0.0
    );
    assert_eq!(api.events(), Vec::<String>::new());
    let (status, _) = controller.terminate();
    assert_eq!(status.code(), Some(0));
}
