//! The tunnel into shoot a: `vpn-server` in the seed, `vpn-client` on the node.
//!
//! ```text
//!   seed: curl, API server ─▶ vpn-server :9443 ══ sni-proxy :8132, :51820/udp ══ vpn-client ─▶ pod
//! ```
//!
//! The server has a namespace of its own, as a pod has. The seed's pods have the range of the
//! shoot's pods here, and the server the very address of the pod in shoot a. What is asked through
//! the tunnel is the chapter's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::{Authority, Identity, IdentityFiles};
use testkit::command;
use testkit::http::{Proxy, Target};
use testkit::keys::KeyFile;
use testkit::netns::{Namespace, Place, cable};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use super::gateway::{self, Extra};
use super::process;
use super::shoot::Shoot;
use super::walk::Stage;
use crate::workspace::Programs;

/// Both programs and what they lead to. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) client: ChildGuard,
    pub(super) server: ChildGuard,
    pub(super) credentials: Credentials,
    pub(super) _pod: ApiServer,
    pub(super) place: Namespace,
}

/// Who shows what to the server's proxy, signed by one authority, and who has which key.
#[derive(Debug)]
pub(super) struct Credentials {
    authority: Authority,
    authority_file: PathBuf,
    inside_file: PathBuf,
    api_server: Identity,
    api_server_files: IdentityFiles,
    server_key: KeyFile,
    client_key: KeyFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// A firewall between node and gateway that drops datagrams both ways. Dropping it opens the way.
#[derive(Debug)]
pub(super) struct Firewall {
    open: Vec<Command>,
}

impl Firewall {
    /// Closes the way. Each end drops what arrives there, so that no sender is told.
    pub(super) fn close(seed: &Namespace, node: &Namespace) -> Result<Self> {
        let nft = command::require("nft")?;
        let port = gateway::WIREGUARD.port();
        let mut firewall = Self { open: Vec::new() };
        for (place, which) in [(seed, "dport"), (node, "sport")] {
            let rules = format!(
                "add table inet demo; \
                 add chain inet demo input {{ type filter hook input priority 0; }}; \
                 add rule inet demo input udp {which} {port} drop"
            );
            command::run(Place::In(place).command(&nft).arg(rules))?;
            let mut open = Place::In(place).command(&nft);
            open.arg("delete table inet demo");
            firewall.open.push(open);
        }
        Ok(firewall)
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        for open in &mut self.open {
            // It goes with its namespace at the latest.
            let _ = command::run(open);
        }
    }
}

impl Credentials {
    /// Makes all certificates and keys; `inside` signs what is inside the shoot.
    pub(super) fn write(programs: &Programs, dir: &TempDir, inside: &Authority) -> Result<Self> {
        let authority = Authority::new("tunnel")?;
        let api_server = authority.client("kube-apiserver", &[], &[])?;
        let server = authority.server(&[SERVICE, &SERVER.to_string()])?;
        server.write(dir.path(), "vpn-proxy")?;
        Ok(Self {
            authority_file: authority.write(&dir.join("vpn-proxy-ca.crt"))?,
            inside_file: inside.write(&dir.join("vpn-inside-ca.crt"))?,
            api_server_files: api_server.write(dir.path(), "vpn-api-server")?,
            server_key: KeyFile::generate(programs.get("vpn-server")?, dir.join("vpn-server.key"))?,
            client_key: KeyFile::generate(programs.get("vpn-client")?, dir.join("vpn-client.key"))?,
            authority,
            api_server,
        })
    }

    /// Returns what reaches `addr` in the shoot as an API server would.
    pub(super) fn target(&self, inside: &Authority, addr: SocketAddr) -> Target {
        Target::tls(PROXY, inside.pem()).proxy(Proxy::ConnectTls {
            authority: addr.to_string(),
            server_name: SERVICE.to_owned(),
            authority_pem: self.authority.pem().to_owned(),
            identity: self.api_server.clone(),
        })
    }

    /// Prepares a curl in the seed that takes the server as its proxy, and shows a certificate
    /// there or not.
    pub(super) fn curl(&self, seed: &Namespace, shows: bool) -> Result<Command> {
        let mut curl = Place::In(seed).command(command::require("curl")?);
        curl.args(["--silent", "--show-error", "--max-time", "10"]);
        curl.arg("--proxy").arg(format!("https://{PROXY}"));
        curl.arg("--proxy-cacert").arg(&self.authority_file);
        if shows {
            let files = &self.api_server_files;
            curl.arg("--proxy-cert").arg(&files.cert);
            curl.arg("--proxy-key").arg(&files.key);
        }
        curl.arg("--cacert").arg(&self.inside_file);
        Ok(curl)
    }

    /// Returns what leads through the gateway to the server, by CONNECT and by datagrams.
    pub(super) fn routes(&self, shoot: &Shoot) -> [Extra; 2] {
        let (public, destination) = (&self.server_key.public, destination(shoot));
        let wireguard = json!({ "routeId": ROUTE, "publicKeys": [public] });
        [
            Extra {
                rule: json!({ "connectDestinations": [destination] }),
                cluster: destination,
                endpoints: vec![SocketAddr::new(SERVER, 1194)],
            },
            Extra {
                rule: json!({ "wireguard": wireguard }),
                cluster: "datagrams".to_owned(),
                endpoints: vec![SocketAddr::new(SERVER, 51821)],
            },
        ]
    }

    fn server_config(&self, dir: &TempDir) -> Result<Value> {
        let client = json!({
            "name": "vpn-shoot", "publicKeys": [self.client_key.public], "addresses": [CLIENT_INSIDE],
        });
        let peers = json!({ "peers": [client] });
        dir.write("vpn-peers.yaml", format!("{peers:#}\n"))?;
        Ok(json!({
            "routeId": ROUTE,
            "addresses": [format!("{SERVER_INSIDE}/24")],
            "networks": { "pods": [PODS] },
            "keys": { "private": [self.server_key.path], "peers": "vpn-peers.yaml" },
            "trustedGateways": [format!("{SEED}/32")],
            "proxy": { "ca": self.authority_file, "cert": "vpn-proxy.crt", "key": "vpn-proxy.key" },
            "probes": { "address": Side::Server.probes() },
            "drain": { "delay": "0s", "timeout": "1s" },
            "accessLog": { "format": "json" },
        }))
    }

    fn client_config(&self, shoot: &Shoot) -> Value {
        let server = json!({
            "name": "vpn-seed-server",
            "publicKeys": [self.server_key.public],
            "routeId": ROUTE,
            "value": destination(shoot),
            "addresses": [SERVER_INSIDE],
        });
        json!({
            "device": DEVICE,
            "addresses": [format!("{CLIENT_INSIDE}/24")],
            "endpoint": { "address": gateway::VPN.ip(), "connectTimeout": "1s" },
            "servers": [server],
            "keys": { "private": self.client_key.path },
            "networks": { "pods": [PODS] },
            // Both a third of their defaults or less: a demo should not wait.
            "path": { "dialTimeout": "2s", "retryUdp": "1s" },
            "probes": { "address": Side::Client.probes() },
            "drain": { "delay": "0s", "timeout": "1s" },
        })
    }
}

impl Side {
    fn probes(self) -> SocketAddr {
        let port = match self {
            Self::Client => 16920,
            Self::Server => 15000,
        };
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
    }

    pub(super) fn ready(self, place: &Namespace) -> Result<u16> {
        process::probe(place, self.probes(), "/readyz")
    }

    /// Returns a metric, summed over all series with `labels`; 0 where there is none.
    pub(super) fn metric(
        self,
        place: &Namespace,
        name: &str,
        labels: &[(&str, &str)],
    ) -> Result<f64> {
        process::metric(place, self.probes(), name, labels)
    }

    pub(super) fn uses(self, place: &Namespace, transport: &str) -> bool {
        let labels = [("transport", transport)];
        let uses = self.metric(place, "rhizome_tunnel_peer_transport", &labels);
        uses.is_ok_and(|uses| uses == 1.0)
    }
}

pub(super) fn lay(seed: &Namespace) -> Result<Namespace> {
    let place = Namespace::new("vpn-server")?;
    cable(seed.end("pods0"), place.end("eth0"))?;
    seed.add_address("pods0", &format!("{SEED}/24"))?;
    place.add_address("eth0", &format!("{SERVER}/24"))?;
    Ok(place)
}

/// Starts a web server in the pod, which says who asked.
pub(super) fn start_pod(shoot: &Shoot, pod: &Namespace) -> Result<ApiServer> {
    let identity = shoot.kubelets.server(&[POD.ip().to_string()])?;
    ApiServer::start(Place::In(pod).bind(POD)?, POD_NAME, &identity)
}

/// Starts the server; returns when it runs, which is before it is ready.
pub(super) fn start_server(
    stage: &Stage,
    place: &Namespace,
    credentials: &Credentials,
) -> Result<ChildGuard> {
    let config = credentials.server_config(&stage.dir)?;
    let program = ("vpn-server", stage.programs.get("vpn-server")?);
    let runs = || Side::Server.ready(place).is_ok();
    process::start((place, &stage.dir), program, config, runs)
}

/// Starts the client on the node of shoot a; returns when a probe came back through the tunnel.
pub(super) fn start_client(stage: &Stage, credentials: &Credentials) -> Result<ChildGuard> {
    let config = credentials.client_config(&stage.shoots[0]);
    let node = &stage.network.shoots[0].node;
    let program = ("vpn-client", stage.programs.get("vpn-client")?);
    let ready = || matches!(Side::Client.ready(node), Ok(200));
    process::start((node, &stage.dir), program, config, ready)
}

/// Returns how the client calls its server in the header of its CONNECT.
fn destination(shoot: &Shoot) -> String {
    let namespace = &shoot.technical_id;
    format!("outbound|1194||vpn-seed-server.{namespace}.svc.cluster.local")
}

pub(super) const POD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(100, 96, 0, 10)), 8443);
pub(super) const POD_NAME: &str = "the pod of shoot a";
/// The server's address in the seed, which is the pod's in the shoot.
pub(super) const SERVER: IpAddr = POD.ip();
/// The seed's own address among its pods.
const SEED: IpAddr = IpAddr::V4(Ipv4Addr::new(100, 96, 0, 2));
/// The seed's pods, and the shoot's.
const PODS: &str = "100.96.0.0/24";
/// The Service in front of the server, by whose name API servers ask.
pub(super) const SERVICE: &str = "vpn-seed-server";
/// Where API servers ask for connections.
pub(super) const PROXY: SocketAddr = SocketAddr::new(SERVER, 9443);
pub(super) const SERVER_INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 123, 1));
const CLIENT_INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 123, 64));
pub(super) const DEVICE: &str = "rhizome0";
const ROUTE: u32 = 17;
