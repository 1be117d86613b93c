//! Cargo's tools that the checks use: found in `PATH`, else installed once into a cache outside
//! the target directory.

use std::process::Command;

use anyhow::Result;
use testkit::peers::crates::Program;

use crate::console::Console;
use crate::workspace;

/// A cargo subcommand from the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Lists what is in a program.
    Cyclonedx,
    /// Checks dependencies: licenses, duplicates, sources.
    Deny,
    /// Runs tests, each in a process of its own.
    Nextest,
}

impl Tool {
    /// Prepares a run of the tool in the workspace's root, installing it first if need be.
    pub(crate) fn command(self, console: &Console) -> Result<Command> {
        let mut command = Command::new(
            self.program()
                .install(&|text| console.say(&format!("  {text}")))?,
        );
        command
            .arg(self.subcommand())
            .current_dir(workspace::root());
        Ok(command)
    }

    fn program(self) -> Program {
        let (name, version) = match self {
            Self::Cyclonedx => ("cargo-cyclonedx", "0.5.9"),
            Self::Deny => ("cargo-deny", "0.20.2"),
            Self::Nextest => ("cargo-nextest", "0.9.143"),
        };
        Program {
            name,
            package: name,
            // The newest that the pinned toolchain builds.
            version,
            // Fast enough for what is asked of them.
            optimised: false,
        }
    }

    fn subcommand(self) -> &'static str {
        match self {
            Self::Cyclonedx => "cyclonedx",
            Self::Deny => "deny",
            Self::Nextest => "nextest",
        }
    }
}
