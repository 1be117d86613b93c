//! `rhizome-bench controller`: netpol-controller and a gateway with a large cluster.
//!
//! ```text
//!     objects ──▶ kube-apiserver, etcd ◀── netpol-controller ══xDS══▶ sni-proxy ◀── connections
//!                                            └ metrics, /proc          └ log: generation in effect
//! ```
//!
//! Delays are those of this machine with all four on it, so the CPU time of API server and
//! controller stands beside them: it says who was the slower one.

mod churn;
mod cluster;
mod figure;
mod gateway;
mod known;
mod policies;
mod routes;
mod shoots;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use testkit::netns::Place;
use testkit::netns::privileges::{Privileges, acquire};
use testkit::tempdir::TempDir;

use self::cluster::Cluster;
use crate::latency::Latencies;
use crate::machine::Facts;
use crate::output::Output;
use crate::programs::program;
use crate::progress::Progress;
use crate::report::{Figure, Run};
use crate::tls::network;
use crate::{interrupt, limits, machine};

pub(crate) use self::churn::hold;

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
    #[command(flatten)]
    churn: churn::Asked,
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
    /// Routes that change while gateways hold connections.
    Churn,
}

struct Lab<'a> {
    controller: PathBuf,
    gateway: PathBuf,
    cluster: Cluster<'a>,
    changes: usize,
    churn: churn::Asked,
    routed: usize,
    run: Run,
    progress: Progress,
}

impl Lab<'_> {
    fn gateways(&self) -> usize {
        self.churn.gateways
    }

    fn add(&mut self, case: &str, figure: Figure, value: f64) {
        self.run.add(SETUP, case, figure, value);
    }

    fn delays(&mut self, case: &str, delays: &Latencies) {
        let figures = [figure::DELAY_P50, figure::DELAY_P99, figure::DELAY_MAX];
        self.run
            .add_latencies(SETUP, (case, None), figures, 1e3, delays);
    }
}

impl Controller {
    fn asks_for(&self, case: Case) -> bool {
        self.cases.is_empty() || self.cases.contains(&case)
    }

    fn check(&self) -> Result<()> {
        let (services, routes) = (self.services, self.routes);
        ensure!(
            services >= policies::EACH && routes >= shoots::EACH,
            "less than one namespace: --services from {}, --routes from {}",
            policies::EACH,
            shoots::EACH
        );
        let smaller = match (self.asks_for(Case::Policies), self.asks_for(Case::Routes)) {
            (true, true) => services.min(routes),
            (true, false) => services,
            (false, true) => routes,
            (false, false) => usize::MAX,
        };
        ensure!(
            (1..=smaller).contains(&self.changes),
            "--changes: each one is another service's, so from 1 to {smaller}",
        );
        if self.asks_for(Case::Churn) {
            self.churn.check(routes)?;
        }
        Ok(())
    }

    fn by_default(&self) -> bool {
        self.services == SERVICES && self.routes == ROUTES
    }
}

/// Measures what was asked for and prints it. For `churn` that is done in a network of its own, as
/// root or in a user namespace, since no endpoint may be on loopback.
pub(crate) fn run(asked: &Controller, output: &Output) -> Result<ExitCode> {
    asked.check()?;
    let churn = asked.asks_for(Case::Churn);
    if churn && let Privileges::Elsewhere(status) = acquire()? {
        return Ok(ExitCode::from(u8::from(!status.success())));
    }
    limits::raise()?;
    interrupt::watch()?;
    if !churn {
        return measured(asked, output, Place::Here);
    }
    let namespace = network::make()?;
    namespace.ip(&["route", "add", "local", shoots::NETWORK, "dev", "lo"])?;
    namespace.run(|| measured(asked, output, Place::In(&namespace)))?
}

fn measured(asked: &Controller, output: &Output, place: Place<'_>) -> Result<ExitCode> {
    let controller = program(asked.controller.as_ref(), "netpol-controller")?;
    let gateway = program(asked.gateway.as_ref(), "sni-proxy")?;
    let mut facts = facts(asked);
    facts.push(("controller", machine::version(&controller)));
    facts.push(("gateway", machine::version(&gateway)));
    let dir = TempDir::new("bench-controller")?;
    let mut progress = Progress::new(STEPS);
    progress.step("the API server starts");
    let mut lab = Lab {
        controller,
        gateway,
        cluster: Cluster::start(&dir, place)?,
        changes: asked.changes,
        churn: asked.churn.clone(),
        routed: 0,
        run: Run::default(),
        progress,
    };
    let failures = cases(&mut lab, asked);
    let Lab {
        mut run, progress, ..
    } = lab;
    drop(progress);
    output.finish(&mut run, facts, &failures, "", |_, _, case, figure| {
        known::known(asked.by_default(), case, figure)
    })
}

fn facts(asked: &Controller) -> Facts {
    let mut facts = machine::facts();
    let (services, routes) = (asked.services, asked.routes);
    let objects = format!("{services} services with policies, {routes} routed");
    facts.push(("objects", objects));
    if asked.asks_for(Case::Churn) {
        facts.push(("held", asked.churn.fact()));
    }
    facts
}

fn cases(lab: &mut Lab<'_>, asked: &Controller) -> Vec<String> {
    let mut failures = Vec::new();
    for case in Case::value_variants() {
        if !asked.asks_for(*case) {
            continue;
        }
        let measured = match case {
            Case::Policies => policies::measure(lab, asked.services / policies::EACH),
            Case::Routes => routes::measure(lab, asked.routes / shoots::EACH),
            Case::Churn => churn::measure(lab, asked.routes / shoots::EACH),
        };
        if let Err(error) = measured {
            failures.push(format!("{case:?}: {error:#}"));
        }
    }
    failures
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

const SETUP: &str = "rhizome";
const SERVICES: usize = 2000;
const ROUTES: usize = 10_000;
const STEPS: usize = 15;
