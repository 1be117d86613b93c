//! Destinations of CONNECT requests.

use serde_json::json;

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::group;
use crate::state::{Kind, Protocol, TargetPort};

fn vpn(name: &str) -> String {
    let cluster = format!("outbound|1194||{name}.{SHOOT}.svc.cluster.local");
    format!("connect {cluster} -> {cluster}")
}

fn alias() -> String {
    format!("connect {API} {SHOOT}--kube-apiserver-socket -> {API}")
}

#[test]
fn the_filters_rule_opens_what_it_matches() {
    let mut state = state(&[
        api_server(SHOOT),
        service(&format!("{SHOOT}/etcd-main-client"), &["client:2379"]),
        service(
            &format!("{SHOOT}/kube-apiserver-mtls"),
            &["kube-apiserver:443"],
        ),
    ]);
    for name in [
        "vpn-seed-server",
        "vpn-seed-server-0",
        "vpn-seed-server-4",
        "vpn-seed-server-5",
    ] {
        apply(&mut state, &vpn_server(SHOOT, name));
    }
    assert_eq!(routes(&state, &one(), SHOOT), [""; 0]);
    apply(
        &mut state,
        &http_proxy(8443, "X-Gardener-Destination", REGEX),
    );
    let found = group(&state, &one(), SHOOT);
    let names = ["vpn-seed-server-0", "vpn-seed-server-4", "vpn-seed-server"];
    let mut expected: Vec<_> = names.map(vpn).to_vec();
    expected.push(alias());
    expected.sort();
    assert_eq!(of(&found, 0), expected);
    assert_eq!(problems(&found), [""; 0]);
    assert_eq!(problems(&group(&state, &one(), "istio-ingress")), [""; 0]);
}

#[test]
fn rules_of_both_ports_add_up() {
    let only_vpn = r"^outbound\|1194\|\|vpn-seed-server(-[0-4])?\..*\.svc\.cluster\.local$";
    let state = state(&[
        api_server(SHOOT),
        vpn_server(SHOOT, "vpn-seed-server"),
        http_proxy(8132, "Reversed-VPN", only_vpn),
    ]);
    assert_eq!(routes(&state, &one(), SHOOT), [vpn("vpn-seed-server")]);
}

#[test]
fn a_rule_for_another_gateway_opens_nothing() {
    let mut filter = http_proxy(8443, "X-Gardener-Destination", REGEX);
    filter["spec"]["workloadSelector"]["labels"] = json!({"istio": "other"});
    let state = state(&[api_server(SHOOT), filter]);
    assert_eq!(routes(&state, &one(), SHOOT), [""; 0]);
}

#[test]
fn foreign_rule_opens_nothing() {
    let host = format!("kube-apiserver.{SHOOT}.svc.cluster.local");
    for (namespace, open) in [(SHOOT, true), ("istio-system", true), ("tenant", false)] {
        let spec = json!({"host": host, "trafficPolicy": {}});
        let rule = istio("DestinationRule", &format!("{namespace}/x"), spec);
        let found = routes(&state(&[api_server(SHOOT), rule]), &one(), SHOOT);
        assert_eq!(found.contains(&alias()), open, "{namespace}: {found:?}");
    }
}

#[test]
fn service_not_exported_is_not_routed() {
    let filter = http_proxy(8443, "X-Gardener-Destination", REGEX);
    for (export, open) in [
        ("istio-ingress", true),
        ("other, istio-ingress", true),
        ("~", false),
    ] {
        let annotations = json!({"networking.istio.io/exportTo": export});
        let service = annotate(api_server(SHOOT), annotations);
        let state = state(&[service, filter.clone()]);
        assert_eq!(!routes(&state, &one(), SHOOT).is_empty(), open, "{export}");
    }
}

#[test]
fn known_names_open_through_other_objects() {
    let rule_of = |name: &str| {
        rule(
            &format!("{SHOOT}/{name}"),
            json!({"tls": {"mode": "DISABLE"}}),
        )
    };
    let mut state = state(&[
        vpn_server(SHOOT, "vpn-seed-server"),
        service(&format!("{SHOOT}/etcd"), &["client:443"]),
        rule_of("etcd"),
    ]);
    assert_eq!(routes(&state, &one(), SHOOT), [""; 0]);
    apply(&mut state, &rule_of("vpn-seed-server"));
    assert_eq!(routes(&state, &one(), SHOOT), [vpn("vpn-seed-server")]);
    let mut hidden = rule_of("vpn-seed-server");
    hidden["spec"]["exportTo"] = json!(["elsewhere"]);
    apply(&mut state, &hidden);
    assert_eq!(routes(&state, &one(), SHOOT), [""; 0]);
}

#[test]
fn the_port_of_the_tunnel_is_routed_and_no_other() {
    let state = state(&[
        vpn_server(SHOOT, "vpn-seed-server"),
        http_proxy(8443, "X-Gardener-Destination", REGEX),
    ]);
    let found = group(&state, &one(), SHOOT);
    let routed: Vec<_> = found.routed.values().flatten().collect();
    assert_eq!(routed.len(), 1);
    assert_eq!(routed[0].protocol, Protocol::Tcp);
    assert_eq!(routed[0].target, TargetPort::Number(1194));
}

#[test]
fn shoot_inner_listener_becomes_an_alias() {
    let pipe = format!("@kube-apiservers/{SHOOT}");
    let name = format!("{SHOOT}--kube-apiserver-socket");
    let spec = json!({
        "workloadSelector": {"labels": {"istio": "ingressgateway"}},
        "configPatches": [
            {
                "applyTo": "LISTENER",
                "match": {"context": "GATEWAY"},
                "patch": {"operation": "ADD", "value": {
                    "name": name,
                    "address": {"pipe": {"path": pipe}},
                    "filter_chains": [],
                }},
            },
            {
                "applyTo": "CLUSTER",
                "match": {"context": "ANY"},
                "patch": {"operation": "ADD", "value": {
                    "name": name,
                    "type": "STATIC",
                    "connect_timeout": "10s",
                }},
            },
        ],
    });
    let mut filter = istio(
        "EnvoyFilter",
        &format!("istio-ingress/{SHOOT}-apiserver-proxy"),
        spec,
    );
    filter["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "Namespace", "name": SHOOT, "uid": "1"}
    ]);
    // A rule that does not know the alias.
    let regex = r"^outbound\|443\|\|kube-apiserver\..*\.svc\.cluster\.local$";
    let mut state = state(&[
        api_server(SHOOT),
        http_proxy(8443, "X-Gardener-Destination", regex),
    ]);
    assert_eq!(
        routes(&state, &one(), SHOOT),
        [format!("connect {API} -> {API}")]
    );
    apply(&mut state, &filter);
    let found = group(&state, &one(), SHOOT);
    assert_eq!(of(&found, 0), [alias()]);
    assert_eq!(count(&found, Reason::RouteAdapted, Kind::EnvoyFilter), 1);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, Kind::EnvoyFilter),
        0
    );
}

#[test]
fn one_value_may_have_a_cluster_of_its_own() {
    let mut filter = http_proxy(8443, "X-Gardener-Destination", REGEX);
    let config = &mut filter["spec"]["configPatches"][0]["patch"]["value"]["typed_config"];
    config["route_config"]["virtual_hosts"][0]["routes"] = json!([{
        "match": {
            "connectMatcher": {},
            "headers": [{"name": "X-Gardener-Destination", "exactMatch": "bar"}],
        },
        "route": {"cluster": API},
    }]);
    let state = state(&[api_server(SHOOT), filter]);
    // The filter holds no rule, so nothing opens the well-known name but the route itself.
    let found = routes(&state, &one(), SHOOT);
    assert_eq!(found, [format!("connect bar -> {API}"), alias()]);
}
