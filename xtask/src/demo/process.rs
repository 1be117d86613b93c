//! How the demo starts its programs, and what their probes and metrics say.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

/// Starts `program` in `place` with `config` as its configuration, and waits until `ready`. JSON is
/// YAML.
pub(super) fn start(
    (place, dir): (&Namespace, &TempDir),
    (name, program): (&str, &Path),
    config: impl Display,
    ready: impl FnMut() -> bool,
) -> Result<ChildGuard> {
    let path = dir.write(format!("{name}.yaml"), format!("{config:#}\n"))?;
    let mut command = Place::In(place).command(program);
    command.arg("--config").arg(&path);
    spawn(dir, name, &command, ready)
}

/// Starts a command whose log goes to `dir`, and waits until `ready`.
pub(super) fn spawn(
    dir: &TempDir,
    name: &str,
    command: &Command,
    ready: impl FnMut() -> bool,
) -> Result<ChildGuard> {
    let mut child = ChildGuard::spawn(name, command, &dir.join(format!("{name}.log")))?;
    child.wait_ready(READY_LIMIT, ready)?;
    Ok(child)
}

pub(super) fn is_ok(place: &Namespace, probes: SocketAddr, path: &str) -> bool {
    matches!(probe(place, probes, path), Ok(200))
}

pub(super) fn probe(place: &Namespace, probes: SocketAddr, path: &str) -> Result<u16> {
    let target = Target::plain(probes).timeout(Duration::from_secs(1));
    Ok(place.run(|| http::get(&target, path))??.status)
}

/// Returns a metric, summed over all series with `labels`; 0 where there is none.
pub(super) fn metric(
    place: &Namespace,
    probes: SocketAddr,
    name: &str,
    labels: &[(&str, &str)],
) -> Result<f64> {
    let answer = place.run(|| http::get(&Target::plain(probes), "/metrics"))??;
    let metrics = Metrics::parse(&answer.text())?;
    Ok(metrics.value(name, labels).unwrap_or_default())
}

const READY_LIMIT: Duration = Duration::from_secs(15);
