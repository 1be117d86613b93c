//! Whether the machine is quiet: load average, and who used the processors for a moment.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::wait;

/// Where the processors' time went since the machine came up (`proc_stat(5)`), in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    idle: u64,
    stolen: u64,
    all: u64,
}

impl Shares {
    /// Reads them.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(super) fn now() -> Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").context("reading /proc/stat")?)
    }

    fn parse(stat: &str) -> Result<Self> {
        let line = stat.lines().next().context("/proc/stat is empty")?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map_while(|word| word.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; what follows is part of the first two.
        let at = |nth: usize| ticks.get(nth).copied().unwrap_or(0);
        let shares = Self {
            idle: at(3) + at(4),
            stolen: at(7),
            all: ticks.iter().take(8).sum(),
        };
        (shares.all > 0)
            .then_some(shares)
            .context("/proc/stat has no processors")
    }

    /// Returns the share of all processors that others than this machine took, 0 to 1.
    pub(super) fn stolen_since(self, before: Self) -> f64 {
        self.share(before, |shares| shares.stolen)
    }

    /// Returns the share that was used here, 0 to 1.
    fn used_since(self, before: Self) -> f64 {
        1.0 - self.share(before, |shares| shares.idle) - self.stolen_since(before)
    }

    fn share(self, before: Self, of: impl Fn(Self) -> u64) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        of(self).saturating_sub(of(before)) as f64 / all as f64
    }
}

/// Watches for a moment, and returns what keeps the machine busy, if anything does.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn busy() -> Result<Option<String>> {
    let before = Shares::now()?;
    wait::pause(MOMENT);
    let now = Shares::now()?;
    let load = fs::read_to_string("/proc/loadavg").context("reading /proc/loadavg")?;
    let load: f64 = load
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .context("/proc/loadavg has no number")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(judge(
        load / threads as f64,
        now.used_since(before),
        now.stolen_since(before),
    ))
}

/// What is too much, of all processors: load average, use and theft.
fn judge(load: f64, used: f64, stolen: f64) -> Option<String> {
    let mut why = Vec::new();
    if load > MAX_LOAD {
        why.push(format!(
            "load average {load:.2} for each processor (limit {MAX_LOAD})"
        ));
    }
    for (share, limit, word) in [(used, MAX_USED, "used"), (stolen, MAX_STOLEN, "stolen")] {
        if share > limit {
            why.push(format!(
                "{:.1} % of the processors {word} (limit {:.0})",
                share * 100.0,
                limit * 100.0
            ));
        }
    }
    (!why.is_empty()).then(|| why.join(", "))
}

const MOMENT: Duration = Duration::from_secs(3);
/// What an idle machine with a terminal and some timers stays below.
const MAX_LOAD: f64 = 0.25;
const MAX_USED: f64 = 0.05;
const MAX_STOLEN: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_between_two_readings() {
        let before = Shares::parse("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1\n").unwrap();
        let now = Shares::parse("cpu  120 0 110 850 10 0 0 10 5 0\n").unwrap();
        assert!((now.stolen_since(before) - 0.1).abs() < 1e-9);
        assert!((now.used_since(before) - 0.3).abs() < 1e-9);
        assert!(Shares::parse("").is_err());
    }

    #[test]
    fn each_reason_is_named() {
        assert_eq!(judge(0.1, 0.01, 0.0), None);
        let why = judge(1.0, 0.5, 0.2).unwrap();
        for word in [
            "load average 1.00",
            "50.0 % of the processors used",
            "20.0 %",
        ] {
            assert!(why.contains(word), "{why}");
        }
    }
}
