//! A shoot's node: `apiserver-proxy` with the API server's address on a device of its own.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::netns::Namespace;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use super::gateway;
use super::process;
use super::shoot::Shoot;
use crate::workspace::Programs;

/// How the node tells the gateway which API server is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the header of an HTTP CONNECT.
    Connect,
    /// By the destination address of a PROXY header.
    Proxy,
}

impl Mode {
    /// Returns the address at which pods of `shoot` know their API server.
    pub(super) fn address(self, shoot: &Shoot) -> IpAddr {
        match self {
            Self::Connect => IpAddr::from([10, 1, 2, 3]),
            Self::Proxy => shoot.service,
        }
    }
}

pub(super) fn start(
    programs: &Programs,
    node: &Namespace,
    dir: &TempDir,
    shoot: &Shoot,
    mode: Mode,
) -> Result<ChildGuard> {
    let name = format!("apiserver-proxy-{}", shoot.letter);
    let program = programs.get("apiserver-proxy")?;
    let config = config(dir, shoot, mode)?;
    let ready = || process::is_ok(node, PROBES, "/readyz");
    process::start((node, dir), (&name, program), config, ready)
}

/// Starts the process that follows the one that serves, and waits until it has taken over.
pub(super) fn succeed(
    programs: &Programs,
    node: &Namespace,
    dir: &TempDir,
    shoot: &Shoot,
    mode: Mode,
) -> Result<ChildGuard> {
    let program = programs.get("apiserver-proxy")?;
    let name = format!("apiserver-proxy-{}-next", shoot.letter);
    let config = config(dir, shoot, mode)?;
    let log = dir.join(format!("{name}.log"));
    let took_over = || fs::read_to_string(&log).is_ok_and(|log| log.contains("took over"));
    process::start((node, dir), (&name, program), config, took_over)
}

fn config(dir: &TempDir, shoot: &Shoot, mode: Mode) -> Result<Value> {
    let directory = dir.join(format!("node-{}", shoot.letter));
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let upstream = match mode {
        Mode::Connect => json!({
            "address": gateway::NODE,
            "mode": "http-connect",
            "destination": shoot.cluster,
        }),
        Mode::Proxy => json!({
            "address": gateway::NODE,
            "mode": "proxy-protocol",
            "version": 2,
        }),
    };
    Ok(json!({
        "listen": [SocketAddr::new(mode.address(shoot), 443)],
        "upstream": upstream,
        "interface": { "name": "apiserver-proxy", "kind": "auto", "cleanup": true },
        "probes": { "address": PROBES },
        "drain": { "delay": "0s", "timeout": "1s" },
        "handover": { "socket": directory.join("handover.sock") },
    }))
}

const PROBES: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 16910);
