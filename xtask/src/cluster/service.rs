//! The Service `kubernetes`, as pods and nodes of the shoot use it, with each value of the node proxy's `noTrack`,
//! translated by kube-proxy and by rules of nftables.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use deploy::gardener::ADVERTISED;
use serde_json::json;
use testkit::wait;

use super::machine::Machine;
use super::network::{self, Node};
use super::up::{Clusters, ROLLOUT_LIMIT};
use super::{control, demo};

/// Asks with `off` and `auto`, which must not break it, then has `on` refuse to start.
pub(crate) fn by_kube_proxy(clusters: &Clusters) -> Result<String> {
    let on_time = set_no_track(clusters, "auto")
        .and_then(|()| ask(clusters))
        .and_then(|()| refuse(clusters));
    // Whatever happened.
    set_no_track(clusters, "off")?;
    on_time?;
    ask(clusters)?;
    Ok("asked with auto and off; with on the node proxy does not start and says why".to_owned())
}

/// The same translated by rules of nftables, with kube-proxy stopped on both nodes.
pub(crate) fn by_nftables(clusters: &Clusters) -> Result<String> {
    let stopped = network::SHOOT
        .iter()
        .try_for_each(|node| replace_kube_proxy(clusters, node));
    let asked = stopped
        .and_then(|()| ask(clusters))
        .and_then(|()| set_no_track(clusters, "auto"))
        .and_then(|()| ask(clusters))
        .and_then(|()| set_no_track(clusters, "off"));
    for node in &network::SHOOT {
        let machine = Machine::at(&clusters.root, node.name);
        let _ = machine.run("nft delete table ip services");
        // It starts again, and writes its rules.
        machine.kill("kube-proxy")?;
    }
    asked?;
    wait::until_ok("kube-proxy's rules", ROLLOUT_LIMIT, || ask(clusters))?;
    Ok("asked with off and auto".to_owned())
}

/// From every visitor: pods with a network of their own, and the host's.
fn ask(clusters: &Clusters) -> Result<()> {
    for label in ["app=visitor", "app=host-visitor"] {
        for pod in demo::pods(clusters, label)? {
            demo::ask_kubernetes(clusters, &pod)?;
        }
    }
    Ok(())
}

fn set_no_track(clusters: &Clusters, value: &str) -> Result<()> {
    write_no_track(clusters, value)?;
    let rolled = clusters
        .shoot
        .rolled_out("kube-system", DAEMON_SET, ROLLOUT_LIMIT);
    rolled.with_context(|| format!("noTrack: {value}"))
}

/// With `on` beside kube-proxy no pod may become ready, and its log names what is in the way.
fn refuse(clusters: &Clusters) -> Result<()> {
    write_no_track(clusters, "on")?;
    let selector = "app.kubernetes.io/name=apiserver-proxy";
    let list = ["--namespace", "kube-system", "pods", "--selector", selector];
    wait::until_ok("a node proxy that refuses to start", ROLLOUT_LIMIT, || {
        let pods = clusters.shoot.get(&list)?;
        for pod in pods["items"].as_array().context("no list of pods")? {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let setup = &pod["status"]["initContainerStatuses"][0];
            let proxy = &pod["status"]["containerStatuses"][0];
            for (state, container) in [(setup, "setup"), (proxy, "proxy")] {
                let ended = &state["lastState"]["terminated"]["exitCode"];
                if ended.as_i64().unwrap_or(0) == 0 {
                    continue;
                }
                let log = ["logs", name, "--previous", "--container", container];
                let log = [&list[..2], &log[..]].concat();
                let log = clusters.shoot.run(&log)?;
                ensure!(log.contains("destination NAT"), "{name} says: {log}");
                return Ok(());
            }
        }
        wait::pause(Duration::from_secs(1));
        anyhow::bail!("all run")
    })
}

fn write_no_track(clusters: &Clusters, value: &str) -> Result<()> {
    let set = ["--namespace", "kube-system", DAEMON_SET];
    let set = clusters.shoot.get(&set)?;
    let mut volumes = set["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .into_iter()
        .flatten();
    let map = volumes.find_map(|volume| volume["configMap"]["name"].as_str());
    let map = map.context("the node proxy has no ConfigMap")?;
    let words = ["--namespace", "kube-system", "configmap", map];
    let before = clusters.shoot.get(&words)?;
    let before = before["data"][FILE].as_str();
    let lines = before.with_context(|| format!("no {FILE}"))?.lines();
    let lines = lines.map(|line| match line.starts_with("noTrack:") {
        true => format!("noTrack: \"{value}\"\n"),
        false => format!("{line}\n"),
    });
    let text = lines.collect::<String>();
    ensure!(text.contains("noTrack"), "{FILE} has no noTrack");
    clusters
        .shoot
        .patch(&words, &json!({ "data": { FILE: text } }))?;
    let restart = ["rollout", "restart", DAEMON_SET];
    let restart = [&words[..2], &restart].concat();
    clusters.shoot.run(&restart).map(|_| ())
}

/// Stops kube-proxy, and has nftables translate what pods need here: the API server and DNS.
fn replace_kube_proxy(clusters: &Clusters, node: &Node) -> Result<()> {
    let machine = Machine::at(&clusters.root, node.name);
    let dns = control::shoot(&clusters.root).dns;
    let (address, kubernetes) = (node.address, "100.64.0.1");
    let translate = format!(
        "ip daddr {kubernetes} tcp dport 443 dnat to {ADVERTISED}:443; \
         ip daddr {dns} udp dport 53 dnat to {address}:53; \
         ip daddr {dns} tcp dport 53 dnat to {address}:53;"
    );
    machine.run(&format!(
        "kill -STOP $(cat /var/log/kube-proxy.pid) && \
         iptables -t nat -F PREROUTING && iptables -t nat -F OUTPUT && \
         nft 'table ip services {{ \
           chain prerouting {{ type nat hook prerouting priority -100; {translate} }}; \
           chain output {{ type nat hook output priority -100; {translate} }}; }}'"
    ))?;
    Ok(())
}

const DAEMON_SET: &str = "daemonset/apiserver-proxy";
const FILE: &str = "apiserver-proxy.yaml";
