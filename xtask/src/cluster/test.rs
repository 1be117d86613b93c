//! `cargo xtask cluster test`: what is done to the clusters while requests go on, and what may fail then.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use deploy::gardener::SHOOT;
use serde_json::Value;
use testkit::wait;

use super::load::{self, Outcome};
use super::machine::Machine;
use super::steps::{KONNECTIVITY_SELECTOR as KONNECTIVITY, VPN_SELECTOR as VPN};
use super::up::{self, Clusters, ROLLOUT_LIMIT};
use super::{changes, clock, control, demo, network, policies, sandbox, service, sidecars, steps};
use crate::console::Console;

/// How much of it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Rolls of each workload.
    #[arg(long, default_value_t = 2)]
    rolls: u32,
    /// Only what has this in its name; may be given several times.
    #[arg(long)]
    only: Vec<String>,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only))
    }
}

/// A workload that is rolled, and which ways may fail meanwhile.
struct Rolled {
    in_shoot: bool,
    namespace: &'static str,
    workload: &'static str,
    /// By what API servers reach the shoot meanwhile: a file of deploy/control-plane/egress-selector.
    egress: &'static str,
    /// The ways that docs/operations.md excuses.
    excused: &'static [Excuse],
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut console = Console::new();
    let clusters = up::start(&mut console)?;
    if !demo::is_deployed(&clusters) {
        steps::build_missing_images()?;
        demo::deploy(&mut console, &clusters)?;
    }
    steps::select_egress(&clusters, VPN)?;
    clusters.shoot.wait_ready(ROLLOUT_LIMIT)?;
    ensure!(
        !is_dropped(&clusters)?,
        "packets are dropped though nothing is enforced"
    );
    let name = "the kernel holds each process to its manifest";
    if options.wants(name) {
        let _ = console.check(name, || sandbox::check(&clusters));
    }
    if options.wants(SIDECARS) {
        sidecars::deploy(&mut console, &clusters)?;
    }
    policies::during(&clusters, || {
        let _ = console.check("the seed's policies are enforced", || {
            allowed_alone(&clusters)
        });
        rolls(&mut console, &clusters, options);
        let _ = console.check("they still are", || allowed_alone(&clusters));
        Ok(())
    })?;
    service(&mut console, &clusters, options)?;
    let name = "the seed's node loses its power";
    if options.wants(name) {
        let _ = console.check(name, || lose_seed(&clusters));
    }
    Ok(ExitCode::from(u8::from(!console.result())))
}

/// What the node proxy's `noTrack` does to the Service `kubernetes`.
fn service(console: &mut Console, clusters: &Clusters, options: &Options) -> Result<()> {
    type Check = fn(&Clusters) -> Result<String>;
    let checks: [(&str, Check); 2] = [
        ("noTrack beside kube-proxy", service::by_kube_proxy),
        ("noTrack beside rules of nftables", service::by_nftables),
    ];
    let mut checks = checks.iter().filter(|one| options.wants(one.0)).peekable();
    if checks.peek().is_some() {
        demo::start_visitors(console, clusters)?;
    }
    for (name, check) in checks {
        let _ = console.check(name, || check(clusters));
    }
    Ok(())
}

fn rolls(console: &mut Console, clusters: &Clusters, options: &Options) {
    console.heading("Rolls, by their own controllers, under requests on every way");
    let mut egress = VPN;
    let mut select = |console: &mut Console, wanted: &'static str| {
        if egress == wanted {
            return true;
        }
        let name = format!("API servers use {wanted}");
        let selected = console.check(&name, || changes::select_egress(clusters, wanted));
        if selected.is_ok() {
            egress = wanted;
        }
        selected.is_ok()
    };
    for rolled in ROLLED.iter().filter(|one| options.wants(one.workload)) {
        if !select(console, rolled.egress) {
            continue;
        }
        for nth in 1..=options.rolls {
            let _ = console.check(&format!("{}, roll {nth}", rolled.workload), || {
                let ((), outcomes) = load::during(clusters, || roll(clusters, rolled))?;
                judge(&outcomes, rolled.excused)
            });
        }
    }
    console.heading("Worse, under the same requests");
    for disturbance in DISTURBANCES.iter().filter(|one| options.wants(one.name)) {
        if !select(console, disturbance.egress) {
            continue;
        }
        let _ = console.check(disturbance.name, || {
            let ((), outcomes) = load::during(clusters, || (disturbance.work)(clusters))?;
            judge(&outcomes, disturbance.excused)
        });
    }
    select(console, VPN);
}

/// What is needed passes, and what no policy allows does not.
fn allowed_alone(clusters: &Clusters) -> Result<String> {
    let ((), outcomes) = load::during(clusters, || {
        wait::pause(Duration::from_secs(3));
        Ok(())
    })?;
    let passed = judge(&outcomes, &[])?;
    ensure!(
        is_dropped(clusters)?,
        "a pod without a label reached vpn-seed-server"
    );
    Ok(format!("{passed}; a pod without a label is dropped"))
}

/// Tells whether packets of a pod that has no label for it are dropped on their way to the VPN's server.
fn is_dropped(clusters: &Clusters) -> Result<bool> {
    let service = ["--namespace", SHOOT, "service", "vpn-seed-server"];
    let address = clusters.seed.get(&service)?["spec"]["clusterIP"].clone();
    let url = format!("https://{}:9443/", address.as_str().unwrap_or_default());
    let curl = ["exec", "etcd-main-0", "--", "/usr/bin/curl", "-ksm3", &url];
    let asked = clusters
        .seed
        .run(&[&["--namespace", SHOOT], &curl[..]].concat());
    let asked = asked
        .err()
        .context("vpn-seed-server asked for no certificate")?;
    // curl(1): the time was over. A refusal by the server is another code.
    Ok(format!("{asked:#}").contains("exit code 28"))
}

/// Something that is done to the clusters.
struct Disturbance {
    name: &'static str,
    /// As of what is rolled.
    egress: &'static str,
    work: fn(&Clusters) -> Result<()>,
    excused: &'static [Excuse],
}

/// What [`sidecars::deploy`] must come before.
const SIDECARS: &str = "API servers with sidecars come and go";

const DISTURBANCES: [Disturbance; 14] = [
    Disturbance {
        name: "a pod of each budget is evicted",
        egress: VPN,
        work: |clusters| changes::evict(clusters, &changes::BUDGETS),
        excused: &[KEPT],
    },
    Disturbance {
        name: "a pod of each budget of konnectivity is evicted",
        egress: KONNECTIVITY,
        work: |clusters| changes::evict(clusters, &changes::KONNECTIVITY_BUDGETS),
        excused: &[],
    },
    Disturbance {
        name: "the controller's ConfigMap changes",
        egress: VPN,
        work: changes::change_gateways,
        excused: &[],
    },
    Disturbance {
        name: "konnectivity's authority is renewed",
        egress: VPN,
        work: changes::renew_authority,
        excused: &[KEPT],
    },
    Disturbance {
        name: SIDECARS,
        egress: VPN,
        work: sidecars::come_and_go,
        excused: &[KEPT],
    },
    Disturbance {
        name: "the shoot's API server is rolled",
        egress: VPN,
        work: steps::roll_api_server,
        excused: &[KEPT],
    },
    Disturbance {
        name: "the seed's API server is killed",
        egress: VPN,
        work: |clusters| {
            seed_machine(clusters).kill("kube-apiserver")?;
            clusters.seed.wait_ready(ROLLOUT_LIMIT)
        },
        excused: &[],
    },
    Disturbance {
        name: "the seed's etcd is killed",
        egress: VPN,
        work: |clusters| {
            seed_machine(clusters).kill("etcd")?;
            wait::pause(Duration::from_secs(5));
            clusters.seed.wait_ready(ROLLOUT_LIMIT)
        },
        excused: &[],
    },
    Disturbance {
        name: "no controller for ten seconds",
        egress: VPN,
        work: |clusters| {
            let scale = |replicas: &str| {
                let deployment = "deployment/rhizome-netpol-controller";
                clusters
                    .seed
                    .run(&["--namespace", "garden", "scale", replicas, deployment])
            };
            scale("--replicas=0")?;
            wait::pause(Duration::from_secs(10));
            scale("--replicas=2")?;
            clusters.seed.rolled_out(
                "garden",
                "deployment/rhizome-netpol-controller",
                ROLLOUT_LIMIT,
            )
        },
        excused: &[],
    },
    Disturbance {
        name: "the kubelets of the shoot are killed",
        egress: VPN,
        work: |clusters| {
            for node in &network::SHOOT {
                Machine::at(&clusters.root, node.name).kill("kubelet")?;
            }
            wait::pause(Duration::from_secs(2));
            wait_kubelets(clusters)
        },
        excused: &[excuse("tunnel", 30, "what is asked there is the kubelet")],
    },
    Disturbance {
        name: "the clocks of the tunnel's clients are set back",
        egress: VPN,
        work: clock::set_back,
        excused: &[],
    },
    Disturbance {
        name: "kube-proxy is killed on every node",
        egress: VPN,
        work: |clusters| {
            for node in network::SHOOT.iter().chain(&network::SEED) {
                Machine::at(&clusters.root, node.name).kill("kube-proxy")?;
            }
            wait::pause(Duration::from_secs(5));
            Ok(())
        },
        excused: &[],
    },
    Disturbance {
        name: "a node of the shoot is drained",
        egress: VPN,
        work: |clusters| {
            let node = network::SHOOT[1].name;
            wait_client(clusters, node)?;
            let drain = [
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--timeout=120s",
            ];
            clusters.shoot.run(&drain)?;
            clusters.shoot.run(&["uncordon", node])?;
            clusters
                .shoot
                .rolled_out("kube-system", "statefulset/vpn-shoot", ROLLOUT_LIMIT)?;
            // Nothing else brings one back to the node.
            let restart = ["rollout", "restart", "statefulset/vpn-shoot"];
            clusters
                .shoot
                .run(&[&["--namespace", "kube-system"], &restart[..]].concat())?;
            clusters
                .shoot
                .rolled_out("kube-system", "statefulset/vpn-shoot", ROLLOUT_LIMIT)
        },
        excused: &[],
    },
    Disturbance {
        name: "a node of the shoot loses its power",
        egress: VPN,
        work: |clusters| {
            let node = &network::SHOOT[1];
            wait_client(clusters, node.name)?;
            restart(clusters, node)?;
            up::wait_node(&clusters.shoot, node)?;
            clusters
                .shoot
                .rolled_out("kube-system", "daemonset/apiserver-proxy", ROLLOUT_LIMIT)?;
            clusters
                .shoot
                .rolled_out("kube-system", "statefulset/vpn-shoot", ROLLOUT_LIMIT)
        },
        excused: &[
            excuse("node shoot-1", 60, "its node was away"),
            excuse(
                "tunnel",
                60,
                "its node was away, or the tunnel's client on it",
            ),
        ],
    },
];

/// Waits until one of the tunnel's clients is on a node.
fn wait_client(clusters: &Clusters, node: &str) -> Result<()> {
    wait::until_ok("a tunnel's client on the node", ROLLOUT_LIMIT, || {
        let pods = [
            "--namespace",
            "kube-system",
            "pods",
            "--selector",
            "app=vpn-shoot",
        ];
        let pods = clusters.shoot.get(&pods)?;
        let pods = pods["items"].as_array().context("no list of pods")?;
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let mut staying = pods.iter().filter(stays);
        let there = staying.any(|pod| pod["spec"]["nodeName"] == node);
        ensure!(there, "none of {} is", pods.len());
        Ok(())
    })
}

/// Waits until the kubelets of the shoot answer, through the tunnel.
fn wait_kubelets(clusters: &Clusters) -> Result<()> {
    for node in &network::SHOOT {
        let path = format!("/api/v1/nodes/{}/proxy/healthz", node.name);
        wait::until_ok(node.name, ROLLOUT_LIMIT, || {
            clusters.shoot.run(&["get", "--raw", &path])
        })?;
    }
    Ok(())
}

fn seed_machine(clusters: &Clusters) -> Machine {
    Machine::at(&clusters.root, network::SEED[0].name)
}

/// Cuts a node's power, and starts it again.
fn restart(clusters: &Clusters, node: &network::Node) -> Result<()> {
    let of_seed = network::SEED.iter().any(|own| own.name == node.name);
    let cluster = if of_seed {
        control::seed(&clusters.root)
    } else {
        control::shoot(&clusters.root)
    };
    Machine::at(&clusters.root, node.name).stop()?;
    up::start_node(clusters, &cluster, node)
}

/// Cuts the power of the seed's only node, with everything on it, and waits until every way works again.
fn lose_seed(clusters: &Clusters) -> Result<String> {
    restart(clusters, &network::SEED[0])?;
    let clock = wait::Stopwatch::start();
    wait::until_ok("every way", 3 * ROLLOUT_LIMIT, || {
        let ((), outcomes) = load::during(clusters, || {
            wait::pause(Duration::from_secs(2));
            Ok(())
        })?;
        judge(&outcomes, &[])
    })?;
    Ok(format!("every way works after {:.0?}", clock.elapsed()))
}

fn roll(clusters: &Clusters, rolled: &Rolled) -> Result<()> {
    let kubectl = if rolled.in_shoot {
        &clusters.shoot
    } else {
        &clusters.seed
    };
    let restart = [
        "--namespace",
        rolled.namespace,
        "rollout",
        "restart",
        rolled.workload,
    ];
    kubectl.run(&restart)?;
    kubectl.rolled_out(rolled.namespace, rolled.workload, 2 * ROLLOUT_LIMIT)
}

/// Says how many requests there were, or which failed that had no excuse, or for longer than it.
fn judge(outcomes: &[Outcome], excused: &[Excuse]) -> Result<String> {
    let mut bad = Vec::new();
    let (mut requests, mut forgiven, mut reasons) = (0, 0, BTreeSet::new());
    for outcome in outcomes {
        requests += outcome.requests;
        let excuse = excused.iter().find(|one| outcome.way.starts_with(one.way));
        let limit = excuse.map_or(Duration::ZERO, |one| one.limit);
        let (count, first) = (outcome.failures.len(), outcome.failures.iter().take(10));
        if outcome.outage > limit {
            let first: Vec<&str> = first.map(String::as_str).collect();
            let (way, took, all) = (&outcome.way, outcome.outage, outcome.requests);
            let of = format!("{way}: {count} of {all} failed, {took:.1?} long");
            bad.push(format!("{of}:\n      {}", first.join("\n      ")));
        }
        if excuse.is_none() && outcome.longest > SLOW {
            bad.push(format!(
                "{}: a request took {:.1?}",
                outcome.way, outcome.longest
            ));
        }
        forgiven += count;
        reasons.extend(excuse.filter(|_| count > 0).map(|one| one.because));
    }
    ensure!(bad.is_empty(), "{}", bad.join("\n    "));
    let longest = outcomes.iter().max_by_key(|outcome| outcome.longest);
    let longest = longest.map_or_else(String::new, |one| {
        format!("{:.1?} ({})", one.longest, one.way)
    });
    let outage = outcomes
        .iter()
        .map(|one| one.outage)
        .max()
        .unwrap_or_default();
    Ok(match forgiven {
        0 => format!("{requests} requests, none failed, longest {longest}"),
        _ => {
            let reasons = Vec::from_iter(reasons).join("; ");
            format!(
                "{requests} requests, longest {longest}; excused {forgiven}, {outage:.1?} long: {reasons}"
            )
        }
    })
}

/// A way that may fail for a while, by the beginning of its name, and why.
struct Excuse {
    way: &'static str,
    limit: Duration,
    because: &'static str,
}

const fn excuse(way: &'static str, seconds: u64, because: &'static str) -> Excuse {
    Excuse {
        way,
        limit: Duration::from_secs(seconds),
        because,
    }
}

/// What no request may take that has no excuse.
const SLOW: Duration = Duration::from_secs(5);

const KEPT: Excuse = excuse(
    "kept",
    1,
    "a connection that outlives its gateway's drain is cut",
);

const ROLLED: [Rolled; 7] = [
    Rolled {
        in_shoot: false,
        namespace: "garden",
        workload: "deployment/rhizome-netpol-controller",
        egress: VPN,
        excused: &[],
    },
    Rolled {
        in_shoot: false,
        namespace: "istio-ingress",
        workload: "deployment/sni-proxy",
        egress: VPN,
        excused: &[KEPT],
    },
    Rolled {
        in_shoot: false,
        namespace: SHOOT,
        workload: "statefulset/vpn-seed-server",
        egress: VPN,
        excused: &[],
    },
    Rolled {
        in_shoot: true,
        namespace: "kube-system",
        workload: "statefulset/vpn-shoot",
        egress: VPN,
        excused: &[],
    },
    Rolled {
        in_shoot: true,
        namespace: "kube-system",
        workload: "daemonset/apiserver-proxy",
        egress: VPN,
        excused: &[excuse(
            "node",
            30,
            "without maxSurge a node proxy refuses connections until the next one listens",
        )],
    },
    Rolled {
        in_shoot: false,
        namespace: SHOOT,
        workload: "deployment/konnectivity-server",
        egress: KONNECTIVITY,
        excused: &[],
    },
    Rolled {
        in_shoot: true,
        namespace: "kube-system",
        workload: "deployment/konnectivity-agent",
        egress: KONNECTIVITY,
        excused: &[],
    },
];
