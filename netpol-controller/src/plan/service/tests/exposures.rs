//! What Ingresses, gateways and routes open, and at which ports.

use serde_json::{Map, Value, json};

use super::super::super::fixture::{
    MODES, example, find, ingress, keys, messages, namespace, object, plan_routed, pod, routed,
    spec, state, terminating, with_controller,
};
use super::super::{Compatibility, RoutedPort, ServicePlan, service};
use crate::plan::Reason;
use crate::state::{ObjectKey, Protocol, TargetPort};

const INGRESS: &str = "a/ingress-to-s-tcp-10250-from";
const EGRESS: &str = "egress-to-a-s-tcp-10250-from";

fn without_labels(objects: &[Value], routed: &[RoutedPort], controller: &str) -> ServicePlan {
    let pods = json!({
        "matchLabels": {"foo": "bar"},
        "matchExpressions": [{"key": "tier", "operator": "Exists"}],
    });
    let settings = with_controller(Compatibility::Upstream, controller, pods);
    service(
        &state(objects),
        &settings,
        routed,
        &ObjectKey::new("a", "s"),
    )
}

/// An Ingress of the port 443 of the Service.
fn exposing() -> Value {
    ingress("a", &[("s", json!({"number": 443}))])
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

#[test]
fn an_ingress_opens_the_port_behind_the_services() {
    let both = [
        format!("{INGRESS}-ingress-controller"),
        format!("i/{EGRESS}-ingress-controller"),
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
            example(&[]),
            ingress("a", &[("s", port.clone())]),
        ];
        let plan = without_labels(&objects, &[], "i");
        assert_eq!(keys(&plan), if opened { &both[..] } else { &[] }, "{port}");
        assert_eq!(plan.problems, []);
    }
}

#[test]
fn numbered_backend_never_matches_unnamed_port() {
    let mut object = example(&[]);
    object["spec"]["ports"] = json!([
        {"port": 80, "protocol": "TCP", "targetPort": 8080},
        {"port": 443, "protocol": "UDP", "targetPort": 8444},
        {"port": 443, "protocol": "TCP", "targetPort": 8443},
    ]);
    let objects = [
        namespace("a"),
        namespace("i"),
        object,
        ingress(
            "a",
            &[
                ("s", json!({"number": 443})),
                ("other", json!({"number": 80})),
            ],
        ),
    ];
    assert_eq!(
        keys(&without_labels(&objects, &[], "i")),
        [
            "a/ingress-to-s-tcp-8443-from-ingress-controller",
            "i/egress-to-a-s-tcp-8443-from-ingress-controller",
        ]
    );
}

#[test]
fn ingress_controller_in_same_namespace() {
    let objects = [namespace("a"), example(&[]), exposing()];
    let plan = without_labels(&objects, &[], "a");
    let selector = json!({
        "matchLabels": {"foo": "bar"},
        "matchExpressions": [{"key": "tier", "operator": "Exists"}],
    });
    let id = "s-tcp-10250-from-ingress-controller";
    let ports = json!([{"port": 10250, "protocol": "TCP"}]);
    let app = json!({"matchLabels": {"app": "s"}});
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
         {map[foo:bar] [{tier Exists []}]} to pods selected by the a/s \
         service selector."
    );
}

#[test]
fn ingress_needs_a_live_controller_namespace() {
    let exposed = [namespace("a"), example(&[]), exposing()];
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
    let (host, https) = ("s.a.svc.cluster.local", json!({"number": 443}));
    for (gateways, host, port, opened) in [
        (&["g/gw"][..], host, &https, true),
        (&["mesh", "g/gw"], host, &https, true),
        (&["mesh"], host, &https, false),
        (&[], host, &https, false),
        (&["g/gw"], host, &json!({"number": 10250}), false),
        (&["g/gw"], host, &json!({}), false),
        (&["g/gw"], "s", &https, false),
        (&["g/gw"], "s.a.svc", &https, false),
        (&["g/gw"], "s.a.svc.cluster.local.", &https, false),
        (&["g/gw"], "x.s.a.svc.cluster.local", &https, false),
        (&["g/gw"], "s.b.svc.cluster.local", &https, false),
    ] {
        let route = virtual_service(gateways, host, port);
        let objects = [&spaces[..], &pods, &[example(&[]), gateway.clone(), route]].concat();
        let plan = without_labels(&objects, &[], "i");
        let both = [format!("{INGRESS}-h"), format!("h/{EGRESS}-istio")];
        assert_eq!(
            keys(&plan),
            if opened { &both[..] } else { &[] },
            "{gateways:?} {host} {port}"
        );
        assert_eq!(plan.problems, []);
    }
}

#[test]
fn http_and_tcp_routes_open_as_well() {
    for kind in ["http", "tcp", "tls"] {
        let host = "s.a.svc.cluster.local";
        let mut route = virtual_service(&["gw"], host, &json!({"number": 443}));
        let routes = route["spec"]["tls"].take();
        route["spec"] = json!({"gateways": ["gw"], kind: routes});
        let plan = without_labels(
            &[
                namespace("a"),
                example(&[]),
                route,
                istio_gateway("a", "gw", &json!({"istio": "x"})),
                pod("a", "gw", &[("istio", "x")]),
            ],
            &[],
            "i",
        );
        let app = json!({"matchLabels": {"app": "s"}});
        let ports = json!([{"port": 10250, "protocol": "TCP"}]);
        assert_eq!(
            spec(&plan, "a/ingress-to-s-tcp-10250-from-istio"),
            json!({
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"istio": "x"}}}], "ports": ports}],
                "podSelector": app,
                "policyTypes": ["Ingress"],
            })
        );
        assert_eq!(
            spec(&plan, "a/egress-to-s-tcp-10250-from-istio"),
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
    let host = "s.a.svc.cluster.local";
    let route = virtual_service(&["g/none", "g/bare", "g/gw"], host, &json!({"number": 443}));
    let objects = [
        namespace("a"),
        namespace("g"),
        example(&[]),
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

/// The API server would refuse the policy, again and again.
#[test]
fn tls_route_is_reported_when_its_gateways_name_is_no_label() {
    let name = "g".repeat(64);
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": "a"},
        "spec": {"listeners": [
            {"name": "tls", "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
        ]},
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "TLSRoute",
        "metadata": {"name": "x", "namespace": "a"},
        "spec": {
            "hostnames": ["a.example.com"],
            "parentRefs": [{"name": name}],
            "rules": [{"backendRefs": [{"name": "s", "port": 443}]}],
        },
    });
    let objects = [namespace("a"), example(&[]), gateway, route];
    let plan = without_labels(&objects, &[], "i");
    assert_eq!(plan.policies.len(), 0);
    let reported = messages(&plan.problems, Reason::RouteNotTranslated);
    assert_eq!(reported.len(), 1);
    assert!(reported[0].contains("is not a label value"), "{reported:?}");
}

#[test]
fn gateways_are_cut_with_one_problem_when_many() {
    let host = "s.a.svc.cluster.local";
    let route = virtual_service(&["g/gw"; 3000], host, &json!({"number": 443}));
    let mut objects = vec![
        namespace("a"),
        namespace("g"),
        example(&[]),
        route,
        istio_gateway("g", "gw", &json!({"istio": "x"})),
        pod("g", "gw", &[("istio", "x")]),
    ];
    let plan = without_labels(&objects, &[], "i");
    assert_eq!(plan.policies.len(), 2);
    let reported = messages(&plan.problems, Reason::RouteNotTranslated);
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("more than 256 gateways"),
        "{reported:?}"
    );
    // None of them exists; an Event has no space for more.
    let missing: Vec<String> = (0..3000).map(|index| format!("g/{index}")).collect();
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    objects[3] = virtual_service(&missing, host, &json!({"number": 443}));
    let plan = without_labels(&objects, &[], "i");
    assert_eq!((plan.policies.len(), plan.problems.len()), (0, 20));
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
    // Changes of what is usual; `null` leaves out.
    let with = |usual: Value, changes: &str| -> Map<String, Value> {
        let mut fields = usual.as_object().unwrap().clone();
        fields.extend(serde_json::from_str::<Map<_, _>>(changes).unwrap());
        fields.retain(|_, value| !value.is_null());
        fields
    };
    let route = |parent: &str, backend: &str| {
        let own = with(json!({"name": "gw", "namespace": "g"}), parent);
        let to = with(json!({"name": "s", "port": 443}), backend);
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "TLSRoute",
            "metadata": {"name": "x", "namespace": "a"},
            "spec": {
                "hostnames": ["a.example.com"],
                "parentRefs": [own],
                "rules": [{"backendRefs": [to]}],
            },
        })
    };
    let all = json!({"from": "All"});
    let selected = json!({"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}}});
    let others = json!({"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}});
    let same = json!({"from": "Same"});
    let no_listener = "no listener";
    for (from, parent, backend, opened, reported) in [
        (&all, "{}", "{}", true, ""),
        (&selected, "{}", "{}", true, ""),
        (&all, r#"{"sectionName":"tls"}"#, "{}", true, ""),
        (&all, r#"{"sectionName":"web"}"#, "{}", false, no_listener),
        (&all, r#"{"sectionName":"end"}"#, "{}", false, no_listener),
        (&all, r#"{"sectionName":"other"}"#, "{}", false, no_listener),
        (&all, r#"{"port":80}"#, "{}", false, no_listener),
        (&others, "{}", "{}", false, no_listener),
        (&same, "{}", "{}", false, no_listener),
        (&all, r#"{"namespace":null}"#, "{}", false, "a/gw does not"),
        (&all, r#"{"kind":"Service"}"#, "{}", false, ""),
        (&all, "{}", r#"{"port":444}"#, false, ""),
        (&all, "{}", r#"{"port":null}"#, true, ""),
        (&all, "{}", r#"{"weight":0}"#, false, ""),
        (&all, "{}", r#"{"namespace":"b"}"#, false, ""),
        (&all, "{}", r#"{"kind":"Bucket"}"#, false, ""),
    ] {
        let route = route(parent, backend);
        let objects = [
            namespace("a"),
            namespace("g"),
            example(&[]),
            gateway(from),
            route.clone(),
        ];
        let plan = without_labels(&objects, &[], "i");
        let both = [format!("{INGRESS}-g"), format!("g/{EGRESS}-istio")];
        assert_eq!(
            keys(&plan),
            if opened { &both[..] } else { &[] },
            "{from} {route}"
        );
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
            let selector = &plan.policies[1].spec["podSelector"];
            assert_eq!(
                *selector,
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
    let objects = [
        namespace("a"),
        namespace("g"),
        terminating("t"),
        example(&[]),
    ];
    let list = [
        routed("g", "x", 10250),
        routed("g", "x", 10250),
        vpn,
        routed("t", "x", 1),
        routed("u", "x", 1),
    ];
    for mode in MODES {
        let plan = plan_routed(&state(&objects), mode, &list);
        let mut found = keys(&plan);
        found.retain(|key| key.contains("-from-"));
        assert_eq!(
            found,
            [
                "a/ingress-to-s-tcp-10250-from-g",
                "a/ingress-to-s-udp-wireguard-from-g",
                "g/egress-to-a-s-tcp-10250-from-istio",
                "g/egress-to-a-s-udp-wireguard-from-istio",
            ]
        );
    }
}

#[test]
fn gateways_share_ingress_but_not_egress_policy() {
    let objects = [namespace("a"), namespace("g"), example(&[])];
    let (x, y) = (routed("g", "x", 10250), routed("g", "y", 10250));
    let plan = without_labels(&objects, &[y.clone(), x.clone()], "i");
    assert_eq!(plan, without_labels(&objects, &[x, y], "i"));
    let hash = &keys(&plan)[2]["g/egress-to-a-s-tcp-10250-from-istio-".len()..];
    assert!(
        hash.len() == 5 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{hash}"
    );
    let egress = "g/egress-to-a-s-tcp-10250-from-istio".to_owned();
    assert_eq!(
        keys(&plan),
        [
            "a/ingress-to-s-tcp-10250-from-g".to_owned(),
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
        spec(&plan, "a/ingress-to-s-tcp-10250-from-g")["ingress"],
        json!([{"from": [peer("x"), peer("y")], "ports": [{"port": 10250, "protocol": "TCP"}]}])
    );
    let selects = |at: usize| object(&plan.policies[at])["spec"]["podSelector"].clone();
    assert_eq!(selects(1), json!({"matchLabels": {"istio": "x"}}));
    assert_eq!(selects(2), json!({"matchLabels": {"istio": "y"}}));
}

#[test]
fn long_keys_that_are_not_ours_stay_as_they_are() {
    let key = format!("gateways.of.a.long.domain.example.com/{}", "k".repeat(60));
    let mut port = routed("g", "x", 10250);
    port.gateway_selector = [(key.clone(), "v".to_owned())].into();
    let plan = without_labels(
        &[namespace("a"), namespace("g"), example(&[])],
        &[port],
        "i",
    );
    assert_eq!(
        object(&plan.policies[1])["spec"]["podSelector"],
        json!({"matchLabels": {key: "v"}})
    );
    assert_eq!(plan.problems, []);
}
