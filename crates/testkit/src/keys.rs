//! Keys of tunnels, made by our own programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::command;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    pub path: PathBuf,
    /// Its public key, base64.
    pub public: String,
}

impl KeyFile {
    /// Makes a private key with the `keygen` of `vpn-server` or `vpn-client`.
    pub fn generate(program: &Path, path: PathBuf) -> Result<Self> {
        let public = command::run(Command::new(program).arg("keygen").arg(&path))?;
        let public = public.trim().to_owned();
        Ok(Self { path, public })
    }
}
