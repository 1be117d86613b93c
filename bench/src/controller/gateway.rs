//! A gateway with routes from the controller, which tells in its log what is in effect.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::http::{self, Target};
use testkit::process::ChildGuard;
use testkit::wait::Stopwatch;

use super::Lab;
use super::cluster::soon;

pub(super) struct Gateway {
    pub(super) child: ChildGuard,
    pub(super) tls: SocketAddr,
    started: Stopwatch,
    probes: SocketAddr,
}

impl Gateway {
    pub(super) fn start(lab: &Lab<'_>, xds: SocketAddr, name: &str) -> Result<Self> {
        let place = lab.cluster.place;
        let (tls, probes) = (place.free_address()?, place.free_address()?);
        let dir = &lab.cluster.dir;
        let config = dir.join(format!("{name}.yaml"));
        let text = format!(
            "workers: 1\nprobes: {{ address: \"{probes}\" }}\nadmin: {{ address: \"\" }}\n\
             listeners:\n- {{ name: tls, address: \"{tls}\", protocol: tls }}\n\
             routing: {{ xds: {{ server: \"http://{xds}\", node: {name} }} }}\n"
        );
        std::fs::write(&config, text).context("writing the gateway's configuration")?;
        let mut command: Command = place.command(&lab.gateway);
        command.arg("--config").arg(&config).env("RUST_LOG", "info");
        let log = dir.join(format!("{name}.log"));
        let started = Stopwatch::start();
        Ok(Self {
            child: ChildGuard::spawn(name, &command, &log)?,
            tls,
            started,
            probes,
        })
    }

    pub(super) fn wait_ready(&self) -> Result<Duration> {
        let target = Target::plain(self.probes);
        soon("the gateway to be ready", || {
            Ok(http::get(&target, "/readyz").is_ok_and(|answer| answer.status == 200))
        })?;
        Ok(self.started.elapsed())
    }

    /// Makes sure that the first routes in effect were so many.
    pub(super) fn had_all_at_first(&self, routes: usize) -> Result<()> {
        let mut log = String::new();
        // The log is written behind the gateway's back, and may be behind its readiness.
        soon("the first routes to be logged", || {
            log = self.child.log();
            log.truncate(log.rfind('\n').unwrap_or_default());
            Ok(log.contains("generation=1 "))
        })
        .with_context(|| self.child.log_tail(TAIL))?;
        let all = format!("generation=1 clusters={routes} routes={routes}");
        ensure!(log.contains(&all), "not all routes at first: {log}");
        Ok(())
    }

    pub(super) fn generation(&self) -> u64 {
        let log = self.child.log();
        let mut lines = log.lines().rev();
        let last = lines.find_map(|line| line.split_once("generation="));
        let text = last.map_or("0", |(_, rest)| rest.split(' ').next().unwrap_or("0"));
        text.parse().unwrap_or(0)
    }
}

const TAIL: usize = 20;
