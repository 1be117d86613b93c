//! The examples of the users' document, word for word.

use serde_json::{Value, json};

use super::super::super::fixture::{grm, namespace, object, plan, pod, settings, state};
use super::super::{Compatibility, IngressController, service};
use crate::state::{LabelSelector, ObjectKey};

#[test]
fn two_policies_for_each_port() {
    let state = state(&[namespace("a"), grm(&[])]);
    let plan = plan(&state, Compatibility::Document);
    let policies: Vec<_> = plan.policies.iter().map(object).collect();
    assert_eq!(policies, [own_egress(), own_ingress()]);
    assert_eq!(plan.problems, []);
    for policy in &plan.policies {
        let labels: Vec<_> = policy
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(
            labels,
            [
                "networking.resources.gardener.cloud/service-name=gardener-resource-manager",
                "networking.resources.gardener.cloud/service-namespace=a",
            ]
        );
    }
}

#[test]
fn two_more_for_each_other_namespace() {
    let selectors = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#;
    let state = state(&[
        namespace("a"),
        namespace("b"),
        namespace("c"),
        grm(&[("namespace-selectors", selectors)]),
    ]);
    let plan = plan(&state, Compatibility::Document);
    let policies: Vec<_> = plan.policies.iter().map(object).collect();
    assert_eq!(
        policies,
        [own_egress(), own_ingress(), other_ingress(), other_egress()]
    );
}

#[test]
fn a_namespace_alias_changes_labels_alone() {
    let selectors = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#;
    let state = state(&[
        namespace("a"),
        namespace("b"),
        grm(&[
            ("namespace-selectors", selectors),
            ("pod-label-selector-namespace-alias", "all-foos"),
        ]),
    ]);
    let plan = plan(&state, Compatibility::Document);
    let policies: Vec<_> = plan.policies.iter().map(object).collect();
    let aliased = |policy: Value| -> Value {
        let text = policy
            .to_string()
            .replace("/to-a-gardener", "/to-all-foos-gardener");
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(
        policies,
        [
            own_egress(),
            own_ingress(),
            aliased(other_ingress()),
            aliased(other_egress())
        ]
    );
}

#[test]
fn world_policy_admits_all_sources() {
    let state = state(&[
        namespace("a"),
        grm(&[(
            "from-world-to-ports",
            r#"[{"port":"10250","protocol":"TCP"}]"#,
        )]),
    ]);
    let plan = plan(&state, Compatibility::Document);
    let policy = &plan.policies[1];
    assert_eq!(
        object(policy),
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "annotations": {
                    "gardener.cloud/description": "Allows ingress traffic from everywhere to ports [TCP/10250] for pods selected by the a/gardener-resource-manager service selector.",
                },
                "name": "ingress-to-gardener-resource-manager-from-world",
                "namespace": "a",
            },
            "spec": {
                "ingress": [{
                    "from": [
                        {"namespaceSelector": {}, "podSelector": {}},
                        {"ipBlock": {"cidr": "0.0.0.0/0"}},
                        {"ipBlock": {"cidr": "::/0"}},
                    ],
                    "ports": [{"port": 10250, "protocol": "TCP"}],
                }],
                "podSelector": {"matchLabels": {"app": "gardener-resource-manager"}},
                "policyTypes": ["Ingress"],
            },
        })
    );
}

#[test]
fn two_for_an_ingress() {
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "gardener-resource-manager", "namespace": "a"},
        "spec": {
            "rules": [{
                "host": "grm.foo.example.com",
                "http": {
                    "paths": [{
                        "backend": {
                            "service": {
                                "name": "gardener-resource-manager",
                                "port": {"number": 443},
                            },
                        },
                        "path": "/",
                        "pathType": "Prefix",
                    }],
                },
            }],
        },
    });
    let state = state(&[namespace("a"), namespace("default"), grm(&[]), ingress]);
    let mut settings = settings(Compatibility::Document);
    settings.ingress_controller = Some(IngressController {
        namespace: "default".to_owned(),
        pod_selector: LabelSelector::of_labels([("foo".to_owned(), "bar".to_owned())]),
    });
    let key = ObjectKey::new("a", "gardener-resource-manager");
    let plan = service(&state, &settings, &[], &key);
    let policies: Vec<_> = plan.policies.iter().map(object).collect();
    assert_eq!(
        policies,
        [
            own_egress(),
            own_ingress(),
            controller_ingress(),
            controller_egress()
        ]
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

fn own_ingress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {
                "gardener.cloud/description": "Allows ingress TCP traffic to port 10250 for pods selected by the a/gardener-resource-manager service selector from pods running in namespace a labeled with map[networking.resources.gardener.cloud/to-gardener-resource-manager-tcp-10250:allowed].",
            },
            "name": "ingress-to-gardener-resource-manager-tcp-10250",
            "namespace": "a",
        },
        "spec": {
            "ingress": [{
                "from": [{
                    "podSelector": {
                        "matchLabels": {
                            "networking.resources.gardener.cloud/to-gardener-resource-manager-tcp-10250": "allowed",
                        },
                    },
                }],
                "ports": [{"port": 10250, "protocol": "TCP"}],
            }],
            "podSelector": {"matchLabels": {"app": "gardener-resource-manager"}},
            "policyTypes": ["Ingress"],
        },
    })
}

fn own_egress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {
                "gardener.cloud/description": "Allows egress TCP traffic to port 10250 from pods running in namespace a labeled with map[networking.resources.gardener.cloud/to-gardener-resource-manager-tcp-10250:allowed] to pods selected by the a/gardener-resource-manager service selector.",
            },
            "name": "egress-to-gardener-resource-manager-tcp-10250",
            "namespace": "a",
        },
        "spec": {
            "egress": [{
                "to": [{"podSelector": {"matchLabels": {"app": "gardener-resource-manager"}}}],
                "ports": [{"port": 10250, "protocol": "TCP"}],
            }],
            "podSelector": {
                "matchLabels": {
                    "networking.resources.gardener.cloud/to-gardener-resource-manager-tcp-10250": "allowed",
                },
            },
            "policyTypes": ["Egress"],
        },
    })
}

fn other_ingress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {
                "gardener.cloud/description": "Allows ingress TCP traffic to port 10250 for pods selected by the a/gardener-resource-manager service selector from pods running in namespace b labeled with map[networking.resources.gardener.cloud/to-a-gardener-resource-manager-tcp-10250:allowed].",
            },
            "name": "ingress-to-gardener-resource-manager-tcp-10250-from-b",
            "namespace": "a",
        },
        "spec": {
            "ingress": [{
                "from": [{
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}},
                    "podSelector": {
                        "matchLabels": {
                            "networking.resources.gardener.cloud/to-a-gardener-resource-manager-tcp-10250": "allowed",
                        },
                    },
                }],
                "ports": [{"port": 10250, "protocol": "TCP"}],
            }],
            "podSelector": {"matchLabels": {"app": "gardener-resource-manager"}},
            "policyTypes": ["Ingress"],
        },
    })
}

fn other_egress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {
                "gardener.cloud/description": "Allows egress TCP traffic to port 10250 from pods running in namespace b labeled with map[networking.resources.gardener.cloud/to-a-gardener-resource-manager-tcp-10250:allowed] to pods selected by the a/gardener-resource-manager service selector.",
            },
            "name": "egress-to-a-gardener-resource-manager-tcp-10250",
            "namespace": "b",
        },
        "spec": {
            "egress": [{
                "to": [{
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}},
                    "podSelector": {"matchLabels": {"app": "gardener-resource-manager"}},
                }],
                "ports": [{"port": 10250, "protocol": "TCP"}],
            }],
            "podSelector": {
                "matchLabels": {
                    "networking.resources.gardener.cloud/to-a-gardener-resource-manager-tcp-10250": "allowed",
                },
            },
            "policyTypes": ["Egress"],
        },
    })
}

fn controller_ingress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {
                "gardener.cloud/description": "Allows ingress TCP traffic to port 10250 for pods selected by the a/gardener-resource-manager service selector from ingress controller pods running in the default namespace labeled with map[foo:bar].",
            },
            "name": "ingress-to-gardener-resource-manager-tcp-10250-from-ingress-controller",
            "namespace": "a",
        },
        "spec": {
            "ingress": [{
                "from": [{
                    "podSelector": {"matchLabels": {"foo": "bar"}},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
                }],
                "ports": [{"port": 10250, "protocol": "TCP"}],
            }],
            "podSelector": {"matchLabels": {"app": "gardener-resource-manager"}},
            "policyTypes": ["Ingress"],
        },
    })
}

fn controller_egress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {
                "gardener.cloud/description": "Allows egress TCP traffic to port 10250 from pods running in the default namespace labeled with map[foo:bar] to pods selected by the a/gardener-resource-manager service selector.",
            },
            "name": "egress-to-a-gardener-resource-manager-tcp-10250-from-ingress-controller",
            "namespace": "default",
        },
        "spec": {
            "egress": [{
                "to": [{
                    "podSelector": {"matchLabels": {"app": "gardener-resource-manager"}},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}},
                }],
                "ports": [{"port": 10250, "protocol": "TCP"}],
            }],
            "podSelector": {"matchLabels": {"foo": "bar"}},
            "policyTypes": ["Egress"],
        },
    })
}
