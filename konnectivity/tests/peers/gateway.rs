//! The agent comes through `sni-proxy`, as from a shoot to a seed, to a server for many clusters.
//!
//! ```text
//!   kube-apiserver ─ socket ─▶ konnectivity-server --registry ◀─ sni-proxy ◀─ SNI ─ agent
//! ```
//!
//! In the field the gateway has port 443; a test takes any.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use testkit::command;
use testkit::peers::kube::Egress;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use crate::pair::{self, AGENT, Certificates, LIMIT, Pair, free, show};
use crate::stage::Cluster;

/// Of a zone that every resolver leads to loopback (RFC 6761 section 6.3).
const NAME: &str = "konnectivity.a.localhost";

#[test]
fn agent_passes_gateway_by_server_name() {
    let dir = TempDir::new("kn-peers").unwrap();
    let certificates = Certificates::write(&dir, &[NAME]);
    let agents = free();
    let socket = dir.join("kn.sock");
    let registry = register(&dir, &certificates, &socket);
    let arguments = [
        registry,
        "--server-port=0".to_owned(),
        "--workers=1".to_owned(),
    ];
    let server = pair::server(&dir, &certificates, agents, &arguments);
    let (gateway, front) = gateway(&dir, agents);
    let mut agent = pair::agent(&dir, &certificates, NAME, front.port());
    agent.wait_ready();
    let cluster = Cluster::start(&dir, &Egress::HttpConnectUds(socket));
    assert_eq!(cluster.get("healthz").text(), "ok");
    Pair { agent, server }.wait_idle();
    // Without the gateway there is no way, so it was there.
    drop(gateway);
    testkit::wait::until("the way to be gone", LIMIT, || !cluster.is_healthy()).unwrap();
}

/// Writes the registry's one file, and returns the flag that names the directory.
fn register(dir: &TempDir, certificates: &Certificates, socket: &Path) -> String {
    let clusters = dir.join("clusters");
    std::fs::create_dir(&clusters).unwrap();
    let cluster = json!({
        "serverNames": [NAME],
        "agents": { "certificates": { "ca": certificates.authority, "identities": [AGENT] } },
        "frontends": { "uds": { "path": socket, "mode": "http-connect" } },
    });
    std::fs::write(clusters.join("a.yaml"), format!("{cluster:#}")).unwrap();
    show("registry", &clusters)
}

/// Starts the gateway and returns where it takes TLS.
fn gateway(dir: &TempDir, agents: SocketAddr) -> (ChildGuard, SocketAddr) {
    let front = free();
    let routes = json!({
        "clusters": [{ "name": "kn", "endpoints": [{ "address": agents }] }],
        "routes": [{ "serverNames": [NAME], "cluster": "kn" }],
    });
    dir.write("routes.yaml", routes.to_string()).unwrap();
    let config = json!({
        "workers": 1,
        "probes": { "address": "127.0.0.1:0" },
        "admin": { "address": "" },
        "listeners": [{ "name": "tls", "address": front, "protocol": "tls" }],
        "routing": { "file": "routes.yaml" },
        "drain": { "delay": "0s", "timeout": "0s" },
    });
    let config = dir.write("gateway.yaml", config.to_string()).unwrap();
    let binary = command::sibling(
        env!("CARGO_BIN_EXE_konnectivity-server"),
        "sni-proxy",
        "sni-proxy",
    )
    .unwrap();
    let mut command = Command::new(binary);
    command.arg("--config").arg(config);
    let log = dir.join("gateway.log");
    let mut child = ChildGuard::spawn("sni-proxy", &command, &log).unwrap();
    child.wait_listening(front, LIMIT).unwrap();
    (child, front)
}
