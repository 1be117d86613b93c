//! Where the programs of the images are, as tests have built them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use testkit::command;

/// Returns the program `name` that was built beside this test, and builds it when it is not there:
/// a run of the workspace builds all, one of this package alone none of them.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding our own program")?;
    // TARGET/PROFILE/deps/TEST
    let profile = own.ancestors().nth(2);
    let profile = profile.context("no directory of a profile")?;
    let path = profile.join(name);
    if !path.is_file() {
        let package = match name {
            "konnectivity-agent" | "konnectivity-server" => "konnectivity",
            own => own,
        };
        let directory = profile.file_name().and_then(|name| name.to_str());
        let named = match directory {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["build", "--package", package, "--bins", "--profile", named]);
        let target = profile.parent().context("no target")?;
        cargo.arg("--target-dir").arg(target);
        command::run(&mut cargo)?;
    }
    Ok(path)
}
