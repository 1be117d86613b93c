//! Builds kube-apiserver from Debian's source package, once, into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::peers::{apt, cache, packages};
use crate::wait::Stopwatch;

/// Builds the program unless it is there; about seven minutes of processor time and 3 GB of disk.
pub fn install(say: &dyn Fn(&str)) -> Result<PathBuf> {
    if let Ok(path) = super::binary() {
        return Ok(path);
    }
    cache::fill(FILE, |path| build(path, say))
}

fn build(path: &Path, say: &dyn Fn(&str)) -> Result<()> {
    packages::install(packages::KUBE_BUILD, say)?;
    let work = cache::directory()?.join("kube-build");
    fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
    let log = cache::directory()?.join("kube-build.log");
    say(&format!(
        "building kube-apiserver {VERSION} from Debian's source package (about 7 CPU-minutes, \
         once; log: {})",
        log.display()
    ));
    let clock = Stopwatch::start();
    let script = work.join("build.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("writing {}", script.display()))?;
    let output = fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    let errors = output.try_clone().context("sharing a log")?;
    let mut build = Command::new("bash");
    build.arg(&script).arg(&work).arg(path);
    build.arg(apt::archive()?).stdout(output).stderr(errors);
    let status = build.status();
    let status = status.with_context(|| format!("starting `{}`", command::line(&build)))?;
    if !status.success() {
        let log = log.display();
        bail!("building kube-apiserver ended with {status}; see {log}");
    }
    fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
    let took = clock.elapsed();
    say(&format!("built {} in {took:.0?}", path.display()));
    Ok(())
}

/// What the cache calls it.
pub(super) const FILE: &str = "kube-apiserver-1.20.2";
const VERSION: &str = "1.20.2";
const SCRIPT: &str = include_str!("build.sh");
