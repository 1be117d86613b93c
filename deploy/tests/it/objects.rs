//! What Gardener and the operator bring: namespaces, the shoot's API server, certificates and keys.

use std::process::Command;

use deploy::Objects;
use serde_json::{Value, json};
use testkit::certs::{Authority, Identity};
use testkit::command;
use testkit::tempdir::TempDir;

use crate::network::NODE;

/// The shoot's namespace in the seed, and the names by which it is reached.
pub(crate) const SHOOT: &str = "shoot--foo--bar";
pub(crate) const API: &str = "api.bar.foo.example.com";
pub(crate) const KONNECTIVITY: &str = "konnectivity.bar.foo.example.com";
pub(crate) const KONNECTIVITY_SIDECAR: &str = "konnectivity-sidecar.bar.foo.example.com";

/// Services whose names are the hosts in API servers' egress selectors.
pub(crate) const KONNECTIVITY_SERVICE: &str = "konnectivity-server";
pub(crate) const VPN_SERVICE: &str = "vpn-seed-server";

/// Where pods of the shoot reach their API server.
pub(crate) const ADVERTISED: &str = "10.1.2.3";

/// Namespaces with Gardener's labels, and in each the policy that denies everything; and the classes of
/// priority that a seed has.
pub(crate) fn namespaces() -> Vec<Value> {
    let mut all = Vec::new();
    for (name, role) in [
        ("garden", ""),
        ("istio-ingress", "istio-ingress"),
        (SHOOT, "shoot"),
    ] {
        let mut labels = json!({ "kubernetes.io/metadata.name": name });
        if !role.is_empty() {
            labels["gardener.cloud/role"] = json!(role);
        }
        all.push(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": labels },
        }));
        all.push(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "deny-all", "namespace": name },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
        }));
    }
    for name in ["gardener-system-critical", "gardener-system-300"] {
        all.push(json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": name }, "value": 1000,
        }));
    }
    all
}

/// What Gardener writes for the shoot's API server, routed by name, and for node proxies by its address.
pub(crate) fn api_server() -> Vec<Value> {
    let host = format!("kube-apiserver.{SHOOT}.svc.cluster.local");
    let meta = json!({ "name": "kube-apiserver", "namespace": SHOOT });
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": meta,
        "spec": {
            "selector": { "app": "kubernetes", "role": "apiserver" },
            "ports": [{ "name": "kube-apiserver", "port": 443, "targetPort": 443, "protocol": "TCP" }],
        },
    });
    let destinations = json!({ "rhizome.gardener.cloud/destinations": ADVERTISED });
    service["metadata"]["annotations"] = destinations;
    let route = json!([{ "destination": { "host": host, "port": { "number": 443 } } }]);
    vec![
        service,
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "Gateway", "metadata": meta,
            "spec": {
                "selector": { "app": "istio-ingressgateway", "istio": "ingressgateway" },
                "servers": [{
                    "hosts": [API], "tls": { "mode": "PASSTHROUGH" },
                    "port": { "number": 443, "name": "tls", "protocol": "TLS" },
                }],
            },
        }),
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "VirtualService", "metadata": meta,
            "spec": {
                "exportTo": ["istio-ingress"], "hosts": [API], "gateways": ["kube-apiserver"],
                "tls": [{ "match": [{ "port": 443, "sniHosts": [API] }], "route": route }],
            },
        }),
    ]
}

/// The Endpoints of a Service, as a cluster's own controller would write them.
pub(crate) fn endpoints(service: &Value, ip: &str) -> Value {
    let ports = service["spec"]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| {
            json!({
                "name": port["name"], "port": port["targetPort"],
                "protocol": port["protocol"].as_str().unwrap_or("TCP"),
            })
        });
    let (name, namespace) = (
        &service["metadata"]["name"],
        &service["metadata"]["namespace"],
    );
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": { "name": name, "namespace": namespace },
        "subsets": [{ "addresses": [{ "ip": ip }], "ports": ports.collect::<Vec<_>>() }],
    })
}

/// Every authority of the operator's.
pub(crate) struct Authorities {
    /// Between gateways and the controller.
    xds: Authority,
    /// Of konnectivity.
    pub(crate) konnectivity: Authority,
    /// Of kubelets.
    pub(crate) kubelets: Authority,
}

impl Authorities {
    pub(crate) fn new() -> Self {
        let new = |name: &str| Authority::new(name).unwrap();
        Self {
            xds: new("xds"),
            konnectivity: new("konnectivity"),
            kubelets: new("kubelets"),
        }
    }

    /// Returns what an API server shows konnectivity's server.
    pub(crate) fn frontend(&self) -> Identity {
        self.frontend_of(SHOOT)
    }

    /// As [`Authorities::frontend`], of another shoot.
    pub(crate) fn frontend_of(&self, shoot: &str) -> Identity {
        let uri = format!("spiffe://example.com/{shoot}/kube-apiserver");
        self.konnectivity
            .client("kube-apiserver", &[], &[&uri])
            .unwrap()
    }

    /// Returns a kubelet's certificate.
    pub(crate) fn kubelet(&self) -> Identity {
        self.kubelets.server(&[NODE]).unwrap()
    }

    /// Returns the Secrets of certificates that the manifests name.
    pub(crate) fn secrets(&self) -> Vec<Value> {
        let mut all = self.of_gateways();
        all.extend(self.of_konnectivity(SHOOT));
        all
    }

    /// Returns those of the gateway and the controller.
    pub(crate) fn of_gateways(&self) -> Vec<Value> {
        let controller = "rhizome-netpol-controller.garden.svc.cluster.local".to_owned();
        let gateway = client(&self.xds, "spiffe://example.com/gateway/default");
        let controller = self.xds.server(&[controller]).unwrap();
        vec![
            tls("istio-ingress/sni-proxy-xds-tls", &self.xds, &gateway),
            tls(
                "garden/rhizome-netpol-controller-xds-tls",
                &self.xds,
                &controller,
            ),
        ]
    }

    /// Returns those of the egress proxy of a shoot, whose server agents reach by one name and API
    /// servers by that of its Service.
    pub(crate) fn of_konnectivity(&self, shoot: &str) -> Vec<Value> {
        let own = &self.konnectivity;
        let agent = client(
            own,
            &format!("spiffe://example.com/{shoot}/konnectivity-agent"),
        );
        let server = own
            .server(&[KONNECTIVITY, KONNECTIVITY_SIDECAR, KONNECTIVITY_SERVICE])
            .unwrap();
        vec![
            tls(&format!("{shoot}/konnectivity-server-tls"), own, &server),
            tls("kube-system/konnectivity-agent-tls", own, &agent),
        ]
    }
}

fn client(authority: &Authority, uri: &str) -> Identity {
    authority.client("", &[], &[uri]).unwrap()
}

fn tls(key: &str, authority: &Authority, identity: &Identity) -> Value {
    let data = json!({
        "ca.crt": authority.pem(), "tls.crt": identity.cert_pem, "tls.key": identity.key_pem,
    });
    secret(key, data)
}

fn secret(key: &str, data: Value) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace }, "stringData": data,
    })
}

/// Runs `vpn-provision` with the parameters that are shipped, and what
/// `change` makes of them, and returns what it writes: Secrets of both ends, and the annotations of
/// the servers' Services.
pub(crate) fn provision(dir: &TempDir, change: impl FnOnce(&mut Value)) -> Vec<Value> {
    let wanted = Objects::read("control-plane/vpn-server/provision.yaml").unwrap();
    let mut wanted = wanted.into_iter().next().unwrap();
    // Nothing claims them here.
    wanted["routeIds"] = json!([17, 18]);
    change(&mut wanted);
    let config = dir.write("provision.yaml", wanted.to_string()).unwrap();
    let out = dir.join("provisioned");
    let mut provision = Command::new(deploy::program("vpn-provision").unwrap());
    provision.arg("--config").arg(config);
    command::run(provision.arg("--out").arg(&out)).unwrap();
    let mut all = Vec::new();
    for side in ["seed", "shoot"] {
        for entry in std::fs::read_dir(out.join(side)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            all.extend(Objects::parse(&text, &path).unwrap());
        }
    }
    all
}
