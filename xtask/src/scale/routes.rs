//! 10,000 routes to a gateway: the first sync, one endpoint's change, one shoot's change.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::http::{self, Target};
use testkit::ports;
use testkit::process::ChildGuard;
use testkit::wait::{self, Stopwatch};

use super::cluster::{Cluster, Controller, judge, soon};
use crate::console::Console;

const NAMESPACES: usize = 500;
const SERVICES: usize = 20;
const ROUTES: usize = NAMESPACES * SERVICES;
const CHANGES: usize = 200;

const SYNC: Duration = Duration::from_secs(2);
const CHANGE: Duration = Duration::from_millis(100);

/// Octets that one endpoint's change may cost: its assignment and what frames it.
const CHANGE_OCTETS: f64 = 1024.0;

const PUSHED: &str = "rhizome_xds_push_bytes_total";

pub(super) fn measure(
    console: &mut Console,
    program: &Path,
    gateway: &Path,
    cluster: &Cluster,
) -> Result<()> {
    console.step("routes", "objects are created", || {
        cluster.fill(&namespaces())?;
        cluster.fill(&services())?;
        cluster.fill(&endpoints())?;
        Ok((
            (),
            format!("{ROUTES} routed Services in {NAMESPACES} namespaces"),
        ))
    });
    let port = ports::free(1)?.first().copied().context("a free port")?;
    let xds = SocketAddr::from(([127, 0, 0, 1], port));
    let started = console.step("routes", "the controller translates them", || {
        start(program, cluster, xds)
    });
    let Some(controller) = started else {
        return Ok(());
    };
    let synced = console.step("routes", "a gateway's first sync", || {
        sync(gateway, cluster, &controller, xds)
    });
    let Some(gateway) = synced else {
        return Ok(());
    };
    console.step("routes", "one endpoint changes", || {
        change(&controller, &gateway, cluster)
    });
    console.step("routes", "one shoot comes", || {
        come(&controller, &gateway, cluster)
    });
    Ok(())
}

fn namespace(index: usize) -> String {
    format!("shoot--routed--{index:03}")
}

fn service(index: usize) -> String {
    format!("kube-apiserver-{index}")
}

fn namespaces() -> Vec<(String, Value)> {
    let all = (0..NAMESPACES).map(|index| {
        let object = json!({ "metadata": { "name": namespace(index) } });
        ("/api/v1/namespaces".to_owned(), object)
    });
    all.collect()
}

fn each() -> impl Iterator<Item = (usize, usize)> {
    (0..NAMESPACES).flat_map(|index| (0..SERVICES).map(move |own| (index, own)))
}

fn services() -> Vec<(String, Value)> {
    each().map(|(index, own)| routed(index, own)).collect()
}

fn routed(index: usize, own: usize) -> (String, Value) {
    let name = format!("api.s{own}.p{index}.internal.example.com");
    let object = json!({
        "metadata": { "name": service(own), "annotations": {
            "rhizome.gardener.cloud/server-names": name,
        } },
        "spec": {
            "clusterIP": "None",
            "selector": { "app": "kubernetes" },
            "ports": [{ "name": "https", "port": 443, "targetPort": 443 }],
        },
    });
    (
        format!("/api/v1/namespaces/{}/services", namespace(index)),
        object,
    )
}

fn endpoints() -> Vec<(String, Value)> {
    each().map(|(index, own)| backends(index, own, 1)).collect()
}

fn backends(index: usize, own: usize, last: usize) -> (String, Value) {
    let ip = format!("10.{}.{}.{last}", 64 + index % 64, own);
    let object = json!({
        "metadata": { "name": service(own) },
        "subsets": [{
            "addresses": [{ "ip": ip }],
            "ports": [{ "name": "https", "port": 443 }],
        }],
    });
    (
        format!("/api/v1/namespaces/{}/endpoints", namespace(index)),
        object,
    )
}

fn start(program: &Path, cluster: &Cluster, xds: SocketAddr) -> Result<(Controller, String)> {
    let controllers = format!(
        "  networkPolicy: {{ enabled: false }}\n  routing:\n    enabled: true\n    \
         gateways: [{{ name: default, namespace: istio-ingress, \
         selector: {{ istio: ingressgateway }} }}]\n    xds: {{ address: \"{xds}\" }}\n"
    );
    let clock = Stopwatch::start();
    let controller = cluster.controller(program, &controllers)?;
    controller.wait_ready()?;
    let took = clock.elapsed();
    let routes = || controller.sum("rhizome_netpol_routes", &[("gateway", "default")]);
    wait::until("all routes", Duration::from_secs(10), || {
        routes().is_ok_and(|routes| routes == ROUTES as f64)
    })
    .with_context(|| format!("{:?} routes", routes()))?;
    let usage = controller.child.usage()?;
    let told = format!(
        "{ROUTES} routes {:.2} s after its start; processor {:.2} s; resident {} KiB, at most {} KiB",
        took.as_secs_f64(),
        usage.cpu_time.as_secs_f64(),
        usage.rss_kib,
        usage.peak_rss_kib
    );
    Ok((controller, told))
}

/// A gateway and which of its snapshots was seen last.
struct Gateway {
    child: ChildGuard,
}

impl Gateway {
    fn generation(&self) -> u64 {
        let log = self.child.log();
        let last = log
            .lines()
            .rev()
            .find_map(|line| line.split_once("generation="));
        let text = last.map_or("0", |(_, rest)| rest.split(' ').next().unwrap_or("0"));
        text.parse().unwrap_or(0)
    }
}

fn sync(
    program: &Path,
    cluster: &Cluster,
    controller: &Controller,
    xds: SocketAddr,
) -> Result<(Gateway, String)> {
    let free = ports::free(2)?;
    let at = |index: usize| -> Result<SocketAddr> {
        let port = free.get(index).context("too few ports")?;
        Ok(SocketAddr::from(([127, 0, 0, 1], *port)))
    };
    let (tls, probes) = (at(0)?, at(1)?);
    let config = cluster.dir.join("gateway.yaml");
    let text = format!(
        "workers: 1\nprobes: {{ address: \"{probes}\" }}\nadmin: {{ address: \"\" }}\n\
         listeners:\n- {{ name: tls, address: \"{tls}\", protocol: tls }}\n\
         routing: {{ xds: {{ server: \"http://{xds}\", node: gateway-0 }} }}\n"
    );
    std::fs::write(&config, text).context("writing the gateway's configuration")?;
    let mut command = Command::new(program);
    command.arg("--config").arg(&config).env("RUST_LOG", "info");
    let clock = Stopwatch::start();
    let child = ChildGuard::spawn("sni-proxy", &command, &cluster.dir.join("gateway.log"))?;
    let target = Target::plain(probes);
    soon("the gateway to be ready", || {
        Ok(http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200))
    })?;
    let took = clock.elapsed();
    let usage = child.usage()?;
    // Ready with a part of them would be worse than not ready.
    let first = format!("generation=1 clusters={ROUTES} routes={ROUTES}");
    let log = child.log();
    ensure!(log.contains(&first), "not all routes at first: {log}");
    let gateway = Gateway { child };
    let octets = controller.sum(PUSHED, &[])?;
    let told = format!(
        "{:.0} ms from its start (limit {} ms), {:.1} MB; processor {:.2} s; resident {} KiB, at most {} KiB",
        took.as_secs_f64() * 1000.0,
        SYNC.as_millis(),
        octets / 1e6,
        usage.cpu_time.as_secs_f64(),
        usage.rss_kib,
        usage.peak_rss_kib
    );
    ensure!(took <= SYNC, "{told}");
    Ok((gateway, told))
}

fn change(controller: &Controller, gateway: &Gateway, cluster: &Cluster) -> Result<((), String)> {
    let mut connection = cluster.connection()?;
    let before = controller.sum(PUSHED, &[])?;
    let (ours, theirs) = (
        controller.child.usage()?.cpu_time,
        gateway.child.usage()?.cpu_time,
    );
    let mut delays = Vec::with_capacity(CHANGES);
    for turn in 0..CHANGES {
        let (index, own) = (turn % NAMESPACES, turn % SERVICES);
        let (path, object) = backends(index, own, 2);
        let path = format!("{path}/{}", service(own));
        let generation = gateway.generation();
        let clock = Stopwatch::start();
        let answer = connection.request("PATCH", &path, Some(&object.to_string()))?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        soon("the change to be in force", || {
            Ok(gateway.generation() > generation)
        })?;
        delays.push(clock.elapsed());
    }
    let octets = (controller.sum(PUSHED, &[])? - before) / CHANGES as f64;
    let each = |before: Duration, after: Duration| {
        after.saturating_sub(before).as_secs_f64() * 1000.0 / CHANGES as f64
    };
    let told = format!(
        "from the request to the snapshot in force {}; {octets:.0} octets each (limit {CHANGE_OCTETS}); \
         processor each: controller {:.1} ms, gateway {:.1} ms",
        judge(delays, CHANGE)?,
        each(ours, controller.child.usage()?.cpu_time),
        each(theirs, gateway.child.usage()?.cpu_time),
    );
    ensure!(octets <= CHANGE_OCTETS, "{told}");
    Ok(((), told))
}

fn come(controller: &Controller, gateway: &Gateway, cluster: &Cluster) -> Result<((), String)> {
    let before = controller.sum(PUSHED, &[])?;
    let namespace = json!({ "metadata": { "name": namespace(NAMESPACES) } });
    let (path, service) = routed(NAMESPACES, 0);
    let (at, backends) = backends(NAMESPACES, 0, 1);
    let generation = gateway.generation();
    let objects = [
        ("/api/v1/namespaces".to_owned(), namespace),
        (at, backends),
        (path, service),
    ];
    let clock = Stopwatch::start();
    for object in objects {
        cluster.fill(&[object])?;
    }
    soon("the route to be in force", || {
        Ok(gateway.generation() > generation)
    })?;
    let took = clock.elapsed();
    wait::pause(Duration::from_millis(500));
    let octets = controller.sum(PUSHED, &[])? - before;
    let told = format!(
        "in force {:.1} ms after its namespace was asked for; {octets:.0} octets of {ROUTES} routes",
        took.as_secs_f64() * 1000.0
    );
    ensure!(octets < 8.0 * CHANGE_OCTETS, "{told}");
    Ok(((), told))
}
