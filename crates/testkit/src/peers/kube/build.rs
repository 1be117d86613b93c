//! Builds programs of Kubernetes from Debian's source package, once, into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::peers::{apt, cache, packages};
use crate::wait::Stopwatch;

/// Builds kube-apiserver unless it is there; about seven minutes of processor time and 3 GB of disk.
pub fn install(say: &dyn Fn(&str)) -> Result<PathBuf> {
    if let Ok(path) = super::binary() {
        return Ok(path);
    }
    cache::fill(FILE, |path| build(path, &["kube-apiserver"], say))
}

/// Builds everything that a cluster runs unless it is there, and returns the directory with it; about twice
/// that time.
pub fn install_all(say: &dyn Fn(&str)) -> Result<PathBuf> {
    let last = cache::fill(LAST, |path| build(path, PROGRAMS, say))?;
    Ok(last
        .parent()
        .context("a program without a directory")?
        .to_owned())
}

/// Builds `programs` into the directory of `path`, the last of them.
fn build(path: &Path, programs: &[&str], say: &dyn Fn(&str)) -> Result<()> {
    packages::install(packages::KUBE_BUILD, say)?;
    let work = cache::directory()?.join("kube-build");
    fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
    let log = cache::directory()?.join("kube-build.log");
    say(&format!(
        "building {} {VERSION} from Debian's source package ({} CPU-minutes, once; log: {})",
        programs.join(", "),
        if programs.len() == 1 {
            "about 7"
        } else {
            "about 15"
        },
        log.display()
    ));
    let clock = Stopwatch::start();
    let script = work.join("build.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("writing {}", script.display()))?;
    let output = fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    let errors = output.try_clone().context("sharing a log")?;
    // Behind whatever is built meanwhile: it fills both processors to its end.
    let mut build = Command::new("nice");
    build.arg("bash").arg(&script).arg(&work).arg(path);
    build.arg(apt::archive()?).args(programs);
    build.stdout(output).stderr(errors);
    let status = build.status();
    let status = status.with_context(|| format!("starting `{}`", command::line(&build)))?;
    if !status.success() {
        let log = log.display();
        bail!("building Kubernetes ended with {status}; see {log}");
    }
    fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
    let took = clock.elapsed();
    say(&format!("built {} in {took:.0?}", path.display()));
    Ok(())
}

/// What the cache calls it.
pub(super) const FILE: &str = "kube-apiserver-1.20.2";
/// Of what a cluster runs, by directory, the program that is put there last.
pub(super) const LAST: &str = "kubernetes-1.20.2/kubelet";
/// What a cluster runs.
pub const PROGRAMS: &[&str] = &[
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
];
const VERSION: &str = "1.20.2";
const SCRIPT: &str = include_str!("build.sh");
