//! What can be put between load and backend: one profile each, a file of YAML.
//!
//! ```text
//! bench/profiles/*.yaml, --profile FILE ──▶ Profile ──start──▶ Target ──tell──▶ Target
//!                                                          │ templates, ports, routes  │ one name more
//!                                                          ▼                           ▼
//!                                                       files, arguments, a program on its processors
//! ```
//!
//! Knows how programs are started, told and measured, and nothing of the load.

mod chosen;
mod list;
mod render;
mod route;
mod setting;
mod target;
mod tree;
mod written;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;
use testkit::command;
use testkit::peers::envoy;

pub(crate) use self::chosen::Chosen;
pub(crate) use self::list::{Profiles, run};
pub(crate) use self::route::Route;
pub(crate) use self::setting::Setting;
pub(crate) use self::target::Target;
pub(crate) use self::tree::Tree;
#[cfg(test)]
pub(crate) use self::written::read as load_profile;

use crate::programs;

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: String,
    /// What it is, in a line.
    pub(crate) about: String,
    pub(crate) listeners: Vec<Listener>,
    /// What can be measured of it.
    pub(crate) cases: Vec<Case>,
    /// Whether it is measured by default.
    pub(crate) standard: bool,
    program: Option<Program>,
    version: Vec<String>,
    files: Vec<FileTemplate>,
    args: Vec<String>,
    ports: Vec<String>,
    values: BTreeMap<String, String>,
    workers: usize,
    apply: Option<Apply>,
    /// Where it listens, and its process, when it was not started here.
    running: Option<(SocketAddr, Option<u32>)>,
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Listener {
    /// An HTTP CONNECT, routed by a header.
    Connect,
    /// A PROXY header of version 2, routed by its destination.
    Proxy,
    /// A ClientHello, routed by its server name.
    Sni,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Case {
    /// Bytes both ways.
    Bulk,
    /// New connections.
    Conns,
    /// Memory of idle connections.
    Idle,
    /// Tables of many names: no case of `tls`.
    #[value(skip)]
    Routes,
    /// Round trips.
    Rtt,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    name: String,
    #[serde(default)]
    from: Origin,
}

/// Where a program is looked for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    Beside,
    /// In `PATH`, else where the tests keep what Debian has no package for.
    Cache,
    /// In `PATH`, or where Debian keeps what only root is expected to run.
    #[default]
    Path,
}

/// A file to write before the program starts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTemplate {
    /// Below the run's directory.
    path: String,
    /// A template.
    text: String,
}

/// How one more name takes effect.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Apply {
    /// Files that are written anew, in this order.
    #[serde(default)]
    write: Vec<String>,
    #[serde(default)]
    by: Writing,
    signal: Option<Told>,
    /// A UNIX socket, a template.
    socket: Option<String>,
    /// What is said to it, a template that knows the new `route`.
    send: Option<String>,
}

/// How a file is written anew.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Writing {
    /// A new file is renamed into its place.
    #[default]
    Rename,
    /// In place.
    Rewrite,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Told {
    Hup,
    Usr1,
    Usr2,
}

impl Listener {
    /// Returns the name used on the command line and in results.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Proxy => "proxy",
            Self::Sni => "sni",
        }
    }
}

impl Case {
    /// Returns the name used on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Conns => "conns",
            Self::Idle => "idle",
            Self::Routes => "routes",
            Self::Rtt => "rtt",
        }
    }
}

impl Profile {
    /// Tells whether `case` can be measured with connections that begin like that.
    pub(crate) fn supports(&self, listener: Listener, case: Case) -> bool {
        self.listeners.contains(&listener) && self.cases.contains(&case)
    }

    /// Makes the profile of a gateway that runs already.
    pub(crate) fn of_running(address: SocketAddr, process: Option<u32>) -> Result<Self> {
        let mut profile = written::read("name: running\n", "running".as_ref())?;
        profile.running = Some((address, process));
        Ok(profile)
    }

    /// Tells whether there is no program at all.
    pub(crate) fn is_direct(&self) -> bool {
        self.program.is_none() && self.running.is_none()
    }

    /// Returns the program's path; `None` when there is none.
    pub(crate) fn binary(&self, given: &programs::Given) -> Result<Option<PathBuf>> {
        let Some(program) = &self.program else {
            return Ok(None);
        };
        if let Some(path) = given.of(&[&self.name, &program.name]) {
            return programs::program(Some(path), &program.name).map(Some);
        }
        match program.from {
            Origin::Beside => programs::program(None, &program.name),
            Origin::Cache if program.name == "envoy" => envoy::binary(),
            Origin::Cache => bail!("{}: only envoy is kept in the cache", self.name),
            Origin::Path => command::require(&program.name),
        }
        .map(Some)
        .with_context(|| format!("looking for the program of {}", self.name))
    }

    /// Returns what the program says about its version; nothing when there is none to ask.
    pub(crate) fn version(&self, given: &programs::Given) -> Option<String> {
        let binary = self.binary(given).ok()??;
        Some(crate::machine::version_by(&binary, &self.version))
    }
}

/// Where a started profile listens: a port that the kernel gives to no other socket.
fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
