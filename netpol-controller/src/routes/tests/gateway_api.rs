//! Routes from objects of the Gateway API.

use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::group;
use crate::state::Kind;

const NAME: &str = "api.bar.foo.example.com";

fn gateway(key: &str, listeners: Value) -> Value {
    let spec = json!({"gatewayClassName": "rhizome", "listeners": listeners});
    object("gateway.networking.k8s.io/v1", "Gateway", key, spec)
}

fn listener(from: &str) -> Value {
    json!({
        "name": "tls",
        "port": 443,
        "protocol": "TLS",
        "hostname": "*.example.com",
        "tls": {"mode": "Passthrough"},
        "allowedRoutes": {"namespaces": {"from": from}},
    })
}

fn route(hostnames: Value, backends: Value) -> Value {
    let spec = json!({
        "parentRefs": [{"namespace": "istio-ingress", "name": "gateway"}],
        "hostnames": hostnames,
        "rules": [{"backendRefs": backends}],
    });
    let key = format!("{SHOOT}/kube-apiserver");
    object("gateway.networking.k8s.io/v1alpha2", "TLSRoute", &key, spec)
}

fn api() -> Value {
    json!([{"name": "kube-apiserver", "port": 443}])
}

fn served(names: &str) -> Vec<String> {
    let connect = format!("connect {API} {SHOOT}--kube-apiserver-socket -> {API}");
    vec![connect, format!("names {names} -> {API}")]
}

#[test]
fn a_tls_route_is_served() {
    let gateway = gateway("istio-ingress/gateway", json!([listener("All")]));
    let state = state(&[api_server(SHOOT), gateway, route(json!([NAME]), api())]);
    let found = group(&state, &one(), SHOOT);
    assert_eq!(of(&found, 0), served(NAME));
    assert_eq!(problems(&found), [""; 0]);
}

#[test]
fn host_names_are_those_in_common() {
    for (listener_host, hostnames, expected) in [
        ("", json!([]), Some("*")),
        ("", json!([NAME]), Some(NAME)),
        ("*.example.com", json!([]), Some("*.example.com")),
        ("*.example.com", json!([NAME, "a.example.org"]), Some(NAME)),
        (NAME, json!(["*.foo.example.com"]), Some(NAME)),
        ("*.example.org", json!([NAME]), None),
    ] {
        let mut own = listener("All");
        own["hostname"] = json!(listener_host);
        let gateway = gateway("istio-ingress/gateway", json!([own]));
        let route = route(hostnames.clone(), api());
        let found = group(&state(&[api_server(SHOOT), gateway, route]), &one(), SHOOT);
        let wanted = expected.map_or_else(Vec::new, served);
        assert_eq!(of(&found, 0), wanted, "{listener_host} {hostnames}");
        let reported = count(&found, Reason::RouteNotTranslated, Kind::TlsRoute);
        assert_eq!(
            reported,
            usize::from(expected.is_none()),
            "{listener_host} {hostnames}"
        );
    }
}

#[test]
fn a_listener_says_from_where_it_takes_routes() {
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": SHOOT, "labels": {"gardener.cloud/role": "shoot"}},
    });
    let by_label = |value: &str| {
        let mut own = listener("Selector");
        own["allowedRoutes"]["namespaces"]["selector"] =
            json!({"matchLabels": {"gardener.cloud/role": value}});
        own
    };
    for (own, taken) in [
        (listener("All"), true),
        (listener("Same"), false),
        (listener(""), false),
        (by_label("shoot"), true),
        (by_label("extension"), false),
    ] {
        let gateway = gateway("istio-ingress/gateway", json!([own]));
        let route = route(json!([NAME]), api());
        let objects = [namespace.clone(), api_server(SHOOT), gateway, route];
        let found = group(&state(&objects), &one(), SHOOT);
        assert_eq!(!of(&found, 0).is_empty(), taken, "{own}");
        let reported = count(&found, Reason::RouteNotTranslated, Kind::TlsRoute);
        assert_eq!(reported, usize::from(!taken), "{own}");
    }
}

#[test]
fn section_and_port_choose_the_listener() {
    for (parent, taken) in [
        (json!({"sectionName": "tls"}), true),
        (json!({"sectionName": "other"}), false),
        (json!({"port": 443}), true),
        (json!({"port": 444}), false),
        (json!({"kind": "Service"}), false),
    ] {
        let gateway = gateway("istio-ingress/gateway", json!([listener("All")]));
        let mut route = route(json!([NAME]), api());
        let own = route["spec"]["parentRefs"][0].as_object_mut().unwrap();
        own.extend(parent.as_object().unwrap().clone());
        let state = state(&[api_server(SHOOT), gateway, route]);
        assert_eq!(!routes(&state, &one(), SHOOT).is_empty(), taken, "{parent}");
    }
}

#[test]
fn a_gateway_is_for_whom_it_names_or_lies_beside() {
    let mut settings = one();
    settings.push(entry("internal", "internal", &[("istio", "internal")]));
    let infrastructure = json!({"labels": {"istio": "internal"}});
    for (key, names, labels, expected) in [
        ("istio-ingress/gateway", None, None, [true, false]),
        ("internal/gateway", None, None, [false, true]),
        ("elsewhere/gateway", None, None, [false, false]),
        (
            "elsewhere/gateway",
            Some("default,internal"),
            None,
            [true, true],
        ),
        (
            "istio-ingress/gateway",
            Some("internal"),
            None,
            [false, true],
        ),
        (
            "elsewhere/gateway",
            None,
            Some(&infrastructure),
            [false, true],
        ),
    ] {
        let mut gateway = gateway(key, json!([listener("All")]));
        if let Some(names) = names {
            gateway = annotate(gateway, json!({"rhizome.gardener.cloud/gateways": names}));
        }
        if let Some(labels) = labels {
            gateway["spec"]["infrastructure"] = labels.clone();
        }
        let mut route = route(json!([NAME]), api());
        route["spec"]["parentRefs"][0]["namespace"] = json!(key.split('/').next());
        let found = group(
            &state(&[api_server(SHOOT), gateway, route]),
            &settings,
            SHOOT,
        );
        let has = [0, 1].map(|index| !of(&found, index).is_empty());
        assert_eq!(has, expected, "{key} {names:?}");
    }
}

#[test]
fn unsupported_backends_are_reported() {
    for (backends, served) in [
        (api(), true),
        (json!([{"name": "kube-apiserver"}]), true),
        (
            json!([{"name": "kube-apiserver", "port": 443}, {"name": "b", "port": 1, "weight": 0}]),
            true,
        ),
        (
            json!([{"name": "kube-apiserver", "port": 443}, {"name": "b", "port": 1}]),
            false,
        ),
        (
            json!([{"name": "kube-apiserver", "namespace": "other", "port": 443}]),
            false,
        ),
        (
            json!([{"kind": "ServiceImport", "name": "kube-apiserver", "port": 443}]),
            false,
        ),
        (json!([]), false),
    ] {
        let gateway = gateway("istio-ingress/gateway", json!([listener("All")]));
        let route = route(json!([NAME]), backends.clone());
        let found = group(&state(&[api_server(SHOOT), gateway, route]), &one(), SHOOT);
        assert_eq!(!of(&found, 0).is_empty(), served, "{backends}");
        let reported = count(&found, Reason::RouteNotTranslated, Kind::TlsRoute);
        assert_eq!(reported, usize::from(!served), "{backends}");
    }
}

#[test]
fn unserved_listeners_are_reported() {
    let mut ending = listener("All");
    ending["tls"]["mode"] = json!("Terminate");
    let mut elsewhere = listener("All");
    elsewhere["port"] = json!(6443);
    let plain = json!({"name": "http", "port": 80, "protocol": "HTTP"});
    let gateway = gateway(
        "istio-ingress/gateway",
        json!([listener("All"), ending, elsewhere, plain]),
    );
    let found = group(&state(&[gateway]), &one(), "istio-ingress");
    assert_eq!(count(&found, Reason::RouteNotTranslated, Kind::Gateway), 2);
}
