//! Routes that change, ten a second, while gateways hold as many connections as they may.
//!
//! ```text
//! patches ──▶ kube-apiserver ──▶ netpol-controller ══xDS══▶ sni-proxy 0 ◀── load 0: 9,000 held,
//!    │                                              └═════▶ sni-proxy 1 ◀── load 1  new ones
//!    └─▶ watcher of each gateway: new connections until one takes the new route
//! ```
//!
//! A process may have 20,000 files on many machines, so each gateway has a process of load that is
//! both ends of its connections; of the shoots it has those whose endpoints are its port. Which
//! address a connection came to is told by the load, which has all addresses of the network.

mod changes;
mod load;
mod loads;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use testkit::process::Usage;
use testkit::wait;

use self::changes::Plan;
use self::load::{Hold, Outcome};
use self::loads::Load;
use super::cluster::Running;
use super::gateway::Gateway;
use super::{Lab, figure as of, known, mib, routes, shoots};
use crate::limits;

pub(crate) use self::load::hold;

/// How much is held, and how fast routes change meanwhile.
#[derive(Args, Clone, Debug)]
pub(super) struct Asked {
    /// Gateways, each with a process of load, while routes change.
    #[arg(long, default_value_t = 2)]
    pub(super) gateways: usize,
    /// Connections held through each of them; fewer where the limit of open files says so.
    #[arg(long, default_value_t = 9000)]
    held: usize,
    /// Routes that change each second meanwhile.
    #[arg(long, default_value_t = 10)]
    rate: u32,
    /// For so many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

impl Asked {
    /// Refuses what cannot be done with so many shoots.
    pub(super) fn check(&self, routes: usize) -> Result<()> {
        let within = (1..=MAX_GATEWAYS).contains(&self.gateways);
        ensure!(within, "--gateways: from 1 to {MAX_GATEWAYS}");
        ensure!(self.held > 0, "--held: from 1");
        ensure!(
            self.rate > 0 && self.seconds > 0,
            "--rate and --seconds: from 1"
        );
        let changes = self.changes();
        let most = routes / shoots::EACH * shoots::EACH;
        ensure!(
            changes <= most,
            "{changes} changes are of a shoot each, and --routes is good for {most}"
        );
        Ok(())
    }

    pub(super) fn held(&self) -> usize {
        self.held.min(most())
    }

    pub(super) fn fact(&self) -> String {
        format!(
            "{} connections through each of {} gateways, of at most {} that {} open files a \
             process allow",
            self.held(),
            self.gateways,
            most(),
            limits::descriptors()
        )
    }

    fn changes(&self) -> usize {
        let changes = u64::from(self.rate) * u64::from(self.seconds);
        usize::try_from(changes).unwrap_or(usize::MAX)
    }
}

/// Both a gateway and its load have two files for each connection.
fn most() -> usize {
    let most = limits::proxied(limits::descriptors());
    // New ones come beside those that are held.
    most.saturating_sub(SPARE).max(1)
}

pub(super) fn measure(lab: &mut Lab<'_>, spaces: usize) -> Result<()> {
    lab.progress.step("churn: objects are created");
    shoots::fill(lab, spaces)?;
    let xds = lab.cluster.free_address()?;
    lab.progress.step("churn: controller and gateways start");
    let (controller, _) = routes::controller(lab, xds)?;
    let names = (0..lab.gateways()).map(|nth| format!("gateway-{nth}"));
    let gateways = names.map(|name| Gateway::start(lab, xds, &name));
    let gateways = gateways.collect::<Result<Vec<_>>>()?;
    for gateway in &gateways {
        gateway.wait_ready()?;
        gateway.had_all_at_first(lab.routed)?;
    }
    wait::pause(REST);
    let empty = usages(&gateways)?;
    lab.progress.step("churn: connections are opened");
    let mut loads = loads(lab, &gateways, spaces)?;
    let held = loads.iter_mut().map(Load::hear::<usize>);
    let held = held.sum::<Result<usize>>()?;
    let wanted = lab.churn.held() * gateways.len();
    ensure!(held == wanted, "{held} of {wanted} connections are open");
    wait::pause(REST);
    lab.add(known::CHURN, of::HELD, held as f64);
    add_memory(lab, held, &empty, &usages(&gateways)?);
    lab.progress.step("churn: routes change");
    for load in &mut loads {
        load.go_on()?;
    }
    change(lab, &controller, &gateways, spaces)?;
    lab.progress.step("churn: what is held is looked at");
    for load in &mut loads {
        load.go_on()?;
    }
    let outcomes = loads.iter_mut().map(Load::hear);
    add_outcomes(lab, &outcomes.collect::<Result<Vec<Outcome>>>()?);
    Ok(())
}

fn loads(lab: &Lab<'_>, gateways: &[Gateway], spaces: usize) -> Result<Vec<Load>> {
    let loads = gateways.iter().enumerate().map(|(nth, gateway)| {
        let hold = Hold {
            gateway: gateway.tls,
            held: lab.churn.held(),
            spaces,
            nth,
            of: gateways.len(),
            seconds: lab.churn.seconds,
        };
        Load::start(lab.cluster.place, &hold)
    });
    loads.collect()
}

fn usages(gateways: &[Gateway]) -> Result<Vec<Usage>> {
    gateways.iter().map(|one| one.child.usage()).collect()
}

fn add_memory(lab: &mut Lab<'_>, held: usize, empty: &[Usage], full: &[Usage]) {
    let each = held as f64 / full.len().max(1) as f64;
    for (empty, full) in empty.iter().zip(full) {
        let (empty, full) = (mib(empty.rss_kib), mib(full.rss_kib));
        lab.add(known::CHURN, of::GATEWAY_EMPTY, empty);
        lab.add(known::CHURN, of::GATEWAY_RESIDENT, full);
        lab.add(known::CHURN, of::PER_10K, (full - empty) / each * 1e4);
    }
}

fn change(
    lab: &mut Lab<'_>,
    controller: &Running,
    gateways: &[Gateway],
    spaces: usize,
) -> Result<()> {
    let plan = Plan {
        spaces,
        gateways: gateways.iter().map(|gateway| gateway.tls).collect(),
        interval: Duration::from_secs(1) / lab.churn.rate,
        count: lab.churn.changes(),
    };
    let clock = wait::Stopwatch::start();
    let (before, ours) = (usages(gateways)?, controller.child.usage()?);
    let theirs = lab.cluster.processor_time()?;
    let seen = changes::run(&lab.cluster, &plan).context("changing routes")?;
    let theirs = lab.cluster.processor_time()?.saturating_sub(theirs);
    let (after, ours_now) = (usages(gateways)?, controller.child.usage()?);
    let wall = clock.elapsed().as_secs_f64();
    let percent = |time: Duration| time.as_secs_f64() / wall * 100.0;
    let spent = |before: &Usage, after: &Usage| after.cpu_time.saturating_sub(before.cpu_time);
    lab.add(known::CHURN, of::CHANGES, seen.rate);
    let mut peak = 0.0_f64;
    for (before, after) in before.iter().zip(&after) {
        let share = percent(spent(before, after));
        lab.add(known::CHURN, of::CPU_GATEWAY_SHARE, share);
        peak = peak.max(mib(after.peak_rss_kib));
    }
    lab.add(known::CHURN, of::GATEWAY_PEAK, peak);
    let share = percent(spent(&ours, &ours_now));
    lab.add(known::CHURN, of::CPU_SHARE, share);
    lab.add(known::CHURN, of::CPU_SERVER_SHARE, percent(theirs));
    lab.add(known::CHURN, of::RESIDENT, mib(ours_now.rss_kib));
    lab.add(known::CHURN, of::PEAK, mib(ours_now.peak_rss_kib));
    lab.delays(known::MOVED, &seen.moved);
    lab.delays(known::NAMED, &seen.named);
    Ok(())
}

fn add_outcomes(lab: &mut Lab<'_>, outcomes: &[Outcome]) {
    let (mut lost, mut longest) = (0, 0.0_f64);
    for one in outcomes {
        lab.add(known::CHURN, of::PROBES, one.probes as f64);
        longest = longest.max(one.longest_ms);
        lab.add(known::CHURN, of::NEW, one.new_per_second);
        lost += one.lost + one.failed;
    }
    // All together: the median of several would hide one's.
    lab.add(known::CHURN, of::LONGEST, longest);
    lab.add(known::CHURN, of::LOST, lost as f64);
}

/// Each has a share of the shoots of a namespace.
const MAX_GATEWAYS: usize = 4;
/// For what is done behind the scenes.
const REST: Duration = Duration::from_millis(500);
/// Descriptors that are left for new connections.
const SPARE: usize = 32;
