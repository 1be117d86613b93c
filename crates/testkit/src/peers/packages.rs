//! Debian packages, by the programs they bring.
//!
//! A program that is there already is left alone, whatever its origin: another vendor's `kubectl`
//! would conflict with Debian's package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::command;

#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The program, or a file if it starts with `/`, or a Python module after `python3:`.
    pub probe: &'static str,
    pub packages: &'static [&'static str],
}

pub const ALL: &[Need] = &[
    need("chromium", &["chromium"]),
    need("curl", &["curl"]),
    need("etcd", &["etcd-server"]),
    need("faketime", &["faketime"]),
    need("haproxy", &["haproxy"]),
    need("ip", &["iproute2"]),
    need("iperf3", &["iperf3"]),
    need("iptables-legacy", &["iptables"]),
    need("kubectl", &["kubernetes-client"]),
    need("nft", &["nftables"]),
    need("nginx", &["nginx"]),
    need(super::nginx::STREAM_MODULE, &["libnginx-mod-stream"]),
    need("openssl", &["openssl"]),
    need("openvpn", &["openvpn"]),
    need("ping", &["iputils-ping"]),
    need("prometheus", &["prometheus"]),
    need("promtool", &["prometheus"]),
    need("python3", &["python3"]),
    need("python3:pip", &["python3-pip"]),
    need("setpriv", &["util-linux"]),
    need("sniproxy", &["sniproxy"]),
    need("wg", &["wireguard-tools"]),
    need("wireguard-go", &["wireguard-go"]),
];

pub const COUNTS: &[Need] = &[need("valgrind", &["valgrind"])];

pub const NAMESPACES: &[Need] = &[
    need("ip", &["iproute2"]),
    need("setpriv", &["util-linux"]),
    need("unshare", &["util-linux"]),
];

pub const DEMO: &[Need] = &[need("curl", &["curl"]), need("nft", &["nftables"])];

/// What building kube-apiserver needs of Debian besides.
pub(super) const KUBE_BUILD: &[Need] = &[
    need("dpkg-source", &["dpkg-dev"]),
    need("go", &["golang-go"]),
    need("make", &["make"]),
    need("rsync", &["rsync"]),
];

pub const fn need(probe: &'static str, packages: &'static [&'static str]) -> Need {
    Need { probe, packages }
}

pub fn missing(needs: &[Need]) -> Vec<Need> {
    let missing = needs.iter().filter(|need| !is_there(need.probe));
    missing.copied().collect()
}

/// Installs what is missing of `needs`, as root on Debian.
pub fn install(needs: &[Need], say: &dyn Fn(&str)) -> Result<()> {
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let packages = missing(needs).into_iter().flat_map(|need| need.packages);
    let packages: Vec<&str> = packages.copied().collect();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !rustix::process::geteuid().is_root() || command::find("apt-get").is_none() {
        bail!("missing programs; on Debian they come by: sudo apt-get install -y {list}");
    }
    say(&format!("apt-get install {list}"));
    let _quiet = NoServices::set()?;
    let apt = |args: &[&str]| {
        let mut apt = Command::new("apt-get");
        command::run(apt.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "--quiet"])?;
    let mut args = vec!["install", "--quiet", "--yes", "--no-install-recommends"];
    args.extend(&packages);
    apt(&args)?;
    let left: Vec<_> = missing(needs).iter().map(|need| need.probe).collect();
    if !left.is_empty() {
        let left = left.join(", ");
        bail!("`apt-get install {list}` ended well but did not bring {left}");
    }
    Ok(())
}

fn is_there(probe: &str) -> bool {
    if let Some(module) = probe.strip_prefix("python3:") {
        let mut python = Command::new("python3");
        python.args(["-c", &format!("import {module}")]);
        return command::output(&mut python).is_ok_and(|output| output.status.success());
    }
    if probe.starts_with('/') {
        return Path::new(probe).exists();
    }
    command::find(probe).is_some()
}

/// Keeps packages from starting their daemons: `invoke-rc.d` asks this program first.
struct NoServices {
    written: Option<PathBuf>,
}

impl NoServices {
    fn set() -> Result<Self> {
        let path = PathBuf::from("/usr/sbin/policy-rc.d");
        if path.exists() {
            return Ok(Self { written: None });
        }
        // 101: "action forbidden by policy".
        fs::write(&path, "#!/bin/sh\nexit 101\n").context("writing a policy-rc.d")?;
        let quiet = Self {
            written: Some(path),
        };
        command::run(Command::new("chmod").args(["755", "/usr/sbin/policy-rc.d"]))?;
        Ok(quiet)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(path) = &self.written {
            let _ = fs::remove_file(path);
        }
    }
}

/// One at a time, since `apt-get` fails beside another.
static INSTALLING: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_listed() {
        let needs = [need("sh", &["dash"]), need("/no/such/file", &["nothing"])];
        let missing = missing(&needs);
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].packages, ["nothing"]);
    }
}
