//! Where the workspace is, and how its programs are built.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Returns the workspace's root.
pub(crate) fn root() -> &'static Path {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    ours.parent().unwrap_or(ours)
}

/// Prepares a cargo command in the workspace's root, by the cargo that runs us.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// Builds `packages` with the release profile, cargo's words on screen, and returns the programs
/// by name.
///
/// # Errors
/// When the build fails.
pub(crate) fn build(packages: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo();
    command.args([
        "build",
        "--release",
        "--bins",
        "--message-format=json-render-diagnostics",
    ]);
    for package in packages {
        command.args(["--package", package]);
    }
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
    Ok(programs)
}
