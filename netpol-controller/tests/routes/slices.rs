//! EndpointSlices of `discovery.k8s.io/v1`, which newer API servers serve, up to a gateway's endpoints.

use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::netns::Place;
use testkit::ports;
use testkit::tempdir::TempDir;
use testkit::{command, wait};

use crate::fake_api::FakeApi;
use crate::program::{LIMIT, Program};

const NAMESPACE: &str = "shoot--foo--a";

/// A controller that watches a fake API server, and a gateway that it feeds.
struct Stage {
    api: FakeApi,
    _controller: Program,
    gateway: Program,
    _dir: TempDir,
}

impl Stage {
    fn start(api: FakeApi) -> Self {
        let dir = TempDir::new("slices").unwrap();
        let authority = Authority::new("slices").unwrap();
        authority.write(&dir.join("ca.crt")).unwrap();
        let identity = authority.server(&["127.0.0.1"]).unwrap();
        identity.write(dir.path(), "controller").unwrap();
        let uri = "spiffe://example.com/gateway/default";
        let identity = authority.client("gateway", &[], &[uri]).unwrap();
        let own = identity.write(dir.path(), "gateway").unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", api.addr) } }],
            "users": [{ "name": "c", "user": { "token": "t" } }],
        });
        dir.write("kubeconfig", kubeconfig.to_string()).unwrap();
        let xds = format!("127.0.0.1:{}", ports::free(1).unwrap()[0]);
        let gateways = [json!({
            "name": "default", "namespace": "istio-ingress", "clients": [uri],
            "selector": { "istio": "ingressgateway" },
        })];
        let config = json!({
            "kubeconfig": "kubeconfig", "leaderElection": { "enabled": false },
            "probes": { "address": "127.0.0.1:0" }, "admin": { "address": "127.0.0.1:0" },
            "controllers": {
                "networkPolicy": { "enabled": false },
                "routing": { "enabled": true, "gateways": gateways, "xds": {
                    "address": xds, "ca": "ca.crt", "cert": "controller.crt", "key": "controller.key",
                } },
            },
        });
        let binary = env!("CARGO_BIN_EXE_netpol-controller").as_ref();
        let start = |name: &str, binary, config: &Value| {
            let mut program = Program::start(Place::Here, dir.path(), name, binary, config);
            program.wait_ready();
            program
        };
        let controller = start("controller", binary, &config);
        let config = json!({
            "workers": 1,
            "probes": { "address": "127.0.0.1:0" }, "admin": { "address": "127.0.0.1:0" },
            "listeners": [{ "name": "tls", "address": "127.0.0.1:0", "protocol": "tls" }],
            "routing": { "xds": {
                "server": format!("https://{xds}"), "ca": dir.join("ca.crt"),
                "cert": own.cert, "key": own.key, "node": "gateway-0", "gateway": "default",
            } },
            "drain": { "delay": "0s", "timeout": "0s" },
        });
        let binary = command::sibling(
            env!("CARGO_BIN_EXE_netpol-controller"),
            "sni-proxy",
            "sni-proxy",
        )
        .unwrap();
        let gateway = start("gateway", &binary, &config);
        Self {
            api,
            _controller: controller,
            gateway,
            _dir: dir,
        }
    }

    /// Waits until the gateway has these endpoints, each an address with its zone.
    fn wait_endpoints(&self, wanted: &[(&str, Option<&str>)]) {
        let found = || {
            let snapshot = self.gateway.snapshot();
            let endpoints = snapshot["clusters"][0]["endpoints"].as_array().cloned();
            let endpoints = endpoints.into_iter().flatten().map(|endpoint| {
                let zone = endpoint["zone"].as_str().unwrap_or_default();
                format!("{} {zone}", endpoint["address"].as_str().unwrap())
            });
            let mut all: Vec<String> = endpoints.collect();
            all.sort();
            all
        };
        let wanted: Vec<String> = (wanted.iter())
            .map(|(address, zone)| format!("{address}:6443 {}", zone.unwrap_or_default()))
            .collect();
        let there = wait::until("the gateway's endpoints", LIMIT, || found() == wanted);
        assert!(there.is_ok(), "{:?} instead of {wanted:?}", found());
    }
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kube-apiserver", "namespace": NAMESPACE, "uid": "5e9f",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { "rhizome.gardener.cloud/server-names": "a.example.com" },
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443 }],
            "selector": { "role": "apiserver" },
        },
    })
}

/// An endpoint with its conditions: ready, serving, terminating.
fn endpoint(address: &str, zone: &str, [ready, serving, terminating]: [bool; 3]) -> Value {
    json!({
        "addresses": [address],
        "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
        "targetRef": { "kind": "Pod", "namespace": NAMESPACE, "name": "kube-apiserver-0", "uid": "1" },
        "nodeName": "node-0", "zone": zone,
        "hints": { "forZones": [{ "name": zone }], "forNodes": [{ "name": "node-0" }] },
    })
}

fn slice(name: &str, address_type: &str, endpoints: Value) -> Value {
    let ports = if endpoints.is_null() {
        Value::Null
    } else {
        json!([{ "name": "https", "port": 6443, "protocol": "TCP", "appProtocol": null }])
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "generateName": "kube-apiserver-", "namespace": NAMESPACE,
            "labels": {
                "kubernetes.io/service-name": "kube-apiserver",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": "kube-apiserver", "uid": "5e9f",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": address_type, "endpoints": endpoints, "ports": ports,
    })
}

fn endpoints(addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = (addresses.iter())
        .map(|ip| json!({ "ip": ip, "nodeName": "node-0" }))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": { "name": "kube-apiserver", "namespace": NAMESPACE },
        "subsets": [{
            "addresses": addresses,
            "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }],
        }],
    })
}

const READY: [bool; 3] = [true, true, false];

#[test]
fn slices_of_version_one_are_followed() {
    let api = FakeApi::start(&["v1", "v1beta1"]);
    api.put("services", service());
    // Endpoints are there too, of fewer addresses, and not looked at.
    api.put("endpoints", endpoints(&["10.9.9.9"]));
    let first = json!([
        endpoint("10.1.0.1", "a", READY),
        endpoint("10.1.0.2", "b", [false, false, false]),
        // What is absent means yes.
        { "addresses": ["10.1.0.3"], "conditions": {}, "zone": "a" },
        { "addresses": ["10.1.0.4"] },
    ]);
    api.put("endpointslices", slice("kube-apiserver-1", "IPv4", first));
    api.put(
        "endpointslices",
        slice("kube-apiserver-empty", "IPv4", Value::Null),
    );
    let names = json!([{ "addresses": ["not.an.address"], "conditions": { "ready": true } }]);
    api.put(
        "endpointslices",
        slice("kube-apiserver-names", "FQDN", names),
    );
    let stage = Stage::start(api);
    let rest = [("10.1.0.3", Some("a")), ("10.1.0.4", None)];
    stage.wait_endpoints(&[&[("10.1.0.1", Some("a"))], &rest[..]].concat());

    // A pod becomes ready, another ends and still serves: only the others are dialed.
    let changed = json!([
        endpoint("10.1.0.1", "a", [false, true, true]),
        endpoint("10.1.0.2", "b", READY),
    ]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-1", "IPv4", changed));
    stage.wait_endpoints(&[("10.1.0.2", Some("b"))]);

    // A second slice; the addresses of the other family are not its Service's first.
    let more = json!([endpoint("10.1.0.5", "c", READY)]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-2", "IPv4", more));
    let sixth = json!([endpoint("fd00::6", "c", READY)]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-3", "IPv6", sixth));
    stage.wait_endpoints(&[("10.1.0.2", Some("b")), ("10.1.0.5", Some("c"))]);

    // What is deleted while the watch is broken is missing in the next list.
    stage
        .api
        .delete("endpointslices", NAMESPACE, "kube-apiserver-2");
    stage.api.compact();
    stage.wait_endpoints(&[("10.1.0.2", Some("b"))]);

    // None but one that ends: it serves on until it is gone.
    let last = json!([endpoint("10.1.0.1", "a", [false, true, true])]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-1", "IPv4", last));
    stage
        .api
        .delete("endpointslices", NAMESPACE, "kube-apiserver-3");
    stage.wait_endpoints(&[("10.1.0.1", Some("a"))]);
    let gone = json!([endpoint("10.1.0.1", "a", [false, false, true])]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-1", "IPv4", gone));
    stage.wait_endpoints(&[]);
    let back = json!([endpoint("10.1.0.7", "a", READY)]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-1", "IPv4", back));
    stage.wait_endpoints(&[("10.1.0.7", Some("a"))]);
    stage
        .api
        .delete("endpointslices", NAMESPACE, "kube-apiserver-1");
    stage.wait_endpoints(&[]);
}

#[test]
fn upgraded_api_server_is_followed_by_slices() {
    let api = FakeApi::start(&["v1beta1"]);
    api.put("services", service());
    api.put("endpoints", endpoints(&["10.1.0.1"]));
    let slices = json!([endpoint("10.1.0.1", "a", READY)]);
    api.put("endpointslices", slice("kube-apiserver-1", "IPv4", slices));
    let stage = Stage::start(api);
    // Older than v1: Endpoints, which know no zones.
    stage.wait_endpoints(&[("10.1.0.1", None)]);
    stage.api.set_slice_versions(&["v1", "v1beta1"]);
    stage.wait_endpoints(&[("10.1.0.1", Some("a"))]);
    // From now on Endpoints say nothing.
    stage.api.put("endpoints", endpoints(&["10.1.0.2"]));
    let slices = json!([endpoint("10.1.0.3", "a", READY)]);
    stage
        .api
        .put("endpointslices", slice("kube-apiserver-1", "IPv4", slices));
    stage.wait_endpoints(&[("10.1.0.3", Some("a"))]);
}
