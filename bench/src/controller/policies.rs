//! NetworkPolicies: from none, one change, a restart.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::http::Connection;
use testkit::wait::{self, Stopwatch};

use super::cluster::{Running, soon};
use super::{Lab, figure as of, known, mib};
use crate::latency::Latencies;

pub(super) const EACH: usize = 10;

/// Of each Service: two in its own namespace, two for its clients' one, one from everywhere.
const POLICIES: usize = 5;
/// Of each Service whose port changes: the policies that name it come and go.
const WRITES_OF_CHANGE: usize = 8;

const WRITES: &str = "rhizome_netpol_writes_total";
const ERRORS: &str = "rhizome_netpol_write_errors_total";

/// Gardener's number of workers; the default is 5.
const CONTROLLERS: &str = "  networkPolicy: { concurrentSyncs: 20 }\n";

pub(super) fn measure(lab: &mut Lab<'_>, spaces: usize) -> Result<()> {
    lab.progress.step("policies: objects are created");
    lab.cluster.fill(&namespaces(spaces))?;
    lab.cluster.fill(&services(spaces))?;
    lab.progress.step(known::CONVERGE);
    let controller = converge(lab, spaces)?;
    lab.progress.step(known::SERVICE);
    change(lab, &controller, spaces)?;
    drop(controller);
    lab.progress.step(known::RESTART);
    restart(lab)
}

fn namespaces(spaces: usize) -> Vec<(String, Value)> {
    let all = (0..spaces).map(|index| {
        let name = namespace(index);
        let labels = json!({ "kubernetes.io/metadata.name": name, "gardener.cloud/role": "shoot" });
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        ("/api/v1/namespaces".to_owned(), object)
    });
    let clients = json!({
        "metadata": { "name": "clients", "labels": { "kubernetes.io/metadata.name": "clients" } },
    });
    all.chain([("/api/v1/namespaces".to_owned(), clients)])
        .collect()
}

fn services(spaces: usize) -> Vec<(String, Value)> {
    let prefix = "networking.resources.gardener.cloud";
    let all = (0..spaces).flat_map(|index| (0..EACH).map(move |own| (index, own)));
    all.map(|(index, own)| {
        let name = service(own);
        let selector = r#"[{"matchLabels":{"kubernetes.io/metadata.name":"clients"}}]"#;
        let object = json!({
            "metadata": { "name": name, "annotations": {
                format!("{prefix}/namespace-selectors"): selector,
                format!("{prefix}/from-world-to-ports"): r#"[{"port":8443,"protocol":"TCP"}]"#,
            } },
            "spec": {
                "clusterIP": "None",
                "selector": { "app": name },
                "ports": [{ "name": "https", "port": 443, "targetPort": 8443 }],
            },
        });
        let path = format!("/api/v1/namespaces/{}/services", namespace(index));
        (path, object)
    })
    .collect()
}

fn namespace(index: usize) -> String {
    format!("shoot--project--{index:03}")
}

fn service(index: usize) -> String {
    format!("component-{index}")
}

fn converge(lab: &mut Lab<'_>, spaces: usize) -> Result<Running> {
    let before = lab.cluster.processor_time()?;
    let clock = Stopwatch::start();
    let controller = lab.cluster.controller(&lab.controller, CONTROLLERS)?;
    let due = spaces * EACH * POLICIES;
    wait::until("all policies", Duration::from_secs(300), || {
        let writes = controller.sum(WRITES, &[]);
        writes.is_ok_and(|writes| writes >= due as f64)
    })?;
    let took = clock.elapsed().as_secs_f64();
    let theirs = lab.cluster.processor_time()?.saturating_sub(before);
    let usage = controller.child.usage()?;
    let needless = needless(&controller, due)?;
    let resident = controller.child.usage()?.rss_kib;
    lab.add(known::CONVERGE, of::TOOK, took);
    lab.add(known::CONVERGE, of::WRITES, due as f64 / took);
    lab.add(known::CONVERGE, of::NEEDLESS, needless);
    lab.add(known::CONVERGE, of::CPU_SERVER, theirs.as_secs_f64());
    lab.add(known::CONVERGE, of::CPU, usage.cpu_time.as_secs_f64());
    lab.add(known::CONVERGE, of::RESIDENT, mib(resident));
    lab.add(known::CONVERGE, of::PEAK, mib(usage.peak_rss_kib));
    Ok(controller)
}

/// Looks whether more is written than was due, or failed.
fn needless(controller: &Running, due: usize) -> Result<f64> {
    wait::pause(Duration::from_secs(2));
    let errors = controller.sum(ERRORS, &[])?;
    Ok((controller.sum(WRITES, &[])? - due as f64).abs() + errors)
}

fn change(lab: &mut Lab<'_>, controller: &Running, spaces: usize) -> Result<()> {
    let mut connection = lab.cluster.connection()?;
    let mut delays = Latencies::default();
    let before = controller.sum(WRITES, &[])?;
    for turn in 0..lab.changes {
        // Each Service changes once only.
        let (index, own) = (turn % spaces, turn / spaces % EACH);
        let took = change_one(&mut connection, &namespace(index), &service(own))?;
        delays.record(took);
    }
    let due = before as usize + lab.changes * WRITES_OF_CHANGE;
    let needless = needless(controller, due)?;
    lab.add(known::SERVICE, of::NEEDLESS, needless);
    lab.delays(known::SERVICE, &delays);
    Ok(())
}

/// Changes a port, and returns how long it took until the last policy of it was written.
fn change_one(connection: &mut Connection, namespace: &str, name: &str) -> Result<Duration> {
    let ports = json!({ "spec": { "ports": [
        { "name": "https", "port": 443, "targetPort": 9443 },
    ] } });
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let answer = connection.request("PATCH", &path, Some(&ports.to_string()))?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
    let clock = Stopwatch::start();
    // New ones are written first and old ones deleted last, so the last delete is the end.
    let (own, other) = (name, &format!("{namespace}-{name}"));
    for (space, direction, name, port, status) in [
        (namespace, "ingress", own, 9443, 200),
        (namespace, "egress", own, 9443, 200),
        ("clients", "egress", other, 9443, 200),
        ("clients", "egress", other, 8443, 404),
        (namespace, "ingress", own, 8443, 404),
    ] {
        let policies = format!("/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies");
        let path = format!("{policies}/{direction}-to-{name}-tcp-{port}");
        soon(&path, || Ok(connection.get(&path)?.status == status))?;
    }
    Ok(clock.elapsed())
}

fn restart(lab: &mut Lab<'_>) -> Result<()> {
    let clock = Stopwatch::start();
    let controller = lab.cluster.controller(&lab.controller, CONTROLLERS)?;
    controller.wait_ready()?;
    let took = clock.elapsed();
    let needless = needless(&controller, 0)?;
    let usage = controller.child.usage()?;
    lab.add(known::RESTART, of::TOOK, took.as_secs_f64());
    lab.add(known::RESTART, of::NEEDLESS, needless);
    lab.add(known::RESTART, of::CPU, usage.cpu_time.as_secs_f64());
    lab.add(known::RESTART, of::RESIDENT, mib(usage.rss_kib));
    lab.add(known::RESTART, of::PEAK, mib(usage.peak_rss_kib));
    Ok(())
}
