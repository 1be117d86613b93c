//! Every kind of policy there is, in both modes: names, peers, ports, sentences, and the labels
//! without which some are not written.

use serde_json::{Value, json};

use super::super::super::fixture::{
    MODES, PREFIX, example, find, keys, namespace, object, plan, pod, settings, spec, state,
    terminating,
};
use super::super::{Compatibility, handled, service};
use crate::state::ObjectKey;

const B: &str = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"b"}}]"#;

/// A pod that asks for access.
fn client(namespace: &str, key: &str) -> Value {
    pod(namespace, key, &[(&format!("{PREFIX}{key}"), "allowed")])
}

/// The rule and the selected pods of an ingress policy of the Service.
fn into(peer: &Value, port: &Value) -> Value {
    json!({
        "ingress": [{"from": [peer], "ports": [port]}],
        "podSelector": {"matchLabels": {"app": "s"}},
        "policyTypes": ["Ingress"],
    })
}

/// The rule and the selected pods of an egress policy of clients in namespace `b`, or in `a`.
fn out(label: &str, within: bool, port: &Value) -> Value {
    let mut peer = json!({"podSelector": {"matchLabels": {"app": "s"}}});
    if !within {
        peer["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": "a"}});
    }
    json!({
        "egress": [{"to": [peer], "ports": [port]}],
        "podSelector": {"matchLabels": {format!("{PREFIX}{label}"): "allowed"}},
        "policyTypes": ["Egress"],
    })
}

fn own(label: &str) -> Value {
    json!({"podSelector": {"matchLabels": {format!("{PREFIX}{label}"): "allowed"}}})
}

fn other(label: &str) -> Value {
    let mut peer = own(label);
    peer["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": "b"}});
    peer
}

#[test]
fn aliases_apply_within_and_across_namespaces() {
    let object = example(&[
        ("namespace-selectors", B),
        ("pod-label-selector-namespace-alias", "every"),
        (
            "from-probes-allowed-ports",
            r#"[{"port":"8080"},{"protocol":"UDP","port":"dns"}]"#,
        ),
    ]);
    let clients = ["to-s-tcp-10250", "to-probes"];
    let others = ["to-every-s-tcp-10250", "to-every-probes"];
    let mut objects = vec![namespace("a"), namespace("b"), namespace("c"), object];
    objects.extend(clients.map(|key| client("a", key)));
    objects.extend(others.map(|key| client("b", key)));
    let state = state(&objects);
    let id = "s-tcp-10250";
    let web = "s-tcp-8080-via-probes";
    let dns = "s-udp-dns-via-probes";
    for mode in MODES {
        let plan = plan(&state, mode);
        assert_eq!(plan.policies.len(), 12);
        for (name, port, own_label, other_label) in [
            (
                id,
                json!({"port": 10250, "protocol": "TCP"}),
                clients[0],
                others[0],
            ),
            (
                web,
                json!({"port": 8080, "protocol": "TCP"}),
                clients[1],
                others[1],
            ),
            (
                dns,
                json!({"port": "dns", "protocol": "UDP"}),
                clients[1],
                others[1],
            ),
        ] {
            let of = |key: String| spec(&plan, &key);
            assert_eq!(
                of(format!("a/ingress-to-{name}")),
                into(&own(own_label), &port)
            );
            assert_eq!(
                of(format!("a/egress-to-{name}")),
                out(own_label, true, &port)
            );
            assert_eq!(
                of(format!("a/ingress-to-{name}-from-b")),
                into(&other(other_label), &port)
            );
            assert_eq!(
                of(format!("b/egress-to-a-{name}")),
                out(other_label, false, &port)
            );
        }
        assert_eq!(plan.problems, []);
    }
}

#[test]
fn ports_cover_protocols_and_are_distinct() {
    let mut object = example(&[]);
    object["spec"]["ports"] = json!([
        {"name": "a", "port": 443, "protocol": "TCP", "targetPort": 10250},
        {"name": "b", "port": 444, "protocol": "TCP", "targetPort": 10250},
        {"name": "c", "port": 53, "protocol": "UDP", "targetPort": "dns"},
        {"name": "d", "port": 2905, "protocol": "SCTP", "targetPort": 0},
        {"name": "e", "port": 80, "targetPort": "8080"},
        {"name": "f", "port": 81},
    ]);
    let state = state(&[namespace("a"), object]);
    let names = [
        "sctp-2905",
        "tcp-10250",
        "tcp-80",
        "tcp-8080",
        "tcp-81",
        "udp-dns",
    ];
    let names = ["egress", "ingress"].map(|side| names.map(|name| format!("a/{side}-to-s-{name}")));
    let mut expected: Vec<_> = names
        .into_iter()
        .flatten()
        .filter(|name| !name.ends_with("tcp-80"))
        .collect();
    expected.sort();
    let plan = plan(&state, Compatibility::Document);
    assert_eq!(keys(&plan), expected);
    let digits = spec(&plan, "a/ingress-to-s-tcp-8080");
    assert_eq!(
        digits["ingress"][0]["ports"],
        json!([{"port": 8080, "protocol": "TCP"}])
    );
    let sctp = spec(&plan, "a/ingress-to-s-sctp-2905");
    assert_eq!(
        sctp["ingress"][0]["ports"],
        json!([{"port": 2905, "protocol": "SCTP"}])
    );
}

#[test]
fn world_policy_is_described_per_mode() {
    let peers = json!([
        {"namespaceSelector": {}, "podSelector": {}},
        {"ipBlock": {"cidr": "0.0.0.0/0"}},
        {"ipBlock": {"cidr": "::/0"}},
    ]);
    for (list, ports, reported) in [
        ("[]", None, "[]"),
        ("null", None, "[]"),
        ("[{}]", Some(json!([{"protocol": "TCP"}])), "[<nil>]"),
        (
            r#"[{"port":"10250"},{"port":1,"endPort":9,"protocol":"UDP"}]"#,
            Some(json!([
                {"port": 10250, "protocol": "TCP"},
                {"port": 1, "endPort": 9, "protocol": "UDP"},
            ])),
            "[10250 UDP/1-9]",
        ),
    ] {
        let state = state(&[namespace("a"), example(&[("from-world-to-ports", list)])]);
        for mode in MODES {
            let mut rule = json!({});
            if mode == Compatibility::Document {
                rule["from"] = peers.clone();
            }
            if let Some(ports) = &ports {
                rule["ports"] = ports.clone();
            }
            let plan = plan(&state, mode);
            let policy = find(&plan, "a/ingress-to-s-from-world");
            let expected = json!({
                "ingress": [rule],
                "podSelector": {"matchLabels": {"app": "s"}},
                "policyTypes": ["Ingress"],
            });
            assert_eq!(object(policy)["spec"], expected, "{list}");
            assert_eq!(
                policy.description,
                format!(
                    "Allows ingress traffic from everywhere to ports {reported} for pods selected by \
                     the a/s service selector."
                )
            );
        }
    }
}

#[test]
fn upstream_descriptions_print_selector_struct() {
    let key = "to-s-tcp-10250";
    let state = state(&[namespace("a"), example(&[]), client("a", key)]);
    let plan = plan(&state, Compatibility::Upstream);
    let reported = |key: &str| find(&plan, key).description.as_str();
    assert_eq!(
        reported("a/ingress-to-s-tcp-10250"),
        "Allows ingress TCP traffic to port 10250 for pods selected by the \
         a/s service selector from pods running in namespace a labeled \
         with {map[networking.resources.gardener.cloud/to-s-tcp-10250:allowed] []}."
    );
    assert_eq!(
        reported("a/egress-to-s-tcp-10250"),
        "Allows egress TCP traffic to port 10250 from pods running in namespace a labeled with \
         {map[networking.resources.gardener.cloud/to-s-tcp-10250:allowed] []} \
         to pods selected by the a/s service selector."
    );
}

#[test]
fn upstream_writes_what_pods_ask_for() {
    let service = example(&[
        ("namespace-selectors", "[{}]"),
        ("from-probes-allowed-ports", r#"[{"port":8080}]"#),
        ("from-world-to-ports", "[]"),
    ]);
    let spaces = ["a", "b", "c"].map(namespace);
    let own = "to-s-tcp-10250";
    let world_policy = "a/ingress-to-s-from-world";
    for (pods, expected) in [
        (vec![], vec![]),
        // Of the wrong value, of the own namespace's key in another one, of another namespace's.
        (
            vec![
                pod("a", "x", &[(&format!("{PREFIX}{own}"), "true")]),
                client("b", own),
                client("a", "to-a-probes"),
            ],
            vec![],
        ),
        (
            vec![client("a", own)],
            vec!["a/egress-to-s-tcp-10250", "a/ingress-to-s-tcp-10250"],
        ),
        (
            vec![client("c", "to-a-probes")],
            vec![
                "a/ingress-to-s-tcp-8080-via-probes-from-c",
                "c/egress-to-a-s-tcp-8080-via-probes",
            ],
        ),
    ] {
        let state = state(&[&spaces[..], std::slice::from_ref(&service), &pods].concat());
        let mut found = keys(&plan(&state, Compatibility::Upstream));
        found.retain(|key| key != world_policy);
        assert_eq!(found, expected, "{pods:?}");
        assert_eq!(plan(&state, Compatibility::Document).policies.len(), 13);
    }
}

#[test]
fn long_keys_are_shortened_and_reported_once() {
    let name = "this-is-a-very-long-svc-name-which-will-exceed-max-length";
    let mut object = example(&[("namespace-selectors", B)]);
    object["metadata"]["name"] = json!(name);
    object["spec"]["ports"] = json!([
        {"port": 5678, "protocol": "TCP", "targetPort": 5678},
        {"port": 53, "protocol": "UDP", "targetPort": "testport"},
    ]);
    let tcp = "to-this-is-a-very-long-svc-name-which-will-exceed-max-len-7c268";
    let udp = "to-this-is-a-very-long-svc-name-which-will-exceed-max-len-cc82c";
    let state = state(&[
        namespace("a"),
        namespace("b"),
        object,
        client("a", tcp),
        client("a", udp),
    ]);
    for mode in MODES {
        let plan = service(&state, &settings(mode), &[], &ObjectKey::new("a", name));
        for (id, key) in [("tcp-5678", tcp), ("udp-testport", udp)] {
            let policy = find(&plan, &format!("a/egress-to-{name}-{id}"));
            let selector = &policy.spec["podSelector"];
            assert_eq!(
                *selector,
                json!({"matchLabels": {format!("{PREFIX}{key}"): "allowed"}})
            );
            assert!(
                policy
                    .description
                    .contains(&format!("map[{PREFIX}{key}:allowed]"))
            );
        }
        assert_eq!(plan.problems.len(), 1);
        assert_eq!(
            plan.problems[0].reason.as_str(),
            "PodLabelSelectorKey(s)TooLong"
        );
        assert!(plan.problems[0].message.contains(tcp));
        assert!(plan.problems[0].message.len() < 1024);
    }
}

#[test]
fn terminating_namespaces_get_nothing() {
    let service = example(&[
        ("namespace-selectors", "[{}]"),
        ("from-world-to-ports", "[]"),
    ]);
    let key = ObjectKey::new("a", "s");
    for mode in MODES {
        let own = state(&[terminating("a"), namespace("b"), service.clone()]);
        let wanted = plan(&own, mode);
        assert_eq!(keys(&wanted), [""; 0]);
        assert!(!handled(&own, &settings(mode), &key));
        assert!(!wanted.keeps(&ObjectKey::new("a", "ingress-to-s-from-world")));
        let other = state(&[namespace("a"), terminating("b"), service.clone()]);
        let wanted = plan(&other, mode);
        assert!(
            keys(&wanted)
                .iter()
                .all(|key| key.starts_with("a/") && !key.ends_with("from-b"))
        );
        assert!(handled(&other, &settings(mode), &key));
    }
}

#[test]
fn unhandled_services_get_no_policies() {
    let mut going = example(&[]);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut unselective = example(&[]);
    unselective["spec"]["selector"] = json!(null);
    for objects in [
        vec![namespace("a")],
        vec![namespace("a"), going],
        vec![namespace("a"), unselective],
    ] {
        let state = state(&objects);
        let plan = plan(&state, Compatibility::Document);
        assert_eq!(keys(&plan), [""; 0]);
        assert!(!handled(
            &state,
            &settings(Compatibility::Document),
            &ObjectKey::new("a", "s")
        ));
        assert!(!plan.keeps(&ObjectKey::new("a", "ingress-to-s-tcp-10250")));
    }
}

#[test]
fn service_type_makes_no_difference() {
    let expected = keys(&plan(
        &state(&[namespace("a"), example(&[])]),
        Compatibility::Document,
    ));
    for more in [
        json!({"clusterIP": "None"}),
        json!({"type": "ExternalName", "externalName": "x.example.com"}),
        json!({"type": "NodePort"}),
        json!({"type": "LoadBalancer"}),
    ] {
        let mut object = example(&[]);
        object["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let plan = plan(&state(&[namespace("a"), object]), Compatibility::Document);
        assert_eq!(keys(&plan), expected, "{more}");
    }
    let mut portless = example(&[("from-world-to-ports", "[]")]);
    portless["spec"]["ports"] = json!([]);
    assert_eq!(
        keys(&plan(
            &state(&[namespace("a"), portless]),
            Compatibility::Document
        )),
        ["a/ingress-to-s-from-world"]
    );
}

#[test]
fn settings_select_service_namespaces_only() {
    let state = state(&[
        namespace("a"),
        namespace("b"),
        example(&[("namespace-selectors", B)]),
    ]);
    let key = ObjectKey::new("a", "s");
    for (names, count) in [(vec!["a"], 4), (vec!["b"], 0), (vec!["x", "a"], 4)] {
        let mut settings = settings(Compatibility::Document);
        settings.namespace_selectors = names
            .iter()
            .map(|name| {
                let label = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
                serde_json::from_value(label).unwrap()
            })
            .collect();
        let plan = service(&state, &settings, &[], &key);
        assert_eq!(plan.policies.len(), count, "{names:?}");
        assert_eq!(handled(&state, &settings, &key), count > 0);
    }
}
