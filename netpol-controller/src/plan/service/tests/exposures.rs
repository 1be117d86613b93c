//! What Ingresses, gateways and routes open, and at which ports.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::super::fixture::{
    MODES, find, grm, keys, messages, namespace, object, pod, settings, spec, state, terminating,
};
use super::super::{Compatibility, IngressController, RoutedPort, ServicePlan, service};
use crate::plan::Reason;
use crate::state::{Labels, ObjectKey, Protocol, TargetPort};

const NAME: &str = "gardener-resource-manager";

fn without_labels(objects: &[Value], routed: &[RoutedPort], controller: &str) -> ServicePlan {
    let mut settings = settings(Compatibility::Upstream);
    let pod_selector = json!({
        "matchLabels": {"foo": "bar"},
        "matchExpressions": [{"key": "tier", "operator": "Exists"}],
    });
    settings.ingress_controller = Some(IngressController {
        namespace: controller.to_owned(),
        pod_selector: serde_json::from_value(pod_selector).unwrap(),
    });
    service(
        &state(objects),
        &settings,
        routed,
        &ObjectKey::new("a", NAME),
    )
}

fn ingress(backends: &[Value]) -> Value {
    let paths: Vec<_> = backends
        .iter()
        .map(|backend| json!({"backend": backend}))
        .collect();
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "x", "namespace": "a"},
        "spec": {
            "defaultBackend": {"service": {"name": NAME, "port": {"number": 444}}},
            "rules": [{"host": "none.example.com"}, {"http": {"paths": paths}}],
        },
    })
}

fn backend(name: &str, port: &Value) -> Value {
    json!({"service": {"name": name, "port": port}})
}

fn virtual_service(gateways: &[&str], host: &str, port: &Value) -> Value {
    let route = json!([{"route": [{"destination": {"host": host, "port": port}}]}]);
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "x", "namespace": "a"},
        "spec": {"hosts": ["x.example.com"], "gateways": gateways, "tls": route},
    })
}

fn istio_gateway(namespace: &str, name: &str, selector: &Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1beta1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
    })
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn routed(namespace: &str, gateway: &str, port: u16) -> RoutedPort {
    RoutedPort {
        gateway_namespace: Arc::from(namespace),
        gateway_selector: labels(&[("istio", gateway)]),
        protocol: Protocol::Tcp,
        target: TargetPort::Number(port),
    }
}

#[test]
fn an_ingress_opens_the_port_behind_the_services() {
    let both = [
        "a/ingress-to-gardener-resource-manager-tcp-10250-from-ingress-controller",
        "i/egress-to-a-gardener-resource-manager-tcp-10250-from-ingress-controller",
    ];
    for (port, opened) in [
        (json!({"number": 443}), true),
        (json!({"name": "server"}), true),
        (json!({"number": 10250}), false),
        (json!({"name": "other"}), false),
    ] {
        let objects = [
            namespace("a"),
            namespace("i"),
            grm(&[]),
            ingress(&[backend(NAME, &port)]),
        ];
        let plan = without_labels(&objects, &[], "i");
        assert_eq!(keys(&plan), if opened { &both[..] } else { &[] }, "{port}");
        assert_eq!(plan.problems, []);
    }
}

#[test]
fn numbered_backend_never_matches_unnamed_port() {
    let mut object = grm(&[]);
    object["spec"]["ports"] = json!([
        {"port": 80, "protocol": "TCP", "targetPort": 8080},
        {"port": 443, "protocol": "UDP", "targetPort": 8444},
        {"port": 443, "protocol": "TCP", "targetPort": 8443},
    ]);
    let objects = [
        namespace("a"),
        namespace("i"),
        object,
        ingress(&[
            backend(NAME, &json!({"number": 443})),
            backend("other", &json!({"number": 80})),
        ]),
    ];
    assert_eq!(
        keys(&without_labels(&objects, &[], "i")),
        [
            "a/ingress-to-gardener-resource-manager-tcp-8443-from-ingress-controller",
            "i/egress-to-a-gardener-resource-manager-tcp-8443-from-ingress-controller",
        ]
    );
}

#[test]
fn ingress_controller_in_same_namespace() {
    let objects = [
        namespace("a"),
        grm(&[]),
        ingress(&[backend(NAME, &json!({"number": 443}))]),
    ];
    let plan = without_labels(&objects, &[], "a");
    let selector = json!({
        "matchLabels": {"foo": "bar"},
        "matchExpressions": [{"key": "tier", "operator": "Exists"}],
    });
    let id = "gardener-resource-manager-tcp-10250-from-ingress-controller";
    let ports = json!([{"port": 10250, "protocol": "TCP"}]);
    let app = json!({"matchLabels": {"app": NAME}});
    assert_eq!(
        spec(&plan, &format!("a/ingress-to-{id}")),
        json!({
            "ingress": [{"from": [{"podSelector": selector}], "ports": ports}],
            "podSelector": app,
            "policyTypes": ["Ingress"],
        })
    );
    assert_eq!(
        spec(&plan, &format!("a/egress-to-{id}")),
        json!({
            "egress": [{"to": [{"podSelector": app}], "ports": ports}],
            "podSelector": selector,
            "policyTypes": ["Egress"],
        })
    );
    assert_eq!(
        find(&plan, &format!("a/egress-to-{id}")).description,
        "Allows egress TCP traffic to port 10250 from pods running in namespace a labeled with \
         {map[foo:bar] [{tier Exists []}]} to pods selected by the a/gardener-resource-manager \
         service selector."
    );
}

#[test]
fn ingress_needs_a_live_controller_namespace() {
    let exposed = [
        namespace("a"),
        grm(&[]),
        ingress(&[backend(NAME, &json!({"number": 443}))]),
    ];
    assert_eq!(
        keys(&without_labels(&exposed, &[], "i")),
        Vec::<String>::new()
    );
    let going = [&exposed[..], &[terminating("i")]].concat();
    assert_eq!(
        keys(&without_labels(&going, &[], "i")),
        Vec::<String>::new()
    );
}

#[test]
fn virtual_service_opens_target_port_to_gateways() {
    let gateway = istio_gateway("g", "gw", &json!({"istio": "ingressgateway"}));
    let spaces = [
        namespace("a"),
        namespace("g"),
        namespace("h"),
        terminating("t"),
    ];
    let pods = ["h", "t"].map(|name| pod(name, "gw", &[("istio", "ingressgateway"), ("app", "x")]));
    let host = "gardener-resource-manager.a.svc.cluster.local";
    for (gateways, host, port, opened) in [
        (vec!["g/gw"], host, json!({"number": 443}), true),
        (vec!["mesh", "g/gw"], host, json!({"number": 443}), true),
        (vec!["mesh"], host, json!({"number": 443}), false),
        (vec![], host, json!({"number": 443}), false),
        (vec!["g/gw"], host, json!({"number": 10250}), false),
        (vec!["g/gw"], host, json!({}), false),
        (
            vec!["g/gw"],
            "gardener-resource-manager",
            json!({"number": 443}),
            false,
        ),
        (
            vec!["g/gw"],
            "gardener-resource-manager.a.svc",
            json!({"number": 443}),
            false,
        ),
        (
            vec!["g/gw"],
            "gardener-resource-manager.a.svc.cluster.local.",
            json!({"number": 443}),
            false,
        ),
        (
            vec!["g/gw"],
            "x.gardener-resource-manager.a.svc.cluster.local",
            json!({"number": 443}),
            false,
        ),
        (
            vec!["g/gw"],
            "gardener-resource-manager.b.svc.cluster.local",
            json!({"number": 443}),
            false,
        ),
    ] {
        let route = virtual_service(&gateways, host, &port);
        let objects = [&spaces[..], &pods, &[grm(&[]), gateway.clone(), route]].concat();
        let plan = without_labels(&objects, &[], "i");
        let expected: &[&str] = match opened {
            true => &[
                "a/ingress-to-gardener-resource-manager-tcp-10250-from-h",
                "h/egress-to-a-gardener-resource-manager-tcp-10250-from-istio",
            ],
            false => &[],
        };
        assert_eq!(keys(&plan), expected, "{gateways:?} {host} {port}");
        assert_eq!(plan.problems, []);
    }
}

#[test]
fn http_and_tcp_routes_open_as_well() {
    for kind in ["http", "tcp", "tls"] {
        let host = "gardener-resource-manager.a.svc.cluster.local";
        let mut route = virtual_service(&["gw"], host, &json!({"number": 443}));
        let routes = route["spec"]["tls"].take();
        route["spec"] = json!({"gateways": ["gw"], kind: routes});
        let plan = without_labels(
            &[
                namespace("a"),
                grm(&[]),
                route,
                istio_gateway("a", "gw", &json!({"istio": "x"})),
                pod("a", "gw", &[("istio", "x")]),
            ],
            &[],
            "i",
        );
        let app = json!({"matchLabels": {"app": NAME}});
        let ports = json!([{"port": 10250, "protocol": "TCP"}]);
        assert_eq!(
            spec(
                &plan,
                "a/ingress-to-gardener-resource-manager-tcp-10250-from-istio"
            ),
            json!({
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"istio": "x"}}}], "ports": ports}],
                "podSelector": app,
                "policyTypes": ["Ingress"],
            })
        );
        assert_eq!(
            spec(
                &plan,
                "a/egress-to-gardener-resource-manager-tcp-10250-from-istio"
            ),
            json!({
                "egress": [{"to": [{"podSelector": app}], "ports": ports}],
                "podSelector": {"matchLabels": {"istio": "x"}},
                "policyTypes": ["Egress"],
            })
        );
    }
}

#[test]
fn unresolved_gateway_affects_no_other() {
    let host = "gardener-resource-manager.a.svc.cluster.local";
    let route = virtual_service(&["g/none", "g/bare", "g/gw"], host, &json!({"number": 443}));
    let objects = [
        namespace("a"),
        namespace("g"),
        grm(&[]),
        route,
        istio_gateway("g", "bare", &json!({})),
        istio_gateway("g", "gw", &json!({"istio": "x"})),
        pod("g", "gw", &[("istio", "x")]),
    ];
    let plan = without_labels(&objects, &[], "i");
    assert_eq!(plan.policies.len(), 2);
    let reported = messages(&plan.problems, Reason::RouteNotTranslated);
    assert_eq!(reported.len(), 2);
    assert!(
        reported[0].contains("Gateway g/bare has no selector"),
        "{reported:?}"
    );
    assert!(
        reported[1].contains("Gateway g/none does not exist"),
        "{reported:?}"
    );
    assert!(
        plan.problems
            .iter()
            .all(|one| one.object.to_string() == "VirtualService a/x")
    );
}

#[test]
fn tls_route_opens_target_port_to_gateways() {
    let gateway = |from: &Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "gw", "namespace": "g"},
            "spec": {
                "infrastructure": {"labels": {"team": "net"}},
                "listeners": [
                    {"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}},
                    {
                        "name": "tls",
                        "port": 443,
                        "protocol": "TLS",
                        "hostname": "*.example.com",
                        "tls": {"mode": "Passthrough"},
                        "allowedRoutes": {"namespaces": from},
                    },
                    {"name": "end", "port": 444, "protocol": "TLS", "allowedRoutes": {"namespaces": from}},
                    {
                        "name": "other",
                        "port": 443,
                        "protocol": "TLS",
                        "hostname": "*.example.org",
                        "tls": {"mode": "Passthrough"},
                        "allowedRoutes": {"namespaces": from},
                    },
                ],
            },
        })
    };
    let route = |parent: &Value, backend: &Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "TLSRoute",
            "metadata": {"name": "x", "namespace": "a"},
            "spec": {
                "hostnames": ["a.example.com"],
                "parentRefs": [parent],
                "rules": [{"backendRefs": [backend]}],
            },
        })
    };
    let all = json!({"from": "All"});
    let selected = json!({"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}}});
    let others = json!({"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}});
    let parent = json!({"name": "gw", "namespace": "g"});
    let backend = json!({"name": NAME, "port": 443});
    let section = |name: &str| json!({"name": "gw", "namespace": "g", "sectionName": name});
    for (from, parent, backend, opened, reported) in [
        (&all, parent.clone(), backend.clone(), true, ""),
        (&selected, parent.clone(), backend.clone(), true, ""),
        (&all, section("tls"), backend.clone(), true, ""),
        (&all, section("web"), backend.clone(), false, "no listener"),
        (&all, section("end"), backend.clone(), false, "no listener"),
        (
            &all,
            section("other"),
            backend.clone(),
            false,
            "no listener",
        ),
        (
            &all,
            json!({"name": "gw", "namespace": "g", "port": 80}),
            backend.clone(),
            false,
            "no listener",
        ),
        (
            &others,
            parent.clone(),
            backend.clone(),
            false,
            "no listener",
        ),
        (
            &json!({"from": "Same"}),
            parent.clone(),
            backend.clone(),
            false,
            "no listener",
        ),
        (
            &all,
            json!({"name": "gw"}),
            backend.clone(),
            false,
            "a/gw does not exist",
        ),
        (
            &all,
            json!({"kind": "Service", "name": "gw", "namespace": "g"}),
            backend,
            false,
            "",
        ),
        (
            &all,
            parent.clone(),
            json!({"name": NAME, "port": 444}),
            false,
            "",
        ),
        (&all, parent.clone(), json!({"name": NAME}), true, ""),
        (
            &all,
            parent.clone(),
            json!({"name": NAME, "port": 443, "weight": 0}),
            false,
            "",
        ),
        (
            &all,
            parent.clone(),
            json!({"name": NAME, "port": 443, "namespace": "b"}),
            false,
            "",
        ),
        (
            &all,
            parent,
            json!({"name": NAME, "port": 443, "kind": "Bucket"}),
            false,
            "",
        ),
    ] {
        let route = route(&parent, &backend);
        let objects = [
            namespace("a"),
            namespace("g"),
            grm(&[]),
            gateway(from),
            route.clone(),
        ];
        let plan = without_labels(&objects, &[], "i");
        let expected: &[&str] = match opened {
            true => &[
                "a/ingress-to-gardener-resource-manager-tcp-10250-from-g",
                "g/egress-to-a-gardener-resource-manager-tcp-10250-from-istio",
            ],
            false => &[],
        };
        assert_eq!(keys(&plan), expected, "{from} {route}");
        let problems = messages(&plan.problems, Reason::RouteNotTranslated);
        assert_eq!(
            problems.len(),
            usize::from(!reported.is_empty()),
            "{from} {route}"
        );
        assert!(
            problems.iter().all(|message| message.contains(reported)),
            "{problems:?}"
        );
        if opened {
            let selector = serde_json::to_value(&plan.policies[1].spec.pod_selector).unwrap();
            assert_eq!(
                selector,
                json!({"matchLabels": {"gateway.networking.k8s.io/gateway-name": "gw", "team": "net"}})
            );
        }
    }
}

#[test]
fn routed_ports_get_gateway_policies() {
    let vpn = RoutedPort {
        protocol: Protocol::Udp,
        target: TargetPort::Name("wireguard".to_owned()),
        ..routed("g", "x", 0)
    };
    let objects = [namespace("a"), namespace("g"), terminating("t"), grm(&[])];
    let list = [
        routed("g", "x", 10250),
        routed("g", "x", 10250),
        vpn,
        routed("t", "x", 1),
        routed("u", "x", 1),
    ];
    for mode in MODES {
        let state = state(&objects);
        let plan = service(&state, &settings(mode), &list, &ObjectKey::new("a", NAME));
        let mut found = keys(&plan);
        found.retain(|key| key.contains("-from-"));
        assert_eq!(
            found,
            [
                "a/ingress-to-gardener-resource-manager-tcp-10250-from-g",
                "a/ingress-to-gardener-resource-manager-udp-wireguard-from-g",
                "g/egress-to-a-gardener-resource-manager-tcp-10250-from-istio",
                "g/egress-to-a-gardener-resource-manager-udp-wireguard-from-istio",
            ]
        );
    }
}

#[test]
fn gateways_share_ingress_but_not_egress_policy() {
    let objects = [namespace("a"), namespace("g"), grm(&[])];
    let (x, y) = (routed("g", "x", 10250), routed("g", "y", 10250));
    let plan = without_labels(&objects, &[y.clone(), x.clone()], "i");
    assert_eq!(plan, without_labels(&objects, &[x, y], "i"));
    let hash =
        &keys(&plan)[2]["g/egress-to-a-gardener-resource-manager-tcp-10250-from-istio-".len()..];
    assert!(
        hash.len() == 5 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{hash}"
    );
    let egress = "g/egress-to-a-gardener-resource-manager-tcp-10250-from-istio".to_owned();
    assert_eq!(
        keys(&plan),
        [
            "a/ingress-to-gardener-resource-manager-tcp-10250-from-g".to_owned(),
            egress.clone(),
            format!("{egress}-{hash}"),
        ]
    );
    let peer = |name: &str| {
        json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "g"}},
            "podSelector": {"matchLabels": {"istio": name}},
        })
    };
    assert_eq!(
        spec(
            &plan,
            "a/ingress-to-gardener-resource-manager-tcp-10250-from-g"
        )["ingress"],
        json!([{"from": [peer("x"), peer("y")], "ports": [{"port": 10250, "protocol": "TCP"}]}])
    );
    let selects = |at: usize| object(&plan.policies[at])["spec"]["podSelector"].clone();
    assert_eq!(selects(1), json!({"matchLabels": {"istio": "x"}}));
    assert_eq!(selects(2), json!({"matchLabels": {"istio": "y"}}));
}

#[test]
fn long_keys_that_are_not_ours_stay_as_they_are() {
    let key = format!(
        "gateways.of.a.rather.long.domain.example.com/{}",
        "k".repeat(60)
    );
    let mut port = routed("g", "x", 10250);
    port.gateway_selector = labels(&[(&key, "v")]);
    let plan = without_labels(&[namespace("a"), namespace("g"), grm(&[])], &[port], "i");
    assert_eq!(
        object(&plan.policies[1])["spec"]["podSelector"],
        json!({"matchLabels": {key: "v"}})
    );
    assert_eq!(plan.problems, []);
}
