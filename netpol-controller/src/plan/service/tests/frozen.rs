//! Invalid annotations: what is reported, what is frozen, what goes on.

use serde_json::{Value, json};

use super::super::super::fixture::{example, keys, messages, namespace, plan, state};
use super::super::{Compatibility, ServicePlan};
use crate::plan::Reason;
use crate::state::ObjectKey;

const B: &str = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#;

fn planned(annotations: &[(&str, &str)]) -> ServicePlan {
    let objects = [namespace("a"), namespace("b"), example(annotations)];
    plan(&state(&objects), Compatibility::Document)
}

/// Returns the kept ones of these policies.
fn kept<'a>(plan: &ServicePlan, observed: &[&'a str]) -> Vec<&'a str> {
    let key = |text: &str| {
        let (namespace, name) = text.split_once('/').unwrap();
        ObjectKey::new(namespace, name)
    };
    let all = observed.iter().filter(|text| plan.keeps(&key(text)));
    all.copied().collect()
}

/// One policy of each kind, and some that none of this Service's annotations decides.
const EXISTING: [&str; 17] = [
    "a/ingress-to-s-tcp-10250",
    "a/egress-to-s-tcp-10250",
    "a/ingress-to-s-tcp-9",
    "a/egress-to-s-tcp-9",
    "a/ingress-to-s-tcp-9-from-b",
    "b/egress-to-a-s-tcp-9",
    "a/ingress-to-s-tcp-9-via-p",
    "a/egress-to-s-tcp-9-via-p",
    "a/ingress-to-s-tcp-9-via-p-from-b",
    "b/egress-to-a-s-tcp-9-via-p",
    "a/ingress-to-s-tcp-9-via-px",
    "a/ingress-to-s-from-world",
    "a/ingress-to-s-tcp-9-from-ingress-controller",
    "b/egress-to-a-s-tcp-9-from-ingress-controller",
    "a/egress-to-s-tcp-9-from-istio",
    "b/egress-to-a-s-tcp-9-from-istio",
    "b/egress-to-a-s-tcp-9-from-istio-0a1b2",
];

#[test]
fn nothing_is_frozen_while_all_is_understood() {
    let plan = planned(&[("namespace-selectors", B), ("from-world-to-ports", "[]")]);
    assert_eq!(kept(&plan, &EXISTING), Vec::<&str>::new());
    assert_eq!(plan.problems, []);
}

#[test]
fn bad_selectors_freeze_other_namespaces() {
    for (text, reported) in [
        ("", "column 0"),
        ("nonsense", "line 1 column 2"),
        ("{}", "not a list"),
        (r#"["b"]"#, "item 1"),
        (r#"[{"matchLabels":"b"}]"#, "item 1"),
        (
            r#"[{},{"matchExpressions":[{"key":"a","operator":"Like","values":["b"]}]}]"#,
            "item 2",
        ),
        (
            r#"[{"matchExpressions":[{"key":"a","operator":"In"}]}]"#,
            "item 1",
        ),
    ] {
        let plan = planned(&[
            ("namespace-selectors", text),
            ("from-p-allowed-ports", r#"[{"port":8080}]"#),
            ("from-world-to-ports", "[]"),
        ]);
        let events = messages(&plan.problems, Reason::InvalidAnnotation);
        assert_eq!(events.len(), 1, "{text}");
        let key = "annotation networking.resources.gardener.cloud/namespace-selectors: ";
        assert!(
            events[0].starts_with(key) && events[0].contains(reported),
            "{events:?}"
        );
        assert_eq!(
            keys(&plan),
            [
                "egress-to-s-tcp-10250",
                "egress-to-s-tcp-8080-via-p",
                "ingress-to-s-from-world",
                "ingress-to-s-tcp-10250",
                "ingress-to-s-tcp-8080-via-p",
            ]
            .map(|name| format!("a/{name}"))
        );
        assert_eq!(
            kept(&plan, &EXISTING),
            [
                "a/ingress-to-s-tcp-9-from-b",
                "b/egress-to-a-s-tcp-9",
                "a/ingress-to-s-tcp-9-via-p-from-b",
                "b/egress-to-a-s-tcp-9-via-p",
            ]
        );
    }
}

#[test]
fn namespace_named_as_controller_is_frozen() {
    let objects = [
        namespace("a"),
        namespace("istio"),
        example(&[("namespace-selectors", "?")]),
    ];
    let plan = plan(&state(&objects), Compatibility::Document);
    let observed = [
        "a/ingress-to-s-tcp-9-from-istio",
        "a/ingress-to-s-tcp-9-from-ingress-controller",
    ];
    assert_eq!(kept(&plan, &observed), observed[..1]);
}

#[test]
fn bad_namespace_alias_freezes_other_namespaces() {
    let plan = planned(&[
        ("namespace-selectors", B),
        ("pod-label-selector-namespace-alias", "all foos"),
    ]);
    let events = messages(&plan.problems, Reason::InvalidAnnotation);
    assert_eq!(events.len(), 1);
    assert!(
        events[0].contains("pod-label-selector-namespace-alias"),
        "{events:?}"
    );
    assert_eq!(plan.policies.len(), 2);
    assert_eq!(
        kept(&plan, &["a/egress-to-s-tcp-9", "b/egress-to-a-s-tcp-9"]),
        ["b/egress-to-a-s-tcp-9"]
    );
}

#[test]
fn bad_ports_of_an_alias_freeze_its_policies() {
    for (text, reported) in [
        ("[{]", "column 3"),
        (r#"[{"protocol":"TCP"}]"#, "item 1: no port"),
        (
            r#"[{"port":8080},{"port":"x","protocol":"ICMP"}]"#,
            "item 2: unknown variant `ICMP`",
        ),
    ] {
        let plan = planned(&[
            ("namespace-selectors", B),
            ("from-p-allowed-ports", text),
            ("from-q-allowed-ports", r#"[{"port":1}]"#),
        ]);
        let events = messages(&plan.problems, Reason::InvalidAnnotation);
        assert_eq!(events.len(), 1);
        let key = "annotation networking.resources.gardener.cloud/from-p-allowed-ports: ";
        assert!(
            events[0].starts_with(key) && events[0].contains(reported),
            "{events:?}"
        );
        assert_eq!(plan.policies.len(), 8);
        assert!(keys(&plan).iter().all(|key| !key.contains("via-p")));
        assert_eq!(
            kept(&plan, &EXISTING),
            [
                "a/ingress-to-s-tcp-9-via-p",
                "a/egress-to-s-tcp-9-via-p",
                "a/ingress-to-s-tcp-9-via-p-from-b",
                "b/egress-to-a-s-tcp-9-via-p",
            ]
        );
    }
}

#[test]
fn bad_ports_of_empty_alias_freeze_other_ports() {
    let plan = planned(&[("from--allowed-ports", "?")]);
    assert_eq!(
        kept(&plan, &EXISTING),
        [
            "a/ingress-to-s-tcp-9",
            "a/egress-to-s-tcp-9",
            "a/ingress-to-s-tcp-9-from-b",
            "b/egress-to-a-s-tcp-9",
        ]
    );
}

#[test]
fn bad_world_ports_freeze_one_policy() {
    for text in ["", "{}", "?", r#"[{"port":"A"}]"#] {
        let plan = planned(&[("from-world-to-ports", text), ("namespace-selectors", B)]);
        assert_eq!(messages(&plan.problems, Reason::InvalidAnnotation).len(), 1);
        assert_eq!(plan.policies.len(), 4);
        assert_eq!(kept(&plan, &EXISTING), ["a/ingress-to-s-from-world"]);
    }
}

#[test]
fn bad_annotations_are_reported_separately() {
    let plan = planned(&[
        ("from-world-to-ports", "?"),
        ("from-p-allowed-ports", "?"),
        ("namespace-selectors", "?"),
        ("pod-label-selector-namespace-alias", "?"),
    ]);
    assert_eq!(messages(&plan.problems, Reason::InvalidAnnotation).len(), 4);
    assert_eq!(plan.policies.len(), 2);
}

#[test]
fn policies_are_kept_until_namespace_is_known() {
    let plan = plan(&state(&[example(&[])]), Compatibility::Document);
    assert_eq!(keys(&plan), [""; 0]);
    assert_eq!(kept(&plan, &EXISTING), EXISTING);
}

#[test]
fn messages_fit_into_an_event() {
    let long = format!(r#"[{{"{}":1}}]"#, "é".repeat(4000));
    let plan = planned(&[("from-p-allowed-ports", &long)]);
    let events = messages(&plan.problems, Reason::InvalidAnnotation);
    assert!(events[0].len() < 1024 && events[0].ends_with('…'));
}

#[test]
fn aliases_beyond_the_bound_are_frozen() {
    let key = |index: usize| format!("from-p{index:02}-allowed-ports");
    let keys_of: Vec<_> = (0..18).map(key).collect();
    let annotations: Vec<_> = keys_of
        .iter()
        .map(|key| (key.as_str(), r#"[{"port":1}]"#))
        .collect();
    let plan = planned(&annotations);
    let events = messages(&plan.problems, Reason::InvalidAnnotation);
    let expected = [16, 17].map(|index| {
        let key = key(index);
        format!(
            "annotation networking.resources.gardener.cloud/{key}: a Service may have 16 aliases, \
             it has more"
        )
    });
    assert_eq!(events, expected);
    assert_eq!(plan.policies.len(), 2 * (1 + 16));
    let observed = [
        "a/ingress-to-s-tcp-9-via-p15",
        "a/ingress-to-s-tcp-9-via-p16",
        "b/egress-to-a-s-tcp-9-via-p17",
    ];
    assert_eq!(kept(&plan, &observed), observed[1..]);
}

/// A Service with this many ports that are open to 24 namespaces.
fn crowded(ports: usize) -> ServicePlan {
    let list = |from: usize, count: usize| {
        let ports: Vec<_> = (from..from + count)
            .map(|port| json!({"port": port}))
            .collect();
        Value::from(ports).to_string()
    };
    let (first, second) = (
        list(1, ports.min(100)),
        list(1001, ports.saturating_sub(100)),
    );
    let mut objects: Vec<_> = (0..24)
        .map(|index| namespace(&format!("c{index}")))
        .collect();
    objects.push(namespace("a"));
    objects.push(example(&[
        ("namespace-selectors", "[{}]"),
        ("from-p-allowed-ports", &first),
        ("from-q-allowed-ports", &second),
    ]));
    plan(&state(&objects), Compatibility::Document)
}

#[test]
fn too_many_policies_freeze_other_namespaces() {
    // Two policies for each of 25 namespaces and 99 ports, one of them the Service's own; and one
    // policy is reserved for the from-world policy.
    let plan = crowded(98);
    assert_eq!((plan.policies.len(), plan.problems.len()), (4950, 0));
    let plan = crowded(99);
    assert_eq!(
        messages(&plan.problems, Reason::InvalidAnnotation),
        [
            "annotation networking.resources.gardener.cloud/namespace-selectors: a Service may have \
             5000 policies, these were more"
        ]
    );
    assert_eq!(plan.policies.len(), 200);
    assert!(plan.policies.iter().all(|one| &*one.key.namespace == "a"));
    let observed = ["a/ingress-to-s-tcp-9", "a/ingress-to-s-tcp-9-from-c1"];
    assert_eq!(kept(&plan, &observed), observed[1..]);
}

#[test]
fn service_policies_stop_at_the_limit() {
    let mut service = example(&[]);
    let ports = (1..=2501).map(|port| json!({"name": format!("p{port}"), "port": port}));
    service["spec"]["ports"] = ports.collect();
    let plan = plan(&state(&[namespace("a"), service]), Compatibility::Document);
    assert_eq!(plan.policies.len(), 5000);
    assert_eq!(
        messages(&plan.problems, Reason::InvalidAnnotation),
        ["a Service may have 5000 policies, the others are not written"]
    );
}
