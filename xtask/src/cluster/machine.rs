//! One machine of the clusters: namespaces and control groups of its own, daemons that are started
//! again when they end, and nothing left when its first process is gone.
//!
//! ```text
//!   start: control groups ─▶ unshare ─▶ init (process 1): mounts ─▶ ready ┐
//!          links, addresses, routes ◀──────────────────────────────────────┘ ─▶ go ─▶ daemons
//! ```
//!
//! A machine sees the host's files; what it writes to `/etc` and `/var` lands in its directory, `/run`
//! and `/tmp` are its own. It is no sandbox: the daemons are root of the host.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::{command, wait};

use super::groups;

/// What a machine runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    /// Daemons by name: the words of their commands.
    pub(crate) daemons: Vec<(String, Vec<String>)>,
    /// Files below `/etc` with their texts.
    pub(crate) files: BTreeMap<String, String>,
}

/// A machine that was started, by this process or another.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    directory: PathBuf,
}

impl Machine {
    /// Names the machine whose files are in `root`, whether or not it runs.
    pub(crate) fn at(root: &Path, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            directory: root.join(name),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts what only waits for its network; [`Machine::go`] has the daemons started.
    pub(crate) fn start(&self, spec: &Spec) -> Result<()> {
        let directory = &self.directory;
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        for left in [READY, GO] {
            let _ = fs::remove_file(directory.join(left));
        }
        fs::write(directory.join(SPEC), serde_json::to_vec(spec)?).context("writing a machine")?;
        let mut log = File::options();
        let log = log
            .create(true)
            .append(true)
            .open(directory.join("init.log"));
        let log = log.context("opening a log")?;
        let mut start = Command::new(command::require("sh")?);
        start.args(["-c", ENTER]).arg("sh");
        start.arg(groups::make(&self.name)?.join("\n"));
        start.arg(command::require("unshare")?);
        start.args([
            "--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup",
        ]);
        start.arg("--kill-child=KILL");
        start.arg(std::env::current_exe().context("finding this program")?);
        start.args(["cluster", "machine"]).arg(directory);
        start.stdin(Stdio::null());
        start.stdout(log.try_clone().context("sharing a log")?);
        start.stderr(log).process_group(0);
        let mut child = start.spawn().context("starting unshare")?;
        fs::write(directory.join(PID), child.id().to_string()).context("writing a process id")?;
        let ready = directory.join(READY);
        let ended = wait::until_some(&self.name, LIMIT, || {
            let ended = child.try_wait().ok()?;
            (ended.is_some() || ready.exists()).then_some(ended)
        })?;
        groups::leave(&self.name, child.id())?;
        let log = || fs::read_to_string(directory.join("init.log")).unwrap_or_default();
        ensure!(ended.is_none(), "{} ended at once: {}", self.name, log());
        // We reap it as long as we live; then another process does.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Has the daemons started.
    pub(crate) fn go(&self) -> Result<()> {
        fs::write(self.directory.join(GO), "").context("starting daemons")
    }

    /// Ends every process of the machine, as a power cut would, and takes its control groups away.
    pub(crate) fn stop(&self) -> Result<()> {
        if let Some(init) = self.init() {
            let pid = init.to_string();
            command::run(Command::new("kill").args(["-KILL", &pid]))?;
        }
        wait::until("its processes to end", LIMIT, || self.outer().is_none())?;
        // Those of a machine whose directory is gone.
        groups::kill(&self.name)?;
        groups::remove(&self.name)
    }

    /// Prepares a command that runs on the machine.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Result<Command> {
        let init = self
            .init()
            .with_context(|| format!("{} is down", self.name))?;
        let mut enter = Command::new(command::require("nsenter")?);
        enter.args(["--target", &init.to_string()]);
        enter.args([
            "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--",
        ]);
        enter.arg(program.as_ref());
        Ok(enter)
    }

    /// Runs `line` on the machine by a shell, for a minute at most, and returns what it prints.
    pub(crate) fn run(&self, line: &str) -> Result<String> {
        command::run(self.command("timeout")?.args(["60", "sh", "-c", line]))
    }

    /// Kills a daemon, which is started again.
    pub(crate) fn kill(&self, daemon: &str) -> Result<()> {
        let pid = fs::read_to_string(self.directory.join(format!("log/{daemon}.pid")));
        let pid = pid.with_context(|| format!("{} has no {daemon}", self.name))?;
        self.run(&format!("kill -KILL {pid}")).map(|_| ())
    }

    /// Returns the machine's first process, as the host sees it.
    pub(crate) fn init(&self) -> Option<u32> {
        let outer = self.outer()?;
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Returns the process that started the machine, if it is still that.
    fn outer(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.directory.join(PID)).ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = String::from_utf8_lossy(&line).contains(&*self.directory.to_string_lossy());
        ours.then(|| pid.parse().ok())?
    }
}

/// Runs as the first process of a machine, until it is killed.
pub(crate) fn init(directory: &Path) -> Result<ExitCode> {
    let text = fs::read_to_string(directory.join(SPEC)).context("reading the machine")?;
    let spec: Spec = serde_json::from_str(&text).context("reading the machine")?;
    let mut mount = Command::new("sh");
    mount
        .args(["-ec", MOUNTS, "sh"])
        .arg(directory)
        .arg(&spec.name);
    command::run(&mut mount)?;
    groups::mount()?;
    for (path, text) in &spec.files {
        let path = Path::new("/etc").join(path);
        let parent = path.parent().context("a file without a directory")?;
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        // It may be a link to somewhere in /run.
        let _ = fs::remove_file(&path);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    fs::write(directory.join(READY), "").context("saying so")?;
    while !directory.join(GO).exists() {
        wait::pause(Duration::from_millis(20));
    }
    let mut running = BTreeMap::new();
    for daemon in &spec.daemons {
        running.insert(start(directory, daemon)?, daemon);
    }
    loop {
        // Orphans of the whole machine are ours to reap as well.
        let Some((pid, _)) = rustix::process::wait(rustix::process::WaitOptions::empty())? else {
            continue;
        };
        if let Some(daemon) = running.remove(&pid.as_raw_nonzero().get().unsigned_abs()) {
            wait::pause(RESTART_DELAY);
            running.insert(start(directory, daemon)?, daemon);
        }
    }
}

fn start(directory: &Path, (name, words): &(String, Vec<String>)) -> Result<u32> {
    let path = directory.join(format!("log/{name}.log"));
    let mut log = File::options();
    let log = log.create(true).append(true).open(&path);
    let log = log.with_context(|| format!("opening {}", path.display()))?;
    let (program, rest) = words.split_first().context("a daemon without a program")?;
    let mut command = Command::new(program);
    command.args(rest).stdin(Stdio::null());
    command.stdout(log.try_clone().context("sharing a log")?);
    let child = command.stderr(log).spawn();
    let pid = child.with_context(|| format!("starting {program}"))?.id();
    fs::write(path.with_extension("pid"), pid.to_string()).context("writing a process id")?;
    Ok(pid)
}

const SPEC: &str = "machine.json";
const PID: &str = "pid";
const READY: &str = "ready";
const GO: &str = "go";
pub(super) const LIMIT: Duration = Duration::from_secs(30);
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Enters control groups, one file a line, and becomes what follows.
const ENTER: &str = "for file in $1; do echo $$ > \"$file\"; done; shift; exec \"$@\"";

/// Gives a machine file systems of its own. What a kubelet would set for the whole host is shown to it as
/// set already.
const MOUNTS: &str = r#"
mount --make-rprivate /
for each in etc var; do
  mkdir -p "$1/$each" "$1/scratch/$each"
  mount -t overlay -o "lowerdir=/$each,upperdir=$1/$each,workdir=$1/scratch/$each" overlay "/$each"
done
mkdir -p "$1/log" /var/lib/kubelet /var/lib/containerd "$1/kubelet" "$1/containerd"
mount --bind "$1/log" /var/log
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/containerd" /var/lib/containerd
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /run/lock "$1/sysctl"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for each in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file="$1/sysctl/$(basename "${each%=*}")"
  echo "${each#*=}" > "$file"
  mount --bind "$file" "/proc/sys/${each%=*}"
done
mount --make-rshared /
hostname "$2"
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1 || true
"#;
