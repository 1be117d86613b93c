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
mod target;
mod tree;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value};
use testkit::command;
use testkit::netns::Place;
use testkit::peers::envoy;
use testkit::tunnel_world::merge;

pub(crate) use self::chosen::Chosen;
pub(crate) use self::list::{Profiles, run};
pub(crate) use self::route::Route;
pub(crate) use self::target::Target;
pub(crate) use self::tree::Tree;

use crate::cpus::Bound;
use crate::programs::{self, Given};

/// A profile's file. What is not given is as in [`Profile::default`], or as in the one it extends.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) name: String,
    extends: Option<String>,
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
    #[serde(skip)]
    running: Option<(SocketAddr, Option<u32>)>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: String::new(),
            extends: None,
            about: String::new(),
            listeners: vec![Listener::Sni],
            cases: Case::ALL.to_vec(),
            standard: true,
            program: None,
            version: Vec::new(),
            files: Vec::new(),
            args: Vec::new(),
            ports: Vec::new(),
            values: BTreeMap::new(),
            workers: 1,
            apply: None,
            running: None,
        }
    }
}

/// What a profile is started with, the same for all of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) cpus: &'a Bound,
    pub(crate) given: &'a [Given],
    pub(crate) listener: Listener,
    pub(crate) routes: Vec<Route>,
}

impl<'a> Setting<'a> {
    /// Returns what is in our own network, by the programs that are found.
    pub(crate) fn here(cpus: &'a Bound, listener: Listener, routes: Vec<Route>) -> Self {
        Self {
            place: Place::Here,
            cpus,
            given: &[],
            listener,
            routes,
        }
    }
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Listener {
    /// An HTTP CONNECT, routed by a header.
    Connect,
    /// TLS that ends in the gateway: of `https` alone.
    #[value(hide = true)]
    Https,
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
    path: String,
    text: String,
}

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

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Writing {
    /// A new file is renamed into its place.
    #[default]
    Rename,
    Rewrite,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Told {
    Hup,
    Usr1,
    Usr2,
}

impl Case {
    const ALL: [Self; 5] = [Self::Bulk, Self::Conns, Self::Idle, Self::Routes, Self::Rtt];
}

impl Profile {
    /// Returns the profiles that come with this program, in the order in which they are measured.
    pub(crate) fn embedded() -> Result<Vec<Self>> {
        let read = |(name, text): &(&str, &str)| Self::read(text, Path::new(name));
        EMBEDDED.iter().map(read).collect()
    }

    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the profile {}", path.display()))?;
        Self::read(&text, path)
    }

    /// Reads a profile's text; `origin` is the name that errors give it.
    pub(crate) fn read(text: &str, origin: &Path) -> Result<Self> {
        let mut profile: Self = settings::yaml::from_str(text, origin)?;
        let name = profile.name.clone();
        let file = origin.display();
        ensure!(!name.is_empty(), "{file}: a profile without a name");
        if let Some(base) = &profile.extends {
            let found = EMBEDDED.iter().find(|(name, _)| name == base);
            let Some((_, under)) = found else {
                bail!("{name}: extends {base}, which is none of ours");
            };
            let mut merged: Map<String, Value> = settings::yaml::from_str(under, Path::new(base))?;
            ensure!(
                !merged.contains_key("extends"),
                "{name}: extends {base}, which extends another itself"
            );
            let mut values = merged.remove("values").unwrap_or_default();
            let own: Map<String, Value> = settings::yaml::from_str(text, origin)?;
            merged.extend(own);
            if let Some(own) = merged.get("values") {
                values = merge(values, own)?;
            }
            merged.insert("values".to_owned(), values);
            profile = serde_json::from_value(Value::Object(merged))?;
        }
        if let Some(apply) = &profile.apply {
            for path in &apply.write {
                let known = profile.files.iter().any(|file| file.path == *path);
                ensure!(known, "{name}: apply.write: {path} is none of the files");
            }
            let together = apply.socket.is_some() == apply.send.is_some();
            ensure!(together, "{name}: apply.socket and apply.send go together");
        }
        Ok(profile)
    }

    pub(crate) fn supports(&self, listener: Listener, case: Case) -> bool {
        self.listeners.contains(&listener) && self.cases.contains(&case)
    }

    /// Returns it with one of its values.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.values.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn of_running(address: SocketAddr, process: Option<u32>) -> Self {
        Self {
            name: "running".to_owned(),
            running: Some((address, process)),
            ..Self::default()
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.program.is_none() && self.running.is_none()
    }

    pub(crate) fn binary(&self, given: &[Given]) -> Result<Option<PathBuf>> {
        let Some(program) = &self.program else {
            return Ok(None);
        };
        if let Some(path) = programs::given(given, &[&self.name, &program.name]) {
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
    pub(crate) fn version(&self, given: &[Given]) -> Option<String> {
        let binary = self.binary(given).ok()??;
        Some(crate::machine::version_by(&binary, &self.version))
    }
}

macro_rules! embedded {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../profiles/", $name, ".yaml")))),*]
    };
}

/// The profiles that come with this program: file name and text.
const EMBEDDED: &[(&str, &str)] = embedded![
    "direct",
    "copy-loop",
    "rhizome",
    "rhizome-copy",
    "rhizome-2",
    "rhizome-yaml",
    "rhizome-https",
    "envoy",
    "envoy-32k",
    "envoy-https",
    "haproxy",
    "haproxy-splice",
    "haproxy-map",
    "nginx",
    "sniproxy"
];
