//! What every process reports of itself in the same way: name, version, age, and how far it has drained.

use telemetry::Status;
use telemetry::process::Build;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::drain::{Drain, Phase};

/// The part of a `telemetry::Process` that is the same in every program that drains.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    build: Build,
    started: Instant,
    drain: Drain,
    runtime: Handle,
}

impl ProcessInfo {
    /// Describes a process that starts now. Must be called within the control runtime, on which a
    /// requested drain then runs.
    pub fn new(build: Build, drain: Drain) -> Self {
        Self {
            build,
            started: Instant::now(),
            drain,
            runtime: Handle::current(),
        }
    }

    /// Returns the program's name.
    pub fn binary(&self) -> &'static str {
        self.build.binary
    }

    /// Returns whether new connections are welcome.
    ///
    /// # Errors
    /// "draining", for probes.
    pub fn serving(&self) -> Result<(), String> {
        match self.drain.phase() {
            Phase::Serving => Ok(()),
            Phase::Unready | Phase::Closing | Phase::Cut => Err("draining".to_owned()),
        }
    }

    /// Begins a drain.
    pub fn begin_drain(&self) {
        let _runtime = self.runtime.enter();
        self.drain.begin();
    }

    /// Returns the page's values as far as they are the same in every program.
    pub fn status(&self) -> Status {
        Status {
            version: self.build.version,
            uptime: self.started.elapsed(),
            draining: self.serving().is_err(),
            ..Status::default()
        }
    }
}
