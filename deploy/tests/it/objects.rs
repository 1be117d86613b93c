//! What Gardener and the operator bring, as far as it is the tests' alone: Endpoints, tunnels' keys.

use std::process::Command;

use deploy::Objects;
use serde_json::{Value, json};
use testkit::command;
use testkit::tempdir::TempDir;

pub(crate) use deploy::gardener::{
    ADVERTISED, API, Authorities, KONNECTIVITY, KONNECTIVITY_SERVICE, KONNECTIVITY_SIDECAR, SHOOT,
    VPN_SERVICE, api_server, namespaces,
};

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
