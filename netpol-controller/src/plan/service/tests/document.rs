//! The examples of the users' document, word for word.

use serde_json::{Value, json};

use super::super::super::fixture::{
    ingress, named, namespace, object, pod, settings, state, with_controller,
};
use super::super::{Compatibility, ServicePlan, service};
use crate::state::{ClusterState, ObjectKey};

/// The policies as the document shows them; that of all sources without its description.
const SHOWN: &str = include_str!("../../../../tests/peers/document.yaml");

const GRM: &str = "gardener-resource-manager";

const B: (&str, &str) = (
    "namespace-selectors",
    r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#,
);

fn shown() -> Vec<Value> {
    let parse = |text| settings::yaml::from_str(text, "document.yaml".as_ref()).unwrap();
    SHOWN.split("---\n").map(parse).collect()
}

fn grm(annotations: &[(&str, &str)]) -> Value {
    named("a", GRM, annotations)
}

fn plan(state: &ClusterState) -> ServicePlan {
    let settings = settings(Compatibility::Document);
    service(state, &settings, &[], &ObjectKey::new("a", GRM))
}

/// Checks that a plan has exactly these of the policies, by place, and no problems.
fn assert_shown(plan: &ServicePlan, places: &[usize], shown: Vec<Value>) {
    let policies: Vec<_> = plan.policies.iter().map(object).collect();
    let expected: Vec<_> = places.iter().map(|place| &shown[*place]).collect();
    assert_eq!(policies.iter().collect::<Vec<_>>(), expected);
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
        let mut shown = shown();
        if aliased {
            let text = json!(shown).to_string();
            let text = text.replace("/to-a-gardener", "/to-all-foos-gardener");
            shown = serde_json::from_str(&text).unwrap();
        }
        assert_shown(&plan(&state), places, shown);
    }
}

#[test]
fn world_policy_admits_all_sources() {
    let ports = r#"[{"port":"10250","protocol":"TCP"}]"#;
    let state = state(&[namespace("a"), grm(&[("from-world-to-ports", ports)])]);
    let mut plan = plan(&state);
    let mut world = object(&plan.policies.remove(1));
    let description = world["metadata"]["annotations"].take();
    let sentence = "Allows ingress traffic from everywhere to ports [TCP/10250] for pods selected by \
                    the a/gardener-resource-manager service selector.";
    assert_eq!(description, json!({"gardener.cloud/description": sentence}));
    world["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("annotations");
    assert_eq!(world, shown()[4]);
    assert_shown(&plan, &[1, 0], shown());
}

#[test]
fn two_for_an_ingress() {
    let exposed = ingress("a", &[(GRM, json!({"number": 443}))]);
    let state = state(&[namespace("a"), namespace("default"), grm(&[]), exposed]);
    let pods = json!({"matchLabels": {"foo": "bar"}});
    let settings = with_controller(Compatibility::Document, "default", pods);
    let plan = service(&state, &settings, &[], &ObjectKey::new("a", GRM));
    assert_shown(&plan, &[1, 0, 5, 6], shown());
}

#[test]
fn one_label_for_many_services() {
    for number in 0..10 {
        let name = format!("bar{number}");
        let ports = format!(r#"[{{"port":808{number},"protocol":"TCP"}}]"#);
        let object = named("a", &name, &[("from-all-bars-allowed-ports", &ports)]);
        let state = state(&[namespace("a"), object, pod("a", "foo", &[])]);
        let settings = settings(Compatibility::Document);
        let plan = service(&state, &settings, &[], &ObjectKey::new("a", &name));
        let egress = plan.policies.iter().find(|policy| {
            *policy.key.name == *format!("egress-to-{name}-tcp-808{number}-via-all-bars")
        });
        let spec = &egress.unwrap().spec;
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
