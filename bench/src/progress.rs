//! Where a run is, on standard error; nothing when that is no terminal.

use std::io::{IsTerminal, Write, stderr};

/// A line that is written over again and again, and removed at the end.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    done: usize,
    steps: usize,
    /// What went wrong so far: a table with a gap says more than none.
    pub(crate) failures: Vec<String>,
}

impl Progress {
    pub(crate) fn new(steps: usize) -> Self {
        Self {
            shown: stderr().is_terminal(),
            done: 0,
            steps,
            failures: Vec::new(),
        }
    }

    pub(crate) fn run(&mut self, what: &str, work: impl FnOnce() -> anyhow::Result<()>) {
        self.step(what);
        if let Err(error) = work() {
            self.failures.push(format!("{what}: {error:#}"));
        }
    }

    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        if self.shown {
            let share = (self.done.min(self.steps) * WIDTH) / self.steps.max(1);
            let bar = format!("{}{}", "█".repeat(share), "░".repeat(WIDTH - share));
            let (done, steps) = (self.done, self.steps);
            // Nothing depends on it.
            let _ = write!(stderr(), "\r\x1b[K{bar} {done}/{steps} {what}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

const WIDTH: usize = 20;
