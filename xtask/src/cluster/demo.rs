//! `cargo xtask cluster demo`: the steps of docs/deploy.md, and what works then.
//!
//! ```text
//!   operator ── name, 443 ─▶ balancer ─▶ kube-proxy ─▶ sni-proxy ─▶ the shoot's API server, a pod of the seed
//!   pods ── 100.64.0.1 ─▶ kube-proxy ─▶ 10.1.2.3: apiserver-proxy ── 8443 ──┘          │
//!   kubelets, Services of the shoot ◀── vpn-client or konnectivity-agent ◀═════════════┘
//! ```

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use deploy::gardener::{API, SHOOT};
use serde_json::{Value, json};
use testkit::{command, wait};

use super::steps::{self, objects};
use super::up::{self, Clusters, ROLLOUT_LIMIT};
use super::{needs, network, scrape};
use crate::console::Console;

/// What is deployed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Options {
    /// Take the images of the last `cargo xtask images`, and build none.
    #[arg(long)]
    no_build: bool,
}

pub(crate) fn run(options: Options) -> Result<ExitCode> {
    let mut console = Console::new();
    needs::check()?;
    if !options.no_build {
        build()?;
    }
    let clusters = up::start(&mut console)?;
    let shown = deploy(&mut console, &clusters).and_then(|()| show(&mut console, &clusters));
    let good = console.result();
    shown?;
    console.say("\n  both clusters run on; `cargo xtask cluster down` ends them");
    Ok(ExitCode::from(u8::from(!good)))
}

/// Builds images, and Kubernetes beside them unless it is there: neither keeps two processors busy to its end.
fn build() -> Result<()> {
    std::thread::scope(|scope| {
        let kubernetes = scope.spawn(|| {
            let console = Console::new();
            let installed = needs::install(&|text| console.say(&format!("  {text}")));
            installed.inspect_err(|error| console.failure(error))
        });
        let images = steps::build_images();
        // Each is said at once: the other takes minutes more.
        let images = images.inspect_err(|error| Console::new().failure(error));
        let kubernetes = kubernetes.join();
        let installed = kubernetes.is_ok_and(|kubernetes| kubernetes.is_ok());
        ensure!(
            images.is_ok() && installed,
            "not all was built, as said above"
        );
        Ok(())
    })
}

/// Tells whether everything was deployed before.
pub(crate) fn is_deployed(clusters: &Clusters) -> bool {
    let last = [
        "--namespace",
        "kube-system",
        "get",
        "deployment/konnectivity-agent",
    ];
    clusters.shoot.run(&last).is_ok()
}

/// Deploys everything.
pub(crate) fn deploy(console: &mut Console, clusters: &Clusters) -> Result<()> {
    console.heading("The seed, as docs/deploy.md says");
    console.check("images are loaded on the nodes", || {
        steps::load_images(clusters)
    })?;
    console.check("an operator brings certificates", || steps::bring(clusters))?;
    steps::apply(console, clusters, "seed/controller")?;
    steps::apply(console, clusters, "seed/gateway/base")?;
    console.check("the autoscaler wants two gateways", || {
        let scale = ["scale", "--replicas=2", "deployment/sni-proxy"];
        clusters
            .seed
            .run(&[&["--namespace", "istio-ingress"], &scale[..]].concat())?;
        Ok(String::new())
    })?;
    console.check(
        "controllers and gateways are ready, by their own probes",
        || {
            clusters.seed.rolled_out(
                "garden",
                "deployment/rhizome-netpol-controller",
                ROLLOUT_LIMIT,
            )?;
            clusters
                .seed
                .rolled_out("istio-ingress", "deployment/sni-proxy", ROLLOUT_LIMIT)?;
            Ok(String::new())
        },
    )?;
    console.check("DNS records lead to the gateway's load balancer", || {
        steps::make_records(clusters)
    })?;
    console.heading("The shoot");
    console.check(
        "its API server is reached by name, through the gateway",
        || {
            clusters.shoot.wait_ready(ROLLOUT_LIMIT)?;
            steps::bring_to_shoot(clusters)?;
            let version = clusters.shoot.run(&["get", "--raw", "/version"])?;
            let version: Value = serde_json::from_str(&version)?;
            let version = version["gitVersion"].as_str().unwrap_or("?");
            Ok(format!("{version} at {API}"))
        },
    )?;
    console.check("its nodes join", || {
        for node in &network::SHOOT {
            up::wait_node(&clusters.shoot, node)?;
        }
        Ok("shoot-0, shoot-1".to_owned())
    })?;
    steps::apply(console, clusters, "control-plane/vpn-server")?;
    console.check("vpn-provision, against both API servers", || {
        steps::provision(clusters)
    })?;
    for directory in [
        "shoot/network-policies",
        "shoot/vpn-client/base",
        "shoot/apiserver-proxy",
    ] {
        steps::apply(console, clusters, directory)?;
    }
    steps::apply(console, clusters, "control-plane/konnectivity-server")?;
    steps::apply(console, clusters, "shoot/konnectivity-agent")?;
    console.check("everything is ready", || {
        clusters
            .shoot
            .rolled_out("kube-system", "daemonset/apiserver-proxy", ROLLOUT_LIMIT)?;
        clusters
            .shoot
            .rolled_out("kube-system", "statefulset/vpn-shoot", ROLLOUT_LIMIT)?;
        clusters.shoot.rolled_out(
            "kube-system",
            "deployment/konnectivity-agent",
            ROLLOUT_LIMIT,
        )?;
        clusters
            .seed
            .rolled_out(SHOOT, "statefulset/vpn-seed-server", ROLLOUT_LIMIT)?;
        clusters
            .seed
            .rolled_out(SHOOT, "deployment/konnectivity-server", ROLLOUT_LIMIT)?;
        Ok(String::new())
    })
}

/// Shows what works.
fn show(console: &mut Console, clusters: &Clusters) -> Result<()> {
    console.heading("The shoot's API server, from within");
    start_visitors(console, clusters)?;
    for (file, name, way) in [
        (steps::VPN_SELECTOR, "the VPN", scrape::BY_VPN),
        (
            steps::KONNECTIVITY_SELECTOR,
            "konnectivity",
            scrape::BY_KONNECTIVITY,
        ),
    ] {
        console.heading(&format!("The way into the shoot: {name}"));
        console.check(
            &format!("the API server's egress selector is {file}"),
            || {
                steps::select_egress(clusters, file)?;
                clusters.shoot.wait_ready(ROLLOUT_LIMIT)?;
                Ok(String::new())
            },
        )?;
        ways_in(console, clusters)?;
        console.check("Prometheus sees the kubelets through it", || {
            scrape::through(clusters, way)
        })?;
    }
    Ok(())
}

/// Starts pods that ask for the API server, and what it asks in the shoot.
pub(crate) fn start_visitors(console: &mut Console, clusters: &Clusters) -> Result<()> {
    console.check("visitors run", || {
        clusters
            .shoot
            .apply(objects(include_str!("visitor.yaml"), "visitor.yaml")?)?;
        let (secret, authority) = steps::service_certificate("extension")?;
        clusters.shoot.apply([secret])?;
        let program = json!(include_str!("extension.py")).to_string();
        let text = include_str!("extension.yaml").replace("EXTENSION", &program);
        let text = text.replace("AUTHORITY", &authority);
        clusters.shoot.apply(objects(&text, "extension.yaml")?)?;
        // With the certificate of today.
        clusters
            .shoot
            .run(&["rollout", "restart", "deployment/extension"])?;
        for workload in [
            "daemonset/visitor",
            "daemonset/host-visitor",
            "deployment/extension",
        ] {
            clusters
                .shoot
                .rolled_out("default", workload, ROLLOUT_LIMIT)?;
        }
        Ok("on both nodes".to_owned())
    })
}

/// What an operator does with pods, and what the API server asks of Services in the shoot.
fn ways_in(console: &mut Console, clusters: &Clusters) -> Result<()> {
    let visitors = pods(clusters, "app=visitor")?;
    let on_host = pods(clusters, "app=host-visitor")?;
    for (what, all) in [("pods", &visitors), ("the hosts' network", &on_host)] {
        console.check(
            &format!("kubectl exec; {what} ask the Service `kubernetes`"),
            || {
                for pod in all {
                    ask_kubernetes(clusters, pod)?;
                }
                Ok("by name and by 100.64.0.1".to_owned())
            },
        )?;
    }
    console.check("kubectl logs", || {
        let log = clusters.shoot.run(&["logs", &visitors[0], "--tail=3"])?;
        ensure!(log.contains("GET / HTTP/1.1"), "the log is: {log}");
        Ok(format!("{} lines", log.lines().count()))
    })?;
    console.check("kubectl port-forward", || {
        port_forward(clusters, &visitors[0])
    })?;
    console.check("an aggregated API: kubectl top nodes", || {
        wait::until_ok("metrics", LIMIT, || {
            let got = clusters.shoot.run(&["get", "--raw", METRICS]);
            got.inspect_err(|_| wait::pause(Duration::from_secs(1)))
        })?;
        let top = clusters
            .shoot
            .run(&["top", "nodes", "--use-protocol-buffers=false"])?;
        ensure!(top.contains("shoot-1"), "{top}");
        Ok(format!("{} lines", top.lines().count()))
    })?;
    console.check("an admission webhook", || {
        let create = |name: &str| {
            let labels = json!({ "extension": "asked" });
            let meta = json!({ "name": name, "namespace": "default", "labels": labels });
            let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta });
            clusters.shoot.apply([object])
        };
        create("good")?;
        let refused = create("bad").err().context("it refused nothing")?;
        ensure!(
            refused.to_string().contains("asked in the shoot"),
            "{refused:#}"
        );
        clusters.shoot.run(&["delete", "configmap", "good"])?;
        Ok("one object taken, one refused".to_owned())
    })
}

/// Asks for the API server from within a pod, by name and by address.
pub(crate) fn ask_kubernetes(clusters: &Clusters, pod: &str) -> Result<()> {
    for host in ["kubernetes.default.svc.cluster.local", "100.64.0.1"] {
        let line = format!(
            "/usr/bin/curl --silent --show-error --fail --max-time 10 --cacert {ACCOUNT}/ca.crt \
             --header \"Authorization: Bearer $(/usr/bin/cat {ACCOUNT}/token)\" \
             https://{host}/api/v1/namespaces/default/pods"
        );
        let exec = ["exec", pod, "--", "/usr/bin/sh", "-c", &line];
        let answer: Value = serde_json::from_str(&clusters.shoot.run(&exec)?)
            .with_context(|| format!("reading the answer of {host}"))?;
        ensure!(answer["kind"] == "PodList", "{host}: {answer}");
    }
    Ok(())
}

/// Returns the names of pods in the shoot's default namespace.
pub(crate) fn pods(clusters: &Clusters, label: &str) -> Result<Vec<String>> {
    let list = clusters.shoot.get(&["pods", "--selector", label])?;
    let items = list["items"].as_array().context("no list of pods")?;
    let names = items
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str());
    let names: Vec<String> = names.map(str::to_owned).collect();
    ensure!(!names.is_empty(), "no pod has {label}");
    Ok(names)
}

fn port_forward(clusters: &Clusters, pod: &str) -> Result<String> {
    // It ends by itself, in the machine as well.
    let words = ["port-forward", &format!("pod/{pod}"), "18080:8080"];
    let mut forward = clusters.shoot.command_for(4, &words)?;
    let mut forward = forward.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let fetched = wait::until_ok("a forwarded port", Duration::from_secs(3), || {
        let mut curl = clusters.router.command("curl")?;
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "3"]);
        command::run(curl.arg("http://127.0.0.1:18080/"))
    });
    forward.wait().context("waiting for kubectl to end")?;
    Ok(format!("{} bytes", fetched?.len()))
}

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/nodes";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const LIMIT: Duration = Duration::from_secs(20);
