//! What Gardener and the operator bring: namespaces, the shoot's API server, certificates.

use anyhow::Result;
use serde_json::{Value, json};
use testkit::certs::{Authority, Identity};

/// The shoot's namespace in the seed, and the names by which it is reached.
pub const SHOOT: &str = "shoot--foo--bar";
pub const API: &str = "api.bar.foo.example.com";
pub const KONNECTIVITY: &str = "konnectivity.bar.foo.example.com";
pub const KONNECTIVITY_SIDECAR: &str = "konnectivity-sidecar.bar.foo.example.com";

/// Services whose names are the hosts in API servers' egress selectors.
pub const KONNECTIVITY_SERVICE: &str = "konnectivity-server";
pub const VPN_SERVICE: &str = "vpn-seed-server";

/// Where pods of the shoot reach their API server.
pub const ADVERTISED: &str = "10.1.2.3";

/// Namespaces with Gardener's labels, and in each the policy that denies everything; and the classes of
/// priority that a seed has.
pub fn namespaces() -> Vec<Value> {
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
pub fn api_server() -> Vec<Value> {
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

/// Every authority of the operator's.
pub struct Authorities {
    /// Between gateways and the controller.
    xds: Authority,
    /// Of konnectivity.
    pub konnectivity: Authority,
    /// Of kubelets.
    pub kubelets: Authority,
}

impl Authorities {
    pub fn new() -> Result<Self> {
        Ok(Self {
            xds: Authority::new("xds")?,
            konnectivity: Authority::new("konnectivity")?,
            kubelets: Authority::new("kubelets")?,
        })
    }

    /// Returns what an API server shows konnectivity's server.
    pub fn frontend(&self) -> Result<Identity> {
        self.frontend_of(SHOOT)
    }

    /// As [`Authorities::frontend`], of another shoot.
    pub fn frontend_of(&self, shoot: &str) -> Result<Identity> {
        let uri = format!("spiffe://example.com/{shoot}/kube-apiserver");
        self.konnectivity.client("kube-apiserver", &[], &[&uri])
    }

    /// Returns the Secrets of certificates that the manifests name.
    pub fn secrets(&self) -> Result<Vec<Value>> {
        let mut all = self.of_gateways()?;
        all.extend(self.of_konnectivity(SHOOT)?);
        Ok(all)
    }

    /// Returns those of the gateway and the controller.
    pub fn of_gateways(&self) -> Result<Vec<Value>> {
        let controller = "rhizome-netpol-controller.garden.svc.cluster.local";
        let gateway = client(&self.xds, "spiffe://example.com/gateway/default")?;
        let controller = self.xds.server(&[controller])?;
        let name = "rhizome-netpol-controller-xds-tls";
        Ok(vec![
            tls("istio-ingress", "sni-proxy-xds-tls", &self.xds, &gateway),
            tls("garden", name, &self.xds, &controller),
        ])
    }

    /// Returns those of the egress proxy of a shoot, whose server agents reach by one name and API
    /// servers by that of its Service.
    pub fn of_konnectivity(&self, shoot: &str) -> Result<Vec<Value>> {
        let own = &self.konnectivity;
        let uri = format!("spiffe://example.com/{shoot}/konnectivity-agent");
        let agent = client(own, &uri)?;
        let server = own.server(&[KONNECTIVITY, KONNECTIVITY_SIDECAR, KONNECTIVITY_SERVICE])?;
        Ok(vec![
            tls(shoot, "konnectivity-server-tls", own, &server),
            tls("kube-system", "konnectivity-agent-tls", own, &agent),
        ])
    }
}

fn client(authority: &Authority, uri: &str) -> Result<Identity> {
    authority.client("", &[], &[uri])
}

/// Returns a Secret of a certificate and the authority that its peers have theirs from.
pub fn tls(namespace: &str, name: &str, authority: &Authority, identity: &Identity) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace },
        "stringData": {
            "ca.crt": authority.pem(), "tls.crt": identity.cert_pem, "tls.key": identity.key_pem,
        },
    })
}
