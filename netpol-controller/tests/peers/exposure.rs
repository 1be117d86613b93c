//! Services exposed by kinds that are installed while the controller runs, and the other
//! compatibility.

use serde_json::{Value, json};

use crate::api::{Api, P, pod, pods, service, services};
use crate::definitions::{
    GATEWAY, ISTIO_GATEWAY, TLS_ROUTE, VIRTUAL_SERVICE, create, install, path,
};
use crate::stage::{SERVICES, Stage};

const UPSTREAM: &str = "  networkPolicy: { compatibility: upstream }\n";

const OWN: [&str; 2] = ["a/ingress-to-s-tcp-80", "a/egress-to-s-tcp-80"];

fn virtual_service(gateway: &str) -> Value {
    json!({
        "hosts": ["s.example.com"], "gateways": [gateway],
        "tls": [{
            "match": [{ "port": 443, "sniHosts": ["s.example.com"] }],
            "route": [{ "destination": { "host": "s.a.svc.cluster.local", "port": { "number": 80 } } }],
        }],
    })
}

fn istio(api: &mut Api) {
    install(api, ISTIO_GATEWAY);
    install(api, VIRTUAL_SERVICE);
    let gateway = json!({
        "selector": { "istio": "ingressgateway" },
        "servers": [{ "port": { "number": 443, "protocol": "TLS" }, "hosts": ["s.example.com"],
                      "tls": { "mode": "PASSTHROUGH" } }],
    });
    create(api, ISTIO_GATEWAY, ("a", "g"), &gateway);
    create(api, VIRTUAL_SERVICE, ("a", "v"), &virtual_service("g"));
    let gateway_pod = pod("gateway-0", &json!({ "istio": "ingressgateway" }));
    api.create(&pods("istio-ingress"), &gateway_pod);
    let istio = [
        "a/ingress-to-s-tcp-80-from-istio-ingress",
        "istio-ingress/egress-to-a-s-tcp-80-from-istio",
    ];
    let policies = api.wait_names("policies of the VirtualService", &[OWN, istio].concat());
    let peer = &policies[istio[0]]["spec"]["ingress"][0]["from"][0];
    assert_eq!(
        peer["podSelector"]["matchLabels"],
        json!({ "istio": "ingressgateway" })
    );
    // The last pod of the gateway in a namespace takes the policies with it, a new one brings them.
    api.delete_pod("istio-ingress", "gateway-0");
    api.wait_names("them to go with the gateway's pod", &OWN);
    api.create(&pods("istio-ingress"), &gateway_pod);
    api.wait_names("them to come with it", &[OWN, istio].concat());
    // An unresolved reference is reported and affects nothing else.
    create(
        api,
        VIRTUAL_SERVICE,
        ("a", "nowhere"),
        &virtual_service("no-such"),
    );
    api.wait_events(&["a/nowhere: RouteNotTranslated"]);
    api.wait_names("all else to stay", &[OWN, istio].concat());
}

fn gateway_api(api: &mut Api) {
    install(api, GATEWAY);
    install(api, TLS_ROUTE);
    let gateway = json!({
        "gatewayClassName": "any",
        "listeners": [{ "name": "tls", "port": 443, "protocol": "TLS",
                        "tls": { "mode": "Passthrough" },
                        "allowedRoutes": { "namespaces": { "from": "All" } } }],
    });
    create(api, GATEWAY, ("gateways", "g"), &gateway);
    let route = json!({
        "parentRefs": [{ "name": "g", "namespace": "gateways" }], "hostnames": ["s.example.com"],
        "rules": [{ "backendRefs": [{ "name": "s", "port": 80 }] }],
    });
    create(api, TLS_ROUTE, ("a", "r"), &route);
    let policies = api.wait_policies("policies of the TLSRoute", |found| found.len() == 6);
    let out = &policies["gateways/egress-to-a-s-tcp-80-from-istio"]["spec"]["podSelector"];
    let labels = json!({ "gateway.networking.k8s.io/gateway-name": "g" });
    assert_eq!(out["matchLabels"], labels);
    assert!(policies.contains_key("a/ingress-to-s-tcp-80-from-gateways"));
}

/// A kind goes with all its objects.
fn without_istio(api: &mut Api) {
    for (group, _, _, plural, _) in [VIRTUAL_SERVICE, ISTIO_GATEWAY] {
        let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        api.delete(&format!("{all}/{plural}.{group}"));
    }
    api.wait_policies("policies of the VirtualService to go", |found| {
        found.len() == 4
    });
    api.delete(&format!("{}/r", path(TLS_ROUTE, "a")));
    api.wait_names("those of the TLSRoute to go", &OWN);
}

#[test]
fn later_installed_kinds_are_discovered() {
    let stage = Stage::new("exposure");
    let mut api = stage.api();
    for name in ["a", "istio-ingress", "gateways"] {
        api.namespace(name, &json!({}));
    }
    api.create(&services("a"), &service("s", 80));
    let controller = stage.controller("controller", SERVICES);
    api.wait_names("the Service's own policies", &OWN);
    istio(&mut api);
    gateway_api(&mut api);
    without_istio(&mut api);
    assert!(controller.is_ready());
    assert_eq!(
        controller.value("rhizome_netpol_write_errors_total", &[]),
        0.0
    );
}

#[test]
fn upstream_policies_follow_pod_labels() {
    let stage = Stage::new("upstream");
    let mut api = stage.api();
    for name in ["a", "b"] {
        api.namespace(name, &json!({}));
    }
    let mut exposed = service("s", 80);
    exposed["metadata"]["annotations"] = json!({
        format!("{P}/namespace-selectors"): format!(r#"[{{"matchLabels":{{"kubernetes.io/metadata.name":"b"}}}}]"#),
        format!("{P}/from-world-to-ports"): r#"[{"port":80}]"#,
    });
    api.create(&services("a"), &exposed);
    let state = "a/ingress-to-s-from-world";
    let of_b = ["a/ingress-to-s-tcp-80-from-b", "b/egress-to-a-s-tcp-80"];
    let mut document = stage.controller("document", SERVICES);
    api.wait_names(
        "all of the document's policies",
        &[&OWN[..], &of_b[..], &[state]].concat(),
    );
    document.terminate();
    // The same cluster, the other way: no pod has a label yet.
    let controller = stage.controller("upstream", UPSTREAM);
    // The one that stays is written anew, not necessarily before the last of the others goes.
    let open = json!([{ "ports": [{ "port": 80, "protocol": "TCP" }] }]);
    api.wait_policies("policies that no pod needs to go", |found| {
        found.len() == 1
            && found
                .get(state)
                .is_some_and(|stays| stays["spec"]["ingress"] == open)
    });
    let label = format!("{P}/to-a-s-tcp-80");
    api.create(
        &pods("b"),
        &pod("client", &json!({ label.clone(): "allowed" })),
    );
    let policies = api.wait_names("those of b's pod", &[&of_b[..], &[state]].concat());
    let text = &policies[of_b[1]]["metadata"]["annotations"]["gardener.cloud/description"];
    let text = text.as_str().unwrap();
    assert!(
        text.contains(&format!("{{map[{label}:allowed] []}}")),
        "{text}"
    );
    let client = format!("{}/client", pods("b"));
    let own = format!("{P}/to-s-tcp-80");
    // Any other value is none.
    api.patch(
        &client,
        &json!({ "metadata": { "labels": { label.clone(): "denied" } } }),
    );
    api.wait_names("them to go with the value", &[state]);
    api.patch(
        &client,
        &json!({ "metadata": { "labels": { label.clone(): "allowed" } } }),
    );
    api.create(&pods("a"), &pod("client", &json!({ own: "allowed" })));
    api.wait_names("those of both", &[&OWN[..], &of_b[..], &[state]].concat());
    api.patch(
        &client,
        &json!({ "metadata": { "labels": { label: null } } }),
    );
    api.wait_names("b's to go with the label", &[&OWN[..], &[state]].concat());
    api.delete_pod("a", "client");
    api.wait_names("a's to go with the pod", &[state]);
    assert_eq!(
        controller.value("rhizome_netpol_write_errors_total", &[]),
        0.0
    );
}
