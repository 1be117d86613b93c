//! Servers of Istio `Gateway`s on the ports for node proxies and VPN clients: routed by others, or
//! reported.

use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::{GatewayEntry, group};
use crate::state::Kind;

const REPORTED: &str = "RouteNotTranslated Gateway";

/// A Gateway with one server without TLS, for Gardener's labels.
fn opener(key: &str, port: u16, protocol: &str, host: &str) -> Value {
    let spec = json!({
        "selector": {"app": "istio-ingressgateway", "istio": "ingressgateway"},
        "servers": [{
            "hosts": [host],
            "port": {"name": "some", "number": port, "protocol": protocol},
        }],
    });
    istio("Gateway", key, spec)
}

/// A `VirtualService` whose routes of one protocol lead to a host.
fn bound(key: &str, gateway: &str, protocol: &str, host: &str, port: u16) -> Value {
    let to = json!([{"destination": {"host": host, "port": {"number": port}}}]);
    let spec = json!({
        "exportTo": ["*"],
        "hosts": ["*"],
        "gateways": [gateway],
        protocol: [{"route": to}],
    });
    istio("VirtualService", key, spec)
}

fn header_filters() -> [Value; 2] {
    [
        http_proxy(8443, "X-Gardener-Destination", REGEX),
        http_proxy(8132, "Reversed-VPN", REGEX),
    ]
}

/// All problems in some groups.
fn told(objects: &[Value], entries: &[GatewayEntry], groups: &[&str]) -> Vec<String> {
    let state = state(objects);
    let all = groups.iter().map(|name| group(&state, entries, name));
    all.flat_map(|one| problems(&one)).collect()
}

#[test]
fn tls_server_on_another_listener_is_reported() {
    for (port, accepts) in [(8443, "PROXY headers and CONNECT"), (8132, "CONNECT")] {
        for (protocol, mode) in [
            ("TLS", "PASSTHROUGH"),
            ("TLS", "AUTO_PASSTHROUGH"),
            ("HTTPS", "SIMPLE"),
            ("HTTPS", "OPTIONAL_MUTUAL"),
        ] {
            let [mut gateway, bound] = passthrough(SHOOT, &["api.example.com"]);
            let server = &mut gateway["spec"]["servers"][0];
            server["port"]["number"] = json!(port);
            server["port"]["protocol"] = json!(protocol);
            server["tls"]["mode"] = json!(mode);
            let mut objects = vec![api_server(SHOOT), gateway, bound];
            // Filters for CONNECT on that port route no TLS.
            objects.extend(header_filters());
            let found = group(&state(&objects), &one(), SHOOT);
            let expected = format!(
                "{REPORTED} {SHOOT}/kube-apiserver: {protocol} on port {port}, which accepts only {accepts}"
            );
            assert_eq!(problems(&found), [expected], "{mode}");
            assert!(!of(&found, 0).iter().any(|route| route.starts_with("names")));
        }
    }
}

#[test]
fn plain_server_of_an_unrouted_service_is_reported() {
    for (protocol, routes) in [("HTTP", "http"), ("HTTP2", "http"), ("TCP", "tcp")] {
        for port in [8443, 8132] {
            let mut objects = vec![
                service("apps/plutono", &["web:3000"]),
                opener("gateways/apps", port, protocol, "*"),
                bound("apps/plutono", "gateways/apps", routes, "plutono", 3000),
            ];
            objects.extend(header_filters());
            let told = told(&objects, &one(), &["apps", "gateways", "istio-ingress"]);
            assert_eq!(told.len(), 1, "{protocol} {port}: {told:?}");
            let start = format!("{REPORTED} gateways/apps: {protocol} on port {port}");
            assert!(told[0].starts_with(&start), "{told:?}");
            assert!(told[0].ends_with("no route there leads to Service apps/plutono"));
        }
    }
}

#[test]
fn plain_server_of_a_foreign_host_is_reported() {
    let objects = [
        opener("apps/apps", 8443, "HTTP", "*"),
        bound("apps/apps", "apps", "http", "www.example.org", 443),
    ];
    let told = told(&objects, &one(), &["apps"]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("the host \"www.example.org\" is not a Service's"));
}

/// What Gardener has written for these ports, from the first version to the last.
#[test]
fn servers_of_gardener_cause_no_events() {
    let nowhere = "non-existing-blackhole.garden.svc.cluster.local";
    let authority = "reversed-vpn-auth-server";
    let mut blackhole = bound(
        "istio-ingress/proxy-protocol-blackhole",
        "proxy-protocol",
        "tcp",
        "localhost",
        9999,
    );
    blackhole["spec"]["exportTo"] = json!(["."]);
    let mut unbound = bound("garden/auth", "mesh", "http", authority, 9001);
    unbound["spec"].as_object_mut().unwrap().remove("gateways");
    let authority_host = format!("{authority}.garden.svc.cluster.local");
    let openers = [
        opener("istio-ingress/http-proxy", 8443, "HTTP", nowhere),
        opener("istio-ingress/reversed-vpn", 8132, "HTTP", nowhere),
        opener("istio-ingress/proxy-protocol", 8443, "TCP", "*"),
        opener("istio-ingress/auth", 8132, "HTTP", &authority_host),
        blackhole,
        unbound,
        service(&format!("garden/{authority}"), &["grpc-authz:9001"]),
    ];
    let key = format!("{SHOOT}/vpn-seed-server");
    let shoot = [
        api_server(SHOOT),
        vpn_server(SHOOT, "vpn-seed-server"),
        rule(&key, json!({"tls": {"mode": "DISABLE"}})),
        opener(&key, 8132, "HTTP", "api.bar.foo.example.com"),
        bound(&key, "vpn-seed-server", "http", "vpn-seed-server", 1194),
    ];
    let groups = ["garden", "istio-ingress", "istio-system", SHOOT];
    for filters in [&[][..], &header_filters()[..]] {
        // Before the first shoot, and with one.
        for shoot in [&[][..], &shoot[..]] {
            let objects = [&openers[..], filters, shoot].concat();
            assert_eq!(told(&objects, &one(), &groups), [""; 0]);
        }
    }
}

#[test]
fn plain_server_is_served_by_a_route_to_its_service() {
    let key = format!("{SHOOT}/own");
    // By CONNECT, once a filter lets the header say so.
    let by_header = [
        vpn_server(SHOOT, "vpn-seed-server"),
        opener(&key, 8132, "HTTP", "*"),
        bound(&key, "own", "http", "vpn-seed-server", 1194),
    ];
    assert_eq!(told(&by_header, &one(), &[SHOOT]).len(), 1);
    let routed = [&by_header[..], &header_filters()[..]].concat();
    assert_eq!(told(&routed, &one(), &[SHOOT]), [""; 0]);
    // By a node proxy's destination; CONNECT serves no clients of plain TCP.
    let by_destination = [
        api_server(SHOOT),
        opener(&key, 8443, "TCP", "*"),
        bound(&key, "own", "tcp", "kube-apiserver", 443),
    ];
    let connected = [&by_destination[..], &header_filters()[..]].concat();
    assert_eq!(told(&connected, &one(), &[SHOOT]).len(), 1);
    let routed = [&by_destination[..], &[filter_chain(SHOOT, "10.1.2.3")]].concat();
    assert_eq!(told(&routed, &one(), &[SHOOT]), [""; 0]);
}

#[test]
fn routes_for_other_servers_are_not_reported() {
    let mut gateway = opener("apps/apps", 8443, "HTTP", "*");
    let mut bound = bound("apps/apps", "apps", "http", "plutono", 3000);
    let plutono = service("apps/plutono", &["web:3000"]);
    let found = |gateway: &Value, bound: &Value| {
        told(
            &[gateway.clone(), bound.clone(), plutono.clone()],
            &one(),
            &["apps"],
        )
    };
    assert_eq!(found(&gateway, &bound).len(), 1);
    bound["spec"]["http"][0]["match"] = json!([{"port": 80}]);
    assert_eq!(found(&gateway, &bound), [""; 0]);
    bound["spec"]["http"][0]["match"] = json!([{"gateways": ["other"]}]);
    assert_eq!(found(&gateway, &bound), [""; 0]);
    bound["spec"]["http"][0]["match"] = json!([{"gateways": ["apps"], "port": 8443}]);
    assert_eq!(found(&gateway, &bound).len(), 1);
    bound["spec"]["exportTo"] = json!(["."]);
    assert_eq!(found(&gateway, &bound), [""; 0]);
    bound["spec"]["exportTo"] = json!(["istio-ingress"]);
    gateway["spec"]["selector"] = json!({"istio": "other"});
    assert_eq!(found(&gateway, &bound), [""; 0]);
}

#[test]
fn server_on_another_gateways_tls_port_is_served() {
    let mut both = one();
    both.extend(one());
    both[1].ports.tls = 8443;
    both[1].ports.node = 443;
    let [mut gateway, mut bound] = passthrough(SHOOT, &["api.example.com"]);
    gateway["spec"]["servers"][0]["port"]["number"] = json!(8443);
    bound["spec"]["tls"][0]["match"][0]["port"] = json!(8443);
    let found = group(&state(&[api_server(SHOOT), gateway, bound]), &both, SHOOT);
    assert_eq!(problems(&found), [""; 0]);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::IstioGateway),
        0
    );
    assert!(of(&found, 1).contains(&format!("names api.example.com -> {API}")));
}

/// Objects for a server without TLS, none of them where another one is.
pub(super) fn scattered(shoot: &str) -> Vec<Value> {
    let host = format!("vpn-seed-server.{shoot}.svc.cluster.local");
    vec![
        opener("gateways/own", 8132, "HTTP", "*"),
        bound("other/own", "gateways/own", "http", &host, 1194),
        vpn_server(shoot, "vpn-seed-server"),
        http_proxy(8132, "Reversed-VPN", REGEX),
    ]
}
