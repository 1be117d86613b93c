//! `rhizome-bench controller`: netpol-controller and a gateway with a large cluster.
//!
//! ```text
//!     objects ──▶ kube-apiserver, etcd ◀── netpol-controller ══xDS══▶ sni-proxy
//!                                            └ metrics, /proc          └ log: generation in force
//! ```
//!
//! Delays are those of this machine with all four on it, so the processor time of API server and
//! controller stands beside them: it says who was the slower one.

mod cluster;
mod figure;
mod known;
mod policies;
mod routes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use testkit::tempdir::TempDir;

use self::cluster::Cluster;
use crate::latency::Latencies;
use crate::output::Output;
use crate::programs::program;
use crate::progress::Progress;
use crate::report::{Compared, Known, Report};
use crate::samples::{Figure, Samples};
use crate::{interrupt, machine};

/// The controller and a gateway with a large cluster, on a real API server that is started for it.
#[derive(Args, Debug)]
pub(crate) struct Controller {
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Services that policies are made of, ten in each namespace.
    #[arg(long, default_value_t = SERVICES)]
    services: usize,
    /// Services that routes are made of, twenty in each namespace.
    #[arg(long, default_value_t = ROUTES)]
    routes: usize,
    /// Changes, one after the other, whose delays are measured.
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// `netpol-controller`; by default the one beside this program, as the next one.
    #[arg(long)]
    controller: Option<PathBuf>,
    /// `sni-proxy`.
    #[arg(long)]
    gateway: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// NetworkPolicies: from none, one change, a restart.
    Policies,
    /// Routes: from none, a gateway's first sync, one endpoint's change, one shoot's.
    Routes,
}

/// What is at hand to measure with.
struct Lab {
    controller: PathBuf,
    gateway: PathBuf,
    cluster: Cluster,
    changes: usize,
    samples: Samples,
    progress: Progress,
}

impl Lab {
    fn add(&mut self, case: &str, figure: Figure, value: f64) {
        self.samples.add(SETUP, case, figure, value);
    }

    /// Adds the delays of changes.
    fn delays(&mut self, case: &str, delays: &Latencies) -> Result<()> {
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        self.add(case, figure::DELAY_P50, ms(delays.quantile(0.5)));
        self.add(case, figure::DELAY_P99, ms(delays.quantile(0.99)));
        self.add(case, figure::DELAY_MAX, ms(delays.max()));
        self.samples.add_latencies(SETUP, case, delays)
    }
}

/// Measures what was asked for and prints it.
///
/// # Errors
/// When the API server does not start, or nothing could be measured.
pub(crate) fn run(asked: &Controller, output: &Output) -> Result<ExitCode> {
    let (services, routes) = (asked.services, asked.routes);
    ensure!(
        services >= policies::EACH && routes >= routes::EACH,
        "less than one namespace: --services from {}, --routes from {}",
        policies::EACH,
        routes::EACH
    );
    ensure!(
        (1..=services.min(routes)).contains(&asked.changes),
        "--changes: each one is another service's, so from 1 to {}",
        services.min(routes)
    );
    interrupt::watch()?;
    let controller = program(asked.controller.as_ref(), "netpol-controller")?;
    let gateway = program(asked.gateway.as_ref(), "sni-proxy")?;
    let mut facts = machine::facts();
    facts.push(("controller", machine::version(&controller)));
    facts.push(("gateway", machine::version(&gateway)));
    facts.push((
        "objects",
        format!(
            "{} services with policies, {} routed",
            asked.services, asked.routes
        ),
    ));
    let dir = TempDir::new("bench-controller")?;
    let mut progress = Progress::new(STEPS);
    progress.step("the API server starts");
    let mut lab = Lab {
        controller,
        gateway,
        cluster: Cluster::start(&dir)?,
        changes: asked.changes,
        samples: Samples::default(),
        progress,
    };
    let mut failures = Vec::new();
    for case in Case::value_variants() {
        if !asked.cases.is_empty() && !asked.cases.contains(case) {
            continue;
        }
        let measured = match case {
            Case::Policies => policies::measure(&mut lab, asked.services / policies::EACH),
            Case::Routes => routes::measure(&mut lab, asked.routes / routes::EACH),
        };
        if let Err(error) = measured {
            failures.push(format!("{case:?}: {error:#}"));
        }
    }
    let Lab {
        samples, progress, ..
    } = lab;
    drop(progress);
    if samples.series().is_empty() {
        bail!("nothing could be measured:\n{}", failures.join("\n"));
    }
    facts.push(("load after", machine::load_average()));
    let by_default = asked.services == SERVICES && asked.routes == ROUTES;
    let report = Report {
        samples: &samples,
        facts: &facts,
        known: &|_, case, figure| {
            if by_default {
                known::known(case, figure)
            } else {
                Known::default()
            }
        },
        compared: Compared {
            head: "",
            key: "peer",
            legend: "nobody",
        },
    };
    output.deliver(&report, &failures)
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

const SETUP: &str = "rhizome";
const SERVICES: usize = 2000;
const ROUTES: usize = 10_000;
const STEPS: usize = 10;
