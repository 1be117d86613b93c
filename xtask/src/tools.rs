//! Cargo's tools that the checks use: found in `PATH`, else installed once into a cache outside
//! the target directory.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use testkit::command;
use testkit::peers::cache;

use crate::console::Console;
use crate::workspace;

/// A cargo subcommand of somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Checks dependencies: licences, duplicates, sources.
    Deny,
    /// Runs tests, each in a process of its own.
    Nextest,
}

impl Tool {
    /// Prepares a run of the tool in the workspace's root, installing it first if need be.
    ///
    /// # Errors
    /// When it cannot be installed.
    pub(crate) fn command(self, console: &Console) -> Result<Command> {
        let mut command = Command::new(self.ensure(console)?);
        command
            .arg(self.subcommand())
            .current_dir(workspace::root());
        Ok(command)
    }

    fn ensure(self, console: &Console) -> Result<PathBuf> {
        let name = self.name();
        if let Some(path) = command::find(name) {
            return Ok(path);
        }
        let root = cache::directory()?.join("tools");
        let path = root.join("bin").join(name);
        let _lock = cache::lock()?;
        if path.is_file() {
            return Ok(path);
        }
        let version = self.version();
        console.say(&format!(
            "  installing {name} {version} into {} (once)",
            root.display()
        ));
        let mut install = workspace::cargo();
        install.env_remove("CARGO_TARGET_DIR");
        install
            // Unoptimised: built in a third of the time, and fast enough for what is asked of them.
            .args(["install", "--locked", "--quiet", "--debug", "--root"])
            .arg(&root);
        install.args(["--version", version, name]);
        let status = install
            .status()
            .with_context(|| format!("starting `{}`", command::line(&install)))?;
        if !status.success() {
            bail!("`{}` ended with {status}", command::line(&install));
        }
        Ok(path)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Deny => "cargo-deny",
            Self::Nextest => "cargo-nextest",
        }
    }

    fn subcommand(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Nextest => "nextest",
        }
    }

    /// The newest that the pinned toolchain builds.
    fn version(self) -> &'static str {
        match self {
            Self::Deny => "0.20.2",
            Self::Nextest => "0.9.143",
        }
    }
}
