//! Services: who leads connections to which pods, as rules of the kernel where clients are, and as Endpoints.
//!
//! ```text
//!   pods that are ready ─┬─▶ nft in the balancer's namespace: TCP, and datagrams without a memory
//!                        ├─▶ nft in clients' namespaces: a ClusterIP
//!                        └─▶ Endpoints in the API server ─▶ controller ─▶ gateway
//! ```
//!
//! New connections take turns; those that are there stay where they are, as with a node's kernel.

use std::fmt::Write as _;

use deploy::Objects;
use serde_json::{Value, json};
use testkit::command;
use testkit::netns::Namespace;
use testkit::tempdir::TempDir;

use crate::api::Api;
use crate::network::GATEWAY;

/// A port of a Service.
#[derive(Clone, Debug)]
struct Port {
    outside: u64,
    inside: u64,
    protocol: String,
}

/// Who knows where the pods of a Service are.
#[derive(Debug)]
pub(crate) enum Known<'n> {
    /// A load balancer, by asking the pods itself.
    Balancer(&'n Namespace),
    /// The kernels of clients, by this address of the Service.
    Clients(Vec<&'n Namespace>, String),
    /// The gateway, by Endpoints.
    Gateway,
}

/// A Service.
#[derive(Debug)]
pub(crate) struct Service<'n> {
    pub(crate) known: Known<'n>,
    /// The key of the workload whose pods it has, and the name of the pod if it has but one.
    pub(crate) workload: &'static str,
    pub(crate) pod: Option<&'static str>,
    /// Whether pods that are not ready belong to it.
    pub(crate) unready: bool,
    object: Value,
    ports: Vec<Port>,
    led_to: Option<Vec<String>>,
}

impl<'n> Service<'n> {
    /// Takes the Service `name` of a manifest.
    pub(crate) fn of(
        objects: &Objects,
        name: &str,
        known: Known<'n>,
        workload: &'static str,
        pod: Option<&'static str>,
    ) -> Self {
        let object = objects.get("Service", name).unwrap().clone();
        let ports = object["spec"]["ports"].as_array().unwrap().iter();
        let port = |own: &Value| Port {
            outside: own["port"].as_u64().unwrap(),
            inside: own["targetPort"].as_u64().unwrap(),
            protocol: own["protocol"].as_str().unwrap_or("TCP").to_lowercase(),
        };
        Self {
            known,
            workload,
            pod,
            unready: object["spec"]["publishNotReadyAddresses"] == true,
            ports: ports.map(port).collect(),
            object,
            led_to: None,
        }
    }

    /// Leads new connections to these addresses, if it did not yet.
    pub(crate) fn lead_to(&mut self, pods: Vec<String>, api: &Api<'_>) {
        if self.led_to.as_ref() == Some(&pods) {
            return;
        }
        match &self.known {
            Known::Balancer(at) => {
                rules(at, &self.balanced(&pods));
            }
            Known::Clients(all, address) => {
                for at in all {
                    rules(at, &self.of_a_cluster(address, &pods));
                }
            }
            Known::Gateway => self.endpoints(&pods, api),
        }
        self.led_to = Some(pods);
    }

    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    /// Streams stay where they are; a datagram goes where its source leads, among those that are there.
    fn balanced(&self, pods: &[String]) -> String {
        let mut text = String::from(
            "add table ip balancer\n\
             add chain ip balancer streams { type nat hook prerouting priority -100 ; }\n\
             add chain ip balancer datagrams { type filter hook prerouting priority -300 ; }\n\
             add chain ip balancer answers { type filter hook postrouting priority 300 ; }\n\
             flush table ip balancer\n",
        );
        for port in &self.ports {
            if port.protocol == "tcp" {
                let rule = format!("add rule ip balancer streams ip daddr {GATEWAY}");
                turns(&mut text, &rule, port, pods);
            } else {
                datagrams(&mut text, port, pods);
            }
        }
        text
    }

    fn of_a_cluster(&self, address: &str, pods: &[String]) -> String {
        let chain = self.name().replace('-', "_");
        let mut text = format!(
            "add table ip services\n\
             add chain ip services {chain} {{ type nat hook output priority -100 ; }}\n\
             flush chain ip services {chain}\n"
        );
        for port in &self.ports {
            let rule = format!("add rule ip services {chain} ip daddr {address}");
            turns(&mut text, &rule, port, pods);
        }
        text
    }

    fn endpoints(&self, pods: &[String], api: &Api<'_>) {
        let mut object = crate::objects::endpoints(&self.object, "");
        let addresses: Vec<Value> = pods.iter().map(|ip| json!({ "ip": ip })).collect();
        let subsets = match addresses.len() {
            0 => json!([]),
            _ => json!([{
                "addresses": addresses, "ports": object["subsets"][0]["ports"],
            }]),
        };
        object["subsets"] = subsets;
        let namespace = object["metadata"]["namespace"].as_str().unwrap();
        let all = format!("/api/v1/namespaces/{namespace}/endpoints");
        if self.led_to.is_none() {
            api.must("POST", &all, Some(&object));
        } else {
            api.must("PATCH", &format!("{all}/{}", self.name()), Some(&object));
        }
    }
}

/// Writes rules by which the pods take turns.
fn turns(text: &mut String, rule: &str, port: &Port, pods: &[String]) {
    let (outside, inside) = (port.outside, port.inside);
    for (place, pod) in pods.iter().enumerate() {
        let left = pods.len() - place;
        let _ = writeln!(
            text,
            "{rule} tcp dport {outside} numgen inc mod {left} == 0 dnat to {pod}:{inside}"
        );
    }
}

/// Writes rules that have no memory: an answer is the balancer's, whichever program gave it.
fn datagrams(text: &mut String, port: &Port, pods: &[String]) {
    let (outside, inside) = (port.outside, port.inside);
    let places = pods.iter().enumerate();
    let map: Vec<String> = places.map(|(n, pod)| format!("{n} : {pod}")).collect();
    let (all, map) = (pods.len(), map.join(", "));
    let rule = format!("add rule ip balancer datagrams ip daddr {GATEWAY} udp dport {outside}");
    let _ = match all {
        0 => writeln!(text, "{rule} drop"),
        _ => writeln!(
            text,
            "{rule} notrack ip daddr set jhash ip saddr . udp sport mod {all} seed 1 map {{ {map} }} \
             udp dport set {inside}"
        ),
    };
    let _ = writeln!(
        text,
        "add rule ip balancer answers ip saddr 10.0.0.0/16 udp sport {inside} oifname \"inet\" \
         ip saddr set {GATEWAY} udp sport set {outside}"
    );
}

fn rules(at: &Namespace, text: &str) {
    // Away with it also when a rule is refused.
    let directory = TempDir::new("rules").unwrap();
    let file = directory.write("rules.nft", text).unwrap();
    let mut nft = at.command(command::require("nft").unwrap());
    let done = command::run(nft.arg("-f").arg(&file));
    done.unwrap_or_else(|error| panic!("{error:#}\n{text}"));
    // A connection that its pod reset is remembered for 10 s, in which the kernel leads who comes from the same
    // port to that pod, though it is gone. Clients here have some hundred connections in that time, and do.
    at.set_sysctl("netfilter/nf_conntrack_tcp_timeout_close", "0")
        .unwrap();
}
