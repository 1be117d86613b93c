//! NetworkPolicies of the seed, enforced: what they let through as rules of nftables on its node.
//!
//! ```text
//!   API server ─ namespaces, pods, policies ─▶ what may connect where ─▶ nft: forward, input
//! ```
//!
//! What policies mean is [`testkit::netpol`]'s matter; here are only the pairs. A pod that is not known yet
//! is open until the next look. What the node itself sends is open, as with every plugin: kubelets probe.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::http::Connection;
use testkit::netpol::{Blocks, Cluster, End, Labels, Pod, Protocol};
use testkit::{netns, wait};

use super::load::EndOnDrop;
use super::machine::Machine;
use super::up::Clusters;
use super::{cloud, control, network};

/// Enforces the seed's policies while `work` runs. Fails if they were not for long: the API server may be away
/// for a while, or the node, and what holds goes on to hold.
pub(crate) fn during<T>(clusters: &Clusters, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let node = Machine::at(&clusters.root, network::SEED[0].name);
    enforce(clusters, &node)?;
    let over = AtomicBool::new(false);
    let (done, stale) = std::thread::scope(|scope| {
        let keeping = scope.spawn(|| keep(clusters, &node, &over));
        let end = EndOnDrop(&over);
        let done = work();
        drop(end);
        let stale = keeping.join();
        (
            done,
            stale.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    end(clusters);
    ensure!(stale < STALE, "policies were not looked at for {stale:.0?}");
    done
}

/// Enforces nothing any more.
pub(crate) fn end(clusters: &Clusters) {
    let node = Machine::at(&clusters.root, network::SEED[0].name);
    let _ = node.run("nft delete table ip policies");
}

/// Returns the longest time for which nothing could be looked at.
fn keep(clusters: &Clusters, node: &Machine, over: &AtomicBool) -> Duration {
    let (mut last, mut stale) = (wait::Stopwatch::start(), Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        let looked = enforce(clusters, node);
        stale = stale.max(last.elapsed());
        if looked.is_ok() {
            last = wait::Stopwatch::start();
        }
        wait::pause(PERIOD);
    }
    stale
}

fn enforce(clusters: &Clusters, node: &Machine) -> Result<()> {
    let seed = control::seed(&clusters.root);
    let router = clusters.router.init().context("no router")?;
    let namespace = PathBuf::from(format!("/proc/{router}/ns/net"));
    let lists = netns::inside(&namespace, || {
        let mut connection = Connection::open(&cloud::target(&seed)?)?;
        let mut list = |path: &str| {
            let answer = connection.get(path)?;
            ensure!(answer.status == 200, "{path}: {}", answer.status);
            let items = answer.json()?["items"].take();
            serde_json::from_value::<Vec<Value>>(items).context("no list")
        };
        anyhow::Ok([
            list("/api/v1/namespaces")?,
            list("/api/v1/pods")?,
            list("/apis/networking.k8s.io/v1/networkpolicies")?,
        ])
    })?;
    let [namespaces, pods, policies] = lists?;
    let rules = rules(&namespaces, &pods, &policies)?;
    let last = node.directory().join("policies.nft");
    if std::fs::read_to_string(&last).is_ok_and(|old| old == rules) && node.run(LISTED).is_ok() {
        return Ok(());
    }
    std::fs::write(&last, rules).context("writing rules")?;
    let mut nft: Command = node.command("nft")?;
    nft.arg("--file").arg(&last).stdin(Stdio::null());
    testkit::command::run(&mut nft).map(|_| ())
}

fn labels(value: &Value) -> Labels {
    let all = value.as_object().into_iter().flatten();
    all.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

fn rules(namespaces: &[Value], pods: &[Value], policies: &[Value]) -> Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespaces: BTreeMap<String, Labels> = namespaces
        .iter()
        .map(|own| {
            (
                text(&own["metadata"]["name"]),
                labels(&own["metadata"]["labels"]),
            )
        })
        .collect();
    let mut ports: BTreeSet<u16> = BTreeSet::new();
    for own in pods.iter().chain(policies) {
        collect_ports(own, &mut ports);
    }
    let known = pods.iter().filter_map(|own| {
        let ip: Ipv4Addr = own["status"]["podIP"].as_str()?.parse().ok()?;
        let ours = own["spec"]["hostNetwork"] != true && own["status"]["phase"] == "Running";
        ours.then(|| Pod {
            namespace: text(&own["metadata"]["namespace"]),
            name: text(&own["metadata"]["name"]),
            labels: labels(&own["metadata"]["labels"]),
            ip: IpAddr::V4(ip),
            ports: Vec::new(),
        })
    });
    let known: Vec<Pod> = known.collect();
    let cluster = Cluster::new(namespaces, policies, Blocks::LeaveOutPods)?;
    let world: IpAddr = "198.51.100.7".parse()?;
    let node: IpAddr = network::SEED[0].address.parse()?;
    let all: Vec<String> = known.iter().map(|pod| pod.ip.to_string()).collect();
    let all = all.join(", ");
    let mut forward = String::new();
    let mut input = String::new();
    let allow = |to: &mut String, ends: (End<'_>, End<'_>), of: &str| {
        for (protocol, name) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")] {
            let may = |port: &&u16| cluster.allows(ends.0, ends.1, protocol, **port);
            if cluster.allows(ends.0, ends.1, protocol, UNUSED) {
                to.push_str(&format!("    {of} meta l4proto {name} accept\n"));
                continue;
            }
            let open: Vec<String> = ports.iter().filter(may).map(u16::to_string).collect();
            if !open.is_empty() {
                let open = open.join(", ");
                to.push_str(&format!("    {of} {name} dport {{ {open} }} accept\n"));
            }
        }
    };
    for pod in &known {
        let ip = pod.ip;
        for other in &known {
            let of = format!("ip saddr {ip} ip daddr {}", other.ip);
            allow(&mut forward, (End::Pod(pod), End::Pod(other)), &of);
        }
        let of = format!("ip saddr != {{ {all} }} ip daddr {ip}");
        allow(&mut forward, (End::Address(world), End::Pod(pod)), &of);
        let of = format!("ip saddr {ip} ip daddr != {{ {all} }}");
        allow(&mut forward, (End::Pod(pod), End::Address(world)), &of);
        allow(
            &mut input,
            (End::Pod(pod), End::Address(node)),
            &format!("ip saddr {ip}"),
        );
    }
    let begin = "ct state established,related accept\n";
    // What belongs to no connection the node's kernel answers, as without policies: by that an old connection of
    // the same ports ends, which would be in a new one's way for a minute.
    let invalid = "    ct state invalid accept\n";
    Ok(format!(
        "table ip policies\ndelete table ip policies\ntable ip policies {{\n\
         \x20 chain forward {{\n    type filter hook forward priority 10\n    {begin}{forward}\
         \x20   ip saddr {{ {all} }} counter drop\n    ip daddr {{ {all} }} counter drop\n  }}\n\
         \x20 chain input {{\n    type filter hook input priority 10\n    {begin}{invalid}{input}\
         \x20   ip saddr {{ {all} }} counter drop\n  }}\n}}\n"
    ))
}

/// Finds the ports that an object names by number.
fn collect_ports(value: &Value, into: &mut BTreeSet<u16>) {
    match value {
        Value::Object(fields) => {
            for (key, own) in fields {
                let number = own.as_u64().and_then(|number| u16::try_from(number).ok());
                into.extend(number.filter(|_| key == "port" || key == "containerPort"));
                collect_ports(own, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_ports(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A port that no policy names.
const UNUSED: u16 = 1;
const LISTED: &str = "nft list table ip policies >/dev/null";
const PERIOD: Duration = Duration::from_millis(500);
const STALE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_hold_what_policies_say_of_each_pair() {
        let pod = |name: &str, ip: &str| {
            json!({
                "metadata": { "name": name, "namespace": "n", "labels": { "app": name } },
                "spec": {}, "status": { "podIP": ip, "phase": "Running" },
            })
        };
        let namespace = json!({ "metadata": { "name": "n" } });
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "own", "namespace": "n" },
            "spec": {
                "podSelector": { "matchLabels": { "app": "b" } }, "policyTypes": ["Ingress"],
                "ingress": [{
                    "from": [{ "podSelector": { "matchLabels": { "app": "a" } } }],
                    "ports": [{ "port": 443, "protocol": "TCP" }],
                }],
            },
        });
        let pods = [pod("a", "10.0.0.2"), pod("b", "10.0.0.3")];
        let rules = rules(&[namespace], &pods, &[policy]).unwrap();
        let has = |rule: &str| rules.lines().any(|line| line.trim() == rule);
        assert!(
            has("ip saddr 10.0.0.2 ip daddr 10.0.0.3 tcp dport { 443 } accept"),
            "{rules}"
        );
        assert!(
            has("ip saddr 10.0.0.3 ip daddr 10.0.0.2 meta l4proto tcp accept"),
            "{rules}"
        );
        let from_outside = "ip saddr != { 10.0.0.2, 10.0.0.3 } ip daddr 10.0.0.3";
        assert!(!rules.contains(from_outside), "{rules}");
        assert!(
            has("ip daddr { 10.0.0.2, 10.0.0.3 } counter drop"),
            "{rules}"
        );
    }
}
