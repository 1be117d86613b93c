//! Where the workspace is, and how its programs are built.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use testkit::command;

pub(crate) fn root() -> &'static Path {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    ours.parent().unwrap_or(ours)
}

/// Prepares a cargo command in the workspace's root, by the cargo that runs us.
///
/// What `cargo run` says of this package in the environment is kept from it: build scripts ask for
/// the same names, and would make everything anew after a build by hand, and again after ours.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns where cargo puts what it builds.
pub(crate) fn target() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root().join("target"));
    std::path::absolute(target).context("finding the target directory")
}

#[derive(Debug)]
pub(crate) struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    pub(crate) fn get(&self, name: &str) -> Result<&Path> {
        let path = self.0.get(name).map(PathBuf::as_path);
        path.with_context(|| format!("cargo has not built {name}"))
    }
}

/// Builds `packages` as they are shipped, cargo's words on screen, and returns the programs by
/// name: `dist` profile, one static file each, since images hold nothing else. The target is
/// named because only then do the flags spare build scripts and macros, which cannot be static.
pub(crate) fn build(packages: &[&str]) -> Result<Programs> {
    programs(build_command(packages)?)
}

/// Prepares what [`build`] runs.
pub(crate) fn build_command(packages: &[&str]) -> Result<Command> {
    let host = host()?;
    let mut command = cargo();
    let target = host.to_uppercase().replace('-', "_");
    let flags = format!("CARGO_TARGET_{target}_RUSTFLAGS");
    command.env(flags, "-C target-feature=+crt-static");
    command.args(["build", "--profile", "dist", "--target", &host, "--bins"]);
    for package in packages {
        command.args(["--package", package]);
    }
    Ok(command)
}

/// Builds the programs of `package` in the profile of that name, as [`build`] does.
pub(crate) fn build_in(profile: &str, package: &str) -> Result<Programs> {
    let mut command = cargo();
    command.args(["build", "--profile", profile]);
    command.args(["--bins", "--package", package]);
    programs(command)
}

/// Builds all programs as the tests do, in the dev profile, so that what is
/// built for the demo is not compiled again for the tests.
pub(crate) fn build_as_tested() -> Result<Programs> {
    let mut command = cargo();
    // Asked for examples, of which there are none, cargo chooses the features that tests are built with.
    command.args(["build", "--workspace", "--all-features", "--bins"]);
    command.arg("--examples");
    programs(command)
}

fn programs(mut command: Command) -> Result<Programs> {
    command.arg("--message-format=json-render-diagnostics");
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo build ended with {}", output.status);
    }
    let programs = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect();
    Ok(Programs(programs))
}

/// Returns the triple of this machine, as the compiler names it.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let triple = command::run(Command::new(rustc).args(["--print", "host-tuple"]))?;
    Ok(triple.trim().to_owned())
}
