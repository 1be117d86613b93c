//! Routes to a gateway: from none, the first sync, one endpoint's change, one shoot's.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::http::{self, Target};
use testkit::ports;
use testkit::process::ChildGuard;
use testkit::wait::{self, Stopwatch};

use super::cluster::{Running, soon};
use super::{Lab, figure as of, known, mib};
use crate::latency::Latencies;

/// Routed Services of a namespace.
pub(super) const EACH: usize = 20;

const ROUTES: &str = "rhizome_netpol_routes";
const PUSHED: &str = "rhizome_xds_push_bytes_total";

/// Measures with so many namespaces.
///
/// # Errors
/// When the API server, the controller or the gateway fails.
pub(super) fn measure(lab: &mut Lab, spaces: usize) -> Result<()> {
    lab.progress.step("routes: objects are created");
    lab.cluster.fill(&namespaces(spaces))?;
    lab.cluster.fill(&services(spaces))?;
    lab.cluster.fill(&endpoints(spaces))?;
    let port = ports::free(1)?.first().copied().context("a free port")?;
    let xds = SocketAddr::from(([127, 0, 0, 1], port));
    lab.progress.step(known::TRANSLATE);
    let controller = translate(lab, xds, spaces * EACH)?;
    lab.progress.step(known::SYNC);
    let gateway = sync(lab, &controller, xds, spaces * EACH)?;
    lab.progress.step(known::ENDPOINT);
    change(lab, &controller, &gateway, spaces)?;
    lab.progress.step(known::SHOOT);
    come(lab, &controller, &gateway, spaces)
}

fn namespace(index: usize) -> String {
    format!("shoot--routed--{index:03}")
}

fn service(index: usize) -> String {
    format!("kube-apiserver-{index}")
}

fn namespaces(spaces: usize) -> Vec<(String, Value)> {
    let all = (0..spaces).map(|index| {
        let object = json!({ "metadata": { "name": namespace(index) } });
        ("/api/v1/namespaces".to_owned(), object)
    });
    all.collect()
}

fn each(spaces: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..spaces).flat_map(|index| (0..EACH).map(move |own| (index, own)))
}

fn services(spaces: usize) -> Vec<(String, Value)> {
    each(spaces)
        .map(|(index, own)| routed(index, own))
        .collect()
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

fn endpoints(spaces: usize) -> Vec<(String, Value)> {
    each(spaces)
        .map(|(index, own)| backends(index, own, 1))
        .collect()
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

fn translate(lab: &mut Lab, xds: SocketAddr, due: usize) -> Result<Running> {
    let controllers = format!(
        "  networkPolicy: {{ enabled: false }}\n  routing:\n    enabled: true\n    \
         gateways: [{{ name: default, namespace: istio-ingress, \
         selector: {{ istio: ingressgateway }} }}]\n    xds: {{ address: \"{xds}\" }}\n"
    );
    let clock = Stopwatch::start();
    let controller = lab.cluster.controller(&lab.controller, &controllers)?;
    controller.wait_ready()?;
    let took = clock.elapsed();
    let routes = || controller.sum(ROUTES, &[("gateway", "default")]);
    wait::until("all routes", Duration::from_secs(10), || {
        routes().is_ok_and(|routes| routes == due as f64)
    })
    .with_context(|| format!("{:?} routes", routes()))?;
    let usage = controller.child.usage()?;
    lab.add(known::TRANSLATE, of::TOOK, took.as_secs_f64());
    lab.add(known::TRANSLATE, of::CPU, usage.cpu_time.as_secs_f64());
    lab.add(known::TRANSLATE, of::RESIDENT, mib(usage.rss_kib));
    lab.add(known::TRANSLATE, of::PEAK, mib(usage.peak_rss_kib));
    Ok(controller)
}

/// A gateway, which tells in its log which snapshot is in force.
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

fn sync(lab: &mut Lab, controller: &Running, xds: SocketAddr, routes: usize) -> Result<Gateway> {
    let free = ports::free(2)?;
    let at = |index: usize| -> Result<SocketAddr> {
        let port = free.get(index).context("too few ports")?;
        Ok(SocketAddr::from(([127, 0, 0, 1], *port)))
    };
    let (tls, probes) = (at(0)?, at(1)?);
    let dir = &lab.cluster.dir;
    let config = dir.join("gateway.yaml");
    let text = format!(
        "workers: 1\nprobes: {{ address: \"{probes}\" }}\nadmin: {{ address: \"\" }}\n\
         listeners:\n- {{ name: tls, address: \"{tls}\", protocol: tls }}\n\
         routing: {{ xds: {{ server: \"http://{xds}\", node: gateway-0 }} }}\n"
    );
    std::fs::write(&config, text).context("writing the gateway's configuration")?;
    let mut command = Command::new(&lab.gateway);
    command.arg("--config").arg(&config).env("RUST_LOG", "info");
    let clock = Stopwatch::start();
    let child = ChildGuard::spawn("sni-proxy", &command, &dir.join("gateway.log"))?;
    let target = Target::plain(probes);
    soon("the gateway to be ready", || {
        Ok(http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200))
    })?;
    let took = clock.elapsed();
    let usage = child.usage()?;
    // Ready with a part of them would be worse than not ready.
    let first = format!("generation=1 clusters={routes} routes={routes}");
    let log = child.log();
    ensure!(log.contains(&first), "not all routes at first: {log}");
    lab.add(known::SYNC, of::SYNC, took.as_secs_f64() * 1e3);
    lab.add(known::SYNC, of::OCTETS, controller.sum(PUSHED, &[])?);
    lab.add(known::SYNC, of::CPU_GATEWAY, usage.cpu_time.as_secs_f64());
    lab.add(known::SYNC, of::GATEWAY_RESIDENT, mib(usage.rss_kib));
    lab.add(known::SYNC, of::GATEWAY_PEAK, mib(usage.peak_rss_kib));
    Ok(Gateway { child })
}

fn change(lab: &mut Lab, controller: &Running, gateway: &Gateway, spaces: usize) -> Result<()> {
    let mut connection = lab.cluster.connection()?;
    let before = controller.sum(PUSHED, &[])?;
    let (ours, theirs) = (
        controller.child.usage()?.cpu_time,
        gateway.child.usage()?.cpu_time,
    );
    let mut delays = Latencies::new()?;
    for turn in 0..lab.changes {
        let (index, own) = (turn % spaces, turn / spaces % EACH);
        let (path, object) = backends(index, own, 2);
        let path = format!("{path}/{}", service(own));
        let generation = gateway.generation();
        let clock = Stopwatch::start();
        let answer = connection.request("PATCH", &path, Some(&object.to_string()))?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        soon("the change to be in force", || {
            Ok(gateway.generation() > generation)
        })?;
        delays.record(clock.elapsed());
    }
    let changes = lab.changes as f64;
    let each = |before: Duration, after: Duration| {
        after.saturating_sub(before).as_secs_f64() * 1e3 / changes
    };
    let ours = each(ours, controller.child.usage()?.cpu_time);
    let theirs = each(theirs, gateway.child.usage()?.cpu_time);
    let octets = (controller.sum(PUSHED, &[])? - before) / changes;
    lab.delays(known::ENDPOINT, &delays)?;
    lab.add(known::ENDPOINT, of::OCTETS, octets);
    lab.add(known::ENDPOINT, of::CPU_EACH, ours);
    lab.add(known::ENDPOINT, of::CPU_GATEWAY_EACH, theirs);
    Ok(())
}

fn come(lab: &mut Lab, controller: &Running, gateway: &Gateway, spaces: usize) -> Result<()> {
    let before = controller.sum(PUSHED, &[])?;
    let namespace = json!({ "metadata": { "name": namespace(spaces) } });
    let (path, service) = routed(spaces, 0);
    let (at, backends) = backends(spaces, 0, 1);
    let generation = gateway.generation();
    let objects = [
        ("/api/v1/namespaces".to_owned(), namespace),
        (at, backends),
        (path, service),
    ];
    let clock = Stopwatch::start();
    for object in objects {
        lab.cluster.fill(&[object])?;
    }
    soon("the route to be in force", || {
        Ok(gateway.generation() > generation)
    })?;
    let took = clock.elapsed().as_secs_f64() * 1e3;
    wait::pause(Duration::from_millis(500));
    let octets = controller.sum(PUSHED, &[])? - before;
    lab.add(known::SHOOT, of::DELAY_P50, took);
    lab.add(known::SHOOT, of::OCTETS, octets);
    Ok(())
}
