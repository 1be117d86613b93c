//! NetworkPolicies of 2,000 Services in 200 namespaces: from none, one change, a restart.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::wait::{self, Stopwatch};

use super::cluster::{Cluster, Controller, judge, soon};
use crate::console::Console;

const NAMESPACES: usize = 200;
const SERVICES: usize = 10;
const CHANGES: usize = 200;

/// Of each Service: two in its own namespace, two for its clients' one, one from everywhere.
const POLICIES: usize = 5;

const RSS_KIB: u64 = 60 * 1024;
const CHANGE: Duration = Duration::from_millis(250);

const WRITES: &str = "rhizome_netpol_writes_total";

/// Gardener's number of workers; the default is 5.
const CONTROLLERS: &str = "  networkPolicy: { concurrentSyncs: 20 }\n";

pub(super) fn measure(console: &mut Console, program: &Path, cluster: &mut Cluster) -> Result<()> {
    console.step("policies", "objects are created", || {
        cluster.fill(&namespaces())?;
        cluster.fill(&services())?;
        Ok((
            (),
            format!(
                "{} Services in {NAMESPACES} namespaces",
                NAMESPACES * SERVICES
            ),
        ))
    });
    let name = "from an empty cluster";
    let started = console.step("policies", name, || converge(program, cluster));
    let Some(controller) = started else {
        return Ok(());
    };
    console.step("policies", "one Service changes", || {
        change(&controller, cluster)
    });
    drop(controller);
    console.step("policies", "a restart with nothing to do", || {
        restart(program, cluster)
    });
    Ok(())
}

fn namespaces() -> Vec<(String, serde_json::Value)> {
    let all = (0..NAMESPACES).map(|index| {
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

fn services() -> Vec<(String, serde_json::Value)> {
    let prefix = "networking.resources.gardener.cloud";
    let all = (0..NAMESPACES).flat_map(|index| (0..SERVICES).map(move |own| (index, own)));
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
        (
            format!("/api/v1/namespaces/{}/services", namespace(index)),
            object,
        )
    })
    .collect()
}

fn namespace(index: usize) -> String {
    format!("shoot--project--{index:03}")
}

fn service(index: usize) -> String {
    format!("component-{index}")
}

fn converge(program: &Path, cluster: &mut Cluster) -> Result<(Controller, String)> {
    let before = cluster.processor_time()?;
    let clock = Stopwatch::start();
    let controller = cluster.controller(program, CONTROLLERS)?;
    let wanted = NAMESPACES * SERVICES * POLICIES;
    wait::until("all policies", Duration::from_secs(300), || {
        controller
            .sum(WRITES, &[])
            .is_ok_and(|writes| writes >= wanted as f64)
    })?;
    let took = clock.elapsed();
    let theirs = cluster.processor_time()?.saturating_sub(before);
    let usage = controller.child.usage()?;
    settle(&controller, wanted)?;
    let errors = controller.sum("rhizome_netpol_write_errors_total", &[])?;
    ensure!(errors == 0.0, "{errors} writes failed");
    let (rss, peak) = (controller.child.usage()?.rss_kib, usage.peak_rss_kib);
    let told = format!(
        "{wanted} policies in {:.1} s, {:.0} writes/s; processor: API server {:.1} s, we {:.1} s; \
         resident {rss} KiB, at most {peak} KiB (limit {RSS_KIB})",
        took.as_secs_f64(),
        wanted as f64 / took.as_secs_f64(),
        theirs.as_secs_f64(),
        usage.cpu_time.as_secs_f64(),
    );
    ensure!(peak <= RSS_KIB, "{told}");
    Ok((controller, told))
}

/// Sees to it that no more is written than was called for.
fn settle(controller: &Controller, wanted: usize) -> Result<()> {
    wait::pause(Duration::from_secs(2));
    let writes = controller.sum(WRITES, &[])?;
    ensure!(
        writes == wanted as f64,
        "{writes} writes, {wanted} were due"
    );
    Ok(())
}

fn change(controller: &Controller, cluster: &Cluster) -> Result<((), String)> {
    let mut connection = cluster.connection()?;
    let before = controller.sum(WRITES, &[])?;
    let mut delays = Vec::with_capacity(CHANGES);
    for index in 0..CHANGES {
        let (namespace, name) = (namespace(index % NAMESPACES), service(index % SERVICES));
        let ports = json!({ "spec": { "ports": [
            { "name": "https", "port": 443, "targetPort": 9443 },
        ] } });
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
        let answer = connection.request("PATCH", &path, Some(&ports.to_string()))?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        let clock = Stopwatch::start();
        // New ones are written first and old ones deleted last, so the last delete is the end.
        let policies = "/apis/networking.k8s.io/v1/namespaces";
        let awaited = [
            (
                format!("{namespace}/networkpolicies/ingress-to-{name}-tcp-9443"),
                200,
            ),
            (
                format!("{namespace}/networkpolicies/egress-to-{name}-tcp-9443"),
                200,
            ),
            (
                format!("clients/networkpolicies/egress-to-{namespace}-{name}-tcp-9443"),
                200,
            ),
            (
                format!("clients/networkpolicies/egress-to-{namespace}-{name}-tcp-8443"),
                404,
            ),
            (
                format!("{namespace}/networkpolicies/ingress-to-{name}-tcp-8443"),
                404,
            ),
        ];
        for (policy, status) in awaited {
            let path = format!("{policies}/{policy}");
            soon(&path, || Ok(connection.get(&path)?.status == status))?;
        }
        delays.push(clock.elapsed());
    }
    wait::pause(Duration::from_secs(1));
    let writes = controller.sum(WRITES, &[])? - before;
    let due = (CHANGES * 8) as f64;
    ensure!(writes == due, "{writes} writes, {due} were due");
    Ok((
        (),
        format!("{}; 8 writes each, as are due", judge(delays, CHANGE)?),
    ))
}

fn restart(program: &Path, cluster: &Cluster) -> Result<((), String)> {
    let clock = Stopwatch::start();
    let controller = cluster.controller(program, CONTROLLERS)?;
    controller.wait_ready()?;
    let took = clock.elapsed();
    settle(&controller, 0)?;
    let usage = controller.child.usage()?;
    ensure!(usage.peak_rss_kib <= RSS_KIB, "{usage:?}");
    let told = format!(
        "no write; everything known after {:.2} s; processor {:.2} s; resident {} KiB, at most {} KiB (limit {RSS_KIB})",
        took.as_secs_f64(),
        usage.cpu_time.as_secs_f64(),
        usage.rss_kib,
        usage.peak_rss_kib
    );
    Ok(((), told))
}
