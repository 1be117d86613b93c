//! Cargo's tools that the checks use: found in `PATH`, else installed once into a cache outside
//! the target directory.

use std::process::Command;

use anyhow::Result;
use testkit::peers::crates::Program;

use crate::console::Console;
use crate::workspace;

/// Lists what is in a program.
pub(crate) const CYCLONEDX: Tool = tool("cargo-cyclonedx", "0.5.9");
/// Checks dependencies: licenses, duplicates, sources.
pub(crate) const DENY: Tool = tool("cargo-deny", "0.20.2");
/// Runs tests, each in a process of its own.
pub(crate) const NEXTEST: Tool = tool("cargo-nextest", "0.9.143");

/// A cargo subcommand at the newest version that the pinned toolchain builds.
const fn tool(name: &'static str, version: &'static str) -> Tool {
    Tool(Program {
        name,
        package: name,
        version,
        // Fast enough for what is asked of them.
        optimised: false,
    })
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool(Program);

impl Tool {
    /// Prepares a run of the tool in the workspace's root, installing it first if need be.
    pub(crate) fn command(self, console: &Console) -> Result<Command> {
        let say = |text: &str| console.say(&format!("  {text}"));
        let mut command = Command::new(self.0.install(&say)?);
        command.arg(self.0.name.trim_start_matches("cargo-"));
        command.current_dir(workspace::root());
        Ok(command)
    }
}
