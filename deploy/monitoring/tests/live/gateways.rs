//! A gateway with routes from a file, a node proxy before it, and connections through both: good
//! ones, and one of each kind that goes wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use serde_json::json;
use testkit::certs::Authority;
use testkit::client_hello::ClientHello;
use testkit::http;
use testkit::netns::{Namespace, Place};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

use crate::programs::{LIMIT, Program, free};

/// A name of a route where TLS ends in the gateway.
const TERMINATED: &str = "terminated.test";

/// A node proxy that keeps an address, in a namespace of its own. Fields are dropped in this order.
pub(crate) struct Node {
    pub(crate) probes: SocketAddr,
    _program: Program,
    pub(crate) namespace: Namespace,
}

impl Node {
    pub(crate) fn start(dir: &TempDir) -> Self {
        let namespace = Namespace::new("node").unwrap_or_else(|error| panic!("{error:#}"));
        let config = json!({
            "listen": ["10.1.2.3:443"],
            "upstream": { "address": "127.0.0.1:8443", "mode": "proxy-protocol" },
            "noTrack": "auto",
            "probes": { "address": "127.0.0.1:16910" },
        });
        let place = Place::In(&namespace);
        let program = Program::start_in(place, dir.path(), "apiserver-proxy", "on-a-node", &config);
        Self {
            probes: program.probes,
            _program: program,
            namespace,
        }
    }
}

/// The programs, and the server behind them. Fields are dropped in this order.
pub(crate) struct Gateways {
    pub(crate) node: Program,
    pub(crate) gateway: Program,
    tls: SocketAddr,
    wireguard: SocketAddr,
    pods: SocketAddr,
    authority: Authority,
    _upstream: Upstream,
}

impl Gateways {
    pub(crate) fn start(dir: &TempDir) -> Self {
        let upstream = Upstream::start(Behavior::Echo).unwrap();
        let gone = free();
        let routes = json!({
            "clusters": [
                { "name": "api", "endpoints": [{ "address": upstream.addr().to_string() }] },
                { "name": "gone", "endpoints": [{ "address": gone.to_string() }] },
                { "name": "terminated", "endpoints": [{ "address": gone.to_string() }] },
            ],
            "routes": [
                { "serverNames": ["api.test"], "cluster": "api" },
                { "serverNames": ["gone.test"], "cluster": "gone" },
                { "destinations": ["127.0.0.0/8"], "cluster": "api" },
                { "serverNames": [TERMINATED], "cluster": "terminated", "terminate": {
                    "certificate": { "cert": "serving.crt", "key": "serving.key" },
                    "clientAuthorities": "authority.crt",
                    "upstream": {
                        "authorities": "authority.crt", "serverName": TERMINATED,
                        "identity": { "cert": "identity.crt", "key": "identity.key" },
                    },
                } },
            ],
        });
        let authority = Authority::new("terminated").unwrap();
        authority.write(&dir.join("authority.crt")).unwrap();
        let serving = authority.server(&[TERMINATED]).unwrap();
        serving.write(dir.path(), "serving").unwrap();
        let identity = authority.client("front", &[], &[]).unwrap();
        identity.write(dir.path(), "identity").unwrap();
        dir.write("routes.yaml", routes.to_string()).unwrap();
        let listener = |name: &str, protocol: &str| json!({ "name": name, "address": "127.0.0.1:0", "protocol": protocol });
        let config = json!({
            "workers": 1,
            "probes": { "address": "127.0.0.1:0" },
            "admin": { "address": "127.0.0.1:0" },
            "listeners": [
                listener("tls", "tls"),
                listener("node", "proxy-or-connect"),
                listener("wireguard", "wireguard"),
            ],
            "routing": { "file": "routes.yaml" },
        });
        let mut gateway = Program::start(dir.path(), "sni-proxy", "gateway", &config);
        gateway.wait_ready();
        let config = json!({
            "listen": ["127.0.0.1:0"],
            "upstream": {
                "address": gateway.listener("node").to_string(),
                "mode": "proxy-protocol",
                "version": 2,
            },
            "interface": { "manage": false },
            "noTrack": "off",
            "probes": { "address": "127.0.0.1:0" },
        });
        let mut node = Program::start(dir.path(), "apiserver-proxy", "node", &config);
        node.wait_ready();
        Self {
            tls: gateway.listener("tls"),
            wireguard: gateway.listener("wireguard"),
            pods: node.listener("127.0.0.1:0"),
            node,
            gateway,
            authority,
            _upstream: upstream,
        }
    }

    /// Has connections come and go; how each ends does not matter here.
    pub(crate) fn use_them(&self) {
        exchange(self.tls, &ClientHello::for_name("api.test").encode());
        exchange(self.tls, &ClientHello::for_name("gone.test").encode());
        exchange(self.tls, &ClientHello::for_name("unknown.test").encode());
        exchange(self.pods, b"hello");
        let target = http::Target::tls(self.tls, self.authority.pem());
        let answer = http::get(&target.server_name(TERMINATED), "/version").unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"junk", self.wireguard).unwrap();
    }
}

/// Sends something and reads as much, or to the end.
fn exchange(addr: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    let _ = stream.read_exact(&mut answer);
}
