//! Routes from objects of Istio, of both generations.

use std::time::Duration;

use route::RouteMatch;
use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::{Group, group};
use crate::state::Kind;

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
fn documented_objects_cause_no_events() {
    let state = state(&documented_objects());
    let shoot = group(&state, &documented(), SHOOT);
    let connect = format!("connect {API} {SHOOT}--kube-apiserver-socket -> {API}");
    let destination = format!("destination 10.1.2.3/32 Some(443) -> {API}");
    assert_eq!(of(&shoot, 0), [connect, destination, names_of_both()]);
    assert_eq!(problems(&shoot), [""; 0]);
    let beside = group(&state, &documented(), "istio-system");
    assert_eq!(of(&beside, 0), [""; 0]);
    assert_eq!(problems(&beside), [""; 0]);
}

#[test]
fn filter_in_istio_system_applies_everywhere() {
    let state = state(&[api_server(SHOOT), filter_chain(SHOOT, "10.1.2.3")]);
    let routes = routes(&state, &one(), SHOOT);
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
    let state = state(&objects);
    let found = group(&state, &one(), SHOOT);
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
fn terminating_server_is_passed_through() {
    let mut objects = vec![api_server(SHOOT)];
    for suffix in ["-mtls", "-connection-upgrade"] {
        let key = format!("{SHOOT}/kube-apiserver{suffix}");
        objects.push(service(&key, &["kube-apiserver:443"]));
    }
    objects.extend(terminating(SHOOT, &HOSTS));
    let found = group(&state(&objects), &one(), SHOOT);
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
fn mtls_gateway_is_not_blocked_by_idle_peers() {
    let [gateway, _] = terminating(SHOOT, &HOSTS);
    let found = group(&state(&[api_server(SHOOT), gateway]), &one(), SHOOT);
    assert!(of(&found, 0).contains(&names_of_both()));
}

#[test]
fn server_on_another_port_is_reported() {
    let [mut gateway, bound] = passthrough(SHOOT, &HOSTS);
    gateway["spec"]["servers"][0]["port"]["number"] = json!(9443);
    let found = group(&state(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
    assert!(!of(&found, 0).contains(&names_of_both()));
    let problems = problems(&found);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("port 9443 is not the gateway's for TLS, 443"),
        "{problems:?}"
    );
    // Another gateway on the same pods has it.
    let mut both = one();
    both.extend(one());
    both[1].ports.tls = 9443;
    let [mut gateway, bound] = passthrough(SHOOT, &HOSTS);
    gateway["spec"]["servers"][0]["port"]["number"] = json!(9443);
    let found = group(&state(&[api_server(SHOOT), gateway, bound]), &both, SHOOT);
    assert_eq!(self::problems(&found), [""; 0]);
}

#[test]
fn terminating_server_for_others_is_not_routed() {
    let [gateway, mut bound] = terminating(SHOOT, &HOSTS);
    bound["spec"]["exportTo"] = json!(["elsewhere"]);
    let state = state(&[api_server(SHOOT), gateway, bound]);
    assert_eq!(routes(&state, &one(), SHOOT), [""; 0]);
}

#[test]
fn unsupported_tls_termination_is_reported() {
    let [mut gateway, mut service_of] = terminating(SHOOT, &["p-foo.ingress.example.com"]);
    gateway["spec"]["servers"][0]["tls"]["mode"] = json!("SIMPLE");
    let to = json!([{"destination": {"host": "plutono", "port": {"number": 3000}}}]);
    service_of["spec"]["http"] = json!([{"route": to}]);
    let plutono = service(&format!("{SHOOT}/plutono"), &["web:3000"]);
    let found = group(&state(&[gateway, service_of, plutono]), &one(), SHOOT);
    assert_eq!(of(&found, 0), [""; 0]);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::IstioGateway),
        1
    );
}

/// With any names, `http` routes to an API server of its own: it neither hides the one behind the
/// `Gateway` nor takes its names.
#[test]
fn foreign_virtual_service_does_not_count_for_ended_tls() {
    let mut objects = vec![api_server(SHOOT), api_server("tenant")];
    objects.extend(terminating(SHOOT, &HOSTS));
    let [mut dashboard, mut to_dashboard] = terminating("garden", &["plutono.example.com"]);
    dashboard["spec"]["servers"][0]["tls"]["mode"] = json!("SIMPLE");
    let to = json!([{"destination": {"host": "plutono", "port": {"number": 3000}}}]);
    to_dashboard["spec"]["http"] = json!([{"route": to}]);
    objects.extend([dashboard, to_dashboard]);
    let before = state(&objects);
    let expected = routes(&before, &one(), SHOOT);
    assert!(expected.contains(&names_of_both()));
    for hosts in [json!(HOSTS), json!(["plutono.example.com"]), json!(["*"])] {
        for victims in [
            json!([format!("{SHOOT}/kube-apiserver")]),
            json!(["garden/kube-apiserver"]),
        ] {
            let [_, mut bound] = terminating("tenant", &[]);
            bound["spec"]["hosts"] = hosts.clone();
            bound["spec"]["gateways"] = victims.clone();
            bound["spec"]["exportTo"] = json!(["*"]);
            let mut all = objects.clone();
            all.push(bound);
            let state = state(&all);
            assert_eq!(routes(&state, &one(), SHOOT), expected, "{hosts} {victims}");
            for group in ["garden", "tenant"] {
                assert_eq!(routes(&state, &one(), group), [""; 0], "{hosts} {victims}");
            }
        }
    }
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
    let state = state(&[gateway, service_of, service(key, &["https:443"])]);
    let cluster = "outbound|443||virtual-garden-kube-apiserver.garden.svc.cluster.local";
    let expected = format!("names api.garden.example.com -> {cluster}");
    assert_eq!(routes(&state, &one(), "garden"), [expected]);
}

#[test]
fn export_to_says_which_gateways_see_it() {
    let zone = [("istio", "ingressgateway--zone--a")];
    let mut settings = one();
    settings.push(entry("zone-a", "istio-ingress--a", &zone));
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
            &state(&[api_server(SHOOT), first, second, bound]),
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
        let state = state(&[api_server(SHOOT), gateway, bound]);
        let has = routes(&state, &one(), SHOOT).contains(&names_of_both());
        assert_eq!(has, expected, "{selector}");
    }
}

#[test]
fn pods_decide_when_labels_are_ambiguous() {
    let mut settings = one();
    settings[0].selector = labels(&[("istio", "ingressgateway")]);
    let mut objects = vec![api_server(SHOOT)];
    objects.extend(passthrough(SHOOT, &HOSTS));
    let mut state = state(&objects);
    assert!(!routes(&state, &settings, SHOOT).contains(&names_of_both()));
    let own = json!({"app": "istio-ingressgateway", "istio": "ingressgateway", "x": "y"});
    let pod = |namespace: &str| {
        let metadata = json!({"namespace": namespace, "name": "gateway-0", "labels": own});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    };
    apply(&mut state, &pod("elsewhere"));
    assert!(!routes(&state, &settings, SHOOT).contains(&names_of_both()));
    apply(&mut state, &pod("istio-ingress"));
    assert!(routes(&state, &settings, SHOOT).contains(&names_of_both()));
}

#[test]
fn route_names_intersect_gateway_names() {
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
        let found = group(&state(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
        let names = of(&found, 0)
            .into_iter()
            .find(|route| route.starts_with("names"));
        let names = names.unwrap_or_default();
        let names = names.split(" -> ").next().unwrap_or_default();
        assert_eq!(names, expected, "{hosts} {wanted}");
        let all = expected.split(' ').count() > wanted.as_array().unwrap().len();
        let reported = count(&found, Reason::RouteNotTranslated, Kind::VirtualService);
        assert_eq!(
            reported == 0,
            all,
            "{hosts} {wanted}: {:?}",
            problems(&found)
        );
    }
}

#[test]
fn a_tcp_route_takes_all_names_of_a_tls_server() {
    for matches in [json!([]), json!([{"port": 443}])] {
        let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
        let route = bound["spec"]["tls"][0]["route"].take();
        bound["spec"]["tls"] = json!([]);
        bound["spec"]["tcp"] = json!([{"match": matches, "route": route}]);
        let found = group(&state(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
        assert!(of(&found, 0).contains(&names_of_both()));
        assert_eq!(problems(&found), [""; 0]);
    }
}

#[test]
fn short_host_resolves_in_own_namespace() {
    let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
    bound["spec"]["tls"][0]["route"] = json!([{"destination": {"host": "kube-apiserver"}}]);
    let state = state(&[api_server(SHOOT), gateway, bound]);
    assert!(routes(&state, &one(), SHOOT).contains(&names_of_both()));
}

#[test]
fn destination_with_all_weight_is_used() {
    let [gateway, mut bound] = passthrough(SHOOT, &HOSTS);
    bound["spec"]["tls"][0]["route"] = json!([
        {"destination": {"host": "kube-apiserver", "port": {"number": 443}}, "weight": 100},
        {"destination": {"host": "other", "port": {"number": 443}}, "weight": 0},
    ]);
    let state = state(&[api_server(SHOOT), gateway, bound]);
    assert!(routes(&state, &one(), SHOOT).contains(&names_of_both()));
}

/// To a Service of another namespace only those lead whose authors may change the gateway itself.
#[test]
fn route_belongs_to_the_target_namespace() {
    let other = "shoot--foo--other";
    let host = "kube-apiserver.shoot--foo--other.svc.cluster.local";
    for (from, led) in [
        (SHOOT, false),
        ("istio-ingress", true),
        ("istio-system", true),
    ] {
        let objects = passthrough(from, &HOSTS).map(|mut object| {
            if object["kind"] == "VirtualService" {
                let to = json!([{"destination": {"host": host, "port": {"number": 443}}}]);
                object["spec"]["tls"][0]["route"] = to;
            }
            object
        });
        let [gateway, bound] = objects;
        let state = state(&[api_server(other), gateway, bound]);
        let own = group(&state, &one(), from);
        assert_eq!(of(&own, 0), [""; 0]);
        let reported = count(&own, Reason::RouteNotTranslated, Kind::VirtualService);
        assert_eq!(reported, usize::from(!led), "{from}");
        let found = group(&state, &one(), other);
        let names = of(&found, 0)
            .into_iter()
            .filter(|own| own.starts_with("names"));
        assert!(names.clone().all(|route| route.ends_with(host)));
        assert_eq!(names.count(), usize::from(led), "{from}");
        assert_eq!(found.gateways[0].clusters.len(), usize::from(led));
        assert_eq!(found.routed.len(), usize::from(led));
    }
}

#[test]
fn service_is_led_to_where_it_is_exported() {
    for (export, led) in [
        ("istio-ingress", true),
        ("a, istio-ingress", true),
        ("*", true),
        (".", false),
        ("~", false),
    ] {
        let annotations = json!({"networking.istio.io/exportTo": export});
        let [gateway, bound] = passthrough(SHOOT, &HOSTS);
        let service = annotate(api_server(SHOOT), annotations);
        let found = group(&state(&[service, gateway, bound]), &one(), SHOOT);
        assert_eq!(of(&found, 0).contains(&names_of_both()), led, "{export}");
        assert_eq!(problems(&found).len(), usize::from(!led), "{export}");
    }
}

#[test]
fn problem_of_all_gateways_is_reported() {
    let mut settings = one();
    settings.push(entry("internal", "internal", &[("istio", "internal")]));
    let [first, mut bound] = passthrough(SHOOT, &HOSTS);
    let [mut second, _] = passthrough(SHOOT, &HOSTS[..1]);
    second["metadata"]["name"] = json!("second");
    second["spec"]["selector"] = json!({"istio": "internal"});
    bound["spec"]["gateways"] = json!(["kube-apiserver", "second"]);
    bound["spec"]["exportTo"] = json!(["*"]);
    let found = group(
        &state(&[api_server(SHOOT), first, second, bound]),
        &settings,
        SHOOT,
    );
    assert!(of(&found, 0).contains(&names_of_both()));
    assert!(of(&found, 1).contains(&format!("names {} -> {API}", HOSTS[0])));
    assert_eq!(problems(&found), [""; 0]);
}

fn server_names(group: &Group) -> usize {
    let routes = group.gateways[0].routes.iter();
    let names = routes.map(|route| match &route.spec.matches {
        RouteMatch::ServerNames(names) => names.len(),
        RouteMatch::ConnectDestinations(_)
        | RouteMatch::Destinations { .. }
        | RouteMatch::WireGuard { .. } => 0,
    });
    names.sum()
}

/// What an author may write without end, alone and multiplied with each other.
#[test]
fn large_lists_are_cut_with_one_problem() {
    let many = |of: &str| {
        (0..3000)
            .map(|index| format!("{index}{of}"))
            .collect::<Vec<_>>()
    };
    let names = many(".example.com");
    let matches: Vec<Value> = names.iter().map(|own| json!({"sniHosts": [own]})).collect();
    let named = json!(vec!["kube-apiserver"; 3000]);
    for (hosts, matches, gateways, routed) in [
        (
            json!(["*"]),
            json!([{"sniHosts": names}]),
            json!(["kube-apiserver"]),
            256,
        ),
        (json!(["*"]), json!(matches), json!(["kube-apiserver"]), 256),
        (
            json!(names),
            json!([{"sniHosts": ["*"]}]),
            json!(["kube-apiserver"]),
            256,
        ),
        (
            json!(vec!["*"; 3000]),
            json!([{"sniHosts": names}]),
            json!(["kube-apiserver"]),
            0,
        ),
        (
            json!(vec!["*"; 3000]),
            json!(matches),
            json!(["kube-apiserver"]),
            21,
        ),
        (
            json!(["*"]),
            json!([{"sniHosts": ["a.example.com"]}]),
            named,
            1,
        ),
    ] {
        let [mut gateway, mut bound] = passthrough(SHOOT, &HOSTS);
        gateway["spec"]["servers"][0]["hosts"] = hosts;
        bound["spec"]["gateways"] = gateways;
        bound["spec"]["tls"][0]["match"] = matches;
        let found = group(&state(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
        assert_eq!(server_names(&found), routed);
        let problems = problems(&found);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("are too many: some are ignored"),
            "{problems:?}"
        );
    }
}

#[test]
fn large_gateway_that_ends_tls_is_cut_with_one_problem() {
    let names: Vec<String> = (0..3000)
        .map(|index| format!("{index}.example.com"))
        .collect();
    let [mut gateway, bound] = terminating(SHOOT, &[]);
    let mut servers = vec![gateway["spec"]["servers"][0].take(); 3000];
    servers[0]["hosts"] = json!(names);
    gateway["spec"]["servers"] = json!(servers);
    let found = group(&state(&[api_server(SHOOT), gateway, bound]), &one(), SHOOT);
    assert_eq!(server_names(&found), 256);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::IstioGateway),
        1
    );
    assert!(count(&found, Reason::RouteAdapted, Kind::IstioGateway) <= 20);
}
