//! Network namespaces: small machines for a test, joined by cables and bridges.
//!
//! Made with `ip netns`, so that a person can look into one by name while a test runs. They need
//! root, or a user namespace of our own ([`privileges`]).

mod place;
pub mod privileges;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::command;

pub use place::Place;

/// A network namespace with `lo` up. Dropping it deletes its name; it goes with its last process.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace whose name contains `label`.
    ///
    /// The first call of a process also deletes the namespaces of processes that are gone.
    pub fn new(label: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(sweep);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{label}", std::process::id());
        ip(&["netns", "add", &name]).with_context(|| format!("making the namespace {name}"))?;
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns the name, as `ip netns exec` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that stands for the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Runs `job` in the namespace, as [`inside`] does.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T> {
        inside(&self.path(), job)
    }

    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]);
        command.arg(program.as_ref());
        command
    }

    /// Runs `ip` with `args` inside the namespace and returns what it printed.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["-n", &self.name];
        all.extend(args);
        ip(&all)
    }

    /// Puts `cidr` on `device` and takes the device up. IPv6 addresses are usable at once (no
    /// duplicate address detection).
    pub fn add_address(&self, device: &str, cidr: &str) -> Result<()> {
        let mut args = vec!["addr", "add", cidr, "dev", device];
        if cidr.contains(':') {
            args.push("nodad");
        }
        self.ip(&args)?;
        self.ip(&["link", "set", device, "up"])?;
        Ok(())
    }

    /// Returns an end of a cable here: a device of that name, at most 15 bytes.
    pub fn end<'a>(&'a self, device: &'a str) -> End<'a> {
        let namespace = self;
        End { namespace, device }
    }

    /// Routes `destination` (a CIDR or `default`) by the next hop `via`.
    pub fn add_route(&self, destination: &str, via: &str) -> Result<()> {
        self.ip(&["route", "add", destination, "via", via])?;
        Ok(())
    }

    pub fn add_bridge(&self, name: &str) -> Result<()> {
        self.ip(&["link", "add", name, "type", "bridge"])?;
        self.ip(&["link", "set", name, "up"])?;
        Ok(())
    }

    /// Joins the device `port` to the bridge `bridge`, and takes it up.
    pub fn join_bridge(&self, bridge: &str, port: &str) -> Result<()> {
        self.ip(&["link", "set", port, "master", bridge, "up"])?;
        Ok(())
    }

    pub fn forward_ipv4(&self) -> Result<()> {
        self.set_sysctl("ipv4/ip_forward", "1")
    }

    /// Sets a sysctl, by its path below `/proc/sys/net`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys/net").join(name);
        let written = self.run(|| fs::write(&path, value))?;
        written.with_context(|| format!("writing {value} to {}", path.display()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub namespace: &'a Namespace,
    /// Its name, at most 15 bytes.
    pub device: &'a str,
}

/// Lays a cable (a veth pair) and takes both ends up.
pub fn cable(one: End<'_>, other: End<'_>) -> Result<()> {
    let (near, far) = (one.namespace, other.namespace);
    let peer = ["type", "veth", "peer", "name", other.device];
    let add = ["link", "add", one.device];
    near.ip(&[&add[..], &peer, &["netns", &far.name]].concat())?;
    near.ip(&["link", "set", one.device, "up"])?;
    far.ip(&["link", "set", other.device, "up"])?;
    Ok(())
}

/// Runs `job` on a fresh thread inside the namespace that the file `path` stands for. Sockets it opens stay
/// in there, wherever they are used later. A panic of `job` is passed on.
pub fn inside<T: Send>(path: &Path, job: impl FnOnce() -> T + Send) -> Result<T> {
    let outcome = std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            enter(path)?;
            Ok(job())
        });
        inside.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("entering {}", path.display()))
}

/// Deletes namespaces of ours whose process is gone: a killed test had no time to. Happens by
/// itself when a process makes its first namespace.
pub fn sweep() {
    delete(|pid| !Path::new("/proc").join(pid.to_string()).exists());
}

/// Deletes every namespace this process has made: for an end by signal, which drops no values.
pub fn delete_ours() {
    delete(|pid| pid == std::process::id());
}

fn delete(chosen: impl Fn(u32) -> bool) {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        let own = name.strip_prefix(PREFIX);
        let pid = own.and_then(|rest| rest.split('-').next());
        if pid.and_then(|pid| pid.parse().ok()).is_some_and(&chosen) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<String> {
    command::run(Command::new("ip").args(args))
}

const PREFIX: &str = "rhizome-";
const DIRECTORY: &str = "/run/netns";
