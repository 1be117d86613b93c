//! Objects that cannot be followed: reported, and nothing else is affected.

use serde_json::{Value, json};

use super::fixture::*;
use crate::plan::Reason;
use crate::routes::group;
use crate::state::Kind;

/// Checks that the object alone is reported, in the group that reports it, while a good shoot
/// beside it is served.
fn told_alone(objects: &[Value], kind: Kind, namespace: &str) {
    let good = "shoot--foo--good";
    let mut all = vec![api_server(good), api_server(SHOOT)];
    all.extend(passthrough(good, &["good.example.com"]));
    all.extend(objects.iter().cloned());
    let state = state(&all);
    let found = group(&state, &one(), namespace);
    assert_eq!(
        count(&found, Reason::RouteNotTranslated, kind),
        1,
        "{:?}",
        problems(&found)
    );
    let beside = group(&state, &one(), good);
    assert!(
        of(&beside, 0)
            .iter()
            .any(|route| route.starts_with("names good.example.com"))
    );
    assert_eq!(problems(&beside), [""; 0]);
}

#[test]
fn virtual_services() {
    let to = |host: &str| json!([{"destination": {"host": host, "port": {"number": 443}}}]);
    let two = json!([
        {"destination": {"host": "kube-apiserver", "port": {"number": 443}}, "weight": 50},
        {"destination": {"host": "other", "port": {"number": 443}}, "weight": 50},
    ]);
    let subset = json!([
        {"destination": {"host": "kube-apiserver", "subset": "v1", "port": {"number": 443}}}
    ]);
    let sni = json!(["api.example.com"]);
    let plain = json!({"port": 443, "sniHosts": sni});
    for (matches, route) in [
        (plain.clone(), two),
        (plain.clone(), subset),
        (plain.clone(), to("api.example.org")),
        (plain.clone(), json!([])),
        (plain, json!([{"destination": {"host": "nowhere"}}])),
        (
            json!({"port": 443, "sniHosts": ["other.example.com"]}),
            to("kube-apiserver"),
        ),
        (
            json!({"sniHosts": sni, "sourceLabels": {"a": "b"}}),
            to("kube-apiserver"),
        ),
        (
            json!({"sniHosts": sni, "sourceNamespace": "b"}),
            to("kube-apiserver"),
        ),
        (
            json!({"sniHosts": sni, "destinationSubnets": ["10.0.0.0/8"]}),
            to("kube-apiserver"),
        ),
    ] {
        let [gateway, mut service] = passthrough(SHOOT, &["api.example.com"]);
        service["spec"]["tls"] = json!([{"match": [matches], "route": route}]);
        told_alone(&[gateway, service], Kind::VirtualService, SHOOT);
    }
}

#[test]
fn istio_gateways() {
    for (protocol, mode) in [
        ("TLS", "AUTO_PASSTHROUGH"),
        ("HTTPS", "SIMPLE"),
        ("HTTP", ""),
        ("TCP", ""),
    ] {
        let [mut gateway, _] = passthrough(SHOOT, &["api.example.com"]);
        let server = &mut gateway["spec"]["servers"][0];
        server["port"]["protocol"] = json!(protocol);
        server["tls"] = if mode.is_empty() {
            Value::Null
        } else {
            json!({"mode": mode})
        };
        told_alone(&[gateway], Kind::IstioGateway, SHOOT);
    }
}

fn patch(apply_to: &str, operation: &str, value: Value) -> Value {
    let spec = json!({
        "configPatches": [{
            "applyTo": apply_to,
            "match": {"context": "GATEWAY", "listener": {"portNumber": 8443}},
            "patch": {"operation": operation, "value": value},
        }],
    });
    let mut filter = istio("EnvoyFilter", "istio-ingress/some", spec);
    filter["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Namespace", "name": SHOOT, "uid": "1"}]);
    filter
}

#[test]
fn envoy_filters() {
    let rbac = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";
    let other = json!({"name": "envoy.filters.listener.original_dst"});
    for filter in [
        patch("LISTENER", "MERGE", json!({"filter_chains": []})),
        patch("LISTENER", "MERGE", json!({"listener_filters": [other]})),
        patch("LISTENER", "REMOVE", Value::Null),
        patch("CLUSTER", "ADD", json!({"name": "elsewhere"})),
        patch("CLUSTER", "MERGE", json!({"lb_policy": "RANDOM"})),
        patch(
            "NETWORK_FILTER",
            "INSERT_FIRST",
            json!({"typed_config": {"@type": rbac, "rules": {"action": "DENY"}}}),
        ),
        patch(
            "HTTP_FILTER",
            "INSERT_FIRST",
            json!({"name": "envoy.filters.http.ext_authz"}),
        ),
        patch("ANY_FILTER", "ADD", Value::Null),
    ] {
        told_alone(&[filter], Kind::EnvoyFilter, SHOOT);
    }
}

#[test]
fn filter_chains() {
    for (at, value) in [
        ("/filter_chain_match/prefix_ranges", json!([])),
        (
            "/filter_chain_match/prefix_ranges",
            json!([{"address_prefix": "x", "prefix_len": 8}]),
        ),
        (
            "/filter_chain_match/prefix_ranges",
            json!([{"address_prefix": "10.0.0.0", "prefix_len": 33}]),
        ),
        ("/filter_chain_match/destination_port", json!(65536)),
        ("/filter_chain_match/server_names", json!(["a.example.com"])),
        ("/filters/0/typed_config/cluster", json!("elsewhere")),
        (
            "/filters/0/typed_config/cluster",
            json!("outbound|443|v1|kube-apiserver.a.svc.cluster.local"),
        ),
        ("/filters/0/typed_config/tunneling_config", json!({})),
        ("/filters", json!([])),
        ("/transport_socket", json!({})),
    ] {
        let mut filter = filter_chain(SHOOT, "10.1.2.3");
        filter["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Namespace", "name": SHOOT, "uid": "1"}]);
        let body = &mut filter["spec"]["configPatches"][0]["patch"]["value"];
        let (parent, field) = at.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[field] = value;
        told_alone(&[filter], Kind::EnvoyFilter, SHOOT);
    }
    let mut filter = filter_chain(SHOOT, "10.1.2.3");
    filter["spec"]["configPatches"][0]["match"]["listener"] = json!({"portNumber": 9999});
    told_alone(&[filter], Kind::EnvoyFilter, SHOOT);
}

#[test]
fn connect_rules() {
    let header = json!({"name": "X-Gardener-Destination"});
    let by_header = json!({"cluster_header": "X-Gardener-Destination"});
    for (matches, action) in [
        (
            json!({"prefix": "/", "headers": [header]}),
            by_header.clone(),
        ),
        (json!({"connect_matcher": {}}), by_header.clone()),
        (
            json!({"connect_matcher": {}, "headers": [header, header]}),
            by_header.clone(),
        ),
        (
            json!({"connect_matcher": {}, "headers": [header]}),
            json!({"cluster": API}),
        ),
        (
            json!({"connect_matcher": {}, "headers": [header]}),
            json!({"cluster_header": "other"}),
        ),
        (
            json!({"connect_matcher": {}, "headers": [{
                "name": "X-Gardener-Destination",
                "string_match": {"safe_regex": {"regex": "("}},
            }]}),
            by_header.clone(),
        ),
        (
            json!({"connect_matcher": {}, "headers": [{
                "name": "X-Gardener-Destination", "invert_match": true,
            }]}),
            by_header,
        ),
    ] {
        let mut filter = http_proxy(8443, "X-Gardener-Destination", REGEX);
        filter["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Namespace", "name": SHOOT, "uid": "1"}]);
        let config = &mut filter["spec"]["configPatches"][0]["patch"]["value"]["typed_config"];
        config["route_config"]["virtual_hosts"][0]["routes"] =
            json!([{"match": matches, "route": action}]);
        told_alone(&[filter], Kind::EnvoyFilter, SHOOT);
    }
}

#[test]
fn changes_of_http_are_marked_as_not_made() {
    for filter in [
        patch(
            "HTTP_ROUTE",
            "INSERT_BEFORE",
            json!({"match": {"prefix": "/"}}),
        ),
        patch(
            "CLUSTER",
            "MERGE",
            json!({"transportSocket": {"name": "x"}}),
        ),
    ] {
        let found = group(&state(&[filter]), &one(), SHOOT);
        assert_eq!(count(&found, Reason::RouteAdapted, Kind::EnvoyFilter), 1);
        assert_eq!(found.problems.len(), 1);
    }
}

#[test]
fn patches_without_route_effect_are_ignored() {
    for filter in [
        patch(
            "CLUSTER",
            "MERGE",
            json!({"per_connection_buffer_limit_bytes": 32768}),
        ),
        patch(
            "LISTENER",
            "MERGE",
            json!({"perConnectionBufferLimitBytes": 32768, "socketOptions": []}),
        ),
        patch("BOOTSTRAP", "MERGE", json!({"admin": {}})),
    ] {
        let found = group(&state(&[filter]), &one(), SHOOT);
        assert_eq!(problems(&found), [""; 0]);
    }
}
