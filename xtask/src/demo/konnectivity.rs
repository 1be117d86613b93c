//! The way back into shoot a: `konnectivity-server` in the seed, `konnectivity-agent` on the node,
//! and a kubelet's stand-in that only the node has a route to.
//!
//! ```text
//!   seed: API server ─▶ konnectivity-server ◀─ sni-proxy :443 ◀─ agent ─▶ kubelet :10250   node
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::json;
use testkit::certs::{Authority, Identity, IdentityFiles};
use testkit::http::{self, Target};
use testkit::kubelet::Kubelet;
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use super::gateway;
use super::network::{KONNECTIVITY, NODE};
use super::process;
use super::shoot::Shoot;
use super::walk::Stage;

/// Both programs and the kubelet. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Konnectivity {
    pub(super) agent: ChildGuard,
    pub(super) server: ChildGuard,
    pub(super) _kubelet: Kubelet,
    pub(super) credentials: Credentials,
}

/// Who shows what, all signed by one authority.
#[derive(Debug)]
pub(super) struct Credentials {
    authority: Authority,
    authority_file: PathBuf,
    agent: IdentityFiles,
    frontend: Identity,
    server: IdentityFiles,
}

impl Credentials {
    /// Writes all certificates; the server's is good for `host` and its address.
    pub(super) fn write(dir: &TempDir, host: &str) -> Result<Self> {
        let authority = Authority::new("konnectivity")?;
        let frontend = authority.client("kube-apiserver", &[], &[FRONTEND])?;
        let agent = authority.client("agent", &[], &[AGENT])?;
        let server = authority.server(&[host, SERVICE])?;
        Ok(Self {
            authority_file: authority.write(&dir.join("konnectivity-ca.crt"))?,
            agent: agent.write(dir.path(), "konnectivity-agent")?,
            server: server.write(dir.path(), "konnectivity-server")?,
            authority,
            frontend,
        })
    }

    /// Returns what reaches the kubelet by a CONNECT over mTLS, as an API server would.
    pub(super) fn by_connect(&self, kubelets: &Authority) -> Target {
        Target::tls(FRONTENDS, kubelets.pem()).proxy(http::Proxy::ConnectTls {
            authority: KUBELET.to_string(),
            server_name: SERVICE.to_owned(),
            authority_pem: self.authority.pem().to_owned(),
            identity: self.frontend.clone(),
        })
    }
}

pub(super) fn start_kubelet(shoot: &Shoot, node: &Namespace) -> Result<Kubelet> {
    let identity = shoot.kubelets.server(&[NODE.to_string()])?;
    let listener = Place::In(node).bind(KUBELET)?;
    Kubelet::start(listener, NODE_NAME, &identity)
}

/// Writes the registry's file for shoot a.
pub(super) fn write_registry(
    dir: &TempDir,
    credentials: &Credentials,
    host: &str,
) -> Result<PathBuf> {
    let authority = &credentials.authority_file;
    let cluster = json!({
        "serverNames": [host],
        "agents": { "certificates": { "ca": authority, "identities": [AGENT] } },
        "frontends": {
            "certificates": { "ca": authority, "identities": [FRONTEND] },
            "uds": { "path": dir.join("konnectivity.sock"), "mode": "grpc" },
        },
    });
    dir.write("clusters/a.yaml", format!("{cluster:#}\n"))?;
    Ok(dir.join("clusters"))
}

pub(super) fn start_server(
    stage: &Stage,
    credentials: &Credentials,
    registry: &Path,
) -> Result<ChildGuard> {
    let seed = &stage.network.seed;
    let mut command = Place::In(seed).command(stage.programs.get("konnectivity-server")?);
    let (cert, key) = (&credentials.server.cert, &credentials.server.key);
    for (flag, path) in [
        ("--registry", registry),
        ("--cluster-cert", cert),
        ("--cluster-key", key),
        ("--server-cert", cert),
        ("--server-key", key),
    ] {
        command.arg(flag).arg(path);
    }
    let address = KONNECTIVITY;
    command.args(["--mode=http-connect", "--workers=1"]);
    command.arg(format!("--server-bind-address={address}"));
    command.arg(format!("--agent-bind-address={address}"));
    command.arg(format!("--health-bind-address={address}"));
    let ready = || process::is_ok(seed, PROBES, "/healthz");
    process::spawn(&stage.dir, "konnectivity-server", &command, ready)
}

/// Starts the agent on the node, towards `host` at the gateway; returns when the server has it.
pub(super) fn start_agent(
    stage: &Stage,
    credentials: &Credentials,
    host: &str,
) -> Result<ChildGuard> {
    let node = &stage.network.shoots[0].node;
    // The node has no DNS: its file of hosts names the gateway, in a mount namespace that ends with
    // the agent (`ip netns exec` makes one).
    let text = format!("{} {host}\n", gateway::TLS.ip());
    let hosts = stage.dir.write("hosts", text)?;
    let mut command: Command = Place::In(node).command("sh");
    command.args(["-c", WITH_HOSTS, "sh"]).arg(&hosts);
    command.arg(stage.programs.get("konnectivity-agent")?);
    for (flag, path) in [
        ("--ca-cert", &credentials.authority_file),
        ("--agent-cert", &credentials.agent.cert),
        ("--agent-key", &credentials.agent.key),
    ] {
        command.arg(flag).arg(path);
    }
    command.arg(format!("--proxy-server-host={host}"));
    command.arg(format!("--proxy-server-port={}", gateway::TLS.port()));
    command.arg(format!("--allow-destinations={NODE}/32:{}", KUBELET.port()));
    let ready = || process::is_ok(&stage.network.seed, PROBES, "/readyz/a");
    process::spawn(&stage.dir, "konnectivity-agent", &command, ready)
}

pub(super) fn metric(seed: &Namespace, name: &str) -> Result<f64> {
    process::metric(seed, PROBES, name, &[])
}

pub(super) const NODE_NAME: &str = "node-a";
pub(super) const KUBELET: SocketAddr = SocketAddr::new(NODE, 10250);
/// Where agents come in, and where API servers do by mTLS.
pub(super) const AGENTS: SocketAddr = SocketAddr::new(KONNECTIVITY, 8091);
/// The Service in front of the server, by whose name API servers ask.
pub(super) const SERVICE: &str = "konnectivity-server";
const FRONTENDS: SocketAddr = SocketAddr::new(KONNECTIVITY, 8090);
const PROBES: SocketAddr = SocketAddr::new(KONNECTIVITY, 8092);
const AGENT: &str = "spiffe://example.com/cluster/a/agent";
const FRONTEND: &str = "spiffe://example.com/cluster/a/kube-apiserver";
const WITH_HOSTS: &str = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
