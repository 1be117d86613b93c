//! The seed's gateway: `sni-proxy` with its configuration and its routes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::netns::Namespace;
use testkit::process::ChildGuard;
use testkit::wait;

use super::network::GATEWAY;
use super::process;
use super::shoot::Shoot;

/// Writes the configuration and starts the gateway in the seed.
pub(super) fn start(program: &Path, seed: &Namespace, dir: &Path) -> Result<ChildGuard> {
    process::start((seed, dir), ("sni-proxy", program), CONFIG, || {
        matches!(probe(seed, "/readyz"), Ok(200))
    })
}

/// Waits until a metric has a value that `good` accepts.
pub(super) fn wait_metric(seed: &Namespace, name: &str, good: impl Fn(f64) -> bool) -> Result<f64> {
    let what = format!("the metric {name} to change");
    wait::until_some(&what, RELOAD_LIMIT, || {
        metric(seed, name).ok().filter(|value| good(*value))
    })
}

/// Returns a metric's value, summed over its labels; 0 where there is none.
pub(super) fn metric(seed: &Namespace, name: &str) -> Result<f64> {
    process::metric(seed, PROBES, name, &[])
}

/// Returns the status of a probe.
pub(super) fn probe(seed: &Namespace, path: &str) -> Result<u16> {
    process::probe(seed, PROBES, path)
}

/// A cluster of one endpoint besides those of API servers, and which clients it is for.
#[derive(Clone, Debug)]
pub(super) struct Extra {
    pub(super) cluster: String,
    pub(super) endpoint: SocketAddr,
    /// The route, without its cluster.
    pub(super) rule: Value,
}

impl Extra {
    /// For clients that ask for `host` by TLS server name.
    pub(super) fn by_name(host: &str, endpoint: SocketAddr) -> Self {
        let rule = json!({ "serverNames": [host] });
        Self::new(host, endpoint, rule)
    }

    /// For clients whose CONNECT carries `destination` in a header.
    pub(super) fn by_header(destination: &str, endpoint: SocketAddr) -> Self {
        let rule = json!({ "connectDestinations": [destination] });
        Self::new(destination, endpoint, rule)
    }

    /// For clients of WireGuard whose datagrams carry `route`, or whose server has `public_key`.
    pub(super) fn by_datagrams(route: u32, public_key: &str, endpoint: SocketAddr) -> Self {
        let rule = json!({ "wireguard": { "routeId": route, "publicKeys": [public_key] } });
        Self::new(&format!("datagrams-{route}"), endpoint, rule)
    }

    fn new(cluster: &str, endpoint: SocketAddr, rule: Value) -> Self {
        Self {
            cluster: cluster.to_owned(),
            endpoint,
            rule,
        }
    }
}

/// Writes the routes in one step, as an editor or a mounted ConfigMap does.
pub(super) fn write_routes(dir: &Path, shoots: &[&Shoot], named: &[&Shoot]) -> Result<()> {
    write_routes_with(dir, shoots, named, &[])
}

/// As [`write_routes`], with `more`.
fn write_routes_with(
    dir: &Path,
    shoots: &[&Shoot],
    named: &[&Shoot],
    more: &[Extra],
) -> Result<()> {
    let cluster = |name: &str, endpoint: SocketAddr| json!({ "name": name, "endpoints": [{ "address": endpoint }] });
    let more_clusters = more
        .iter()
        .map(|extra| cluster(&extra.cluster, extra.endpoint));
    let clusters: Vec<Value> = shoots
        .iter()
        .map(|shoot| cluster(&shoot.cluster, shoot.endpoint))
        .chain(more_clusters)
        .collect();
    let more = more.iter().map(|extra| {
        let mut rule = extra.rule.clone();
        rule["cluster"] = json!(extra.cluster);
        rule
    });
    let by_name = named
        .iter()
        .map(|shoot| json!({ "serverNames": [shoot.host], "cluster": shoot.cluster }))
        .chain(more);
    let by_address = shoots.iter().map(|shoot| {
        let destination = format!("{}/32", shoot.service);
        json!({ "destinations": [destination], "port": 443, "cluster": shoot.cluster })
    });
    let by_header = shoots
        .iter()
        .map(|shoot| json!({ "connectDestinations": [shoot.cluster], "cluster": shoot.cluster }));
    let routes: Vec<Value> = by_name.chain(by_address).chain(by_header).collect();
    replace_routes(dir, &render(&clusters, &routes))
}

/// Writes every route to `shoots`, and `more`, and waits until they are in effect.
pub(super) fn change_routes(
    seed: &Namespace,
    dir: &Path,
    shoots: &[&Shoot],
    more: &[Extra],
) -> Result<()> {
    let before = metric(seed, GENERATION)?;
    write_routes_with(dir, shoots, shoots, more)?;
    wait_metric(seed, GENERATION, |now| now > before)?;
    Ok(())
}

/// Puts `text` in the place of the routes' file.
pub(super) fn replace_routes(dir: &Path, text: &str) -> Result<()> {
    process::replace(&dir.join("routes.yaml"), text)
}

/// One entry per line, so that a person can edit it. JSON is YAML.
fn render(clusters: &[Value], routes: &[Value]) -> String {
    let list = |values: &[Value]| {
        values
            .iter()
            .map(|value| format!("- {value}\n"))
            .collect::<String>()
    };
    format!("clusters:\n{}routes:\n{}", list(clusters), list(routes))
}

/// Where users connect to.
pub(super) const TLS: SocketAddr = SocketAddr::new(GATEWAY, 443);
/// Where node proxies connect to.
pub(super) const NODE: SocketAddr = SocketAddr::new(GATEWAY, 8443);
/// Where tunnels come in by CONNECT.
pub(super) const VPN: SocketAddr = SocketAddr::new(GATEWAY, 8132);
/// Where they come in by datagrams.
pub(super) const WIREGUARD: SocketAddr = SocketAddr::new(GATEWAY, 51820);
/// Inside the seed.
pub(super) const PROBES: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15021);
/// How long it accepts after SIGTERM, and how long what it accepted may go on then.
pub(super) const DRAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));

const GENERATION: &str = "rhizome_snapshot_generation";
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
