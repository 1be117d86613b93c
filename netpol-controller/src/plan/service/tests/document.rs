//! The examples of the users' document, word for word.

use serde_json::{Value, json};

use super::super::super::fixture::{grm, namespace, object, plan, pod, settings, state};
use super::super::{Compatibility, IngressController, ServicePlan, service};
use crate::state::{LabelSelector, ObjectKey};

/// The policies as the document shows them; that of all sources without its description.
const SHOWN: &str = include_str!("../../../../tests/peers/document.yaml");

const B: (&str, &str) = (
    "namespace-selectors",
    r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#,
);

/// Checks that a plan has exactly these of the document's policies, by place, and no problems.
fn assert_shown(plan: &ServicePlan, places: &[usize], change: impl Fn(String) -> String) {
    let parse = |text: &str| -> Value {
        let text = change(text.to_owned());
        settings::yaml::from_str(&text, "document.yaml".as_ref()).unwrap()
    };
    let shown: Vec<_> = SHOWN.split("---\n").map(parse).collect();
    let policies: Vec<_> = plan.policies.iter().map(object).collect();
    let expected: Vec<_> = places.iter().map(|place| shown[*place].clone()).collect();
    assert_eq!(policies, expected);
    assert_eq!(plan.problems, []);
    for policy in &plan.policies {
        let labels = serde_json::to_value(&policy.labels).unwrap();
        let expected = json!({
            "networking.resources.gardener.cloud/service-name": "gardener-resource-manager",
            "networking.resources.gardener.cloud/service-namespace": "a",
        });
        assert_eq!(labels, expected);
    }
}

#[test]
fn two_policies_for_each_port_and_namespace() {
    let spaces = ["a", "b", "c"].map(namespace);
    let alias = ("pod-label-selector-namespace-alias", "all-foos");
    for (annotations, places, aliased) in [
        (&[][..], &[1, 0][..], false),
        (&[B], &[1, 0, 2, 3], false),
        // An alias changes labels alone.
        (&[B, alias], &[1, 0, 2, 3], true),
    ] {
        let state = state(&[&spaces[..], &[grm(annotations)]].concat());
        let plan = plan(&state, Compatibility::Document);
        assert_shown(&plan, places, |text| match aliased {
            true => text.replace("/to-a-gardener", "/to-all-foos-gardener"),
            false => text,
        });
    }
}

#[test]
fn world_policy_admits_all_sources() {
    let ports = r#"[{"port":"10250","protocol":"TCP"}]"#;
    let state = state(&[namespace("a"), grm(&[("from-world-to-ports", ports)])]);
    let mut plan = plan(&state, Compatibility::Document);
    let mut world = object(&plan.policies.remove(1));
    let description = world["metadata"]["annotations"].take();
    let sentence = "Allows ingress traffic from everywhere to ports [TCP/10250] for pods selected by \
                    the a/gardener-resource-manager service selector.";
    assert_eq!(description, json!({"gardener.cloud/description": sentence}));
    world["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("annotations");
    let shown = SHOWN.split("---\n").nth(4).unwrap();
    let shown: Value = settings::yaml::from_str(shown, "document.yaml".as_ref()).unwrap();
    assert_eq!(world, shown);
    assert_shown(&plan, &[1, 0], |text| text);
}

#[test]
fn two_for_an_ingress() {
    let backend =
        json!({"service": {"name": "gardener-resource-manager", "port": {"number": 443}}});
    let paths = json!([{"backend": backend, "path": "/", "pathType": "Prefix"}]);
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "gardener-resource-manager", "namespace": "a"},
        "spec": {"rules": [{"host": "grm.foo.example.com", "http": {"paths": paths}}]},
    });
    let state = state(&[namespace("a"), namespace("default"), grm(&[]), ingress]);
    let mut settings = settings(Compatibility::Document);
    settings.ingress_controller = Some(IngressController {
        namespace: "default".to_owned(),
        pod_selector: LabelSelector::of_labels([("foo".to_owned(), "bar".to_owned())]),
    });
    let key = ObjectKey::new("a", "gardener-resource-manager");
    assert_shown(
        &service(&state, &settings, &[], &key),
        &[1, 0, 5, 6],
        |text| text,
    );
}

#[test]
fn one_label_for_many_services() {
    let pods: Vec<_> = (0..10)
        .map(|number| {
            let ports = format!(r#"[{{"port":808{number},"protocol":"TCP"}}]"#);
            (format!("bar{number}"), ports)
        })
        .collect();
    for (number, (name, ports)) in pods.iter().enumerate() {
        let mut object = grm(&[("from-all-bars-allowed-ports", ports)]);
        object["metadata"]["name"] = json!(name);
        let state = state(&[namespace("a"), object, pod("a", "foo", &[])]);
        let plan = service(
            &state,
            &settings(Compatibility::Document),
            &[],
            &ObjectKey::new("a", name),
        );
        let egress = plan.policies.iter().find(|policy| {
            *policy.key.name == *format!("egress-to-{name}-tcp-808{number}-via-all-bars")
        });
        let spec = serde_json::to_value(&egress.unwrap().spec).unwrap();
        assert_eq!(
            spec["podSelector"],
            json!({"matchLabels": {"networking.resources.gardener.cloud/to-all-bars": "allowed"}})
        );
        assert_eq!(
            spec["egress"][0]["ports"],
            json!([{"port": 8080 + number, "protocol": "TCP"}])
        );
    }
}
