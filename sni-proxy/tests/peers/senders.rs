//! HAProxy, nginx and curl send us PROXY headers: as a node's proxy, whose header says where to,
//! and as a load balancer in front, whose header says who it is; and both in a row.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::command;
use testkit::netns::Place;
use testkit::peers::nginx;
use testkit::process::ChildGuard;
use testkit::proxy_header;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::gateway::{self, CLUSTER, HEADER, NAME, listener};
use crate::haproxy::{self, Hop};
use crate::node::{self, Node};
use crate::ours::{LIMIT, Ours};
use crate::programs::{announce, free, text};
use crate::web::{Kind, Web};
use crate::who::{self, Said};

/// What HAProxy can add to the header of version 2.
const EXTRAS: &str = "send-proxy-v2-ssl-cn proxy-v2-options ssl,cert-cn,ssl-cipher,cert-sig,\
                      cert-key,authority,crc32c,unique-id";

/// The one address that is trusted.
const TRUSTED: &str = "127.0.0.99";

struct Stage {
    dir: TempDir,
    web: Web,
    gateway: Ours,
}

impl Stage {
    /// A gateway with a listener of each protocol for each way to treat a load balancer's header,
    /// named `PROTOCOL-TREATMENT`, that trusts `trusted` to be one.
    fn new(kind: Kind, trusted: &str) -> Self {
        for peer in ["curl", "haproxy", "nginx"] {
            announce(peer);
        }
        let dir = TempDir::new("senders").unwrap();
        let web = Web::start(dir.path(), kind);
        let mut listeners = Vec::new();
        for protocol in ["tls", "connect", "proxy-or-connect"] {
            for treatment in ["off", "optional", "required"] {
                let name = format!("{protocol}-{treatment}");
                listeners.push(listener(&name, protocol, treatment));
            }
        }
        let mut routes = gateway::to_one(web.addr);
        routes["routes"].as_array_mut().unwrap().push(json!({
            "destinations": ["127.0.0.0/28"], "cluster": CLUSTER,
        }));
        let more = json!({
            "trustedProxies": [trusted],
            "limits": { "preambleTimeout": "5s" },
        });
        let gateway = gateway::start(&dir, &json!(listeners), &routes, &more);
        Self { dir, web, gateway }
    }

    fn haproxy(&self, listen: SocketAddr, to: &str, options: &str) -> ChildGuard {
        let hop = Hop::new(listen, self.gateway.listener(to), options);
        haproxy::sender(self.dir.path(), &[hop])
    }

    /// Prepares curl to trust the server, to come from an address of its own, and to connect to
    /// `first` for the server's name.
    fn curl(&self, first: SocketAddr) -> Command {
        let mut curl = who::curl();
        curl.arg("--cacert").arg(&self.web.authority);
        curl.args(["--interface", "127.0.0.77"]);
        curl.args(["--connect-to", &format!("{NAME}:443:{first}")]);
        curl
    }

    /// Asks for the server's file by way of `first`.
    fn ask(&self, first: SocketAddr) -> Said {
        self.ask_with(&mut self.curl(first))
    }

    fn ask_with(&self, curl: &mut Command) -> Said {
        std::fs::write(self.web.file("hello"), "hello").unwrap();
        let said = who::ask(curl.arg(format!("https://{NAME}/hello")));
        assert_eq!(said.body, "hello");
        said
    }

    /// Asks as [`Stage::ask`] does, and is refused.
    fn is_refused(&self, curl: &mut Command, reason: &str) -> Value {
        let output = command::output(curl.arg(format!("https://{NAME}/hello"))).unwrap();
        assert!(!output.status.success(), "{}", text(&output));
        let what = format!("a connection that ends for {reason}");
        self.gateway
            .wait_record(&what, |record| record["reason"] == reason)
    }
}

fn nginx_sender(dir: &Path, listen: SocketAddr, server: SocketAddr) -> ChildGuard {
    nginx::start(Place::Here, dir, listen, server).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn haproxy_and_nginx_headers_select_destination() {
    let stage = Stage::new(Kind::Tls, TRUSTED);
    let mut running = Vec::new();
    for (number, options) in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2 proxy-v2-options crc32c",
        "send-proxy-v2 proxy-v2-options crc32c,unique-id",
        "send-proxy-v2-ssl",
        EXTRAS,
    ]
    .into_iter()
    .enumerate()
    {
        let node = free(&format!("127.0.9.{}", number + 1));
        running.push(stage.haproxy(node, "proxy-or-connect-off", options));
        stage.ask(node);
        let record = stage.gateway.next_record("destination", node);
        assert_eq!(record["cluster"], CLUSTER, "{options}: {record}");
        assert_eq!(record["client"], record["peer"], "{options}: {record}");
        assert_eq!(record["reason"], "closed", "{options}: {record}");
    }
    let node = free("127.0.9.20");
    let server = stage.gateway.listener("proxy-or-connect-off");
    running.push(nginx_sender(stage.dir.path(), node, server));
    stage.ask(node);
    stage.gateway.next_record("destination", node);
}

#[test]
fn curl_header_selects_destination() {
    let stage = Stage::new(Kind::Tls, TRUSTED);
    let node = stage.gateway.listener("proxy-or-connect-off");
    let said = stage.ask_with(stage.curl(node).arg("--haproxy-protocol"));
    let record = stage.gateway.next_record("destination", node);
    assert_eq!(record["peer"], said.local().to_string(), "{record}");
    // Toward an address that no route has.
    let elsewhere = free("127.0.0.33");
    let _haproxy = stage.haproxy(elsewhere, "proxy-or-connect-off", "send-proxy-v2");
    let record = stage.is_refused(&mut stage.curl(elsewhere), "unknown_destination");
    assert_eq!(record["destination"], elsewhere.to_string(), "{record}");
}

#[test]
fn tls_tlvs_of_haproxy_are_accepted() {
    // The payload behind the node listener is anything; here it is HTTP that HAProxy decrypted.
    let stage = Stage::new(Kind::Plain, TRUSTED);
    let authority = Authority::new("haproxy").unwrap();
    let identity = authority.server(&[NAME]).unwrap();
    let node = free("127.0.9.1");
    let server = stage.gateway.listener("proxy-or-connect-off");
    let hop = Hop::new(node, server, EXTRAS).ending_tls(stage.dir.path(), &identity);
    let _haproxy = haproxy::sender(stage.dir.path(), &[hop]);
    authority.write(&stage.web.authority).unwrap();
    stage.ask(node);
    let record = stage.gateway.next_record("destination", node);
    assert_eq!(record["reason"], "closed", "{record}");
}

#[test]
fn balancer_header_names_client_on_tls() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    let mut running = Vec::new();
    for to in ["tls-required", "tls-optional"] {
        for options in ["send-proxy", "send-proxy-v2", EXTRAS] {
            let balancer = free("127.0.0.1");
            running.push(stage.haproxy(balancer, to, options));
            let said = stage.ask(balancer);
            let record = stage.gateway.next_record("client", said.local());
            assert_ne!(record["peer"], record["client"], "{options}: {record}");
            assert_eq!(record["server_name"], NAME, "{options}: {record}");
        }
        let balancer = free("127.0.0.1");
        running.push(nginx_sender(
            stage.dir.path(),
            balancer,
            stage.gateway.listener(to),
        ));
        let said = stage.ask(balancer);
        stage.gateway.next_record("client", said.local());
        // curl as its own balancer: who it says is who it is.
        let mut own = stage.curl(stage.gateway.listener(to));
        let said = stage.ask_with(own.arg("--haproxy-protocol"));
        let record = stage.gateway.next_record("client", said.local());
        assert_eq!(record["peer"], record["client"], "{record}");
    }
    // Without a header it is served where it may be missing, and nowhere else.
    let said = stage.ask(stage.gateway.listener("tls-optional"));
    stage.gateway.next_record("peer", said.local());
    let required = stage.gateway.listener("tls-required");
    stage.is_refused(&mut stage.curl(required), "bad_proxy_header");
    // And where none is expected, it is no TLS.
    let off = stage.gateway.listener("tls-off");
    stage.is_refused(stage.curl(off).arg("--haproxy-protocol"), "not_tls");
}

#[test]
fn only_those_who_are_trusted_may_be_balancers() {
    let stage = Stage::new(Kind::Tls, TRUSTED);
    for to in ["tls-required", "tls-optional", "connect-required"] {
        let (trusted, other) = (free("127.0.0.1"), free("127.0.0.1"));
        let from = format!("send-proxy-v2 source {TRUSTED}");
        let _haproxies = [
            stage.haproxy(trusted, to, &from),
            stage.haproxy(other, to, "send-proxy-v2"),
        ];
        let curl = |first| match to {
            "connect-required" => by_connect(&stage, first),
            _ => stage.curl(first),
        };
        let said = stage.ask_with(&mut curl(trusted));
        let record = stage.gateway.next_record("client", said.local());
        assert!(
            record["peer"].as_str().unwrap().starts_with(TRUSTED),
            "{record}"
        );
        let before = stage.gateway.closed("untrusted_proxy");
        stage.is_refused(&mut curl(other), "untrusted_proxy");
        wait::until("the refusal to be counted", LIMIT, || {
            stage.gateway.closed("untrusted_proxy") > before
        })
        .unwrap();
    }
    // Without a header the untrusted is served where headers are optional.
    stage.ask(stage.gateway.listener("tls-optional"));
    // On a node listener the header of who is not trusted is a node proxy's.
    let node = free("127.0.9.1");
    let _haproxy = stage.haproxy(node, "proxy-or-connect-optional", "send-proxy-v2");
    stage.ask(node);
    let record = stage.gateway.next_record("destination", node);
    assert_eq!(record["client"], record["peer"], "{record}");
}

fn by_connect(stage: &Stage, first: SocketAddr) -> Command {
    let mut curl = who::curl();
    curl.arg("--cacert").arg(&stage.web.authority);
    curl.args(["--interface", "127.0.0.77"]);
    curl.args(["--proxy", &format!("http://{first}")]);
    curl.args(["--proxy-header", &format!("{HEADER}: {CLUSTER}")]);
    curl
}

#[test]
fn a_balancer_names_the_client_before_connect() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    for protocol in ["connect", "proxy-or-connect"] {
        for treatment in ["optional", "required"] {
            let to = format!("{protocol}-{treatment}");
            for options in ["send-proxy", EXTRAS] {
                let balancer = free("127.0.0.1");
                let _haproxy = stage.haproxy(balancer, &to, options);
                let said = stage.ask_with(&mut by_connect(&stage, balancer));
                let record = stage.gateway.next_record("client", said.local());
                assert_eq!(record["connect"], CLUSTER, "{to} {options}: {record}");
            }
        }
        // None in front, where there may be none.
        let optional = stage.gateway.listener(&format!("{protocol}-optional"));
        stage.ask_with(&mut by_connect(&stage, optional));
    }
}

#[test]
fn allow_sources_uses_the_balancers_client() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    let mut routes = gateway::to_one(stage.web.addr);
    for route in routes["routes"].as_array_mut().unwrap() {
        route["allowSources"] = json!(["127.0.0.77/32"]);
    }
    stage
        .dir
        .replace("routes.yaml", routes.to_string())
        .unwrap();
    wait::until("the routes to be in effect", LIMIT, || {
        stage.gateway.metric("rhizome_snapshot_generation", &[]) >= 2.0
    })
    .unwrap();
    let (tls, connect) = (free("127.0.0.1"), free("127.0.0.1"));
    let hops = [
        Hop::new(tls, stage.gateway.listener("tls-required"), "send-proxy"),
        Hop::new(connect, stage.gateway.listener("connect-required"), EXTRAS),
    ];
    let _haproxy = haproxy::sender(stage.dir.path(), &hops);
    stage.ask(tls);
    stage.ask_with(&mut by_connect(&stage, connect));
    let mut other = stage.curl(tls);
    let record = stage.is_refused(other.args(["--interface", "127.0.0.78"]), "source_denied");
    assert!(
        record["client"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.78:")
    );
    let mut other = by_connect(&stage, connect);
    other.args([
        "--interface",
        "127.0.0.78",
        &format!("https://{NAME}/hello"),
    ]);
    let said = text(&command::output(&mut other).unwrap());
    assert!(said.contains("403"), "{said}");
}

#[test]
fn two_headers_are_balancers_then_nodes() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    for treatment in ["optional", "required"] {
        let to = stage
            .gateway
            .listener(&format!("proxy-or-connect-{treatment}"));
        for (first, second) in [
            ("send-proxy", "send-proxy"),
            ("send-proxy", EXTRAS),
            (EXTRAS, "send-proxy"),
            ("send-proxy-v2", "send-proxy-v2"),
        ] {
            let (node, balancer) = (free("127.0.9.1"), free("127.0.0.1"));
            let hops = [
                Hop::new(node, balancer, first),
                Hop::new(balancer, to, second),
            ];
            let _haproxy = haproxy::sender(stage.dir.path(), &hops);
            let said = stage.ask(node);
            names_the_node_and_not_the_pod(&stage, node, &said);
        }
        let (node, balancer) = (free("127.0.9.1"), free("127.0.0.1"));
        let hop = Hop::new(node, balancer, "send-proxy-v2");
        let _haproxy = haproxy::sender(stage.dir.path(), &[hop]);
        let _nginx = nginx_sender(stage.dir.path(), balancer, to);
        let said = stage.ask(node);
        names_the_node_and_not_the_pod(&stage, node, &said);
    }
}

/// The balancer's client is the node's proxy, wherever the node's own client comes from.
fn names_the_node_and_not_the_pod(stage: &Stage, node: SocketAddr, pod: &Said) {
    let record = stage.gateway.next_record("destination", node);
    assert_ne!(record["client"], record["peer"], "{record}");
    assert_ne!(record["client"], pod.local().to_string(), "{record}");
}

#[test]
fn our_node_proxy_is_led_through_a_balancer() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    let binary = gateway::node_proxy();
    for treatment in ["optional", "required"] {
        let balancer = free("127.0.0.1");
        let to = format!("proxy-or-connect-{treatment}");
        let _haproxy = stage.haproxy(balancer, &to, "send-proxy-v2");
        for upstream in [
            node::by_proxy_header(balancer, 1),
            node::by_proxy_header(balancer, 2),
            node::by_connect(balancer, CLUSTER),
        ] {
            let node = Node::start(&binary, stage.dir.path(), "127.0.9.8", &upstream);
            stage.ask(node.addr);
            let by_connect = upstream["mode"] == "http-connect";
            let (key, value) = if by_connect {
                ("connect", CLUSTER.to_owned())
            } else {
                ("destination", node.addr.to_string())
            };
            let record = stage.gateway.wait_record(&to, |record| {
                record[key] == value && record["listener"] == to
            });
            assert_ne!(record["client"], record["peer"], "{record}");
        }
    }
}

#[test]
fn single_optional_header_is_node_proxys() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    for options in ["send-proxy", "send-proxy-v2", EXTRAS] {
        let node = free("127.0.9.1");
        let _haproxy = stage.haproxy(node, "proxy-or-connect-optional", options);
        stage.ask(node);
        let record = stage.gateway.next_record("destination", node);
        assert_eq!(record["client"], record["peer"], "{options}: {record}");
    }
}

#[test]
fn haproxys_health_checks_are_no_faults() {
    let stage = Stage::new(Kind::Tls, "127.0.0.0/8");
    let balancer = free("127.0.0.1");
    let options = "send-proxy-v2 check inter 100ms rise 1 fall 1";
    let _haproxy = stage.haproxy(balancer, "tls-required", options);
    // Checks carry a header with the command LOCAL and nothing behind it.
    wait::until("five checks", LIMIT, || stage.gateway.records().len() >= 5).unwrap();
    stage.ask(balancer);
    for record in stage.gateway.records() {
        let reason = record["reason"].as_str().unwrap();
        assert!(["closed", "downstream_reset"].contains(&reason), "{record}");
    }
}

#[test]
fn haproxy_and_nginx_send_configured_headers() {
    let dir = TempDir::new("senders").unwrap();
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let server = upstream.addr();
    let [v1, v2, crc, nginx_v1] = std::array::from_fn(|_| free("127.0.0.1"));
    let hops = [
        Hop::new(v1, server, "send-proxy"),
        Hop::new(v2, server, "send-proxy-v2"),
        Hop::new(crc, server, "send-proxy-v2 proxy-v2-options crc32c"),
    ];
    let _haproxy = haproxy::sender(dir.path(), &hops);
    let _nginx = nginx::start(Place::Here, dir.path(), nginx_v1, server).unwrap();
    for (index, front) in [v1, v2, crc, nginx_v1].into_iter().enumerate() {
        let stream = std::net::TcpStream::connect(front).unwrap();
        upstream.wait_accepted(index + 1, LIMIT).unwrap();
        let src = stream.local_addr().unwrap();
        let header = || upstream.beginnings().pop().unwrap_or_default();
        wait::until("the header", LIMIT, || header().len() >= 28).unwrap();
        let header = header();
        if front == v1 || front == nginx_v1 {
            assert_eq!(header, proxy_header::v1(src, front));
        } else if front == v2 {
            assert_eq!(header, proxy_header::v2(src, front, &[]));
        } else {
            let plain = proxy_header::v2(src, front, &[]);
            assert_eq!((header.len(), &header[16..28]), (35, &plain[16..28]));
            assert_eq!(&header[28..31], [3, 0, 4]);
        }
    }
}
