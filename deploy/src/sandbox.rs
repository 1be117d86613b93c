//! A pod on this machine: a root file system with nothing in it but one program, its volumes, and the
//! rights of its security context.
//!
//! ```text
//!   Pod, Container ─▶ files on disk ─▶ a shell that mounts them ─▶ chroot, setpriv ─▶ the program
//! ```
//!
//! Two things differ from a container: libraries are there, since programs of tests are not static,
//! and no profile of seccomp is loaded. Processes, and where a test gives it no namespace the network,
//! are the machine's.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use testkit::command;
use testkit::netns::Place;
use testkit::process::ChildGuard;

use crate::container::{Container, list};
use crate::objects::Objects;
use crate::pod::Pod;
use crate::programs::program;
use crate::script::{self, Mount};
use crate::volumes;

#[derive(Clone, Debug)]
pub struct Sandbox<'a> {
    pub place: Place<'a>,
    pub directory: PathBuf,
    /// The names they can resolve, as lines of `/etc/hosts`.
    pub hosts: String,
    /// What pods with a token of their account are given.
    pub account: Option<Account>,
}

#[derive(Clone, Debug)]
pub struct Account {
    pub api_server: SocketAddr,
    /// The authority of its certificate, PEM.
    pub authority: String,
    pub token: String,
}

impl Sandbox<'_> {
    /// Prepares a container of `pod`; ConfigMaps and Secrets are those in `objects`.
    pub fn command(&self, container: Container<'_>, objects: &Objects) -> Result<Command> {
        let pod = container.pod;
        let own = self.directory.join(&pod.name);
        let root = own.join(format!("root-{}", container.name()));
        for path in [&root, &own.join("etc")] {
            fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
        }
        self.write_etc(&own.join("etc"))?;
        let volumes = volumes::prepare(pod, objects, &own.join("volumes"), &self.host())?;
        let mut mounts = Vec::new();
        for mount in list(&container.spec["volumeMounts"]) {
            let name = mount["name"].as_str().unwrap_or_default();
            let source = volumes.get(name);
            let source = source.with_context(|| format!("no volume {name}"))?;
            let target = mount["mountPath"].as_str().context("a mount's path")?;
            mounts.push(Mount::new(source, target, mount["readOnly"] == true));
        }
        let mut environment = container.environment(objects)?;
        if let Some(account) = self.account.as_ref().filter(|_| pod.has_token(objects)) {
            mounts.push(account_files(account, pod, &own.join("account"))?);
            let (ip, port) = (account.api_server.ip(), account.api_server.port());
            environment.insert("KUBERNETES_SERVICE_HOST".to_owned(), ip.to_string());
            environment.insert("KUBERNETES_SERVICE_PORT".to_owned(), port.to_string());
        }
        environment.insert("HOSTNAME".to_owned(), pod.name.clone());
        let text = script::write(&script::Run {
            root: &root,
            etc: &own.join("etc"),
            program: &program(container.program()?)?,
            arguments: &container.arguments(objects)?,
            environment: &environment,
            mounts: &mounts,
            rights: &container.rights()?,
            fs_group: pod.fs_group(),
            sysctls: &sysctls(pod),
        });
        let path = own.join(format!("{}.sh", container.name()));
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        let mut command = self.place.command(command::require("unshare")?);
        command.args(["--mount", "--propagation", "private", "sh"]);
        command.arg(&path);
        Ok(command)
    }

    pub fn start(&self, container: Container<'_>, objects: &Objects) -> Result<ChildGuard> {
        let command = self.command(container, objects)?;
        let name = &container.pod.name;
        let log = format!("{name}-{}.log", container.name());
        ChildGuard::spawn(name, &command, &self.directory.join(log))
    }

    pub fn run(&self, container: Container<'_>, objects: &Objects) -> Result<()> {
        command::run(&mut self.command(container, objects)?).map(drop)
    }

    /// Returns the directory that is the host's file system for paths of the host.
    pub fn host(&self) -> PathBuf {
        self.directory.join("host")
    }

    fn write_etc(&self, etc: &Path) -> Result<()> {
        let resolver = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
        for (name, text) in [
            ("hosts", self.hosts.as_str()),
            ("resolv.conf", resolver),
            // The C library asks DNS first where nothing is said, and no server answers here.
            ("nsswitch.conf", "hosts: files dns\n"),
        ] {
            let path = etc.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// Prepares what a probe of a container runs in it, as its process `pid` is seen here: with its files,
/// network and rights. Nothing where the probe runs nothing.
pub fn probe_command(container: Container<'_>, kind: &str, pid: u32) -> Result<Option<Command>> {
    let Some(arguments) = container.probe_arguments(kind)? else {
        return Ok(None);
    };
    let mut command = Command::new(command::require("nsenter")?);
    command.env_clear();
    command.arg(format!("--target={pid}"));
    command.args(["--mount", "--net", "--root", "--wd"]);
    command.arg("/usr/bin/setpriv");
    let flags = script::flags(&container.rights()?, container.pod.fs_group());
    command.args(flags.split_whitespace());
    command.args(["--", script::PROGRAM]).args(arguments);
    Ok(Some(command))
}

/// Writes what a pod finds of its service account.
fn account_files(account: &Account, pod: &Pod, directory: &Path) -> Result<Mount> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    for (name, text) in [
        ("ca.crt", &account.authority),
        ("namespace", &pod.namespace),
        ("token", &account.token),
    ] {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let target = "/var/run/secrets/kubernetes.io/serviceaccount";
    Ok(Mount::new(directory, target, true))
}

/// Returns the switches of the kernel that a pod asks for.
fn sysctls(pod: &Pod) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let all = list(&pod.spec["securityContext"]["sysctls"]);
    all.map(|own| (text(&own["name"]), text(&own["value"])))
        .collect()
}

/// Tells whether a user or group of this number exists in our user namespace: in one that a user
/// without privileges has made, none does but root.
pub(crate) fn is_mapped(id: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
    map.lines().any(|line| {
        let mut words = line.split_whitespace();
        let (first, count) = (number(words.next()), number(words.nth(1)));
        let (Some(first), Some(count)) = (first, count) else {
            return false;
        };
        (first..first + count).contains(&u64::from(id))
    })
}
