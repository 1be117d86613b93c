//! What a run has found so far, and in which of it other programs had a hand.

use std::process::ExitCode;

use anyhow::Result;

use super::figure as of;
use super::window::Spent;
use crate::latency::Latencies;
use crate::machine::Facts;
use crate::output::Output;
use crate::report::{Figure, Known, Run};

#[derive(Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) run: Run,
    pub(crate) disturbed: Vec<String>,
}

impl Sheet {
    /// Runs once, and once more if other processes used too much of the processors; of two that were
    /// disturbed the better one counts, and is told about.
    pub(crate) fn undisturbed<T>(
        &mut self,
        setup: &str,
        case: &str,
        mut run: impl FnMut() -> Result<(T, Spent)>,
    ) -> Result<(T, Spent)> {
        let first = run()?;
        if !first.1.is_disturbed() {
            return Ok(first);
        }
        let second = run()?;
        let improved = second.1.others < first.1.others;
        let better = if improved { second } else { first };
        if better.1.is_disturbed() {
            let percent = better.1.others * 100.0;
            self.disturbed
                .push(format!("{setup}: {case} ({percent:.0} %)"));
        }
        Ok(better)
    }

    /// Adds what went one way.
    pub(crate) fn bytes(&mut self, setup: &str, case: &str, bytes: u64, spent: &Spent) {
        let gigabytes = bytes as f64 / 1e9;
        let rate = gigabytes * 8.0 / spent.wall.as_secs_f64();
        self.add(setup, case, of::THROUGHPUT, rate);
        if let Some(cpu) = spent.proxy {
            let each = cpu.as_secs_f64() / gigabytes;
            self.add(setup, case, of::CPU_PER_GB, each);
        }
        let all = spent.machine.as_secs_f64() / gigabytes;
        self.add(setup, case, of::ALL_CPU_PER_GB, all);
        self.busy(setup, case, of::PROXY_BUSY, spent);
    }

    pub(crate) fn operations(&mut self, setup: &str, case: &str, done: u64, spent: &Spent) {
        let done = done as f64;
        let rate = done / spent.wall.as_secs_f64();
        self.add(setup, case, of::PER_SECOND, rate);
        if let Some(cpu) = spent.proxy {
            let each = cpu.as_secs_f64() * 1e6 / done;
            self.add(setup, case, of::CPU_EACH, each);
        }
        let each = spent.machine.as_secs_f64() * 1e6 / done;
        self.add(setup, case, of::ALL_CPU_EACH, each);
        self.busy(setup, case, of::PROXY_BUSY, spent);
    }

    pub(crate) fn latencies(&mut self, setup: &str, case: &str, latencies: &Latencies) {
        let figures = [of::P50, of::P99, of::MAX];
        self.run
            .add_latencies(setup, (case, None), figures, 1e6, latencies);
    }

    pub(crate) fn busy(&mut self, setup: &str, case: &str, figure: Figure, spent: &Spent) {
        if let Some(percent) = spent.proxy_percent() {
            self.add(setup, case, figure, percent);
        }
    }

    pub(crate) fn add(&mut self, setup: &str, case: &str, figure: Figure, value: f64) {
        self.run.add(setup, case, figure, value);
    }

    /// Writes what was found, and what was in its way; returns the exit status.
    pub(crate) fn finish(
        &mut self,
        output: &Output,
        mut facts: Facts,
        failures: &[String],
        known: impl Fn(&Run, &str, &str, Figure) -> Known,
    ) -> Result<ExitCode> {
        if !self.disturbed.is_empty() {
            facts.push(("disturbed", self.disturbed.join("; ")));
        }
        let compared = "the best of the others in this run";
        output.finish(&mut self.run, facts, failures, compared, known)
    }
}
