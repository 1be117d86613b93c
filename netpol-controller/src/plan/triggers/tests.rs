//! Tests of what is planned again, and that nothing is when nothing can have changed.

use serde_json::{Value, json};

use super::super::fixture::{
    MODES, PREFIX, ingress, named, namespace, parsed, pod, set, settings, state, with_controller,
};
use super::super::service;
use super::*;

/// Applies or removes an object, and returns the Services that this affects.
fn change(
    state: &mut ClusterState,
    settings: &PolicySettings,
    object: &Value,
    there: bool,
) -> BTreeSet<ObjectKey> {
    let (kind, object) = parsed(object);
    let key = ObjectKey::of(&object);
    let of = |state: &ClusterState| services_of(state, settings, kind, &key);
    let before = if there {
        state.apply(kind, object, of).unwrap()
    } else {
        let before = of(state);
        state.remove(kind, &key);
        Some(before)
    };
    before.map_or_else(BTreeSet::new, |before| &before | &of(state))
}

fn labeled(name: &str, labels: &Value) -> Value {
    let mut object = namespace(name);
    object["metadata"]["labels"] = labels.clone();
    object
}

/// An Ingress of the port 443 of these Services.
fn exposing(backends: &[&str]) -> Value {
    let https = backends.iter().map(|name| (*name, json!({"number": 443})));
    ingress("a", &https.collect::<Vec<_>>())
}

fn virtual_service(namespace: &str, hosts: &[&str]) -> Value {
    let route = |host| json!({"route": [{"destination": {"host": host, "port": {"number": 443}}}]});
    let routes: Vec<_> = hosts.iter().map(route).collect();
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {"gateways": ["g/gw"], "tcp": routes},
    })
}

fn istio_gateway(selector: &Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "gw", "namespace": "g"},
        "spec": {"selector": selector},
    })
}

fn tls_route(namespace: &str, backend: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "TLSRoute",
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {
            "parentRefs": [{"name": "gw", "namespace": "g"}],
            "rules": [{"backendRefs": [{"name": backend, "port": 443}]}],
        },
    })
}

/// `a/one` is for itself, `b/two` for namespaces of role `x`, and `c/three` cannot be understood.
fn three() -> [Value; 3] {
    let roles = r#"[{"matchLabels":{"role":"x"}}]"#;
    [
        named("a", "one", &[]),
        named("b", "two", &[("namespace-selectors", roles)]),
        named("c", "three", &[("namespace-selectors", "?")]),
    ]
}

#[test]
fn namespace_affects_own_and_selecting_services() {
    let settings = settings(Compatibility::Document);
    let (none, x, y) = (json!({}), json!({"role": "x"}), json!({"role": "y"}));
    for (old, new, name, expected) in [
        (None, &none, "a", set(&[("a", "one")])),
        (Some(&none), &none, "a", set(&[])),
        (Some(&none), &x, "a", set(&[("a", "one"), ("b", "two")])),
        (Some(&x), &none, "new", set(&[("b", "two")])),
        (Some(&y), &none, "c", set(&[("c", "three")])),
    ] {
        let mut state = state(&three());
        if let Some(old) = old {
            change(&mut state, &settings, &labeled(name, old), true);
        }
        let found = change(&mut state, &settings, &labeled(name, new), true);
        assert_eq!(found, expected, "{old:?} {new} {name}");
    }
}

#[test]
fn namespace_affects_services_its_gateways_use() {
    let mut objects = three().to_vec();
    objects.extend([
        namespace("g"),
        exposing(&["one"]),
        virtual_service("b", &["two.b.svc.cluster.local"]),
        istio_gateway(&json!({"istio": "x"})),
        tls_route("c", "three"),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "gw", "namespace": "g"},
            "spec": {"listeners": []},
        }),
        pod("h", "gw", &[("istio", "x"), ("app", "gw")]),
    ]);
    let state = state(&objects);
    let settings = with_controller(Compatibility::Document, "i", json!({}));
    for (name, expected) in [
        ("i", set(&[("a", "one")])),
        ("h", set(&[("b", "two")])),
        ("g", set(&[("c", "three")])),
        ("elsewhere", set(&[])),
    ] {
        let key = ObjectKey::new("", name);
        let found = services_of(&state, &settings, Kind::Namespace, &key);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn first_and_last_requesting_pod_affect_services() {
    let key = format!("{PREFIX}to-one-tcp-10250");
    let asking = |name: &str| pod("a", name, &[(&key, "allowed"), ("app", "x")]);
    let other = pod("a", "other", &[(&key, "allowed"), ("app", "y")]);
    let silent = pod("a", "silent", &[("app", "z"), (&key, "denied")]);
    for mode in MODES {
        let settings = settings(mode);
        let mut state = state(&[&three()[..], &[namespace("a")]].concat());
        let mut step = |object: &Value, there| change(&mut state, &settings, object, there);
        let some = match mode {
            Compatibility::Document => set(&[]),
            Compatibility::Upstream => set(&[("a", "one")]),
        };
        assert_eq!(step(&silent, true), set(&[]));
        assert_eq!(step(&asking("p"), true), some);
        assert_eq!(step(&asking("p"), true), set(&[]));
        assert_eq!(step(&asking("q"), true), set(&[]));
        assert_eq!(step(&other, true), set(&[]));
        assert_eq!(step(&asking("p"), false), set(&[]));
        assert_eq!(step(&asking("q"), false), set(&[]));
        assert_eq!(step(&other, false), some);
        assert_eq!(step(&silent, false), set(&[]));
    }
}

#[test]
fn pods_of_gateways_matter_to_what_they_lead_to() {
    let mut objects = three().to_vec();
    objects.extend([
        virtual_service("b", &["two.b.svc.cluster.local", "one.a.svc.cluster.local"]),
        istio_gateway(&json!({"istio": "x"})),
    ]);
    let mut state = state(&objects);
    let settings = settings(Compatibility::Document);
    let gateway = |name: &str, value: &str| pod("h", name, &[("istio", value)]);
    let mut step = |object: Value, there| change(&mut state, &settings, &object, there);
    assert_eq!(step(gateway("gw", "y"), true), set(&[]));
    assert_eq!(step(gateway("gw", "x"), true), set(&[("b", "two")]));
    assert_eq!(step(gateway("other", "x"), true), set(&[]));
    assert_eq!(step(gateway("gw", "x"), false), set(&[]), "another is left");
    assert_eq!(step(gateway("other", "y"), true), set(&[("b", "two")]));
    assert_eq!(step(gateway("other", "x"), true), set(&[("b", "two")]));
    assert_eq!(step(gateway("other", "x"), false), set(&[("b", "two")]));
    for (namespace, expected) in [("g", set(&[("b", "two")])), ("b", set(&[]))] {
        let key = ObjectKey::new(namespace, "gw");
        let found = services_of(&state, &settings, Kind::IstioGateway, &key);
        assert_eq!(found, expected);
    }
}

#[test]
fn routes_matter_to_where_they_led_and_lead() {
    let (mut state, settings) = (state(&[]), settings(Compatibility::Document));
    let mut step = |object: &Value, there| change(&mut state, &settings, object, there);
    let hosts = [
        "one.a.svc.cluster.local",
        "two.b.svc.cluster.local",
        "three",
    ];
    let later = virtual_service("a", &["four.a.svc.cluster.local"]);
    let in_a = |names: &[&str]| names.iter().map(|name| ObjectKey::new("a", name)).collect();
    for (old, new, first, last) in [
        (
            exposing(&["x", "y"]),
            exposing(&["y", "z"]),
            &["x", "y"][..],
            &["y", "z"][..],
        ),
        (virtual_service("a", &hosts), later, &["one"], &["four"]),
        (
            tls_route("a", "one"),
            tls_route("a", "two"),
            &["one"],
            &["two"],
        ),
    ] {
        let (first, last): (BTreeSet<_>, BTreeSet<_>) = (in_a(first), in_a(last));
        assert_eq!(step(&old, true), first);
        assert_eq!(step(&old, true), set(&[]));
        assert_eq!(step(&new, true), &first | &last);
        assert_eq!(step(&new, false), last);
    }
    step(&tls_route("a", "two"), true);
    let gateway = ObjectKey::new("g", "gw");
    let found = services_of(&state, &settings, Kind::Gateway, &gateway);
    assert_eq!(found, set(&[("a", "two")]));
}

#[test]
fn unaffected_services_keep_their_plan() {
    // Every change of the namespaces of a small cluster, against plans of all Services.
    let selectors = [r#"[{"matchLabels":{"role":"x"}}]"#, "[{}]", "[]"];
    let services: Vec<_> = ["a", "b", "c"]
        .iter()
        .zip(selectors)
        .map(|(namespace, text)| named(namespace, "s", &[("namespace-selectors", text)]))
        .collect();
    let settings = settings(Compatibility::Document);
    let spaces = ["a", "b", "c", "d"].map(namespace);
    let base = state(&[&spaces[..], &services].concat());
    for name in ["a", "d", "e"] {
        let mut after = state(&[&spaces[..], &services].concat());
        let object = labeled(name, &json!({"role": "x"}));
        let found = change(&mut after, &settings, &object, true);
        for key in base.services.keys() {
            let same = service(&base, &settings, &[], key) == service(&after, &settings, &[], key);
            assert!(same || found.contains(key), "{key} after {name}");
        }
        assert!(!found.contains(&ObjectKey::new("c", "s")));
    }
}
