//! What the clusters are made of: Debian's packages, programs of Kubernetes, images.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::command;
use testkit::netns::privileges;
use testkit::peers::kube;
use testkit::peers::packages::{self, Need, need};

use super::control::Kubernetes;
use crate::images::Buildah;

/// Says what is missing before anything is started.
pub(crate) fn check() -> Result<()> {
    ensure!(
        privileges::is_root(),
        "clusters take root of this machine: namespaces, control groups, mounts"
    );
    ensure!(
        Path::new("/sys/fs/cgroup")
            .read_dir()
            .is_ok_and(|mut groups| groups.next().is_some()),
        "no control groups at /sys/fs/cgroup"
    );
    for name in ["overlay", "br_netfilter", "nf_conntrack", "veth"] {
        // Where it is built in, or cannot be loaded from here, what needs it will say so.
        let _ = command::output(Command::new("modprobe").args(["--quiet", name]));
    }
    Ok(())
}

/// Installs what is missing, and returns where the programs of Kubernetes are.
pub(crate) fn install(say: &dyn Fn(&str)) -> Result<Kubernetes> {
    packages::install(NEEDS, say)?;
    let directory = match std::env::var_os(BIN_DIR_VARIABLE).map(PathBuf::from) {
        Some(directory) => usable(&directory)
            .with_context(|| format!("{BIN_DIR_VARIABLE}={}", directory.display()))?,
        None => kube::install_all(say)?,
    };
    let told = command::run(Command::new(directory.join("kubelet")).arg("--version"))?;
    let minor = told
        .trim()
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok());
    let minor = minor.with_context(|| format!("kubelet says `{}`", told.trim()))?;
    Ok(Kubernetes { directory, minor })
}

/// Returns a directory of programs as machines find it, which see all of this machine but have their own `/run` and
/// `/tmp`.
fn usable(directory: &Path) -> Result<PathBuf> {
    let directory = directory.canonicalize()?;
    for own in ["/run", "/tmp"] {
        ensure!(
            !directory.starts_with(own),
            "machines of the clusters have a {own} of their own"
        );
    }
    for program in kube::PROGRAMS {
        ensure!(directory.join(program).is_file(), "has no {program}");
    }
    Ok(directory)
}

/// Builds the image of pods' sandboxes, and of pods that run programs of the host: one that waits, and
/// links to where those find their libraries once `/usr` is mounted.
pub(crate) fn image(root: &Path, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let directory = root.join("images");
    let archive = directory.join("pause.tar");
    if archive.exists() {
        return Ok(archive);
    }
    let engine = Buildah::find(&directory, say)?;
    let context = directory.join("context");
    let files = context.join("root");
    let _ = fs::remove_dir_all(&context);
    for name in ["etc", "usr", "run", "tmp"] {
        let path = files.join(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    }
    for name in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{name}"), files.join(name)).context("making a link")?;
    }
    fs::write(files.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").context("writing a file")?;
    fs::write(context.join("Dockerfile"), IMAGE).context("writing a Dockerfile")?;
    let source = context.join("pause.rs");
    fs::write(&source, PAUSE).context("writing a program")?;
    let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args([
        "--edition=2024",
        "-O",
        "-C",
        "target-feature=+crt-static",
        "-o",
    ]);
    command::run(compiler.arg(files.join("pause")).arg(source))?;
    engine.build_plain(&context, "rhizome-test/pause:1", &archive)?;
    Ok(archive)
}

const BIN_DIR_VARIABLE: &str = "KUBERNETES_BIN_DIR";

const NEEDS: &[Need] = &[
    need("conntrack", &["conntrack"]),
    need("containerd", &["containerd"]),
    need("curl", &["curl"]),
    need("dnsmasq", &["dnsmasq-base"]),
    need("etcd", &["etcd-server"]),
    need("faketime", &["faketime"]),
    need("ip", &["iproute2"]),
    need("iptables", &["iptables"]),
    need("kubectl", &["kubernetes-client"]),
    need("nft", &["nftables"]),
    need("nsenter", &["util-linux"]),
    need("prometheus", &["prometheus"]),
    need("python3", &["python3"]),
    need("runc", &["runc"]),
    need("socat", &["socat"]),
    need("sysctl", &["procps"]),
    need("/usr/lib/cni/bridge", &["containernetworking-plugins"]),
];

const IMAGE: &str = "FROM scratch\nCOPY root /\nENTRYPOINT [\"/pause\"]\n";
const PAUSE: &str = "fn main() { loop { std::thread::park() } }";
