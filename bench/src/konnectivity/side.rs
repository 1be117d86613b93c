//! One of the two programs, seen from outside: what it uses, and what its metrics say.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::process::{Usage, usage};

/// A server or an agent. What is not known of a program that was not started here stays unmeasured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pid: Option<u32>,
    health: Option<SocketAddr>,
}

impl Side {
    pub(crate) fn new(pid: Option<u32>, health: Option<SocketAddr>) -> Self {
        Self { pid, health }
    }

    /// Reads what the process uses; `None` when its id is not known.
    pub(crate) fn usage(self) -> Result<Option<Usage>> {
        self.pid.map(usage).transpose()
    }

    /// Scrapes one metric, summed over its labels; `None` when the address is not known or the
    /// metric not there.
    pub(crate) fn metric(self, name: &str) -> Result<Option<f64>> {
        let Some(health) = self.health else {
            return Ok(None);
        };
        let answer = http::get(&Target::plain(health).timeout(LIMIT), "/metrics")?;
        Ok(Metrics::parse(&answer.text())?.value(name, &[]))
    }
}

/// Returns the status that `GET path` is answered with; `None` without an answer.
pub(crate) fn status(addr: SocketAddr, path: &str) -> Option<u16> {
    let answer = http::get(&Target::plain(addr).timeout(LIMIT), path);
    answer.ok().map(|answer| answer.status)
}

const LIMIT: Duration = Duration::from_secs(5);
