//! The two ends of a tunnel, each of which is ours or another WireGuard implementation.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::netns::Namespace;
use testkit::peers::wireguard::Wireguard;
use testkit::process::ChildGuard;
use testkit::wait;

use crate::addresses::PORT;
use crate::field::{Field, LIMIT};
use crate::nat::Nat;

/// The device of our ends.
pub(crate) const DEVICE: &str = "rhizome0";

/// A program of ours.
#[derive(Debug)]
pub(crate) struct Ours<'a> {
    namespace: &'a Namespace,
    /// What the other ends are called on the admin page.
    list: &'static str,
    _child: ChildGuard,
}

impl<'a> Ours<'a> {
    /// Starts our server in the seed, and does not wait for a client.
    pub(crate) fn server(field: &'a Field) -> Self {
        let addresses = field.addresses;
        let mut peer = json!({
            "name": "other", "publicKeys": [field.client.public], "addresses": [addresses.client],
        });
        if let Some(path) = field.preshared() {
            peer["presharedKey"] = json!(path);
        }
        let peers = json!({ "peers": [peer] });
        field.dir.replace("peers.yaml", peers.to_string()).unwrap();
        let config = json!({
            "device": DEVICE,
            "routeId": 17,
            "addresses": [addresses.cidr(addresses.server)],
            "networks": { "pods": [addresses.pods] },
            "keys": { "private": ["server.key"], "peers": "peers.yaml" },
            "listen": { "tcp": null, "wrapped": null },
            "proxy": { "ca": "proxy-ca.crt", "cert": "proxy.crt", "key": "proxy.key" },
            "probes": { "address": PROBES },
            "admin": { "address": ADMIN },
            "drain": { "delay": "0s", "timeout": "0s" },
        });
        let program = Path::new(env!("CARGO_BIN_EXE_vpn-server"));
        Self::start(field, (&field.seed, "peers"), program, &config)
    }

    /// Starts our client in the shoot, and does not wait for the server.
    pub(crate) fn client(field: &'a Field, nat: &Nat<'_>) -> Self {
        let (addresses, nat) = (field.addresses, nat.addr());
        let mut server = json!({
            "name": "other", "publicKeys": [field.server.public], "addresses": [addresses.server],
        });
        if let Some(path) = field.preshared() {
            server["presharedKey"] = json!(path);
        }
        let config = json!({
            "device": DEVICE,
            "addresses": [addresses.cidr(addresses.client)],
            "endpoint": { "address": nat.ip(), "udpPort": nat.port(), "transport": "udp" },
            "servers": [server],
            "keys": { "private": "client.key" },
            "networks": { "pods": [addresses.pods] },
            "probes": { "address": PROBES },
            "admin": { "address": ADMIN },
            "drain": { "delay": "0s", "timeout": "0s" },
        });
        let program =
            command::sibling(env!("CARGO_BIN_EXE_vpn-server"), "vpn-client", "vpn-client").unwrap();
        Self::start(field, (&field.shoot, "tunnels"), &program, &config)
    }

    fn start(
        field: &Field,
        (namespace, list): (&'a Namespace, &'static str),
        program: &Path,
        config: &Value,
    ) -> Self {
        let path = field.dir.replace("ours.yaml", config.to_string()).unwrap();
        let mut command = namespace.command(program);
        command.arg("--config").arg(&path);
        if list == "tunnels" {
            // What needs more rights than the program has: IPv6 forwarding.
            let mut setup = namespace.command(program);
            command::run(setup.args(["setup", "--config"]).arg(&path)).unwrap();
        }
        let log = field.dir.join("ours.log");
        let mut child = ChildGuard::spawn(&field.case.name(), &command, &log).unwrap();
        let up = || get(namespace, PROBES, "/healthz").is_some();
        child.wait_ready(LIMIT, up).unwrap();
        Self {
            namespace,
            list,
            _child: child,
        }
    }

    /// Answers whether a probe came back lately.
    pub(crate) fn is_ready(&self) -> bool {
        get(self.namespace, PROBES, "/readyz").is_some()
    }

    /// Waits until probes come back, or do not.
    pub(crate) fn wait_ready(&self, ready: bool) {
        let what = format!("our end to be ready: {ready}");
        wait::until(&what, LIMIT, || self.is_ready() == ready).unwrap();
    }

    /// Returns a metric, summed over its series; 0 where there is none.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = get(self.namespace, PROBES, "/metrics").unwrap();
        let metrics = Metrics::parse(&text).unwrap();
        metrics.value(name, labels).unwrap_or_default()
    }

    /// Returns what operators are told of the tunnel.
    pub(crate) fn tunnel(&self) -> Value {
        let text = get(self.namespace, ADMIN, "/tunnels").unwrap();
        let told: Value = serde_json::from_str(&text).unwrap();
        told[self.list][0].clone()
    }

    /// Waits until operators are told that the other end is at an address.
    pub(crate) fn wait_remote(&self, ip: IpAddr) {
        let what = format!("the other end to be at {ip}");
        let there = || {
            let told = self.tunnel();
            let remote = told["remote"].as_str().unwrap_or_default();
            remote.contains(&format!("{ip}:")) || remote.contains(&format!("{ip}]:"))
        };
        wait::until(&what, LIMIT, there)
            .unwrap_or_else(|error| panic!("{error}: {}", self.tunnel()));
    }
}

fn get(namespace: &Namespace, address: &str, path: &str) -> Option<String> {
    let target = Target::plain(address.parse::<SocketAddr>().unwrap());
    let target = target.timeout(Duration::from_secs(5));
    let asked = namespace.run(|| http::get(&target, path)).unwrap().ok();
    let answer = asked.filter(|answer| answer.status == 200);
    answer.map(|answer| answer.text())
}

/// An end that is another WireGuard implementation.
#[derive(Debug)]
pub(crate) struct Theirs<'a> {
    field: &'a Field,
    wireguard: Wireguard,
    /// What `wg set` is told of our end.
    peer: Vec<String>,
}

impl<'a> Theirs<'a> {
    /// Starts the other program as a client in the shoot.
    pub(crate) fn client(field: &'a Field, nat: &Nat<'_>) -> Self {
        let wireguard = field.case.program.start(&field.shoot, field.dir.path());
        let (addresses, endpoint) = (field.addresses, nat.addr().to_string());
        let more = ["endpoint", &endpoint, "persistent-keepalive", "1"];
        let networks = addresses.single(addresses.server);
        let theirs = Self::new(
            field,
            wireguard.unwrap(),
            &field.server.public,
            &networks,
            &more,
        );
        field.forward();
        theirs.set_up(&field.shoot, addresses.client, "client.key", &[]);
        theirs
    }

    /// Starts the other program as a server in the seed.
    pub(crate) fn server(field: &'a Field) -> Self {
        let wireguard = field.case.program.start(&field.seed, field.dir.path());
        let addresses = field.addresses;
        let networks = [&addresses.single(addresses.client), addresses.pods].join(",");
        let theirs = Self::new(
            field,
            wireguard.unwrap(),
            &field.client.public,
            &networks,
            &[],
        );
        let port = PORT.to_string();
        theirs.set_up(
            &field.seed,
            addresses.server,
            "server.key",
            &["listen-port", &port],
        );
        let (device, source) = (theirs.device(), addresses.server.to_string());
        let route = [
            "route",
            "add",
            addresses.pods,
            "dev",
            device,
            "src",
            &source,
        ];
        field.seed.ip(&route).unwrap();
        theirs
    }

    fn new(
        field: &'a Field,
        wireguard: Wireguard,
        public: &str,
        networks: &str,
        more: &[&str],
    ) -> Self {
        let mut peer: Vec<String> = vec!["peer".to_owned(), public.to_owned()];
        if let Some(path) = field.preshared() {
            peer.extend(["preshared-key".to_owned(), path.display().to_string()]);
        }
        peer.extend(["allowed-ips".to_owned(), networks.to_owned()]);
        peer.extend(more.iter().map(|word| (*word).to_owned()));
        Self {
            field,
            wireguard,
            peer,
        }
    }

    fn set_up(&self, namespace: &Namespace, address: IpAddr, key: &str, more: &[&str]) {
        let key = self.field.dir.join(key);
        let mut words = vec!["private-key", key.to_str().unwrap()];
        words.extend(more);
        self.wireguard.set(&words).unwrap();
        let cidr = self.field.addresses.cidr(address);
        namespace.add_address(self.device(), &cidr).unwrap();
        self.add_peer();
    }

    fn add_peer(&self) {
        let words: Vec<&str> = self.peer.iter().map(String::as_str).collect();
        self.wireguard.set(&words).unwrap();
    }

    /// Has it forget our end and learn of it again: all sessions are gone.
    pub(crate) fn forget_sessions(&self) {
        self.wireguard
            .set(&["peer", &self.peer[1], "remove"])
            .unwrap();
        self.add_peer();
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &str {
        self.wireguard.device()
    }
}

const PROBES: &str = "127.0.0.1:15000";
const ADMIN: &str = "127.0.0.1:9901";
