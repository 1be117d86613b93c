//! `cargo xtask cluster test`: what is done to the clusters while requests go on, and what may fail then.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use deploy::gardener::SHOOT;

use super::demo;
use super::load::{self, Outcome};
use super::up::{self, Clusters, MINUTES};
use crate::console::Console;

/// How much of it.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Options {
    /// Rolls of each workload.
    #[arg(long, default_value_t = 2)]
    rolls: u32,
}

/// A workload that is rolled, and which ways may fail meanwhile.
struct Rolled {
    in_shoot: bool,
    namespace: &'static str,
    workload: &'static str,
    /// The ways, by the beginning of their names, with the reason in docs/operations.md.
    excused: &'static [(&'static str, &'static str)],
}

pub(crate) fn run(options: Options) -> Result<ExitCode> {
    let mut console = Console::new();
    let clusters = up::start(&mut console)?;
    if !demo::is_deployed(&clusters) {
        demo::deploy(&mut console, &clusters)?;
    }
    super::steps::select_egress(&clusters, "vpn-http-connect.yaml")?;
    clusters.shoot.wait_ready(MINUTES)?;
    console.heading("Rolls, by their own controllers, under requests on every way");
    for rolled in &ROLLED {
        for nth in 1..=options.rolls {
            let _ = console.check(&format!("{}, roll {nth}", rolled.workload), || {
                let ((), outcomes) = load::during(&clusters, || roll(&clusters, rolled))?;
                judge(&outcomes, rolled.excused)
            });
        }
    }
    Ok(ExitCode::from(u8::from(!console.result())))
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
    kubectl.rolled_out(rolled.namespace, rolled.workload, 2 * MINUTES)
}

/// Says how many requests there were, or which failed that had no excuse.
fn judge(outcomes: &[Outcome], excused: &[(&str, &str)]) -> Result<String> {
    let mut bad = Vec::new();
    let (mut requests, mut forgiven) = (0, 0);
    for outcome in outcomes {
        requests += outcome.requests;
        if outcome.failures.is_empty() {
            continue;
        }
        if excused.iter().any(|(way, _)| outcome.way.starts_with(way)) {
            forgiven += outcome.failures.len();
        } else {
            let (count, first) = (outcome.failures.len(), outcome.failures.join("\n      "));
            bad.push(format!(
                "{}: {count} of {} failed:\n      {first}",
                outcome.way, outcome.requests
            ));
        }
    }
    if !bad.is_empty() {
        bail!("{}", bad.join("\n    "));
    }
    let longest = outcomes.iter().max_by_key(|outcome| outcome.longest);
    let longest = longest.map_or_else(String::new, |one| {
        format!("{:.0?} ({})", one.longest, one.way)
    });
    Ok(format!(
        "{requests} requests, longest {longest}, failed with an excuse: {forgiven}"
    ))
}

const KEPT: (&str, &str) = (
    "kept",
    "a connection that outlives its gateway's drain is cut",
);

const ROLLED: [Rolled; 7] = [
    Rolled {
        in_shoot: false,
        namespace: "garden",
        workload: "deployment/rhizome-netpol-controller",
        excused: &[],
    },
    Rolled {
        in_shoot: false,
        namespace: "istio-ingress",
        workload: "deployment/sni-proxy",
        excused: &[KEPT],
    },
    Rolled {
        in_shoot: false,
        namespace: SHOOT,
        workload: "statefulset/vpn-seed-server",
        excused: &[],
    },
    Rolled {
        in_shoot: true,
        namespace: "kube-system",
        workload: "statefulset/vpn-shoot",
        excused: &[],
    },
    Rolled {
        in_shoot: true,
        namespace: "kube-system",
        workload: "daemonset/apiserver-proxy",
        excused: &[(
            "node",
            "without maxSurge a node proxy refuses connections until the next one listens",
        )],
    },
    Rolled {
        in_shoot: false,
        namespace: SHOOT,
        workload: "deployment/konnectivity-server",
        excused: &[],
    },
    Rolled {
        in_shoot: true,
        namespace: "kube-system",
        workload: "deployment/konnectivity-agent",
        excused: &[],
    },
];
