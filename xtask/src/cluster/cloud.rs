//! What a cloud and a DNS provider do for the clusters: addresses of Services of the type LoadBalancer, and
//! names of Services.
//!
//! Not CoreDNS, which Debian lacks: dnsmasq answers, from files written here. Names of pods and of
//! Services without an address are not answered.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::http::{Connection, Target};
use testkit::wait;

use super::control::{self, Cluster};
use super::network::BALANCER;
use crate::console::Console;

/// Serves both clusters until it is killed.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let console = Console::new();
    let mut clusters = [control::seed(root), control::shoot(root)].map(|one| (one, String::new()));
    loop {
        for (cluster, last) in &mut clusters {
            // An API server that is away will be there again.
            let failed = attend(root, cluster).err();
            let failed = failed.map_or_else(String::new, |error| format!("{error:#}"));
            if failed != *last {
                console.say(&format!("{}: {failed}", cluster.name));
                *last = failed;
            }
        }
        wait::pause(PERIOD);
    }
}

fn attend(root: &Path, cluster: &Cluster) -> Result<()> {
    let mut connection = Connection::open(&target(cluster)?)?;
    let services = connection.get("/api/v1/services")?;
    ensure!(services.status == 200, "{}", services.text());
    let services = services.json()?;
    let services = services["items"]
        .as_array()
        .context("no list of Services")?;
    let mut hosts: Vec<String> = services.iter().filter_map(host).collect();
    hosts.sort();
    write_hosts(root, cluster.name, &hosts.concat())?;
    let mut given: Vec<String> = services
        .iter()
        .filter_map(ingress)
        .map(str::to_owned)
        .collect();
    let first = u32::from(BALANCER.parse::<Ipv4Addr>()?) + cluster.balancers;
    for service in services {
        if service["spec"]["type"] != "LoadBalancer" || ingress(service).is_some() {
            continue;
        }
        let mut all = (0..64).map(|nth| Ipv4Addr::from(first + nth).to_string());
        let free = all.find(|address| !given.contains(address));
        let free = free.context("no address left for a load balancer")?;
        let mut service = service.clone();
        let (kind, version) = (json!("Service"), json!("v1"));
        (service["kind"], service["apiVersion"]) = (kind, version);
        service["status"]["loadBalancer"] = json!({ "ingress": [{ "ip": &free }] });
        let of = |field: &str| {
            service["metadata"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let path = format!(
            "/api/v1/namespaces/{}/services/{}/status",
            of("namespace"),
            of("name")
        );
        let answer = connection.request("PUT", &path, Some(&service.to_string()))?;
        ensure!(answer.status == 200, "{path}: {}", answer.text());
        given.push(free);
    }
    Ok(())
}

/// Writes what a DNS server answers, unless it is that already.
pub(crate) fn write_hosts(root: &Path, of: &str, text: &str) -> Result<()> {
    let directory = root.join("dns").join(of);
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let path = directory.join("hosts");
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let fresh = root.join("dns").join(format!("{of}.fresh"));
    fs::write(&fresh, text)
        .and_then(|()| fs::rename(&fresh, &path))
        .with_context(|| format!("writing {}", path.display()))
}

fn host(service: &Value) -> Option<String> {
    let of = |field: &str| service["metadata"][field].as_str();
    let address: Ipv4Addr = service["spec"]["clusterIP"].as_str()?.parse().ok()?;
    let (name, namespace) = (of("name")?, of("namespace")?);
    Some(format!("{address} {name}.{namespace}.svc.cluster.local\n"))
}

fn ingress(service: &Value) -> Option<&str> {
    service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()
}

pub(crate) fn target(cluster: &Cluster) -> Result<Target> {
    let read = |name: &str| {
        let path = cluster.directory.join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let url = cluster.server.trim_start_matches("https://");
    let (host, port) = url
        .split_once(':')
        .context("an API server without a port")?;
    let ip: Ipv4Addr = host.parse().unwrap_or(BALANCER.parse()?);
    let target = Target::tls(SocketAddr::from((ip, port.parse()?)), &read("ca.crt")?);
    let target = target.server_name(host).bearer(read("token")?.trim());
    Ok(target.timeout(LIMIT))
}

const PERIOD: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(5);
