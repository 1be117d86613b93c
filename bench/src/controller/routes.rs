//! Routes to a gateway: from none, the first sync, one endpoint's change, one shoot's.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::wait::{self, Stopwatch};

use super::cluster::{Running, soon};
use super::gateway::Gateway;
use super::{Lab, figure as of, known, mib, shoots};
use crate::latency::Latencies;

const ROUTES: &str = "rhizome_netpol_routes";
const PUSHED: &str = "rhizome_xds_push_bytes_total";

pub(super) fn measure(lab: &mut Lab<'_>, spaces: usize) -> Result<()> {
    lab.progress.step("routes: objects are created");
    shoots::fill(lab, spaces)?;
    let xds = lab.cluster.free_address()?;
    lab.progress.step(known::TRANSLATE);
    let controller = translate(lab, xds)?;
    lab.progress.step(known::SYNC);
    let gateway = sync(lab, &controller, xds)?;
    lab.progress.step(known::ENDPOINT);
    change(lab, &controller, &gateway, spaces)?;
    lab.progress.step(known::SHOOT);
    come(lab, &controller, &gateway, spaces)
}

/// Starts a controller that serves routes at `xds`, and waits until it has all of them.
pub(super) fn controller(lab: &Lab<'_>, xds: SocketAddr) -> Result<(Running, Duration)> {
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
        routes().is_ok_and(|routes| routes == lab.routed as f64)
    })
    .with_context(|| format!("{:?} routes", routes()))?;
    Ok((controller, took))
}

fn translate(lab: &mut Lab<'_>, xds: SocketAddr) -> Result<Running> {
    let (controller, took) = controller(lab, xds)?;
    let usage = controller.child.usage()?;
    lab.add(known::TRANSLATE, of::TOOK, took.as_secs_f64());
    lab.add(known::TRANSLATE, of::CPU, usage.cpu_time.as_secs_f64());
    lab.add(known::TRANSLATE, of::RESIDENT, mib(usage.rss_kib));
    lab.add(known::TRANSLATE, of::PEAK, mib(usage.peak_rss_kib));
    Ok(controller)
}

fn sync(lab: &mut Lab<'_>, controller: &Running, xds: SocketAddr) -> Result<Gateway> {
    let gateway = Gateway::start(lab, xds, "gateway")?;
    let took = gateway.wait_ready()?;
    let usage = gateway.child.usage()?;
    gateway.had_all_at_first(lab.routed)?;
    lab.add(known::SYNC, of::SYNC, took.as_secs_f64() * 1e3);
    lab.add(known::SYNC, of::BYTES, controller.sum(PUSHED, &[])?);
    lab.add(known::SYNC, of::CPU_GATEWAY, usage.cpu_time.as_secs_f64());
    lab.add(known::SYNC, of::GATEWAY_RESIDENT, mib(usage.rss_kib));
    lab.add(known::SYNC, of::GATEWAY_PEAK, mib(usage.peak_rss_kib));
    Ok(gateway)
}

fn change(lab: &mut Lab<'_>, controller: &Running, gateway: &Gateway, spaces: usize) -> Result<()> {
    let mut connection = lab.cluster.connection()?;
    let before = controller.sum(PUSHED, &[])?;
    let ours = controller.child.usage()?.cpu_time;
    let theirs = gateway.child.usage()?.cpu_time;
    let mut delays = Latencies::default();
    for turn in 0..lab.changes {
        let (index, own) = (turn % spaces, turn / spaces % shoots::EACH);
        let (path, object) = shoots::moved(index, own, shoots::FIRST + 1, lab.gateways());
        let generation = gateway.generation();
        let clock = Stopwatch::start();
        let answer = connection.request("PATCH", &path, Some(&object.to_string()))?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        let changed = || Ok(gateway.generation() > generation);
        soon("the change to be in effect", changed)?;
        delays.record(clock.elapsed());
    }
    let changes = lab.changes as f64;
    let each = |before: Duration, after: Duration| {
        after.saturating_sub(before).as_secs_f64() * 1e3 / changes
    };
    let ours = each(ours, controller.child.usage()?.cpu_time);
    let theirs = each(theirs, gateway.child.usage()?.cpu_time);
    let bytes = (controller.sum(PUSHED, &[])? - before) / changes;
    lab.delays(known::ENDPOINT, &delays);
    lab.add(known::ENDPOINT, of::BYTES, bytes);
    lab.add(known::ENDPOINT, of::CPU_EACH, ours);
    lab.add(known::ENDPOINT, of::CPU_GATEWAY_EACH, theirs);
    Ok(())
}

fn come(lab: &mut Lab<'_>, controller: &Running, gateway: &Gateway, spaces: usize) -> Result<()> {
    let before = controller.sum(PUSHED, &[])?;
    let generation = gateway.generation();
    let objects = [
        shoots::space(spaces),
        shoots::backends(spaces, 0, shoots::FIRST, lab.gateways()),
        shoots::routed(spaces, 0),
    ];
    lab.routed += 1;
    let clock = Stopwatch::start();
    for object in objects {
        lab.cluster.fill(&[object])?;
    }
    let changed = || Ok(gateway.generation() > generation);
    soon("the route to be in effect", changed)?;
    let took = clock.elapsed().as_secs_f64() * 1e3;
    wait::pause(Duration::from_millis(500));
    let bytes = controller.sum(PUSHED, &[])? - before;
    lab.add(known::SHOOT, of::DELAY_P50, took);
    lab.add(known::SHOOT, of::BYTES, bytes);
    Ok(())
}
