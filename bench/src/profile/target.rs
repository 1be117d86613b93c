//! One profile at work: a program that was started here, or nothing.
//!
//! ```text
//! Profile + Setting ──▶ directory, files, ports ──▶ launch ──▶ listens ──▶ prepare, tell: one name more ──▶ dropped
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;
use testkit::wait::{self, Stopwatch};

use super::render::render;
use super::{Listener, Profile, Route, Setting, Told, Tree, Writing};
use crate::cpus::Role;
use crate::limits;
use crate::programs::value_name;

/// What load goes through. What was started here ends with it, and before its directory goes.
#[derive(Debug)]
pub(crate) struct Target {
    profile: Profile,
    child: Option<ChildGuard>,
    dir: TempDir,
    address: SocketAddr,
    started: Stopwatch,
    facts: Value,
    routes: Vec<Route>,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    files: Vec<(String, String)>,
    by: Writing,
    signal: Option<Told>,
    words: Option<(PathBuf, String)>,
}

impl Target {
    /// Starts `profile`, waits until it listens, and a moment longer. Without a program the address is that of the
    /// first route's backend.
    pub(crate) fn start(profile: &Profile, setting: &Setting<'_>) -> Result<Self> {
        let mut target = Self::launch(profile, setting)?;
        if let Some(child) = &mut target.child {
            child.wait_listening(target.address, START_LIMIT)?;
            wait::pause(SETTLE);
        }
        Ok(target)
    }

    /// As [`Target::start`], without waiting until it listens.
    pub(crate) fn launch(profile: &Profile, setting: &Setting<'_>) -> Result<Self> {
        let dir = TempDir::new("bench-target")?;
        let first = setting.routes.first().context("a table without routes")?;
        let address = match profile.running {
            Some((address, _)) => address,
            None if profile.is_direct() => first.backend,
            // A port that the kernel gives to no other socket.
            None => setting.place.free_address()?,
        };
        let mut named = Map::new();
        for name in &profile.ports {
            let port = setting.place.free_address()?.port();
            named.insert(name.clone(), json!(port));
        }
        let facts = facts(profile, setting, &dir, address, named)?;
        let mut target = Self {
            profile: profile.clone(),
            child: None,
            facts,
            dir,
            address,
            started: Stopwatch::start(),
            routes: setting.routes.clone(),
        };
        target.tell_routes();
        target.spawn(setting)?;
        Ok(target)
    }

    fn spawn(&mut self, setting: &Setting<'_>) -> Result<()> {
        let Some(binary) = self.profile.binary(setting.given)? else {
            return Ok(());
        };
        for file in &self.profile.files {
            let text = self.fill(&file.path, &file.text)?;
            self.dir.write(&file.path, text)?;
        }
        let bound = setting.cpus.command(Role::Proxy, &binary)?;
        let mut command = setting.place.command(bound.get_program());
        command.args(bound.get_args());
        for (nth, argument) in self.profile.args.iter().enumerate() {
            command.arg(self.fill(&format!("args[{nth}]"), argument)?);
        }
        let log = self.dir.join("log");
        self.started = Stopwatch::start();
        self.child = Some(ChildGuard::spawn(&self.profile.name, &command, &log)?);
        Ok(())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn started(&self) -> Stopwatch {
        self.started
    }

    pub(crate) fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Returns its first process, if it was started here.
    #[cfg(test)]
    pub(crate) fn child(&mut self) -> Option<&mut ChildGuard> {
        self.child.as_mut()
    }

    /// Finds its processes; `None` when there are none, or they are not known.
    pub(crate) fn tree(&self) -> Option<Tree> {
        let started = self.child.as_ref().map(ChildGuard::pid);
        let running = self.profile.running.and_then(|(_, process)| process);
        started.or(running).map(Tree::of)
    }

    pub(crate) fn changes(&self) -> bool {
        self.profile.apply.is_some()
    }

    /// Prepares to tell it of one more name: everything but the telling.
    pub(crate) fn prepare(&mut self, route: Route) -> Result<Change> {
        let name = self.profile.name.clone();
        let apply = self.profile.apply.clone();
        let apply = apply.with_context(|| format!("{name} does not say how routes are changed"))?;
        self.facts["route"] = route.facts();
        self.routes.push(route);
        self.tell_routes();
        let mut files = Vec::new();
        for path in &apply.write {
            let template = self.profile.files.iter().find(|file| file.path == *path);
            let template = template.with_context(|| format!("{name} has no file {path}"))?;
            let text = self.fill(path, &template.text)?;
            if matches!(apply.by, Writing::Rename) {
                self.dir.write(fresh(path), &text)?;
            }
            files.push((path.clone(), text));
        }
        let words = match (&apply.socket, &apply.send) {
            (Some(socket), Some(send)) => {
                let socket = self.fill("apply.socket", socket)?;
                Some((PathBuf::from(socket), self.fill("apply.send", send)?))
            }
            _ => None,
        };
        Ok(Change {
            files,
            by: apply.by,
            signal: apply.signal,
            words,
        })
    }

    /// Tells it what was prepared. That it is in effect can only be seen by a connection.
    pub(crate) fn tell(&mut self, change: &Change) -> Result<()> {
        for (path, text) in &change.files {
            match change.by {
                Writing::Rename => self.put(path, text)?,
                Writing::Rewrite => drop(self.dir.write(path, text)?),
            }
        }
        if let (Some(signal), Some(child)) = (change.signal, &mut self.child) {
            child.signal(signal.into())?;
        }
        if let Some((socket, words)) = &change.words {
            let answer = say(socket, words)?;
            let name = &self.profile.name;
            let silent = answer.trim().is_empty();
            ensure!(silent, "{name} answers to {words:?}: {answer}");
        }
        Ok(())
    }

    /// Renames a file that was written beside to its place; told again, it is written again.
    fn put(&self, path: &str, text: &str) -> Result<()> {
        let (from, to) = (self.dir.join(fresh(path)), self.dir.join(path));
        if !from.is_file() {
            self.dir.write(fresh(path), text)?;
        }
        fs::rename(&from, &to).with_context(|| format!("replacing {}", to.display()))
    }

    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.child {
            Some(child) => error.context(format!("the log ends:\n{}", child.log_tail(LINES))),
            None => error,
        }
    }

    fn tell_routes(&mut self) {
        let all: Vec<Value> = self.routes.iter().map(Route::facts).collect();
        self.facts["routes"] = json!(all);
    }

    fn fill(&self, what: &str, template: &str) -> Result<String> {
        let what = format!("{}: {what}", self.profile.name);
        render(&what, template, &self.facts)
    }
}

pub(super) fn facts(
    profile: &Profile,
    setting: &Setting<'_>,
    dir: &TempDir,
    address: SocketAddr,
    ports: Map<String, Value>,
) -> Result<Value> {
    let listener = setting.listener;
    let listen = |which| (which == listener).then_some(address);
    let descriptors = limits::descriptors();
    Ok(json!({
        "dir": dir.path().to_str().context("a directory whose name is no text")?,
        "listener": { "name": value_name(listener), "ip": address.ip(), "port": address.port() },
        "listen": {
            "connect": listen(Listener::Connect),
            "proxy": listen(Listener::Proxy),
            "sni": listen(Listener::Sni),
        },
        "port": ports,
        "values": profile.values,
        "workers": profile.workers,
        "descriptors": descriptors,
        "connections": limits::proxied(descriptors),
        "root": testkit::netns::privileges::is_root(),
    }))
}

/// What a file is called until it is put in its place.
fn fresh(path: &str) -> String {
    format!("{path}.fresh")
}

/// Says `words` to a UNIX socket, and returns what it answers until it closes.
fn say(socket: &Path, words: &str) -> Result<String> {
    let what = || format!("talking to {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(what)?;
    let limited = stream.set_read_timeout(Some(SAY_LIMIT));
    limited.with_context(what)?;
    stream.write_all(words.as_bytes()).with_context(what)?;
    let mut answer = String::new();
    let read = stream.take(MAX_ANSWER).read_to_string(&mut answer);
    read.with_context(what)?;
    Ok(answer)
}

impl From<Told> for Signal {
    fn from(told: Told) -> Self {
        match told {
            Told::Hup => Self::HUP,
            Told::Usr1 => Self::USR1,
            Told::Usr2 => Self::USR2,
        }
    }
}

/// A table of 10,000 names takes the slowest of the profiles some eight seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// For what is done behind the scenes once it listens. HAProxy loses a signal that comes at once.
const SETTLE: Duration = Duration::from_millis(200);
const SAY_LIMIT: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 1 << 20;
const LINES: usize = 12;
