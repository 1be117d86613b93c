//! Routes from objects of Istio, of both generations.

use std::time::Duration;

use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::{RouteSettings, group};
use crate::world::Kind;

const HOSTS: [&str; 2] = [
    "api.bar.foo.example.com",
    "api.bar.foo.internal.example.com",
];

fn names_of_both() -> String {
    format!("names {} {} -> {API}", HOSTS[0], HOSTS[1])
}

/// The objects of GEP-08, word for word but for the names that are left to be filled in there.
fn documented_objects() -> Vec<Value> {
    let gateway = json!({
        "selector": {"istio": "ingressgateway"},
        "servers": [{
            "port": {"number": 443, "name": "tls", "protocol": "TLS"},
            "tls": {"mode": "PASSTHROUGH"},
            "hosts": HOSTS,
        }],
    });
    let service = json!({
        "hosts": HOSTS,
        "gateways": ["kube-apiserver-gateway"],
        "tls": [{
            "match": [{"port": 443, "sniHosts": HOSTS}],
            "route": [{"destination": {
                "host": "kube-apiserver.shoot--foo--bar.svc.cluster.local",
                "port": {"number": 443},
            }}],
        }],
    });
    let blackhole = json!({
        "selector": {"istio": "ingressgateway"},
        "servers": [{"port": {"number": 8443, "name": "tcp", "protocol": "TCP"}, "hosts": ["*"]}],
    });
    let nowhere = json!({
        "hosts": ["blackhole.local"],
        "gateways": ["blackhole"],
        "tcp": [{
            "match": [{"port": 8443}],
            "route": [{"destination": {"host": "localhost", "port": {"number": 9999}}}],
        }],
    });
    let proxy = json!({
        "workloadSelector": {"labels": {"istio": "ingressgateway"}},
        "configPatches": [{
            "applyTo": "LISTENER",
            "match": {"context": "ANY", "listener": {"portNumber": 8443, "name": "0.0.0.0_8443"}},
            "patch": {"operation": "MERGE", "value": {
                "listener_filters": [{"name": "envoy.filters.listener.proxy_protocol"}],
            }},
        }],
    });
    vec![
        api_server(SHOOT),
        istio(
            "Gateway",
            &format!("{SHOOT}/kube-apiserver-gateway"),
            gateway,
        ),
        istio(
            "VirtualService",
            &format!("{SHOOT}/kube-apiserver"),
            service,
        ),
        istio("Gateway", "istio-system/blackhole", blackhole),
        istio("VirtualService", "istio-system/blackhole", nowhere),
        istio("EnvoyFilter", "istio-system/proxy-protocol", proxy),
        filter_chain(SHOOT, "10.1.2.3"),
    ]
}

#[test]
fn the_documents_objects_are_followed_without_a_word() {
    let world = world(&documented_objects());
    let shoot = group(&world, &documented(), SHOOT);
    let connect = format!("connect {API} {SHOOT}--kube-apiserver-socket -> {API}");
    let destination = format!("destination 10.1.2.3/32 Some(443) -> {API}");
    assert_eq!(of(&shoot, 0), [connect, destination, names_of_both()]);
    assert_eq!(problems(&shoot), [""; 0]);
    let beside = group(&world, &documented(), "istio-system");
    assert_eq!(of(&beside, 0), [""; 0]);
    assert_eq!(problems(&beside), [""; 0]);
}

#[test]
fn a_filter_beside_istiod_is_for_gateways_elsewhere() {
    let world = world(&[api_server(SHOOT), filter_chain(SHOOT, "10.1.2.3")]);
    let routes = routes(&world, &one(), SHOOT);
    assert!(routes.contains(&format!("destination 10.1.2.3/32 Some(443) -> {API}")));
}

#[test]
fn passthrough_of_today_has_the_rules_limits() {
    let mut objects = vec![api_server(SHOOT)];
    objects.extend(passthrough(SHOOT, &HOSTS));
    objects.push(rule(
        &format!("{SHOOT}/kube-apiserver"),
        json!({
            "connectionPool": {"tcp": {
                "maxConnectionDuration": "86400s",
                "tcpKeepalive": {"time": "7200s", "interval": "75s"},
            }},
            "loadBalancer": {"localityLbSetting": {
                "enabled": true,
                "failoverPriority": ["topology.kubernetes.io/zone"],
            }},
            "outlierDetection": {"minHealthPercent": 0},
            "tls": {"mode": "DISABLE"},
        }),
    ));
    let world = world(&objects);
    let found = group(&world, &one(), SHOOT);
    assert_eq!(problems(&found), [""; 0]);
    let own = &found.gateways[0];
    let names = own
        .routes
        .iter()
        .find(|route| route.source.kind == Kind::VirtualService);
    let day = Duration::from_secs(86_400);
    assert_eq!(names.unwrap().spec.max_connection_age, Some(day));
    assert_eq!(names.unwrap().spec.idle_timeout, None);
    let tcp = own.clusters[0].tcp.clone().unwrap();
    assert_eq!(tcp.keepalive, Duration::from_secs(7200));
    assert_eq!(tcp.keepalive_interval, Duration::from_secs(75));
    assert!(own.clusters[0].zone_aware);
    assert_eq!(
        own.clusters[0]
            .outlier
            .as_ref()
            .unwrap()
            .max_ejected_percent,
        100
    );
}

#[test]
fn a_server_that_ends_tls_is_passed_through_and_marked() {
    let mut objects = vec![api_server(SHOOT)];
    for suffix in ["-mtls", "-connection-upgrade"] {
        let key = format!("{SHOOT}/kube-apiserver{suffix}");
        objects.push(service(&key, &["kube-apiserver:443"]));
    }
    objects.extend(terminating(SHOOT, &HOSTS));
    let found = group(&world(&objects), &one(), SHOOT);
    assert!(
        of(&found, 0).contains(&names_of_both()),
        "{:?}",
        of(&found, 0)
    );
    assert_eq!(count(&found, Reason::RouteAdapted, Kind::IstioGateway), 1);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::IstioGateway),
        0
    );
    let clusters: Vec<_> = found.gateways[0]
        .clusters
        .iter()
        .map(|one| &one.name)
        .collect();
    assert_eq!(clusters, [API]);
}

#[test]
fn a_gateway_that_shows_certificates_waits_for_nobody() {
    let [gateway, _] = terminating(SHOOT, &HOSTS);
    let found = group(&world(&[api_server(SHOOT), gateway]), &one(), SHOOT);
    assert!(of(&found, 0).contains(&names_of_both()));
}

#[test]
fn a_server_that_ends_tls_for_others_is_not_passed_through() {
    let [gateway, mut bound] = terminating(SHOOT, &HOSTS);
    bound["spec"]["exportTo"] = json!(["elsewhere"]);
    let world = world(&[api_server(SHOOT), gateway, bound]);
    assert_eq!(routes(&world, &one(), SHOOT), [""; 0]);
}

#[test]
fn tls_that_ends_in_front_of_anything_else_is_told_of() {
    let [mut gateway, mut service_of] = terminating(SHOOT, &["p-foo.ingress.example.com"]);
    gateway["spec"]["servers"][0]["tls"]["mode"] = json!("SIMPLE");
    let to = json!([{"destination": {"host": "plutono", "port": {"number": 3000}}}]);
    service_of["spec"]["http"] = json!([{"route": to}]);
    let plutono = service(&format!("{SHOOT}/plutono"), &["web:3000"]);
    let found = group(&world(&[gateway, service_of, plutono]), &one(), SHOOT);
    assert_eq!(of(&found, 0), [""; 0]);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::IstioGateway),
        1
    );
}

#[test]
fn a_virtual_gardens_api_server_is_one_too() {
    let [mut gateway, mut service_of] = terminating("garden", &["api.garden.example.com"]);
    gateway["metadata"]["name"] = json!("virtual-garden-kube-apiserver");
    service_of["spec"]["gateways"] = json!(["garden/virtual-garden-kube-apiserver"]);
    let host = "virtual-garden-kube-apiserver-mtls.garden.svc.cluster.local";
    let to = json!([{"destination": {"host": host, "port": {"number": 443}}}]);
    service_of["spec"]["http"] = json!([{"route": to}]);
    let key = "garden/virtual-garden-kube-apiserver";
    let world = world(&[gateway, service_of, service(key, &["https:443"])]);
    let cluster = "outbound|443||virtual-garden-kube-apiserver.garden.svc.cluster.local";
    let expected = format!("names api.garden.example.com -> {cluster}");
    assert_eq!(routes(&world, &one(), "garden"), [expected]);
}

#[test]
fn export_to_says_which_gateways_see_it() {
    let zone = [("istio", "ingressgateway--zone--a")];
    let mut settings = one();
    settings
        .gateways
        .push(entry("zone-a", "istio-ingress--a", &zone));
    for (export, mut seen) in [
        (json!([]), vec![0, 1]),
        (json!(["*"]), vec![0, 1]),
        (json!(["istio-ingress--a"]), vec![1]),
        (json!(["istio-ingress", "istio-ingress--a"]), vec![0, 1]),
        (json!(["."]), vec![]),
        (json!(["~"]), vec![]),
    ] {
        let [mut first, mut bound] = passthrough(SHOOT, &HOSTS);
        let mut second = first.clone();
        first["metadata"]["name"] = json!("first");
        second["metadata"]["name"] = json!("second");
        second["spec"]["selector"] = json!({"istio": "ingressgateway--zone--a"});
        bound["spec"]["gateways"] = json!(["first", "second"]);
        bound["spec"]["exportTo"] = export.clone();
        let found = group(
            &world(&[api_server(SHOOT), first, second, bound]),
            &settings,
            SHOOT,
        );
        let has = |gateway: &usize| of(&found, *gateway).contains(&names_of_both());
        seen.sort_unstable();
        assert_eq!((0..2).filter(has).collect::<Vec<_>>(), seen, "{export}");
    }
}

#[test]
fn labels_say_which_gateways_an_object_is_for() {
    let selectors = [
        (json!({"istio": "ingressgateway"}), true),
        (
            json!({"app": "istio-ingressgateway", "istio": "ingressgateway"}),
            true,
        ),
        (json!({"istio": "ingressgateway", "other": "x"}), false),
        (json!({"istio": "ingressgateway--zone--a"}), false),
        (json!({}), false),
    ];
    for (selector, expected) in selectors {
        let [mut gateway, bound] = passthrough(SHOOT, &HOSTS);
        gateway["spec"]["selector"] = selector.clone();
        let world = world(&[api_server(SHOOT), gateway, bound]);
        let has = routes(&world, &one(), SHOOT).contains(&names_of_both());
        assert_eq!(has, expected, "{selector}");
    }
}

#[test]
fn pods_decide_where_the_configured_labels_leave_it_open() {
    let mut settings = one();
    settings.gateways[0].selector = labels(&[("istio", "ingressgateway")]);
    let mut objects = vec![api_server(SHOOT)];
    objects.extend(passthrough(SHOOT, &HOSTS));
    let mut world = world(&objects);
    assert!(!routes(&world, &settings, SHOOT).contains(&names_of_both()));
    let own = json!({"app": "istio-ingressgateway", "istio": "ingressgateway", "x": "y"});
    let pod = |namespace: &str| {
        let metadata = json!({"namespace": namespace, "name": "gateway-0", "labels": own});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    };
    apply(&mut world, &pod("elsewhere"));
    assert!(!routes(&world, &settings, SHOOT).contains(&names_of_both()));
    apply(&mut world, &pod("istio-ingress"));
    assert!(routes(&world, &settings, SHOOT).contains(&names_of_both()));
}

#[test]
fn names_are_those_that_gateway_and_route_have_in_common() {
    for (hosts, wanted, expected) in [
        (
            json!(["*"]),
            json!(["a.example.com"]),
            "names a.example.com",
        ),
        (
            json!(["*.example.com"]),
            json!(["a.example.com", "b.org"]),
            "names a.example.com",
        ),
        (
            json!(["a.example.com"]),
            json!(["*.example.com"]),
            "names a.example.com",
        ),
        (
            json!(["./a.example.com"]),
            json!(["a.example.com"]),
            "names a.example.com",
        ),
        (
            json!(["*/a.example.com"]),
            json!(["a.example.com"]),
            "names a.example.com",
        ),
        (
            json!([format!("{SHOOT}/a.example.com")]),
            json!(["A.example.com"]),
            "names a.example.com",
        ),
        (json!(["other/a.example.com"]), json!(["a.example.com"]), ""),
        (
            json!(["*"]),
            json!(["a_b..c", "a.example.com"]),
            "names a.example.com",
        ),
    ] {
        let [mut gateway, mut bound] = passthrough(SHOOT, &HOSTS);
        gateway["spec"]["servers"][0]["hosts"] = hosts.clone();
        bound["spec"]["tls"][0]["match"][0]["sniHosts"] = wanted.clone();
        let found = group(&world(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
        let names = of(&found, 0)
            .into_iter()
            .find(|route| route.starts_with("names"));
        let names = names.unwrap_or_default();
        let names = names.split(" -> ").next().unwrap_or_default();
        assert_eq!(names, expected, "{hosts} {wanted}");
        let all = expected.split(' ').count() > wanted.as_array().unwrap().len();
        let told = count(&found, Reason::RouteNotTranslated, Kind::VirtualService);
        assert_eq!(told == 0, all, "{hosts} {wanted}: {:?}", problems(&found));
    }
}

#[test]
fn a_tcp_route_takes_all_names_of_a_tls_server() {
    for matches in [json!([]), json!([{"port": 443}])] {
        let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
        let route = bound["spec"]["tls"][0]["route"].take();
        bound["spec"]["tls"] = json!([]);
        bound["spec"]["tcp"] = json!([{"match": matches, "route": route}]);
        let found = group(&world(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
        assert!(of(&found, 0).contains(&names_of_both()));
        assert_eq!(problems(&found), [""; 0]);
    }
}

#[test]
fn a_short_name_is_one_of_the_own_namespace_and_a_sole_port_needs_no_number() {
    let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
    bound["spec"]["tls"][0]["route"] = json!([{"destination": {"host": "kube-apiserver"}}]);
    let world = world(&[api_server(SHOOT), gateway, bound]);
    assert!(routes(&world, &one(), SHOOT).contains(&names_of_both()));
}

#[test]
fn of_several_destinations_one_with_all_the_weight_is_taken() {
    let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
    bound["spec"]["tls"][0]["route"] = json!([
        {"destination": {"host": "kube-apiserver", "port": {"number": 443}}, "weight": 100},
        {"destination": {"host": "other", "port": {"number": 443}}, "weight": 0},
    ]);
    let world = world(&[api_server(SHOOT), gateway, bound]);
    assert!(routes(&world, &one(), SHOOT).contains(&names_of_both()));
}

#[test]
fn a_route_into_another_namespace_is_that_namespaces() {
    let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
    let host = "kube-apiserver.shoot--foo--other.svc.cluster.local";
    let to = json!([{"destination": {"host": host, "port": {"number": 443}}}]);
    bound["spec"]["tls"][0]["route"] = to;
    let world = world(&[api_server("shoot--foo--other"), gateway, bound]);
    let own = group(&world, &one(), SHOOT);
    assert_eq!(of(&own, 0), [""; 0]);
    let other = group(&world, &one(), "shoot--foo--other");
    let found = of(&other, 0);
    assert!(
        found
            .iter()
            .any(|route| route.starts_with("names") && route.ends_with(host))
    );
    assert_eq!(other.gateways[0].clusters.len(), 1);
}

#[test]
fn one_gateways_trouble_is_not_told_when_another_has_none() {
    let mut settings: RouteSettings = one();
    settings
        .gateways
        .push(entry("internal", "internal", &[("istio", "internal")]));
    let [first, mut bound] = passthrough(SHOOT, &HOSTS);
    let [mut second, _] = passthrough(SHOOT, &HOSTS[..1]);
    second["metadata"]["name"] = json!("second");
    second["spec"]["selector"] = json!({"istio": "internal"});
    bound["spec"]["gateways"] = json!(["kube-apiserver", "second"]);
    bound["spec"]["exportTo"] = json!(["*"]);
    let found = group(
        &world(&[api_server(SHOOT), first, second, bound]),
        &settings,
        SHOOT,
    );
    assert!(of(&found, 0).contains(&names_of_both()));
    assert!(of(&found, 1).contains(&format!("names {} -> {API}", HOSTS[0])));
    assert_eq!(problems(&found), [""; 0]);
}
