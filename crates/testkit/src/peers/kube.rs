//! A real kube-apiserver (v1.20.2) with etcd, for one test.

mod build;
mod egress;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::certs::Authority;
use crate::command;
use crate::http::{Connection, Target};
use crate::netns::Place;
use crate::peers::cache;
use crate::process::ChildGuard;

pub use build::{PROGRAMS, install, install_all};
pub use egress::Egress;

#[derive(Clone, Debug)]
pub struct KubeParams {
    /// Where it listens, and what it advertises; port 0 picks a free one.
    pub address: SocketAddr,
    /// Further names and addresses its certificate is good for; `address` always is.
    pub names: Vec<String>,
    /// The range of its Services; the first address is its own Service's.
    pub services: String,
    /// Names that it resolves beside those of this machine, each with its address.
    pub hosts: Vec<(IpAddr, String)>,
    pub arguments: Vec<String>,
}

impl KubeParams {
    /// Returns the parameters of an API server at `address` that also answers to `names`.
    pub fn new(address: SocketAddr, names: &[&str]) -> Self {
        Self {
            address,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            services: "10.0.0.0/24".to_owned(),
            hosts: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Has it reach kubelets the way that the file `selector` says ([`Egress::write`]), by their
    /// internal addresses, and verify them by the authority in the file `kubelet_authority`.
    pub fn kubelets(mut self, selector: &Path, kubelet_authority: &Path) -> Self {
        let authority = kubelet_authority.display();
        self.arguments.extend([
            format!("--egress-selector-config-file={}", selector.display()),
            format!("--kubelet-certificate-authority={authority}"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
        ]);
        self
    }
}

/// A running API server. Dropping it stops it, then its etcd, within about two seconds.
#[derive(Debug)]
pub struct KubeApiServer {
    server: ChildGuard,
    command: Command,
    /// None where it stands beside another, which has it.
    _etcd: Option<ChildGuard>,
    etcd: SocketAddr,
    addr: SocketAddr,
    authority_pem: String,
}

impl KubeApiServer {
    /// Starts etcd and kube-apiserver with their files in `dir`, signs a certificate, and waits
    /// for `/readyz`.
    pub fn start(place: Place<'_>, dir: &Path, params: &KubeParams) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let (etcd, etcd_addr) = start_etcd(place, dir)?;
        Self::start_with(place, dir, params, Some(etcd), etcd_addr)
    }

    /// Starts another one, with an authority of its own, on this one's etcd; it is to be dropped first.
    pub fn start_beside(&self, place: Place<'_>, dir: &Path, params: &KubeParams) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        Self::start_with(place, dir, params, None, self.etcd)
    }

    fn start_with(
        place: Place<'_>,
        dir: &Path,
        params: &KubeParams,
        etcd: Option<ChildGuard>,
        etcd_addr: SocketAddr,
    ) -> Result<Self> {
        let authority = Authority::new("kube-apiserver-test")?;
        let mut addr = params.address;
        if addr.port() == 0 {
            addr.set_port(place.free_address()?.port());
        }
        let mut command = program(place, dir, &params.hosts)?;
        command.args(arguments(dir, addr, params, &authority)?);
        command.arg(format!("--etcd-servers=http://{etcd_addr}"));
        command.args(&params.arguments);
        let log = dir.join("kube-apiserver.log");
        let mut this = Self {
            server: ChildGuard::spawn("kube-apiserver", &command, &log)?,
            command,
            _etcd: etcd,
            etcd: etcd_addr,
            addr,
            authority_pem: authority.pem().to_owned(),
        };
        this.wait_ready(place)?;
        Ok(this)
    }

    /// Starts it anew, with the same address, certificate and etcd, after it has ended or was
    /// killed, and waits for `/readyz`.
    pub fn start_again(&mut self, place: Place<'_>) -> Result<()> {
        let log = self.server.log_path().to_owned();
        self.server = ChildGuard::spawn("kube-apiserver", &self.command, &log)?;
        self.wait_ready(place)
    }

    fn wait_ready(&mut self, place: Place<'_>) -> Result<()> {
        let target = self.target().timeout(Duration::from_secs(2));
        let ready = || place.is_ok(&target, "/readyz");
        self.server.wait_ready(Duration::from_secs(90), ready)
    }

    /// Returns where its etcd answers HTTP, without TLS.
    pub fn etcd_addr(&self) -> SocketAddr {
        self.etcd
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the authority of its certificate, PEM.
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// Returns the token of a member of `system:masters`.
    pub fn token(&self) -> &'static str {
        TOKEN
    }

    /// Returns a target that reaches it directly, with the token.
    pub fn target(&self) -> Target {
        self.target_at(self.addr)
    }

    /// Returns a target that reaches it by way of `addr`, with the token.
    pub fn target_at(&self, addr: SocketAddr) -> Target {
        Target::tls(addr, &self.authority_pem).bearer(TOKEN)
    }

    /// Writes a kubeconfig whose server is `addr`, by that server name if one is given.
    pub fn write_kubeconfig(
        &self,
        path: &Path,
        addr: SocketAddr,
        server_name: Option<&str>,
    ) -> Result<()> {
        let ca = path.with_extension("ca.crt");
        fs::write(&ca, &self.authority_pem).with_context(|| format!("writing {}", ca.display()))?;
        let mut cluster = serde_json::json!({
            "server": format!("https://{addr}"),
            "certificate-authority": ca,
        });
        if let Some(name) = server_name {
            cluster["tls-server-name"] = name.into();
        }
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "shoot", "cluster": cluster }],
            "users": [{ "name": "admin", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "shoot", "context": { "cluster": "shoot", "user": "admin" } }],
            "current-context": "shoot",
        });
        fs::write(path, format!("{config:#}"))
            .with_context(|| format!("writing {}", path.display()))
    }

    pub fn create_node(&self, place: Place<'_>, name: &str, kubelet: SocketAddr) -> Result<()> {
        let node = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": name },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": kubelet.ip() }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": kubelet.port() } },
            },
        });
        let target = self.target();
        let answer = place.run(|| {
            Connection::open(&target)?.request("POST", "/api/v1/nodes", Some(&node.to_string()))
        })??;
        let (status, text) = (answer.status, answer.text());
        ensure!(status == 201, "creating the node {name}: {status}: {text}");
        Ok(())
    }

    pub fn child(&mut self) -> &mut ChildGuard {
        &mut self.server
    }
}

/// Returns the program: `$KUBEBUILDER_ASSETS/kube-apiserver`, then our own build in the cache.
pub fn binary() -> Result<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    assets
        .map(|assets| assets.join("kube-apiserver"))
        .filter(|path| path.is_file())
        .or_else(|| cache::find(build::FILE))
        .or_else(|| cache::find(build::LAST).map(|path| path.with_file_name("kube-apiserver")))
        .context(
            "kube-apiserver is missing: set KUBEBUILDER_ASSETS, or let `cargo xtask test` build it",
        )
}

/// Prepares the program, in a mount namespace with an `/etc/hosts` of its own where names are given.
fn program(place: Place<'_>, dir: &Path, hosts: &[(IpAddr, String)]) -> Result<Command> {
    let binary = binary()?;
    if hosts.is_empty() {
        return Ok(place.command(binary));
    }
    let mut text = "127.0.0.1 localhost\n".to_owned();
    for (address, name) in hosts {
        text.push_str(&format!("{address} {name}\n"));
    }
    let path = dir.join("hosts");
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    let mut command = place.command(command::require("unshare")?);
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$0\" /etc/hosts && exec \"$@\"");
    command.arg(path).arg(binary);
    Ok(command)
}

fn start_etcd(place: Place<'_>, dir: &Path) -> Result<(ChildGuard, SocketAddr)> {
    let etcd = command::require("etcd")?;
    let addr = place.free_address()?;
    let url = format!("http://{addr}");
    let peer_url = format!("http://{}", place.free_address()?);
    let mut command = place.command(etcd);
    command.arg("--data-dir").arg(dir.join("etcd"));
    for (flag, value) in [
        ("--listen-client-urls", &url),
        ("--advertise-client-urls", &url),
        ("--listen-peer-urls", &peer_url),
        ("--initial-advertise-peer-urls", &peer_url),
        ("--initial-cluster", &format!("default={peer_url}")),
    ] {
        command.args([flag, value]);
    }
    let mut child = ChildGuard::spawn("etcd", &command, &dir.join("etcd.log"))?;
    let target = Target::plain(addr);
    let ready = || place.is_ok(&target, "/health");
    child.wait_ready(Duration::from_secs(30), ready)?;
    Ok((child, addr))
}

fn arguments(
    dir: &Path,
    addr: SocketAddr,
    params: &KubeParams,
    authority: &Authority,
) -> Result<Vec<String>> {
    let mut names = params.names.clone();
    names.push(addr.ip().to_string());
    let files = authority.server(&names)?.write(dir, "kube-apiserver")?;
    // Any key will do to sign service accounts' tokens.
    let account = authority.client("service-accounts", &[], &[])?;
    let account = account.write(dir, "accounts")?;
    let tokens = dir.join("tokens.csv");
    fs::write(&tokens, format!("{TOKEN},admin,admin,\"system:masters\"\n"))
        .with_context(|| format!("writing {}", tokens.display()))?;
    let show = |path: &Path| path.display().to_string();
    Ok(vec![
        format!("--bind-address={}", addr.ip()),
        format!("--advertise-address={}", addr.ip()),
        format!("--secure-port={}", addr.port()),
        format!("--tls-cert-file={}", show(&files.cert)),
        format!("--tls-private-key-file={}", show(&files.key)),
        format!("--cert-dir={}", show(dir)),
        format!("--token-auth-file={}", show(&tokens)),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", show(&account.cert)),
        format!("--service-account-signing-key-file={}", show(&account.key)),
        format!("--service-cluster-ip-range={}", params.services),
        "--authorization-mode=RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ])
}

const TOKEN: &str = "admin-token-of-a-test";
