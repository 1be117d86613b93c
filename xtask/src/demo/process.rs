//! How the demo starts its programs, and what their probes and metrics say.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;

/// Starts `program` in `place` with `config` as its configuration, and waits until `ready`. JSON is
/// YAML.
pub(super) fn start(
    (place, dir): (&Namespace, &Path),
    (name, program): (&str, &Path),
    config: impl Display,
    ready: impl FnMut() -> bool,
) -> Result<ChildGuard> {
    let path = dir.join(format!("{name}.yaml"));
    write(&path, &format!("{config:#}\n"))?;
    let mut command = Place::In(place).command(program);
    command.arg("--config").arg(&path);
    spawn(dir, name, &command, ready)
}

/// Starts a command whose log goes to `dir`, and waits until `ready`.
pub(super) fn spawn(
    dir: &Path,
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

pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Puts `text` in the place of a file in one step, as an editor or a mounted ConfigMap does.
pub(super) fn replace(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("fresh");
    write(&fresh, text)?;
    std::fs::rename(&fresh, path).with_context(|| format!("replacing {}", path.display()))
}

const READY_LIMIT: Duration = Duration::from_secs(15);
