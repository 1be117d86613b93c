//! Programs from the registry of Rust crates, at a pinned version: found in `PATH`, else built once
//! into the cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cache;
use crate::command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    pub package: &'static str,
    pub version: &'static str,
    /// Whether it is built for speed. Without, it is there in a third of the time.
    pub optimised: bool,
}

impl Program {
    pub fn binary(&self) -> Result<PathBuf> {
        command::find(self.name)
            .or_else(|| cache::find(&self.file()))
            .with_context(|| {
                let Self { name, version, .. } = self;
                format!("{name} {version} is missing; `cargo xtask test` builds it")
            })
    }

    /// Builds the program and keeps it in the cache, unless it is there.
    pub fn install(&self, say: &dyn Fn(&str)) -> Result<PathBuf> {
        if let Ok(path) = self.binary() {
            return Ok(path);
        }
        cache::fill(&self.file(), |path| self.build(path, say))
    }

    fn build(&self, path: &Path, say: &dyn Fn(&str)) -> Result<()> {
        let root = path.ancestors().nth(2).context("a directory")?;
        let (package, version, into) = (self.package, self.version, root.display());
        say(&format!("building {package} {version} into {into} (once)"));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut install = Command::new(cargo);
        install
            // By the toolchain that the workspace is pinned to.
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_remove("CARGO_TARGET_DIR")
            .args(["install", "--locked", "--quiet", "--version", version])
            .arg("--root")
            .arg(root)
            .args((!self.optimised).then_some("--debug"))
            .arg(package);
        command::run(&mut install).map(drop)
    }

    fn file(&self) -> String {
        format!("tools/bin/{}", self.name)
    }
}
