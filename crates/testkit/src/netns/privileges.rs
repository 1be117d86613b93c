//! The right to make namespaces: root has it, other users get it inside a user namespace.

use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use crate::command;

#[derive(Debug)]
pub enum Privileges {
    Here,
    /// The program has run, as root of a user namespace of its own, and ended like this.
    Elsewhere(ExitStatus),
}

/// Makes sure that namespaces can be made: as root at once; otherwise by running the current
/// program again, with the same arguments, as root of a fresh user, network and mount namespace.
///
/// The second run has no network but loopback: whatever must be fetched is fetched before.
pub fn acquire() -> Result<Privileges> {
    if is_root() {
        return Ok(Privileges::Here);
    }
    let program = std::env::current_exe().context("finding our own program")?;
    let mut again = in_user_namespace(&program)?;
    again.args(std::env::args_os().skip(1));
    let status = again.status();
    let status = status.with_context(|| format!("starting `{}`", command::line(&again)))?;
    Ok(Privileges::Elsewhere(status))
}

/// Tells whether we are root: of the machine, or of a user namespace.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Prepares `program` to run as root of a fresh user, network and mount namespace, with `lo` up
/// and a `/run/netns` that it may write (`/run` itself belongs to the real root).
pub fn in_user_namespace(program: &Path) -> Result<Command> {
    let unshare = command::require("unshare")?;
    let probe = Command::new(&unshare).args(FLAGS).arg("true").output();
    let probe = probe.context("starting `unshare`")?;
    if !probe.status.success() {
        bail!(
            "not root, and this kernel allows no user namespaces ({}): run it as root, or see \
             user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns",
            String::from_utf8_lossy(&probe.stderr).trim(),
        );
    }
    let mut command = Command::new(unshare);
    command.args(FLAGS);
    command.args(["--", "sh", "-c", PREPARE, "sh"]).arg(program);
    Ok(command)
}

const PREPARE: &str = "mount -t tmpfs tmpfs /run && mkdir /run/netns && \
    PATH=$PATH:/usr/sbin:/sbin ip link set lo up && exec \"$@\"";
const FLAGS: [&str; 4] = ["--user", "--map-root-user", "--net", "--mount"];
