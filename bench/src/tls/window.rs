//! What a stretch of load took: CPU time of the proxy, of ourselves and of the machine.
//!
//! ```text
//! Meter::read ──▶ Reading ┐
//! Meter::read ──▶ Reading ┴─▶ Spent: wall, proxy, machine, others
//! ```
//!
//! Each process's time is its own clock, in nanoseconds. The machine's is what its processors were
//! not idle (`/proc/stat`, steps of 10 ms), so it has what the kernel does in threads of its own.

use std::time::Duration;

use anyhow::{Context, Result};
use procfs::{CurrentSI, KernelStats};
use rustix::time::{ClockId, clock_gettime};
use testkit::wait::Stopwatch;

use crate::profile::{Target, Tree};

#[derive(Clone, Debug)]
pub(crate) struct Meter {
    tree: Option<Tree>,
    clock: Stopwatch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    at: Duration,
    proxy: Option<Duration>,
    own: Duration,
    machine: Machine,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    /// CPU time of the proxy's processes; `None` when there are none, or they are not known.
    pub(crate) proxy: Option<Duration>,
    pub(crate) machine: Duration,
    /// Share of one processor that was neither the proxy's nor ours.
    pub(crate) others: f64,
}

/// The machine's clocks, of all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    processors: u32,
    idle: Duration,
    nice: Duration,
    stolen: Duration,
}

impl Meter {
    pub(crate) fn of(target: &Target) -> Self {
        Self {
            tree: target.tree(),
            clock: Stopwatch::start(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    pub(crate) fn read(&self) -> Result<Reading> {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        Ok(Reading {
            at: self.now(),
            proxy: self.tree.as_ref().map(Tree::cpu_time).transpose()?,
            own: Duration::try_from(own).unwrap_or_default(),
            machine: Machine::read()?,
        })
    }

    /// Returns the proxy's resident memory, KiB; `None` when its processes are not known.
    pub(crate) fn resident_kib(&self) -> Result<Option<f64>> {
        let resident = self.tree.as_ref().map(Tree::resident_kib).transpose()?;
        Ok(resident.map(|kib| kib as f64))
    }
}

impl Reading {
    pub(crate) fn since(&self, before: &Self) -> Spent {
        let wall = self.at.saturating_sub(before.at);
        let machine = &self.machine;
        let passed = |after: Duration, before: Duration| after.saturating_sub(before);
        let proxy = self.proxy.zip(before.proxy);
        let proxy = proxy.map(|(after, before)| passed(after, before));
        let idle = passed(machine.idle, before.machine.idle);
        let stolen = passed(machine.stolen, before.machine.stolen);
        let busy = (wall * machine.processors).saturating_sub(idle + stolen);
        let own = passed(self.own, before.own);
        let nice = passed(machine.nice, before.machine.nice);
        // What the host gave to others is as much of a disturbance; what is nice waits for us.
        let others = (busy + stolen).saturating_sub(own + nice + proxy.unwrap_or_default());
        Spent {
            wall,
            proxy,
            machine: busy,
            others: others.as_secs_f64() / wall.as_secs_f64().max(f64::MIN_POSITIVE),
        }
    }
}

impl Spent {
    /// Returns whether other processes used so much of a processor that the values are in doubt.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > DISTURBED
    }

    pub(crate) fn proxy_percent(&self) -> Option<f64> {
        let wall = self.wall.as_secs_f64();
        Some(self.proxy?.as_secs_f64() / wall * 100.0)
    }
}

impl Machine {
    fn read() -> Result<Self> {
        let stats = KernelStats::current().context("reading /proc/stat")?;
        let all = &stats.total;
        Ok(Self {
            processors: u32::try_from(stats.cpu_time.len())?,
            idle: all.idle_duration() + all.iowait_duration().unwrap_or_default(),
            nice: all.nice_duration(),
            stolen: all.steal_duration().unwrap_or_default(),
        })
    }
}

/// More than this of one processor, and a repetition is done again.
const DISTURBED: f64 = 0.12;

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn reading(at: f64, proxy: f64, own: f64, idle: f64, stolen: f64) -> Reading {
        Reading {
            at: seconds(at),
            proxy: Some(seconds(proxy)),
            own: seconds(own),
            machine: Machine {
                processors: 2,
                idle: seconds(idle),
                nice: Duration::ZERO,
                stolen: seconds(stolen),
            },
        }
    }

    #[test]
    fn other_processes_disturb() {
        assert!(Machine::read().unwrap().processors > 0);
        let before = reading(1.0, 5.0, 7.0, 100.0, 0.0);
        // Two processors for two seconds: one each for proxy and load, but for a tenth of idleness.
        let quiet = reading(3.0, 6.9, 9.0, 100.1, 0.0).since(&before);
        assert_eq!(quiet.wall, seconds(2.0));
        assert_eq!(quiet.machine, seconds(3.9));
        assert!(!quiet.is_disturbed(), "{quiet:?}");
        assert!((quiet.proxy_percent().unwrap() - 95.0).abs() < 1e-6);
        // The proxy had only half of its processor, and another process the other half.
        let busy = reading(3.0, 6.0, 9.0, 100.0, 0.0).since(&before);
        let half = (busy.others - 0.5).abs() < 1e-6;
        assert!(busy.is_disturbed() && half, "{busy:?}");
        // Half of it was the host's.
        let stolen = reading(3.0, 6.0, 9.0, 100.0, 1.0).since(&before);
        assert!(stolen.is_disturbed());
    }

    #[test]
    fn unknown_processes_have_no_time() {
        let mut before = reading(0.0, 0.0, 0.0, 0.0, 0.0);
        before.proxy = None;
        let spent = reading(1.0, 0.0, 1.0, 1.0, 0.0).since(&before);
        assert_eq!((spent.proxy, spent.proxy_percent()), (None, None));
    }
}
