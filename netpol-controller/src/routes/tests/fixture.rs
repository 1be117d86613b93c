//! Objects as Gardener and the users' documents write them, and what groups say, as text.

use kube::core::DynamicObject;
use route::RouteMatch;
use serde_json::{Value, json};

use crate::plan::Reason;
use crate::routes::{GatewayEntry, Group, Ports, group};
use crate::state::{ClusterState, Kind, Labels, ObjectKey};

pub(super) const SHOOT: &str = "shoot--foo--bar";
pub(super) const API: &str = "outbound|443||kube-apiserver.shoot--foo--bar.svc.cluster.local";

/// Today's regular expression.
pub(super) const REGEX: &str = r"^(outbound\|(1194\|\|vpn-seed-server(-[0-4])?|443\|\|kube-apiserver)\..*\.svc\.cluster\.local|shoot--.*--.*--kube-apiserver-socket)$";

pub(super) fn labels(own: &[(&str, &str)]) -> Labels {
    own.iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn entry(name: &str, namespace: &str, own: &[(&str, &str)]) -> GatewayEntry {
    GatewayEntry {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        selector: labels(own),
        ports: Ports {
            tls: 443,
            node: 8443,
            vpn: 8132,
        },
        clients: Vec::new(),
        terminates_tls: false,
    }
}

/// The gateway of Gardener's default.
pub(super) fn one() -> Vec<GatewayEntry> {
    let own = [("app", "istio-ingressgateway"), ("istio", "ingressgateway")];
    vec![entry("default", "istio-ingress", &own)]
}

/// The gateway of the user's document, which lies beside istiod.
pub(super) fn documented() -> Vec<GatewayEntry> {
    vec![entry(
        "default",
        "istio-system",
        &[("istio", "ingressgateway")],
    )]
}

pub(super) fn state(objects: &[Value]) -> ClusterState {
    let mut state = ClusterState::default();
    state.served.insert(Kind::EndpointSlice);
    for object in objects {
        apply(&mut state, object);
    }
    state
}

pub(super) fn apply(state: &mut ClusterState, object: &Value) -> (Kind, ObjectKey) {
    let (name, version) = (&object["kind"], object["apiVersion"].as_str().unwrap());
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| name == kind.name() && group == kind.group())
        .unwrap();
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let key = ObjectKey::of(&object);
    state.apply(kind, object, |_| ()).unwrap();
    (kind, key)
}

pub(super) fn object(api: &str, kind: &str, key: &str, spec: Value) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    let metadata = json!({
        "namespace": namespace,
        "name": name,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    });
    json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})
}

pub(super) fn istio(kind: &str, key: &str, spec: Value) -> Value {
    let version = if kind == "EnvoyFilter" {
        "v1alpha3"
    } else {
        "v1beta1"
    };
    object(&format!("networking.istio.io/{version}"), kind, key, spec)
}

pub(super) fn annotate(mut object: Value, annotations: Value) -> Value {
    object["metadata"]["annotations"] = annotations;
    object
}

/// A Service with TCP ports, `name:port:target`.
pub(super) fn service(key: &str, ports: &[&str]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| service_port(port)).collect();
    let spec = json!({"clusterIP": "100.64.0.7", "selector": {"app": "x"}, "ports": ports});
    object("v1", "Service", key, spec)
}

fn service_port(text: &str) -> Value {
    let mut parts = text.split(':');
    let name = parts.next().unwrap();
    let port: u16 = parts.next().unwrap().parse().unwrap();
    let target: u16 = parts.next().map_or(port, |target| target.parse().unwrap());
    let protocol = if name.starts_with("wg") { "UDP" } else { "TCP" };
    json!({"name": name, "port": port, "targetPort": target, "protocol": protocol})
}

pub(super) fn api_server(namespace: &str) -> Value {
    service(
        &format!("{namespace}/kube-apiserver"),
        &["kube-apiserver:443"],
    )
}

pub(super) fn vpn_server(namespace: &str, name: &str) -> Value {
    let ports = ["openvpn:1194", "http-proxy:9443", "metrics:15000"];
    service(&format!("{namespace}/{name}"), &ports)
}

/// A slice of a Service; addresses are `ip@zone`.
pub(super) fn slice(key: &str, port: &str, addresses: &[&str]) -> Value {
    let (namespace, service) = key.split_once('/').unwrap();
    let endpoints: Vec<Value> = addresses.iter().map(|address| ready(address)).collect();
    let (name, number) = port.split_once(':').unwrap();
    let number: u16 = number.parse().unwrap();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace,
            "name": format!("{service}-abcde"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": endpoints,
        "ports": [{"name": name, "port": number, "protocol": "TCP"}],
    })
}

fn ready(text: &str) -> Value {
    let (ip, zone) = text.split_once('@').unwrap_or((text, "a"));
    json!({"addresses": [ip], "zone": zone, "conditions": {"ready": true}})
}

/// `Gateway` and `VirtualService` of a shoot in passthrough mode.
pub(super) fn passthrough(namespace: &str, hosts: &[&str]) -> [Value; 2] {
    let gateway = json!({
        "selector": {"app": "istio-ingressgateway", "istio": "ingressgateway"},
        "servers": [{
            "hosts": hosts,
            "port": {"name": "tls", "number": 443, "protocol": "TLS"},
            "tls": {"mode": "PASSTHROUGH"},
        }],
    });
    let host = format!("kube-apiserver.{namespace}.svc.cluster.local");
    let service = json!({
        "exportTo": ["istio-ingress"],
        "gateways": ["kube-apiserver"],
        "hosts": hosts,
        "tls": [{
            "match": [{"port": 443, "sniHosts": hosts}],
            "route": [{"destination": {"host": host, "port": {"number": 443}}}],
        }],
    });
    let key = format!("{namespace}/kube-apiserver");
    [
        istio("Gateway", &key, gateway),
        istio("VirtualService", &key, service),
    ]
}

/// `Gateway` and `VirtualService` of a shoot whose TLS ends in the gateway, today's default.
pub(super) fn terminating(namespace: &str, hosts: &[&str]) -> [Value; 2] {
    let gateway = json!({
        "selector": {"app": "istio-ingressgateway", "istio": "ingressgateway"},
        "servers": [{
            "hosts": hosts,
            "port": {"name": "tls", "number": 443, "protocol": "HTTPS"},
            "tls": {
                "mode": "OPTIONAL_MUTUAL",
                "credentialName": format!("{namespace}-kube-apiserver-tls"),
            },
        }],
    });
    let to = |name: &str| {
        let host = format!("{name}.{namespace}.svc.cluster.local");
        json!([{"destination": {"host": host, "port": {"number": 443}}}])
    };
    let service = json!({
        "exportTo": ["istio-ingress"],
        "gateways": ["kube-apiserver"],
        "hosts": hosts,
        "http": [
            {
                "name": "connection-upgrade",
                "match": [{"headers": {"Connection": {"exact": "Upgrade"}, "Upgrade": {}}}],
                "route": to("kube-apiserver-connection-upgrade"),
            },
            {"route": to("kube-apiserver")},
        ],
    });
    let key = format!("{namespace}/kube-apiserver");
    [
        istio("Gateway", &key, gateway),
        istio("VirtualService", &key, service),
    ]
}

/// A `DestinationRule` that one gateway namespace sees.
pub(super) fn rule(key: &str, policy: Value) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    let spec = json!({
        "exportTo": ["istio-ingress"],
        "host": format!("{name}.{namespace}.svc.cluster.local"),
        "trafficPolicy": policy,
    });
    istio("DestinationRule", key, spec)
}

/// The filter for CONNECT requests on a port of the gateway.
pub(super) fn http_proxy(port: u16, header: &str, regex: &str) -> Value {
    let matcher = json!({"name": header, "string_match": {"safe_regex": {"regex": regex}}});
    let redirect = json!({"https_redirect": true, "port_redirect": 443});
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "route_config": {"virtual_hosts": [{
            "domains": ["*"],
            "name": "http-proxy",
            "routes": [
                {
                    "match": {"connect_matcher": {}, "headers": [matcher]},
                    "route": {
                        "cluster_header": header,
                        "upgrade_configs": [{"connect_config": {}, "upgrade_type": "CONNECT"}],
                    },
                },
                {"match": {"connect_matcher": {}}, "redirect": redirect},
                {"match": {"prefix": "/"}, "redirect": redirect},
            ],
        }]},
    });
    let name = "envoy.filters.network.http_connection_manager";
    let spec = json!({
        "workloadSelector": {"labels": {"app": "istio-ingressgateway", "istio": "ingressgateway"}},
        "configPatches": [{
            "applyTo": "NETWORK_FILTER",
            "match": {
                "context": "GATEWAY",
                "listener": {"portNumber": port, "filterChain": {"filter": {"name": name}}},
            },
            "patch": {"operation": "MERGE", "value": {"name": name, "typed_config": config}},
        }],
    });
    istio(
        "EnvoyFilter",
        &format!("istio-ingress/http-proxy-{port}"),
        spec,
    )
}

/// The filter chain of one shoot, as the user's document has it.
pub(super) fn filter_chain(namespace: &str, address: &str) -> Value {
    let cluster = format!("outbound|443||kube-apiserver.{namespace}.svc.cluster.local");
    let spec = json!({
        "workloadSelector": {"labels": {"istio": "ingressgateway"}},
        "configPatches": [{
            "applyTo": "FILTER_CHAIN",
            "match": {
                "context": "ANY",
                "listener": {"portNumber": 8443, "name": "0.0.0.0_8443"},
            },
            "patch": {"operation": "ADD", "value": {
                "filters": [{
                    "name": "envoy.filters.network.tcp_proxy",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                        "stat_prefix": cluster,
                        "cluster": cluster,
                    },
                }],
                "filter_chain_match": {
                    "destination_port": 443,
                    "prefix_ranges": [{"address_prefix": address, "prefix_len": 32}],
                },
            }},
        }],
    });
    istio("EnvoyFilter", &format!("istio-system/{namespace}"), spec)
}

/// What leads into a namespace from the first gateway: `match -> cluster`, sorted.
pub(super) fn routes(
    state: &ClusterState,
    settings: &[GatewayEntry],
    namespace: &str,
) -> Vec<String> {
    of(&group(state, settings, namespace), 0)
}

pub(super) fn of(group: &Group, gateway: usize) -> Vec<String> {
    let all = group.gateways[gateway].routes.iter();
    let mut texts: Vec<String> = all
        .map(|route| format!("{} -> {}", text(&route.spec.matches), route.spec.cluster))
        .collect();
    texts.sort();
    texts
}

pub(super) fn text(matches: &RouteMatch) -> String {
    match matches {
        RouteMatch::ConnectDestinations(values) => format!("connect {}", values.join(" ")),
        RouteMatch::Destinations { prefixes, port } => {
            let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
            format!("destination {} {port:?}", prefixes.join(" "))
        }
        RouteMatch::ServerNames(names) => format!("names {}", names.join(" ")),
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => format!("wireguard {} {route_id:?}", public_keys.len()),
    }
}

/// Problems of a group: `reason kind namespace/name: message`.
pub(super) fn problems(group: &Group) -> Vec<String> {
    let all = group.problems.iter();
    all.map(|one| format!("{} {}: {}", one.reason.as_str(), one.object, one.message))
        .collect()
}

/// How many problems of a reason an object has.
pub(super) fn count(group: &Group, reason: Reason, kind: Kind) -> usize {
    let all = group.problems.iter();
    all.filter(|one| one.reason == reason && one.object.kind == kind)
        .count()
}
