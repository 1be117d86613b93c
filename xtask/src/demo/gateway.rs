//! The seed's gateway: `sni-proxy` with its configuration and its routes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::netns::Namespace;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::wait;

use super::network::GATEWAY;
use super::process;
use super::shoot::Shoot;
use crate::workspace::Programs;

pub(super) fn start(programs: &Programs, seed: &Namespace, dir: &TempDir) -> Result<ChildGuard> {
    let program = programs.get("sni-proxy")?;
    let ready = || process::is_ok(seed, PROBES, "/readyz");
    process::start((seed, dir), ("sni-proxy", program), CONFIG, ready)
}

/// Waits until a metric has a value that `good` accepts.
pub(super) fn wait_metric(seed: &Namespace, name: &str, good: impl Fn(f64) -> bool) -> Result<f64> {
    let what = format!("the metric {name} to change");
    let value = || metric(seed, name).ok().filter(|value| good(*value));
    wait::until_some(&what, RELOAD_LIMIT, value)
}

/// Returns a metric's value, summed over its labels; 0 where there is none.
pub(super) fn metric(seed: &Namespace, name: &str) -> Result<f64> {
    process::metric(seed, PROBES, name, &[])
}

pub(super) fn probe(seed: &Namespace, path: &str) -> Result<u16> {
    process::probe(seed, PROBES, path)
}

#[derive(Clone, Debug)]
pub(super) struct Extra {
    pub(super) cluster: String,
    pub(super) endpoints: Vec<SocketAddr>,
    /// The route, without its cluster.
    pub(super) rule: Value,
}

/// Writes the routes: by name to those of `shoots` that are `named`.
pub(super) fn write_routes(
    dir: &TempDir,
    shoots: &[Shoot],
    named: &[&Shoot],
    more: &[Extra],
) -> Result<()> {
    let one =
        |name: &str, endpoint| json!({ "name": name, "endpoints": [{ "address": endpoint }] });
    let several = |extra: &Extra| {
        let endpoints = extra.endpoints.iter();
        let endpoints: Vec<_> = endpoints.map(|own| json!({ "address": own })).collect();
        json!({ "name": extra.cluster, "endpoints": endpoints })
    };
    let (mut clusters, mut routes) = (Vec::new(), Vec::new());
    for shoot in shoots {
        let (cluster, service) = (&shoot.cluster, format!("{}/32", shoot.service));
        clusters.push(one(cluster, shoot.endpoint));
        routes.push(json!({ "destinations": [service], "port": 443, "cluster": cluster }));
        routes.push(json!({ "connectDestinations": [cluster], "cluster": cluster }));
    }
    for shoot in named {
        routes.push(json!({ "serverNames": [shoot.host], "cluster": shoot.cluster }));
    }
    for extra in more {
        clusters.push(several(extra));
        let mut rule = extra.rule.clone();
        rule["cluster"] = json!(extra.cluster);
        routes.push(rule);
    }
    // One entry per line, so that a person can edit it. JSON is YAML.
    let list = |values: Vec<Value>| -> String {
        let lines = values.iter().map(|value| format!("- {value}\n"));
        lines.collect()
    };
    let text = format!("clusters:\n{}routes:\n{}", list(clusters), list(routes));
    replace_routes(dir, &text)
}

pub(super) fn replace_routes(dir: &TempDir, text: &str) -> Result<()> {
    dir.replace("routes.yaml", text).map(drop)
}

/// Where users connect to.
pub(super) const TLS: SocketAddr = SocketAddr::new(GATEWAY, 443);
/// Where node proxies connect to.
pub(super) const NODE: SocketAddr = SocketAddr::new(GATEWAY, 8443);
/// Where tunnels come in by CONNECT.
pub(super) const VPN: SocketAddr = SocketAddr::new(GATEWAY, 8132);
/// Where they come in by datagrams.
pub(super) const WIREGUARD: SocketAddr = SocketAddr::new(GATEWAY, 51820);
pub(super) const PROBES: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15021);
/// How long it accepts after SIGTERM, and how long what it accepted may go on then.
pub(super) const DRAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));

/// A changed file is in effect within 2 s; the rest is for a slow machine.
const RELOAD_LIMIT: Duration = Duration::from_secs(5);
const CONFIG: &str = r#"workers: 2
probes: { address: "127.0.0.1:15021" }
admin: { address: "127.0.0.1:9901" }
listeners:
- { name: tls,  address: "192.0.2.1:443",  protocol: tls }
- { name: node, address: "192.0.2.1:8443", protocol: proxy-or-connect }
- { name: vpn,  address: "192.0.2.1:8132", protocol: connect }
- { name: wireguard, address: "192.0.2.1:51820", protocol: wireguard }
drain: { delay: 1s, timeout: 3s }
connect:
  headers: [X-Gardener-Destination, Reversed-VPN]
accessLog: { format: json }
routing: { file: routes.yaml }
"#;
