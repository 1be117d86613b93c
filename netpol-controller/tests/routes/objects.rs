//! Objects as Gardener and the users' documents write them.
//!
//! | shoot | led to by | address of its endpoint |
//! |---|---|---|
//! | a | Istio's passthrough; CONNECT by today's filters, its VPN server too | 10.99.0.1 |
//! | b | the same, and the filter chain of the user's document | 10.99.0.2 |
//! | c | today's default: TLS ends in the gateway | 10.99.0.3 |
//! | d | annotations of its Service | 10.99.0.4 |
//! | e | a `TLSRoute` | 10.99.0.5 |
//! | f | as a, without endpoints | |

use serde_json::{Value, json};

/// The port of the endpoints.
pub(crate) const PORT: u16 = 6443;

/// Node proxies' destination of shoot b.
pub(crate) const CLUSTER_IP: &str = "10.1.2.3";

const GATEWAY: &str = "istio-ingress";

/// What today's filters let a CONNECT header say.
const REGEX: &str = r"^(outbound\|(1194\|\|vpn-seed-server(-[0-4])?|443\|\|kube-apiserver)\..*\.svc\.cluster\.local|shoot--.*--.*--kube-apiserver-socket)$";

pub(crate) fn namespace_of(shoot: &str) -> String {
    format!("shoot--foo--{shoot}")
}

/// The address of a shoot's endpoint.
pub(crate) fn ip_of(shoot: &str) -> String {
    let place = shoot.as_bytes()[0] - b'a' + 1;
    format!("10.99.0.{place}")
}

pub(crate) fn name_of(shoot: &str) -> String {
    format!("api.{shoot}.example.com")
}

/// The name of the cluster of a port of a shoot's Service.
pub(crate) fn cluster_of(shoot: &str, service: &str, port: u16) -> String {
    let namespace = namespace_of(shoot);
    format!("outbound|{port}||{service}.{namespace}.svc.cluster.local")
}

/// The definitions of the kinds that are used, without a schema.
pub(crate) fn definitions() -> Vec<Value> {
    [
        ("networking.istio.io", "v1beta1", "Gateway", "gateways"),
        (
            "networking.istio.io",
            "v1beta1",
            "VirtualService",
            "virtualservices",
        ),
        (
            "networking.istio.io",
            "v1beta1",
            "DestinationRule",
            "destinationrules",
        ),
        (
            "networking.istio.io",
            "v1alpha3",
            "EnvoyFilter",
            "envoyfilters",
        ),
        ("gateway.networking.k8s.io", "v1", "Gateway", "gateways"),
        (
            "gateway.networking.k8s.io",
            "v1alpha2",
            "TLSRoute",
            "tlsroutes",
        ),
    ]
    .map(|(group, version, kind, plural)| definition(group, version, kind, plural))
    .into()
}

fn definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            // Groups below k8s.io want to know who agreed.
            "annotations": { "api-approved.kubernetes.io": "unapproved, for a test" },
        },
        "spec": {
            "group": group,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "scope": "Namespaced",
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": any },
            }],
        },
    })
}

/// Everything that there is at first.
pub(crate) fn all() -> Vec<Value> {
    let mut all: Vec<Value> = ["istio-system", GATEWAY, "istio-ingress--other"]
        .map(namespace)
        .into();
    all.extend(node_listener());
    all.push(http_proxy(8443, "X-Gardener-Destination"));
    all.push(http_proxy(8132, "Reversed-VPN"));
    all.extend(shoot("a"));
    all.extend(service(
        "a",
        "vpn-seed-server",
        ("openvpn", 1194),
        Some("a"),
    ));
    all.extend(shoot("b"));
    all.push(filter_chain("b", CLUSTER_IP));
    all.extend(terminating("c"));
    all.extend(annotated("d"));
    all.extend(tls_route("e"));
    all.extend(without_endpoints("f"));
    all
}

pub(crate) fn namespace(name: &str) -> Value {
    object("v1", "Namespace", name, json!({}))
}

fn object(api: &str, kind: &str, key: &str, spec: Value) -> Value {
    let metadata = match key.split_once('/') {
        Some((namespace, name)) => json!({ "namespace": namespace, "name": name }),
        None => json!({ "name": key }),
    };
    let mut object = json!({ "apiVersion": api, "kind": kind, "metadata": metadata });
    if spec != json!({}) {
        object["spec"] = spec;
    }
    object
}

fn istio(kind: &str, key: &str, spec: Value) -> Value {
    let version = if kind == "EnvoyFilter" {
        "v1alpha3"
    } else {
        "v1beta1"
    };
    object(&format!("networking.istio.io/{version}"), kind, key, spec)
}

fn pods() -> Value {
    json!({ "app": "istio-ingressgateway", "istio": "ingressgateway" })
}

/// A Service with its endpoint, that of `backend`.
fn service(shoot: &str, name: &str, port: (&str, u16), backend: Option<&str>) -> Vec<Value> {
    let key = format!("{}/{name}", namespace_of(shoot));
    let ports = json!([{ "name": port.0, "port": port.1, "targetPort": PORT }]);
    let service = object("v1", "Service", &key, json!({ "ports": ports }));
    let endpoints = backend.map(|backend| endpoints(shoot, name, port.0, &[&ip_of(backend)]));
    [Some(service), endpoints].into_iter().flatten().collect()
}

fn endpoints(shoot: &str, name: &str, port: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
    let mut object = object(
        "v1",
        "Endpoints",
        &format!("{}/{name}", namespace_of(shoot)),
        json!({}),
    );
    object["subsets"] = json!([{
        "addresses": addresses,
        "ports": [{ "name": port, "port": PORT }],
    }]);
    object
}

/// The Endpoints of a shoot's API server.
pub(crate) fn api_endpoints(shoot: &str, addresses: &[&str]) -> Value {
    endpoints(shoot, "kube-apiserver", "kube-apiserver", addresses)
}

fn api_server(shoot: &str, backend: Option<&str>) -> Vec<Value> {
    let mut all = vec![namespace(&namespace_of(shoot))];
    all.extend(service(
        shoot,
        "kube-apiserver",
        ("kube-apiserver", 443),
        backend,
    ));
    all
}

/// A shoot in passthrough mode.
pub(crate) fn shoot(shoot: &str) -> Vec<Value> {
    let mut all = api_server(shoot, Some(shoot));
    all.extend(passthrough(shoot));
    all
}

fn without_endpoints(shoot: &str) -> Vec<Value> {
    let mut all = api_server(shoot, None);
    all.extend(passthrough(shoot));
    all
}

fn passthrough(shoot: &str) -> [Value; 3] {
    let hosts = [
        name_of(shoot),
        format!("api.{shoot}.internal.example.com"),
        format!("*.{shoot}.wild.example.com"),
    ];
    let server = json!({
        "hosts": hosts,
        "port": { "name": "tls", "number": 443, "protocol": "TLS" },
        "tls": { "mode": "PASSTHROUGH" },
    });
    let route = json!([{ "destination": destination(shoot, "kube-apiserver") }]);
    let rules = json!([{ "match": [{ "port": 443, "sniHosts": hosts }], "route": route }]);
    [
        gateway(shoot, &server),
        virtual_service(shoot, &hosts, "tls", rules),
        destination_rule(shoot),
    ]
}

fn gateway(shoot: &str, server: &Value) -> Value {
    let key = format!("{}/kube-apiserver", namespace_of(shoot));
    istio(
        "Gateway",
        &key,
        json!({ "selector": pods(), "servers": [server] }),
    )
}

fn virtual_service(shoot: &str, hosts: &[String], kind: &str, rules: Value) -> Value {
    let key = format!("{}/kube-apiserver", namespace_of(shoot));
    let mut spec = json!({
        "exportTo": [GATEWAY],
        "gateways": ["kube-apiserver"],
        "hosts": hosts,
    });
    spec[kind] = rules;
    istio("VirtualService", &key, spec)
}

fn destination(shoot: &str, service: &str) -> Value {
    let host = format!("{service}.{}.svc.cluster.local", namespace_of(shoot));
    json!({ "host": host, "port": { "number": 443 } })
}

fn destination_rule(shoot: &str) -> Value {
    let namespace = namespace_of(shoot);
    let zones = json!({ "enabled": true, "failoverPriority": ["topology.kubernetes.io/zone"] });
    let tcp = json!({
        "maxConnectionDuration": "86400s",
        "tcpKeepalive": { "time": "7200s", "interval": "75s" },
    });
    let spec = json!({
        "exportTo": [GATEWAY],
        "host": format!("kube-apiserver.{namespace}.svc.cluster.local"),
        "trafficPolicy": {
            "connectionPool": { "tcp": tcp },
            "loadBalancer": { "localityLbSetting": zones },
            "outlierDetection": { "minHealthPercent": 0 },
            "tls": { "mode": "DISABLE" },
        },
    });
    istio(
        "DestinationRule",
        &format!("{namespace}/kube-apiserver"),
        spec,
    )
}

/// A shoot whose TLS ends in the gateway, where that is Envoy under istiod.
pub(crate) fn terminating(shoot: &str) -> Vec<Value> {
    let hosts = [name_of(shoot)];
    let namespace = namespace_of(shoot);
    let server = json!({
        "hosts": hosts,
        "port": { "name": "tls", "number": 443, "protocol": "HTTPS" },
        "tls": {
            "mode": "OPTIONAL_MUTUAL",
            "credentialName": format!("{namespace}-kube-apiserver-tls"),
        },
    });
    let to = |service: &str| json!([{ "destination": destination(shoot, service) }]);
    let upgrade = json!([{ "headers": { "Connection": { "exact": "Upgrade" }, "Upgrade": {} } }]);
    let rules = json!([
        {
            "name": "connection-upgrade",
            "match": upgrade,
            "route": to("kube-apiserver-connection-upgrade"),
        },
        { "route": to("kube-apiserver") },
    ]);
    let mut all = api_server(shoot, Some(shoot));
    for side in ["kube-apiserver-mtls", "kube-apiserver-connection-upgrade"] {
        all.extend(service(shoot, side, ("kube-apiserver", 443), Some(shoot)));
    }
    all.push(gateway(shoot, &server));
    all.push(virtual_service(shoot, &hosts, "http", rules));
    all.push(socket(shoot));
    all
}

/// The inner listener that ends TLS of node proxies' connections, and the cluster before it.
fn socket(shoot: &str) -> Value {
    let namespace = namespace_of(shoot);
    let pipe = json!({ "pipe": { "path": format!("@kube-apiservers/{namespace}") } });
    let name = format!("{namespace}--kube-apiserver-socket");
    let cluster = json!({ "name": name, "connect_timeout": "10s", "type": "STATIC" });
    let listener = json!({ "name": name, "address": pipe });
    let add = |kind: &str, value: Value| {
        json!({
            "applyTo": kind,
            "match": { "context": "GATEWAY" },
            "patch": { "operation": "ADD", "value": value },
        })
    };
    let patches = json!([add("LISTENER", listener), add("CLUSTER", cluster)]);
    let spec = json!({ "workloadSelector": { "labels": pods() }, "configPatches": patches });
    istio(
        "EnvoyFilter",
        &format!("{GATEWAY}/{namespace}-apiserver-proxy"),
        spec,
    )
}

/// A shoot that asks for its routes itself.
fn annotated(shoot: &str) -> Vec<Value> {
    let mut all = api_server(shoot, Some(shoot));
    all[1]["metadata"]["annotations"] = json!({
        "rhizome.gardener.cloud/server-names": format!("{},*.{shoot}.own.example.com", name_of(shoot)),
        "rhizome.gardener.cloud/destinations": "10.1.2.4:443,fd00:10::/64,10.7.0.0/16",
        "rhizome.gardener.cloud/connect-destination": "any-word",
    });
    all
}

fn tls_route(shoot: &str) -> Vec<Value> {
    let listener = json!({
        "name": "tls",
        "port": 443,
        "protocol": "TLS",
        "hostname": "*.example.com",
        "tls": { "mode": "Passthrough" },
        "allowedRoutes": { "namespaces": { "from": "All" } },
    });
    let gateway = json!({ "gatewayClassName": "rhizome", "listeners": [listener] });
    let route = json!({
        "parentRefs": [{ "namespace": GATEWAY, "name": "gateway" }],
        "hostnames": [name_of(shoot)],
        "rules": [{ "backendRefs": [{ "name": "kube-apiserver", "port": 443 }] }],
    });
    let mut all = api_server(shoot, Some(shoot));
    let key = format!("{GATEWAY}/gateway");
    all.push(object(
        "gateway.networking.k8s.io/v1",
        "Gateway",
        &key,
        gateway,
    ));
    let key = format!("{}/kube-apiserver", namespace_of(shoot));
    all.push(object(
        "gateway.networking.k8s.io/v1alpha2",
        "TLSRoute",
        &key,
        route,
    ));
    all
}

/// The listener for node proxies of the user's document.
fn node_listener() -> [Value; 3] {
    let server = json!({
        "hosts": ["*"],
        "port": { "name": "tcp", "number": 8443, "protocol": "TCP" },
    });
    let nowhere = json!({ "host": "localhost", "port": { "number": 9999 } });
    let rule = json!({
        "match": [{ "port": 8443 }],
        "route": [{ "destination": nowhere }],
    });
    let selector = json!({ "istio": "ingressgateway" });
    let value = json!({
        "listener_filters": [{ "name": "envoy.filters.listener.proxy_protocol" }],
    });
    let patch = json!({
        "applyTo": "LISTENER",
        "match": { "context": "ANY", "listener": listener(8443) },
        "patch": { "operation": "MERGE", "value": value },
    });
    let blackhole = "istio-system/blackhole";
    [
        istio(
            "Gateway",
            blackhole,
            json!({ "selector": selector, "servers": [server] }),
        ),
        istio(
            "VirtualService",
            blackhole,
            json!({ "hosts": ["blackhole.local"], "gateways": ["blackhole"], "tcp": [rule] }),
        ),
        istio(
            "EnvoyFilter",
            "istio-system/proxy-protocol",
            json!({ "workloadSelector": { "labels": selector }, "configPatches": [patch] }),
        ),
    ]
}

fn listener(port: u16) -> Value {
    json!({ "portNumber": port, "name": format!("0.0.0.0_{port}") })
}

/// The filter chain of one shoot in the user's document.
fn filter_chain(shoot: &str, address: &str) -> Value {
    let cluster = cluster_of(shoot, "kube-apiserver", 443);
    let kind = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
    let proxy = json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": format!("type.googleapis.com/{kind}"),
            "stat_prefix": cluster,
            "cluster": cluster,
        },
    });
    let matches = json!({
        "destination_port": 443,
        "prefix_ranges": [{ "address_prefix": address, "prefix_len": 32 }],
    });
    let patch = json!({
        "applyTo": "FILTER_CHAIN",
        "match": { "context": "ANY", "listener": listener(8443) },
        "patch": {
            "operation": "ADD",
            "value": { "filters": [proxy], "filter_chain_match": matches },
        },
    });
    let spec = json!({
        "workloadSelector": { "labels": { "istio": "ingressgateway" } },
        "configPatches": [patch],
    });
    istio(
        "EnvoyFilter",
        &format!("istio-system/{}", namespace_of(shoot)),
        spec,
    )
}

/// Today's filter for CONNECT requests on a port.
fn http_proxy(port: u16, header: &str) -> Value {
    let matcher = json!({ "name": header, "string_match": { "safe_regex": { "regex": REGEX } } });
    let redirect = json!({ "https_redirect": true, "port_redirect": 443 });
    let tunnel = json!({
        "cluster_header": header,
        "upgrade_configs": [{ "connect_config": {}, "upgrade_type": "CONNECT" }],
    });
    let routes = json!([
        { "match": { "connect_matcher": {}, "headers": [matcher] }, "route": tunnel },
        { "match": { "connect_matcher": {} }, "redirect": redirect },
        { "match": { "prefix": "/" }, "redirect": redirect },
    ]);
    let kind = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let hosts = json!([{ "name": "http-proxy", "domains": ["*"], "routes": routes }]);
    let config = json!({
        "@type": format!("type.googleapis.com/{kind}"),
        "route_config": { "virtual_hosts": hosts },
    });
    let name = "envoy.filters.network.http_connection_manager";
    let filter = json!({ "portNumber": port, "filterChain": { "filter": { "name": name } } });
    let patch = json!({
        "applyTo": "NETWORK_FILTER",
        "match": { "context": "GATEWAY", "listener": filter },
        "patch": {
            "operation": "MERGE",
            "value": { "name": name, "typed_config": config },
        },
    });
    let spec = json!({ "workloadSelector": { "labels": pods() }, "configPatches": [patch] });
    istio("EnvoyFilter", &format!("{GATEWAY}/http-proxy-{port}"), spec)
}
