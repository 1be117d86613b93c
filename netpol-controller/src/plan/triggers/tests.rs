//! Tests of what is planned again, and that nothing is when nothing can have changed.

use serde_json::{Value, json};

use super::super::fixture::{
    MODES, PREFIX, apply, named, namespace, pod, remove, set, settings, state,
};
use super::super::{IngressController, service};
use super::*;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn ingress(namespace: &str, backends: &[&str]) -> Value {
    let paths: Vec<_> = backends
        .iter()
        .map(|name| json!({"backend": {"service": {"name": name, "port": {"number": 443}}}}))
        .collect();
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {"rules": [{"http": {"paths": paths}}]},
    })
}

fn virtual_service(namespace: &str, hosts: &[&str]) -> Value {
    let routes: Vec<_> = hosts
        .iter()
        .map(|host| json!({"route": [{"destination": {"host": host, "port": {"number": 443}}}]}))
        .collect();
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
    let state = state(&three());
    let (none, x, y) = (
        Labels::new(),
        labels(&[("role", "x")]),
        labels(&[("role", "y")]),
    );
    for (old, new, name, expected) in [
        (&none, &none, "a", set(&[("a", "one")])),
        (&none, &x, "a", set(&[("a", "one"), ("b", "two")])),
        (&x, &none, "new", set(&[("b", "two")])),
        (&y, &none, "c", set(&[("c", "three")])),
    ] {
        assert_eq!(services_selecting(&state, old, new, name), expected);
    }
}

#[test]
fn namespace_affects_services_its_gateways_use() {
    let mut objects = three().to_vec();
    objects.extend([
        namespace("g"),
        ingress("a", &["one"]),
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
    let mut settings = settings(Compatibility::Document);
    settings.ingress_controller = Some(IngressController {
        namespace: "i".to_owned(),
        pod_selector: crate::state::LabelSelector::default(),
    });
    let none = Labels::new();
    for (name, expected) in [
        ("i", set(&[("a", "one")])),
        ("h", set(&[("b", "two")])),
        ("g", set(&[("c", "three")])),
        ("elsewhere", set(&[])),
    ] {
        let found = services_of_namespace(&state, &settings, name, &none, &none);
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
        let mut step = |object: &Value, there: bool| {
            let pod = ObjectKey::new("a", object["metadata"]["name"].as_str().unwrap());
            let old = state.pods.labels_of(&pod).cloned();
            match there {
                true => apply(&mut state, object),
                false => remove(&mut state, object),
            }
            let new = state.pods.labels_of(&pod).cloned();
            services_of_pod_change(&state, &settings, "a", old.as_deref(), new.as_deref())
        };
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
    let (x, y) = (labels(&[("istio", "x")]), labels(&[("istio", "y")]));
    apply(&mut state, &pod("h", "gw", &[("istio", "x")]));
    let changed = |old, new| services_of_pod_change(&state, &settings, "h", old, new);
    assert_eq!(changed(None, Some(&x)), set(&[("b", "two")]));
    assert_eq!(changed(Some(&y), Some(&x)), set(&[("b", "two")]));
    assert_eq!(changed(None, Some(&y)), set(&[]));
    assert_eq!(changed(Some(&x), None), set(&[]), "another one is left");
    assert_eq!(
        services_of_istio_gateway(&state, &ObjectKey::new("g", "gw")),
        set(&[("b", "two")])
    );
    assert_eq!(
        services_of_istio_gateway(&state, &ObjectKey::new("b", "gw")),
        set(&[])
    );
}

#[test]
fn ingress_change_affects_differing_backends() {
    let state_of = |backends: &[&str]| state(&[ingress("a", backends)]);
    let (old, new) = (state_of(&["x", "y"]), state_of(&["y", "z"]));
    let of = |state: &ClusterState| state.ingresses.values().next().cloned().unwrap();
    let (old, new) = (of(&old), of(&new));
    for (old, new, expected) in [
        (None, Some(&new), set(&[("a", "y"), ("a", "z")])),
        (Some(&old), Some(&new), set(&[("a", "x"), ("a", "z")])),
        (Some(&old), None, set(&[("a", "x"), ("a", "y")])),
        (Some(&old), Some(&old), set(&[])),
    ] {
        assert_eq!(services_of_ingress("a", old, new), expected);
    }
}

#[test]
fn routes_matter_to_where_they_led_and_lead() {
    let hosts = [
        "one.a.svc.cluster.local",
        "two.b.svc.cluster.local",
        "three",
    ];
    let old = state(&[virtual_service("a", &hosts), tls_route("a", "one")]);
    let new = state(&[
        virtual_service("a", &["four.a.svc.cluster.local"]),
        tls_route("a", "two"),
    ]);
    let key = ObjectKey::new("a", "x");
    let of = |state: &ClusterState| state.virtual_services[&key].clone();
    assert_eq!(
        services_of_virtual_service(&key, Some(&of(&old)), Some(&of(&new))),
        set(&[("a", "one"), ("a", "four")])
    );
    assert_eq!(
        services_of_virtual_service(&key, Some(&of(&old)), None),
        set(&[("a", "one")])
    );
    let of = |state: &ClusterState| state.tls_routes[&key].clone();
    assert_eq!(
        services_of_tls_route(&key, Some(&of(&old)), Some(&of(&new))),
        set(&[("a", "one"), ("a", "two")])
    );
    assert_eq!(
        services_of_gateway(&new, &ObjectKey::new("g", "gw")),
        set(&[("a", "two")])
    );
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
        let mut object = namespace(name);
        object["metadata"]["labels"] = json!({"role": "x"});
        apply(&mut after, &object);
        let old = base.namespaces.get(name).map(|one| one.labels.clone());
        let new = labels(&[("role", "x")]);
        let found = services_of_namespace(&after, &settings, name, &old.unwrap_or_default(), &new);
        for key in base.services.keys() {
            let same = service(&base, &settings, &[], key) == service(&after, &settings, &[], key);
            assert!(same || found.contains(key), "{key} after {name}");
        }
        assert!(!found.contains(&ObjectKey::new("c", "s")));
    }
}
