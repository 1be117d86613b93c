//! What is measured: each scenario drives a load through a target and adds its figures.
//!
//! ```text
//! Lab (runtime, destination, run) + Target (frontend, server, agent) ──▶ scenario ──▶ run
//! ```
//!
//! - [`speed`]: throughput, round trips, dials.
//! - [`memory`]: idle tunnels.
//! - [`harm`]: stalled tunnels, abandoned dials, ten thousand dials.

pub(crate) mod figure;
pub(crate) mod harm;
pub(crate) mod memory;
pub(crate) mod speed;

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::http;
use testkit::metrics::Metrics;
use testkit::process::{Usage, usage};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::frontend::{Frontend, Transport};
use super::load;
use super::pair::{Pair, Programs};
use crate::backend::Backend;
use crate::latency::Latencies;
use crate::programs::value_name;
use crate::report::{Figure, Run};

pub(crate) struct Lab {
    pub(crate) runtime: Runtime,
    pub(crate) backend: Backend,
    pub(crate) run: Run,
}

impl Lab {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            runtime: crate::tls::runtime()?,
            backend: Backend::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?,
            run: Run::default(),
        })
    }

    fn add(&mut self, target: &Target, case: &str, figure: Figure, value: f64) {
        self.run
            .add(&value_name(target.transport), case, figure, value);
    }

    fn add_some(&mut self, target: &Target, case: &str, figure: Figure, value: Option<f64>) {
        if let Some(value) = value {
            self.add(target, case, figure, value);
        }
    }

    fn add_latencies(
        &mut self,
        target: &Target,
        case: (&str, Option<&str>),
        figures: [Figure; 3],
        of: &Latencies,
    ) {
        let setup = value_name(target.transport);
        self.run.add_latencies(&setup, case, figures, 1e6, of);
    }

    /// Adds how much resident memory each program has more than `before`.
    fn add_growth(&mut self, target: &Target, case: &str, now: &Usages, before: &Usages) {
        let [server, agent] = now.growth_since(before);
        let mib = |grown: Option<f64>| Some(grown? / 1024.0);
        self.add_some(target, case, figure::SERVER_GROWTH, mib(server));
        self.add_some(target, case, figure::AGENT_GROWTH, mib(agent));
    }

    fn rest(&self, time: Duration) {
        self.runtime
            .block_on(async { tokio::time::sleep(time).await });
    }

    /// Dials so often that what is made once and for all is there, and lets the pair come to rest.
    fn warm_up(&self, target: &Target, count: usize, at_once: usize) -> Result<()> {
        let echo = self.backend.address();
        let dials = load::many_dials(&target.frontend, echo, count, at_once);
        self.runtime.block_on(dials).context("warming up")?;
        self.calm()
    }

    fn calm(&self) -> Result<()> {
        self.settle(|| Ok(self.backend.open() == 0))?;
        self.rest(CALM);
        Ok(())
    }

    /// Waits until `settled` yields true, at most [`SETTLE_LIMIT`], and returns how long it took.
    fn settle(&self, mut settled: impl FnMut() -> Result<bool>) -> Result<Duration> {
        let started = Instant::now();
        while !settled()? && started.elapsed() < SETTLE_LIMIT {
            self.rest(POLL);
        }
        Ok(started.elapsed())
    }
}

pub(crate) struct Target {
    pub(crate) transport: Transport,
    pub(crate) frontend: Frontend,
    pub(crate) server: Side,
    pub(crate) agent: Side,
    pub(crate) pair: Option<Pair>,
}

/// A server or an agent, seen from outside. What is not known of a program that was not started here
/// stays unmeasured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pub(crate) pid: Option<u32>,
    pub(crate) health: Option<SocketAddr>,
}

impl Target {
    pub(crate) fn direct() -> Self {
        Self {
            transport: Transport::Direct,
            frontend: Frontend::Direct,
            server: Side::default(),
            agent: Side::default(),
            pair: None,
        }
    }

    pub(crate) fn start(programs: &Programs, transport: Transport) -> Result<Self> {
        if transport == Transport::Direct {
            return Ok(Self::direct());
        }
        let what = || format!("starting a pair for {}", value_name(transport));
        Pair::start(programs, transport).with_context(what)
    }

    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let error = match &self.pair {
            Some(pair) => error.context(pair.logs()),
            None => error,
        };
        error.context(format!("measuring {}", value_name(self.transport)))
    }

    fn usage(&self) -> Result<Usages> {
        let of = |side: Side| side.pid.map(usage).transpose();
        Ok(Usages([of(self.server)?, of(self.agent)?]))
    }
}

impl Side {
    /// Scrapes one metric, summed over its labels; `None` when the address is not known or the
    /// metric not there.
    fn metric(self, name: &str) -> Result<Option<f64>> {
        let Some(health) = self.health else {
            return Ok(None);
        };
        let target = http::Target::plain(health).timeout(SCRAPE_LIMIT);
        let answer = http::get(&target, "/metrics")?;
        Ok(Metrics::parse(&answer.text())?.value(name, &[]))
    }
}

/// Of the server and of the agent.
#[derive(Clone, Copy)]
struct Usages([Option<Usage>; 2]);

impl Usages {
    fn cpu_since(&self, before: &Self) -> Option<f64> {
        let [server, agent] = self.more_than(before, |usage| usage.cpu_time.as_secs_f64());
        Some(server? + agent?)
    }

    /// Returns how much each one's resident memory has grown, in KiB.
    fn growth_since(&self, before: &Self) -> [Option<f64>; 2] {
        self.more_than(before, |usage| usage.rss_kib as f64)
    }

    fn more_than(&self, before: &Self, of: fn(Usage) -> f64) -> [Option<f64>; 2] {
        std::array::from_fn(|side| Some(of(self.0[side]?) - of(before.0[side]?)))
    }
}

const MIB: f64 = 1024.0 * 1024.0;
const CALM: Duration = Duration::from_millis(500);
const SCRAPE_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
/// How long leftovers may take to go: longer than either end waits for a close to be confirmed.
const SETTLE_LIMIT: Duration = Duration::from_secs(15);
