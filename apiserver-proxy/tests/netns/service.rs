//! Pods and the node itself ask a Service whose ClusterIP is translated to the proxy's address, as
//! kube-proxy does it for the Service `kubernetes`.
//!
//! ```text
//!     pod  ── 100.64.0.1:443 ─▶ prerouting: dnat ┐
//!     node ── 100.64.0.1:443 ─▶ output: dnat ────┴▶ 10.1.2.3:443 apiserver-proxy
//! ```
//!
//! The node is a namespace, a pod is another one behind it. Rules are those of kube-proxy's modes
//! `nftables` and `iptables`, cut down to one Service; kube-proxy itself is not here.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::netns::{End, Namespace, cable};
use testkit::process::Signal;
use testkit::upstream::Upstream;
use testkit::wait;

use crate::node::{LIMIT, LISTEN, Node, at, config, converse, expect};
use crate::notrack::{ACTIVE, FAILURES, has_table, track_connections};

const LISTEN_V6: &str = "[fd00:10::3]:443";
/// The Service's addresses, and where each is translated to.
const SERVICE: [(&str, &str); 2] = [("100.64.0.1:443", LISTEN), ("[fd00:64::1]:443", LISTEN_V6)];

/// How long a connection may take: a first packet that is lost is sent again after one second.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A node with a gateway and a pod.
struct Stage {
    node: Node,
    pod: Namespace,
    _gateway: Upstream,
}

impl Stage {
    fn new(label: &str) -> Self {
        let node = Node::new(label);
        let pod = Namespace::new(&format!("{label}-pod")).unwrap();
        let end = |namespace, device| End { namespace, device };
        cable(end(&node.ns, "pod0"), end(&pod, "eth0")).unwrap();
        for (on_node, on_pod) in [
            ("100.96.0.1/24", "100.96.0.2/24"),
            ("fd00:96::1/64", "fd00:96::2/64"),
        ] {
            node.ns.add_address("pod0", on_node).unwrap();
            pod.add_address("eth0", on_pod).unwrap();
        }
        pod.add_route("default", "100.96.0.1").unwrap();
        pod.ip(&["-6", "route", "add", "default", "via", "fd00:96::1"])
            .unwrap();
        // Any route leads a node's own packets to the hook that translates them.
        for cluster_ip in ["100.64.0.1/32", "fd00:64::1/128"] {
            node.ns
                .ip(&["route", "add", cluster_ip, "dev", "pod0"])
                .unwrap();
        }
        let gateway = node.gateway();
        Self {
            node,
            pod,
            _gateway: gateway,
        }
    }

    /// Has the node translate the Service's addresses, as kube-proxy's mode `nftables` does.
    fn translate(&self) {
        let family = |family, kind, (service, to): (&str, &str)| {
            include_str!("kube-proxy.nft")
                .replace("FAMILY", family)
                .replace("KIND", kind)
                .replace("CLUSTER_IP", &at(service).ip().to_string())
                .replace("ENDPOINT", to)
        };
        let rules = [
            family("ip", "ipv4_addr", SERVICE[0]),
            family("ip6", "ipv6_addr", SERVICE[1]),
        ];
        let file = self.node.dir.write("kube-proxy.nft", rules.concat());
        self.node.nft(&["-f", &file.unwrap().display().to_string()]);
    }

    /// Runs a program of iptables on the node.
    fn iptables(&self, program: &str, arguments: &[&str]) {
        command::run(self.node.ns.command(program).args(arguments)).unwrap();
    }

    fn config(&self, no_track: Option<&str>) -> Value {
        let mut keys = config(json!({ "listen": [LISTEN, LISTEN_V6] }));
        let keys_map = keys.as_object_mut().unwrap();
        keys_map.remove("noTrack");
        if let Some(no_track) = no_track {
            keys_map.insert("noTrack".to_owned(), json!(no_track));
        }
        keys
    }

    /// Expects the Service and the addresses themselves to answer, from the pod and from the node.
    fn expect_answers(&self, context: &str) {
        for (service, _) in SERVICE {
            self.expect_answer(service, context);
        }
        self.expect_direct_answers(context);
    }

    /// Expects the addresses to answer, from the pod and from the node.
    fn expect_direct_answers(&self, context: &str) {
        for (_, address) in SERVICE {
            self.expect_answer(address, context);
        }
    }

    fn expect_answer(&self, address: &str, context: &str) {
        for namespace in [&self.pod, &self.node.ns] {
            let answered = namespace.run(|| connect(address)).unwrap();
            let stream = answered.unwrap_or_else(|error| {
                panic!("{context}: {address} from {}: {error}", namespace.name())
            });
            converse(stream);
        }
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at(address), CONNECT_LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

#[test]
fn service_answers_with_default_off_and_auto() {
    for value in [None, Some("off"), Some("auto")] {
        let context = value.unwrap_or("default");
        let stage = Stage::new(context);
        track_connections(&stage.node);
        // As an earlier version left the node: with rules.
        let proxy = stage.node.start(&stage.config(Some("on")));
        assert_eq!(proxy.stop(LIMIT).unwrap().code(), Some(0));
        assert!(has_table(&stage.node));
        stage.translate();

        let _proxy = stage.node.start(&stage.config(value));
        let removed = || !has_table(&stage.node);
        wait::until("the rules to be removed", LIMIT, removed).unwrap();
        stage.expect_answers(context);
        assert_eq!(stage.node.metric(ACTIVE, &[]), Some(0.0), "{context}");
        assert_eq!(stage.node.metric(FAILURES, &[]), None, "{context}");
        assert!(!has_table(&stage.node), "{context}");
    }
}

#[test]
fn on_is_refused_beside_destination_nat() {
    let stage = Stage::new("refused");
    stage.translate();
    for arguments in [[].as_slice(), &["setup"]] {
        let output = stage.node.run(arguments, &stage.config(Some("on")));
        expect(&output, Some("noTrack: on"));
        assert!(!has_table(&stage.node));
    }
}

#[test]
fn rules_are_removed_when_nat_appears() {
    let auto = ("auto", None);
    // Insisted on, it is a failure that a metric reports.
    let on = ("on", Some(1.0));
    for (value, failures) in [auto, on] {
        let stage = Stage::new(value);
        track_connections(&stage.node);
        let mut proxy = stage.node.start(&stage.config(Some(value)));
        stage.node.wait_metric(ACTIVE, &[], 1.0);
        stage.expect_direct_answers(value);

        // No signal: kube-proxy starts whenever it likes.
        stage.translate();
        stage.expect_answers(value);
        assert!(!has_table(&stage.node), "{value}");
        stage.node.wait_metric(ACTIVE, &[], 0.0);
        let translated = [("reason", "translated")];
        assert_eq!(stage.node.metric(FAILURES, &translated), failures);

        // Connections that were translated outlive the rules.
        stage.node.nft(&["delete", "table", "ip", "kube-proxy"]);
        stage.node.nft(&["delete", "table", "ip6", "kube-proxy"]);
        proxy.signal(Signal::HUP).unwrap();
        stage.expect_direct_answers(value);
        assert!(!has_table(&stage.node), "{value}");
    }
}

#[test]
fn iptables_of_either_kind_counts() {
    for program in ["iptables-nft", "iptables-legacy"] {
        let stage = Stage::new(program);
        track_connections(&stage.node);
        let chains = ["PREROUTING", "OUTPUT"];
        for (program, (service, to)) in [program, &program.replace("ip", "ip6")]
            .into_iter()
            .zip(SERVICE)
        {
            let address = at(service).ip().to_string();
            let rule = [
                "-p",
                "tcp",
                "--dport",
                "443",
                "-j",
                "DNAT",
                "--to-destination",
            ];
            for chain in chains {
                let head = ["-t", "nat", "-A", chain, "-d", &address];
                stage.iptables(program, &[&head, &rule[..], &[to]].concat());
            }
        }
        let proxy = stage.node.start(&stage.config(Some("auto")));
        stage.expect_answers(program);
        assert_eq!(proxy.stop(LIMIT).unwrap().code(), Some(0));
        assert!(!has_table(&stage.node), "{program}");
        let output = stage.node.run(&[], &stage.config(Some("on")));
        expect(&output, Some("noTrack: on"));
    }
}

#[test]
fn source_nat_alone_does_not_count() {
    let stage = Stage::new("masquerade");
    stage.node.nft(&["add", "table", "ip", "nat"]);
    let chain = "{ type nat hook postrouting priority srcnat; }";
    stage
        .node
        .nft(&["add", "chain", "ip", "nat", "post", chain]);
    stage.node.nft(&[
        "add",
        "rule",
        "ip",
        "nat",
        "post",
        "ip",
        "saddr",
        "100.96.0.0/24",
        "masquerade",
    ]);
    let _proxy = stage.node.start(&stage.config(Some("auto")));
    stage.node.wait_metric(ACTIVE, &[], 1.0);
    stage.expect_direct_answers("masquerade");
}
