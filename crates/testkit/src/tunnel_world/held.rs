//! A connection that is held open and spoken on all the time, to see what it lives through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;

use crate::background::{Joined, locked};
use crate::http::Upgraded;
use crate::wait::{self, Stopwatch};

/// A connection to an echo on which a word goes there and back again and again, on a thread of its
/// own. Dropping it closes the connection.
#[derive(Debug)]
pub struct Held {
    shared: Arc<Shared>,
    _thread: Joined,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Words that came back.
    pub exchanges: u64,
    /// The longest time between two that came back, until now included.
    pub longest_gap: Duration,
    pub failure: Option<String>,
}

#[derive(Debug)]
struct Shared {
    clock: Stopwatch,
    stop: AtomicBool,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    report: Report,
    last: Duration,
}

impl Held {
    pub fn hold(mut connection: Upgraded) -> Result<Self> {
        let shared = Arc::new(Shared {
            clock: Stopwatch::start(),
            stop: AtomicBool::new(false),
            progress: Mutex::default(),
        });
        let inside = Arc::clone(&shared);
        let thread = Joined::spawn("held", move || inside.speak(&mut connection))?;
        Ok(Self {
            shared,
            _thread: thread,
        })
    }

    pub fn report(&self) -> Report {
        let progress = locked(&self.shared.progress);
        let mut report = progress.report.clone();
        if report.failure.is_none() {
            report.longest_gap = report.longest_gap.max(self.shared.gap(&progress));
        }
        report
    }

    pub fn wait_exchanges(&self, count: u64, limit: Duration) -> Result<()> {
        let wanted = self.report().exchanges + count;
        let what = format!("{count} more answers on a held connection");
        wait::until(&what, limit, || {
            let report = self.report();
            report.exchanges >= wanted || report.failure.is_some()
        })?;
        match self.report().failure {
            Some(failure) => anyhow::bail!("the held connection is over: {failure}"),
            None => Ok(()),
        }
    }

    /// Forgets the longest gap so far: for what comes to be seen by itself.
    pub fn begin_anew(&self) {
        let mut progress = locked(&self.shared.progress);
        progress.report.longest_gap = Duration::ZERO;
        progress.last = self.shared.clock.elapsed();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Behind this, the thread is waited for.
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn speak(&self, connection: &mut Upgraded) {
        let mut number = 0_u64;
        while !self.stop.load(Ordering::Relaxed) {
            let word = number.to_be_bytes();
            number += 1;
            let failure = match connection.exchange(&word) {
                Ok(heard) if heard == word => None,
                Ok(heard) => Some(format!("{heard:?} instead of {word:?}")),
                Err(error) => Some(format!("{error:#}")),
            };
            let mut progress = locked(&self.progress);
            if failure.is_some() {
                progress.report.failure = failure;
                return;
            }
            progress.report.longest_gap = progress.report.longest_gap.max(self.gap(&progress));
            progress.report.exchanges += 1;
            progress.last = self.clock.elapsed();
            drop(progress);
            wait::pause(PAUSE);
        }
    }

    fn gap(&self, progress: &Progress) -> Duration {
        self.clock.elapsed().saturating_sub(progress.last)
    }
}

/// How long a connection is silent between an answer and the next word.
pub const PAUSE: Duration = Duration::from_millis(50);
