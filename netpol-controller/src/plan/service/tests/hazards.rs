//! Names and labels that could be taken for one another, and odd aliases.

use serde_json::{Value, json};

use super::super::super::fixture::{
    MODES, PREFIX, example, find, ingress, keys, messages, named, namespace, object, plan,
    plan_routed, pod, routed, settings, spec, state, with_controller,
};
use super::super::{Compatibility, service};
use crate::plan::Reason;
use crate::state::ObjectKey;

fn by_name(namespace: &str) -> String {
    format!(r#"[{{"matchLabels":{{"kubernetes.io/metadata.name":"{namespace}"}}}}]"#)
}

fn peer(namespace: Option<&str>, key: &str, value: &str) -> Value {
    let mut peer = json!({"podSelector": {"matchLabels": {key: value}}});
    if let Some(namespace) = namespace {
        peer["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    }
    peer
}

#[test]
fn clients_and_gateway_share_ingress_policy() {
    let state = state(&[
        namespace("a"),
        namespace("g"),
        example(&[("namespace-selectors", &by_name("g"))]),
    ]);
    let plan = plan_routed(&state, Compatibility::Document, &[routed("g", "x", 10250)]);
    let name = "a/ingress-to-s-tcp-10250-from-g";
    let label = format!("{PREFIX}to-a-s-tcp-10250");
    assert_eq!(
        spec(&plan, name)["ingress"],
        json!([{
            "from": [peer(Some("g"), &label, "allowed"), peer(Some("g"), "istio", "x")],
            "ports": [{"port": 10250, "protocol": "TCP"}],
        }])
    );
    assert_eq!(
        find(&plan, name).description,
        format!(
            "Allows ingress TCP traffic to port 10250 for pods selected by the \
             a/s service selector from pods running in namespace g labeled \
             with map[{label}:allowed]. Allows ingress TCP traffic to port 10250 for pods selected \
             by the a/s service selector from pods running in namespace g \
             labeled with map[istio:x]."
        )
    );
    assert_eq!(plan.policies.len(), 5);
}

#[test]
fn namespace_istio_shares_ingress_policy() {
    let state = state(&[
        namespace("a"),
        namespace("istio"),
        example(&[("namespace-selectors", &by_name("istio"))]),
    ]);
    let plan = plan_routed(&state, Compatibility::Document, &[routed("a", "x", 10250)]);
    let label = format!("{PREFIX}to-a-s-tcp-10250");
    assert_eq!(
        spec(&plan, "a/ingress-to-s-tcp-10250-from-istio")["ingress"][0]["from"],
        json!([
            peer(Some("istio"), &label, "allowed"),
            peer(None, "istio", "x")
        ])
    );
    let mut found = keys(&plan);
    found.retain(|key| key.contains("/egress-"));
    assert_eq!(
        found,
        [
            "a/egress-to-s-tcp-10250",
            "a/egress-to-s-tcp-10250-from-istio",
            "istio/egress-to-a-s-tcp-10250",
        ]
    );
}

#[test]
fn ingress_controller_namespace_shares_name() {
    let selectors = by_name("ingress-controller");
    let state = state(&[
        namespace("a"),
        namespace("i"),
        namespace("ingress-controller"),
        example(&[("namespace-selectors", &selectors)]),
        ingress("a", &[("s", json!({"number": 443}))]),
    ]);
    let pods = json!({"matchLabels": {"foo": "bar"}});
    let settings = with_controller(Compatibility::Document, "i", pods);
    let plan = service(&state, &settings, &[], &ObjectKey::new("a", "s"));
    let label = format!("{PREFIX}to-a-s-tcp-10250");
    assert_eq!(
        spec(&plan, "a/ingress-to-s-tcp-10250-from-ingress-controller")["ingress"],
        json!([{
            "from": [
                peer(Some("ingress-controller"), &label, "allowed"),
                peer(Some("i"), "foo", "bar"),
            ],
            "ports": [{"port": 10250, "protocol": "TCP"}],
        }])
    );
    assert_eq!(plan.policies.len(), 5);
}

#[test]
fn alias_named_like_client_keeps_policies() {
    // `via-p` of namespace `b` and `via-p-from-b` of the own namespace have one name on the way in.
    let state = state(&[
        namespace("a"),
        namespace("b"),
        example(&[
            ("namespace-selectors", &by_name("b")),
            ("from-p-allowed-ports", r#"[{"port":1}]"#),
            ("from-p-from-b-allowed-ports", r#"[{"port":1}]"#),
        ]),
    ]);
    let plan = plan(&state, Compatibility::Document);
    let rule = &spec(&plan, "a/ingress-to-s-tcp-1-via-p-from-b")["ingress"];
    assert_eq!(
        rule[0]["from"],
        json!([
            peer(None, &format!("{PREFIX}to-p-from-b"), "allowed"),
            peer(Some("b"), &format!("{PREFIX}to-a-p"), "allowed"),
        ])
    );
    assert_eq!(rule.as_array().unwrap().len(), 1);
}

#[test]
fn ranges_with_one_start_share_a_policy() {
    let list = r#"[{"port":8000,"endPort":8010},{"port":8000,"endPort":8020},{"port":8000}]"#;
    let state = state(&[namespace("a"), example(&[("from-p-allowed-ports", list)])]);
    let plan = plan(&state, Compatibility::Document);
    let ports = json!([
        {"port": 8000, "endPort": 8010, "protocol": "TCP"},
        {"port": 8000, "endPort": 8020, "protocol": "TCP"},
        {"port": 8000, "protocol": "TCP"},
    ]);
    let name = "s-tcp-8000-via-p";
    let ingress = spec(&plan, &format!("a/ingress-to-{name}"));
    assert_eq!(ingress["ingress"][0]["ports"], ports);
    let egress = spec(&plan, &format!("a/egress-to-{name}"));
    assert_eq!(egress["egress"][0]["ports"], ports);
    assert_eq!(plan.policies.len(), 4);
    let reported = &find(&plan, &format!("a/ingress-to-{name}")).description;
    assert!(
        reported.contains("port 8000-8010 for") && reported.contains("port 8000 for"),
        "{reported}"
    );
}

#[test]
fn duplicates_in_a_list_are_one() {
    let list = r#"[{"port":1},{"port":"1","protocol":"TCP"}]"#;
    let state = state(&[namespace("a"), example(&[("from-p-allowed-ports", list)])]);
    let plan = plan(&state, Compatibility::Document);
    let rule = &spec(&plan, "a/ingress-to-s-tcp-1-via-p")["ingress"];
    assert_eq!(rule[0]["ports"], json!([{"port": 1, "protocol": "TCP"}]));
    assert_eq!(rule[0]["from"].as_array().unwrap().len(), 1);
}

#[test]
fn the_empty_alias_is_none() {
    let state = state(&[
        namespace("a"),
        example(&[("from--allowed-ports", r#"[{"port":9},{"port":10250}]"#)]),
    ]);
    let plan = plan(&state, Compatibility::Document);
    assert_eq!(
        keys(&plan),
        [
            "a/egress-to-s-tcp-10250",
            "a/egress-to-s-tcp-9",
            "a/ingress-to-s-tcp-10250",
            "a/ingress-to-s-tcp-9",
        ]
    );
    let label = format!("{PREFIX}to-s-tcp-9");
    assert_eq!(
        object(&plan.policies[1])["spec"]["podSelector"],
        json!({"matchLabels": {label: "allowed"}})
    );
}

#[test]
fn invalid_alias_is_reported_in_both_modes() {
    for alias in ["All-bars", "all_bars", "bars-", "a..b"] {
        let annotation = format!("from-{alias}-allowed-ports");
        let state = state(&[namespace("a"), example(&[(&annotation, r#"[{"port":9}]"#)])]);
        for mode in MODES {
            let plan = plan(&state, mode);
            let reported = messages(&plan.problems, Reason::InvalidAnnotation);
            assert_eq!(reported.len(), 1, "{alias}");
            assert!(reported[0].contains(&annotation), "{reported:?}");
            assert!(keys(&plan).iter().all(|key| !key.contains("via")));
        }
        assert_eq!(plan(&state, Compatibility::Document).policies.len(), 2);
    }
}

#[test]
fn similar_annotations_are_not_aliases() {
    for name in [
        "from-allowed-ports",
        "from-p-allowed-ports-off",
        "xfrom-p-allowed-ports",
    ] {
        let state = state(&[namespace("a"), example(&[(name, r#"[{"port":9}]"#)])]);
        let plan = plan(&state, Compatibility::Document);
        assert_eq!((plan.policies.len(), plan.problems.len()), (2, 0), "{name}");
    }
    let mut object = example(&[]);
    object["metadata"]["annotations"] =
        json!({"rhizome.gardener.cloud/from-p-allowed-ports": r#"[{"port":9}]"#});
    let state = state(&[namespace("a"), object]);
    assert_eq!(plan(&state, Compatibility::Document).policies.len(), 2);
}

#[test]
fn overlong_names_are_reported_and_skipped() {
    let long = "n".repeat(230);
    let object = named("a", &long, &[("from-p-allowed-ports", r#"[{"port":9}]"#)]);
    let client = "c".repeat(60);
    let state = state(&[
        namespace("a"),
        namespace(&client),
        object,
        pod("a", "x", &[]),
    ]);
    let plan = service(
        &state,
        &settings(Compatibility::Document),
        &[routed(&client, "x", 10250)],
        &ObjectKey::new("a", &long),
    );
    assert_eq!(plan.policies.len(), 4);
    let reported = messages(&plan.problems, Reason::InvalidAnnotation);
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("cannot be the name of a NetworkPolicy"),
        "{reported:?}"
    );
}
