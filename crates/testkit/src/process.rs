//! Child processes that never outlive the test: started, watched, measured, stopped.
//!
//! Children are started from one thread that lives as long as the process, because the kernel's
//! "signal me when my parent dies" (`PR_SET_PDEATHSIG`, set by util-linux' `setpriv`) means the
//! parent's *thread*. So even a test that is killed leaves no process behind.

mod spawner;
mod usage;

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, kill_process};

use crate::{command, wait};

pub use rustix::process::Signal;
pub use usage::{Usage, listens, process, usage};

/// A running child with both outputs in a file. Dropping it stops it: SIGTERM, a second SIGTERM,
/// SIGKILL, within about a second.
#[derive(Debug)]
pub struct ChildGuard {
    child: Child,
    name: String,
    log: PathBuf,
}

impl ChildGuard {
    /// Starts `command`, with no input and both outputs appended to the file `log`.
    ///
    /// `name` is what errors call it.
    pub fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(log)
                .with_context(|| format!("opening the log {}", log.display()))
        };
        let mut mortal = bound_to_us(command);
        mortal.stdin(Stdio::null()).stdout(open()?).stderr(open()?);
        let child = spawner::spawn(mortal)
            .with_context(|| format!("starting {name}: `{}`", command::line(command)))?;
        Ok(Self {
            child,
            name: name.to_owned(),
            log: log.to_owned(),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the last `lines` lines written so far.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Returns how the process ended, `None` while it runs.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait();
        status.with_context(|| format!("asking after {}", self.name))
    }

    pub fn wait_ready(&mut self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        self.wait_for("readiness", limit, |_| ready().then_some(()))
    }

    /// Waits until a socket listens on `addr` in the process's network namespace, without a
    /// connection to it.
    pub fn wait_listening(&mut self, addr: SocketAddr, limit: Duration) -> Result<()> {
        let what = format!("a socket that listens on {addr}");
        let probe = |child: &Self| listens(child.pid(), addr).then_some(());
        self.wait_for(&what, limit, probe)
    }

    /// Waits for a log line that contains `needle`, and returns the first one.
    pub fn wait_log(&mut self, needle: &str, limit: Duration) -> Result<String> {
        self.wait_for(&format!("the log line {needle:?}"), limit, |child| {
            let log = child.log();
            let found = log.lines().find(|line| line.contains(needle));
            found.map(str::to_owned)
        })
    }

    pub fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = wait::until_some("its end", limit, || self.exit_status().transpose());
        ended.unwrap_or_else(|_| self.fail(&format!("has not ended within {limit:?}")))
    }

    /// Sends a signal. To a process that has ended and was waited for: an error. SIGSTOP has taken
    /// effect on all threads when this returns.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.exit_status()? {
            return self.fail(&format!("has ended with {status}"));
        }
        // Not yet waited for, so the id cannot belong to another process.
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("signaling {}", self.name))?;
        if signal == Signal::STOP {
            let what = format!("{} to be stopped", self.name);
            let id = self.pid();
            wait::until(&what, STOP_LIMIT, || usage::is_stopped(id))?;
        }
        Ok(())
    }

    /// Asks the process to end (SIGTERM), kills it after `grace`, and returns how it ended.
    pub fn stop(mut self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match self.wait_exit(grace) {
            Ok(status) => Ok(status),
            Err(_) => self.kill(),
        }
    }

    /// Kills the process (SIGKILL) and returns how it ended.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        let killed = self.child.kill();
        killed.with_context(|| format!("killing {}", self.name))?;
        let ended = self.child.wait();
        ended.with_context(|| format!("waiting for {}", self.name))
    }

    pub fn usage(&self) -> Result<Usage> {
        usage(self.pid()).with_context(|| format!("measuring {}", self.name))
    }

    /// Bounds the descriptors of the running process (`RLIMIT_NOFILE`): it gets no new one whose
    /// number is `limit` or more.
    pub fn limit_descriptors(&self, limit: usize) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        let limit = Some(limit as u64);
        let limits = Rlimit {
            current: limit,
            maximum: limit,
        };
        rustix::process::prlimit(Some(pid), Resource::Nofile, limits)
            .map(drop)
            .with_context(|| format!("limiting the descriptors of {}", self.name))
    }

    /// Fails with what is said of the process, and the end of its log.
    fn fail<T>(&self, said: &str) -> Result<T> {
        bail!("{} {said}:\n{}", self.name, self.log_tail(TAIL))
    }

    fn wait_for<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut probe: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        let deadline = wait::Deadline::after(limit);
        loop {
            if let Some(value) = probe(self) {
                return Ok(value);
            }
            if let Some(status) = self.exit_status()? {
                return self.fail(&format!("ended with {status} while we waited for {what}"));
            }
            if deadline.passed() {
                return self.fail(&format!("after {limit:?} still without {what}"));
            }
            wait::pause(POLL);
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        for _ in 0..2 {
            if self.signal(Signal::TERM).is_err() {
                return;
            }
            if self.wait_exit(GRACE).is_ok() {
                return;
            }
        }
        let _ = self.kill();
    }
}

/// Command prefix that runs a program of root's with the two capabilities of a DaemonSet's pod, and no way to more.
pub const TWO_CAPABILITIES: [&str; 7] = [
    "setpriv",
    "--bounding-set",
    "-all,+net_admin,+net_bind_service",
    "--inh-caps",
    "-all,+net_admin,+net_bind_service",
    "--no-new-privs",
    "--",
];

/// As [`TWO_CAPABILITIES`], but none: root in name only.
pub const NO_CAPABILITIES: [&str; 7] = [
    "setpriv",
    "--bounding-set",
    "-all",
    "--inh-caps",
    "-all",
    "--no-new-privs",
    "--",
];

/// Returns the same command, to be killed by the kernel when we die. Where `setpriv` is missing it
/// is the command unchanged.
fn bound_to_us(command: &Command) -> Command {
    let mut bound = match command::find("setpriv") {
        Some(setpriv) => {
            let mut bound = Command::new(setpriv);
            bound.args(["--pdeathsig", "KILL", "--"]);
            bound.arg(command.get_program());
            bound
        }
        None => Command::new(command.get_program()),
    };
    bound.args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(key, value),
            None => bound.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        bound.current_dir(dir);
    }
    bound
}

const STOP_LIMIT: Duration = Duration::from_secs(10);

const POLL: Duration = Duration::from_millis(10);
const GRACE: Duration = Duration::from_millis(500);
const TAIL: usize = 30;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::tempdir::TempDir;

    fn shell(script: &str, dir: &TempDir) -> ChildGuard {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ChildGuard::spawn("the shell", &command, &dir.join("log")).unwrap()
    }

    #[test]
    fn a_child_is_gone_when_its_guard_is_dropped() {
        let dir = TempDir::new("process").unwrap();
        let mut child = shell("trap '' TERM; echo up; while :; do sleep 1; done", &dir);
        child.wait_log("up", Duration::from_secs(20)).unwrap();
        let used = child.usage().unwrap();
        assert!(used.rss_kib > 0 && used.descriptors >= 3, "{used:?}");
        let proc = PathBuf::from(format!("/proc/{}", child.pid()));
        assert!(proc.exists());
        drop(child);
        assert!(!proc.exists());
    }

    #[test]
    fn a_child_that_ends_early_shows_its_log() {
        let dir = TempDir::new("process").unwrap();
        let mut child = shell("echo because; exit 64", &dir);
        let ready = child.wait_ready(Duration::from_secs(20), || false);
        let error = ready.unwrap_err().to_string();
        assert!(error.contains("64") && error.contains("because"), "{error}");
    }

    #[test]
    fn a_child_started_from_a_short_thread_lives_on() {
        let dir = TempDir::new("process").unwrap();
        let mut child = std::thread::scope(|scope| {
            let started = scope.spawn(|| shell("echo up; exec sleep 60", &dir));
            started.join().unwrap()
        });
        child.wait_log("up", Duration::from_secs(20)).unwrap();
        assert!(child.exit_status().unwrap().is_none());
        let status = child.stop(Duration::from_secs(20)).unwrap();
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    }
}
