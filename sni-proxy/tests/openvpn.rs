//! Debian's OpenVPN at both ends of the gateway, as Gardener has it (GEP-14): the shoot's client asks
//! by HTTP CONNECT for the server of its control plane, which then reaches the shoot.
//!
//! ```text
//!   shoot a: pod 100.96.0.10 ◀─ tun0 ─ client ─┐             ┌─▶ server ─ tun0 192.168.123.1: seed a
//!   shoot b: pod 100.96.0.10 ◀─ tun0 ─ client ─┴─▶ gateway ──┴─▶ server ─ tun0 192.168.123.1: seed b
//! ```
//!
//! Each box is a namespace; all addresses inside the tunnels are the same for both shoots. No packet
//! passes between shoot and seed but through the gateway's sockets. Needs root, or a user namespace.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::certs::{Authority, IdentityFiles};
use testkit::command;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::netns::{Namespace, Place, cable};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

/// A hang is a failure; nothing here takes a tenth of this.
const LIMIT: Duration = Duration::from_secs(60);

/// What OpenVPN says once a tunnel carries packets, or a server waits for clients.
const UP: &str = "Initialization Sequence Completed";

const POD: &str = "100.96.0.10";
const PROBES: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15021);

/// The listeners: of GEP-14, and of node proxies and tunnels in today's Gardener.
const LISTENERS: [(&str, u16); 2] = [("Reversed-VPN", 8132), ("X-Gardener-Destination", 8443)];

/// A shoot and its control plane, with a server that waits for the client.
struct Shoot {
    name: &'static str,
    /// Where the client finds the gateway.
    gateway: String,
    tls_auth: PathBuf,
    ca: PathBuf,
    client: IdentityFiles,
    _server: ChildGuard,
    _pod: Upstream,
    seed: Namespace,
    shoot: Namespace,
}

impl Shoot {
    /// Lays cables from `gateway` to both, and starts the server and a pod that tells its shoot.
    fn lay(dir: &TempDir, gateway: &Namespace, name: &'static str, number: u8) -> Self {
        let [seed, shoot] = ["seed", "shoot"].map(|what| {
            let namespace = Namespace::new(&format!("{what}-{name}")).unwrap();
            let device = format!("{what}-{name}");
            cable(namespace.end("eth0"), gateway.end(&device)).unwrap();
            let net = if what == "seed" { 1 } else { 2 };
            for (namespace, device, host) in
                [(&namespace, "eth0", 2), (gateway, device.as_str(), 1)]
            {
                let cidr = format!("10.{net}.{number}.{host}/24");
                namespace.add_address(device, &cidr).unwrap();
            }
            namespace
        });
        shoot.add_address("lo", &format!("{POD}/32")).unwrap();
        let listener = Place::In(&shoot).bind(pod());
        let greeting = name.as_bytes().to_vec();
        let pod = Upstream::serve(listener.unwrap(), Behavior::EndsWriteFirst { greeting });
        // An authority of its own: a client that is led to another shoot's server is refused.
        let authority = Authority::new(name).unwrap();
        let ca = authority
            .write(&dir.join(format!("{name}-ca.crt")))
            .unwrap();
        let written = |identity: testkit::certs::Identity, what: &str| {
            identity
                .write(dir.path(), &format!("{name}-{what}"))
                .unwrap()
        };
        let server = written(authority.server(&["vpn-seed-server"]).unwrap(), "server");
        let client = authority.client("vpn-shoot-client", &[], &[]).unwrap();
        let tls_auth = dir.join(format!("{name}.tlsauth"));
        let mut genkey = Command::new(command::require("openvpn").unwrap());
        command::run(genkey.args(["--genkey", "secret"]).arg(&tls_auth)).unwrap();
        let clients = dir.join(format!("{name}-clients"));
        std::fs::create_dir(&clients).unwrap();
        let networks = "100.96.0.0 255.224.0.0";
        std::fs::write(
            clients.join("vpn-shoot-client"),
            format!("iroute {networks}\n"),
        )
        .unwrap();
        let mut command = openvpn(&seed, &ca, &server);
        command.args([
            "--mode",
            "server",
            "--proto",
            "tcp-server",
            "--port",
            "1194",
        ]);
        command.args([
            "--server",
            "192.168.123.0",
            "255.255.255.0",
            "--topology",
            "subnet",
        ]);
        command
            .args(["--dh", "none", "--tls-auth"])
            .arg(&tls_auth)
            .arg("0");
        command.arg("--client-config-dir").arg(&clients);
        command.arg("--route").args(networks.split(' '));
        let log = dir.join(format!("{name}-server.log"));
        let mut server = ChildGuard::spawn("the OpenVPN server", &command, &log).unwrap();
        server.wait_log(UP, LIMIT).unwrap();
        Self {
            name,
            gateway: format!("10.2.{number}.1"),
            tls_auth,
            ca,
            client: written(client, "client"),
            _server: server,
            _pod: pod.unwrap(),
            seed,
            shoot,
        }
    }

    /// How clients call the server of this shoot.
    fn value(&self) -> String {
        let name = self.name;
        format!("outbound|1194||vpn-seed-server.shoot--foo--{name}.svc.cluster.local")
    }

    /// Starts a client that asks the gateway for `value`.
    fn connect(&self, dir: &TempDir, (header, port): (&str, u16), value: &str) -> ChildGuard {
        let port = port.to_string();
        let mut command = openvpn(&self.shoot, &self.ca, &self.client);
        command.args(["--client", "--nobind", "--proto", "tcp-client"]);
        command.args([
            "--remote",
            "api.example.com",
            &port,
            "--remote-cert-tls",
            "server",
        ]);
        command.args(["--http-proxy", &self.gateway, &port]);
        command.args(["--http-proxy-option", "CUSTOM-HEADER", header, value]);
        command
            .args(["--connect-retry", "1", "2", "--tls-auth"])
            .arg(&self.tls_auth)
            .arg("1");
        let log = dir.join(format!("{}-client-{port}.log", self.name));
        ChildGuard::spawn("the OpenVPN client", &command, &log).unwrap()
    }

    /// Has the control plane ping the shoot's pod and ask which shoot's it is.
    fn assert_reached(&self) {
        let mut ping = self.seed.command("ping");
        command::run(ping.args(["-c", "3", "-i", "0.2", "-W", "5", POD])).unwrap();
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&pod(), LIMIT)?;
            stream.set_read_timeout(Some(LIMIT))?;
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            std::io::Result::Ok(said)
        };
        assert_eq!(self.seed.run(ask).unwrap().unwrap(), self.name);
    }
}

/// Where a kubelet listens, in both shoots.
fn pod() -> SocketAddr {
    format!("{POD}:10250").parse().unwrap()
}

/// What both ends have in common.
fn openvpn(namespace: &Namespace, ca: &Path, files: &IdentityFiles) -> Command {
    let program = command::require("openvpn").unwrap_or_else(|error| panic!("{error:#}"));
    let mut command = namespace.command(program);
    command.args(["--dev", "tun0", "--verb", "3", "--keepalive", "10", "30"]);
    command.args(["--data-ciphers", "AES-256-GCM", "--auth", "SHA256"]);
    command.arg("--ca").arg(ca);
    command
        .arg("--cert")
        .arg(&files.cert)
        .arg("--key")
        .arg(&files.key);
    command
}

/// A running gateway, in a namespace of its own.
struct Gateway<'a> {
    namespace: &'a Namespace,
    _child: ChildGuard,
}

impl<'a> Gateway<'a> {
    fn start(dir: &TempDir, namespace: &'a Namespace, shoots: &[Shoot]) -> Self {
        let (mut clusters, mut routes) = (Vec::new(), Vec::new());
        for (number, shoot) in (1..).zip(shoots) {
            let endpoint = format!("10.1.{number}.2:1194");
            let name = shoot.value();
            clusters.push(json!({ "name": name, "endpoints": [{ "address": endpoint }] }));
            routes.push(json!({ "connectDestinations": [name], "cluster": name }));
        }
        let write = |name: &str, value: &Value| dir.write(name, value.to_string()).unwrap();
        write(
            "routes.yaml",
            &json!({ "clusters": clusters, "routes": routes }),
        );
        let [(_, vpn), (_, node)] = LISTENERS;
        let config = json!({
            "probes": { "address": PROBES.to_string() },
            "listeners": [
                { "name": "vpn", "address": format!("[::]:{vpn}"), "protocol": "connect" },
                { "name": "node", "address": format!("[::]:{node}"), "protocol": "proxy-or-connect" },
            ],
            "routing": { "file": "routes.yaml" },
        });
        let mut command = namespace.command(env!("CARGO_BIN_EXE_sni-proxy"));
        command
            .arg("--config")
            .arg(write("sni-proxy.yaml", &config));
        let log = dir.join("sni-proxy.log");
        let mut child = ChildGuard::spawn("the gateway", &command, &log).unwrap();
        let target = Target::plain(PROBES);
        let ready = || Place::In(namespace).is_ok(&target, "/readyz");
        child.wait_ready(LIMIT, ready).unwrap();
        Self {
            namespace,
            _child: child,
        }
    }

    fn wait_value(&self, name: &str, labels: &[(&str, &str)], wanted: impl Fn(f64) -> bool) {
        let value = || {
            let got = self
                .namespace
                .run(|| http::get(&Target::plain(PROBES), "/metrics"));
            let metrics = Metrics::parse(&got.unwrap().unwrap().text()).unwrap();
            metrics.value(name, labels).unwrap_or_default()
        };
        let what = format!("{name} {labels:?}");
        wait::until(&what, LIMIT, || wanted(value())).unwrap();
    }
}

#[test]
fn openvpn_of_two_shoots_reaches_its_own_server() {
    let version = Command::new(command::require("openvpn").unwrap())
        .arg("--version")
        .output();
    let version = String::from_utf8(version.unwrap().stdout).unwrap();
    eprintln!("peer {}", version.lines().next().unwrap_or_default());
    let dir = TempDir::new("openvpn").unwrap();
    let namespace = Namespace::new("gateway").unwrap();
    let shoots =
        [("a", 1), ("b", 2)].map(|(name, number)| Shoot::lay(&dir, &namespace, name, number));
    let gateway = Gateway::start(&dir, &namespace, &shoots);
    let open = |wanted: f64| {
        for shoot in &shoots {
            let value = shoot.value();
            let labels = [("cluster", value.as_str())];
            gateway.wait_value("rhizome_cluster_connections_active", &labels, |value| {
                value == wanted
            });
        }
    };
    for listener in LISTENERS {
        let connect = |shoot: &Shoot| shoot.connect(&dir, listener, &shoot.value());
        let mut clients = shoots.each_ref().map(connect);
        for client in &mut clients {
            client.wait_log(UP, LIMIT).unwrap();
        }
        for shoot in &shoots {
            shoot.assert_reached();
        }
        open(1.0);
        drop(clients);
        open(0.0);
    }

    let [shoot, _] = &shoots;
    let nowhere = shoot.value().replace("--a.", "--c.");
    let mut client = shoot.connect(&dir, LISTENERS[0], &nowhere);
    let refused = [("listener", "vpn"), ("reason", "unknown_destination")];
    gateway.wait_value("rhizome_connections_closed_total", &refused, |value| {
        value >= 1.0
    });
    client.wait_log("404", LIMIT).unwrap();
}
